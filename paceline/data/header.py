"""What an image file says about itself before any pixel is decoded: its size, and how it may be decoded.

Random crops depend on the image's size, so every sample needs this first. JPEG is parsed here (a walk over a handful of
segments, a few microseconds); any other format goes through Pillow, which reads no pixels either.
EXIF orientation is ignored, as the benchmarks do; `exif_orientation` lets a preparation count the images it concerns.

Source: ITU-T T.81 (JPEG), annex B, tables B.1 and B.2.
"""

from __future__ import annotations

import io
from typing import NamedTuple

from PIL import Image

from paceline.config.errors import DataError

# As Pillow's own limit against decompression bombs: 2 * 89,478,485 pixels, half a gigabyte of RGB.
MAX_PIXELS = 178_956_970

_SOF_BASELINE, _SOF_EXTENDED, _SOF_PROGRESSIVE = 0xC0, 0xC1, 0xC2
# 0xC4, 0xC8 and 0xCC lie among the frame headers but are tables and a reserved code.
_SOF_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_EXIF_ORIENTATION = 0x0112


class Header(NamedTuple):
    """Size of the stored image, and what a JPEG decoder needs to know.

    height, width  pixels as stored
    components     1 grey, 3 colour, 4 CMYK for a JPEG; 0 for other formats
    plain_jpeg     an 8-bit Huffman-coded grey or colour JPEG: libjpeg-turbo gives the same RGB as Pillow
    height_at      offset of the 2-byte height field where fewer rows may be asked for by changing it, else 0
    """

    height: int
    width: int
    components: int
    plain_jpeg: bool
    height_at: int


def read_header(data: bytes, name: str) -> Header:
    """The header of an encoded image.

    name  the file, for the message
    Raises DataError when no decoder knows the bytes, or the size is zero or beyond MAX_PIXELS.
    """
    header = _jpeg_header(data) or _other_header(data, name)
    if header.height * header.width == 0:
        raise undecodable(name, f"its size is {header.width} x {header.height} pixels")
    if header.height * header.width > MAX_PIXELS:
        raise undecodable(name, f"{header.width} x {header.height} pixels are more than {MAX_PIXELS:,}")
    return header


def exif_orientation(data: bytes) -> int:
    """-> 1 (upright, or not said) to 8, as the camera noted it; no decoder here applies it."""
    with Image.open(io.BytesIO(data)) as image:
        return image.getexif().get(_EXIF_ORIENTATION, 1)


def undecodable(name: str, reason: object) -> DataError:
    """The one message for a broken image."""
    return DataError(
        f"{name}: the image cannot be decoded: {reason}.\nReplace or remove the file, then prepare the data set again."
    )


def _jpeg_header(data: bytes) -> Header | None:
    """None when this is not a JPEG with a complete frame header: then Pillow says what it is."""
    if data[:3] != b"\xff\xd8\xff":
        return None
    at = 2
    end = len(data) - 9  # a frame header takes 10 bytes from its marker to the number of components
    while at <= end:
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        if marker in _SOF_MARKERS:
            height, width = data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8]
            components = data[at + 9] if at < end else 0
            sequential = marker in (_SOF_BASELINE, _SOF_EXTENDED)
            huffman = sequential or marker == _SOF_PROGRESSIVE
            plain = huffman and data[at + 4] == 8 and components in (1, 3)
            return Header(height, width, components, plain, at + 5 if plain and sequential else 0)
        if marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers that stand alone
            at += 2
        else:
            at += 2 + (data[at + 2] << 8 | data[at + 3])
    return None


def _other_header(data: bytes, name: str) -> Header:
    if not data:
        raise undecodable(name, "the file is empty")
    try:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
    except Image.UnidentifiedImageError:
        raise undecodable(name, f"no known image format starts with {data[:12]!r}") from None
    except Exception as reason:  # Pillow's format plugins raise many types on damaged bytes
        raise undecodable(name, reason) from reason
    return Header(height, width, 0, False, 0)
