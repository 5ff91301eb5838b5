"""The folder of one run: made, resumed or refused here.

A folder that a failed start made is removed again; one that holds a finished run is never written to.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from paceline._utils.atomic_write import atomic_write, remove_stale_parts
from paceline._utils.commands import format_path
from paceline._utils.errors import PacelineError
from paceline._utils.journal import lock
from paceline._utils.names import CHECKPOINTS, LEFT_OVER, PREDICTIONS, RUNS, STOP_FILE, check_entries, next_numbered_folder
from paceline._utils.reporter import SILENT, Reporter
from paceline._utils.safe_read import read_entry
from paceline.config.run import MAX_BYTES, RunOptions, RunRecord, RunSpec
from paceline.distributed.comm.world import DistContext, broadcast_from_main
from paceline.training.checkpoint.background import CheckpointWriter
from paceline.training.checkpoint.layout import check_space, list_steps, step_name
from paceline.training.checkpoint.write import count_tensor_bytes
from paceline.training.previous_run import FinishedError, SavedRun, load_previous_run
from paceline.training.request import Request
from paceline.training.resume import ResumePoint
from paceline.training.state import State

if TYPE_CHECKING:
    from paceline.training.run_dir.remote import RemoteRunFolder
    from paceline.training.run_dir.sync import FolderSync


@dataclass
class RunFolder:
    """One run's folder, on every rank."""

    path: Path
    saved: SavedRun  # run.json of the run that is resumed
    is_main: bool
    ended: str = ""  # status with which the resumed run had ended; empty where it had not
    mirrored: RemoteRunFolder | None = None  # --sync-to, on rank 0
    is_fresh: bool = False  # this command made or copied everything in it, and nothing was trained

    def check_space(self, state: State, keep: int) -> None:
        """Raises PacelineError, naming the folder, where the checkpoints that will be kept do not fit."""
        if self.is_main:
            tensors = [*state.model.state_dict().values(), *state.optimizer.state().values()]
            # Kept ones, the best, and the one being written.
            check_space(self.path, count_tensor_bytes(tensors) * (keep + 2))

    def write(self, run: RunSpec) -> None:
        """Write run.json, whole or not at all; a resumed run keeps its first one beside it."""
        if not self.is_main:
            return
        file, first = self.path / "run.json", self.path / "run-first.json"
        self.is_fresh = False
        if self.saved.facts is not None and not first.exists():
            atomic_write(first, read_entry(file, MAX_BYTES), sync=True)
        atomic_write(file, run.record().to_json(), sync=True)

    @contextmanager
    def begin(self, run: RunSpec, reporter: Reporter) -> Iterator[FolderSync | None]:
        """Write run.json; -> the mirror of --sync-to, on rank 0. When the block ends it catches up, and the result is reported.

        Raises PacelineError where the bucket takes no objects.
        """
        if self.mirrored is None:
            self.write(run)
            yield None
            return
        from paceline.training.run_dir.sync import FolderSync, format_sync

        mirror = FolderSync(self.mirrored, self.path, name=run.name, keep_every=run.options.keep_checkpoint_every)
        try:
            self.write(run)
            mirror.wake()
            yield mirror
        except KeyboardInterrupt:  # leaves at once
            raise
        except BaseException:
            mirror.close()
            raise
        facts = mirror.close()
        (reporter.warning if "missing" in facts else reporter.line)(format_sync(facts))

    @contextmanager
    def writer(
        self, options: RunOptions, start: ResumePoint, mirror: FolderSync | None, reporter: Reporter
    ) -> Iterator[CheckpointWriter | None]:
        """The background writer of checkpoints, on rank 0; links and deletions that a kill left undone are done first.

        mirror   follows the checkpoints
        """
        if not self.is_main:
            yield None
            return
        keep_every = options.keep_checkpoint_every or None
        changed = mirror.wake if mirror is not None else lambda: None
        writer = CheckpointWriter(
            self.path / "checkpoints", keep=options.keep_checkpoints, keep_every=keep_every, changed=changed
        )
        best = start.standing.best_step
        if start.snapshot is not None and not writer.resume(start.snapshot.facts["step"], best):
            reporter.warning(
                f"warning: the best checkpoint {step_name(best)} not found. `best` will be the next better one."
            )
        try:
            yield writer
        finally:
            writer.close()


