"""The sample stream in an order that keeps photos of like shape together, still a pure function of (seed, step).

An epoch's permutation (input/stream.py) is sorted by group, stably, cut into runs of one global batch, and the runs are
shuffled. Runs lie on the grid of steps: epoch e begins at position e*n of the endless stream, so its first run is what
the last step of the epoch before lacks, then runs of B follow, then a rest. The first run and the rest are both taken
from the high end of the sorted list, so a step that spans two epochs is of like shapes too. Inside a step samples ascend
by group.

Letters: n samples of an epoch   B images of the global batch   G groups, numbered along an axis of likeness
"""

from __future__ import annotations

import mmap
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from paceline.input.randomness import hash_keys
from paceline.input.stream import Order, permutation

Shape = tuple[int, int]

# Runs are hashed as samples of these numbers, which no data set reaches.
_FIRST_RUN = 1 << 62

_sorting = threading.Lock()


class _Order(NamedTuple):
    groups: np.ndarray
    key: tuple[int, int, int, int]
    order: np.ndarray


# Two, for the same reason as in input/stream.py.
_recent: deque[_Order] = deque(maxlen=2)


def grouped_permutation(n: int, *, seed: int, epoch: int, groups: np.ndarray, global_batch: int) -> np.ndarray:
    """-> (n,) int64, read-only: the order in which this epoch takes the samples 0..n-1.

    groups  (n,) int, each sample's group. The last two orders are kept by this array's identity: do not change it
    """
    assert groups.shape == (n,), "one group for each sample"
    key = (n, seed, epoch, global_batch)
    with _sorting:
        for entry in _recent:
            if entry.groups is groups and entry.key == key:
                return entry.order
        order = _grouped(n, seed, epoch, groups, global_batch)
        _recent.append(_Order(groups, key, order))
        return order


def grouped_order(groups: np.ndarray, *, seed: int, global_batch: int) -> Order:
    """The `order` of data/stream.batch_indices that keeps groups together.

    groups  (n,) int, each sample's group; do not change it
    """
    return lambda epoch: grouped_permutation(
        len(groups), seed=seed, epoch=epoch, groups=groups, global_batch=global_batch
    )


def shapes_of_run(
    groups: np.ndarray, sizes: np.ndarray, shape_of: Callable[[int, int], Shape], *, global_batch: int, steps: int
) -> tuple[Shape, ...]:
    """The shapes that the steps of a run may have, the largest area first, without ordering any epoch.

    It follows from how many samples each group has: the groups of a run never change, only which samples stand for
    them. A step is taken to hold the largest sizes of its groups, so no step needs more than the first shape.

    groups    (n,) int   sizes  (n, 2) int, height and width of each sample, pixels
    shape_of  (height, width) that a batch must hold -> its shape
    """
    n = len(groups)
    present, number = np.unique(groups, return_inverse=True)
    extents = np.zeros((len(present), 2), np.int64)
    np.maximum.at(extents, number.reshape(-1), sizes)
    ranked = np.sort(number.reshape(-1))
    most: set[tuple[int, int]] = set()

    def note(samples: np.ndarray) -> None:
        """samples: (multiple of global_batch,) places in `ranked`, as a step takes them."""
        sides = extents[ranked[samples]].reshape(-1, global_batch, 2).max(axis=1)
        most.update(map(tuple, np.unique(sides, axis=0).tolist()))

    whole = min(n // global_batch, steps)
    if whole:  # a run shorter than an epoch takes some of these only
        note(np.arange(n // global_batch * global_batch))
    offsets = np.arange(steps, dtype=np.int64) * global_batch % n
    for offset in np.unique(offsets[offsets + global_batch > n]).tolist():
        # The epoch in which the step begins has its first run cut as if it began `offset` before a step's start.
        note(np.concatenate(_spanning(n, offset, global_batch)))
    shapes = {shape_of(*sides) for sides in most}
    return tuple(sorted(shapes, key=lambda shape: (-shape[0] * shape[1], shape)))


def group_batches(groups: np.ndarray, batch: int) -> list[np.ndarray]:
    """(m,) groups of the samples to evaluate -> places 0..m-1, each once, in batches of one group each, `batch` at most.

    So what a sample is padded to depends on its own group alone.
    """
    order = np.argsort(groups, kind="stable")
    edges = np.flatnonzero(np.diff(groups[order])) + 1
    return [part[at : at + batch] for part in np.split(order, edges) for at in range(0, len(part), batch)]


def _grouped(n: int, seed: int, epoch: int, groups: np.ndarray, global_batch: int) -> np.ndarray:
    shuffled = permutation(n, seed=seed, epoch=epoch)
    ranked = shuffled[np.argsort(groups[shuffled], kind="stable")]
    head, runs = _cut(n, -epoch * n % global_batch, global_batch)
    keys = hash_keys(seed, epoch, np.arange(_FIRST_RUN, _FIRST_RUN + runs, dtype=np.int64))
    body = ranked[: runs * global_batch].reshape(runs, global_batch)[np.argsort(keys, kind="stable")]
    # Memory that goes back to the system, as in input/stream.py.
    order = np.frombuffer(mmap.mmap(-1, max(1, 8 * n)), dtype=np.int64, count=n)
    order[:head] = ranked[n - head :]
    order[head : head + body.size] = body.reshape(-1)
    order[head + body.size :] = ranked[body.size : n - head]
    order.flags.writeable = False
    return order


def _cut(n: int, lacking: int, global_batch: int) -> tuple[int, int]:
    """-> samples of the first run, number of whole runs; `lacking` places are left in the step the epoch begins in."""
    head = min(lacking, n)
    return head, (n - head) // global_batch


def _spanning(n: int, offset: int, global_batch: int) -> list[np.ndarray]:
    """Places in the sorted list of each epoch's part in the step that begins `offset` samples into an epoch."""
    head, runs = _cut(n, offset % global_batch, global_batch)
    # This epoch's part: its rest. Where the step begins with the epoch, the epoch is shorter than a step: all of it.
    parts = [np.arange(runs * global_batch, n - head)]
    missing = global_batch - len(parts[0])
    while missing:
        head = min(missing, n)
        parts.append(np.arange(n - head, n))
        missing -= head
    return parts
