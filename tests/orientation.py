"""Photos that are stored turned, with the EXIF note that says so."""

from __future__ import annotations

import io

from PIL import Image, ImageOps

# What undoes each orientation's turn: 6 and 8 undo each other, every other one itself.
UNDONE_BY = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 8, 7: 7, 8: 6}


def note(orientation: int) -> Image.Exif:
    """EXIF with nothing but an orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def stored(picture: Image.Image, orientation: int) -> Image.Image:
    """The picture as a camera stores it that notes this orientation: Pillow's exif_transpose makes `picture` of it."""
    return shown(picture, UNDONE_BY[orientation])


def shown(picture: Image.Image, orientation: int) -> Image.Image:
    """A stored picture as Pillow turns it."""
    file = io.BytesIO()
    picture.save(file, "PNG", exif=note(orientation))
    with Image.open(file) as image:
        return ImageOps.exif_transpose(image)


def encode(picture: Image.Image, orientation: int = 1, kind: str = "JPEG", **options) -> bytes:
    """Encoded as it lies, with the note."""
    file = io.BytesIO()
    picture.save(file, kind, exif=note(orientation), **options)
    return file.getvalue()


def noted(jpeg: bytes, orientation: int) -> bytes:
    """A JPEG's own bytes with the note in front."""
    block = note(orientation).tobytes()
    return jpeg[:2] + b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block + jpeg[2:]
