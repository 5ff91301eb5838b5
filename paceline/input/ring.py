"""The loader's ring: one step's memory a slot, and the distribution of its samples to threads.

Letters: n samples of one forward, H and W pixels of the network's input.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.batch import Batch
from paceline.input.draw import Draw, DrawSample
from paceline.store.landing import Landing

Shape = tuple[int, int]


class Forward(NamedTuple):
    """The samples of one forward, for a shape or a draw other than the loader's."""

    epochs: np.ndarray  # (n,) int64
    indices: np.ndarray  # (n,) int64
    shape: Shape | None = None  # H, W of its images; None: the loader's
    draw: DrawSample | None = None  # what draws its samples; None: the loader's


# step -> one (epochs, indices) per forward, each (n,) int64, or a Forward. Called once a step, in order, by one thread at a time.
Schedule = Callable[[int], Sequence[tuple[np.ndarray, np.ndarray] | Forward]]


class Slot:
    """One step's memory and state. The loader's lock guards `step`, `free`, `ready`, `remaining` and `data`."""

    def __init__(self, landing: Landing | None = None) -> None:
        self.landing = landing  # on an accelerator whose copies run beside its kernels
        self.memory = torch.empty(0, dtype=torch.uint8)
        self.images: list[Tensor] = []  # of each forward, (n, H, W, 3), views of the memory
        self.pixels: list[np.ndarray] = []  # of each sample, (H, W, 3), the same views
        self.shapes: list[Shape] = []  # of each forward
        self.sizes: list[int] = []  # of each forward, n
        self.epochs: list[int] = []  # of each sample, as all that follow
        self.indices: list[int] = []
        self.draw_with: list[DrawSample] = []
        self.data: list[bytes | None] = []  # encoded, from when it is fetched until it is rendered
        self.drawn: list[Draw | None] = []
        self.step = -1  # whose samples may be taken
        self.remaining = 0
        self.free = True
        self.ready = False
        self.batches: list[Batch] = []

    def fill(self, forwards: Sequence[tuple[np.ndarray, np.ndarray] | Forward], shape: Shape, draw: DrawSample) -> None:
        """Begin a step's samples; `shape` and `draw` are for forwards without their own."""
        named = [forward if isinstance(forward, Forward) else Forward(*forward) for forward in forwards]
        self.sizes = [len(forward.indices) for forward in named]
        self.shapes = [forward.shape or shape for forward in named]
        self.epochs = np.concatenate([forward.epochs for forward in named]).tolist()
        self.indices = np.concatenate([forward.indices for forward in named]).tolist()
        self.draw_with = [forward.draw or draw for forward in named for _ in forward.indices]
        self.remaining = len(self.indices)
        self.data = [None] * self.remaining
        self.drawn = [None] * self.remaining

    def allocate(self, largest: int, pinned: bool) -> None:
        """Make the views of each forward's images, in memory for as many of `largest` bytes each.

        Memory that is large enough is kept, so the ring does not grow with the shapes that come.
        """
        shapes = [(size, *shape, 3) for size, shape in zip(self.sizes, self.shapes)]
        assert all(prod(shape[1:]) <= largest for shape in shapes), "image_shape is the largest that the schedule names"
        needed = largest * len(self.indices)
        if self.memory.numel() < needed:
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
        self,
        first: int,
        last: int | None,
        open_step: Callable[[int], tuple[Slot, int] | None],
        chunk: Callable[[int], int],
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
