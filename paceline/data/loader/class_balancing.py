"""Orders that draw photos of rare classes more often, `balanced` or by LVIS's repeat factors, in epochs of as many draws as photos.

A photo's rate is how often an epoch draws it, on average. An epoch draws it floor or ceil of its rate times: the rates are laid end to
end, photos shuffled and those of one kind together, and each photo gets the whole numbers that fall into its part after a random shift
(systematic sampling, Madow 1949). So an epoch has exactly n draws, and a kind its sum of rates, rounded up or down. All
is a function of (seed, epoch). With equal rates the order is the plain permutation of the stream.

Source of the factors: Gupta, Dollar, Girshick 2019 (LVIS), appendix B.2. There an epoch grows by them; here it is a resample of n.
Letters: n photos of a run   M (photo, class) pairs   K classes that these have
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from paceline.config.recipe import Sampler
from paceline.data.batch import Batch
from paceline.data.loader.loader import Loader
from paceline.data.loader.sample_rng import SampleRng, hash_keys
from paceline.data.loader.sampler import Order, sort_in_thread

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
    if sampler == "balanced":
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
    return f"photos of a class -> its draws an epoch: {format_rarest_first(counts, draws, names, ',.0f')}"


def format_rarest_first(counts: np.ndarray, values: np.ndarray, names: Sequence[str], form: str) -> str:
    """Each class's name, count and value in this format; of many the rarest and the most common."""
    present = [k for k in np.argsort(counts, kind="stable").tolist() if counts[k]]
    words = [f"{names[k]} {counts[k]:,} -> {values[k]:{form}}" for k in present]
    if len(words) > NAMED:
        words[NAMED // 2 : -NAMED // 2] = [f"... ({len(words) - NAMED:,} classes) ..."]
    return ", ".join(words)


class RepeatBatch:
    """One step's batches again and again, without further reading. wait_seconds: the time to make them."""

    def __init__(
        self, batches: Sequence[Batch], *, first_step: int, last_step: int | None, wait_seconds: float = 0.0
    ) -> None:
        self._batches = list(batches)
        self.wait_seconds = wait_seconds
        self._next_step, self._last_step = first_step, last_step

    @classmethod
    def first_of(cls, loader: Loader, *, first_step: int, last_step: int | None) -> RepeatBatch:
        """A loader's first step, which it must have. The batches are copies, so the loader is closed."""
        with loader:
            _, batches = next(loader)
            copies = [batch.to(batch.images.device, copy=True) for batch in batches]
        return cls(copies, first_step=first_step, last_step=last_step, wait_seconds=loader.wait_seconds)

    def __enter__(self) -> RepeatBatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> RepeatBatch:
        return self

    def __next__(self) -> tuple[int, list[Batch]]:
        """The next step, with the same batches."""
        if self._next_step == self._last_step:
            raise StopIteration
        self._next_step += 1
        return self._next_step - 1, self._batches

    def close(self) -> None:
        """Nothing is open."""
