"""Whole pictures by Pillow: 8-bit RGB of any mode, and a photo as displayed, for pages and answers.

Pictures of 16 bits a value keep the upper eight (value >> 8), as Pillow does for colour PNGs; its own conversion of grey ones cuts at
255 instead, which turns them white. Pillow's modes of 32 bits are read as 16 where their values allow it (PGM files are such); other
ranges, and fractions, have no stated white, so they are refused.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from paceline.config.classification import Exif
from paceline.store.header import open_picture
from paceline.store.orientation import UPRIGHT, lies_on_its_side, orientation_of, turned


class UnknownRange(ValueError):
    """The picture's values have no known maximum."""


def to_rgb(image: Image.Image) -> Image.Image:
    """The picture in 8-bit RGB.

    Raises UnknownRange for values that are fractions or need more than 16 bits, and whatever Pillow's readers raise on
    damaged bytes.
    """
    if image.mode.startswith("I") or image.mode == "F":
        image.load()  # a mode may change as the pixels are read
        values = np.asarray(image)
        if values.dtype.kind == "f":
            raise UnknownRange("its values are fractions, and nothing says which is white. Save it with 8 or 16 bits")
        if values.itemsize > 2 and values.size and (values.min() < 0 or values.max() > 0xFFFF):
            raise UnknownRange(
                f"its values lie between {values.min()} and {values.max()}, and nothing says which is white. "
                "Save it with 8 or 16 bits"
            )
        return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    if "transparency" in image.info:
        # Pillow warns about a palette's, which plays no part in RGB; the caller's picture keeps it.
        image = image.copy()
        del image.info["transparency"]
    return image.convert("RGB")


def open_rgb(data: bytes, exif: Exif, *, least: tuple[int, int] | None = None) -> Image.Image:
    """An encoded photo as one whole RGB picture, turned according to `exif`.

    least  (width, height) that it must keep: JPEGs are decoded at a smaller scale where that suffices
    Raises whatever Pillow's readers raise on damaged bytes.
    """
    orientation = orientation_of(data) if exif == "apply" else UPRIGHT
    with open_picture(data) as image:
        if least is not None:
            image.draft("RGB", least[::-1] if lies_on_its_side(orientation) else least)
        return turned(to_rgb(image), orientation)
