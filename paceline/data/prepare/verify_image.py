"""Decode one file completely, once, before training: what fails here cannot fail in hour three.

A JPEG is decoded to gray at an eighth of its size: the decoder still walks every coefficient of every component, which
is all that can fail, and skips the transform that cannot (2.0 instead of 3.4 ms for a COCO photo). Cut or damaged at
random places, files failed here exactly where they failed the full decode. Other formats are decoded in full.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from PIL import Image

from paceline._utils.names import FORMATS, SUFFIX_FORMATS
from paceline._utils.safe_read import read_plain
from paceline.data.index.records import record_digest
from paceline.data.transforms.exif import read_index_flags, read_orientation
from paceline.data.transforms.image_io import (
    MAX_BYTES,
    ImageTooLarge,
    UnknownPixelRange,
    identify_content,
    open_image,
    to_rgb,
)

# Bits of the index's `flags` array. The others are the EXIF orientation's: ROTATED, 4, and the three highest.
GRAYSCALE = 1
CMYK = 2
NOT_JPEG = 8
MISNAMED = 16  # content is another format than the suffix says

GRAY_MODES = frozenset({"1", "L", "LA", "La", "I", "F", "I;16", "I;16B", "I;16L"})
TEXT_BYTES = frozenset(range(32, 127)) | frozenset(b"\t\r\n")


class ImageInfo(NamedTuple):
    """What is known of a file that decodes. `digest`: of its bytes (data/index/records.py)."""

    size: int  # bytes
    mtime: int  # nanoseconds
    height: int  # pixels as stored
    width: int
    flags: int
    digest: int


class InvalidImage(Exception):
    """The file cannot be used; its text is the reason, in a few words."""


def verify(path: bytes) -> ImageInfo:
    """Read and decode one file. Raises InvalidImage with the reason.

    Pillow's warnings (corrupt EXIF, large pictures) are not silenced here: the filter is the whole process's.
    """
    try:
        mtime = os.stat(path).st_mtime_ns  # before the bytes: those that change while they are read are read again
        data = read_plain(path, MAX_BYTES)
    except FileNotFoundError:
        raise InvalidImage("a link to a missing file" if os.path.islink(path) else "gone") from None
    except OSError as error:
        raise InvalidImage(f"cannot be read ({error.strerror})") from None
    return verify_bytes(data, path, mtime)


def verify_bytes(data: bytes, name: bytes, mtime: int) -> ImageInfo:
    """The same for bytes that were read already; the suffix of `name` is the format that they should have."""
    if not data:
        raise InvalidImage("empty file (0 bytes)")
    content, height, width, flags = decode(data)
    suffix = os.path.splitext(name)[1].lower()
    if suffix in SUFFIX_FORMATS and SUFFIX_FORMATS[suffix] != content:
        flags |= MISNAMED
    return ImageInfo(len(data), mtime, height, width, flags, record_digest(data))


def decode(data: bytes) -> tuple[str, int, int, int]:
    """Decode one image -> (format, height, width, flags). Raises InvalidImage where any part of it cannot be decoded."""
    try:
        with open_image(data, FORMATS) as image:
            content = "JPEG" if image.format == "MPO" else str(image.format)
            (width, height), mode = image.size, image.mode
            if content == "JPEG":
                image.draft("L", (max(1, width // 8), max(1, height // 8)))
            image.load()
            if mode in ("I", "F"):
                to_rgb(image)
    except (UnknownPixelRange, ImageTooLarge) as reason:
        raise InvalidImage(str(reason)) from None
    except Exception as error:
        # Pillow's readers raise whatever a damaged file leads them into: OSError, SyntaxError, struct.error, ...
        raise InvalidImage(_reason(data, error)) from None
    if content == "JPEG" and not _has_end(data):
        raise InvalidImage("truncated: the JPEG's end marker is missing")
    gray = GRAYSCALE if mode in GRAY_MODES else 0
    cmyk = CMYK if mode == "CMYK" else 0
    return (
        content,
        height,
        width,
        gray | cmyk | read_index_flags(read_orientation(data)) | (0 if content == "JPEG" else NOT_JPEG),
    )


def _has_end(data: bytes) -> bool:
    """Whether an end marker follows the beginning of the first scan: Pillow does not need it, libjpeg-turbo's own interface does.

    An end marker may come earlier too, in a thumbnail; and anything may follow the true one.
    """
    if data.endswith(b"\xff\xd9"):
        return True
    at = 2
    while data[at + 1 : at + 2] != b"\xda":  # each segment before the scan: 0xFF, its kind, its length (big-endian)
        if data[at : at + 1] != b"\xff" or at + 4 > len(data):
            return data.rfind(b"\xff\xd9") > data.rfind(b"\xff\xda")
        at += 1 if data[at + 1] == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return data.find(b"\xff\xd9", at) >= 0


def _reason(data: bytes, error: Exception) -> str:
    if isinstance(error, OSError) and "truncated" in str(error).lower():
        return f"truncated: the file ends before its image data ({len(data):,} bytes)"
    if not isinstance(error, Image.UnidentifiedImageError):
        return f"damaged: {error or type(error).__name__}"
    if data.startswith(b"\xff\xd8"):
        return "damaged: a JPEG whose header cannot be read"
    if all(byte in TEXT_BYTES for byte in data[:64]):
        return f"text and not an image ({data[:20].decode('ascii')!r})"
    if content := identify_content(data):
        return f"{content} is not supported: convert it to JPEG or PNG"
    return f"not an image in a supported format ({', '.join(FORMATS)})"
