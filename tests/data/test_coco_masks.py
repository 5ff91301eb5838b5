"""Masks of every form give the runs and points that pycocotools makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from pycocotools import mask as official

from paceline.data.formats.annotations import decompress
from paceline.data.prepare.box_arrays import cumulative_starts, mask_arrays


def blame(row: int, reason: str) -> ValueError:
    return ValueError(f"object {row}: {reason}")


def arrays(segmentations, height=4, width=6):
    sides = np.full(len(segmentations), height), np.full(len(segmentations), width)
    return mask_arrays(segmentations, *sides, blame)


def runs_of(mask: np.ndarray) -> list[int]:
    """By a slow obvious loop: column by column, background first."""
    runs, value = [0], 0
    for pixel in mask.T.reshape(-1).tolist():
        if pixel != value:
            runs.append(0)
            value = pixel
        runs[-1] += 1
    return runs


@examples(200)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.02, 0.5, 0.98, 1.0]))
def test_compressed_runs_are_those_of_the_mask(height, width, seed, share):
    mask = (np.random.default_rng(seed).random((height, width)) < share).astype(np.uint8)
    given_rle = official.encode(np.asfortranarray(mask))
    assert decompress(given_rle["counts"]).tolist() == runs_of(mask)
    text = {"counts": given_rle["counts"].decode(), "size": [height, width]}
    plain = {"counts": runs_of(mask), "size": [height, width]}
    found, *left_out = arrays([text, None, plain], height, width)
    assert left_out == [0, 0] and found["object_rles"].tolist() == [
        0,
        len(runs_of(mask)),
        len(runs_of(mask)),
        2 * len(runs_of(mask)),
    ]
    assert found["rle_counts"].tolist() == runs_of(mask) * 2 and found["rle_counts"].dtype == np.uint32


def test_a_run_of_many_millions_of_pixels_survives():
    given_rle = official.frPyObjects({"counts": [5, 16_000_000, 12_000_000, 3], "size": [7_000_002, 4]}, 7_000_002, 4)
    assert decompress(given_rle["counts"]).tolist() == [5, 16_000_000, 12_000_000, 3]
    assert decompress(b"").tolist() == []


def test_polygons_of_any_number_lie_behind_each_other():
    first, second = [0, 0, 4.5, 0, 4, 3], [1, 1, 2, 1, 2, 2, 1, 2]
    found, *left_out = arrays([[first], None, [second, first], []])
    assert left_out == [0, 0] and found["polygon_points"].tolist() == [*first, *second, *first]
    assert found["polygon_starts"].tolist() == [0, 6, 14, 20]
    assert found["object_polygons"].tolist() == [0, 1, 1, 3, 3]
    assert found["object_rles"].tolist() == [0] * 5 and found["rle_counts"].size == 0


def test_polygons_that_enclose_nothing_are_left_out_and_counted():
    good = [0, 0, 4, 0, 4, 3]
    found, *left_out = arrays([[[1, 2, 3, 4], good], [[1, 2]], [[0, 0, float("nan"), 1, 2, 2], good]])
    assert left_out == [2, 1] and found["polygon_points"].tolist() == good * 2
    assert found["object_polygons"].tolist() == [0, 1, 1, 2] and found["polygon_starts"].tolist() == [0, 6, 12]


def test_no_objects_give_empty_arrays():
    found, *left_out = arrays([])
    assert left_out == [0, 0] and found["object_polygons"].tolist() == [0] == found["polygon_starts"].tolist()
    assert cumulative_starts(np.zeros(0, np.int64)).tolist() == [0]


BROKEN = {
    "covers 23 pixels, but the image has 24": {"counts": [3, 20], "size": [4, 6]},
    r"has size \[6, 4\], but the image has \[4, 6\]": {"counts": [24], "size": [6, 4]},
    r"a run with a negative length \(-2\)": {"counts": [-2, 26], "size": [4, 6]},
    "a character that is not allowed in run lengths": {"counts": "\x01\x02", "size": [4, 6]},
    "it ends within a number": {"counts": "P", "size": [4, 6]},
    "not a list of integers": {"counts": [12.5, 11.5], "size": [4, 6]},
    "its segmentation is '5'": 5,
    "its segmentation is '1 2 3": "1 2 3 4 5 6",
    r"an odd number of values \(7\)": [[1, 2, 3, 4, 5, 6, 7]],
    r"an odd number of values \(5\)": [1, 2, 3, 4, 5],
    "a list of 2 objects with x, y": [{"x": 1, "y": 2}, {"x": 3, "y": 2}],
    "an object with points": {"points": [[1, 2]]},
    "a list of 2 objects with counts, size": [{"counts": [24], "size": [4, 6]}] * 2,
    "mixes numbers and lists": [1, 2, [3, 4]],
    "points are not pairs of numbers": [[[1, 2, 0], [3, 4, 0], [5, 6, 0]]],
    "'x', which is not a number": [[1, 2, 3, 4, 5, "x"]],
    "'1', which is not a number": [["1", "2", "3", "4", "5", "6"]],
    "that is too large for a float": [[1, 2, 3, 4, 5, 10**400]],
    "Python int too large": {"counts": [10**400], "size": [4, 6]},
}


@pytest.mark.parametrize("reason", BROKEN)
def test_a_broken_mask_is_blamed_on_its_object(reason):
    with pytest.raises(ValueError, match=f"object 1: .*{reason}"):
        arrays([None, BROKEN[reason]])
