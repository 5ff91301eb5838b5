"""Checkpoints in the background: the loop pays for one copy to host memory, a thread does the rest.

One checkpoint is written at a time. Once it is whole on disk `last` points to it, and only then older ones are deleted. An
evaluation's result comes after the checkpoint of its step; if it is the best, `best` points there then. An error in the thread is
raised in the training thread, at the next call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from paceline._utils.atomic_write import atomic_writer, sync_folder
from paceline._utils.errors import PacelineError
from paceline._utils.journal import write_error
from paceline._utils.threads import Thread, failure_in_thread
from paceline.training.checkpoint.layout import BEST, HIDDEN, LAST, link_step, list_steps, step_name, steps_to_delete
from paceline.training.checkpoint.write import Snapshot, delete_checkpoint, delete_path, save_checkpoint


@dataclass
class _HostCopy:
    """Host memory that is reused for every checkpoint."""

    buffers: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    def take(
        self, tensors: Mapping[str, Mapping[str, Tensor]]
    ) -> tuple[dict[str, dict[str, Tensor]], torch.cuda.Event | None]:
        """-> (copies of the tensors, an event after which copies from CUDA are complete).

        The copies are queued on the current stream, so kernels that change the tensors later cannot overtake them.
        """
        from_cuda = False
        wanted = {(group, name): tensor for group, named in tensors.items() for name, tensor in named.items()}
        for key, tensor in wanted.items():
            buffer, on_cuda = self.buffers.get(key), tensor.device.type == "cuda"
            if buffer is None or _kind(buffer) != _kind(tensor):
                # preserve_format keeps the strides of dense tensors, which makes the copy one straight run.
                buffer = torch.empty_like(
                    tensor.detach(), device="cpu", pin_memory=on_cuda, memory_format=torch.preserve_format
                )
                self.buffers[key] = buffer
            buffer.copy_(tensor.detach(), non_blocking=on_cuda)
            from_cuda |= on_cuda
        for key in self.buffers.keys() - wanted.keys():
            del self.buffers[key]
        event = None
        if from_cuda:
            event = torch.cuda.Event()
            event.record()
        return {group: {name: self.buffers[group, name] for name in named} for group, named in tensors.items()}, event


def _kind(tensor: Tensor) -> tuple:
    return tensor.shape, tensor.dtype, tensor.stride()


class CheckpointWriter:
    """Writes one run's checkpoints into `folder`; only one process may. Leftovers of a killed one are removed.

    keep        this many of the newest stay (at least 1)
    keep_every  also those whose step is a multiple of this; None for none
    changed     called in the background when a checkpoint is whole on disk, or a link has changed
    The best always stays.
    """

    def __init__(
        self, folder: Path, *, keep: int = 2, keep_every: int | None = None, changed: Callable[[], None] = lambda: None
    ):
        self._changed = changed
        self._folder, self._keep, self._keep_every = folder, keep, keep_every
        self._host = _HostCopy()
        self._thread: Thread | None = None
        self._error: Exception | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in folder.iterdir():
                if HIDDEN.fullmatch(path.name):
                    delete_path(path)
                elif path.name in (LAST, BEST) and path.is_dir() and not path.is_symlink():
                    raise PacelineError(  # it may be the only copy of what it holds
                        f"{path}: expected a symbolic link, got a folder (copying a run may have replaced the link). "
                        "Move the folder away and run the same command again."
                    )
        except OSError as error:
            raise _as_user_error(folder, error) from None

    def submit(self, step: int, snapshot: Snapshot) -> Path:
        """Copy `snapshot` and write it in the background as step-N; -> its path, which is not there yet.

        Waits only while the previous checkpoint is still being written. Raises PacelineError where that could not be written.
        """
        self.wait()
        tensors, arrived = self._host.take(snapshot.tensors)
        copied = Snapshot(tensors, json.loads(json.dumps(snapshot.facts)), snapshot.cards)  # the loop goes on
        self._in_background(lambda: self._write(step, copied, arrived))
        return self._folder / step_name(step)

    def resume(self, last: int, best: int) -> bool:
        """Before a run resumes from step-`last`: repair links, and deletions that a kill, or a person, left undone.

        best    step of the best evaluation so far; -1 where none is known: `best` stays what it is
        return  whether that checkpoint is there; where it is not, `best` is removed
        Raises PacelineError where the folder cannot be written.
        """
        # Later ones are damaged, and stay until there is another.
        past = [step for step in list_steps(self._folder) if step <= last]
        gone = best >= 0 and best not in past
        try:
            if gone:
                (self._folder / BEST).unlink(missing_ok=True)
            self._settle(past, last, best=best if best in past else None)
        except OSError as error:
            raise _as_user_error(self._folder, error) from None
        return not gone

    def evaluated(self, step: int, *, best: bool) -> None:
        """The newest checkpoint, step-N, has its result: point `best` to it if it is the best, and delete what nobody needs any more.

        In the background; does not wait, not even for that checkpoint to be whole. Raises PacelineError as `wait`.
        """
        self._raise()
        self._in_background(lambda: self._settle(list_steps(self._folder), step, best=step if best else None))

    def wait(self) -> None:
        """Wait until nothing is being written. Raises PacelineError for an error in the background."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._raise()

    def close(self) -> None:
        """Wait for the last checkpoint; may be called again. Raises PacelineError as `wait`."""
        self.wait()

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise _as_user_error(self._folder, error) if isinstance(error, OSError) else error

    def _in_background(self, work: Callable[[], None]) -> None:
        """Start a thread that does `work` after the thread before it, unless that failed."""
        before = self._thread

        def run() -> None:
            try:
                if before is not None:
                    before.join()
                if self._error is None:
                    work()
            except BaseException as error:  # raised again in the training thread
                self._error = failure_in_thread(error)

        thread = Thread(target=run, name="paceline-checkpoint")
        thread.start()
        self._thread = thread  # one that could not be started is nothing to wait for

    def _write(self, step: int, snapshot: Snapshot, arrived: torch.cuda.Event | None) -> None:
        if arrived is not None:
            arrived.synchronize()
        save_checkpoint(self._folder, step, snapshot)
        self._settle(list_steps(self._folder), step)

    def _settle(self, steps: Sequence[int], last: int, *, best: int | None = None) -> None:
        """Update `last`, and `best` where a new one is known; then delete those of `steps` that nobody needs."""
        for link, step in ((LAST, last), (BEST, best)):
            if step is not None and link_step(self._folder, link) != step:
                with atomic_writer(self._folder / link) as part:  # the old link is there until the new one is
                    part.unlink()
                    try:
                        part.symlink_to(step_name(step))
                    except (OSError, NotImplementedError):  # a file system, or a platform, without links
                        part.write_text(f"{step_name(step)}\n")
                sync_folder(self._folder)
        best = link_step(self._folder, BEST)
        for step in steps_to_delete(steps, newest=last, keep=self._keep, keep_every=self._keep_every, best=best):
            delete_checkpoint(self._folder / step_name(step))
        if link_step(self._folder, BEST) is None:
            (self._folder / BEST).unlink(missing_ok=True)
        self._changed()


def _as_user_error(folder: Path, error: OSError) -> PacelineError:
    where = error.filename or folder
    if isinstance(error, FileNotFoundError):
        return write_error(Path(where), error)
    return PacelineError(
        f"{where}: the checkpoint could not be written ({error.strerror or error}). Earlier checkpoints in {folder} are unchanged. "
        "Free disk space or fix the folder, and resume the run with the same --output-dir."
    )
