"""Shared by all readers of containers: bytes by position, the largest size of a photo, where a file was cut off, members, objects.

A container comes as an open binary file that can seek (a local file, or a buffered object of a store), its size in bytes and
its name for messages. OSError of the file itself goes through to the caller, who knows where the file lies.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from paceline._utils.errors import DataError
from paceline._utils.text import escape_line

if TYPE_CHECKING:  # numpy is for annotations: a refusal from the command line must not wait for it
    import numpy as np

# Nothing larger than this in a container is read into memory: no photo is.
MAX_BYTES = 1 << 30

_COMPRESSED = (
    (b"\x1f\x8b", "gzip"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bzip2"),
    (b"\x04\x22\x4d\x18", "lz4"),
)
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


class Truncated(DataError):
    """A container that ends before its last record does. All records that are whole were given out before it was raised.

    records  how many those are
    offset   bytes that there are: where the file is cut off
    inside   the place there, in words
    """

    def __init__(self, name: str, records: int, offset: int, inside: str) -> None:
        super().__init__(
            f"{name}: truncated at byte {offset:,}, {inside}, after {records:,} complete records. Copy or download it "
            "again, or use only the complete records:  --on-truncated skip"
        )
        self.records, self.offset, self.inside = records, offset, inside


def read_at(file: BinaryIO, offset: int, length: int) -> bytes:
    """Up to `length` bytes from `offset` on: fewer only at the file's end. Raises OSError."""
    file.seek(offset)
    data = file.read(length)
    while len(data) < length and (more := file.read(length - len(data))):
        data += more
    return data


def compression(start: bytes) -> str:
    """The compression of a file that begins so, as a whole; "" for none."""
    return next((kind for magic, kind in _COMPRESSED if start.startswith(magic)), "")


def refuse_compressed(start: bytes, name: str) -> None:
    """Raises DataError where `start`, the first bytes of a file, are those of a file that was compressed as a whole."""
    if kind := compression(start):
        raise DataError(
            f"{name}: the file is compressed as a whole ({kind}). Decompress it once:  {kind} -dc FILE > UNPACKED"
        )
    if start.startswith(_ZLIB):
        raise DataError(
            f"{name}: the file is compressed as a whole (zlib), which is not supported. Write it without compression."
        )


# Linux's longest path; nobody's photo has a longer name.
MAX_NAME_BYTES = 4096
_PLAIN = re.compile(rb"[^/\0\n\r]+(?:/[^/\0\n\r]+)*")
_DOTS = re.compile(rb"(?:^|/)\.\.?(?:/|$)")


AS_IT_IS = -1  # a stored length: the bytes lie in the file as they are read


class Member(NamedTuple):
    """A plain file in a container."""

    name: bytes  # "./" and doubled slashes left out: no absolute one, no "..", no line break
    offset: int  # first byte, in the outermost file, of what is stored for it
    length: int  # bytes of the file
    stored: int = AS_IT_IS  # bytes that lie there for it, where they are packed
    crc: int = -1  # CRC-32 of the file; -1 where the container has none


class ImageBoxes(NamedTuple):
    """The objects of one photo as record files have them."""

    height: int  # pixels
    width: int
    boxes: np.ndarray  # (M, 4) xyxy, fractions of width and height
    classes: np.ndarray  # (M,) int64, the data's own ids
    crowd: np.ndarray  # (M,) bool
    areas: np.ndarray | None = None  # (M,) square pixels; None: those of the masks, or the boxes
    masks: Sequence[bytes] | None = None  # M PNGs of the photo's size; None: no masks
    names: Sequence[bytes] = ()  # M names of the classes; empty: they have numbers alone


def format_member(name: bytes) -> str:
    """A member's name for a message."""
    return escape_line(os.fsdecode(name[:300]))


def check_member_name(name: bytes, archive: str) -> bytes:
    """`name` with its "./", doubled and last slashes left out; empty where nothing else was in it.

    Raises DataError where it would leave the folder that it is unpacked in, or would forge lines of messages and lists.
    """
    if _PLAIN.fullmatch(name) and not _DOTS.search(name) and len(name) <= MAX_NAME_BYTES:
        return name
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if name.startswith(b"/"):
        why = "an absolute path"
    elif b".." in parts:
        why = 'a path with ".."'
    elif b"\0" in name or b"\n" in name or b"\r" in name:
        why = "a line break or a zero byte"
    elif len(name) > MAX_NAME_BYTES:
        why = f"more than {MAX_NAME_BYTES:,} bytes"
    else:
        return b"/".join(parts)
    raise DataError(f"{archive}: the member name {format_member(name)} is not allowed: {why}. The archive is not used.")
