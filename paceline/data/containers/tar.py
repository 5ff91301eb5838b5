"""Tar: where each plain file lies. Nothing is unpacked, and tars inside a tar are read where they are.

A header of 512 bytes, then the data, filled up to a multiple of 512; two blocks of zeros end the archive. Read are the formats
v7, ustar, GNU (long names, sizes beyond 8 GiB) and pax (path, size). Folders are passed over; so are links, devices and sparse
files, unless they have a photo's name: there is no run of bytes that would be that photo.

    bytes   0..99 name   124..135 length   148..155 sum of all bytes   156 kind   257..262 format   345..499 what precedes the name
Numbers are octal digits, or, where the first bit is set, the rest of the field as a binary number.
Python's tarfile takes three times as long for an archive of a million files.
Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header"; GNU tar's manual, "Basic Tar Format".
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from paceline._utils.errors import DataError
from paceline._utils.names import in_system_folder, is_image_path
from paceline.data.containers.reading import Member, Truncated, check_member_name, format_member, read_at, refuse_compressed

BLOCK = 512
# As much is written and read at once by tape drives, and by every tar program since.
RECORD = 20 * BLOCK
_PLAIN, _FOLDER, _SPARSE = b"0", b"5", b"S"
_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL = b"L", b"K", b"x", b"g"
# Followed by a text about the next file.
_DESCRIBING = frozenset((_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL))
# Names of Linux have 4,096 bytes at most; pax' records hold a few of them, and times.
_LONGEST_TEXT = 1 << 20
_KINDS = {
    b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"6": "a named pipe",
    _SPARSE: "a sparse file",
}  # fmt: skip
# Links, devices, folders and pipes have no data, whatever their length field holds.
_WITHOUT_DATA = frozenset((b"1", b"2", b"3", b"4", b"5", b"6"))
_PAX_RECORD = re.compile(rb"([1-9][0-9]{0,9}) ([^=\n]+)=")
_ZEROS = bytes(BLOCK)
# Searched behind the end mark for a second archive.
_SEARCHED = 1 << 20


class _Cut(Exception):
    """The bytes end too early: where, and inside what."""


class _Header(NamedTuple):
    """One header; `data` bytes follow it, filled up to whole blocks."""

    name: bytes
    kind: bytes  # _PLAIN for each of the three marks of a plain file
    data: int


class _About(NamedTuple):
    """What earlier headers have of the next file; None: nothing."""

    name: bytes | None = None
    data: int | None = None
    sparse: bool = False


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
            if in_system_folder(outer.name) or not base.lower().endswith(b".tar"):
                if is_image_path(outer.name):
                    raise DataError(f"{name}: {format_member(outer.name)} is outside the inner tars. Move it into one.")
                continue
            end = min(outer.offset + outer.length, size)
            for member in _members(file, outer.offset, end, f"{name}: {format_member(outer.name)}"):
                yield outer.name, member
                records += 1
    except _Cut as cut:
        raise Truncated(name, records, *cut.args) from None


def _members(file: BinaryIO, begin: int, end: int, archive: str) -> Iterator[Member]:
    """The plain files of the tar in the bytes from `begin` to `end`. Raises _Cut."""
    for member in _entries(file, begin, end, archive):
        if member.offset + member.length > end:
            raise _Cut(end, f"inside {format_member(member.name)}")
        yield member


def _entries(file: BinaryIO, begin: int, end: int, archive: str) -> Iterator[Member]:
    """The plain files that the tar from `begin` to `end` names; the last one's data may be cut off. Raises _Cut."""
    at = begin
    while True:
        header, about, at = _next(file, at, begin, end, archive)
        if header is None:
            _refuse_joined(file, at, end, archive)
            return
        name = check_member_name(header.name if about.name is None else about.name, archive)
        length = header.data if about.data is None or header.kind in _WITHOUT_DATA else about.data
        kind = _SPARSE if about.sparse else header.kind
        if kind == _PLAIN and name:
            yield Member(name, at, length)
        elif kind != _FOLDER and is_image_path(name):
            raise DataError(
                f"{archive}: {format_member(name)} is {_KINDS.get(kind, 'of an unknown type')}, which has no data. Pack "
                "the archive again with the image itself:  tar --dereference --hard-dereference -cf NEW.tar FOLDER"
            )
        elif header.kind == _SPARSE:
            # More of GNU's old map may lie before the data, each block of it saying whether.
            more = read_at(file, at - BLOCK, BLOCK)[482:483]
            while more not in (b"\0", b"") and at < end:
                more = read_at(file, at, BLOCK)[504:505]
                at += BLOCK
        at += length + -length % BLOCK


