"""Zip: where each member's bytes lie, stored or deflated; zip64 too. Nothing is unpacked to be listed.

    member      local header of 30 bytes, name, extra fields, the bytes, perhaps a descriptor that repeats their sizes
    directory   46 bytes, name, extra fields, comment, for each member
    end record  22 bytes and a comment, the file's last; where numbers are large, zip64's own of 56 bytes and its locator of 20
                come before it
The directory counts; each local header must agree with it, and no two members may share bytes: an archive whose members do unpacks
to far more than it is (a bomb). Source: PKWARE's APPNOTE.TXT, 6.3.10, sections 4.3.7 to 4.5.3.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from paceline._utils.errors import DataError
from paceline._utils.names import is_image_path
from paceline.data.containers.reading import (
    AS_IT_IS,
    MAX_BYTES,
    Member,
    Truncated,
    check_member_name,
    format_member,
    read_at,
)

# Deflate makes at most this many bytes of one.
MAX_RATIO = 1032
# No large picture is packed so well: its bytes would fill the memory.
LARGE, MAX_LARGE_RATIO = 1 << 26, 100

_LOCAL, _LOCAL_MARK = struct.Struct("<4sHHHHHIIIHH"), b"PK\3\4"
_CENTRAL, _CENTRAL_MARK = struct.Struct("<4s6H3I5H2I"), b"PK\1\2"
_END, _END_MARK = struct.Struct("<4sHHHHIIH"), b"PK\5\6"
_LOCATOR, _LOCATOR_MARK = struct.Struct("<4sIQI"), b"PK\6\7"
_END64, _END64_MARK = struct.Struct("<4sQHHIIQQQQ"), b"PK\6\6"
_LONGEST_COMMENT = 0xFFFF
# A field of 32 bits that is full stands in the extra field of this number, in 64 bits.
_FULL, _ZIP64_FIELD = 0xFFFFFFFF, 1
_ENCRYPTED, _DESCRIPTOR, _MASKED = 0x1, 0x8, 0x2000
_DOS, _UNIX = 0, 3
_UTF8 = 0x800  # bit 11 of the flags
_KIND_OF_FILE, _LINK = 0o170000, 0o120000
_STORED, _DEFLATED = 0, 8
_METHODS = {
    1: "shrunk", 6: "imploded", 9: "deflate64", 12: "bzip2", 14: "LZMA", 93: "zstd", 95: "xz", 98: "PPMd", 99: "AES",
}  # fmt: skip


class _Entry(NamedTuple):
    """A member in the directory."""

    name: bytes
    stored_name: bytes  # as its local header must have it
    at: int  # its local header's first byte
    length: int
    stored_length: int
    method: int
    flags: int
    crc: int
    is_link: bool


class _Directory(NamedTuple):
    """Where the directory lies: [begin, end), how many entries it has, and what their offsets lack."""

    begin: int
    end: int
    entries: int
    shift: int  # bytes before the archive, of a program that unpacks itself for instance


def zip_members(file: BinaryIO, size: int, name: str) -> Iterator[Member]:
    """The plain files in the order of their bytes, by one short read each; folders are passed over, and links of other names than
    photos'.

    Raises Truncated after the last whole member of an archive that is cut off (where each has its size before its bytes), DataError
    where it is damaged or no zip, has a name that leaves its folder, a link under a photo's name, an encrypted member, one packed
    by another method, members that share bytes, or one whose size is a bomb's.
    """
    directory = _find_directory(file, size, name)
    begins = read_at(file, 0, 4)
    if directory is None or (directory.shift and begins == _LOCAL_MARK):
        if begins != _LOCAL_MARK[: len(begins)] or not begins:
            raise DataError(f"{name}: not a zip file, because it does not start or end like a zip.")
        yield from _before_the_cut(file, size, name)
        return
    reached = 0
    for entry in sorted(_read_entries(file, directory, name), key=lambda entry: entry.at):
        offset = _data_offset(file, entry, name) if entry.at < directory.begin else entry.at
        if entry.at < reached or offset + entry.stored_length > directory.begin:
            own = format_member(entry.name)
            raise DataError(f"{name}: the bytes of {own} overlap other members. The archive is damaged or a zip bomb.")
        reached = offset + entry.stored_length
        if member := _plain(entry, offset, name):
            yield member


def inflate(stored: bytes, length: int) -> bytes:
    """The photo in the bytes of a deflated member; no more than a byte beyond `length` is ever unpacked.

    Raises ValueError where they do not unpack to exactly so many bytes.
    """
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        data = stream.decompress(stored, length + 1)
    except zlib.error as error:
        raise ValueError(f"cannot be unpacked: {error}") from None
    if len(data) > length:
        raise ValueError(f"unpacks to more than {length:,} bytes")
    if len(data) < length or not stream.eof:
        raise ValueError(f"its compressed data ends before {length:,} bytes")
    return data


def _plain(entry: _Entry, offset: int, archive: str) -> Member | None:
    """The member of an entry; None for folders and links without a photo's name. Raises DataError as `zip_members`."""
    name = check_member_name(entry.name, archive)
    is_photo = is_image_path(name)
    if not name or entry.name.endswith(b"/") or (entry.is_link and not is_photo):
        return None
    member, deflated = f"{archive}: {format_member(name)}", entry.method == _DEFLATED
    if entry.is_link:
        raise DataError(f"{member} is a symbolic link. Pack the archive again with the image itself.")
    if entry.flags & (_ENCRYPTED | _MASKED):
        raise DataError(f"{member} is encrypted. Unpack the archive with its password, and prepare the folder.")
    if entry.method not in (_STORED, _DEFLATED):
        method = _METHODS.get(entry.method, str(entry.method))
        raise DataError(
            f"{member} has compression method {method}; only stored and deflated are supported. Unpack it first."
        )
    if entry.length != entry.stored_length and not deflated:
        raise DataError(f"{member} is stored, but has two sizes ({entry.length:,} and {entry.stored_length:,} bytes).")
    ratio = entry.length / max(1, entry.stored_length)
    too_large = entry.length > MAX_BYTES or (entry.length > LARGE and ratio > MAX_LARGE_RATIO)
    if ratio > MAX_RATIO or (is_photo and too_large):
        raise DataError(
            f"{member} would grow from {entry.stored_length:,} to {entry.length:,} bytes, so it is a zip bomb and not an "
            "image. The archive is not used."
        )
    return Member(name, offset, entry.length, entry.stored_length if deflated else AS_IT_IS, entry.crc)


