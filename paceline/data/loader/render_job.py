"""What a loader's worker processes run: from samples' numbers to their pixels in the loader's ring, and their labels.

A slot of the ring is two memories that the loader and its workers map: the pixels, and notes. Notes are a step's table, which the
loader writes, and behind it the encoded bytes of each sample, where the loader's own threads read them or a device decodes them.
A task is one chunk of a step's samples, see TASK. A worker unpickles a step's table once.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np

from paceline.config.resnet import Exif
from paceline.data.index.records import RecordReader
from paceline.data.transforms.sample import DrawSample, Render, read_many, sample_spec
from paceline.data.workers.jobs import Task, unpickle_message

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
