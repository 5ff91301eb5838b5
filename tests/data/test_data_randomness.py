"""A sample's random numbers: fixed forever, uniform, and different for different keys."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.loader.sample_rng import PERMUTATION_STREAM, SampleRng, _key, _mix, hash_keys

GOLDEN_BITS = [11229909735928593800, 15718615152696649684, 5412708125386905285]
GOLDEN_UNIFORM = 0.8814579514998392
GOLDEN_INTEGER = 193
GOLDEN_KEYS = [13946368353633666251, 9140906480403117030, 4986216697684097396]
WORDS = st.integers(0, 2**64 - 1)


def test_the_generator_is_splitmix64():
    # First outputs of the public reference code (splitmix64.c) for the seed 1234567.
    random = SampleRng(0, 0, 0)
    random._state = 1234567
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert [random.bits() for _ in expected] == expected


def test_golden_values_never_change():
    random = SampleRng(seed=1, epoch=2, index=3)
    assert [random.bits() for _ in range(3)] == GOLDEN_BITS
    random = SampleRng(seed=1, epoch=2, index=3, stream=4)
    assert random.uniform() == GOLDEN_UNIFORM
    assert random.integer(-5, 1000) == GOLDEN_INTEGER
    assert hash_keys(7, 1, np.array([0, 1, 1_281_166])).tolist() == GOLDEN_KEYS


def test_equal_keys_give_equal_numbers_and_any_other_key_gives_others():
    first = SampleRng(5, 6, 7).bits()
    assert SampleRng(5, 6, 7).bits() == first
    others = [(5, 6, 8), (5, 7, 7), (6, 6, 7), (6, 5, 7), (7, 6, 5)]
    values = {SampleRng(*key).bits() for key in others} | {SampleRng(5, 6, 7, stream=1).bits(), first}
    assert len(values) == len(others) + 2


@given(WORDS, st.integers(0, 10**6), st.lists(st.integers(0, 2**40), min_size=1, max_size=5))
def test_the_array_form_equals_the_scalar_form(seed, epoch, indices):
    keys = hash_keys(seed, epoch, np.array(indices))
    assert keys.dtype == np.uint64
    assert keys.tolist() == [_key(seed, epoch, PERMUTATION_STREAM, index) for index in indices]


@given(WORDS)
def test_the_mix_is_a_bijection(word):
    assert _unmix(_mix(word)) == word


def _unmix(word: int) -> int:
    mask = 2**64 - 1
    word ^= (word >> 31) ^ (word >> 62)
    word = word * pow(0x94D049BB133111EB, -1, 2**64) & mask
    word ^= (word >> 27) ^ (word >> 54)
    word = word * pow(0xBF58476D1CE4E5B9, -1, 2**64) & mask
    return word ^ (word >> 30) ^ (word >> 60)


def test_uniform_fills_its_range_evenly_over_neighbouring_samples():
    # The first number of 20,000 consecutive indices: the use that a training run makes of it.
    values = np.array([SampleRng(0, 0, index).uniform(2.0, 4.0) for index in range(20_000)])
    assert values.min() >= 2.0
    assert values.max() < 4.0
    counts, _ = np.histogram(values, bins=50, range=(2.0, 4.0))
    chi2 = ((counts - 400) ** 2 / 400).sum()
    assert chi2 < 49 + 5 * math.sqrt(2 * 49)
    # Neighbors in index, and successive numbers of one sample, are not correlated: five standard errors.
    second = np.array([_second_uniform(index) for index in range(20_000)])
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 5 / math.sqrt(20_000)
    assert abs(np.corrcoef(values, second)[0, 1]) < 5 / math.sqrt(20_000)


def _second_uniform(index: int) -> float:
    random = SampleRng(0, 0, index)
    random.uniform()
    return random.uniform()


def test_each_bit_is_set_half_of_the_time():
    words = np.array([SampleRng(3, epoch, 1).bits() for epoch in range(4000)], dtype=np.uint64)
    for bit in range(64):
        share = ((words >> np.uint64(bit)) & np.uint64(1)).mean()
        assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(4000), bit


def test_integer_takes_every_value_and_none_outside():
    seen = {SampleRng(0, 0, index).integer(-2, 3) for index in range(500)}
    assert seen == {-2, -1, 0, 1, 2}
    with pytest.raises(ValueError, match="no integer"):
        SampleRng(0, 0, 0).integer(3, 3)


def test_coin_falls_as_often_as_asked():
    heads = sum(SampleRng(1, 0, index).coin(0.3) for index in range(5000))
    assert abs(heads / 5000 - 0.3) < 5 * math.sqrt(0.21 / 5000)
    assert not any(SampleRng(1, 0, index).coin(0.0) for index in range(100))
    assert all(SampleRng(1, 0, index).coin(1.0) for index in range(100))


def test_normal_has_mean_0_and_variance_1():
    values = np.array([SampleRng(2, 0, index).normal() for index in range(5000)])
    assert abs(values.mean()) < 5 / math.sqrt(5000)
    assert abs(values.var() - 1) < 5 * math.sqrt(2 / 5000)