@contextmanager
def open_run_folder(request: Request, world: DistContext, reporter: Reporter = SILENT) -> Iterator[RunFolder]:
    """Decide on rank 0 where the run lives and whether it resumes; all ranks get the same answer.

    Raises PacelineError for a folder that is finished, in use, not ours, or not writable, and for a --sync-to that is not.
    """
    name, recipe, options = request.name, request.recipe, request.options
    answer, lock, made, ended, mirrored, was_there = None, None, None, "", None, False
    if world.is_main:
        path, made = _choose(name, options.output_dir)
        lock = _lock(path, reporter)
        for folder in (path, path / PREDICTIONS):
            remove_stale_parts(folder)
        try:
            saved, was_there = None, (path / "run.json").exists()
            if options.sync_to:
                from paceline.training.run_dir.remote import open_remote_folder

                mirrored = open_remote_folder(options.sync_to, path, reporter)
            if (path / "run.json").exists():
                saved, ended = load_previous_run(path, name, recipe, options, request.given, repeats=request.repeats)
        except PacelineError as refused:
            if not was_there and not isinstance(refused, FinishedError):
                _empty(path, made)
            lock.close()
            raise
        step = max(list_steps(path / CHECKPOINTS), default=-1) if options.sync_to else -1
        answer = json.dumps({"path": str(path), "saved": saved and saved.as_dict(), "ended": ended, "step": step})
    facts = json.loads(broadcast_from_main(world, answer, "run-folder"))
    path = Path(facts["path"])
    folder = RunFolder(
        path, SavedRun(path, facts["saved"] and RunRecord(**facts["saved"])), world.is_main, facts["ended"], mirrored
    )
    folder.is_fresh = world.is_main and not was_there
    reporter.line(f"run: {format_path(path)}")
    if options.sync_to:
        if world.local_rank == 0 and not world.is_main and facts["step"] >= 0:
            _download_here(options.sync_to, path / CHECKPOINTS, facts["step"])
        world.barrier()

    def remove_unbegun(_: object = None) -> None:
        """Leave nothing half-made behind; a run has begun once it has events."""
        begun = folder.saved.facts is not None or (folder.path / "events.jsonl").exists()
        if world.is_main and (folder.is_fresh or not begun):
            _empty(folder.path, made)

    if world.watch is not None:
        # Called when another rank was refused, before this process exits.
        world.watch.before_exit.append(remove_unbegun)
    try:
        yield folder
    except BaseException:
        remove_unbegun()
        raise
    finally:
        if lock is not None:
            lock.close()


def _empty(path: Path, made: Path | None) -> None:
    """Remove what this command put into a folder without a run, and the folders that it made."""
    for entry in path.iterdir() if made is None else ():
        if not LEFT_OVER.fullmatch(entry.name):  # everything else came after this command looked
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    if made is None:
        return
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):  # somebody else has put something there
        for above in path.parents:
            if not above.is_relative_to(made):
                break
            above.rmdir()


def _download_here(url: str, checkpoints: Path, step: int) -> None:
    """On a node that does not see rank 0's folder: download the checkpoint from which rank 0 resumes."""
    if (checkpoints / step_name(step)).is_dir():
        return
    from paceline.data.storage.object_store import BucketFolder
    from paceline.training.run_dir.remote import download_step

    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
        download_step(BucketFolder(url), step, checkpoints)
    except OSError as problem:
        raise PacelineError(f"--sync-to {url}: {problem.strerror or problem}") from None


def find_nearest_folder(out: str) -> Path:
    """The nearest folder that exists of a run's folder and those above it."""
    path = Path(out or RUNS).expanduser().absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _choose(name: str, out: str) -> tuple[Path, Path | None]:
    """-> (the run's folder, the topmost folder that was made for it)."""
    path = Path(out or RUNS).expanduser().absolute()
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise PacelineError(
            f"{path}: the name is not valid UTF-8, which TensorBoard requires. Choose another folder with --output-dir."
        ) from None
    if not out:
        path = next_numbered_folder(name)
        return path, _make(path, str(path))
    if os.path.lexists(path / "run.json"):
        check_entries(path)
        if (path / STOP_FILE).is_dir():
            raise PacelineError(
                f"{path / STOP_FILE}: this is a folder, and only a file of this name stops a run. Remove or rename the folder."
            )
        return path, None
    if path.exists() and (not path.is_dir() or any(not LEFT_OVER.fullmatch(entry.name) for entry in path.iterdir())):
        raise PacelineError(f"--output-dir {out}: already exists and is not a paceline run. Choose another folder.")
    check_entries(path)
    return path, _make(path, f"--output-dir {out}")


def _make(path: Path, what: str) -> Path | None:
    """Make a folder, and write a file into it, as mode bits do not prove that; -> the topmost folder that was made, or None."""
    probe = path / ".probe"
    made = next((folder for folder in (*reversed(path.parents), path) if not folder.exists()), None)
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"paceline")
        probe.unlink()
    except OSError as problem:
        raise PacelineError(f"{what}: not writable ({problem.strerror}). Choose another --output-dir.") from None
    return made


def _lock(path: Path, reporter: Reporter) -> IO[bytes]:
    """Lock the folder for as long as this process lives."""
    no_locks = f"warning: {path}: the file system does not support locks. Start only one training process in this folder."
    try:
        return os.fdopen(lock(path / ".lock", no_locks=lambda: reporter.warning(no_locks)), "rb+", buffering=0)
    except BlockingIOError:
        raise PacelineError(
            f"{path}: another process is training in this folder. Wait until it ends, or choose another --output-dir."
        ) from None
    except OSError as problem:
        raise PacelineError(f"{path}: not writable ({problem.strerror}). Choose another --output-dir.") from None
