"""Large-scale jitter: torchvision's arithmetic of boxes, pixels and masks that agree, and what is too small to stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from test_instance_sample import BACKGROUND, BRIGHT, PLAIN, _paste, _sample, _scene
from torchvision.transforms.v2 import functional as F
from torchvision.tv_tensors import BoundingBoxes, BoundingBoxFormat

from paceline.data.loader.sample_rng import SampleRng
from paceline.models.maskrcnn.transforms import clip_boxes_to_input, scaled_window

WIDE = replace(PLAIN, scale_jitter=(0.1, 2.0))
_SIDE = st.integers(1, 400)


@examples(60)
@given(_SIDE, _SIDE, st.integers(1, 200), st.integers(1, 200), st.integers(0, 2**32))
def test_a_window_lies_in_the_photo_fits_the_input_and_has_the_drawn_factor(height, width, h, w, key):
    window = scaled_window(height, width, h, w, SampleRng(0, 0, key), (0.1, 2.0))
    assert window.top >= 0 and window.top + window.height <= height
    assert window.left >= 0 and window.left + window.width <= width
    assert 1 <= window.resized_height <= h and 1 <= window.resized_width <= w
    factor = SampleRng(0, 0, key).uniform(0.1, 2.0)
    if factor > 1:
        assert (window.resized_height, window.resized_width) == (h, w)
    for region, resized, whole, side in zip(window[2:4], window[4:6], (height, width), (h, w)):
        if min(region, resized) > 5:
            assert resized / region == pytest.approx(factor * side / whole, rel=0.6 / min(region, resized))


@examples(60)
@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_boxes_are_those_of_torchvision_s_resize_and_fixed_size_crop(key, seed):
    height, width, h, w = 300, 420, 150, 210
    random = np.random.default_rng(seed)
    low = random.uniform(0, 0.9, (6, 2)) * (width, height)
    ltrb = np.concatenate((low, np.minimum(low + random.uniform(1, 200, (6, 2)), (width, height))), axis=1)
    window = scaled_window(height, width, h, w, SampleRng(0, 0, key), (0.1, 2.0))
    mine, keep = clip_boxes_to_input(window, ltrb, flip=False)
    # The whole photo at the window's scale, whole pixels; then the crop, and the clamp to it.
    size = [round(height * window.resized_height / window.height), round(width * window.resized_width / window.width)]
    theirs = BoundingBoxes(torch.from_numpy(ltrb), format=BoundingBoxFormat.XYXY, canvas_size=(height, width))  # pyright: ignore[reportCallIssue]
    theirs = F.resize(theirs, size)
    top, left = window.top * size[0] / height, window.left * size[1] / width
    theirs = torch.as_tensor(theirs) - torch.tensor((left, top, left, top))
    cut = theirs.clamp(min=0).minimum(torch.tensor((window.resized_width, window.resized_height) * 2))
    np.testing.assert_allclose(mine, cut.numpy(), atol=1.0)  # the photo's whole pixels and the input's
    sides, before = (cut[:, 2:] - cut[:, :2]).numpy(), (theirs[:, 2:] - theirs[:, :2]).numpy()
    share = sides.prod(axis=1) / before.prod(axis=1)
    clear = (abs(share - 0.25) > 0.05) & (abs(sides - 1).min(axis=1) > 0.5)
    np.testing.assert_array_equal(keep[clear], ((share >= 0.25) & (sides >= 1).all(axis=1))[clear])


def test_masks_and_boxes_lie_where_the_objects_are_seen_at_every_scale():
    scene = _scene(120, 150, [(15, 12, 60, 60), (45, 48, 90, 60), (90, 24, 30, 24)])
    heights, counts = set(), set()
    for key in range(40):
        out = np.full((160, 160, 3), 99, np.uint8)
        objects = _sample(*scene, np.arange(3), key, replace(WIDE, hflip=0.5), out)
        h, w = objects.size
        assert h <= 96 and w <= 120 and not out[h:].any() and not out[:, w:].any()
        for at, k in enumerate(objects.classes.tolist()):
            seen = out[:h, :w, k - 1] > (BACKGROUND + BRIGHT) / 2
            left, top, right, bottom = objects.boxes[at].tolist()
            assert (seen != _paste(objects, at)).sum() <= 4 * 2 * (right - left + bottom - top)
        heights.add(h)
        counts.add(len(objects.classes))
    assert min(heights) < 20 and max(heights) == 96 and len(counts) > 1


def test_an_object_that_fills_the_photo_is_in_every_sample():
    scene, close = _scene(120, 150, [(0, 0, 150, 120)]), replace(PLAIN, scale_jitter=(3.0, 3.0))
    for key in range(10):
        objects = _sample(*scene, np.arange(1), key, close, np.zeros((160, 160, 3), np.uint8))
        assert objects.boxes.tolist() == [[0, 0, 120, 96]]


def test_a_photo_without_objects_and_one_whose_objects_all_become_too_small():
    empty = _sample(*_scene(120, 150, []), np.arange(0), 1, WIDE, np.zeros((160, 160, 3), np.uint8))
    assert empty.boxes.shape == (0, 4)
    tiny = replace(PLAIN, scale_jitter=(0.1, 0.1))
    none = _sample(*_scene(120, 150, [(3, 3, 6, 6)]), np.arange(1), 1, tiny, np.zeros((160, 160, 3), np.uint8))
    assert none.size == (10, 12) and none.boxes.shape == (0, 4) and none.canvases.shape[0] == 0
