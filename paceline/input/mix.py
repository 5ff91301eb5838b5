"""Mixup and CutMix: what a photo of a class takes of its partner. The pixels are mixed by models/mixed.py.

A sample's partner is its neighbour in the stream: samples 2i and 2i + 1 mix with each other, each with a share and a rectangle of its
own random numbers. A step begins at an even place of the stream, and each forward of each rank has an even number of places (odd is
refused), so partners meet in one forward however the batch is cut. A partner from anywhere in the data would cost a second decoding
for each sample. torchvision's and timm's scripts mix a whole batch with one share; the rules for one sample are torchvision's.

Sources: Zhang et al. 2018 (mixup); Yun et al. 2019 (CutMix); torchvision.transforms.v2.MixUp and CutMix.
Letters: S side of the picture, pixels
"""

from __future__ import annotations

import math
from typing import NamedTuple

from paceline.config.classification import PhotoInput
from paceline.input.randomness import SampleRandom


class Mix(NamedTuple):
    """In `box` a sample has this share of its partner's pixels."""

    box: tuple[int, int, int, int]  # left, top, right, bottom, pixels
    share: float  # in [0, 1]


def draw_mix(random: SampleRandom, settings: PhotoInput) -> Mix | None:
    """Draw by the settings' fields `mixup` and `cutmix`, with both on by one of them; None, and nothing drawn, where both are off."""
    if not settings.mixup and not settings.cutmix:
        return None
    side, whole = settings.size, (0, 0, settings.size, settings.size)
    if not settings.cutmix or (settings.mixup and random.coin()):
        return Mix(whole, random.beta(settings.mixup))
    half = int(0.5 * math.sqrt(random.beta(settings.cutmix)) * side)
    x, y = random.integer(0, side), random.integer(0, side)
    return Mix((max(x - half, 0), max(y - half, 0), min(x + half, side), min(y + half, side)), 1.0)
