"""The resize law "bilinear-antialias", in torch and in Pillow.

A triangle filter as wide as one output pixel, at least one source pixel, clamped at the region's edge, in 8-bit fixed
point. torch's uint8 kernel was made after Pillow's and differs from it by one level at most. It is about three times as
fast but starts at whole pixels only; Pillow takes a fractional region, which a DCT-scaled JPEG needs.

Letters: h, w region; rh, rw resized region; oh, ow output, a part of it.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from PIL import Image

from paceline.data.crop import Window


def resample_torch(region: np.ndarray, window: Window, out: np.ndarray, flip: bool) -> None:
    """Resize whole pixels to the window's size and write the part that starts at its skip into `out`.

    region  (h, w, 3) uint8, the window's region at full scale; contiguous
    out     (oh, ow, 3) uint8

    Only calls that stay in this thread: torch's copy and flip would start a pool of threads for each loader thread.
    """
    # reshape gives the batch dimension a stride (region[None] has 0): only so does torch return channels_last memory,
    # and a planar result would cost more to copy than the resize itself.
    planes = torch.from_numpy(region.reshape(1, *region.shape)).permute(0, 3, 1, 2)
    size = (window.resized_height, window.resized_width)
    resized = torch.nn.functional.interpolate(planes, size=size, mode="bilinear", antialias=True)
    pixels = resized.permute(0, 2, 3, 1).numpy()[0]
    pixels = pixels[
        window.skip_top : window.skip_top + out.shape[0], window.skip_left : window.skip_left + out.shape[1]
    ]
    if not flip:
        np.copyto(out, pixels)
        return
    for channel in range(3):  # five times as fast as out[:] = pixels[:, ::-1], whose inner loop is three bytes long
        np.copyto(out[:, :, channel], pixels[:, ::-1, channel])


def resample_pillow(image: Image.Image, scale: int, window: Window, out: np.ndarray, flip: bool) -> None:
    """The same from a picture that was decoded at 1/scale, whose region may start between pixels.

    image  RGB; the whole picture, or its top rows down to the region's end
    out    (oh, ow, 3) uint8
    """
    bottom, right = (window.top + window.height) / scale, (window.left + window.width) / scale
    # The smallest whole-pixel crop around the region; beyond it the filter must not see.
    y, x = window.top // scale, window.left // scale
    end_y, end_x = min(math.ceil(bottom), image.height), min(math.ceil(right), image.width)
    crop = image.crop((x, y, end_x, end_y))
    step_y = (min(bottom, end_y) - window.top / scale) / window.resized_height
    step_x = (min(right, end_x) - window.left / scale) / window.resized_width
    from_y = window.top / scale - y + window.skip_top * step_y
    from_x = window.left / scale - x + window.skip_left * step_x
    height, width = out.shape[:2]
    # Rounding may push the far edge past the crop by an ulp, which Pillow refuses.
    box = (from_x, from_y, min(from_x + width * step_x, crop.width), min(from_y + height * step_y, crop.height))
    resized = crop.resize((width, height), Image.Resampling.BILINEAR, box=box)
    if flip:
        resized = resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    np.copyto(out, np.asarray(resized))
