"""The "hsv" jitter beside torchvision's functions on float pictures, exactly, and beside its PIL path, to its rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional as F

from paceline.config.ssd import BoxInput
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.color_jitter import ORDER, apply_color_jitter, sample_color_jitter

CHANGES = {
    "brightness": F.adjust_brightness,
    "contrast": F.adjust_contrast,
    "saturation": F.adjust_saturation,
    "hue": F.adjust_hue,
}


def _photo() -> np.ndarray:
    """Smooth colors over the whole range, with noise and flat corners."""
    y, x = np.mgrid[0:120, 0:150].astype(np.float64)
    waves = [128 + 90 * np.sin((x * (c + 1) + y * (3 - c)) / 23.0 + c) for c in range(3)]
    pixels = np.stack(waves, axis=2) + np.random.default_rng(0).normal(0, 12, (120, 150, 3))
    pixels[:20, :20], pixels[-20:, -20:] = 0, 255
    return np.clip(pixels, 0, 255).astype(np.uint8)


def _drawn(key: int, settings: BoxInput) -> list[tuple[str, float]]:
    """The changes of this key in their order: the order first, then the amounts in the order of ORDER."""
    random, order = SampleRng(0, 0, key), list(ORDER)
    for last in (3, 2, 1):
        other = random.integer(0, last + 1)
        order[last], order[other] = order[other], order[last]
    amounts = {}
    for change in ORDER:
        reach = getattr(settings, change)
        center = 0.0 if change == "hue" else 1.0
        amounts[change] = random.uniform(center - reach, center + reach)
    return [(change, amounts[change]) for change in order]


def _ours(pixels: np.ndarray, key: int, settings: BoxInput) -> np.ndarray:
    out = pixels.copy()
    color = sample_color_jitter(SampleRng(0, 0, key), settings)
    assert color is not None
    apply_color_jitter(out, color)
    return out


@pytest.mark.parametrize("hue", [0.05, 0.5])
def test_a_picture_is_torchvisions_from_the_same_numbers_in_the_same_order(hue):
    settings, photo = BoxInput(hue=hue), _photo()
    orders = set()
    for key in range(30):
        expected = torch.from_numpy(photo).permute(2, 0, 1).to(torch.float64) / 255
        drawn = _drawn(key, settings)
        for change, amount in drawn:
            expected = CHANGES[change](expected, amount)
        orders.add(tuple(change for change, _ in drawn))
        apart = np.abs(_ours(photo, key, settings) - expected.permute(1, 2, 0).numpy() * 255)
        assert apart.max() <= 0.6  # half a level of rounding, and gray's shares have four digits there
    assert len(orders) > 12


@pytest.mark.parametrize("change", ["brightness", "contrast", "saturation"])
def test_each_change_but_hue_is_within_a_level_of_pillows(change):
    reach = {name: 0.0 for name in ORDER} | {change: 0.5}
    settings, photo = BoxInput(**reach), _photo()
    for key in range(12):
        amount = dict(_drawn(key, settings))[change]
        expected = np.asarray(CHANGES[change](Image.fromarray(photo), amount)).astype(int)
        apart = np.abs(_ours(photo, key, settings) - expected)
        assert apart.max() <= 2 and apart.mean() < 0.8


def test_all_changes_are_within_two_levels_of_pillows_on_average_whose_hue_has_256_steps():
    settings, photo = BoxInput(), _photo()
    apart = []
    for key in range(24):
        picture = Image.fromarray(photo)
        for change, amount in _drawn(key, settings):
            picture = CHANGES[change](picture, amount)
        apart.append(np.abs(_ours(photo, key, settings) - np.asarray(picture).astype(int)).mean())
    assert np.mean(apart) < 1.5 and max(apart) < 2.5
