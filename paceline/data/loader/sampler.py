"""The sample stream: which samples a rank takes at a step, as a pure function of (seed, step).

The stream is one permutation of the data set per epoch, concatenated without end. Step s (from 0) takes the positions s*B ..
(s+1)*B-1, so a step may span two epochs (or many, when B > n), nothing is dropped or repeated within an epoch, every rank has as many
steps as any other, and resuming at a step is arithmetic.

Photos of similar shape can be kept together: an epoch's permutation is sorted by group, stably, cut into runs of one global batch,
and the runs are shuffled. Runs lie on the grid of steps: epoch e begins at position e*n of the endless stream, so its first run is
what the last step of the epoch before lacks, then runs of B follow, then a rest. The first run and the rest are both taken from the
high end of the sorted list, so a step that spans two epochs is of similar shapes too. Inside a step samples ascend by group.

Photos of rare classes can be drawn more often, `balanced` or by LVIS's repeat factors, in epochs of as many draws as photos. A photo's
rate is how often an epoch draws it, on average. An epoch draws it floor or ceil of its rate times: the rates are laid end to end,
photos shuffled and those of one kind together, and each photo gets the whole numbers that fall into its part after a random shift
(systematic sampling, Madow 1949). So an epoch has exactly n draws, and a kind its sum of rates, rounded up or down. All is a function
of (seed, epoch). With equal rates the order is the plain permutation of the stream.
Source of the factors: Gupta, Dollar, Girshick 2019 (LVIS), appendix B.2. There an epoch grows by them; here it is a resample of n.

Letters: n samples in the data set   B images in the global batch   G groups, numbered along an axis of likeness
         M (photo, class) pairs   K classes that these have
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np

from paceline._utils.errors import RecipeError
from paceline.config.recipe import Sampler
from paceline.data.loader.sample_rng import SampleRng, hash_keys

# epoch -> its draws, (n,) int64, all different: draw d is of sample d % n, for the first time where d < n, else again (sampler.py). A
# permutation of 0..n-1 draws each sample once.
Order = Callable[[int], np.ndarray]
# What a sample drawn again in an epoch adds to the epoch in its key: it is augmented as in an epoch that no run reaches.
AGAIN = 1 << 32

_sorting = threading.Lock()


# Two, because a step may span two epochs and the threads that prefetch run ahead of the consumer.
@lru_cache(maxsize=2)
def _permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    order = _mapped(n)
    np.copyto(order, np.argsort(hash_keys(seed, epoch, np.arange(n)), kind="stable"))
    order.flags.writeable = False
    return order


def _mapped(n: int) -> np.ndarray:
    """(n,) int64 in a memory mapping of its own, which goes back to the system when it is dropped.

    From malloc, arrays of this size end up in the heaps of whichever loader threads sorted, and the process grows by tens of megabytes
    over its first epochs.
    """
    return np.frombuffer(mmap.mmap(-1, max(1, 8 * n)), dtype=np.int64, count=n)


def permutation(n: int, *, seed: int, epoch: int) -> np.ndarray:
    """-> (n,) int64, read-only: the order in which this epoch takes the samples 0..n-1.

    It sorts the samples by a hash of (seed, epoch, index), which is the same on every machine and library version.
    The last two are kept; 1.28 million samples take about a fifth of a second and 10 MB.
    """
    return sort_in_thread(_permutation, n, seed, epoch)


def sort_in_thread(sort: Callable[..., np.ndarray], *arguments: Any) -> np.ndarray:
    """`sort(*arguments)`, in a thread of its own and one at a time."""
    with _sorting:  # two threads that need the same new epoch must not both sort it
        return _sorter().submit(sort, *arguments).result()


@lru_cache(maxsize=1)
def _sorter() -> ThreadPoolExecutor:
    # Always the same thread: the next sort reuses what a sort leaves in malloc's heap of its thread, tens of megabytes.
    return ThreadPoolExecutor(1, "paceline-order")


def stream_positions(
    *, step: int, global_batch_size: int, rank: int = 0, world: int = 1, forwards: int = 1, join: int = 1
) -> np.ndarray:
    """-> (share,) int64: the places in the stream that this rank takes at this step, ordered by forward.

    forwards  forwards per optimizer step on each rank (accumulation)
    join      ranks that share one set of BatchNorm statistics: in each forward they take neighboring places, so the
              images that share statistics are the same for every way of cutting the global batch
    share     global_batch_size // world

    Raises RecipeError when the batch does not divide.
    """
    if global_batch_size % (world * forwards):
        raise RecipeError(
            f"--global-batch-size {global_batch_size}: must be a multiple of {world * forwards} ({world} ranks x "
            f"{forwards} micro-batches)."
        )
    if world % join:
        raise RecipeError(f"{join} ranks cannot share BatchNorm statistics: {world} ranks are not a multiple of {join}.")
    share = global_batch_size // world
    each = share // forwards
    starts = (rank // join) * (join * share) + np.arange(forwards) * (join * each) + (rank % join) * each
    return step * global_batch_size + (starts[:, None] + np.arange(each)).reshape(-1)


def batch_indices(n: int, positions: np.ndarray, *, seed: int, order: Order | None = None) -> tuple[np.ndarray, np.ndarray]:
    """-> epochs, indices, both int64 and of the positions' shape: the samples at these places of the stream.

    positions  of a rank at a step from `stream_positions`; split the arrays in `forwards` equal parts to get the forwards
    order      of each epoch (`grouped_order` makes another); None: the seed's plain permutation
    A sample that an order draws again has an epoch of its own, beyond all others (AGAIN), so the two together are always different.
    Raises RecipeError for an empty data set.
    """
    if n <= 0:
        raise RecipeError("the dataset has no training images.")
    epochs = positions // n
    places = positions % n
    indices = np.empty_like(places)
    for epoch in range(int(epochs.min()), int(epochs.max()) + 1):
        here = epochs == epoch
        if here.any():
            taken = permutation(n, seed=seed, epoch=epoch) if order is None else order(epoch)
            times, indices[here] = np.divmod(taken[places[here]], n)
            epochs[here] += times * AGAIN
    return epochs, indices


def evaluation_shard(n: int, rank: int, world: int) -> range:
    """The samples that this rank evaluates: contiguous, disjoint, together 0..n-1, sizes differing by one at most."""
    return range(n * rank // world, n * (rank + 1) // world)


Shape = tuple[int, int]

# Runs are hashed as samples of these numbers, which no data set reaches.
_FIRST_RUN = 1 << 62


def grouped_permutation(
    n: int, *, seed: int, epoch: int, groups: np.ndarray, global_batch_size: int, base: Order | None = None
) -> np.ndarray:
    """-> (n,) int64, read-only: the order in which this epoch takes the samples 0..n-1.

    groups  (n,) int, each sample's group
    base    the order that is grouped; None: the seed's plain permutation
    """
    assert groups.shape == (n,), "one group for each sample"
    shuffled = permutation(n, seed=seed, epoch=epoch) if base is None else base(epoch)
    ranked = shuffled[np.argsort(groups[shuffled % n], kind="stable")]
    head, runs = _cut(n, -epoch * n % global_batch_size, global_batch_size)
    keys = hash_keys(seed, epoch, np.arange(_FIRST_RUN, _FIRST_RUN + runs, dtype=np.int64))
    body = ranked[: runs * global_batch_size].reshape(runs, global_batch_size)[np.argsort(keys, kind="stable")]
    order = _mapped(n)
    order[:head] = ranked[n - head :]
    order[head : head + body.size] = body.reshape(-1)
    order[head + body.size :] = ranked[body.size : n - head]
    order.flags.writeable = False
    return order


def grouped_order(groups: np.ndarray, *, seed: int, global_batch_size: int, base: Order | None = None) -> Order:
    """The `order` for `batch_indices` that keeps groups together; groups (n,) int, each sample's group: do not change it."""

    @lru_cache(maxsize=2)  # two, as above
    def order(epoch: int) -> np.ndarray:
        return grouped_permutation(
            len(groups), seed=seed, epoch=epoch, groups=groups, global_batch_size=global_batch_size, base=base
        )

    return order


