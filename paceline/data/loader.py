"""The loader: threads that decode straight into a ring of preallocated batches, in one process per rank.

Decoders and resizers release the GIL, so threads share the work without copying a pixel between processes, and nothing
is pickled, forked or put in /dev/shm. A batch's content depends on its samples' keys alone, never on which thread made
which part or in what order. One loader serves a whole run: it has no epochs, so nothing pauses between them.

Letters: B samples of one step on this rank, H and W pixels of the network's input.

Life of a slot of the ring: free -> a thread opens it with a step's schedule -> threads take chunks of its samples ->
the last to finish makes its batches (and starts their copy to the device) -> the consumer takes it -> free.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.batch.batch import Batch
from paceline.config.errors import DataError
from paceline.config.printable import printable
from paceline.threads import Thread, failure_in_thread

# A read that takes longer is named, again after as long; a mount that fails over is back within some minutes.
SAY_SECONDS = 60.0
# Below the ten minutes after which the other ranks' collectives end, so that the cause is named and not its echo.
FAIL_SECONDS = 480.0
JOIN_SECONDS = 10.0  # a thread finishes the sample it is at within a second, or hangs
NAMED = 3

# (epoch, index, out) -> label: writes the sample's pixels into out, (H, W, 3) uint8, and returns what it is labelled
# with. Called by several threads at once; must depend on epoch and index alone.
ReadDecode = Callable[[int, int, np.ndarray], Any]


class Forward(NamedTuple):
    """The samples of one forward, where they are not of the loader's shape or not read as all others."""

    epochs: np.ndarray  # (n,) int64
    indices: np.ndarray  # (n,) int64
    shape: tuple[int, int] | None = None  # H, W of its images; None: the loader's
    read: ReadDecode | None = None  # what reads its samples; None: the loader's read_decode


# step -> one (epochs, indices) per forward, each (n,) int64, or a Forward. Called once a step, in order, by one thread at
# a time.
Schedule = Callable[[int], Sequence[tuple[np.ndarray, np.ndarray] | Forward]]
# (images (n, 3, H, W) uint8, labels of length n, indices (n,) int64) -> the batch of one forward, on the host.
MakeBatch = Callable[[Tensor, list[Any], Tensor], Batch]


def labelled_batch(images: Tensor, labels: list[int], indices: Tensor) -> Batch:
    """A batch whose labels are class indices."""
    return Batch(images=images, labels=torch.tensor(labels, dtype=torch.int64), indices=indices)


class _Slot:
    """One step's memory, and how far it is. `ready`, `taken` and `remaining` are guarded by the loader's condition."""

    def __init__(self) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)
        self.images: list[Tensor] = []  # of each forward, (n, H, W, 3), views of the memory
        self.pixels: list[np.ndarray] = []  # of each sample, (H, W, 3), the same views
        self.reads: list[ReadDecode] = []  # of each sample
        self.epochs: list[int] = []
        self.indices: list[int] = []
        self.labels: list[Any] = []
        self.sizes: list[int] = []
        self.remaining = 0
        self.free = True
        self.ready = False
        self.batches: list[Batch] = []
        self.copied: torch.cuda.Event | None = None

    def allocate(self, largest: int, shapes: list[tuple[int, int, int, int]], pinned: bool) -> None:
        """Images of these shapes, one for each forward, in memory for as many of `largest` bytes each; memory that is
        enough is kept, so the ring does not grow with which shapes come.
        """
        needed = largest * sum(shape[0] for shape in shapes)
        if self.memory.numel() < needed:
            self.memory = torch.empty(needed, dtype=torch.uint8, pin_memory=pinned)
        edges = [0, *accumulate(prod(shape) for shape in shapes)]
        self.images = [self.memory[start:stop].view(shape) for start, stop, shape in zip(edges, edges[1:], shapes)]
        self.pixels = [pixels for images in self.images for pixels in images.numpy()]


