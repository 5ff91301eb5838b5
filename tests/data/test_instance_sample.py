"""A sample of Mask R-CNN: pixels, boxes and masks agree, and all of it depends on the sample's key alone."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from messages import raises
from PIL import Image

from paceline._utils.errors import DataError
from paceline.config.maskrcnn import InstanceInput
from paceline.data.batch import InstanceObjects
from paceline.data.index.box_split import BoxSplit
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.crop import CropWindow
from paceline.data.transforms.image_io import read_header
from paceline.data.transforms.sample import decode_and_transform
from paceline.models.maskrcnn.transforms import (
    MIN_LEFT,
    clip_boxes_to_input,
    crop_window,
    evaluation_instance_spec,
    image_key,
    sample_instance_spec,
)

# Others may share the machine: no deadline.
FEW = examples(50)
PLAIN = InstanceInput(min_size=(96,), max_size=160, hflip=0.0)
OUT = (128, 160)
CANVAS = 64
BACKGROUND, BRIGHT = 20, 230


def _encode(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def _scene(height: int, width: int, rectangles: list[tuple[int, int, int, int]], **more: Any) -> tuple[bytes, BoxSplit]:
    """A photo with rectangles x, y, w, h, class k = 1, 2, 3 bright in channel k - 1, each also a polygon."""
    pixels = np.full((height, width, 3), BACKGROUND, np.uint8)
    count = len(rectangles)
    corners = np.zeros((count, 4, 2))
    for k, (x, y, w, h) in enumerate(rectangles):
        pixels[max(y, 0) : y + h, max(x, 0) : x + w, k % 3] = BRIGHT
        corners[k] = [(x, y), (x + w, y), (x + w, y + h), (x, y + h)]
    empty = np.zeros(0, np.int64)
    split = BoxSplit(
        index=None,  # type: ignore[arg-type]
        names=("red", "green", "blue"),
        category_ids=np.arange(3),
        image_ids=np.zeros(1, np.int64),
        heights=np.array([height], np.int32),
        widths=np.array([width], np.int32),
        object_starts=np.array([0, count]),
        boxes=np.array(rectangles, np.float64).reshape(-1, 4),
        classes=np.arange(count, dtype=np.int32) % 3 + 1,
        crowd=empty,
        areas=empty,
        annotation_ids=empty,
        usable=empty,
        polygon_points=corners.reshape(-1),
        polygon_starts=np.arange(count + 1) * 8,
        object_polygons=np.arange(count + 1),
        rle_counts=np.zeros(0, np.uint32),
        object_rles=np.zeros(count + 1, np.int64),
    )
    return _encode(pixels), split


def _read(scene: tuple[bytes, BoxSplit], settings: InstanceInput = PLAIN, key: int = 0, rows: Any = None):
    data, split = scene
    out = np.full((*OUT, 3), 99, np.uint8)
    wanted = np.arange(len(split.boxes)) if rows is None else np.array(rows, np.int64)
    return out, _sample(data, split, wanted, key, settings, out)


def _sample(data: bytes, split: BoxSplit, rows: np.ndarray, key: int, settings: InstanceInput, out: np.ndarray):
    header, random, shape = read_header(data, "photo"), SampleRng(0, 0, key), out.shape[:2]
    draw = sample_instance_spec(header, "photo", split, rows, random, 5, settings, 96, CANVAS, shape)  # type: ignore[arg-type]
    decode_and_transform(data, draw, out)
    return draw.label


def _evaluated(data: bytes, settings: InstanceInput, out: np.ndarray, name: str = "photo") -> InstanceObjects:
    draw = evaluation_instance_spec(read_header(data, name), name, settings, 96, out.shape[:2])  # type: ignore[arg-type]
    decode_and_transform(data, draw, out)
    return draw.label


def _paste(objects: InstanceObjects, at: int) -> np.ndarray:
    """An object's canvas back on the input, (h, w)."""
    full = np.zeros(objects.size, np.uint8)
    x, y, pitch_x, pitch_y = objects.frames[at].tolist()
    rows = np.floor((np.arange(objects.size[0]) + 0.5 - y) / pitch_y).astype(int)
    columns = np.floor((np.arange(objects.size[1]) + 0.5 - x) / pitch_x).astype(int)
    in_y, in_x = (rows >= 0) & (rows < CANVAS), (columns >= 0) & (columns < CANVAS)
    inner = objects.canvases[at, 1:-1, 1:-1]
    full[np.ix_(in_y, in_x)] = inner[np.ix_(rows[in_y], columns[in_x])]
    return full