def list_run_shapes(
    groups: np.ndarray, sizes: np.ndarray, shape_of: Callable[[int, int], Shape], *, global_batch_size: int, steps: int
) -> tuple[Shape, ...]:
    """The shapes that the steps of a run may have, the largest area first, without ordering any epoch.

    Each epoch takes each sample once, so they follow from the number of samples in each group: only which samples represent a group
    changes from epoch to epoch. A step is assumed to hold the largest sizes of its groups, so no step needs more than the first shape.

    groups    (n,) int; sizes (n, 2) int, height and width of each sample, pixels
    shape_of  (height, width) that a batch must hold -> its shape
    """
    n = len(groups)
    present, number = np.unique(groups, return_inverse=True)
    extents = np.zeros((len(present), 2), np.int64)
    np.maximum.at(extents, number.reshape(-1), sizes)
    ranked = np.sort(number.reshape(-1))
    most: set[tuple[int, int]] = set()

    def note(samples: np.ndarray) -> None:
        """samples: (multiple of global_batch_size,) places in `ranked`, as a step takes them."""
        sides = extents[ranked[samples]].reshape(-1, global_batch_size, 2).max(axis=1)
        most.update(map(tuple, np.unique(sides, axis=0).tolist()))

    whole = min(n // global_batch_size, steps)
    if whole:  # a run shorter than an epoch takes some of these only
        note(np.arange(n // global_batch_size * global_batch_size))
    offsets = np.arange(steps, dtype=np.int64) * global_batch_size % n
    for offset in np.unique(offsets[offsets + global_batch_size > n]).tolist():
        # The epoch in which the step begins has its first run cut as if it began `offset` before a step's start.
        note(np.concatenate(_spanning(n, offset, global_batch_size)))
    shapes = {shape_of(*sides) for sides in most}
    return tuple(sorted(shapes, key=lambda shape: (-shape[0] * shape[1], shape)))


def group_batches(groups: np.ndarray, batch: int) -> list[np.ndarray]:
    """(m,) groups of the samples to evaluate -> places 0..m-1, each once, in batches of one group each, `batch` at most.

    So a sample's padding depends on its own group alone.
    """
    order = np.argsort(groups, kind="stable")
    edges = np.flatnonzero(np.diff(groups[order])) + 1
    return [part[at : at + batch] for part in np.split(order, edges) for at in range(0, len(part), batch)]


def _cut(n: int, lacking: int, global_batch_size: int) -> tuple[int, int]:
    """-> samples of the first run, number of whole runs; `lacking` places are left in the step the epoch begins in."""
    head = min(lacking, n)
    return head, (n - head) // global_batch_size


def _spanning(n: int, offset: int, global_batch_size: int) -> list[np.ndarray]:
    """Places in the sorted list of each epoch's part in the step that begins `offset` samples into an epoch."""
    head, runs = _cut(n, offset % global_batch_size, global_batch_size)
    # This epoch's part: its rest. Where the step begins with the epoch, the epoch is shorter than a step: all of it.
    parts = [np.arange(runs * global_batch_size, n - head)]
    missing = global_batch_size - len(parts[0])
    while missing:
        head = min(missing, n)
        parts.append(np.arange(n - head, n))
        missing -= head
    return parts


SHIFT_STREAM = 4 << 32
# Photos are shuffled, before they are drawn, as samples of these numbers, which no draw and no run of the stream has.
_FIRST = 1 << 61
# Shifts are this many, in (0, 1): adding one to a whole number is exact, and a sum of rates that is one may miss it by its last bits.
_SHIFTS = 1 << 20
# Classes that a line about the draws names; of more than these the rarest and the most common.
NAMED = 6


def sampling_rates(sampler: Sampler, n: int, photos: np.ndarray, classes: np.ndarray, threshold: float) -> np.ndarray:
    """-> (n,) float64, draws an epoch of each photo; together n.

    photos, classes  (M,) int, each pair once; `balanced`: one class a photo, M = n
    threshold        of `repeat`: classes in less than this share of the photos are repeated
    """
    counts = np.bincount(classes, minlength=1)
    if sampler == "class-balanced":
        rates = np.empty(n)
        rates[photos] = n / (np.count_nonzero(counts) * counts[classes])
        return rates
    factors = np.maximum(1.0, np.sqrt(threshold * n / np.maximum(counts, 1)))
    rates = np.ones(n)
    np.maximum.at(rates, photos, factors[classes])
    return rates * (n / max(1.0, rates.sum()))


def sampled_order(rates: np.ndarray, kinds: np.ndarray, *, seed: int) -> Order:
    """The order that draws each photo by its rate. rates (n,) sum to n; kinds (n,) int: photos of one kind replace each other."""

    # Two, as in the stream.
    @lru_cache(maxsize=2)
    def order(epoch: int) -> np.ndarray:
        return sort_in_thread(_sampled, rates, kinds, seed, epoch)

    return order


def _sampled(rates: np.ndarray, kinds: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    n = len(rates)
    shuffled = np.argsort(hash_keys(seed, epoch, np.arange(_FIRST, _FIRST + n)), kind="stable")
    shuffled = shuffled[np.argsort(kinds[shuffled], kind="stable")]
    shift = SampleRng(seed, epoch, 0, SHIFT_STREAM).integer(0, _SHIFTS) / _SHIFTS + 0.5 / _SHIFTS
    edges = np.minimum(np.floor(np.cumsum(rates[shuffled]) + shift), n)
    edges[-1] = n  # whatever the sum's last bits say
    counts = np.diff(edges, prepend=0).astype(np.int64)
    again = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
    draws = np.repeat(shuffled, counts) + n * again
    order = draws[np.argsort(hash_keys(seed, epoch, draws), kind="stable")]
    order.flags.writeable = False
    return order


def format_sampling(rates: np.ndarray, photos: np.ndarray, classes: np.ndarray, names: Sequence[str]) -> str:
    """How many photos each class has, and how many draws an epoch these get: the rarest class first.

    photos, classes  as of `sampling_rates`; names: of the classes
    """
    counts = np.bincount(classes, minlength=len(names))
    draws = np.bincount(classes, rates[photos], minlength=len(names))
    return f"images per class -> draws per epoch: {format_rarest_first(counts, draws, names, ',.0f')}"


def format_rarest_first(counts: np.ndarray, values: np.ndarray, names: Sequence[str], form: str) -> str:
    """Each class's name, count and value in this format; of many the rarest and the most common."""
    present = [k for k in np.argsort(counts, kind="stable").tolist() if counts[k]]
    words = [f"{names[k]} {counts[k]:,} -> {values[k]:{form}}" for k in present]
    if len(words) > NAMED:
        words[NAMED // 2 : -NAMED // 2] = [f"... ({len(words) - NAMED:,} classes) ..."]
    return ", ".join(words)
