"""Polygons become the bitmaps that pycocotools makes of them, bit by bit, whatever their shape and wherever they lie."""

from __future__ import annotations

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from pycocotools import mask as official

from paceline.data.transforms.polygon_fill import fill_polygons, find_crossings, mask_extents

# pycocotools' own.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
# Others may share the machine: no deadline.
FEW = examples(80)


def _official(polygons: list[np.ndarray], height: int, width: int) -> np.ndarray:
    flat = [polygon.reshape(-1).tolist() for polygon in polygons]
    return official.decode(official.merge(official.frPyObjects(flat, height, width)))


def _ours(polygons: list[np.ndarray], height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    found = find_crossings(np.concatenate(polygons), np.array([len(each) for each in polygons]), height, width)
    out = np.full((1, height, width), 7, np.uint8)
    fill_polygons(np.zeros_like(found.outlines), found.columns, found.rows, out)
    return out[0], mask_extents(found, np.zeros(len(polygons), np.int64), 1)[0]


def _compare(polygons: list[np.ndarray], height: int, width: int) -> None:
    expected = _official(polygons, height, width)
    found, bounds = _ours(polygons, height, width)
    np.testing.assert_array_equal(found, expected)
    ys, xs = np.nonzero(expected)
    assert bounds.tolist() == ([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1] if len(xs) else [0, 0, 0, 0])


# Coordinates of annotations: any, on whole and half pixels, and on the fine grid itself, where ties are.
_ANY = st.floats(-30, 90, allow_nan=False)
_COORDINATE = st.one_of(_ANY, st.integers(-20, 80).map(lambda v: v / 2), st.integers(-40, 300).map(lambda v: v / 5))
_POLYGON = st.lists(st.tuples(_COORDINATE, _COORDINATE), min_size=3, max_size=9).map(lambda p: np.array(p, np.float64))


@FEW
@given(st.lists(_POLYGON, min_size=1, max_size=3), st.integers(1, 60), st.integers(1, 60))
def test_any_polygons_in_any_picture_are_pycocotools(polygons, height, width):
    _compare(polygons, height, width)


def test_long_edges_are_walked_as_pycocotools_walks_them():
    random = np.random.default_rng(0)
    for turn in range(20):
        polygon = random.integers(-300, 7000, (5, 2)) / (5 if turn % 2 else 7)
        _compare([polygon], 800, 1333)


@pytest.mark.parametrize(
    "corners",
    [
        [(3, 3), (3, 3), (3, 3)],  # a point
        [(2, 1), (2, 9), (2, 4)],  # a line
        [(0, 0), (20, 0), (20, 10), (0, 10)],  # the whole picture
        [(-5, -5), (50, -5), (50, 50), (-5, 50)],  # and more
        [(0, 0), (10, 10), (10, 0), (0, 10)],  # crosses itself
        [(40, 40), (50, 40), (50, 50)],  # outside
    ],
)
def test_odd_outlines_are_pycocotools(corners):
    _compare([np.array(corners, np.float64)], 10, 20)


def test_an_outline_given_twice_counts_once_and_many_may_overlap():
    square = np.array([(1, 1), (6, 1), (6, 6), (1, 6)], np.float64)
    _compare([square, square], 10, 10)
    _compare([square + shift / 100 for shift in range(300)], 10, 10)


def test_no_outlines_have_no_crossings():
    found = find_crossings(np.zeros((0, 2)), np.zeros(0, np.int64), 5, 5)
    out = np.ones((2, 5, 5), np.uint8)
    fill_polygons(found.outlines, found.columns, found.rows, out)
    assert not out.any() and not mask_extents(found, np.zeros(0, np.int64), 2).any()
