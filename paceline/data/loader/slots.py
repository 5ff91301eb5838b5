"""The loader's ring: one step's memory a slot, the distribution of its samples to threads, and what worker processes make of them.

A slot is two memories that the loader and its workers map: the pixels, and notes. Notes are a step's table, which the
loader writes, and behind it the encoded bytes of each sample, where the loader's own threads read them or a device decodes them.
A task is one chunk of a step's samples. A worker unpickles a step's table once.

Letters: n samples of one forward, H and W pixels of the network's input.
"""

from __future__ import annotations

import mmap
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

from paceline._utils.errors import DataError
from paceline._utils.text import escape_text, join_names
from paceline.config.resnet import Exif
from paceline.data.batch import Batch
from paceline.data.index.records import RecordReader
from paceline.data.loader.device_buffers import DeviceBuffer
from paceline.data.transforms.decode import SampleSpec
from paceline.data.transforms.sample import NAMED, DrawSample, Render, read_many, sample_spec
from paceline.data.workers.jobs import SharedBytes, Task, unpickle_message

Shape = tuple[int, int]


class MicroBatch(NamedTuple):
    """The samples of one forward, for a shape or a draw other than the loader's."""

    epochs: np.ndarray  # (n,) int64
    indices: np.ndarray  # (n,) int64
    shape: Shape | None = None  # H, W of its images; None: the loader's
    draw: DrawSample | None = None  # what draws its samples; None: the loader's


# step -> one (epochs, indices) per forward, each (n,) int64, or a Forward. Called once a step, in order, by one thread at a time.
Schedule = Callable[[int], Sequence[tuple[np.ndarray, np.ndarray] | MicroBatch]]


class SharedMemory:
    """One slot's memory that worker processes map too: pixels, and notes."""

    def __init__(self) -> None:
        self.pixels, self.notes = SharedBytes("pixels"), SharedBytes("notes")
        self.table = 0  # bytes of the step's table, at the beginning of the notes
        self.places: list[int] = []  # of each sample's encoded bytes behind it, and the end of the last
        self._memory, self._pinned = torch.empty(0, dtype=torch.uint8), False

    def pixels_of(self, size: int, pinned: bool) -> Tensor:
        """The memory of at least `size` bytes; pinned for CUDA, if asked for."""
        if self.pixels.grow(size):
            self._unpin()
            assert self.pixels.memory is not None
            self._memory = torch.frombuffer(self.pixels.memory, dtype=torch.uint8)
            if pinned:
                cuda: Any = torch.cuda.cudart()
                torch.cuda.check_error(cuda.cudaHostRegister(self._memory.data_ptr(), self._memory.numel(), 0))
                self._pinned = True
        return self._memory

    def write(self, table: bytes, lengths: Sequence[int]) -> None:
        """Write a step's table; lengths: of its samples' bytes, where these are to be in the notes."""
        self.table, self.places = len(table), list(accumulate(lengths, initial=len(table)))
        self.notes.grow(self.places[-1])
        assert self.notes.memory is not None
        self.notes.memory[: len(table)] = table

    def encoded(self, sample: int) -> slice:
        """Where a sample's bytes are in the notes."""
        return slice(self.places[sample], self.places[sample + 1])

    def close(self) -> None:
        """Give it back. Tensors that are still used keep their memory."""
        self._unpin()
        self._memory = self._memory[:0].clone()
        self.pixels.close()
        self.notes.close()

    def _unpin(self) -> None:
        if self._pinned:
            cuda: Any = torch.cuda.cudart()
            cuda.cudaHostUnregister(self._memory.data_ptr())
            self._pinned = False