def _data_offset(file: BinaryIO, entry: _Entry, archive: str) -> int:
    """Where the bytes of a member begin. Raises DataError where its local header does not agree with the directory."""
    head = read_at(file, entry.at, _LOCAL.size + len(entry.stored_name))
    if len(head) == _LOCAL.size + len(entry.stored_name) and head.startswith(_LOCAL_MARK):
        _, _, flags, method, _, _, crc, stored_length, length, name_length, extra = _LOCAL.unpack_from(head)
        name = head[_LOCAL.size :]
        same = name == entry.stored_name and name_length == len(name) and method == entry.method
        # A writer that could not go back has the numbers behind the bytes, one of large files in an extra field.
        if not flags & _DESCRIPTOR:
            same = same and crc == entry.crc and stored_length in (entry.stored_length, _FULL)
            same = same and length in (entry.length, _FULL)
        if same:
            return entry.at + len(head) + extra
    raise DataError(
        f"{archive}: {format_member(entry.name)} is not at byte {entry.at:,}, where the directory lists it. The archive is "
        "damaged. Copy or download it again."
    )


def _before_the_cut(file: BinaryIO, size: int, archive: str) -> Iterator[Member]:
    """The members of an archive without a directory, as far as each has its size before its bytes; then Truncated."""
    at = records = 0
    while len(head := read_at(file, at, _LOCAL.size)) == _LOCAL.size and head.startswith(_LOCAL_MARK):
        _, _, flags, method, _, _, crc, stored_length, length, name_length, extra = _LOCAL.unpack(head)
        texts = read_at(file, at + _LOCAL.size, name_length + extra)
        offset = at + _LOCAL.size + name_length + extra
        if _FULL in (length, stored_length) and len(texts) == name_length + extra:
            length, stored_length = _large_numbers((length, stored_length), texts[name_length:], archive, at)
        if flags & _DESCRIPTOR or offset + stored_length > size:
            break
        stored_name = texts[:name_length]
        name = _utf8_name(stored_name, flags)
        if member := _plain(
            _Entry(name, stored_name, at, length, stored_length, method, flags, crc, False), offset, archive
        ):
            yield member
            records += 1
        at = offset + stored_length
    raise Truncated(archive, records, size, f"before its directory, which starts after byte {at:,}")


