"""Mixing photos of a forward with their neighbors, by what data/transforms/augment.py drew for each: after normalization, on the
device.

Letters: B images, 2i and 2i + 1 partners   H, W pixels
"""

from __future__ import annotations

import torch
from torch import Tensor


def swap_partners(values: Tensor) -> Tensor:
    """(B, ...) -> (B, ...): at each place what its partner has. B is even."""
    return values.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)


def mix_images(images: Tensor, boxes: Tensor, shares: Tensor) -> Tensor:
    """Each image with its share of the partner's pixels inside its box.

    images  (B, C, H, W), any floating type
    boxes   (B, 4) int64, left, top, right, bottom, pixels
    shares  (B,) float32 in [0, 1]
    return  (B, C, H, W), in the same memory format
    """
    height, width = images.shape[2:]
    left, top, right, bottom = boxes[:, :, None].unbind(1)
    across, down = torch.arange(width, device=images.device), torch.arange(height, device=images.device)
    columns, rows = (across >= left) & (across < right), (down >= top) & (down < bottom)
    inside = rows[:, None, :, None] & columns[:, None, None, :]
    # lerp gives the exact pixels of one of the two where the weight is 0 or 1.
    return images.lerp(swap_partners(images), inside * shares.to(images.dtype)[:, None, None, None])


def mixed_fraction(boxes: Tensor, shares: Tensor, pixels: int) -> Tensor:
    """(B,) float32: the part of each image that is its partner's, and so the weight of the partner's label. pixels: H times W."""
    left, top, right, bottom = boxes.unbind(1)
    return shares * ((right - left) * (bottom - top) / pixels)
