"""Samples of several photos, and photos on a larger canvas: boxes cover what they covered, and the key alone decides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from stand_ins import InMemory
from test_box_sample import BACKGROUND, BRIGHT, _encode, _training

from paceline._utils.errors import DataError
from paceline.config.ssd import BoxInput
from paceline.data.batch import DetectionBatch, detection_batch
from paceline.data.loader.loader import Loader
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.loader.sampler import batch_indices, stream_positions
from paceline.data.transforms.crop import CropWindow, clip_to_image
from paceline.data.transforms.image_io import Header, read_header
from paceline.data.transforms.sample import decode_and_transform, with_partners
from paceline.models.ssd.transforms import MosaicImage, sample_box_spec, sample_mosaic

SIDE = 120
STILL = BoxInput(image_size=SIDE, iou_crop="none", color_jitter="none", hflip=0.0)
MOVED = replace(STILL, hflip=0.5, vflip=0.5, rot90=0.75, mosaic_prob=1.0)
# Each photo has rectangles of a level of its own, so that a box's pixels tell whose it is.
SIZES = ((80, 120), (120, 120), (150, 60), (40, 50), (30, 30))


def _photo(number: int) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Three apart, in red, green and blue, of levels 100 + 30 * number; the last photo has none."""
    height, width = SIZES[number]
    pixels = np.full((height, width, 3), BACKGROUND, np.uint8)
    boxes = np.array([(0.1, 0.1, 0.3, 0.5), (0.5, 0.05, 0.4, 0.3), (0.45, 0.5, 0.5, 0.4)]) * (width, height, width, height)
    boxes = np.rint(boxes)[: 0 if number == len(SIZES) - 1 else 3]
    for k, (x, y, w, h) in enumerate(boxes.astype(int)):
        pixels[y : y + h, x : x + w, k] = 100 + 30 * number
    return _encode(pixels, "PNG"), boxes, np.arange(1, len(boxes) + 1)


PHOTOS = [_photo(number) for number in range(len(SIZES))]


def _draw(index: int, header: Header, name: str, random: SampleRng, settings: BoxInput):
    if not settings.mosaic_prob:
        return sample_box_spec(header, name, *PHOTOS[index][1:], random, settings)
    others = [random.integer(0, len(PHOTOS)) for _ in range(3)]
    photos = [MosaicImage(index, header, name, *PHOTOS[index][1:])]
    photos += [MosaicImage(k, Header(*SIZES[k], 0, False, 0), f"photo {k}", *PHOTOS[k][1:]) for k in others]
    return sample_mosaic(photos, random, settings)


def _mosaic(key: int, settings: BoxInput = MOVED):
    index, out = key % len(PHOTOS), np.full((SIDE, SIDE, 3), 99, np.uint8)
    draw = _draw(index, read_header(PHOTOS[index][0], "it"), "it", SampleRng(0, 0, key), settings)
    draw = with_partners(draw, lambda numbers: [PHOTOS[k][0] for k in numbers], "ignore")
    decode_and_transform(PHOTOS[index][0], draw, out)
    return out, draw


def test_each_box_of_a_mosaic_covers_its_object_and_all_parts_are_filled():
    counts = set()
    for key in range(60):
        out, draw = _mosaic(key)
        assert not (out == 99).all(axis=2).any()
        counts.add(len(draw.label.boxes))
        for box, k in zip(draw.label.boxes * SIDE, draw.label.classes):
            left, top, right, bottom = np.rint(box).astype(int)
            inner = out[top + 3 : bottom - 3, left + 3 : right - 3, k - 1]
            assert inner.size == 0 or inner.min() > 90, (key, box, k)
        covered = np.zeros((SIDE, SIDE), bool)
        for box in draw.label.boxes * SIDE:
            left, top, right, bottom = np.floor(box).astype(int)
            covered[max(0, top - 3) : bottom + 4, max(0, left - 3) : right + 4] = True
        # Bright pixels outside every box belong to objects whose centers were cut off.
        assert (out.max(axis=2) > 60)[~covered].mean() < 0.6 if (~covered).any() else True
    assert max(counts) > 5


def test_objects_that_a_mosaic_keeps_are_those_whose_centre_is_seen():
    for key in range(40):
        _, draw = _mosaic(key, replace(MOVED, hflip=0.0, vflip=0.0, rot90=0.0))
        expected = []
        for index, part in [(key % len(PHOTOS), draw), *((other.number, other.draw) for other in draw.others)]:
            top, left, height, width = part.window[:4]
            for (x, y, w, h), k in zip(*PHOTOS[index][1:]):
                if left < x + w / 2 < left + width and top < y + h / 2 < top + height:
                    expected.append(k)
            scale = part.window.resized_height / part.window.height / (SIDE / SIZES[index][0])
            assert 0.25 < scale < 1.1
        assert draw.label.classes.tolist() == expected


def test_no_photo_of_a_mosaic_has_an_object():
    nothing = MosaicImage(4, Header(*SIZES[4], 0, False, 0), "empty", *PHOTOS[4][1:])
    draw = sample_mosaic([nothing] * 4, SampleRng(0, 0, 0), MOVED)
    assert draw.label.boxes.shape == (0, 4) and draw.label.boxes.dtype == np.float32 and draw.label.classes.shape == (0,)


def test_another_photo_that_changed_its_size_is_refused_by_name():
    draw = _draw(0, read_header(PHOTOS[0][0], "it"), "it", SampleRng(0, 0, 3), MOVED)
    with pytest.raises(DataError, match=r"photo \d: .*size(.|\n)*Prepare"):
        with_partners(draw, lambda numbers: [_encode(np.zeros((7, 9, 3), np.uint8), "PNG") for _ in numbers], "ignore")


