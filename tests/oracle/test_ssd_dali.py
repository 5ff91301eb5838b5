"""System A's input: outputs of DALI's own operators, recorded by scripts/originals/ssd_dali.py, beside recipes ssd-mlperf-*."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from two_samples import differ

from paceline.config.recipes.ssd import mlperf_1024
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.color_jitter import ColorJitter, apply_color_jitter
from paceline.data.transforms.crop import CropWindow, ssd_crop
from paceline.data.transforms.resample import resample_torch
from paceline.models.ops.boxes import SSD_CODER, to_cxcywh
from paceline.models.ops.matching import match, match_fixed
from paceline.models.registry import WORKLOADS
from paceline.models.ssd.transforms import clip_boxes_to_crop

RECIPE = mlperf_1024()


@pytest.fixture(scope="module")
def theirs() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).parent / "recorded" / "ssd_dali.npz") as file:
        return dict(file)


def test_colours_are_hsvs_and_brightness_contrasts_to_the_last_level(theirs) -> None:
    assert RECIPE.input.color_jitter == "dali" and RECIPE.input.hue == 0.5 / 360
    for number, (saturation, degrees, contrast, brightness) in enumerate(theirs["amounts"].astype(np.float64)):
        turned, out = (theirs["pictures"][number % 2].copy() for _ in range(2))
        apply_color_jitter(turned, ColorJitter("dali", (), 1.0, 0.0, 1.0, saturation, degrees / 360))
        np.testing.assert_array_equal(turned, theirs["turned"][number])
        apply_color_jitter(out, ColorJitter("dali", (), brightness, 0.0, contrast, saturation, degrees / 360))
        np.testing.assert_array_equal(out, theirs["jittered"][number])


def test_one_matrix_is_near_it_but_where_colours_are_cut_in_between(theirs) -> None:
    """What "matrix" is: at System A's half a degree within a level, except for pixels that leave 0..255 on the way."""
    apart = []
    for number, (saturation, degrees, contrast, brightness) in enumerate(theirs["amounts"][:14].astype(np.float64)):
        out = theirs["pictures"][number % 2].copy()
        apply_color_jitter(out, ColorJitter("matrix", (), brightness, 0.0, contrast, saturation, degrees / 360))
        apart.append(np.abs(out.astype(int) - theirs["jittered"][number]))
    assert np.mean(np.stack(apart) <= 1) > 0.97 and np.max(apart) > 3


def test_one_matrix_is_color_twist_to_a_level(theirs) -> None:
    """As NVIDIA's PyTorch submissions had it; DALI's last digits of YIQ are others."""
    for number, (saturation, degrees, contrast, brightness) in enumerate(theirs["amounts"][:14].astype(np.float64)):
        out = theirs["pictures"][number % 2].copy()
        apply_color_jitter(out, ColorJitter("matrix", (), brightness, 0.0, contrast, saturation, degrees / 360))
        apart = np.abs(out.astype(int) - theirs["twisted"][number])
        assert apart.max() <= 1 and np.mean(apart > 0) < 0.08


@pytest.mark.parametrize("name", ["one", "three"])
def test_crops_have_its_distribution_and_boxes_are_cut_as_its_own(theirs, name) -> None:
    """A photo of 4000 pixels makes our whole pixels fine enough to compare with fractions."""
    side, photo, ours = 4000, RECIPE.input, []
    objects, bounds, stays = (theirs[f"crop_{part}_{name}"] for part in ("objects", "bounds", "stays"))
    ltrb = side * objects.astype(np.float64)
    for draw in range(1000):
        window, keep = ssd_crop(side, side, ltrb, SampleRng(0, 0, draw), photo)
        ours.append((window.left, window.top, window.left + window.width, window.top + window.height, keep.sum()))
    mine = np.array(ours, np.float64) / (side, side, side, side, 1)
    whole = [(rows[:, :4] == (0, 0, 1, 1)).all(1) for rows in (bounds, mine)]
    assert abs(whole[0].mean() - whole[1].mean()) < 0.08
    for column in range(4):
        assert not differ(bounds[~whole[0], column], mine[~whole[1], column])
    assert abs(stays.sum(1).mean() - mine[:, 4].mean()) < 0.12
    kept = []
    for (left, top, right, bottom), keep in zip(bounds.astype(np.float64) * side, stays):
        window = CropWindow(top, left, bottom - top, right - left, 300, 300)  # type: ignore[arg-type]
        kept.append(clip_boxes_to_crop(window, ltrb, keep, False)[0][keep])
    np.testing.assert_allclose(np.concatenate(kept)[:300], theirs[f"crop_boxes_{name}"], atol=2e-6)


def test_an_overlap_of_just_the_threshold_is_enough_for_dali(theirs) -> None:
    """Ours, the reference's and TensorFlow's must be above it: docs/reference/known-differences.md has what that is worth."""
    assert (theirs["edge_bounds"] == (0, 0, 1, 1)).all() and (theirs["edge_stays"] == 1).all()


@pytest.mark.parametrize("form", ["rows that exist", "fixed shapes"])
@pytest.mark.parametrize("number", range(5))
def test_matching_is_box_encoders(theirs, number, form) -> None:
    """Small objects in boxes of one shape, coarse ones of equal overlap, equal objects: to the last default box."""
    model, detector = RECIPE.model, WORKLOADS["detection"].network.build(RECIPE, 1)
    assert detector.corners is not None and detector.order is not None
    boxes = torch.from_numpy(theirs[f"objects_{number}"])[None]
    labels = torch.arange(1, boxes.shape[1] + 1)[None]
    boxes, labels = torch.cat([boxes, torch.zeros(1, 2, 4)], 1), torch.cat([labels, torch.zeros(1, 2).long()], 1)
    if form == "fixed shapes":
        found = match_fixed(boxes, labels, detector.corners[detector.order], 0.5, "gt", "last", "last")
        slots, positives = (part[0, detector.order.argsort()] for part in found)
    else:
        rules = {"match_rule": model.match_rule, "tie": model.parity.tie, "order": detector.order, "equal": "last"}
        slots, positives = (part[0] for part in match(boxes, labels, detector.corners, **rules))
    assert positives.nonzero().flatten().tolist() == theirs[f"positive_{number}"].tolist()
    assert labels[0, slots[positives]].tolist() == theirs[f"class_{number}"].tolist()
    targets = SSD_CODER.encode(to_cxcywh(boxes[0, slots[positives]]), detector.anchors[positives])
    np.testing.assert_allclose(targets.numpy(), theirs[f"target_{number}"], atol=2e-5)


@pytest.mark.parametrize("size", [20, 44])
def test_a_photo_is_resized_as_its_resize_but_for_the_outermost_pixels(theirs, size) -> None:
    """There DALI goes on with the photo's last pixel, where torch and Pillow leave out what is beyond."""
    out = np.zeros((size, size, 3), np.uint8)
    resample_torch(theirs["photo"], CropWindow(0, 0, 37, 53, size, size), out, False)
    apart = np.abs(out.astype(int) - theirs[f"resized_{size}"])
    assert apart[1:-1, 1:-1].max() <= 1
