"""Copy-paste beside whole bitmaps: pixels, masks and boxes of both photos, what is dropped, and that the key alone decides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from pycocotools import mask as official
from stand_ins import InMemory
from test_instance_sample import CANVAS, _paste, _scene

from paceline.config.maskrcnn import InstanceInput
from paceline.data.batch import InstanceObjects, instance_batch
from paceline.data.loader.loader import Loader
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.image_io import read_header
from paceline.data.transforms.sample import decode_and_transform, with_partners
from paceline.models.maskrcnn.transforms import paste_objects, remove_covered, sample_instance_spec

# pycocotools' own.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
SETTINGS = InstanceInput(min_size=(96,), max_size=160, hflip=0.5, copy_paste_prob=1.0)
UNDER = _scene(96, 120, [(5, 5, 50, 40), (40, 30, 60, 60), (90, 3, 20, 20)])
OVER = _scene(110, 110, [(10, 20, 40, 30), (50, 10, 20, 70), (20, 70, 50, 30)])
ROWS = np.arange(3)


def _drawn(key: int, settings: InstanceInput = SETTINGS, over=OVER, under=UNDER):
    """-> the plain sample and the pasted one, as draws."""
    header, random = read_header(under[0], "under"), SampleRng(0, 0, key)
    rows = np.arange(len(under[1].boxes))
    plain = sample_instance_spec(header, "under", under[1], rows, random, 5, settings, 96, CANVAS, (160, 160))
    drawn = paste_objects(plain, 0, "over", over[1], np.arange(len(over[1].boxes)), random, settings, 96)
    if drawn.others:
        drawn = with_partners(drawn, lambda numbers: [over[0] for _ in numbers], "ignore")
    return plain, drawn


def _rendered(draw) -> np.ndarray:
    out = np.empty((160, 160, 3), np.uint8)
    decode_and_transform(UNDER[0], draw, out)
    return out


@pytest.mark.parametrize("more", [{}, {"scale_jitter": (0.4, 1.6), "vflip": 0.5}, {"min_crop_scale": 0.7}])
def test_pixels_masks_and_boxes_are_those_of_whole_bitmaps(more):
    taken, cut, dropped = set(), 0, 0
    for key in range(40):
        plain, drawn = _drawn(key, replace(SETTINGS, **more))
        if not drawn.others:
            assert drawn is plain
            taken.add(0)
            continue
        (other,) = drawn.others
        h, w = plain.label.size
        cover, picture = np.zeros((160, 160), bool), np.zeros((160, 160, 3), np.uint8)
        assert other.mask is not None and other.mask.shape[0] <= h and other.mask.shape[1] <= w
        cover[: other.mask.shape[0], : other.mask.shape[1]] = other.mask
        decode_and_transform(OVER[0], other.draw, picture)
        np.testing.assert_array_equal(_rendered(drawn), np.where(cover[..., None], picture, _rendered(plain)))

        pasted = other.draw.label
        taken.add(len(pasted.classes))
        union, before, after = np.zeros((h, w), bool), len(plain.label.classes), drawn.label
        for at in range(len(pasted.classes)):
            seen = _paste(pasted, at).astype(bool)
            union |= seen
        assert (union != cover[:h, :w]).sum() <= 0.03 * h * w  # canvases of large objects are coarser
        left = after.boxes[: len(after.boxes) - len(pasted.boxes)]
        np.testing.assert_array_equal(after.boxes[len(left) :], pasted.boxes)
        at = 0
        for number in range(before):
            whole = _paste(plain.label, number).astype(bool)
            rest = whole & ~cover[:h, :w]
            share = rest.sum() / whole.sum()
            if share < 0.25 - 0.05:
                dropped += 1
                continue
            if share < 0.25 + 0.05:
                break  # the canvas decides
            pitch = float(max(plain.label.frames[number, 2:]))
            assert (_paste(after, at).astype(bool) != rest).sum() <= (0 if pitch == 1 else 0.05 * whole.sum())
            ys, xs = np.nonzero(rest)
            expected = (
                (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
                if (whole & cover[:h, :w]).any()
                else plain.label.boxes[number]
            )
            np.testing.assert_allclose(after.boxes[at], expected, atol=1.01 if pitch == 1 else 1 + pitch)
            cut += rest.sum() < whole.sum()
            at += 1
        assert after.classes.dtype == np.int64 and after.boxes.dtype == after.frames.dtype == np.float32
    assert len(taken) > 2 and cut > 10


def test_the_pasted_pixels_are_pycocotools_masks_of_the_taken_objects():
    settings = replace(SETTINGS, hflip=0.0)
    scale = 96 / 110  # of the other photo, at this step's size
    for key in range(10):
        _, drawn = _drawn(key, settings)
        for other in drawn.others:
            corners = [(b * scale).tolist() for b, k in zip(_corners(), (1, 2, 3)) if k in other.draw.label.classes]
            wanted = official.decode(official.merge(official.frPyObjects(corners, 96, 96)))
            np.testing.assert_array_equal(other.mask, wanted.astype(bool))


def _corners() -> list[np.ndarray]:
    return list(OVER[1].polygon_points.reshape(3, 8))


def _objects(boxes: list[tuple[int, int, int, int]], size=(40, 50)) -> InstanceObjects:
    canvases = np.zeros((len(boxes), 18, 18), np.uint8)
    for canvas, (x0, y0, x1, y1) in zip(canvases, boxes):
        canvas[1 : 1 + y1 - y0, 1 : 1 + x1 - x0] = 1
    frames = np.array([(x0, y0, 1, 1) for x0, y0, _, _ in boxes], np.float32).reshape(-1, 4)
    return InstanceObjects(
        np.array(boxes, np.float32).reshape(-1, 4), np.ones(len(boxes), np.int64), canvases, frames, size, 7
    )


def test_hidden_objects_go_and_boxes_shrink_to_what_is_left():
    cover = np.zeros((30, 30), bool)
    cover[:, 10:20] = True
    found = remove_covered(_objects([(12, 3, 19, 9), (5, 3, 15, 9), (8, 20, 20, 30), (30, 3, 40, 9)]), cover)
    assert found.boxes.tolist() == [[5, 3, 10, 9], [30, 3, 40, 9]]  # of the third 2/12 are left
    assert found.canvases[0, 1:7, 1:6].all() and found.canvases[0].sum() == 30 and found.canvases[1].sum() == 60
    assert found.size == (40, 50) and found.key == 7
    assert remove_covered(_objects([]), cover).boxes.shape == (0, 4)


def test_nothing_to_paste_and_nothing_to_paste_on():
    empty = _scene(80, 80, [])
    plain, drawn = _drawn(0, over=empty)
    assert drawn is plain
    boxes_alone = OVER[0], replace(OVER[1], object_polygons=np.zeros(4, np.int64))
    plain, drawn = _drawn(0, over=boxes_alone)
    assert drawn is plain
    counts = [len(_drawn(key, under=_scene(96, 120, []))[1].label.classes) for key in range(10)]
    assert max(counts) > 1


def _loaded(threads: int, first: int = 0) -> list[torch.Tensor]:
    def draw(epoch, index, header, name):
        random = SampleRng(1, epoch, index)
        sample = sample_instance_spec(header, name, UNDER[1], ROWS, random, 5, SETTINGS, 96, CANVAS, (160, 160))
        return paste_objects(sample, 1, "over", replace(OVER[1], heights=OVER[1].heights.repeat(2), widths=OVER[1].widths.repeat(2)),
                     ROWS, random, SETTINGS, 96)  # fmt: skip

    with Loader(
        records=InMemory([UNDER[0], OVER[0]]), draw=draw, threads=threads, first_step=first, last_step=4,
        schedule=lambda step: [(np.arange(4 * step, 4 * step + 4), np.zeros(4, np.int64))],
        image_shape=(160, 160, 3), device=torch.device("cpu"), make_batch=instance_batch,
    ) as loader:  # fmt: skip
        return [part.clone() for _, (batch,) in loader for part in batch.tensors().values()]


def test_samples_depend_on_seed_epoch_and_photo_alone():
    once = _loaded(1)
    for other in (_loaded(3), _loaded(2, first=2)):
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(once[len(once) - len(other) :], other))
    assert not torch.equal(once[0][0], once[0][1])
