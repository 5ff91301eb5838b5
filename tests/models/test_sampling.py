"""The generator against C's arithmetic and statistics; sampling against the slow, obvious loop, in both forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paceline.models.ops.sampling import SampledBoxes, hash_uint32, random_bits, sample_candidates, sample_candidates_fixed

FILLS = ["negatives", "any"]
# Keys 0, 1, 2^32 - 1; places 0 to 3; streams 0 and 1.
GOLDEN_0 = [
    [1244125866, 1538827133, 612355691, 1403134257],
    [1665020966, 669640454, 956395288, 728409163],
    [1378970081, 1083267697, 315976333, 68690733],
]
GOLDEN_1 = [
    [1798373259, 362971283, 458897035, 738030199],
    [1473160191, 1922784804, 1589734283, 23367409],
    [467767623, 249797332, 1742238395, 859159231],
]


def c_mixed(x: np.ndarray) -> np.ndarray:
    """lowbias32 in wrapping 32-bit arithmetic, as its author writes it."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def test_the_hash_is_lowbias32() -> None:
    numbers = np.concatenate(
        (np.arange(1000), 2**32 - 1 - np.arange(1000), np.random.RandomState(0).randint(0, 2**32, 5000, np.int64))
    )
    expected = c_mixed(numbers.astype(np.uint32)).astype(np.int64)
    assert hash_uint32(torch.from_numpy(numbers)).tolist() == expected.tolist()
    assert [hash_uint32(int(number)) for number in numbers[:1010]] == expected[:1010].tolist()


def test_golden_values() -> None:
    """A sample is part of a run's result: these numbers never change."""
    assert random_bits(torch.tensor([0, 1, 2**32 - 1]), 4, 0).tolist() == GOLDEN_0
    assert random_bits(torch.tensor([0, 1, 2**32 - 1]), 4, 1).tolist() == GOLDEN_1


def test_bits_are_uniform() -> None:
    bits = random_bits(torch.arange(16), 2**14, 0)
    assert int(bits.min()) >= 0 and int(bits.max()) < 2**31
    for shift in (25, 12, 0):  # the highest, middle and lowest six bits
        counts = torch.bincount((bits.flatten() >> shift) & 63, minlength=64).double()
        expected = bits.numel() / 64
        # 63 degrees of freedom: mean 63, standard deviation 11
        assert float(((counts - expected) ** 2 / expected).sum()) < 63 + 5 * 11


def correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack((one.flatten().double(), other.flatten().double())))[0, 1])


def test_streams_keys_and_neighbouring_places_are_independent() -> None:
    keys = torch.arange(64)
    first, second = random_bits(keys, 1024, 0), random_bits(keys, 1024, 1)
    bound = 5 / (64 * 1023) ** 0.5
    assert abs(correlation(first, second)) < bound
    assert abs(correlation(first[:-1], first[1:])) < bound
    assert abs(correlation(first[:, :-1], first[:, 1:])) < bound
    # No sequence is a piece of another one, moved.
    assert len(first.unique()) > 65536 - 10 and len(torch.cat((first, second)).unique()) > 131072 - 20


def test_a_number_depends_on_its_key_stream_and_place_only() -> None:
    keys = torch.tensor([7, 123456789, 7])
    bits = random_bits(keys, 100, 3)
    assert torch.equal(bits[0], bits[2])
    assert torch.equal(random_bits(keys[1:2], 30, 3)[0], bits[1, :30])
    assert torch.equal(random_bits(keys + 2**32, 100, 3), bits)
    assert random_bits(keys[:0], 5, 0).shape == (0, 5) and random_bits(keys, 0, 0).shape == (3, 0)


def slow_sample(
    positive: list[bool], negative: list[bool], bits: list[int], count: int, most_positive: int, fill: str
) -> tuple[list[int], list[int]]:
    """Places of the positives and of the negatives drawn."""
    order = sorted(range(len(bits)), key=lambda place: (bits[place], place))
    positives, negatives = [p for p in order if positive[p]], [p for p in order if negative[p]]
    # One block of places prefers positives, the other one negatives.
    drawn, others = positives[:most_positive][:count], []
    while len(drawn) + len(others) < count and len(others) < len(negatives):
        others.append(negatives[len(others)])
    while fill == "any" and len(drawn) + len(others) < count and len(drawn) < len(positives):
        drawn.append(positives[len(drawn)])
    return drawn, others


def both_forms(positive: Tensor, negative: Tensor, bits: Tensor, count: int, most_positive: int, fill) -> SampledBoxes:
    """The CPU's answer, after the accelerators' form gave the same."""
    found = sample_candidates(positive, negative, bits, count=count, most_positive=most_positive, fill=fill)
    fixed = sample_candidates_fixed(positive, negative, bits, count=count, most_positive=most_positive, fill=fill)
    assert all(torch.equal(one, other) for one, other in zip(found, fixed))
    assert [part.dtype for part in found] == [torch.int64, torch.bool, torch.bool]
    return found


