"""EXIF orientation: how the camera was held, read from an encoded photo, and its effect on windows and pixels.

Cameras store what their sensor saw, and note how it is to be turned before it is shown: 1 upright, 2 to 4 mirrored or turned
by half, 5 to 8 lying on a side. The stored frame is what decoders give, the shown frame is what people see; whether a
recipe works in the shown frame is its `--input.exif`.
It is read from JPEG's APP1 "Exif" segment, PNG's eXIf chunk and WebP's EXIF chunk; not from XMP, as in browsers.
TIFF pictures are turned by Pillow as it reads them, whatever the recipe. Anything damaged counts as upright.

Source: CIPA DC-008 (EXIF 2.32), 4.6.4, tag 0x0112; PNG (third edition), 11.3.3.5; RFC 9649 (WebP), 2.7.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

UPRIGHT, UPSIDE_DOWN = 1, 4  # the latter mirrored: its top and bottom are exchanged
QUARTERS = (6, 3, 8)  # by 90, 180 and 270 degrees, clockwise
# Orientation -> whether the shown frame's x, and its y, is counted from the other end, and then x and y are swapped, to
# come to the stored frame.
TURNS = {
    1: (False, False, False), 2: (True, False, False), 3: (True, True, False), 4: (False, True, False),
    5: (False, False, True), 6: (True, False, True), 7: (True, True, True), 8: (False, True, True),
}  # fmt: skip
_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_90,
}  # fmt: skip

_TAG = 0x0112
# Segments before the first scan are at most 64 kB each; real files have a dozen, a panorama with its extras a few hundred.
MAX_SEGMENTS = 1_000
# Chunks and tags beyond these numbers are no photo's; a PNG of 178 megapixels in chunks of 8 kB has 65,000.
MAX_CHUNKS, _MAX_TAGS = 100_000, 1_000

# Bits of the index's `flags` array.
ROTATED = 4  # an orientation other than 1
_SHIFT = 5  # the three highest bits: the orientation less 1; manifests of older versions have zeros there


def read_orientation(data: bytes) -> int:
    """-> 1 (upright, or not said) to 8, as the camera noted it in an encoded photo."""
    if data[:2] == b"\xff\xd8":
        return _tag(_jpeg_exif(data))
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return _tag(_chunk(data, 8, b"eXIf", ">"))
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _tag(_chunk(data, 12, b"EXIF", "<"))
    return UPRIGHT


def swaps_sides(orientation: Any) -> Any:
    """Whether the shown photo's width is the stored one's height: a bool, or an array of them."""
    return orientation >= 5


def compose_orientations(first: int, then: int) -> int:
    """The one orientation that shows a stored photo as `first` does and then `then`."""
    (right, below, swapped), (more_right, more_below, again) = TURNS[first], TURNS[then]
    if again:
        right, below = below, right
    wanted = (right != more_right, below != more_below, swapped != again)
    return next(orientation for orientation, turns in TURNS.items() if turns == wanted)


def rotate_points(points: np.ndarray, orientation: int, height: int, width: int) -> np.ndarray:
    """(P, 2) x, y in a stored photo of (height, width) pixels -> where they are shown."""
    if orientation == UPRIGHT:
        return points
    from_right, from_below, swapped = TURNS[orientation]
    moved = points[:, ::-1].copy() if swapped else points.copy()
    shown_height, shown_width = (width, height) if swapped else (height, width)
    if from_right:
        moved[:, 0] = shown_width - moved[:, 0]
    if from_below:
        moved[:, 1] = shown_height - moved[:, 1]
    return moved


def rotate_boxes(ltrb: np.ndarray, orientation: int, height: int, width: int) -> np.ndarray:
    """`rotate_points` for boxes, (n, 4) left, top, right, bottom."""
    corners = rotate_points(ltrb.reshape(-1, 2), orientation, height, width).reshape(-1, 2, 2)
    return np.concatenate((corners.min(axis=1), corners.max(axis=1)), axis=1)


def rotate_image(picture: Image.Image, orientation: int) -> Image.Image:
    """A stored picture, or a region of one, as it is shown; the same object where it is upright."""
    return picture if orientation == UPRIGHT else picture.transpose(_TRANSPOSES[orientation])


def rotate_pixels(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """`rotate_image` for an array (h, w, 3) uint8; contiguous where `pixels` is."""
    return pixels if orientation == UPRIGHT else np.array(rotate_image(Image.fromarray(pixels), orientation))


def read_index_flags(orientation: int) -> int:
    """Bits of the index's `flags`."""
    return 0 if orientation == UPRIGHT else ROTATED | (orientation - 1) << _SHIFT