class Slot:
    """One step's memory and state. The loader's lock guards `step`, `free`, `ready`, `remaining` and `data`."""

    def __init__(self, number: int = 0, landing: DeviceBuffer | None = None, shared: bool = False) -> None:
        """shared: whether other processes render into it."""
        self.number = number
        self.shared = SharedMemory() if shared else None
        self.landing = landing  # on an accelerator whose copies run beside its kernels
        self.memory = torch.empty(0, dtype=torch.uint8)
        self.images: list[Tensor] = []  # of each forward, (n, H, W, 3), views of the memory
        self.pixels: list[np.ndarray] = []  # of each sample, (H, W, 3), the same views
        self.shapes: list[Shape] = []  # of each forward
        self.sizes: list[int] = []  # of each forward, n
        self.epochs: list[int] = []  # of each sample, as all that follow
        self.indices: list[int] = []
        self.draws: list[DrawSample] = []  # of each forward
        self.draw_with: list[DrawSample] = []  # of each sample
        self.data: list[bytes | None] = []  # encoded, from when it is fetched until it is rendered
        self.drawn: list[SampleSpec | None] = []  # where a RenderBatch renders them
        self.labels: list[Any] = []
        self.step = -1  # whose samples may be taken
        self.remaining = 0
        self.free = True
        self.ready = False
        self.batches: list[Batch] = []

    def descriptors(self) -> tuple[int, int]:
        """Of the shared pixels and notes."""
        assert self.shared is not None
        return self.shared.pixels.descriptor, self.shared.notes.descriptor

    def samples(self) -> SampleTable:
        """The step's table for worker processes."""
        # Arrays: each number of a list would cost the pickler a call.
        return SampleTable(np.array(self.epochs), np.array(self.indices), self.draws, self.shapes, self.sizes)

    def write(self, table: bytes, lengths: Sequence[int]) -> None:
        """Write a step's table into the shared notes, and make room behind it for encoded bytes of these lengths."""
        assert self.shared is not None
        self.shared.write(table, lengths)

    def keep(self, start: int, encoded: Sequence[bytes]) -> None:
        """Copy encoded bytes into the shared notes: of the samples from `start` on."""
        assert self.shared is not None and self.shared.notes.memory is not None
        for at, data in enumerate(encoded, start):
            self.shared.notes.memory[self.shared.encoded(at)] = data

    def kept(self, start: int, stop: int) -> list[bytes]:
        """These samples' bytes in the shared notes."""
        assert self.shared is not None and self.shared.notes.memory is not None
        return [self.shared.notes.memory[self.shared.encoded(at)] for at in range(start, stop)]

    def sizes_of_memory(self) -> tuple[int, int, int]:
        """Bytes of the table, of all notes and of all pixels, for worker processes."""
        assert self.shared is not None and self.shared.notes.memory is not None
        return self.shared.table, len(self.shared.notes.memory), self.memory.numel()

    def close(self) -> None:
        """Give back what is shared."""
        if self.shared is not None:
            self.shared.close()
            self.images, self.pixels, self.batches = [], [], []
            self.memory = self.memory[:0].clone()

    def fill(self, forwards: Sequence[tuple[np.ndarray, np.ndarray] | MicroBatch], shape: Shape, draw: DrawSample) -> None:
        """Begin a step's samples; `shape` and `draw` are for forwards without their own."""
        named = [forward if isinstance(forward, MicroBatch) else MicroBatch(*forward) for forward in forwards]
        self.sizes = [len(forward.indices) for forward in named]
        self.shapes = [forward.shape or shape for forward in named]
        self.epochs = np.concatenate([forward.epochs for forward in named]).tolist()
        self.indices = np.concatenate([forward.indices for forward in named]).tolist()
        self.draws = [forward.draw or draw for forward in named]
        self.draw_with = [own for own, size in zip(self.draws, self.sizes) for _ in range(size)]
        self.remaining = len(self.indices)
        self.data = [None] * self.remaining
        self.drawn = [None] * self.remaining
        self.labels = [None] * self.remaining

    def allocate(self, largest: int, pinned: bool) -> None:
        """Make the views of each forward's images, in memory for as many of `largest` bytes each.

        Memory that is large enough is kept, so the ring does not grow with the shapes that come.
        """
        shapes = [(size, *shape, 3) for size, shape in zip(self.sizes, self.shapes)]
        assert all(prod(shape[1:]) <= largest for shape in shapes), "image_shape is the largest that the schedule names"
        needed = largest * len(self.indices)
        if self.shared is not None:
            self.memory = self.shared.pixels_of(needed, pinned)
        elif self.memory.numel() < needed:
            self.memory = torch.empty(needed, dtype=torch.uint8, pin_memory=pinned)
        edges = [0, *accumulate(prod(shape) for shape in shapes)]
        self.images = [self.memory[start:stop].view(shape) for start, stop, shape in zip(edges, edges[1:], shapes)]
        self.pixels = [pixels for images in self.images for pixels in images.numpy()]


