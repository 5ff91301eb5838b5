"""Runs as strings: pycocotools' own, there and back, for any number of masks at once."""

from __future__ import annotations

import numpy as np
from example_counts import examples
from hypothesis import example, given
from hypothesis import strategies as st
from messages import raises
from pycocotools import mask as official

from paceline.data.rle import RLE, compress, decode_mask, decompress, mask_areas


def official_string(runs: list[int]) -> bytes:
    return official.frPyObjects({"counts": runs, "size": [sum(runs), 1]}, sum(runs), 1)["counts"]


def flat(masks: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([run for runs in masks for run in runs], np.int64), np.cumsum([0, *map(len, masks)])


def drawn(seed: int) -> list[list[int]]:
    """Up to 5 masks of up to 12 runs, of every size."""
    draw = np.random.default_rng(seed)
    return [
        [int(run) + (place == 0) for place, run in enumerate(2.0 ** draw.uniform(0, draw.choice([3, 6, 12, 27]), count))]
        for count in draw.integers(1, 13, draw.integers(0, 6))
    ]


@examples(60)
@given(st.builds(drawn, st.integers(0, 2**32 - 1)))
@example([])
@example([[15, 16, 15, 31, 0, 511, 512, 1 << 30]])
@example([[7], [0, 7], [1, 5, 1]])
def test_strings_are_those_of_pycocotools_and_come_back_as_the_same_runs(masks: list[list[int]]) -> None:
    packed = compress(*flat(masks))
    # pycocotools gives a run six letters and the string no place for its end: where all are taken it writes beyond.
    assert [text for text, runs in zip(packed, masks) if len(text) < 6 * len(runs)] == [
        official_string(runs) for text, runs in zip(packed, masks) if len(text) < 6 * len(runs)
    ]
    runs, starts = decompress(packed)
    np.testing.assert_array_equal(runs, flat(masks)[0])
    np.testing.assert_array_equal(starts, flat(masks)[1])
    assert mask_areas(packed).tolist() == [sum(runs[1::2]) for runs in masks]


@examples(30)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.1, 0.9, 1.0]))
def test_a_bitmap_is_the_one_that_was_encoded(height: int, width: int, seed: int, share: float) -> None:
    mask = (np.random.default_rng(seed).random((height, width)) < share).astype(np.uint8)
    text = official.encode(np.asfortranarray(mask))["counts"]
    np.testing.assert_array_equal(decode_mask(text, height, width), mask)
    assert mask_areas(RLE.of([text])).tolist() == [mask.sum()]


def test_areas_of_masks_of_many_photos_of_one_without_a_pixel_and_of_none() -> None:
    masks = [*drawn(1), *drawn(2), [50], *drawn(3)]
    assert mask_areas(compress(*flat(masks))).tolist() == [sum(runs[1::2]) for runs in masks]
    assert mask_areas(RLE.of([])).tolist() == [] and mask_areas(RLE.of([b"", official_string([2, 3])])).tolist() == [0, 3]


def test_a_string_of_another_photo_is_refused() -> None:
    with raises(ValueError, "12 pixels", "15"):
        decode_mask(official_string([5, 7]), 5, 3)


def test_masks_are_taken_and_joined_in_any_order() -> None:
    strings = [b"a", b"", b"bcd", b"ef"]
    masks = RLE.of(strings)
    assert len(masks) == 4 and list(masks) == strings and masks[2] == b"bcd"
    assert list(masks.take(np.array([3, 1, 0, 3]))) == [b"ef", b"", b"a", b"ef"]
    assert list(masks.take(np.zeros(0, np.int64))) == []
    assert list(RLE.join([masks, RLE.of([]), masks.take(np.array([2]))])) == [*strings, b"bcd"]
    assert len(RLE.join([])) == 0 and len(RLE.of([])) == 0