def _find_directory(file: BinaryIO, size: int, archive: str) -> _Directory | None:
    """None where there is no end record that leads to a directory. Raises DataError for one in several files."""
    tail_at = max(0, size - _END.size - _LONGEST_COMMENT)
    tail = read_at(file, tail_at, size - tail_at)
    result, in_parts = len(tail), False
    # The mark may stand in the comment too.
    while (result := tail.rfind(_END_MARK, 0, result)) >= 0:
        if len(tail) - result < _END.size:
            continue
        _, disk, first_disk, _, entries, length, offset, comment = _END.unpack_from(tail, result)
        if comment > len(tail) - result - _END.size:
            continue
        end = tail_at + result
        if large := _find_zip64(file, end):
            end, disk, first_disk, entries, length, offset = large
        if disk or first_disk:
            in_parts = True
            continue
        begin = end - length
        if 0 <= offset <= begin and (not length or read_at(file, begin, 4) == _CENTRAL_MARK):
            return _Directory(begin, end, entries, begin - offset)
    if in_parts:
        raise DataError(f"{archive}: one part of a split zip. Join the parts:  zip -s 0 FIRST.zip --out WHOLE.zip")
    return None


def _read_entries(file: BinaryIO, directory: _Directory, archive: str) -> Iterator[_Entry]:
    """The entries in the directory's order. Raises DataError where it is damaged, or too large to be one."""
    size = directory.end - directory.begin
    if size > MAX_BYTES:
        raise DataError(f"{archive}: its directory has {size:,} bytes; at most {MAX_BYTES:,} are supported.")
    data = read_at(file, directory.begin, size)
    at = entries = 0
    while at < len(data):
        if len(data) - at < _CENTRAL.size or data[at : at + 4] != _CENTRAL_MARK:
            raise _damaged(archive, directory.begin + at)
        (_, made_by, _, flags, method, _, _, crc, stored_length, length, name_length, extra, comment, _, _, outside, local) = (
            _CENTRAL.unpack_from(data, at)
        )  # fmt: skip
        name_at = at + _CENTRAL.size
        extra_at = name_at + name_length
        end = extra_at + extra + comment
        if end > len(data):
            raise _damaged(archive, directory.begin + at)
        name = stored_name = data[name_at:extra_at]
        if _FULL in (length, stored_length, local):
            length, stored_length, local = _large_numbers(
                (length, stored_length, local), data[extra_at : extra_at + extra], archive, directory.begin + at
            )
        system = made_by >> 8
        name = _utf8_name(name, flags)
        if system == _DOS:
            name = name.replace(b"\\", b"/")
        is_link = system == _UNIX and (outside >> 16) & _KIND_OF_FILE == _LINK
        yield _Entry(name, stored_name, local + directory.shift, length, stored_length, method, flags, crc, is_link)
        entries += 1
        at = end
    if entries & 0xFFFF != directory.entries & 0xFFFF:  # writers without zip64 count in 16 bits
        counted = f"its end record lists {directory.entries:,} members"
        raise DataError(f"{archive}: {counted}, but its directory has {entries:,}. The archive is damaged.")


def _large_numbers(numbers: tuple[int, ...], extra: bytes, archive: str, where: int) -> tuple[int, ...]:
    """`numbers`, those that are full replaced by zip64's, which `extra` holds in the same order. Raises DataError."""
    at = 0
    while at + 4 <= len(extra):
        field, length = struct.unpack_from("<HH", extra, at)
        if field == _ZIP64_FIELD:
            full = numbers.count(_FULL)
            if length < 8 * full or at + 4 + 8 * full > len(extra):
                break
            values = iter(struct.unpack_from(f"<{full}Q", extra, at + 4))
            return tuple(next(values) if number == _FULL else number for number in numbers)
        at += 4 + length
    raise _damaged(archive, where)


def _utf8_name(name: bytes, flags: int) -> bytes:
    """The name of a member in UTF-8; one without bit 11 that is not UTF-8 is in cp437."""
    try:
        return name if flags & _UTF8 else name.decode().encode()
    except UnicodeDecodeError:
        return name.decode("cp437").encode()


def _find_zip64(file: BinaryIO, end: int) -> tuple[int, int, int, int, int, int] | None:
    """-> where zip64's end record begins, and its numbers; None where there is none before `end`."""
    at = end - _LOCATOR.size
    if at < _END64.size or (locator := read_at(file, at, _LOCATOR.size))[:4] != _LOCATOR_MARK:
        return None
    # Where the locator has it, or, with bytes before the archive, directly before the locator.
    for begin in (_LOCATOR.unpack(locator)[2], at - _END64.size):
        if begin <= at - _END64.size and (record := read_at(file, begin, _END64.size))[:4] == _END64_MARK:
            _, _, _, _, disk, first_disk, _, entries, length, offset = _END64.unpack(record)
            return begin, disk, first_disk, entries, length, offset
    return None


def _damaged(archive: str, at: int) -> DataError:
    return DataError(f"{archive}: its directory is damaged at byte {at:,}. Copy or download the archive again.")
