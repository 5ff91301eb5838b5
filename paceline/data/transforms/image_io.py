"""Image files: the header, read before any pixel is decoded, and whole pictures by Pillow in 8-bit RGB of any mode.

`open_image` is the one place where Pillow opens bytes: of its readers only those of photos, because others start programs
(PostScript's hands the file to Ghostscript), and no more pixels or passes than a photo has.

Random crops depend on the image's size, so every sample needs its header first: the size, and how it may be decoded. JPEG is parsed
here (a walk over a handful of segments, a few microseconds); any other format goes through Pillow, which reads no pixels either.
EXIF orientation is ignored, as the benchmarks do, or applied (data/transforms/exif.py): then sizes are those of the photo as
it is shown, and so is every window that is made of them. Source: ITU-T T.81 (JPEG), annex B, tables B.1 and B.2.

Pictures of 16 bits a value keep the upper eight (value >> 8), as Pillow does for color PNGs; its own conversion of gray ones cuts at
255 instead, which turns them white. Pillow's modes of 32 bits are read as 16 where their values allow it (PGM files are such); other
ranges, and fractions, have no stated white, so they are refused.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from PIL import Image

from paceline._utils.errors import DataError
from paceline._utils.names import PREDICTED_FORMATS
from paceline._utils.text import format_count
from paceline.config.resnet import Exif
from paceline.data.transforms.exif import (
    MAX_CHUNKS,
    MAX_SEGMENTS,
    UPRIGHT,
    compose_orientations,
    jpeg_segments,
    read_orientation,
    rotate_image,
    swaps_sides,
    tiff_value,
)

# What is dropped of a picture.
ALPHA = "an alpha channel, which is removed: transparent pixels show their stored colors"
DEEP = "16 bits per value; only the upper 8 bits are used"
PAGES = "multiple pages or frames; only the first is used"
BANDS = "extra color bands, which are ignored"
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
            raise UnknownPixelRange("its values are fractions without a white level. Save it with 8 or 16 bits")
        if values.itemsize > 2 and values.size and (values.min() < 0 or values.max() > 0xFFFF):
            raise UnknownPixelRange(
                f"its values are between {values.min()} and {values.max()}, without a white level. Save it with 8 or 16 "
                "bits"
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
    return tuple(f"{format_count(n, 'image')} {'has' if n == 1 else 'have'} {what}" for what, n in sorted(counts.items()))


# As Pillow's own limit against decompression bombs: 2 * 89,478,485 pixels, half a gigabyte of RGB.
MAX_PIXELS = 178_956_970
# A photo of this size is a mistake; reading it into memory may be an attack.
MAX_BYTES = 1 << 30
# Bytes between segments that belong to none, which decoders pass over one by one.
MAX_JUNK = 1 << 16
# Each scan of a progressive JPEG is a pass over all its coefficients, 30 ms for 36 megapixels, however short its bytes are.
# Encoders write 3 to 24; libjpeg-turbo's own programs stop at 500.
MAX_SCANS = 100

# Chunks of a PNG that Pillow unpacks up to a limit, and nothing here reads: texts, and the color profile.
PNG, UNREAD_CHUNKS = b"\x89PNG\r\n\x1a\n", (b"tEXt", b"zTXt", b"iTXt", b"iCCP")
# The first bytes of files that cannot be used for training -> what they are.
_CONTENTS = {
    b"GIF8": "GIF", b"\xff\x0a": "JPEG XL", b"\0\0\0\x0cJXL ": "JPEG XL", b"\0\0\0\x0cjP  ": "JPEG 2000", b"8BPS": "Photoshop",
    b"%PDF": "PDF", b"%!PS": "PostScript", b"<svg": "SVG", b"SIMPLE  =": "FITS", b"\x93NUMPY": "a NumPy array",
    b"v/1\x01": "OpenEXR", b"#?RADIANCE": "Radiance HDR", b"PK\3\4": "ZIP",
}  # fmt: skip
_BRANDS = {b"avi": "AVIF", b"hei": "HEIC", b"hev": "HEIC", b"mif": "HEIF", b"msf": "HEIF", b"crx": "a camera's raw format"}
_SOF_BASELINE, _SOF_EXTENDED, _SOF_PROGRESSIVE = 0xC0, 0xC1, 0xC2
# 0xC4, 0xC8 and 0xCC lie among the frame headers but are tables and a reserved code.
_SOF_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SOF_SEQUENTIAL = frozenset((_SOF_BASELINE, _SOF_EXTENDED, 0xC9))  # 0xC9: extended, arithmetic coding
# What ends a scan, or the picture; other segments stand between scans too.
_MARKER = re.compile(rb"\xff[\xd9\xda]")


class ImageTooLarge(ValueError):
    """A picture of more pixels, passes or segments than any photo has; the text says of what."""


class Header(NamedTuple):
    """Size of the image, and what a JPEG decoder needs to know."""

    height: int  # pixels, as stored or, where an orientation is to be applied, as shown
    width: int
    components: int  # 1 gray, 3 color, 4 CMYK for a JPEG; 0 for other formats
    plain_jpeg: bool  # an 8-bit Huffman-coded gray or color JPEG: libjpeg-turbo gives the same RGB as Pillow
    height_at: int  # offset of the 2-byte height field that may be changed so that fewer rows are decoded, else 0
    orientation: int = UPRIGHT  # to be applied, 2 to 8; 1 for none

    @property
    def stored(self) -> tuple[int, int]:
        """(height, width) of what a decoder gives, pixels."""
        return (self.width, self.height) if swaps_sides(self.orientation) else (self.height, self.width)

    def turned(self, orientation: int) -> Header:
        """Of the same photo, turned once more before it is used."""
        height, width = (self.width, self.height) if swaps_sides(orientation) else (self.height, self.width)
        return self._replace(height=height, width=width, orientation=compose_orientations(self.orientation, orientation))


def read_header(data: bytes, name: str, exif: Exif = "ignore") -> Header:
    """The header of an encoded image.

    name  the file, for the message
    exif  whether the EXIF orientation is applied
    Raises DataError when no decoder knows the bytes, or the size is zero or beyond MAX_PIXELS.
    """
    header = _jpeg_header(data) or _other_header(data, name)
    if header.height * header.width == 0:
        raise broken_image_message(name, f"its size is {header.width} x {header.height} pixels")
    if header.height * header.width > MAX_PIXELS:
        raise broken_image_message(
            name, f"{header.width} x {header.height} pixels are more than the limit of {MAX_PIXELS:,}"
        )
    if exif == "ignore" or (orientation := read_orientation(data)) == UPRIGHT:
        return header
    return header.turned(orientation)


def find_endless_jpeg(data: bytes) -> str:
    """-> "" or why a decoder would be busy with this JPEG for minutes: too many segments, scans, or bytes of none.

    Looks at headers alone, but for a JPEG of several scans, whose markers are counted.
    """
    if data[:3] != b"\xff\xd8\xff":
        return ""
    at, junk, frame, components = 2, 0, 0, 0
    for _ in range(MAX_SEGMENTS):
        marker = data.find(b"\xff", at, at + MAX_JUNK + 1)
        if marker < 0 and len(data) <= at + MAX_JUNK:
            return ""  # it ends within its header, which every decoder reports
        junk += (marker if marker >= 0 else at + MAX_JUNK + 1) - at
        if junk > MAX_JUNK:
            return f"damaged: more than {MAX_JUNK:,} bytes between its segments"
        at = marker
        while data[at + 1 : at + 2] == b"\xff" and junk <= MAX_JUNK:  # fill bytes
            at, junk = at + 1, junk + 1
        if at + 9 >= len(data):
            return ""
        kind = data[at + 1]
        if kind == 0xDA:
            # A sequential picture with all its components in the first scan has no other that is decoded.
            several = frame not in _SOF_SEQUENTIAL or data[at + 4] < components
            return _many_scans(data, at) if several else ""
        if kind in _SOF_MARKERS:
            frame, components = kind, data[at + 9]
        if kind == 0 or kind == 0x01 or 0xD0 <= kind <= 0xD9:
            at += 2
        else:
            at += 2 + (data[at + 2] << 8 | data[at + 3])
    return f"more than {MAX_SEGMENTS:,} segments before the image data"


def _many_scans(data: bytes, at: int) -> str:
    """`at`: the marker of the first scan. Markers are counted up to the end of the picture: anything may follow it."""
    scans = 0
    for marker in _MARKER.finditer(data, at):
        if marker[0] == b"\xff\xd9":
            break
        scans += marker[0] == b"\xff\xda"
        if scans > MAX_SCANS:
            return f"more than {MAX_SCANS} scans, but encoders write about 12. Encode it again"
    return ""


def open_image(data: bytes, formats: Sequence[str] = PREDICTED_FORMATS) -> Image.Image:
    """The picture that Pillow finds in an encoded photo, not decoded yet; the caller closes it.

    formats  Pillow's names; those that this Pillow does not have are left out
    Raises ImageTooLarge, UnidentifiedImageError for bytes of no such format, and whatever Pillow's readers raise on damaged ones.
    """
    if endless := find_endless_jpeg(data):
        raise ImageTooLarge(endless)
    if data.startswith(PNG) and any(name in data for name in UNREAD_CHUNKS):
        data = _without_unread(data)
    picture = Image.open(io.BytesIO(data), formats=tuple(filter(_is_known, formats)))
    if picture.width * picture.height > MAX_PIXELS:  # Pillow's own limit may have been lifted by whoever imports us
        picture.close()
        raise ImageTooLarge(f"{picture.width} x {picture.height} pixels are more than the limit of {MAX_PIXELS:,}")
    return picture


@cache
def _is_known(kind: str) -> bool:
    """Whether this Pillow has a reader of that name: of AVIF since 11.3."""
    return kind != "AVIF" or find_spec("PIL.AvifImagePlugin") is not None


def _without_unread(data: bytes) -> bytes:
    """A PNG without UNREAD_CHUNKS."""
    kept, at = [data[:8]], 8
    for _ in range(MAX_CHUNKS):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data):
            break
        kept += [] if data[at + 4 : at + 8] in UNREAD_CHUNKS else [data[at:end]]
        at = end
    return b"".join([*kept, data[at:]])


def identify_content(data: bytes) -> str:
    """The format of a picture that no reader here knows, by how its bytes begin; "" if that is unknown too."""
    if data[4:8] == b"ftyp":  # its brand, and those that it is compatible with
        brands = [data[at : at + 3] for at in (8, *range(16, min(64, len(data)), 4))]
        return next((name for brand, name in _BRANDS.items() if brand in brands), "a video")
    if samples := tiff_value(data, _SAMPLES):
        return f"TIFF with {samples} values per pixel"
    begin = data.lstrip() if data[:1].isspace() else data
    return next((name for start, name in _CONTENTS.items() if begin.startswith(start)), "")


def broken_image_message(name: str, reason: object) -> DataError:
    """The one message for a broken image."""
    again = "Replace or remove the file, then prepare the dataset again."
    return DataError(f"{name}: the image cannot be decoded: {reason}.\n{again}")


def _jpeg_header(data: bytes) -> Header | None:
    """None when this is not a JPEG with a complete frame header: then Pillow reads it."""
    if data[:3] != b"\xff\xd8\xff":
        return None
    end = len(data) - 9  # a frame header takes 10 bytes from its marker to the number of components
    for marker, at in jpeg_segments(data):
        if at > end:
            return None
        if marker in _SOF_MARKERS:
            height, width = data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8]
            components = data[at + 9] if at < end else 0
            sequential = marker in (_SOF_BASELINE, _SOF_EXTENDED)
            huffman = sequential or marker == _SOF_PROGRESSIVE
            plain = huffman and data[at + 4] == 8 and components in (1, 3)
            return Header(height, width, components, plain, at + 5 if plain and sequential else 0)
    return None


def _other_header(data: bytes, name: str) -> Header:
    if not data:
        raise broken_image_message(name, "the file is empty")
    try:
        with open_image(data) as image:
            width, height = image.size
    except Image.UnidentifiedImageError:
        content = identify_content(data)
        known = f"{content} is not supported. Convert it to JPEG or PNG" if content else ""
        raise broken_image_message(
            name, known or f"the file starts with {data[:12]!r}, which is not a known image format"
        ) from None
    except Exception as reason:  # Pillow's format plugins raise many types on damaged bytes
        raise broken_image_message(name, reason) from reason
    return Header(height, width, 0, False, 0)