class Loader:
    """Yields (step, [Batch of each forward]) for first_step, first_step + 1, ... in order.

        with Loader(...) as loader:
            for step, batches in loader:

    read_decode, schedule, make_batch   see their types above
    first_step, last_step   the steps first_step .. last_step - 1; last_step None: without end. Starting costs the same
                            at any step.
    threads      loader threads; they never set a thread count and call nothing that would start more
    prefetch     steps made ready ahead of the one in use
    name         index -> the image's file, for messages
    image_shape  (H, W, 3): of every image, or the largest where the schedule names the shapes of its forwards
    device       where the batches shall be. On a CUDA device they are copied from pinned memory on a stream of the
                 loader's own, and the consumer's current stream waits for that copy.

    Images are (n, 3, H, W) uint8 in channels_last memory. On the CPU they are the ring's own memory, valid until the
    next step is asked for or the loader is closed: clone what must live longer. On another device they are the
    consumer's.

    An exception in a thread is raised at once where the consumer asks for the next step, even when earlier steps are
    ready. `close` (or leaving the with block) stops and joins all threads; it may be called again.
    `wait_seconds` is the time the consumer has waited for data so far.

    A sample that does not come within a minute, while the consumer waits, is named on stderr once a minute, and after
    FAIL_SECONDS it is a DataError. The thread that waits for it is then left alone: nothing can end a read that hangs.
    """

    def __init__(
        self,
        *,
        read_decode: ReadDecode,
        schedule: Schedule,
        first_step: int = 0,
        last_step: int | None = None,
        threads: int,
        prefetch: int = 2,
        image_shape: tuple[int, int, int],
        device: torch.device,
        make_batch: MakeBatch = labelled_batch,
        name: Callable[[int], str] = "image number {}".format,
    ) -> None:
        assert threads > 0 and prefetch > 0, "the plan gives at least one thread and one prefetched step"
        self.wait_seconds = 0.0
        self._read_decode = read_decode
        self._schedule = schedule
        self._make_batch = make_batch
        self._last_step = last_step
        self._image_shape = image_shape
        self._device = device
        self._cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._cuda else None
        self._num_threads = threads
        self._name = name
        # Of each thread: the sample it is at, and since when (time.monotonic); replaced whole, so read without a lock.
        self._at: list[tuple[int, float] | None] = [None] * threads

        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._stopping = False
        # One more than prefetched: the consumer holds one while it works.
        self._ring = [_Slot() for _ in range(prefetch + 1)]
        self._held: _Slot | None = None
        self._next_step = first_step

        self._handing_out = threading.Lock()  # guards the three below
        self._open_step = first_step
        self._open: _Slot | None = None
        self._position = 0

        # Daemons, so that an interpreter that dies of something else is not kept alive by a forgotten loader.
        self._threads = [Thread(target=self._work, args=(i,), name=f"loader-{i}", daemon=True) for i in range(threads)]
        started: list[threading.Thread] = []
        try:
            for thread in self._threads:
                thread.start()
                started.append(thread)
        except RuntimeError:  # the machine gives no more threads
            self._threads = started
            self.close()
            raise

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> tuple[int, list[Batch]]:
        """The next step; hands the memory of the one before back to the ring."""
        with self._changed:
            if self._held is not None:
                self._held.free = True
                self._held.batches = []
                self._held = None
                self._changed.notify_all()
            step = self._next_step
            if self._error is None and step == self._last_step:
                raise StopIteration
            began = told = time.perf_counter()
            while not (self._error or self._stopping or self._ring[step % len(self._ring)].ready):
                self._changed.wait(SAY_SECONDS / 4)
                if time.perf_counter() - told >= SAY_SECONDS:
                    told = time.perf_counter()
                    self._tell_overdue(step)
            self.wait_seconds += time.perf_counter() - began
            if self._error is not None:
                raise self._error
            if self._stopping:
                raise RuntimeError("the loader was closed")
            slot = self._ring[step % len(self._ring)]
            slot.ready = False
            self._held = slot
            self._next_step += 1
            batches = slot.batches
        if slot.copied is not None:
            self._hand_over(slot.copied, batches)
        return step, batches

    def close(self) -> None:
        """Stop and join the threads; each finishes at most the sample it is at."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._ring = []

    def _tell_overdue(self, step: int) -> None:
        """Say which samples do not come; raises DataError where one is given up."""
        now = time.monotonic()
        late = sorted(
            (since, index) for since, index in ((at[1], at[0]) for at in self._at if at) if now - since >= SAY_SECONDS
        )
        if not late:
            return  # slow, but going on
        seconds = now - late[0][0]
        names = ", ".join(self._name(index) for _, index in late[:NAMED])
        more = f" and {len(late) - NAMED} more" if len(late) > NAMED else ""
        text = f"step {step:,} waits for {names}{more}: not read within {seconds:.0f} s"
        if seconds >= FAIL_SECONDS:
            raise DataError(f"{text}. Its disk or mount does not answer: mend it, then give the same command again.")
        print(printable(f"paceline: {text}; still waiting"), file=sys.stderr, flush=True)

    def _work(self, number: int) -> None:
        try:
            if self._cuda:
                torch.cuda.set_device(self._device)  # else a new thread would pin its memory through device 0
            while (chunk := self._next_chunk()) is not None:
                slot, start, stop = chunk
                for at in range(start, stop):
                    if self._stopping:
                        return
                    self._at[number] = (slot.indices[at], time.monotonic())
                    slot.labels[at] = slot.reads[at](slot.epochs[at], slot.indices[at], slot.pixels[at])
                self._at[number] = None
                self._finish(slot, stop - start)
        except BaseException as error:  # the consumer raises it
            with self._changed:
                self._error = self._error or failure_in_thread(error)
                self._stopping = True
                self._changed.notify_all()

    def _next_chunk(self) -> tuple[_Slot, int, int] | None:
        """(slot, start, stop) of samples to make, None when there is nothing left to do."""
        with self._handing_out:
            while self._open is None or self._position == len(self._open.indices):
                if self._open_step == self._last_step or not self._open_next():
                    return None
            # Small enough that threads finish a step together, large enough that handing out costs nothing.
            size = min(16, max(1, len(self._open.indices) // (4 * self._num_threads)))
            start = self._position
            self._position = min(start + size, len(self._open.indices))
            return self._open, start, self._position

    def _open_next(self) -> bool:
        """Open the next step as soon as its slot is free; False when the loader is stopping."""
        slot = self._ring[self._open_step % len(self._ring)]
        with self._changed:
            while not (slot.free or self._stopping):
                self._changed.wait()
            if self._stopping:
                return False
            slot.free = False
        if slot.copied is not None:
            slot.copied.synchronize()  # the device may still be reading this memory
        forwards = [
            forward if isinstance(forward, Forward) else Forward(*forward)
            for forward in self._schedule(self._open_step)
        ]
        slot.sizes = [len(forward.indices) for forward in forwards]
        slot.epochs = np.concatenate([forward.epochs for forward in forwards]).tolist()
        slot.indices = np.concatenate([forward.indices for forward in forwards]).tolist()
        slot.labels = [None] * len(slot.indices)
        slot.reads = [forward.read or self._read_decode for forward in forwards for _ in forward.indices]
        slot.remaining = len(slot.indices)
        shapes = [(len(forward.indices), *(forward.shape or self._image_shape[:2]), 3) for forward in forwards]
        largest = prod(self._image_shape)
        assert all(prod(shape[1:]) <= largest for shape in shapes), "image_shape is the largest that the schedule names"
        slot.allocate(largest, shapes, self._cuda)
        self._open, self._position = slot, 0
        self._open_step += 1
        if not slot.indices:  # a rank may have nothing to evaluate in a step
            self._finish(slot, 0)
        return True

    def _finish(self, slot: _Slot, samples: int) -> None:
        """Count samples as made; with the last one the step is ready."""
        with self._changed:
            slot.remaining -= samples
            if slot.remaining:
                return
        batches, start = [], 0
        indices = torch.tensor(slot.indices, dtype=torch.int64)
        for size, pixels in zip(slot.sizes, slot.images):
            stop = start + size
            images = pixels.permute(0, 3, 1, 2)
            batches.append(self._make_batch(images, slot.labels[start:stop], indices[start:stop]))
            start = stop
        if self._stream is not None:
            with torch.cuda.stream(self._stream):
                batches = [batch.to(self._device, non_blocking=True) for batch in batches]
                slot.copied = torch.cuda.Event()
                slot.copied.record(self._stream)
        elif self._device.type != "cpu":
            batches = [batch.to(self._device) for batch in batches]
        with self._changed:
            slot.batches = batches
            slot.ready = True
            self._changed.notify_all()

    def _hand_over(self, copied: torch.cuda.Event, batches: list[Batch]) -> None:
        """Order the consumer's stream after the copy, and keep the memory from reuse while that stream needs it."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(copied)
        for batch in batches:
            for tensor in vars(batch).values():
                if isinstance(tensor, Tensor):
                    tensor.record_stream(current)


class Repeated:
    """One step's batches again and again, without reading anything more: what a loader costs is then nothing.

    The batches are copies, so the loader that made them is closed; it must have at least one step.
    """

    def __init__(self, loader: Loader, *, first_step: int, last_step: int | None) -> None:
        with loader:
            _, batches = next(loader)
            self._batches = [batch.to(batch.images.device, copy=True) for batch in batches]
        self.wait_seconds = loader.wait_seconds
        self._next_step, self._last_step = first_step, last_step

    def __enter__(self) -> Repeated:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Repeated:
        return self

    def __next__(self) -> tuple[int, list[Batch]]:
        """The next step, with the same batches."""
        if self._next_step == self._last_step:
            raise StopIteration
        self._next_step += 1
        return self._next_step - 1, self._batches

    def close(self) -> None:
        """Nothing is open."""
