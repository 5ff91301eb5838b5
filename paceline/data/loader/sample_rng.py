"""Random numbers of one sample, as a pure function of (seed, epoch, index, stream).

No generator object travels between samples, threads, ranks or resumed runs: the key determines the numbers. The arithmetic is 64-bit
integers written out here, so it cannot change with a library's version.

Source: SplitMix64. Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014; its output mix is variant 13 of
David Stafford's "Better Bit Mixing" (2011). Golden values of the reference code are in the tests.
"""

from __future__ import annotations

import math

import numpy as np

_MASK = 0xFFFF_FFFF_FFFF_FFFF
# 2^64 divided by the golden ratio, made odd: SplitMix64's step between two outputs.
_STEP = 0x9E37_79B9_7F4A_7C15
_MIX1 = 0xBF58_476D_1CE4_E5B9
_MIX2 = 0x94D0_49BB_1331_11EB
# Random keys of the permutations have a stream of their own, so that a sample's first number is independent of its place.
PERMUTATION_STREAM = 1 << 32

_BLOCK = 1 << 16


def _mix(word: int) -> int:
    """SplitMix64's output function: a bijection of 64-bit words in which each input bit reaches each output bit."""
    word = ((word ^ (word >> 30)) * _MIX1) & _MASK
    word = ((word ^ (word >> 27)) * _MIX2) & _MASK
    return word ^ (word >> 31)


def _key(*words: int) -> int:
    """Absorb the words one after the other; different last words after the same others never collide."""
    key = 0
    for word in words:
        key = _mix((key + word + _STEP) & _MASK)
    return key


class SampleRng:
    """The random numbers of one sample in one epoch, drawn in order.

    seed, epoch, index   which sample, and when; integers of at most 64 bits, negative ones are taken modulo 2^64
    stream               numbers for another purpose from the same key (such as a batch-wide size)
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int, epoch: int, index: int, stream: int = 0) -> None:
        self._state = _key(seed, epoch, stream, index)

    def bits(self) -> int:
        """64 random bits as an integer."""
        self._state = (self._state + _STEP) & _MASK
        return _mix(self._state)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """A number from [low, high), with 53 random bits."""
        return low + (high - low) * ((self.bits() >> 11) * 2.0**-53)

    def integer(self, low: int, high: int) -> int:
        """An integer from low .. high - 1. The bias is below (high - low) / 2^64.

        Raises ValueError when the range is empty.
        """
        if high <= low:
            raise ValueError(f"there is no integer from {low} to {high - 1}")
        return low + ((self.bits() * (high - low)) >> 64)

    def coin(self, p: float = 0.5) -> bool:
        """True with probability p."""
        return self.uniform() < p

    def normal(self) -> float:
        """A standard normal number (Box and Muller 1958); its last bit may differ between C libraries."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
        return radius * math.cos(2.0 * math.pi * self.uniform())

    def beta(self, alpha: float) -> float:
        """A number of Beta(alpha, alpha), from two Gamma(alpha); alpha > 0."""
        return 0.5 + 0.5 * math.tanh(0.5 * (self._log_gamma(alpha) - self._log_gamma(alpha)))

    def _log_gamma(self, alpha: float) -> float:
        """The logarithm of a number of Gamma(alpha), which itself may underflow. Marsaglia and Tsang 2000, section 6 included."""
        d = alpha + 2 / 3
        while True:
            x = self.normal()
            v = 1.0 + x / math.sqrt(9.0 * d)
            if v > 0 and math.log(1.0 - self.uniform()) < 0.5 * x * x + d * (1.0 - v**3 + 3.0 * math.log(v)):
                return math.log(d) + 3.0 * math.log(v) + math.log(1.0 - self.uniform()) / alpha


def _mix_array(words: np.ndarray) -> np.ndarray:
    """`_mix` of each element; uint64 arrays wrap around by themselves."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_MIX1)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_MIX2)
    return words ^ (words >> np.uint64(31))


def hash_keys(seed: int, epoch: int, indices: np.ndarray) -> np.ndarray:
    """(N,) uint64: a random key of each sample in this epoch, different for different indices >= 0; sorting by it permutes them."""
    offset = np.uint64((_key(seed, epoch, PERMUTATION_STREAM) + _STEP) & _MASK)
    keys = np.empty(len(indices), np.uint64)
    for start in range(0, len(indices), _BLOCK):  # in blocks: whole-array temporaries would be several times the keys
        block = slice(start, start + _BLOCK)
        keys[block] = _mix_array(indices[block].astype(np.uint64) + offset)
    return keys
