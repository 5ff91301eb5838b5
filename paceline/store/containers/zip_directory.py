"""A zip's central directory: found from the file's end, and read entry by entry.

    entry       46 bytes, name, extra fields, comment, for each member
    end record  22 bytes and a comment, the file's last; where numbers are large, zip64's own of 56 bytes and its locator of 20
                come before it
Source: PKWARE's APPNOTE.TXT, 6.3.10, sections 4.3.12 to 4.3.16 and 4.5.3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from paceline.config.errors import DataError
from paceline.store.containers.reading import MOST_BYTES, read_at

LOCAL_MARK = b"PK\3\4"
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_CENTRAL_MARK = b"PK\1\2"
_END = struct.Struct("<4sHHHHIIH")
_END_MARK = b"PK\5\6"
_LOCATOR = struct.Struct("<4sIQI")
_LOCATOR_MARK = b"PK\6\7"
_END64 = struct.Struct("<4sQHHIIQQQQ")
_END64_MARK = b"PK\6\6"
_LONGEST_COMMENT = 0xFFFF
# A field of 32 bits that is full stands in the extra field of this number, in 64 bits.
_FULL = 0xFFFFFFFF
_ZIP64_FIELD = 1
_DOS, _UNIX = 0, 3
_KIND_OF_FILE, _LINK = 0o170000, 0o120000


class Entry(NamedTuple):
    """What the directory says of a member."""

    name: bytes
    stored_name: bytes  # as its local header must have it
    at: int  # its local header's first byte
    length: int
    stored_length: int
    method: int
    flags: int
    crc: int
    is_link: bool


class Directory(NamedTuple):
    """Where the directory lies: [begin, end), how many entries it has, and what their offsets lack."""

    begin: int
    end: int
    entries: int
    shift: int  # bytes before the archive, of a program that unpacks itself for instance


def find_directory(file: BinaryIO, size: int, archive: str) -> Directory | None:
    """None where there is no end record that leads to a directory. Raises DataError for one in several files."""
    tail_at = max(0, size - _END.size - _LONGEST_COMMENT)
    tail = read_at(file, tail_at, size - tail_at)
    found, in_parts = len(tail), False
    # The mark may stand in the comment too.
    while (found := tail.rfind(_END_MARK, 0, found)) >= 0:
        if len(tail) - found < _END.size:
            continue
        _, disk, first_disk, _, entries, length, offset, comment = _END.unpack_from(tail, found)
        if comment > len(tail) - found - _END.size:
            continue
        end = tail_at + found
        large = _find_zip64(file, end)
        if large:
            end, disk, first_disk, entries, length, offset = large
        if disk or first_disk:
            in_parts = True
            continue
        begin = end - length
        if 0 <= offset <= begin and (not length or read_at(file, begin, 4) == _CENTRAL_MARK):
            return Directory(begin, end, entries, begin - offset)
    if in_parts:
        raise DataError(
            f"{archive}: one part of a zip in several files. Join them first:  zip -s 0 FIRST.zip --out WHOLE.zip"
        )
    return None


def read_entries(file: BinaryIO, directory: Directory, archive: str) -> Iterator[Entry]:
    """The entries in the directory's order. Raises DataError where it is damaged, or too large to be one."""
    length = directory.end - directory.begin
    if length > MOST_BYTES:
        raise DataError(f"{archive}: its directory has {length:,} bytes; {MOST_BYTES:,} are read at most.")
    data = read_at(file, directory.begin, length)
    at = entries = 0
    while at < len(data):
        if len(data) - at < _CENTRAL.size or data[at : at + 4] != _CENTRAL_MARK:
            raise _damaged(archive, directory.begin + at)
        words = _CENTRAL.unpack_from(data, at)
        (
            _,
            made_by,
            _,
            flags,
            method,
            _,
            _,
            crc,
            stored_length,
            length,
            name_length,
            extra,
            comment,
            _,
            _,
            outside,
            local,
        ) = words
        name_at = at + _CENTRAL.size
        extra_at = name_at + name_length
        end = extra_at + extra + comment
        if end > len(data):
            raise _damaged(archive, directory.begin + at)
        name = stored_name = data[name_at:extra_at]
        if _FULL in (length, stored_length, local):
            length, stored_length, local = large_numbers(
                (length, stored_length, local), data[extra_at : extra_at + extra], archive, directory.begin + at
            )
        system = made_by >> 8
        if system == _DOS:
            name = name.replace(b"\\", b"/")
        is_link = system == _UNIX and (outside >> 16) & _KIND_OF_FILE == _LINK
        yield Entry(name, stored_name, local + directory.shift, length, stored_length, method, flags, crc, is_link)
        entries += 1
        at = end
    if entries & 0xFFFF != directory.entries & 0xFFFF:  # writers without zip64 count in 16 bits
        raise DataError(
            f"{archive}: its end record counts {directory.entries:,} members, its directory has {entries:,}: damaged."
        )


def large_numbers(numbers: tuple[int, ...], extra: bytes, archive: str, where: int) -> tuple[int, ...]:
    """`numbers`, those that are full replaced by zip64's, which `extra` holds in the same order. Raises DataError."""
    at = 0
    while at + 4 <= len(extra):
        field, length = struct.unpack_from("<HH", extra, at)
        if field == _ZIP64_FIELD:
            full = [number == _FULL for number in numbers]
            if length < 8 * sum(full) or at + 4 + 8 * sum(full) > len(extra):
                break
            values = iter(struct.unpack_from(f"<{sum(full)}Q", extra, at + 4))
            return tuple(next(values) if is_full else number for is_full, number in zip(full, numbers))
        at += 4 + length
    raise _damaged(archive, where)


def _find_zip64(file: BinaryIO, end: int) -> tuple[int, int, int, int, int, int] | None:
    """-> where zip64's end record begins, and its numbers; None where there is none before `end`."""
    at = end - _LOCATOR.size
    if at < _END64.size:
        return None
    locator = read_at(file, at, _LOCATOR.size)
    if locator[:4] != _LOCATOR_MARK:
        return None
    # Where the locator says, or, with bytes before the archive, directly before the locator.
    for begin in (_LOCATOR.unpack(locator)[2], at - _END64.size):
        if begin <= at - _END64.size:
            record = read_at(file, begin, _END64.size)
            if record[:4] == _END64_MARK:
                _, _, _, _, disk, first_disk, _, entries, length, offset = _END64.unpack(record)
                return begin, disk, first_disk, entries, length, offset
    return None


def _damaged(archive: str, at: int) -> DataError:
    return DataError(f"{archive}: its directory is damaged at byte {at:,}. Copy or download the archive again.")
