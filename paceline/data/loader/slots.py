"""The loader's ring: one step's memory a slot, and the distribution of its samples to threads.

Letters: n samples of one forward, H and W pixels of the network's input.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.data.batch import Batch
from paceline.data.loader.device_buffers import DeviceBuffer
from paceline.data.loader.render_job import SampleTable
from paceline.data.transforms.sample import DrawSample, SampleSpec
from paceline.data.workers.jobs import SharedBytes

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
    """One slot's memory that worker processes map too: pixels, and the notes of data/loader/render_job.py."""

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