def _next(file: BinaryIO, at: int, begin: int, end: int, archive: str) -> tuple[_Header | None, _About, int]:
    """-> the next file's own header (None at the end mark), what headers before it have of it, and the first byte after it."""
    about = _About()
    while True:
        block = read_at(file, at, BLOCK) if at + BLOCK <= end else b""
        if len(block) < BLOCK:
            refuse_compressed(read_at(file, at, end - at) if at == begin else b"", archive)
            raise _Cut(end, f"inside the header at byte {at:,}" if at < end else "at its end marker")
        if block == _ZEROS:
            return None, about, at
        try:
            header = _parse_header(block)
            if header is None:
                raise ValueError("a wrong checksum")
            if header.kind not in _DESCRIBING:
                return header, about, at + BLOCK
            if header.data > _LONGEST_TEXT:
                raise ValueError(f"a name or metadata of {header.data:,} bytes")
            text = read_at(file, at + BLOCK, header.data) if at + BLOCK + header.data <= end else b""
            if len(text) < header.data:
                raise _Cut(end, f"inside the header at byte {at:,}")
            about = _described(about, header.kind, text)
        except ValueError as error:
            if at == begin:
                refuse_compressed(block, archive)
                raise DataError(f"{archive}: not a tar file: it does not start with a tar header ({error}).") from None
            raise DataError(
                f"{archive}: the header at byte {at:,} is damaged ({error}). Copy or download it again."
            ) from None
        at += BLOCK + header.data + -header.data % BLOCK


def _parse_header(block: bytes) -> _Header | None:
    """The header in 512 bytes; None where their sum is wrong. Raises ValueError where a number in it is none."""
    try:
        stored = _number(block[148:156])
    except ValueError:
        return None
    # The sum counts its own field as eight spaces; old programs added the bytes as signed ones.
    result = sum(block) - sum(block[148:156]) + 8 * 32
    if stored != result and stored != result - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
        return None
    name = block[:100].partition(b"\0")[0]
    if block[257:263] == b"ustar\0":
        # Some writers (star) keep times behind a shorter prefix, and mark that in the last bytes.
        before = block[345:476] if block[508:512] == b"tar\0" else block[345:500]
        if before[0]:
            name = before.partition(b"\0")[0] + b"/" + name
    kind = block[156:157]
    if kind == b"\0" and name.endswith(b"/"):  # as folders were marked before ustar
        kind = _FOLDER
    elif kind in (b"\0", b"7"):
        kind = _PLAIN
    elif kind == b"X":  # Solaris' own letter
        kind = _PAX
    return _Header(name, kind, 0 if kind in _WITHOUT_DATA else _number(block[124:136]))


def _number(field: bytes) -> int:
    """Octal digits between spaces and zero bytes, or a binary number. Raises ValueError."""
    if field[0] & 0x80:
        value = int.from_bytes(field, "big") - (0x80 << 8 * (len(field) - 1))
        if value >= 1 << 62:
            raise ValueError("a negative or unlimited length")
        return value
    digits = field.partition(b"\0")[0].strip()
    if digits and not digits.isdigit():
        raise ValueError("a length that is not a number")
    return int(digits or b"0", 8)


def _described(before: _About, kind: bytes, text: bytes) -> _About:
    """`before` with one more describing header. Raises ValueError, in a few words, where it cannot be read.

    Of two that name a file, the first counts, as in GNU tar's and Python's readers.
    """
    if kind == _LONG_NAME:
        return before if before.name is not None else before._replace(name=text.partition(b"\0")[0])
    if kind == _LONG_LINK:
        return before
    records: dict[bytes, bytes] = {}  # "LENGTH KEY=VALUE\n"
    at = 0
    while at < len(text) and text[at]:
        result = _PAX_RECORD.match(text, at)
        end = at + int(result[1]) if result else 0
        if not result or end <= result.end() or text[end - 1 : end] != b"\n":
            raise ValueError("invalid pax records")
        records[result[2]] = text[result.end() : end - 1]
        at = end
    if kind == _PAX_GLOBAL:
        if b"path" in records or b"size" in records:
            raise ValueError("one name or length for all members")
        return before
    name = before.name if before.name is not None else records.get(b"path")
    data = before.data
    if data is None and b"size" in records:
        if not records[b"size"].isdigit():
            raise ValueError("a length that is not a number")
        data = int(records[b"size"][:30])
    return _About(name, data, before.sparse or any(key.startswith(b"GNU.sparse.") for key in records))


def _refuse_joined(file: BinaryIO, at: int, end: int, archive: str) -> None:
    """Raises DataError where another tar begins behind the end mark at `at`: most programs would not see its files."""
    rest = read_at(file, at, min(end - at, _SEARCHED))
    second = (len(rest) - len(rest.lstrip(b"\0"))) // BLOCK * BLOCK
    block = rest[second : second + BLOCK]
    try:
        joined = len(block) == BLOCK and _parse_header(block) is not None
    except ValueError:
        joined = False
    if joined:
        raise DataError(
            f"{archive}: a second tar starts after the end of the first, at byte {at + second:,}. Join tar files with  tar "
            "-A , or pass them separately."
        )


def write_tar(out: BinaryIO, files: Iterable[tuple[bytes, bytes]]) -> list[tuple[int, int]]:
    """Write the files (name, bytes) and the end mark; -> first byte and length of each one's data.

    ustar, and pax where a name or a size does not fit; no owner, no time, readable by all: the same files give the same bytes.
    """
    at, placed = 0, []
    for name, data in files:
        info = tarfile.TarInfo(os.fsdecode(name))
        info.size = len(data)
        header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        filling = bytes(-len(data) % BLOCK)
        for piece in (header, data, filling):
            out.write(piece)
        placed.append((at + len(header), len(data)))
        at += len(header) + len(data) + len(filling)
    out.write(bytes(2 * BLOCK + -(at + 2 * BLOCK) % RECORD))  # the end mark, and zeros up to a whole record
    return placed