@pytest.mark.parametrize("crop", [1.0, 0.5])
@pytest.mark.parametrize(("height", "width"), [(120, 150), (300, 200), (48, 64)])
def test_masks_and_boxes_lie_where_the_objects_are_seen(height, width, crop):
    y, x = height // 10, width // 10
    scene = _scene(height, width, [(x, y, 4 * x, 5 * y), (3 * x, 4 * y, 6 * x, 5 * y), (6 * x, 2 * y, 2 * x, 2 * y)])
    settings = dataclasses.replace(PLAIN, min_crop_scale=crop, hflip=0.5)
    lefts, blur = set(), 2 + 96 / min(height, width)
    for key in range(12):
        out = np.zeros((160, 160, 3), np.uint8)
        objects = _sample(scene[0], scene[1], np.arange(3), key, settings, out)
        h, w = objects.size
        assert not out[h:].any() and not out[:, w:].any()
        for at, k in enumerate(objects.classes.tolist()):
            seen = out[:h, :w, k - 1] > (BACKGROUND + BRIGHT) / 2
            mask = _paste(objects, at)
            # They differ along the outline at most, by what a resized edge is blurred.
            left, top, right, bottom = objects.boxes[at].tolist()
            assert (seen != mask).sum() <= blur * 2 * (right - left + bottom - top)
            ys, xs = np.nonzero(seen)
            found = [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]
            np.testing.assert_allclose(objects.boxes[at], found, atol=blur)
            lefts.add(round(left, 2))
    assert len(lefts) > (4 if crop == 1 else 12)


