"""Photos without an up: what a turn does to pixels, boxes, polygons and runs, and that all of it is drawn from the sample's key."""

from __future__ import annotations

import io

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from orientation import encode
from PIL import Image
from test_instance_sample import CANVAS, _paste, _sample, _scene
from test_mask_canvas import _masks, _runs

from paceline.config.maskrcnn import InstanceInput
from paceline.config.recipe import override
from paceline.config.recipes import RECIPES
from paceline.config.resnet import ImageInput
from paceline.config.ssd import BoxInput
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.crop import CropWindow
from paceline.data.transforms.decode import SampleSpec
from paceline.data.transforms.exif import UPRIGHT, compose_orientations, rotate_boxes, rotate_pixels, rotate_points
from paceline.data.transforms.image_io import read_header
from paceline.data.transforms.sample import decode_and_transform, sample_orientation, sample_training_spec
from paceline.models.batch_shapes import AspectBuckets, ImageSizes
from paceline.models.maskrcnn.mask_targets import make_canvases
from paceline.models.ssd.transforms import sample_box_spec

ALL = range(1, 9)


def test_turning_twice_is_one_turn():
    pixels = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    for first in ALL:
        for then in ALL:
            wanted = rotate_pixels(rotate_pixels(pixels, first), then)
            np.testing.assert_array_equal(rotate_pixels(pixels, compose_orientations(first, then)), wanted)


@given(st.sampled_from(ALL), st.integers(0, 5), st.integers(0, 8), st.integers(1, 4), st.integers(1, 4))
def test_a_turned_box_covers_the_pixels_that_the_box_covered(turn, top, left, h, w):
    pixels = np.zeros((9, 12, 3), np.uint8)
    pixels[top : top + h, left : left + w] = 255
    boxes = np.array([(left, top, left + w, top + h)], np.float64)
    x0, y0, x1, y1 = rotate_boxes(boxes, turn, 9, 12)[0].astype(int)
    shown = rotate_pixels(pixels, turn)
    assert shown[y0:y1, x0:x1].all() and shown.sum() == pixels.sum() == 3 * 255 * (y1 - y0) * (x1 - x0)
    assert rotate_boxes(np.zeros((0, 4)), turn, 9, 12).shape == (0, 4)