class Cursor:
    """Distribute the samples of one step after the other, in order, to the threads of one stage.

    first, last  steps; last None: without end
    open_step    step -> its slot and how many samples it has; None when the loader is stopping. May wait
    chunk        samples of a step -> how many a thread takes at once
    """

    def __init__(
        self, first: int, last: int | None, open_step: Callable[[int], tuple[Slot, int] | None], chunk: Callable[[int], int]
    ) -> None:
        self._lock = threading.Lock()  # guards all below
        self._step, self._last = first, last
        self._open_step, self._chunk = open_step, chunk
        self._slot: Slot | None = None
        self._position = self._samples = 0

    def take(self) -> tuple[Slot, int, int] | None:
        """(slot, start, stop) of samples to work on, None when there is nothing left to do."""
        with self._lock:
            while self._slot is None or self._position == self._samples:
                if self._step == self._last or (opened := self._open_step(self._step)) is None:
                    return None
                (self._slot, self._samples), self._position = opened, 0
                self._step += 1
            start = self._position
            self._position = min(start + self._chunk(self._samples), self._samples)
            return self._slot, start, self._position


# Numbers of a task: the slot and the step; its first sample and the one behind its last; bytes of the table, of all notes and of all
# pixels; and flags. FETCHED: the samples' bytes are in the notes. KEPT: they are wanted there and not rendered.
FETCHED, KEPT = 1, 2
POPULATE = getattr(mmap, "MAP_POPULATE", 0)  # only on Linux, as are worker processes
IDLE = -1


class SampleTable(NamedTuple):
    """A step's table."""

    epochs: np.ndarray
    indices: np.ndarray
    draws: list[DrawSample]  # of each forward
    shapes: list[tuple[int, int]]  # H, W of each forward
    sizes: list[int]  # n of each forward


class RenderJob:
    """The job of one loader.

    watched  the last of the descriptors is of memory with two int64 for each worker: the sample that it is at, or IDLE, and since when
    """

    def __init__(self, records: RecordReader, exif: Exif, draw: DrawSample, render: Render) -> None:
        self.records, self.draw, self.render = records, draw, render
        self.exif: Exif = exif
        # A step's draws are mostly methods of one task, whose arrays must not be sent again with each table.
        owner = getattr(getattr(draw, "func", draw), "__self__", None)
        self.shared: Sequence[Any] = () if owner is None else (owner,)
        self.module = __name__

    def start(self, number: int, descriptors: Sequence[int]) -> Callable[[Task], Any]:
        """descriptors: pixels and notes of each slot, and last of what is watched."""
        return _Worker(self, number, descriptors)


