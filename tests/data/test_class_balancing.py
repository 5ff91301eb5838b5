"""Samplers: epochs of n draws in which rare classes come more often, functions of seed and epoch, the same for any cut."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from messages import check_text

from paceline.data.loader.sample_rng import SampleRng, hash_keys
from paceline.data.loader.sampler import (
    AGAIN,
    SHIFT_STREAM,
    batch_indices,
    format_sampling,
    grouped_order,
    permutation,
    sampled_order,
    sampling_rates,
    stream_positions,
)

FEW = examples(40)
CLASSES = np.array([0] * 16 + [1] * 62 + [2] * 3 + [4] * 36)  # none has class 3
N = len(CLASSES)


def _balanced(classes: np.ndarray) -> np.ndarray:
    return sampling_rates("class-balanced", len(classes), np.arange(len(classes)), classes, 0.001)


ORDER = sampled_order(_balanced(CLASSES), CLASSES, seed=5)


def _slow(rates: list[Fraction], kinds: np.ndarray, seed: int, epoch: int) -> list[int]:
    """The obvious loop, in exact numbers."""
    n = len(rates)
    keys = hash_keys(seed, epoch, np.arange(1 << 61, (1 << 61) + n)).tolist()
    shift = Fraction(2 * SampleRng(seed, epoch, 0, SHIFT_STREAM).integer(0, 1 << 20) + 1, 1 << 21)
    draws, position = [], shift
    for photo in sorted(range(n), key=lambda photo: (kinds[photo], keys[photo])):
        times = int(position + rates[photo]) - int(position)
        draws += [photo + n * time for time in range(times)]
        position += rates[photo]
    hashes = hash_keys(seed, epoch, np.array(draws)).tolist()
    return [draw for _, draw in sorted(zip(hashes, draws))]


@FEW
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(0, 5), st.integers(0, 5))
def test_balanced_draws_are_those_of_the_obvious_loop_and_classes_differ_by_one(found, seed, epoch):
    classes = np.array(found)
    n, counts = len(found), Counter(found)
    order = sampled_order(_balanced(classes), classes, seed=seed)(epoch)
    exact = [Fraction(n, len(counts) * counts[label]) for label in found]
    assert order.tolist() == _slow(exact, classes, seed, epoch) and not order.flags.writeable
    drawn = Counter(classes[order % n].tolist())
    assert len(order) == n == len(set(order.tolist())) and set(drawn.values()) <= {n // len(counts), -(-n // len(counts))}
    times = np.bincount(order % n, minlength=n)
    assert all(int(rate) <= time <= -int(-rate // 1) for rate, time in zip(exact, times.tolist()))


def test_over_many_epochs_each_photo_is_drawn_by_its_rate():
    rates, epochs = _balanced(CLASSES), 400
    times = sum(np.bincount(ORDER(epoch) % N, minlength=N) for epoch in range(epochs)) / epochs
    assert np.abs(times - rates).max() < 0.1
    by_class = np.bincount(CLASSES, times)
    assert by_class[[0, 1, 2, 4]] == pytest.approx(N / 4, abs=0.1) and by_class[3] == 0


def test_repeat_factors_are_those_of_lvis():
    photos = np.array([0, 0, 1, 2, 3, 3, 4, 5, 6])  # photo 7 has no object
    classes = np.array([0, 1, 0, 0, 0, 2, 0, 0, 1])
    threshold = 0.5
    factors = []
    for photo in range(8):
        own = classes[photos == photo]
        shares = [len(set(photos[classes == label].tolist())) / 8 for label in own]
        factors.append(max([1.0, *(max(1.0, (threshold / share) ** 0.5) for share in shares)]))
    rates = sampling_rates("repeat-factor", 8, photos, classes, threshold)
    np.testing.assert_allclose(rates, np.array(factors) * 8 / sum(factors), rtol=1e-12)
    assert factors[3] == 2.0 and factors[7] == 1.0 and rates.sum() == pytest.approx(8)
    order = sampled_order(rates, np.zeros(8, np.int64), seed=1)
    assert sum((order(epoch) % 8 == 3).sum() for epoch in range(400)) / 400 == pytest.approx(rates[3], abs=0.1)
    assert sampling_rates("repeat-factor", 0, photos[:0], classes[:0], threshold).shape == (0,)


def test_equal_rates_are_the_plain_order():
    for rates in (
        _balanced(np.arange(30) % 3),
        sampling_rates("repeat-factor", 30, np.arange(30), np.arange(30) % 3, 0.001),
    ):
        order = sampled_order(rates, np.arange(30) % 3, seed=7)
        assert all(order(epoch).tolist() == permutation(30, seed=7, epoch=epoch).tolist() for epoch in range(20))


def _taken(step: int, order=ORDER, **cut: int) -> list[tuple[int, int]]:
    epochs, indices = batch_indices(N, stream_positions(step=step, global_batch_size=32, **cut), seed=5, order=order)
    return list(zip(epochs.tolist(), indices.tolist()))


@pytest.mark.parametrize("grouped", [False, True])
def test_samples_are_the_same_for_every_cut_and_from_every_step(grouped):
    order = grouped_order(np.arange(N) % 3, seed=5, global_batch_size=32, base=ORDER) if grouped else ORDER
    whole = [_taken(step, order) for step in range(12)]
    fresh = sampled_order(_balanced(CLASSES), CLASSES, seed=5)
    again = grouped_order(np.arange(N) % 3, seed=5, global_batch_size=32, base=fresh) if grouped else fresh
    assert whole[7] == _taken(7, again)  # resumed
    for world, forwards, join in ((1, 4, 1), (2, 1, 1), (4, 2, 2)):
        for step in range(12):
            parts = [_taken(step, order, world=world, rank=r, forwards=forwards, join=join) for r in range(world)]
            assert sorted(sum(parts, start=[])) == sorted(whole[step])  # noqa: RUF017


def test_a_photo_drawn_again_in_an_epoch_has_a_key_of_its_own():
    drawn = [pair for step in range(40) for pair in _taken(step)]
    assert len(set(drawn)) == len(drawn)
    of_rare = Counter((key % AGAIN, index) for key, index in drawn if CLASSES[index] == 2)
    assert max(of_rare.values()) == 10 and {key // AGAIN for key, index in drawn if CLASSES[index] == 2} == set(range(10))
    assert {key % AGAIN for key, _ in drawn} == set(range(-(-40 * 32 // N)))


def test_grouped_draws_of_an_epoch_are_the_sampler_s_and_lie_in_groups():
    groups = np.arange(N) % 3
    order = grouped_order(groups, seed=5, global_batch_size=9, base=ORDER)(0)
    assert sorted(order.tolist()) == sorted(ORDER(0).tolist())
    plain = grouped_order(groups, seed=5, global_batch_size=9)(0)
    assert sorted(plain.tolist()) == list(range(N))  # of the same groups: not the one that is kept
    runs = [set(groups[order[at : at + 9] % N].tolist()) for at in range(0, N - 9, 9)]
    assert sum(len(run) > 1 for run in runs) <= 2


def test_the_line_tells_the_rarest_and_the_most_common():
    photos, names = np.arange(N), ["apple", "pear", "fig", "none", "lemon"]
    said = format_sampling(_balanced(CLASSES), photos, CLASSES, names)
    assert check_text(said, "fig 3 -> 29, apple 16 -> 29, lemon 36 -> 29, pear 62 -> 29")
    many = np.repeat(np.arange(9), np.arange(1, 10))
    said = format_sampling(_balanced(many), np.arange(45), many, list("abcdefghi"))
    assert said.endswith("a 1 -> 5, b 2 -> 5, c 3 -> 5, ... (3 classes) ..., g 7 -> 5, h 8 -> 5, i 9 -> 5")