def test_the_flip_mirrors_photo_boxes_and_masks_and_not_the_padding():
    scene = _scene(96, 120, [(12, 20, 30, 40)])
    straight, mirrored = _read(scene), _read(scene, dataclasses.replace(PLAIN, hflip=1.0))
    h, w = straight[1].size
    assert (h, w) == mirrored[1].size == (96, 120)
    np.testing.assert_array_equal(mirrored[0][:h, :w], straight[0][:h, :w][:, ::-1])
    assert not mirrored[0][:, w:].any() and not mirrored[0][h:].any()
    assert straight[1].boxes.tolist() == [[12, 20, 42, 60]] and mirrored[1].boxes.tolist() == [[78, 20, 108, 60]]
    np.testing.assert_array_equal(_paste(mirrored[1], 0), _paste(straight[1], 0)[:, ::-1])


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("law", ["bilinear-antialias", "bilinear"])
@pytest.mark.parametrize(("height", "width"), [(90, 130), (400, 300)])
def test_a_photo_in_a_larger_input_is_the_photo_by_itself(height, width, law, kind):
    pixels = np.random.default_rng(0).integers(0, 256, (height // 10, width // 10, 3), dtype=np.uint8)
    data = _encode(pixels.repeat(10, 0).repeat(10, 1), kind)
    settings = dataclasses.replace(PLAIN, resize=law)
    padded = np.full((160, 160, 3), 99, np.uint8)
    found = _evaluated(data, settings, padded)
    h, w = found.size
    alone = np.empty((h, w, 3), np.uint8)
    assert _evaluated(data, settings, alone).size == (h, w)
    np.testing.assert_array_equal(padded[:h, :w], alone)
    assert not padded[h:].any() and not padded[:, w:].any()
    assert found.key == 0 and len(found.classes) == len(found.boxes) == len(found.canvases) == len(found.frames) == 0


@FEW
@given(
    st.integers(1, 500), st.integers(1, 500), st.integers(1, 200), st.integers(1, 200), st.floats(0.05, 1),
    st.integers(0, 99),
)  # fmt: skip
def test_a_crop_keeps_its_share_lies_in_the_photo_and_fits_the_whole_photos_input(height, width, h, w, least, key):
    window = crop_window(height, width, h, w, SampleRng(0, 0, key), least)
    assert window.top >= 0 and window.left >= 0
    assert window.top + window.height <= height and window.left + window.width <= width
    assert window.height >= int(least * height) and window.width >= int(least * width)
    assert 1 <= window.resized_height <= h and 1 <= window.resized_width <= w
    assert window.resized_height == h or window.resized_width == w


def test_an_object_that_the_crop_leaves_too_little_of_is_dropped():
    window = CropWindow(0, 10, 100, 100, 200, 200)
    ltrb = np.array([(0, 0, 13, 40), (0, 0, 14, 40), (9.6, 0, 10.4, 40), (50, 50, 50.4, 90), (20, 20, 40, 60)])
    boxes, keep = clip_boxes_to_input(window, ltrb, flip=False)
    assert MIN_LEFT == 0.25  # of the first 3/13 are left, of the second 4/14
    assert keep.tolist() == [False, True, False, False, True]
    assert boxes[4].tolist() == [20, 40, 60, 120] and boxes[1].tolist() == [0, 0, 8, 80]
    assert clip_boxes_to_input(window, ltrb, flip=True)[0][4].tolist() == [140, 40, 180, 120]


def test_only_the_wanted_objects_come_and_none_is_an_empty_sample():
    scene = _scene(100, 100, [(5, 5, 30, 30), (40, 40, 30, 30), (60, 10, 30, 30)])
    _, objects = _read(scene, rows=[2, 0])
    assert objects.classes.tolist() == [3, 1] and objects.classes.dtype == np.int64
    assert objects.boxes.dtype == np.float32 and objects.key == 5
    _, objects = _read(scene, rows=[])
    assert objects.canvases.shape == (0, CANVAS + 2, CANVAS + 2)
    assert objects.boxes.shape == objects.frames.shape == (0, 4)


def test_a_box_beyond_the_photo_is_cut_at_its_border():
    _, objects = _read(_scene(96, 96, [(-10, 80, 40, 40)]))
    assert objects.boxes.tolist() == [[0, 80, 30, 96]]
    assert objects.frames.tolist() == [[0, 80, 1, 1]]
    assert objects.canvases[0, 1:17, 0].all()  # the ring repeats the photo's border


def test_geometry_does_not_depend_on_how_colours_are_treated_nor_on_the_padding():
    scene = _scene(100, 120, [(20, 20, 50, 50)])
    settings = dataclasses.replace(PLAIN, min_crop_scale=0.6, hflip=0.5)
    for key in range(6):
        plain = _read(scene, settings, key)[1]
        for kind in ("hsv", "matrix"):
            other, objects = _read(scene, dataclasses.replace(settings, color_jitter=kind), key)
            np.testing.assert_array_equal(objects.boxes, plain.boxes)
            np.testing.assert_array_equal(objects.canvases, plain.canvases)
            assert not other[objects.size[0] :].any() and not other[:, objects.size[1] :].any()


def test_the_key_is_the_samples_and_of_the_epoch():
    keys = {image_key(seed, epoch, index) for seed in (0, 1) for epoch in (0, 1) for index in range(50)}
    assert len(keys) == 200 and all(0 <= key < 2**32 for key in keys)
    assert image_key(0, 0, 0) != SampleRng(0, 0, 0).bits() >> 32


def test_a_photo_that_grew_since_the_data_was_prepared_is_named():
    data, split = _scene(50, 300, [])
    with pytest.raises(DataError, match=r"photo.jpg: its 300 x 50 pixels.*\n.*[Pp]repare"):
        _evaluated(data, PLAIN, np.zeros((160, 128, 3), np.uint8), "photo.jpg")
    with raises(DataError, "photo", "input size 128 x 160"):
        _sample(data, split, np.zeros(0, np.int64), 0, PLAIN, np.zeros((160, 128, 3), np.uint8))
    with raises(DataError, "photo", "decoded"):
        _sample(data[:60], split, np.zeros(0, np.int64), 0, PLAIN, np.zeros((160, 160, 3), np.uint8))


def test_an_evaluated_photo_brings_no_objects_of_the_usual_shapes():
    data, _ = _scene(96, 96, [(5, 5, 30, 30)])
    objects = _evaluated(data, PLAIN, np.zeros((96, 96, 3), np.uint8))
    assert objects.boxes.shape == objects.frames.shape == (0, 4)
