"""A stem for our pixels, made of one for Caffe's: those were BGR, 0 to 255 less a mean, and not divided by a deviation."""

from __future__ import annotations

from torch import Tensor

from paceline.models.normalise import IMAGENET_STD

NOTE = "its pixels were BGR from 0 to 255 less a mean: the stem was turned to RGB and scaled for ImageNet's deviation"


def from_caffe(stem: Tensor) -> Tensor:
    """(O, 3, h, w) for B, G and R in 0..255 -> the same response to our R, G and B.

    Exact, borders included, where the mean that was taken off is ImageNet's: a padded zero is then the mean in both.
    """
    return stem.flip(1) * (255 * stem.new_tensor(IMAGENET_STD)).view(1, 3, 1, 1)


def to_caffe(stem: Tensor) -> Tensor:
    """The inverse of `from_caffe`."""
    return (stem / (255 * stem.new_tensor(IMAGENET_STD)).view(1, 3, 1, 1)).flip(1)
