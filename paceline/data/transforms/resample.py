"""The resize laws: "bilinear-antialias", in torch and in Pillow, "bilinear", in torch, and TensorFlow's two.

"bilinear-antialias" is a triangle filter as wide as one output pixel, at least one source pixel, clamped at the region's edge, in
8-bit fixed point. torch's uint8 kernel was made after Pillow's and differs from it by one level of 255, rarely two. It is four times
as fast but starts at whole pixels only; Pillow takes a fractional region, which a DCT-scaled JPEG needs. "bilinear" mixes the four
pixels around each output pixel's center at any scale, so shrinking skips pixels. TensorFlow's laws do that too, around other places:
  tensorflow-crop   tf.image.crop_and_resize: the first and the last output pixel lie on the crop's corners, where a photo of n pixels
         reaches from its first pixel's center (0) to its last one's (n - 1), so a crop in fractions of the photo in those of n - 1. So
         the crop's corners lie up to a pixel before its first pixel and behind its last: `source_window` is the region to decode.
  tensorflow-photo  tf.compat.v1.image.resize_images: output pixel i lies at i * n / size, counted from the first pixel's center.
Source: tensorflow-cpu's own operators (tests/oracle/test_ssd_gaudi.py). Where rounding puts crop_and_resize's last row past the photo,
it leaves that row black; here it is the photo's last.

Letters: h, w region; rh, rw resized region; oh, ow output, a part of it.
"""

from __future__ import annotations

import math
import threading
from math import prod
from typing import TYPE_CHECKING, Literal

import numpy as np
from PIL import Image

from paceline.data.transforms.crop import CropWindow, SourceRegion
from paceline.data.transforms.exif import TURNS, rotate_image

if TYPE_CHECKING:
    import torch

ResizeLaw = Literal["bilinear-antialias", "bilinear", "tensorflow-crop", "tensorflow-photo"]

_of_thread = threading.local()


def scratch_array(purpose: str, *shape: int, dtype: type = np.uint8) -> np.ndarray:
    """An array of this thread, in memory that grows to the largest; valid until its next call for the same purpose."""
    size = prod(shape)
    memory = getattr(_of_thread, purpose, None)
    if memory is None or memory.size < size:
        memory = np.empty(size, dtype)
        setattr(_of_thread, purpose, memory)
    return memory[:size].reshape(shape)


def resample_torch(
    region: np.ndarray, window: CropWindow, out: np.ndarray, flip: bool, law: ResizeLaw = "bilinear-antialias"
) -> None:
    """Resize whole pixels to the window's size and write the part that starts at its skip into `out`.

    region  (h, w, 3) uint8, the window's region at full scale; contiguous
    out     (oh, ow, 3) uint8; may be part of a larger picture
    Only calls that stay in this thread: torch's copy and flip would start a pool of threads for each loader thread.
    """
    # torch writes to memory of its own and copies when the rows of a result are not contiguous.
    direct = not flip and out.shape[:2] == window[4:6] and out.flags.c_contiguous
    if region.shape[:2] == window[4:6]:  # nothing is resized, and no torch is needed
        target, direct = region, False
    else:
        import torch

        target = out if direct else scratch_array("resized", window.resized_height, window.resized_width, 3)
        aten = torch.ops.aten
        upsample = aten._upsample_bilinear2d_aa if law == "bilinear-antialias" else aten.upsample_bilinear2d
        # The operator below torch.nn.functional.interpolate, because it takes memory to write to.
        size = [window.resized_height, window.resized_width]
        upsample.out(_channels_last(region), size, False, None, None, out=_channels_last(target))
    if direct:
        return
    bottom, right = window.skip_top + out.shape[0], window.skip_left + out.shape[1]
    pixels = target[window.skip_top : bottom, window.skip_left : right]
    if not flip:
        np.copyto(out, pixels)
        return
    for channel in range(3):  # five times as fast as out[:] = pixels[:, ::-1], whose inner loop is three bytes long
        np.copyto(out[:, :, channel], pixels[:, ::-1, channel])


def _channels_last(pixels: np.ndarray) -> torch.Tensor:
    """(H, W, 3) as (1, 3, H, W) on the same memory.

    reshape gives the batch dimension a stride, pixels[None] has 0; only with one does torch recognize channels_last, else it
    transposes there and back, which costs more than the resize.
    """
    import torch

    return torch.from_numpy(pixels.reshape(1, *pixels.shape)).permute(0, 3, 1, 2)


