"""A photo written anew: smaller, or of another JPEG quality, as a user of Pillow would do it.

Decoded as training decodes it (input/picture.py: 16 bits a value to 8, palettes and CMYK to RGB; grey stays grey), resized by
Lanczos' filter with antialiasing to torchvision's sizes, and written as a baseline JPEG with Pillow's usual subsampling. The
pixels stay in the stored frame, and the camera's note of how to turn them stays with them, so `--input.exif` means the same
before and after. Everything else that came with the photo (thumbnail, place, colour profile) is left out.
"""

from __future__ import annotations

import io
from typing import NamedTuple

from PIL import Image

from paceline.config.errors import DataError
from paceline.datasets.verify import GREY_MODES
from paceline.input.picture import to_rgb
from paceline.store.header import open_picture
from paceline.store.index import Index
from paceline.store.orientation import UPRIGHT, orientation_of

_ORIENTATION = 0x0112


class Encoded(NamedTuple):
    """A photo as it is packed; sizes in pixels of the stored frame."""

    data: bytes
    height: int
    width: int


def smaller_size(height: int, width: int, short: int) -> tuple[int, int]:
    """-> (height, width) with the shorter side `short`, the longer one cut to whole pixels as torchvision's Resize does.

    The same where the photo is no larger, or `short` is 0.
    """
    if not short or min(height, width) <= short:
        return height, width
    longer = int(short * max(height, width) / min(height, width))
    return (short, longer) if height <= width else (longer, short)


def encoded_anew(index: Index, row: int, short: int, quality: int) -> Encoded:
    """A record of a data set as `encode` has it. Raises DataError, naming it, where it cannot be read or decoded."""
    data = index.read(row)
    try:
        return encode(data, short, quality)
    except (
        Exception
    ) as error:  # as in datasets/verify.py: Pillow's readers raise whatever a damaged file leads them into
        raise DataError(f"{index.name(row)}: cannot be decoded ({error}). {index.records.places.remedy}") from None


def encode(data: bytes, short: int, quality: int) -> Encoded:
    """The photo as a JPEG, its shorter side at most `short` (0: its size). Raises whatever Pillow's readers raise."""
    orientation = orientation_of(data)
    with open_picture(data) as opened:
        if opened.format == "TIFF":
            orientation = UPRIGHT  # Pillow turned it as it read it
        grey = opened.mode in GREY_MODES
        picture = to_rgb(opened)
    if grey:
        picture = picture.convert("L")
    height, width = smaller_size(picture.height, picture.width, short)
    if (height, width) != (picture.height, picture.width):
        picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    exif = Image.Exif()
    if orientation != UPRIGHT:
        exif[_ORIENTATION] = orientation
    picture.save(out, "JPEG", quality=quality, **({"exif": exif.tobytes()} if orientation != UPRIGHT else {}))
    return Encoded(out.getvalue(), height, width)