def _batches(settings: BoxInput, *, threads: int, first: int = 0, ranks: int = 1, fetch: int = 0):
    """(step, place) -> pixels and boxes, of steps `first` to 3 with 8 samples each, loaded as so many ranks would."""
    found = {}
    for rank in range(ranks):

        def schedule(step: int, rank: int = rank):
            epochs, indices = batch_indices(len(PHOTOS), stream_positions(step=step, global_batch_size=8), seed=1)
            mine = slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
            return [(epochs[mine], indices[mine])]

        def draw(epoch, index, header, name):
            return _draw(index, header, name, SampleRng(1, epoch, index), settings)

        with Loader(
            records=InMemory([photo[0] for photo in PHOTOS]), draw=draw, schedule=schedule, threads=threads, first_step=first,
            last_step=3, io_threads=fetch, image_shape=(SIDE, SIDE, 3), device=torch.device("cpu"), make_batch=detection_batch,
        ) as loader:  # fmt: skip
            for step, (batch,) in loader:
                assert isinstance(batch, DetectionBatch)
                for at in range(8 // ranks):
                    objects = batch.labels[at] > 0
                    found[step, rank * 8 // ranks + at] = batch.images[at].clone(), batch.boxes[at][objects].clone()
    return found


@pytest.mark.parametrize("more", [{"mosaic_prob": 1.0}, {"mosaic_prob": 0.0, "zoom_out_max": 4.0, "iou_crop": "ssd"}])
def test_samples_depend_on_seed_epoch_and_photo_alone(more):
    settings = replace(MOVED, color_jitter="hsv", **more)
    once = _batches(settings, threads=1)
    for other in (
        _batches(settings, threads=3),
        _batches(settings, threads=2, ranks=4),
        _batches(settings, threads=2, first=1),
        _batches(settings, threads=2, fetch=2),
    ):
        assert len(other) in (24, 16)
        assert all(torch.equal(mine, theirs) for key in other for mine, theirs in zip(once[key], other[key]))
    again = _batches(settings, threads=2)
    assert not torch.equal(once[0, 0][0], once[1, 2][0]) and torch.equal(once[0, 0][0], again[0, 0][0])


@examples(100)
@given(st.data())
def test_the_seen_part_of_a_photo_on_a_canvas_is_where_the_canvas_says(data):
    height, width = data.draw(st.integers(1, 50)), data.draw(st.integers(1, 50))
    tall, wide = height + data.draw(st.integers(0, 80)), width + data.draw(st.integers(0, 80))
    top, left = data.draw(st.integers(0, tall - height)), data.draw(st.integers(0, wide - width))
    # A region that holds some pixel of the photo.
    y, x = data.draw(st.integers(top, top + height - 1)), data.draw(st.integers(left, left + width - 1))
    y0, x0 = data.draw(st.integers(0, y)), data.draw(st.integers(0, x))
    y1, x1 = data.draw(st.integers(y + 1, tall)), data.draw(st.integers(x + 1, wide))
    flip = data.draw(st.booleans())
    window, place = clip_to_image(CropWindow(y0, x0, y1 - y0, x1 - x0, 60, 60), (top, left), height, width, flip)
    assert window.top >= 0 and window.top + window.height <= height and window.height > 0
    assert window.left >= 0 and window.left + window.width <= width and window.width > 0
    h, w = window.resized_height, window.resized_width
    assert h > 0 and w > 0 and 0 <= place[0] <= 60 - h and 0 <= place[1] <= 60 - w
    begins = (top + window.top - y0) * 60 / (y1 - y0)
    assert abs(place[0] - begins) <= 1 and abs(place[0] + h - begins - window.height * 60 / (y1 - y0)) <= 1
    across = (left + window.left - x0) * 60 / (x1 - x0)
    across = 60 - across - window.width * 60 / (x1 - x0) if flip else across
    assert abs(place[1] - across) <= 1
    if (top, left, tall, wide) == (0, 0, height, width):
        assert (window, place) == (CropWindow(y0, x0, y1 - y0, x1 - x0, 60, 60), (0, 0))


@pytest.mark.parametrize("crop", ["none", "ssd"])
def test_a_photo_zoomed_out_lies_in_the_mean_and_its_boxes_on_it(crop):
    pixels = np.full((90, 120, 3), BACKGROUND, np.uint8)
    pixels[18:63, 24:84, 0] = BRIGHT
    photo = _encode(pixels, "PNG"), np.array([(24.0, 18, 60, 45)]), np.array([1])
    settings, shares = replace(STILL, hflip=0.5, zoom_out_max=4.0, iou_crop=crop), []
    mean = [round(255 * share) for share in settings.mean]
    for key in range(60):
        out, objects = _training(photo, key, settings)
        beside = (out == mean).all(axis=2)
        shares.append(1 - beside.mean())
        seen = (out[..., 0] > 125) & (out[..., 1] < 60)
        ys, xs = np.nonzero(seen)
        np.testing.assert_allclose(objects.boxes[0] * SIDE, (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1), atol=2.5)
    assert 15 < sum(share == 1 for share in shares) < (60 if crop == "ssd" else 45) and min(shares) < 0.12


def test_zoom_out_without_objects_shows_the_whole_photo():
    data = _encode(np.full((30, 40, 3), BACKGROUND, np.uint8), "PNG")
    for key in range(20):
        out, objects = _training(
            (data, np.zeros((0, 4)), np.zeros(0, np.int64)), key, replace(STILL, zoom_out_max=4.0, iou_crop="ssd")
        )
        assert objects.boxes.shape == (0, 4) and (out == BACKGROUND).all(axis=2).sum() >= (SIDE / 4 - 1) ** 2