class _Worker:
    def __init__(self, job: RenderJob, number: int, descriptors: Sequence[int]) -> None:
        self.job, self.descriptors = job, descriptors
        self.maps: dict[int, mmap.mmap] = {}
        self.steps: dict[int, tuple[int, SampleTable, list[np.ndarray], list[int]]] = {}
        watched = np.frombuffer(mmap.mmap(descriptors[-1], 0), np.int64)
        self.at = watched[2 * number : 2 * number + 2]

    def mapped(self, index: int, size: int) -> mmap.mmap:
        """The memory of a descriptor, mapped again where it has grown."""
        result = self.maps.get(index)
        if result is None or len(result) < size:
            # With its page tables: else each page's first use is a fault, in every worker.
            result = self.maps[index] = mmap.mmap(self.descriptors[index], size, mmap.MAP_SHARED | POPULATE)
        return result

    def __call__(self, task: Task) -> list[Any]:
        slot, step, start, stop, table, notes_size, pixels_size, flags = task
        notes = self.mapped(2 * slot + 1, notes_size)
        if slot not in self.steps or self.steps[slot][0] != step:
            self.steps[slot] = (step, *self.open(notes[:table], slot, pixels_size, flags, table))
        _, samples, pixels, indices = self.steps[slot]
        of = [draw for draw, size in zip(samples.draws, samples.sizes) for _ in range(size)]
        job, results = self.job, []
        for at in range(start, stop):
            index, epoch = int(samples.indices[at]), int(samples.epochs[at])
            self.at[:] = index, time.monotonic_ns()
            data = notes[indices[at] : indices[at + 1]] if flags & FETCHED else read_many(job.records, [index])[0]
            draw = sample_spec(data, job.records, of[at], epoch, index, job.exif)
            if flags & KEPT:
                notes[indices[at] : indices[at + 1]] = data
                results.append(draw)
            else:
                job.render(data, draw, pixels[at])
                results.append(draw.label)
        self.at[0] = IDLE
        return results

    def open(
        self, table: bytes, slot: int, pixels_size: int, flags: int, notes_begin: int
    ) -> tuple[SampleTable, list[np.ndarray], list[int]]:
        """A step's table, the pixels of each of its samples, and where their bytes are in the notes."""
        samples: SampleTable = unpickle_message(table, self.job.shared)
        locations = []
        if flags:
            locations = list(accumulate(self.job.records.places.lengths[samples.indices].tolist(), initial=notes_begin))
        if flags & KEPT:
            return samples, [], locations
        shapes = [(size, *shape, 3) for size, shape in zip(samples.sizes, samples.shapes)]
        memory = np.frombuffer(self.mapped(2 * slot, pixels_size), np.uint8)
        edges = [0, *accumulate(map(prod, shapes))]
        images = [memory[a:b].reshape(shape) for shape, a, b in zip(shapes, edges, edges[1:])]
        return samples, [one for group in images for one in group], locations


# A read that takes longer is named, again after as long; a mount that fails over is back within some minutes.
SAY_SECONDS = 60.0
# Below the ten minutes after which the other ranks' collectives end, so that the cause is named and not its echo.
FAIL_SECONDS = 480.0


class ReadWatchdog:
    """Which samples each of some threads is at, and since when."""

    def __init__(self, threads: int, processes: np.ndarray | None = None) -> None:
        """processes: (W, 2) int64 in shared memory: the sample that each worker process is at, -1 for none, and since when, ns."""
        # The samples, and time.monotonic(); each entry is replaced whole, so read without a lock.
        self._at: list[tuple[Sequence[int], float] | None] = [None] * threads
        self._processes = processes

    def begin(self, thread: int, indices: Sequence[int]) -> None:
        """The thread is at these samples now."""
        self._at[thread] = indices, time.monotonic()

    def end(self, thread: int) -> None:
        """The thread waits for work."""
        self._at[thread] = None

    def tell_overdue(self, step: int, name: Callable[[int], str]) -> None:
        """Say on stderr which samples do not come; raises DataError where one is given up.

        step  what the consumer waits for
        name  index -> the record, for the message
        """
        now = time.monotonic()
        waiting = [(since, index) for indices, since in filter(None, self._at) for index in indices]
        if self._processes is not None:
            waiting += [(since / 1e9, index) for index, since in self._processes.tolist() if index >= 0]
        waiting.sort()
        late = [index for since, index in waiting if now - since >= SAY_SECONDS]
        if not late:
            return  # slow, but going on
        seconds = now - waiting[0][0]
        text = f"step {step:,} has not read {join_names(map(name, late), NAMED)} within {seconds:.0f} s"
        if seconds >= FAIL_SECONDS:
            raise DataError(f"{text}. The disk or mount does not respond. Fix it, and run the same command again.")
        print(escape_text(f"paceline: {text}; still waiting"), file=sys.stderr, flush=True)
