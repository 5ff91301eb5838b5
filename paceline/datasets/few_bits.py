"""Pictures of 16 bits a value that use the lower ones alone, as cameras of 10, 12 or 14 bits write them: they come out nearly black.

Of 16 bits the upper eight are kept (input/picture.py); nothing in such a file says that its white is 4,095. So some are looked at,
and a set whose photos stay dark all through has a note.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection

import numpy as np
from PIL import Image

from paceline.datasets.inspection import Photos
from paceline.datasets.verify import NOT_JPEG
from paceline.input.picture import to_rgb
from paceline.store.header import open_picture

# Of the photos that are no JPEGs, evenly spaced.
LOOKED_AT = 32
# Of 255: what 14 of 16 bits reach at most.
DARK = 63
_BITS_PER_SAMPLE = 258  # TIFF's tag


def note_on_few_bits(photos: Photos, flags: np.ndarray, left_out: Collection[int]) -> tuple[str, ...]:
    """A note for people, or none.

    flags     (N,) bits of verify.py
    left_out  numbers of photos that cannot be used
    """
    rows = np.setdiff1d(np.flatnonzero(flags & NOT_JPEG), list(left_out))
    if not len(rows):
        return ()
    looked_at, brightest, first = 0, 0, ""
    for i in rows[np.unique(np.linspace(0, len(rows) - 1, LOOKED_AT, dtype=np.int64))].tolist():
        found = _brightest(photos, i)
        if found > DARK:
            return ()
        if found >= 0:
            looked_at, brightest, first = looked_at + 1, max(brightest, found), first or photos.called(i)
    if not looked_at:
        return ()
    bits = brightest.bit_length() + 8
    return (
        f"{first}: 16 bits a value, of which the {looked_at:,} such photos that were looked at use {bits} at most. The upper "
        f"eight are kept, so they come out nearly black. Where white is {2**bits - 1:,}, multiply the values by {2 ** (16 - bits)}, "
        "or save them with 8 bits, and prepare again.",
    )


def _brightest(photos: Photos, i: int) -> int:
    """The largest value as training sees it, 0 to 255, of a picture of 16 bits a value; -1 for any other."""
    try:
        data = photos.read(i)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with open_picture(data) as image:
                return int(np.asarray(to_rgb(image)).max()) if _is_deep(image, data) else -1
    except Exception:  # an earlier manifest was believed, and the photo is none any more: it is named when it is read
        return -1


def _is_deep(image: Image.Image, data: bytes) -> bool:
    if image.format == "PNG":
        return data[24] == 16  # IHDR's bit depth; Pillow has turned colours to 8 bits
    if image.format == "TIFF":
        return max(getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (1,))) == 16
    return image.mode.startswith("I")