# Few different bits, so that ties are common.
candidate = st.tuples(st.sampled_from("pn-"), st.integers(0, 3).map(lambda bits: bits * 2**29))


@pytest.mark.parametrize("fill", FILLS)
@examples(100)
@given(
    images=st.integers(0, 12).flatmap(
        lambda size: st.lists(st.lists(candidate, min_size=size, max_size=size), min_size=1, max_size=2)
    ),
    count=st.integers(1, 8),
    most_positive=st.integers(0, 9),
)
def test_sampling_agrees_with_the_obvious_loop(fill, images, count, most_positive) -> None:
    positive, negative = ([[kind == letter for kind, _ in image] for image in images] for letter in "pn")
    bits = [[number for _, number in image] for image in images]
    tensors = torch.tensor(positive).bool(), torch.tensor(negative).bool(), torch.tensor(bits, dtype=torch.int64)
    found = both_forms(*tensors, count, most_positive, fill)
    for row in range(len(images)):
        drawn, others = slow_sample(positive[row], negative[row], bits[row], count, most_positive, fill)
        empty = count - len(drawn) - len(others)
        assert found.places[row].tolist() == drawn + others + [0] * empty
        assert found.positive[row].tolist() == [True] * len(drawn) + [False] * (count - len(drawn))
        assert found.taken[row].tolist() == [True] * (count - empty) + [False] * empty


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize(
    ("positives", "negatives", "expected"),
    # drawn positives and negatives of 512 places, 128 of them for positives
    [
        (300, 2000, {"negatives": (128, 384), "any": (128, 384)}),
        (20, 2000, {"negatives": (20, 492), "any": (20, 492)}),
        (300, 100, {"negatives": (128, 100), "any": (300, 100)}),
        (900, 100, {"negatives": (128, 100), "any": (412, 100)}),
        (60, 40, {"negatives": (60, 40), "any": (60, 40)}),
        (0, 0, {"negatives": (0, 0), "any": (0, 0)}),
    ],
)
def test_quotas(fill, positives, negatives, expected) -> None:
    place = torch.randperm(2900, generator=torch.Generator().manual_seed(0)).unsqueeze(0)
    positive, negative = place < positives, (place >= positives) & (place < positives + negatives)
    found = both_forms(positive, negative, random_bits(torch.tensor([5]), 2900, 0), 512, 128, fill)
    drawn = int(found.positive.sum()), int((found.taken & ~found.positive).sum())
    assert drawn == expected[fill]
    assert bool(positive.gather(1, found.places)[found.positive].all())
    assert bool(negative.gather(1, found.places)[found.taken & ~found.positive].all())
    assert len(found.places[found.taken].unique()) == sum(drawn)


def test_many_candidates_with_equal_bits_are_taken_by_place() -> None:
    """The CPU's first look finds none below its cut, and then all."""
    negative = torch.ones(1, 1000, dtype=torch.bool)
    bits = torch.full((1, 1000), 2**31 - 1)
    assert both_forms(~negative, negative, bits, 4, 2, "negatives").places.tolist() == [[0, 1, 2, 3]]


def test_no_places_to_draw_from_and_no_images() -> None:
    nothing = torch.zeros(2, 0, dtype=torch.bool)
    found = both_forms(nothing, nothing, torch.zeros(2, 0, dtype=torch.int64), 3, 1, "any")
    assert found.places.tolist() == [[0] * 3] * 2 and not found.taken.any()
    none = torch.zeros(0, 5, dtype=torch.bool)
    assert both_forms(none, none, torch.zeros(0, 5, dtype=torch.int64), 3, 1, "any").places.shape == (0, 3)


def test_every_candidate_is_drawn_equally_often() -> None:
    images, candidates, count = 4000, 40, 10
    negative = torch.ones(images, candidates, dtype=torch.bool)
    bits = random_bits(torch.arange(images), candidates, 2)
    found = sample_candidates(~negative, negative, bits, count=count, most_positive=5, fill="negatives")
    drawn = torch.bincount(found.places.flatten(), minlength=candidates).double()
    expected = images * count / candidates
    spread = (expected * (1 - count / candidates)) ** 0.5
    assert float((drawn - expected).abs().max()) < 5 * spread


def test_shapes_do_not_depend_on_the_data() -> None:
    """The meta device has no data to look at."""
    kind = torch.empty(2, 300, dtype=torch.bool, device="meta")
    bits = random_bits(torch.empty(2, dtype=torch.int64, device="meta"), 300, 0)
    for count in (16, 400):
        found = sample_candidates(kind, kind, bits, count=count, most_positive=8, fill="any")
        assert [part.shape for part in found] == [(2, count)] * 3
