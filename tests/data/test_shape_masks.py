"""Outlines, their pixels, and the way back from pixels to polygons and run lengths."""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.shapes import outlines
from paceline.data.shapes.outlines import (
    CLASSES,
    make_outline,
    move_outline,
    outline_area,
    outline_box,
    rasterize_coverage,
    run_lengths,
    trace_polygons,
)
from paceline.data.shapes.scenes import paint_object, visible_region


@st.composite
def masks(draw) -> np.ndarray:
    height, width = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    cells = draw(st.lists(st.booleans(), min_size=height * width, max_size=height * width))
    return np.array(cells).reshape(height, width)


def fill_polygons(polygons, height: int, width: int) -> np.ndarray:
    """The obvious way: a pixel is in if a ray from its middle crosses some polygon's sides an odd number of times."""
    x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    filled = np.zeros((height, width), bool)
    for polygon in polygons:
        odd = np.zeros((height, width), bool)
        for (x0, y0), (x1, y1) in zip(polygon, np.roll(polygon, -1, axis=0)):
            if y0 != y1:
                odd ^= ((y0 <= y) != (y1 <= y)) & (x < x0 + (y - y0) / (y1 - y0) * (x1 - x0))
        filled |= odd
    return filled


@examples(200)
@given(masks())
def test_polygons_without_simplification_give_the_mask_back_and_have_no_holes(mask):
    with mock.patch.multiple(outlines, TOLERANCE_PX=0.0, CRUMB_PX2=0.0):
        polygons = trace_polygons(mask)
    assert np.array_equal(fill_polygons(polygons, *mask.shape), mask)
    # Nothing is covered twice, so the areas add up: what corners lose is at most an eighth of a pixel each.
    total = sum(outline_area([polygon]) for polygon in polygons)
    assert 0.5 * mask.sum() <= total <= 1.5 * mask.sum()


def test_a_mask_with_a_hole_comes_in_two_halves_that_leave_it_open():
    mask = np.ones((20, 30), bool)
    mask[8:12, 10:21] = False
    polygons = trace_polygons(mask)
    assert len(polygons) == 2
    assert np.array_equal(fill_polygons(polygons, 20, 30), mask)


def test_straight_edges_keep_few_corners_and_crumbs_get_no_polygon():
    mask = np.zeros((40, 50), bool)
    mask[5:35, 10:40] = True
    mask[2, 45] = True
    (polygon,) = trace_polygons(mask)
    assert len(polygon) <= 8
    assert outline_box([polygon]) == (10, 5, 40, 35)


def test_what_is_not_empty_has_a_polygon_of_three_points_or_more():
    assert trace_polygons(np.zeros((40, 50), bool)) == []
    for height, width in ((1, 1), (1, 3), (1, 30), (30, 1), (2, 2)):
        mask = np.zeros((40, 50), bool)
        mask[4 : 4 + height, 6 : 6 + width] = True
        (polygon,) = trace_polygons(mask)
        assert len(polygon) >= 3 and outline_area([polygon]) > 0
        assert np.abs(np.array(outline_box([polygon])) - (6, 4, 6 + width, 4 + height)).max() <= 0.5


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")  # pycocotools'
@examples(100)
@given(masks())
def test_run_lengths_are_coco_s(mask):
    counts = run_lengths(mask)
    cells = []
    for k, count in enumerate(counts):
        cells += [k % 2 == 1] * count
    assert np.array_equal(np.array(cells).reshape(mask.shape[::-1]).T, mask)
    coco = pytest.importorskip("pycocotools.mask")
    code = coco.frPyObjects({"counts": counts, "size": list(mask.shape)}, *mask.shape)
    assert np.array_equal(coco.decode(code).astype(bool), mask)


@examples(60)
@given(st.integers(0, 7), st.floats(8, 120), st.floats(0, 2 * math.pi), st.floats(0.85, 1.15), st.floats(-3, 3))
def test_an_outline_covers_the_area_that_was_asked_for(label, size, angle, stretch, shift):
    loops = move_outline(make_outline(label, area=size**2, angle=angle, stretch=stretch), shift, 2 * shift)
    assert outline_area(loops) == pytest.approx(size**2)
    stamp = rasterize_coverage(loops)
    # Pillow draws a fine pixel too much along each side; the long thin shapes feel it most.
    assert stamp.coverage.sum() / 255 == pytest.approx(size**2, rel=0.02 + 0.8 / size)
    x1, y1, x2, y2 = outline_box(loops)
    rows, columns = np.flatnonzero(stamp.coverage.any(axis=1)), np.flatnonzero(stamp.coverage.any(axis=0))
    drawn = (stamp.left + columns[0], stamp.top + rows[0], stamp.left + columns[-1] + 1, stamp.top + rows[-1] + 1)
    assert np.abs(np.array(drawn) - (x1, y1, x2, y2)).max() < 1.3


@pytest.mark.parametrize("label", range(8), ids=CLASSES)
def test_painting_changes_exactly_the_covered_pixels(label):
    loops = move_outline(make_outline(label, area=900.0, angle=0.4, stretch=1.1), 30.0, 10.0)  # sticks out at the top
    stamp = rasterize_coverage(loops)
    for seed in range(12):  # with and without a texture and an edge
        canvas = np.full((3, 60, 60), 128, np.float32)
        paint_object(canvas, np.random.default_rng(seed), loops, stamp, [np.full(3, 128, np.float32)], 0.0)
        where, part = visible_region(stamp, 60, 60)
        coverage = np.zeros((60, 60), np.uint8)
        coverage[where] = stamp.coverage[part]
        changed = np.abs(canvas - 128).max(axis=0) > 5
        assert not changed[coverage == 0].any()
        assert changed[coverage >= 128].all()


def test_the_ring_is_open_and_its_border_has_no_cut():
    loops = make_outline(CLASSES.index("ring"), area=3000.0, angle=0.0, stretch=1.0)
    ring, border = rasterize_coverage(loops), rasterize_coverage(loops, edge=2.0)
    middle_y, middle_x = -ring.top, -ring.left
    assert ring.coverage[middle_y, middle_x] == 0
    columns = np.flatnonzero(ring.coverage[middle_y, middle_x:])
    across = middle_x + (columns[0] + columns[-1]) // 2  # half way from the hole to the outside, where the halves meet
    assert ring.coverage[middle_y - 1 : middle_y + 2, across].min() == 255
    assert border.coverage[middle_y - 1 : middle_y + 2, across].max() == 0
    assert border.coverage[middle_y, middle_x + columns[0] + 1] > 128
