"""TensorFlow's two bilinear laws, which take no filter: an output pixel mixes the four pixels around one place of the photo.

  crop   tf.image.crop_and_resize: the first and the last output pixel lie on the crop's corners, where a photo of n pixels
         reaches from its first pixel's centre (0) to its last one's (n - 1), so a crop in fractions of the photo in those of
         n - 1. So the crop's corners lie up to a pixel before its first pixel and behind its last: `seen` is what has to be
         decoded.
  photo  tf.compat.v1.image.resize_images: output pixel i lies at i * n / size, counted from the first pixel's centre.

Source: tensorflow-cpu's own operators (tests/oracle/test_ssd_gaudi.py). Where rounding puts crop_and_resize's last row past the
photo, it leaves that row black; here it is the photo's last.
Letters: h, w region; oh, ow output.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from paceline.input.crop import Window

TensorFlowLaw = Literal["tensorflow-crop", "tensorflow-photo"]


def seen(window: Window, height: int, width: int) -> Window:
    """The region whose pixels a law looks at: one more on each side, where a photo of this size has them."""
    top, left = max(0, window.top - 1), max(0, window.left - 1)
    bottom, right = min(height, window.top + window.height + 1), min(width, window.left + window.width + 1)
    return window._replace(top=top, left=left, height=bottom - top, width=right - left)


def resample_tensorflow(
    region: np.ndarray, window: Window, photo: tuple[int, int], out: np.ndarray, flip: bool, law: TensorFlowLaw
) -> None:
    """Resize what `seen(window, *photo)` shows to the window's size, and write the part that starts at its skip into `out`.

    region  (h, w, 3) uint8, its pixels
    photo   height and width of the whole photo, which the window is a part of
    out     (oh, ow, 3) uint8, rounded to the nearest level
    """
    wider = seen(window, *photo)
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
    """Of each of `count` output pixels: the pixel before its place, the one behind, and how far it is between, 0..1.

    Places of the photo are counted from `origin`, the region's first pixel.
    """
    steps = np.arange(count, dtype=np.float64)
    if law == "tensorflow-photo":
        places = start + steps * length / count
    elif count == 1:
        places = (start + 0.5 * length) * (side - 1) / side + steps
    else:
        places = (start + length * steps / (count - 1)) * (side - 1) / side
    before = np.floor(places).astype(np.intp)
    behind = np.minimum(before + 1, side - 1)
    return before - origin, behind - origin, (places - before).astype(np.float32)
