"""A sample's pixels and boxes: that they agree, and that both depend on the sample's key alone."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from drawn import some
from hypothesis import given
from hypothesis import strategies as st
from messages import raises
from PIL import Image
from stand_ins import InMemory

from paceline._utils.errors import DataError
from paceline.config.ssd import BoxInput
from paceline.data.batch import detection_batch
from paceline.data.loader.loader import Loader
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.crop import CropWindow
from paceline.data.transforms.decode import SampleSpec
from paceline.data.transforms.image_io import Header, read_header
from paceline.data.transforms.sample import decode_and_transform
from paceline.models.ssd.transforms import MIN_SIDE, clip_boxes_to_crop, clip_to_edges, evaluation_box_spec, sample_box_spec

PLAIN = BoxInput(color_jitter="none")
NOTHING = (np.zeros((0, 4)), np.zeros(0, np.int32))
# Pure colors far from the background, so that a class is found by its channel: class 1 red, 2 green, 3 blue.
BACKGROUND, BRIGHT = 20, 230


def _encode(pixels: np.ndarray, kind: str = "JPEG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **({"quality": 98, "subsampling": 0} if kind == "JPEG" else {}))
    return file.getvalue()


def _scene(height: int, width: int, rectangles: dict[int, tuple[int, int, int, int]], kind: str = "JPEG"):
    """-> (encoded photo, boxes xywh, classes): class k is a rectangle x, y, w, h, bright in channel k - 1."""
    pixels = np.full((height, width, 3), BACKGROUND, np.uint8)
    for k, (x, y, w, h) in rectangles.items():
        pixels[y : y + h, x : x + w, k - 1] = BRIGHT
    return _encode(pixels, kind), np.array(list(rectangles.values()), np.float64), np.array(list(rectangles), np.int32)


def _training(photo, key: int = 0, settings: BoxInput = PLAIN, epoch: int = 0):
    out = np.empty((settings.image_size, settings.image_size, 3), np.uint8)
    data, boxes, classes = photo
    header = read_header(data, "photo")
    draw = sample_box_spec(header, "photo", boxes, classes, SampleRng(0, epoch, key), settings)
    decode_and_transform(data, draw, out)
    return out, draw.label


def _evaluated(data: bytes, settings: BoxInput) -> np.ndarray:
    out = np.empty((300, 300, 3), np.uint8)
    draw = evaluation_box_spec(read_header(data, "photo"), "photo", settings)
    assert draw.label.boxes.shape == (0, 4) and draw.color is None and not draw.flip
    decode_and_transform(data, draw, out)
    return out


def _found(channel: np.ndarray) -> np.ndarray:
    """left, top, right, bottom of what is bright, in pixels of the output; between two pixels by their brightness."""
    share = np.clip((channel.astype(np.float64) - BACKGROUND) / (BRIGHT - BACKGROUND), 0, 1)
    sides = []
    for axis in (0, 1):
        profile = share.max(axis=axis)
        bright = np.flatnonzero(profile > 0.5)
        sides.append((bright[0], bright[-1] + 1))
    (left, right), (top, bottom) = sides
    return np.array([left, top, right, bottom], np.float64)


@pytest.mark.parametrize("law", ["bilinear-antialias", "bilinear"])
@pytest.mark.parametrize(("height", "width", "kind"), [(480, 640, "JPEG"), (1500, 1300, "JPEG"), (200, 150, "PNG")])
def test_every_object_is_where_its_box_says_and_none_is_given_twice(height, width, kind, law):
    unit_y, unit_x = height // 20, width // 20
    photo = _scene(
        height,
        width,
        {
            1: (2 * unit_x, 3 * unit_y, 9 * unit_x, 11 * unit_y),
            2: (9 * unit_x, 1 * unit_y, 9 * unit_x, 9 * unit_y),
            3: (6 * unit_x, 8 * unit_y, 12 * unit_x, 9 * unit_y),
        },
        kind,
    )
    settings = dataclasses.replace(PLAIN, resize=law)
    counts, lefts = set(), set()
    for key in range(40):
        out, objects = _training(photo, key, settings)
        assert objects.boxes.dtype == np.float32 and objects.classes.dtype == np.int64
        assert len(set(objects.classes.tolist())) == len(objects.classes) == len(objects.boxes)
        for box, k in zip(objects.boxes, objects.classes):
            channel = out[:, :, k - 1]
            # An edge is blurred over the output pixels of one input pixel, and DCT scaling rounds by up to one more.
            np.testing.assert_allclose(_found(channel), box * settings.image_size, atol=2.5)
        counts.add(len(objects.classes))
        lefts.add(round(float(objects.boxes[0, 0]), 3))
    assert counts >= {1, 3} and len(lefts) > 5


def test_the_flip_mirrors_pixels_and_boxes_alike():
    photo = _scene(300, 300, {1: (30, 60, 90, 150)})
    plain = dataclasses.replace(PLAIN, iou_crop="none", hflip=0.0)
    straight, mirrored = _training(photo, 0, plain), _training(photo, 0, dataclasses.replace(plain, hflip=1.0))
    np.testing.assert_array_equal(mirrored[0], straight[0][:, ::-1])
    np.testing.assert_allclose(straight[1].boxes, [[0.1, 0.2, 0.4, 0.7]], atol=1e-6)
    np.testing.assert_allclose(mirrored[1].boxes, [[0.6, 0.2, 0.9, 0.7]], atol=1e-6)


_SHARE = st.floats(-0.2, 1.2)


@given(
    st.lists(st.tuples(_SHARE, _SHARE, st.floats(0, 1.4), st.floats(0, 1.4)), max_size=8),
    st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(1, 50), st.integers(1, 50)),
    st.booleans(),
)
def test_boxes_that_stay_lie_inside_have_two_sides_and_finite_logarithms(shares, region, flip):
    ltrb = clip_to_edges(np.array(shares, np.float64).reshape(-1, 4) * 100, 100, 100)
    window = CropWindow(*region, 300, 300)
    fractions, keep = clip_boxes_to_crop(window, ltrb, np.ones(len(shares), bool), flip)
    stay = fractions[keep].astype(np.float32)
    assert ((stay >= 0) & (stay <= 1)).all()
    sides = stay[:, 2:] - stay[:, :2]
    assert (sides > MIN_SIDE / 2).all() and np.isfinite(np.log(sides)).all()
    for box, fraction in zip(ltrb[keep], fractions[keep]):  # and they are the same places of the photo
        left, right = (1 - fraction[2], 1 - fraction[0]) if flip else (fraction[0], fraction[2])
        assert window.left + left * window.width == pytest.approx(max(box[0], window.left), abs=1e-9)
        assert window.left + right * window.width == pytest.approx(min(box[2], window.left + window.width), abs=1e-9)
        assert window.top + fraction[1] * window.height == pytest.approx(max(box[1], window.top), abs=1e-9)
    again, kept = clip_boxes_to_crop(CropWindow(0, 0, 1, 1, 1, 1), fractions, keep, flip=True)
    twice, kept_twice = clip_boxes_to_crop(CropWindow(0, 0, 1, 1, 1, 1), again, kept, flip=True)
    np.testing.assert_allclose(twice, fractions, atol=1e-12)
    assert not (kept & ~keep).any() and kept_twice.shape == keep.shape


def test_a_box_that_clipping_leaves_next_to_nothing_of_is_dropped_with_its_class():
    data, _, _ = _scene(300, 300, {1: (30, 60, 90, 150)})
    boxes = np.array([(30.0, 60, 90, 150), (299.9, 10, 80, 80), (10, 10, 0.2, 50)])
    settings = dataclasses.replace(PLAIN, iou_crop="none", hflip=0.0)
    _, objects = _training((data, boxes, np.array([7, 8, 9])), 0, settings)
    assert objects.classes.tolist() == [7]
    np.testing.assert_allclose(objects.boxes, [[0.1, 0.2, 0.4, 0.7]], atol=1e-6)


def test_a_photo_without_objects_is_a_whole_photo_with_none():
    data, _, _ = _scene(90, 120, {1: (0, 0, 40, 40)})
    out, objects = _training((data, *NOTHING), 3, dataclasses.replace(PLAIN, hflip=0.0))
    assert objects.boxes.shape == (0, 4) and objects.classes.shape == (0,)
    np.testing.assert_array_equal(out, _evaluated(data, PLAIN))
    batch = detection_batch(torch.from_numpy(out).permute(2, 0, 1)[None], [objects], torch.zeros(1, dtype=torch.int64))
    assert not batch.labels.any()


def test_evaluation_sees_the_whole_photo_as_pillow_resizes_it():
    picture = np.random.default_rng(0).integers(0, 256, (31, 47, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
    data = _encode(picture)
    out = _evaluated(data, BoxInput())
    expected = Image.open(io.BytesIO(data)).convert("RGB").resize((300, 300), Image.Resampling.BILINEAR)
    assert np.abs(out.astype(int) - np.asarray(expected)).max() <= 2


@pytest.mark.parametrize("decoder", ["simplejpeg", "pillow"])
@pytest.mark.parametrize(("height", "width"), [(90, 130), (700, 1300)])
def test_bilinear_without_antialias_is_interpolate_of_the_full_photo(height, width, decoder):
    data = _encode(np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8))
    out = _evaluated(data, BoxInput(resize="bilinear", decoder=decoder))
    photo = torch.from_numpy(np.array(Image.open(io.BytesIO(data)).convert("RGB"))).permute(2, 0, 1)[None].double()
    expected = torch.nn.functional.interpolate(photo, (300, 300), mode="bilinear")[0].permute(1, 2, 0).numpy()
    assert np.abs(out - expected).max() <= 1.1


def test_where_a_crop_lies_does_not_depend_on_how_colours_are_treated():
    photo = _scene(240, 320, {1: (40, 30, 100, 120), 2: (120, 60, 150, 160)})
    for key in range(10):
        (plain, objects), *others = (
            _training(photo, key, BoxInput(color_jitter=kind)) for kind in ("none", "hsv", "matrix")
        )
        for pixels, found in others:
            np.testing.assert_array_equal(found.boxes, objects.boxes)
            assert not np.array_equal(pixels, plain)


@pytest.mark.parametrize("kind", ["hsv", "matrix"])
def test_samples_are_the_same_with_any_number_of_threads_and_differ_between_epochs(kind):
    photos = [_scene(120 + 10 * i, 160, {1: (20, 10, 60, 90), 2: (50, 40, 90, 60)}) for i in range(6)]
    settings = BoxInput(image_size=96, color_jitter=kind)

    def samples(threads: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        def draw(epoch: int, index: int, header: Header, name: str) -> SampleSpec:
            _, boxes, classes = photos[index]
            return sample_box_spec(header, name, boxes, classes, SampleRng(4, epoch, index), settings)

        with Loader(
            records=InMemory([data for data, _, _ in photos]),
            draw=draw,
            schedule=lambda step: [(np.full(6, step), np.arange(6))],
            threads=threads,
            last_step=3,
            image_shape=(96, 96, 3),
            device=torch.device("cpu"),
            make_batch=detection_batch,
        ) as loader:
            return [(b.images.clone(), b.boxes, b.labels) for _, [b] in loader]

    alone, together = samples(1), samples(4)
    for left, right in zip(alone, together):
        assert all(torch.equal(a, b) for a, b in zip(left, right))
    assert not torch.equal(alone[0][0], alone[1][0]) and not torch.equal(alone[0][1], alone[1][1])


@pytest.mark.nightly("decoding, which would start them, is looked at in test_decode.py by day")
def test_a_sample_made_in_a_thread_starts_no_other_threads(tmp_path):
    """In a process whose torch would use 4 intra-op threads."""
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("counts threads through /proc")
    path = tmp_path / "photo.jpg"
    path.write_bytes(_scene(700, 900, {1: (100, 100, 400, 400)})[0])
    script = """
