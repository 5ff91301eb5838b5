"""What Mask R-CNN learns from under the MLPerf reference's rules, and how fast, against what its own code said."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mlperf_recorded import PHOTOS, inputs, masks_of, outside, recorded, tensor

from paceline.config.recipes import RECIPES
from paceline.config.schedule import Schedule, learning_rate
from paceline.data.transforms.crop import CropWindow
from paceline.models.batch_shapes import resized_size
from paceline.models.maskrcnn.mask_targets import make_canvases
from paceline.models.maskrcnn.transforms import clip_boxes_to_input
from paceline.models.ops.roi_align import mask_targets

MASK = RECIPES["maskrcnn"]().model.mask
FLIPPED = (1, 3)


def objects(photo: int) -> tuple[np.ndarray, tuple[int, int], CropWindow]:
    """Boxes (n, 4) ltrb in the photo, its height and width, and the whole of it at the size that the reference gives it."""
    height, width, *size = recorded()[f"photo{photo}_size"].tolist()
    xywh = recorded()[f"photo{photo}_xywh"].astype(np.float64)
    ltrb = np.concatenate((xywh[:, :2], xywh[:, :2] + xywh[:, 2:]), axis=1)
    return ltrb, (height, width), CropWindow(0, 0, height, width, *size)


def test_the_schedule_can_say_the_references_rates_to_the_last_bit_of_float32() -> None:
    """Its scheduler steps before an iteration's forward: iteration 0 is one step up the ramp, a decay one iteration early."""
    for iteration, (weights, biases) in zip(recorded()["lr_reference_iterations"].tolist(), recorded()["lr_reference"]):
        ours = learning_rate(
            Schedule("multistep", warmup_start_factor=1 / 3), iteration, peak=0.02, warmup_steps=500, total_steps=90_000,
            boundaries=(59_999, 79_999),
        )  # fmt: skip
        assert ours == pytest.approx(weights, rel=1e-12)
        assert 2 * ours == pytest.approx(biases, rel=1e-12)


def test_the_schedule_can_say_nvidias_ramp_of_the_weights() -> None:
    """Their biases' ramp has the same steps from a higher start, where ours is as long and twice as steep."""
    peak, warmup = 0.12, 625
    start = 1 - warmup * 1.92e-4 / peak
    found = recorded()["lr_nvidia_96"]
    for iteration, (weights, biases) in zip(recorded()["lr_nvidia_96_iterations"].tolist(), found):
        ours = learning_rate(
            Schedule("multistep", warmup_start_factor=start), iteration, peak=peak, warmup_steps=warmup, total_steps=40_000,
            boundaries=(11_999, 15_999),
        )  # fmt: skip
        assert ours == pytest.approx(weights, rel=1e-9, abs=1e-15)
        assert biases - weights == pytest.approx(0.12 * 0.1 ** (np.searchsorted((11_999, 15_999), iteration, "right")))


def test_photos_become_the_references_size_or_one_pixel_off() -> None:
    """It computes the shorter side first, rounds it where the longer one is the limit, and the longer side from it."""
    ours = np.array([resized_size(height, width, 800, 1333) for height, width in recorded()["sizes"].tolist()])
    apart = np.abs(ours - recorded()["resized"]).max(axis=1)
    assert apart.max() == 1
    assert (apart > 0).mean() < 0.15


@pytest.mark.parametrize("photo", PHOTOS)
def test_boxes_are_the_references_but_for_the_pixel_that_it_counts_along(photo: int) -> None:
    """It scales the last pixel inside, we the edge: so the edges lie apart by the scale less one pixel, and by nothing else."""
    ltrb, (height, width), window = objects(photo)
    ours, keep = clip_boxes_to_input(window, ltrb, photo in FLIPPED)
    assert keep.all()
    theirs = outside(recorded()[f"photo{photo}_boxes"]).numpy()
    apart = ours - theirs
    scale = np.array([window.resized_width / width, window.resized_height / height]) - 1
    near, far = np.array([0.0, 0.0]), scale
    if photo in FLIPPED:
        near, far = np.array([-scale[0], 0.0]), np.array([0.0, scale[1]])
    # In the photo the reference cuts at its last pixel; an object may reach it.
    inner = (ltrb[:, 2] <= width) & (ltrb[:, 3] <= height)
    assert np.abs(apart[inner] - np.concatenate((near, far))).max() < 1e-3


@pytest.mark.parametrize(("photo", "bound"), [(0, 0.009), (1, 0.008), (2, 0.02), (3, 0.009)], ids=PHOTOS)
def test_mask_targets_are_the_references_but_for_points_at_the_edge(photo: int, bound: float) -> None:
    """It rasterizes polygons at 28 x 28, ours are a half of what they cover: every point that differs lies at an edge."""
    ltrb, size, window = objects(photo)
    canvases, frames = make_canvases(
        masks_of(photo),
        np.arange(len(ltrb)),
        ltrb,
        photo=size,
        window=window,
        flip=photo in FLIPPED,
        side=MASK.target_buffer_size,
    )
    of, regions = torch.arange(len(ltrb)).repeat(2), tensor(f"photo{photo}_regions")
    if photo in FLIPPED:  # the reference leaves a flipped photo's polygons a pixel further left than its pixels
        regions = regions + torch.tensor([1.0, 0.0, 1.0, 0.0])
    found = mask_targets(
        torch.from_numpy(canvases)[of], torch.from_numpy(frames)[of], regions, side=inputs().MASK_SIDE, target=MASK.target
    )
    side = inputs().MASK_SIDE
    theirs = np.unpackbits(recorded()[f"photo{photo}_targets"])[: found.numel()].reshape(-1, side, side)
    theirs = torch.from_numpy(theirs).float()
    differ = found != theirs
    around = torch.nn.functional.pad(theirs.unsqueeze(1), (1, 1, 1, 1), mode="replicate")
    least, most = -torch.nn.functional.max_pool2d(-around, 3, 1), torch.nn.functional.max_pool2d(around, 3, 1)
    assert ((least < most).squeeze(1) | ~differ).float().mean() > 0.999
    assert differ.float().mean() < bound
