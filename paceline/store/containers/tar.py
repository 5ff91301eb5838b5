"""Tar: where each plain file lies. Nothing is unpacked, and tars inside a tar are read where they are.

A header of 512 bytes, then the data, filled up to a multiple of 512; two blocks of zeros end the archive. Read are the formats
v7, ustar, GNU (long names, sizes beyond 8 GiB) and pax (path, size). Folders are passed over; so are links, devices and sparse
files, unless they have a photo's name: there is no run of bytes that would be that photo.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from paceline.config.errors import DataError
from paceline.config.image_name import is_image_name
from paceline.store.containers.reading import Member, Truncated, checked_name, read_at, refuse_compressed, shown
from paceline.store.containers.tar_header import (
    BLOCK,
    DESCRIBING,
    FOLDER,
    MOST_DESCRIBED,
    PLAIN,
    SPARSE,
    WITHOUT_DATA,
    Described,
    Header,
    described,
    parse_header,
)

_KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a named pipe",
    SPARSE: "a sparse file",
}
_ZEROS = bytes(BLOCK)
# Searched behind the end mark for a second archive.
_SEARCHED = 1 << 20


class _Cut(Exception):
    """The bytes end too early: where, and inside what."""


def tar_members(file: BinaryIO, size: int, name: str) -> Iterator[Member]:
    """The plain files, in the archive's order, by one short read each.

    Raises Truncated after the last whole file of an archive that is cut off (one without its end mark is), DataError where it is
    compressed, damaged or no tar, has a name that leaves its folder, or something else than a plain file under a photo's name.
    """
    records = 0
    try:
        for member in _members(file, 0, size, name):
            yield member
            records += 1
    except _Cut as cut:
        raise Truncated(name, records, *cut.args) from None


def inner_tars(file: BinaryIO, size: int, name: str) -> Iterator[tuple[bytes, Member]]:
    """The files of each tar in a tar: (the inner tar's name, a file of it with its place in the outer file).

    Raises as `tar_members`, and DataError where photos lie beside the inner tars.
    """
    records = 0
    try:
        for outer in _entries(file, 0, size, name):
            base = outer.name.rsplit(b"/", 1)[-1]
            if base.startswith(b".") or not base.lower().endswith(b".tar"):
                if is_image_name(base):
                    raise DataError(f"{name}: {shown(outer.name)} lies beside tars, in one of which it should be.")
                continue
            end = min(outer.offset + outer.length, size)
            for member in _members(file, outer.offset, end, f"{name}: {shown(outer.name)}"):
                yield outer.name, member
                records += 1
    except _Cut as cut:
        raise Truncated(name, records, *cut.args) from None


def _members(file: BinaryIO, begin: int, end: int, archive: str) -> Iterator[Member]:
    """The plain files of the tar in the bytes from `begin` to `end`. Raises _Cut."""
    for member in _entries(file, begin, end, archive):
        if member.offset + member.length > end:
            raise _Cut(end, f"inside {shown(member.name)}")
        yield member


def _entries(file: BinaryIO, begin: int, end: int, archive: str) -> Iterator[Member]:
    """The plain files that the tar from `begin` to `end` names; the last one's data may be cut off. Raises _Cut."""
    at = begin
    while True:
        header, about, at = _next(file, at, begin, end, archive)
        if header is None:
            _refuse_joined(file, at, end, archive)
            return
        name = checked_name(header.name if about.name is None else about.name, archive)
        length = header.data if about.data is None or header.kind in WITHOUT_DATA else about.data
        kind = SPARSE if about.sparse else header.kind
        if kind == PLAIN and name:
            yield Member(name, at, length)
        elif kind != FOLDER and is_image_name(name.rsplit(b"/", 1)[-1]):
            raise DataError(
                f"{archive}: {shown(name)} is {_KINDS.get(kind, 'of an unknown kind')}, which has no bytes of its own. "
                "Pack the archive again with the photo itself."
            )
        elif header.kind == SPARSE:
            at = _behind_map(file, at, end)
        at += length + -length % BLOCK


def _next(file: BinaryIO, at: int, begin: int, end: int, archive: str) -> tuple[Header | None, Described, int]:
    """-> the next file's own header (None at the end mark), what headers before it say, and the first byte after it."""
    about = Described()
    while True:
        block = read_at(file, at, BLOCK) if at + BLOCK <= end else b""
        if len(block) < BLOCK:
            refuse_compressed(read_at(file, at, end - at) if at == begin else b"", archive)
            raise _Cut(end, f"inside the header at byte {at:,}" if at < end else "where its end mark should be")
        if block == _ZEROS:
            return None, about, at
        try:
            header = parse_header(block)
            if header is None:
                raise ValueError("a wrong sum")
            if header.kind not in DESCRIBING:
                return header, about, at + BLOCK
            if header.data > MOST_DESCRIBED:
                raise ValueError(f"a name or notes of {header.data:,} bytes")
            text = read_at(file, at + BLOCK, header.data) if at + BLOCK + header.data <= end else b""
            if len(text) < header.data:
                raise _Cut(end, f"inside the header at byte {at:,}")
            about = described(about, header.kind, text)
        except ValueError as error:
            if at == begin:
                refuse_compressed(block, archive)
                raise DataError(
                    f"{archive}: it does not begin with a tar's header ({error}), so this is no tar."
                ) from None
            raise DataError(
                f"{archive}: the header at byte {at:,} is damaged ({error}). Copy or download the archive again."
            ) from None
        at += BLOCK + header.data + -header.data % BLOCK


def _behind_map(file: BinaryIO, at: int, end: int) -> int:
    """Where the data of GNU's old sparse file begin: more of its map may lie between, each block of it saying whether."""
    more = read_at(file, at - BLOCK, BLOCK)[482:483]
    while more not in (b"\0", b"") and at < end:
        more = read_at(file, at, BLOCK)[504:505]
        at += BLOCK
    return at


def _refuse_joined(file: BinaryIO, at: int, end: int, archive: str) -> None:
    """Raises DataError where another tar begins behind the end mark at `at`: most programs would not see its files."""
    rest = read_at(file, at, min(end - at, _SEARCHED))
    filled = len(rest) - len(rest.lstrip(b"\0"))
    second = filled // BLOCK * BLOCK
    block = rest[second : second + BLOCK]
    try:
        joined = len(block) == BLOCK and parse_header(block) is not None
    except ValueError:
        joined = False
    if joined:
        raise DataError(
            f"{archive}: a second tar begins behind the end of the first, at byte {at + second:,}. Join tars with  tar -A , or give "
            "them one by one."
        )


# Tars of plain files: ustar, and pax where a name or a size does not fit. The same files give the same bytes.


# As much is written and read at once by tape drives, and by every tar program since.
RECORD = 20 * BLOCK


def write_tar(out: BinaryIO, files: Iterable[tuple[bytes, bytes]]) -> list[tuple[int, int]]:
    """Writes the files (name, bytes) and the end mark; -> first byte and length of each one's data."""
    at, placed = 0, []
    for name, data in files:
        header = member_header(name, len(data))
        out.write(header)
        out.write(data)
        out.write(bytes(-len(data) % BLOCK))
        placed.append((at + len(header), len(data)))
        at += len(header) + len(data) + -len(data) % BLOCK
    out.write(end_mark(at))
    return placed


def member_header(name: bytes, length: int) -> bytes:
    """What comes before a file's data: no owner, no time, readable by all."""
    info = tarfile.TarInfo(os.fsdecode(name))
    info.size = length
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def end_mark(at: int) -> bytes:
    """What ends an archive of `at` bytes: two blocks of zeros, and zeros up to a whole record."""
    return bytes(2 * BLOCK + -(at + 2 * BLOCK) % RECORD)