import os, sys, threading
import numpy as np, torch
from paceline.config.ssd import BoxInput
from paceline.models.ssd.transforms import sample_box_spec
from paceline.data.transforms.sample import decode_and_transform
from paceline.data.transforms.image_io import read_header
from paceline.data.loader.sample_rng import SampleRng
torch.set_num_threads(4)
data, out = open(sys.argv[1], "rb").read(), np.empty((300, 300, 3), np.uint8)
boxes, classes = np.array([(100.0, 100, 400, 400)]), np.array([1])
counts = [len(os.listdir("/proc/self/task"))]
def work():
    for law in ("bilinear-antialias", "bilinear"):
        for kind in ("hsv", "matrix"):
            for key in range(4):
                settings = BoxInput(resize=law, color_jitter=kind)
                header, random = read_header(data, "it"), SampleRng(0, 0, key)
                decode_and_transform(data, sample_box_spec(header, "it", boxes, classes, random, settings), out)
    counts.append(len(os.listdir("/proc/self/task")))
thread = threading.Thread(target=work); thread.start(); thread.join()
assert counts[1] == counts[0] + 1, counts
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_broken_photo_is_named():
    data, boxes, classes = _scene(90, 120, {1: (0, 0, 40, 40)}, "PNG")
    with raises(DataError, "photo", "decoded"):
        _training((data[: len(data) // 2], boxes, classes))


def test_real_photos_give_objects_in_most_crops(shared_data, seed):
    """Every crop keeps an object unless all that stay are thinner than MIN_SIDE."""
    import json

    told = json.loads((shared_data / "coco_mini/annotations/instances_train2017.json").read_text())
    for entry in some(told["images"], 12, seed):
        rows = [row for row in told["annotations"] if row["image_id"] == entry["id"]]
        data = (shared_data / "coco_mini/train2017" / entry["file_name"]).read_bytes()
        boxes = np.array([row["bbox"] for row in rows], np.float64).reshape(-1, 4)
        classes = np.array([row["category_id"] for row in rows], np.int32)
        for key in range(3):
            _, objects = _training((data, boxes, classes), key, BoxInput())
            assert (len(objects.classes) > 0) == (len(classes) > 0)
            assert set(objects.classes.tolist()) <= set(classes.tolist())
            assert all(math.isfinite(value) for value in objects.boxes.ravel())


def test_boxes_are_cut_at_their_own_side_of_the_border():
    boxes = np.array([[5, 6, 100, 100], [50, 60, 5, 5], [-4, -3, 10, 20]])
    assert clip_to_edges(boxes, height=20, width=30).tolist() == [[5, 6, 30, 20], [30, 20, 30, 20], [0, 0, 6, 17]]