@examples(40)
@given(st.sampled_from(ALL), st.booleans(), st.integers(0, 2**32 - 1), st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_masks_of_a_turned_photo_are_the_turned_masks(turn, flip, seed, size):
    random = np.random.default_rng(seed)
    bitmap = (random.random((20, 30)) < 0.1).astype(np.uint8)
    polygon = random.uniform(-3, 30, (5, 2))
    shown = rotate_pixels(bitmap[..., None].repeat(3, 2), turn)[..., 0]
    height, width = shown.shape
    boxes = rotate_boxes(np.array([(2.0, 3, 9, 8)] * 3), turn, 20, 30)
    window = CropWindow(height // 4, width // 5, height // 2, width // 2, *size)
    rows = np.arange(3)
    found = make_canvases(
        _masks([_runs(bitmap), [polygon], []]), rows, boxes, photo=(20, 30), turn=turn, window=window, flip=flip, side=8
    )
    moved = rotate_points(polygon, turn, 20, 30)
    wanted = make_canvases(
        _masks([_runs(shown), [moved], []]), rows, boxes, photo=(height, width), window=window, flip=flip, side=8
    )
    for mine, theirs in zip(found, wanted):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("noted", [1, 6, 7])
def test_a_turned_sample_is_the_sample_turned_whatever_its_exif_says(noted):
    pixels = np.random.default_rng(1).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    data = encode(Image.fromarray(pixels), noted, "PNG")
    header = read_header(data, "it", "apply")
    straight = rotate_pixels(pixels, noted)
    for turn in ALL:
        shown = header.turned(turn)
        window = CropWindow(0, 0, shown.height, shown.width, shown.height, shown.width)
        settings = InstanceInput(exif="apply")
        out = np.empty((shown.height, shown.width, 3), np.uint8)
        decode_and_transform(data, SampleSpec("it", shown, window, None, decoder=settings.decoder), out)
        np.testing.assert_array_equal(out, rotate_pixels(straight, turn))


def test_boxes_lie_where_their_objects_are_seen_and_every_way_up_comes():
    pixels = np.full((100, 100, 3), 20, np.uint8)
    pixels[10:30, 60:90, 0] = 230
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    data, boxes = file.getvalue(), np.array([(60.0, 10, 30, 20)])
    settings, seen = BoxInput(image_size=100, iou_crop="none", hflip=0.0, color_jitter="none", vflip=0.5, rot90=0.75), set()
    for key in range(60):
        out = np.empty((100, 100, 3), np.uint8)
        random = SampleRng(0, 0, key)
        draw = sample_box_spec(read_header(data, "it"), "it", boxes, np.array([1]), random, settings)
        decode_and_transform(data, draw, out)
        left, top, right, bottom = np.rint(draw.label.boxes[0] * 100).astype(int)
        assert (out[top:bottom, left:right, 0] == 230).all() and (out[..., 0] == 230).sum() == 600
        seen.add((left, top, right, bottom))
    assert len(seen) == 8


def test_masks_lie_where_their_objects_are_seen():
    scene = _scene(60, 96, [(5, 10, 30, 12), (50, 20, 40, 35)])
    settings = InstanceInput(min_size=(96,), max_size=160, vflip=0.5, rot90=0.75)
    turned = 0
    for key in range(30):
        out = np.zeros((160, 160, 3), np.uint8)
        objects = _sample(*scene, np.arange(2), key, settings, out)
        turned += objects.size[0] > objects.size[1]
        for at, k in enumerate(objects.classes.tolist()):
            seen = out[: objects.size[0], : objects.size[1], k - 1] > 125
            left, top, right, bottom = objects.boxes[at].tolist()
            assert (seen != _paste(objects, at)).sum() <= 3 * 2 * (right - left + bottom - top)
    assert 5 < turned < 25 and CANVAS > 1
    objects = _sample(*scene, np.arange(0), 3, settings, np.zeros((160, 160, 3), np.uint8))
    assert objects.boxes.shape == (0, 4)


def test_a_photo_of_a_class_is_turned_before_its_crop():
    file = io.BytesIO()
    Image.fromarray(np.zeros((30, 40, 3), np.uint8)).save(file, "PNG")
    header = read_header(file.getvalue(), "it")
    settings = ImageInput(image_size=16, rot90=1.0)
    sizes = {sample_training_spec(header, "it", 0, SampleRng(0, 0, key), settings).header[:2] for key in range(30)}
    assert sizes == {(30, 40), (40, 30)}


def test_what_is_off_draws_nothing_and_probabilities_are_met():
    random = SampleRng(1, 2, 3)
    assert sample_orientation(random, 0.0, 0.0) == UPRIGHT and random.bits() == SampleRng(1, 2, 3).bits()
    counts = np.bincount([sample_orientation(SampleRng(0, 0, key), 0.5, 0.75) for key in range(8000)], minlength=9)
    assert (abs(counts[1:] - 1000) < 150).all()


def test_inputs_hold_photos_that_may_lie_on_their_side():
    recipe = RECIPES["maskrcnn"]()
    heights, widths = np.array([480, 640, 500, 480]), np.array([640, 480, 500, 640])
    sizes = ImageSizes(heights, widths, np.arange(4))
    plain, turned = (AspectBuckets(override(recipe, {"input.rot90": p}), sizes, ImageSizes(*sizes)) for p in (0.0, 0.5))
    for number in range(4):
        shape = plain.of_sample(number).shape
        needed = turned.of_sample(number).shape
        assert min(needed) >= max(shape)
    assert [part[1] for part in plain.evaluation(np.arange(4), 2)[0]] == [
        part[1] for part in turned.evaluation(np.arange(4), 2)[0]
    ]
