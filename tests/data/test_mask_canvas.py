"""Canvases are cut-outs of the mask at the input's resolution, and coarser only where the object is too large."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from pycocotools import mask as official

from paceline.data.transforms.crop import CropWindow
from paceline.models.maskrcnn.mask_targets import make_canvases, nearest_indices

# pycocotools' own.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
# Others may share the machine: no deadline.
FEW = examples(50)
SIDE = 16


class Masks(NamedTuple):
    polygon_points: np.ndarray
    polygon_starts: np.ndarray
    object_polygons: np.ndarray
    rle_counts: np.ndarray
    object_rles: np.ndarray


def _masks(objects: list[list[np.ndarray] | np.ndarray]) -> Masks:
    """Each object is a list of polygons (p, 2), or its runs, or [] for neither."""
    points, runs, polygon_starts, object_polygons, object_rles = [], [], [0], [0], [0]
    for each in objects:
        if isinstance(each, list):
            for polygon in each:
                points.append(polygon.reshape(-1))
                polygon_starts.append(polygon_starts[-1] + polygon.size)
        else:
            runs.append(each)
        object_polygons.append(len(polygon_starts) - 1)
        object_rles.append(sum(map(len, runs)))
    return Masks(
        np.concatenate([*points, np.zeros(0)]),
        np.array(polygon_starts),
        np.array(object_polygons),
        np.concatenate([*runs, np.zeros(0, np.uint32)]).astype(np.uint32),
        np.array(object_rles),
    )


def _runs(bitmap: np.ndarray) -> np.ndarray:
    flat = bitmap.T.reshape(-1)
    edges = np.flatnonzero(np.diff(flat, prepend=0))
    return np.diff(np.concatenate(([0], edges, [flat.size]))).astype(np.uint32)


def _canvas(mask, window: CropWindow, *, flip: bool = False, photo=(40, 50), box=(0, 0, 5, 5), side: int = SIDE):
    canvases, frames = make_canvases(
        _masks([mask]), np.array([0]), np.array([box], np.float64), photo=photo, window=window, flip=flip, side=side
    )
    assert canvases.shape == (1, side + 2, side + 2) and canvases.dtype == np.uint8 and frames.dtype == np.float32
    return canvases[0], frames[0]


def _cut_out(bitmap: np.ndarray, x: int, y: int, side: int = SIDE) -> np.ndarray:
    """(C + 2, C + 2) of a bitmap, (x, y) at row 1, column 1; beyond its border the nearest pixel inside."""
    rows = np.clip(np.arange(y - 1, y + side + 1), 0, bitmap.shape[0] - 1)
    columns = np.clip(np.arange(x - 1, x + side + 1), 0, bitmap.shape[1] - 1)
    return bitmap[rows][:, columns]


def _rasterized(polygons: list[np.ndarray], window: CropWindow, flip: bool) -> np.ndarray:
    moved = []
    for polygon in polygons:
        x = (polygon[:, 0] - window.left) * (window.resized_width / window.width)
        y = (polygon[:, 1] - window.top) * (window.resized_height / window.height)
        moved.append(np.column_stack((window.resized_width - x if flip else x, y)).reshape(-1).tolist())
    runs = official.frPyObjects(moved, window.resized_height, window.resized_width)
    return official.decode(official.merge(runs))


def _resized(bitmap: np.ndarray, window: CropWindow, flip: bool) -> np.ndarray:
    region = bitmap[window.top : window.top + window.height, window.left : window.left + window.width]
    size = (window.resized_height, window.resized_width)
    found = torch.nn.functional.interpolate(torch.from_numpy(region)[None, None].float(), size)[0, 0].byte().numpy()
    return found[:, ::-1] if flip else found


def _check(canvas: np.ndarray, frame: np.ndarray, bitmap: np.ndarray, slack: int = 0) -> None:
    """Against the mask of the whole input: equal where it fits, else no worse than its pitch allows."""
    ys, xs = np.nonzero(bitmap)
    if not len(xs):
        assert not canvas.any()
        return
    wide, high = np.ptp(xs) + 1, np.ptp(ys) + 1
    x, y, pitch_x, pitch_y = frame.tolist()
    assert x == int(x) and y == int(y)
    if max(wide, high) <= SIDE - slack:
        assert pitch_x == pitch_y == 1
    if pitch_x == pitch_y == 1:
        np.testing.assert_array_equal(canvas, _cut_out(bitmap, int(x), int(y)))
        assert x <= xs.min() and xs.max() < x + SIDE and y <= ys.min() and ys.max() < y + SIDE
    elif not slack:
        assert (pitch_x, pitch_y) == pytest.approx((max(1, wide / SIDE), max(1, high / SIDE)))


_X, _Y = st.floats(-5, 55), st.floats(-5, 45)
_POLYGON = st.lists(st.tuples(_X, _Y), min_size=3, max_size=6).map(lambda p: np.array(p, np.float64))


@st.composite
def _windows(draw):
    top, left = draw(st.integers(0, 30)), draw(st.integers(0, 40))
    height, width = draw(st.integers(1, 40 - top)), draw(st.integers(1, 50 - left))
    return CropWindow(top, left, height, width, draw(st.integers(1, 60)), draw(st.integers(1, 60)))


@FEW
@given(st.lists(_POLYGON, min_size=1, max_size=2), _windows(), st.booleans())
def test_polygons_are_cut_out_of_pycocotools_bitmap_of_the_input(polygons, window, flip):
    canvas, frame = _canvas(polygons, window, flip=flip)
    _check(canvas, frame, _rasterized(polygons, window, flip))


@FEW
@given(
    st.tuples(st.integers(0, 39), st.integers(0, 49), st.integers(1, 20), st.integers(1, 20), st.integers(0, 99)),
    _windows(),
    st.booleans(),
)
def test_runs_are_cut_out_of_torchs_nearest_resize_of_the_photos_bitmap(blob, window, flip):
    top, left, high, wide, key = blob
    bitmap = np.zeros((40, 50), np.uint8)
    part = bitmap[top : top + high, left : left + wide]
    part[...] = np.random.default_rng(key).integers(0, 2, part.shape)
    canvas, frame = _canvas(_runs(bitmap), window, flip=flip)
    # The extent is that of the runs: empty rows of the source at its edge may be all that a smaller input shows.
    _check(canvas, frame, _resized(bitmap, window, flip), slack=SIDE if bitmap.any() else 0)


@pytest.mark.parametrize("flip", [False, True])
def test_runs_that_fit_keep_every_pixel(flip):
    bitmap = np.zeros((40, 50), np.uint8)
    bitmap[30:40, 41:50] = 1
    window = CropWindow(0, 0, 40, 50, 60, 75)
    canvas, frame = _canvas(_runs(bitmap), window, flip=flip)
    assert frame.tolist() == ([0, 45, 1, 1] if flip else [62, 45, 1, 1])
    _check(canvas, frame, _resized(bitmap, window, flip))


def test_runs_that_go_on_from_the_foot_of_a_column_reach_the_last_row():
    bitmap = np.zeros((12, 50), np.uint8)
    bitmap[:, 20:23] = 1
    canvas, frame = _canvas(_runs(bitmap), CropWindow(0, 0, 12, 50, 12, 50), photo=(12, 50))
    assert frame.tolist() == [20, 0, 1, 1]
    _check(canvas, frame, bitmap)
    # The last row alone: with the row above it left out there would be no mask at all.
    canvas, frame = _canvas(_runs(bitmap), CropWindow(11, 0, 1, 50, 1, 50), photo=(12, 50))
    assert frame.tolist() == [20, 0, 1, 1] and canvas[1, 1:4].all()


@pytest.mark.parametrize(("source", "target"), [(480, 800), (640, 1066), (427, 799), (500, 192), (7, 7), (1, 5), (9, 1)])
def test_nearest_is_torchs(source, target):
    found = torch.nn.functional.interpolate(torch.arange(source).float()[None, None], target)[0, 0]
    assert nearest_indices(source, target).tolist() == found.long().tolist()


@FEW
@given(
    st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(17, 100), st.integers(17, 100)),
    st.sampled_from(["polygon", "runs", "box"]),
)
def test_a_large_object_is_whole_on_its_coarser_canvas(box, kind):
    x, y, wide, high = box
    photo = (140, 150)
    bitmap = np.zeros(photo, np.uint8)
    bitmap[y : y + high, x : x + wide] = 1
    corners = np.array([(x, y), (x + wide, y), (x + wide, y + high), (x, y + high)], np.float64)
    mask = {"polygon": [corners], "runs": _runs(bitmap), "box": []}[kind]
    window = CropWindow(0, 0, *photo, *photo)
    canvas, frame = _canvas(mask, window, photo=photo, box=(x, y, x + wide, y + high))
    assert frame.tolist() == pytest.approx([x, y, wide / SIDE, high / SIDE])
    assert canvas[1:-1, 1:-1].all()
    # The ring: empty but where the object touches the photo's border.
    assert canvas[:, 0].any() == (x == 0) and canvas[0].any() == (y == 0)
    assert not canvas[:, -1].any() and not canvas[-1].any()


@pytest.mark.parametrize("turned", [False, True])
def test_a_coarse_pixel_of_runs_takes_the_value_at_its_centre(turned):
    """At a pitch of 20 the centers are at 10, 30, 50 ...; the mask is there and at both ends alone, which decide the pitch."""
    bitmap = np.zeros((20, 360), np.uint8)
    bitmap[2, [20, *range(30, 340, 20), 339]] = 1
    bitmap = bitmap.T if turned else bitmap
    canvas, frame = _canvas(_runs(bitmap), CropWindow(0, 0, *bitmap.shape, *bitmap.shape), photo=bitmap.shape)
    assert frame.tolist() == ([2, 20, 1, 20] if turned else [20, 2, 20, 1])
    assert (canvas[1:-1, 1] if turned else canvas[1, 1:-1]).all()
    assert canvas.sum() == SIDE


def test_one_side_may_be_coarser_than_the_other():
    window = CropWindow(0, 0, 40, 50, 40, 50)
    canvas, frame = _canvas([np.array([(0, 5), (48, 5), (48, 9), (0, 9)], np.float64)], window)
    assert frame.tolist() == [0, 5, 3, 1]
    assert canvas[1:5, :17].all() and not canvas[5:].any() and not canvas[0].any() and not canvas[:, 17].any()


def test_a_mask_without_a_pixel_is_an_empty_canvas_where_its_box_begins():
    line = np.array([(10, 10), (10.01, 30), (10, 20)], np.float64)
    for mask in ([line], np.array([2000], np.uint32)):
        canvas, frame = _canvas(mask, CropWindow(0, 0, 40, 50, 80, 100), box=(10, 10, 10.5, 30))
        assert not canvas.any() and frame.tolist() == [20, 20, 1, 1]


def test_many_objects_at_once_are_the_same_as_one_by_one():
    random = np.random.default_rng(0)
    bitmap = random.integers(0, 2, (40, 50)).astype(np.uint8)
    boxes = np.sort(random.uniform(0, 40, (40, 2, 2)), axis=1).reshape(40, 4)
    objects = []
    for at in range(40):
        polygons = [random.uniform(-5, 45, (4, 2)) * random.uniform(0.2, 1) for _ in range(at % 3 + 1)]
        objects.append([] if at % 5 == 0 else _runs(bitmap) if at % 7 == 0 else polygons)
    where = {"photo": (40, 50), "window": CropWindow(2, 3, 35, 40, 50, 57), "flip": True, "side": SIDE}
    rows = np.arange(40)[::-1]
    canvases, frames = make_canvases(_masks(objects), rows, boxes[rows], **where)
    assert len({frame[2] > 1 for frame in frames.tolist()}) == 2
    for place, row in enumerate(rows.tolist()):
        one, frame = make_canvases(_masks([objects[row]]), np.array([0]), boxes[row : row + 1], **where)
        np.testing.assert_array_equal(one[0], canvases[place])
        np.testing.assert_array_equal(frame[0], frames[place])


def test_no_objects_are_no_canvases():
    canvases, frames = make_canvases(
        _masks([]), np.zeros(0, np.int64), np.zeros((0, 4)), photo=(9, 9), window=CropWindow(0, 0, 9, 9, 9, 9), flip=False,
        side=SIDE,
    )  # fmt: skip
    assert canvases.shape == (0, SIDE + 2, SIDE + 2) and frames.shape == (0, 4)
