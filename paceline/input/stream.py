"""The sample stream: which samples a rank takes at a step, as a pure function.

The stream is one permutation of the data set per epoch, concatenated without end. Step s (from 0) takes the positions
s*B .. (s+1)*B-1, so a step may span two epochs (or many, when B > n), nothing is dropped or repeated within an epoch,
every rank has as many steps as any other, and resuming at a step is arithmetic.

Letters: n samples in the data set, B images in the global batch.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np

from paceline.config.errors import RecipeError
from paceline.input.randomness import hash_keys

# epoch -> its permutation of 0..n-1, (n,) int64.
Order = Callable[[int], np.ndarray]

_sorting = threading.Lock()


# Two, because a step may span two epochs and the threads that prefetch run ahead of the one that consumes.
@lru_cache(maxsize=2)
def _permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    # A mapping of its own goes back to the system when it is dropped. From malloc, arrays of this size end up in the heaps
    # of whichever loader threads sorted, and the process grows by tens of megabytes over its first epochs.
    order = np.frombuffer(mmap.mmap(-1, max(1, 8 * n)), dtype=np.int64, count=n)
    np.copyto(order, np.argsort(hash_keys(seed, epoch, np.arange(n)), kind="stable"))
    order.flags.writeable = False
    return order


def permutation(n: int, *, seed: int, epoch: int) -> np.ndarray:
    """-> (n,) int64, read-only: the order in which this epoch takes the samples 0..n-1.

    It sorts the samples by a hash of (seed, epoch, index), which is the same on every machine and library version.
    The last two are kept; 1.28 million samples take about a fifth of a second and 10 MB.
    """
    with _sorting:  # two threads that ask for the same new epoch must not both sort it
        return _sorter().submit(_permutation, n, seed, epoch).result()


@lru_cache(maxsize=1)
def _sorter() -> ThreadPoolExecutor:
    # Always the same thread: what a sort leaves in malloc's heap of its thread, tens of megabytes, the next one takes again.
    return ThreadPoolExecutor(1, "paceline-order")


def stream_positions(
    *, step: int, rank: int, world: int, global_batch: int, forwards: int = 1, join: int = 1
) -> np.ndarray:
    """-> (share,) int64: the places in the stream that this rank takes at this step, ordered by forward.

    forwards  forwards per optimiser step on each rank (accumulation)
    join      ranks that share one set of BatchNorm statistics: in each forward they take neighbouring places, so the
              images that share statistics are the same for every way of cutting the global batch
    share     global_batch // world

    Raises RecipeError when the batch does not divide.
    """
    if global_batch % (world * forwards):
        raise RecipeError(
            f"global_batch={global_batch} does not divide over {world} ranks x {forwards} forwards.\n"
            f"Take a multiple of {world * forwards}."
        )
    if world % join:
        raise RecipeError(f"{join} ranks cannot join for BatchNorm in a world of {world}: it is no multiple of {join}.")
    share = global_batch // world
    each = share // forwards
    starts = (rank // join) * (join * share) + np.arange(forwards) * (join * each) + (rank % join) * each
    return step * global_batch + (starts[:, None] + np.arange(each)).reshape(-1)


def batch_indices(
    n: int,
    *,
    seed: int,
    step: int,
    rank: int = 0,
    world: int = 1,
    global_batch: int,
    forwards: int = 1,
    join: int = 1,
    order: Order | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """-> epochs (share,) int64, indices (share,) int64: this rank's samples at this step, ordered by forward.

    order  of each epoch (input/grouped.py has another); None: the seed's plain permutation
    See `stream_positions` for the other arguments; split the arrays in `forwards` equal parts to get the forwards.
    Raises RecipeError for an empty data set or a batch that does not divide.
    """
    if n <= 0:
        raise RecipeError("the data set has no samples: nothing to train on.")
    positions = stream_positions(
        step=step, rank=rank, world=world, global_batch=global_batch, forwards=forwards, join=join
    )
    epochs = positions // n
    places = positions % n
    indices = np.empty_like(places)
    for epoch in range(int(epochs.min()), int(epochs.max()) + 1):
        here = epochs == epoch
        if here.any():
            taken = permutation(n, seed=seed, epoch=epoch) if order is None else order(epoch)
            indices[here] = taken[places[here]]
    return epochs, indices


def shard(n: int, rank: int, world: int) -> range:
    """The samples that this rank evaluates: contiguous, disjoint, together 0..n-1, sizes differing by one at most."""
    return range(n * rank // world, n * (rank + 1) // world)