def resample_pillow(
    picture: Image.Image | np.ndarray, scale: int, source: SourceRegion, window: CropWindow, out: np.ndarray, flip: bool
) -> None:
    """The law "bilinear-antialias" from a picture that was decoded at 1/scale, whose region may start between pixels.

    picture  RGB, or (rows, columns, 3) uint8; the whole stored picture, or its top rows down to the region's end
    source   the window's region in it
    out      (oh, ow, 3) uint8
    """
    is_array = isinstance(picture, np.ndarray)
    rows, columns = picture.shape[:2] if is_array else (picture.height, picture.width)
    # The smallest crop of whole pixels that holds the region, as stored; the filter does not reach beyond its edges.
    right = min(math.ceil((source.left + source.width) / scale), columns)
    bottom = min(math.ceil((source.top + source.height) / scale), rows)
    location = left, top, right, bottom = source.left // scale, source.top // scale, right, bottom
    crop = Image.fromarray(picture[top:bottom, left:right]) if is_array else picture.crop(location)
    height, width = out.shape[:2]
    step_y, step_x = window.height / scale / window.resized_height, window.width / scale / window.resized_width
    y, x = _rim(location, scale, source)
    crop = rotate_image(crop, source.orientation)
    from_y, from_x = y + window.skip_top * step_y, x + window.skip_left * step_x
    # Rounding may push the far edge past the crop by an ulp, which Pillow refuses.
    box = (from_x, from_y, min(from_x + width * step_x, crop.width), min(from_y + height * step_y, crop.height))
    resized = crop.resize((width, height), Image.Resampling.BILINEAR, box=box)
    if flip:
        resized = resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    np.copyto(out, np.asarray(resized))


def _rim(location: tuple[int, int, int, int], scale: int, source: SourceRegion) -> tuple[float, float]:
    """(y, x): how far the region begins inside the crop, pixels of the scaled picture, once the crop is turned."""
    left, top, right, bottom = location
    from_right, from_below, swapped = TURNS[source.orientation]
    down = source.top / scale - top, bottom - (source.top + source.height) / scale
    across = source.left / scale - left, right - (source.left + source.width) / scale
    if swapped:
        down, across = across, down
    return down[from_below], across[from_right]


TensorFlowLaw = Literal["tensorflow-crop", "tensorflow-photo"]


def source_window(window: CropWindow, height: int, width: int) -> CropWindow:
    """The region whose pixels a TensorFlow law reads: one more on each side, where a photo of this size has them."""
    top, left = max(0, window.top - 1), max(0, window.left - 1)
    bottom, right = min(height, window.top + window.height + 1), min(width, window.left + window.width + 1)
    return window._replace(top=top, left=left, height=bottom - top, width=right - left)


def resample_tensorflow(
    region: np.ndarray, window: CropWindow, photo: tuple[int, int], out: np.ndarray, flip: bool, law: TensorFlowLaw
) -> None:
    """Resize the region `source_window(window, *photo)` to the window's size, and write the part that starts at its skip into `out`.

    region  (h, w, 3) uint8, its pixels
    photo   height and width of the whole photo, which the window is a part of
    out     (oh, ow, 3) uint8, rounded to the nearest level
    """
    wider = source_window(window, *photo)
    above, below, down = _between(law, window.top, window.height, photo[0], window.resized_height, wider.top)
    before, behind, across = _between(law, window.left, window.width, photo[1], window.resized_width, wider.left)
    rows = slice(window.skip_top, window.skip_top + out.shape[0])
    columns = slice(window.skip_left, window.skip_left + out.shape[1])
    above, below, down = above[rows], below[rows], down[rows, None, None]
    before, behind, across = before[columns], behind[columns], across[columns, None]
    if flip:
        before, behind, across = before[::-1], behind[::-1], across[::-1]
    upper = _mixed(region.take(above, axis=0), before, behind, across)
    lower = _mixed(region.take(below, axis=0), before, behind, across)
    lower -= upper
    lower *= down
    upper += lower
    np.rint(upper, out=upper)
    np.copyto(out, upper, casting="unsafe")


def _mixed(rows: np.ndarray, before: np.ndarray, behind: np.ndarray, share: np.ndarray) -> np.ndarray:
    """(oh, w, 3) uint8 -> (oh, ow, 3) float32, between two columns each."""
    left = rows.take(before, axis=1).astype(np.float32)
    right = rows.take(behind, axis=1).astype(np.float32)
    right -= left
    right *= share
    left += right
    return left


def _between(
    law: TensorFlowLaw, start: int, length: int, side: int, count: int, origin: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each of `count` output pixels: the pixel before its place, the one behind, and its place between them, 0..1.

    Pixels are counted from `origin`, the region's first one.
    """
    steps = np.arange(count, dtype=np.float64)
    if law == "tensorflow-photo":
        indices = start + steps * length / count
    elif count == 1:
        indices = (start + 0.5 * length) * (side - 1) / side + steps
    else:
        indices = (start + length * steps / (count - 1)) * (side - 1) / side
    before = np.floor(indices).astype(np.intp)
    behind = np.minimum(before + 1, side - 1)
    return before - origin, behind - origin, (indices - before).astype(np.float32)