def orientations(flags: np.ndarray) -> np.ndarray:
    """(N,) flags -> (N,) uint8, 1 to 8; 0 from an older version, which noted that the photo is rotated and not how."""
    result = (flags >> _SHIFT) + 1
    return np.where((flags & ROTATED != 0) & (result == UPRIGHT), 0, result).astype(np.uint8)


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """-> (marker, its offset) of each segment in the header of a JPEG; it ends at a byte that begins none.

    Whoever asks stops at the first scan, behind which no lengths lead from marker to marker.
    """
    at, end = 2, len(data) - 4
    for _ in range(MAX_SEGMENTS):
        if at > end or data[at] != 0xFF:
            return
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        yield marker, at
        # Some markers stand alone.
        at += 2 if marker == 0x01 or 0xD0 <= marker <= 0xD8 else 2 + (data[at + 2] << 8 | data[at + 3])


def _jpeg_exif(data: bytes) -> bytes:
    """The content of the first "Exif" segment before the picture."""
    for marker, at in jpeg_segments(data):
        if marker in (0xD9, 0xDA):  # the picture begins, or ends
            break
        if marker == 0xE1 and data[at + 4 : at + 10] == b"Exif\0\0":
            return data[at + 10 : at + 2 + (data[at + 2] << 8 | data[at + 3])]
    return b""


def _chunk(data: bytes, at: int, wanted: bytes, order: str) -> bytes:
    """The content of the first chunk of that name.

    at     of the first chunk
    order  ">" for PNG (length, name, content, checksum), "<" for RIFF (name, length, content, filled up to an even number)
    """
    for _ in range(MAX_CHUNKS):
        if at + 8 > len(data):
            return b""
        first, second = data[at : at + 4], data[at + 4 : at + 8]
        name, size = (second, first) if order == ">" else (first, second)
        length = struct.unpack(order + "I", size)[0]
        if name == wanted:
            return data[at + 8 : at + 8 + length].removeprefix(b"Exif\0\0")  # some writers copy JPEG's prefix along
        at += 12 + length if order == ">" else 8 + length + length % 2
    return b""


def _tag(block: bytes) -> int:
    """The orientation in EXIF's first directory; a block is a TIFF file without a picture."""
    value = tiff_value(block, _TAG)
    return value if value in TURNS else UPRIGHT


def tiff_value(block: bytes, wanted: int) -> int:
    """The whole number of a tag in a TIFF's first directory; 0 if it is not there, or the block is not a TIFF."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(block[:4])
    if order is None or len(block) < 8:
        return 0
    start = struct.unpack_from(order + "I", block, 4)[0]
    if start + 2 > len(block):
        return 0
    tags = min(struct.unpack_from(order + "H", block, start)[0], _MAX_TAGS)
    for at in range(start + 2, min(start + 2 + 12 * tags, len(block) - 11), 12):
        tag, kind, count = struct.unpack_from(order + "HHI", block, at)
        if tag == wanted:
            if count != 1 or kind not in (3, 4):  # SHORT by the standard; some write LONG
                return 0
            return struct.unpack_from(order + ("H" if kind == 3 else "I"), block, at + 8)[0]
    return 0
