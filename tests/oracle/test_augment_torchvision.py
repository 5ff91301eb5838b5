"""Augmentation beside torchvision's: ranges, and pixels of the same operation of the same magnitude."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode, RandAugment, RandomErasing, TrivialAugmentWide, autoaugment, v2

from paceline.config.resnet import ImageInput
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.augment import OPERATIONS, SIGNED, apply_augmentation, sample_augmentation

SIDE = 96
SPACES = {
    "trivialaugment": TrivialAugmentWide()._augmentation_space(31),
    "randaugment": RandAugment()._augmentation_space(31, (SIDE, SIDE)),
}


def _photo() -> np.ndarray:
    """Smooth colors over most of the range, with noise and a flat corner."""
    y, x = np.mgrid[0:SIDE, 0:SIDE].astype(np.float64)
    waves = [120 + 80 * np.sin((x * (c + 1) + y * (3 - c)) / 23.0 + c) for c in range(3)]
    pixels = np.stack(waves, axis=2) + np.random.default_rng(0).normal(0, 12, (SIDE, SIDE, 3))
    pixels[:20, :20] = 17
    return np.clip(pixels, 9, 240).astype(np.uint8)


def _draws(kind, count):
    for key in range(count):
        drawn = sample_augmentation(SampleRng(3, 0, key), ImageInput(image_size=SIDE, auto_augment=kind))
        assert drawn is not None and len(drawn.changes) == (1 if kind == "trivialaugment" else 2)
        yield drawn


@pytest.mark.parametrize("kind", ["trivialaugment", "randaugment"])
def test_operations_are_torchvisions_drawn_alike_often_with_its_magnitudes(kind):
    assert list(SPACES[kind]) == list(OPERATIONS)
    seen: dict[str, list[float]] = {name: [] for name in OPERATIONS}
    for drawn in _draws(kind, 16_800 if kind == "trivialaugment" else 8400):
        for change in drawn.changes:
            seen[change.operation].append(change.magnitude)
    for name, (space, signed) in SPACES[kind].items():
        assert abs(len(seen[name]) - 1200) < 170, name  # 1,200 of 16,800 expected, deviation 33
        theirs = space if kind == "trivialaugment" or space.ndim == 0 else space[9]
        signs = (-1.0, 1.0) if signed else (1.0,)
        expected = {sign * float(at) for at in theirs.reshape(-1) for sign in signs}
        assert signed == (name in SIGNED)
        assert all(min(abs(found - at) for at in expected) < 1e-4 for found in seen[name]), name
        assert all(min(abs(found - at) for found in seen[name]) < 1e-4 for at in expected), name
        if name.startswith("Translate"):
            # Half of trivial's 32 pixels is a hair below 16 in torchvision's 32 bits, which moves by 15 there.
            assert {int(found) for found in seen[name]} == {int(at * (1 + 1e-7)) for at in expected}
        if signed:
            assert abs(sum(np.sign(seen[name]))) < 170


@pytest.mark.parametrize("kind", ["trivialaugment", "randaugment"])
def test_pixels_are_torchvisions_of_the_operations_that_were_drawn(kind):
    newer = v2.TrivialAugmentWide() if kind == "trivialaugment" else v2.RandAugment()
    photo, seen = _photo(), set()
    for drawn in _draws(kind, 150):
        out = photo.copy()
        apply_augmentation(out, drawn)
        expected: Any = torch.from_numpy(photo).permute(2, 0, 1).contiguous()
        for name, magnitude in drawn.changes:
            # There Solarize's magnitude is a share of the range.
            theirs = name, magnitude / 255 if name == "Solarize" else magnitude
            before: Any = expected
            plain: Any = {torch.Tensor: None}
            expected = newer._apply_image_or_video_transform(before, *theirs, InterpolationMode.NEAREST, plain)
            # The older functions blend levels in another order.
            older = autoaugment._apply_op(before, name, magnitude, InterpolationMode.NEAREST, None)
            most = 1 if name in ("Brightness", "Color", "Contrast", "Sharpness", "AutoContrast") else 0
            assert (older.int() - expected.int()).abs().max() <= most, name
            seen.add(name)
        np.testing.assert_array_equal(out, expected.permute(1, 2, 0).numpy())
    assert seen == set(OPERATIONS)


def test_erased_rectangles_are_as_large_and_as_long_as_torchvisions():
    settings, blank = ImageInput(image_size=SIDE, random_erase=1.0), torch.empty(3, SIDE, SIDE)
    ours, theirs = [], []
    torch.manual_seed(0)
    for key in range(4000):
        drawn = sample_augmentation(SampleRng(0, 0, key), settings)
        assert drawn is not None and drawn.erased is not None
        ours.append(drawn.erased)
        theirs.append(RandomErasing.get_params(blank, (0.02, 0.33), (0.3, 3.3), [0.0])[:4])
    (top, left, height, width), others = np.array(ours).T, np.array(theirs).T
    assert (top + height).max() <= SIDE and (left + width).max() <= SIDE and min(top.min(), left.min()) == 0
    means = np.array([top, left, height * width, np.log(height / width)]).mean(axis=1)
    spread = np.array([*others[:2], others[2] * others[3], np.log(others[2] / others[3])])
    assert (np.abs(means - spread.mean(axis=1)) < 5 * spread.std(axis=1) * np.sqrt(2 / 4000)).all()
