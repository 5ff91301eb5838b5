"""A stem for our pixels, made of one for others: Caffe's were BGR, 0 to 255 less a mean, and not divided by a deviation."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from paceline.models.normalise import IMAGENET_STD

NOTE = "its pixels were BGR from 0 to 255 less a mean: the stem was turned to RGB and scaled for ImageNet's deviation"
# ImageNet's deviation of R, G and B in 0..255.
OURS = tuple(255 * std for std in IMAGENET_STD)


def from_pixels(stem: Tensor, std: Sequence[float], *, bgr: bool) -> Tensor:
    """(O, 3, h, w) for channels in 0..255 less a mean, divided by `std` in their own order -> the same response to our R, G and B.

    Exact, borders included, where the mean that was taken off is ImageNet's: a padded zero is then the mean in both.
    """
    scale = (
        stem.new_tensor(OURS) / stem.new_tensor(std).flip(0) if bgr else stem.new_tensor(OURS) / stem.new_tensor(std)
    )
    return (stem.flip(1) if bgr else stem) * scale.view(1, 3, 1, 1)


def from_caffe(stem: Tensor) -> Tensor:
    """`from_pixels` of Caffe's: B, G and R, not divided."""
    return from_pixels(stem, (1.0, 1.0, 1.0), bgr=True)
