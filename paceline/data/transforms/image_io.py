"""Whole pictures by Pillow: 8-bit RGB of any mode, and a photo as displayed, for pages and answers.

Pictures of 16 bits a value keep the upper eight (value >> 8), as Pillow does for color PNGs; its own conversion of gray ones cuts at
255 instead, which turns them white. Pillow's modes of 32 bits are read as 16 where their values allow it (PGM files are such); other
ranges, and fractions, have no stated white, so they are refused.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from PIL import Image

from paceline._utils.text import format_count
from paceline.config.resnet import Exif
from paceline.data.transforms.exif import UPRIGHT, read_orientation, rotate_image, swaps_sides
from paceline.data.transforms.image_header import open_image

# What is dropped of a picture.
ALPHA = "an alpha channel, which is dropped: transparent pixels show the colors that are stored there"
DEEP = "16 bits per value, of which the upper 8 are kept"
PAGES = "several pages or frames, of which the first is read"
BANDS = "more bands than a color needs, of which the first are read"
_BITS_PER_SAMPLE, _SAMPLES = 258, 277  # TIFF's tags


class UnknownPixelRange(ValueError):
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
            raise UnknownPixelRange("its values are fractions, and nothing says which is white. Save it with 8 or 16 bits")
        if values.itemsize > 2 and values.size and (values.min() < 0 or values.max() > 0xFFFF):
            raise UnknownPixelRange(
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
    orientation = read_orientation(data) if exif == "apply" else UPRIGHT
    with open_image(data) as image:
        if least is not None:
            image.draft("RGB", least[::-1] if swaps_sides(orientation) else least)
        return rotate_image(to_rgb(image), orientation)


def find_dropped_channels(data: bytes) -> tuple[str, ...]:
    """What `to_rgb` drops of an encoded picture, by its header; nothing of a JPEG or of damaged bytes."""
    try:
        with open_image(data) as image:
            if image.format in ("JPEG", "MPO"):
                return ()
            samples = getattr(image, "tag_v2", {}).get(_SAMPLES, 1)
            result = {
                ALPHA: image.has_transparency_data,
                DEEP: is_deep(image, data),
                PAGES: getattr(image, "is_animated", False),
                BANDS: image.mode == "RGBX" or samples > len(image.getbands()),
            }
            return tuple(what for what, is_there in result.items() if is_there)
    except Exception:  # whatever damaged bytes make Pillow raise; who decodes the picture reports it
        return ()


def is_deep(image: Image.Image, data: bytes) -> bool:
    """True if an opened picture has 16 bits per value."""
    if image.format == "PNG":
        return data[24] == 16  # IHDR's bit depth; Pillow has turned colors to 8 bits
    if image.format == "TIFF":
        return max(getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (1,))) == 16
    return image.mode.startswith("I")


def format_dropped_notes(counts: Mapping[str, int]) -> tuple[str, ...]:
    """A line for people for each kind of drop and its number of photos."""
    return tuple(f"{format_count(n, 'photo')} {'has' if n == 1 else 'have'} {what}" for what, n in sorted(counts.items()))
