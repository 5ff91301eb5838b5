"""Zip: where each member's bytes lie, stored or deflated; zip64 too. Nothing is unpacked to be listed.

    member  local header of 30 bytes, name, extra fields, the bytes, perhaps a descriptor that repeats their sizes
The directory at the end counts; each local header must agree with it, and no two members may share bytes: an archive whose
members do unpacks to far more than it is (a bomb). Source: PKWARE's APPNOTE.TXT, 6.3.10, sections 4.3.7 to 4.4.5.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from paceline.config.errors import DataError
from paceline.config.image_name import is_image_name
from paceline.store.containers.reading import MOST_BYTES, Truncated, checked_name, read_at, shown
from paceline.store.containers.zip_directory import LOCAL_MARK, Entry, find_directory, large_numbers, read_entries

STORED, DEFLATED = 0, 8
# Deflate makes at most this many bytes of one.
MOST_RATIO = 1032
# No large picture is packed so well: what says so fills the memory.
LARGE, MOST_LARGE_RATIO = 1 << 26, 100

_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_FULL = 0xFFFFFFFF
_ENCRYPTED, _DESCRIPTOR, _MASKED = 0x1, 0x8, 0x2000
_METHODS = {
    1: "shrunk",
    6: "imploded",
    9: "deflate64",
    12: "bzip2",
    14: "LZMA",
    93: "zstd",
    95: "xz",
    98: "PPMd",
    99: "AES",
}


class ZipMember(NamedTuple):
    """A plain file of a zip.

    name           without "./", no absolute one, no ".."
    offset         first byte of its data in the file
    length         bytes of the photo
    stored_length  bytes of its data in the file; `length` where they are stored as they are
    deflated       whether they are not
    crc            CRC-32 of the photo
    """

    name: bytes
    offset: int
    length: int
    stored_length: int
    deflated: bool
    crc: int


def zip_members(file: BinaryIO, size: int, name: str) -> Iterator[ZipMember]:
    """The plain files in the order of their bytes, by one short read each; folders are passed over, and links of other names than
    photos'.

    Raises Truncated after the last whole member of an archive that is cut off (where each says its size before its bytes), DataError
    where it is damaged or no zip, has a name that leaves its folder, a link under a photo's name, an encrypted member, one packed
    by another method, members that share bytes, or one whose size is a bomb's.
    """
    directory = find_directory(file, size, name)
    begins = read_at(file, 0, 4)
    if directory is None or (directory.shift and begins == LOCAL_MARK):
        if begins != LOCAL_MARK[: len(begins)] or not begins:
            raise DataError(f"{name}: it does not begin or end as a zip does, so this is no zip.")
        yield from _before_the_cut(file, size, name)
        return
    entries = sorted(read_entries(file, directory, name), key=lambda entry: entry.at)
    reached = 0
    for entry in entries:
        offset = _data_offset(file, entry, name) if entry.at < directory.begin else entry.at
        if entry.at < reached or offset + entry.stored_length > directory.begin:
            raise DataError(
                f"{name}: the bytes of {shown(entry.name)} are those of other members too: a bomb, or damaged."
            )
        reached = offset + entry.stored_length
        member = _plain(entry, offset, name)
        if member:
            yield member


def inflated(stored: bytes, length: int) -> bytes:
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
        raise ValueError(f"its packed bytes end before its {length:,} do")
    return data


def _plain(entry: Entry, offset: int, archive: str) -> ZipMember | None:
    """The member that `entry` describes; None for folders and links without a photo's name. Raises DataError as `zip_members`."""
    name = checked_name(entry.name, archive)
    is_photo = is_image_name(name.rsplit(b"/", 1)[-1])
    if not name or entry.name.endswith(b"/"):
        return None
    if entry.is_link:
        if is_photo:
            raise DataError(
                f"{archive}: {shown(name)} is a symbolic link. Pack the archive again with the photo itself."
            )
        return None
    if entry.flags & (_ENCRYPTED | _MASKED):
        raise DataError(
            f"{archive}: {shown(name)} is encrypted. Unpack the archive with its password, and prepare the folder."
        )
    if entry.method not in (STORED, DEFLATED):
        method = _METHODS.get(entry.method, f"of method {entry.method}")
        raise DataError(
            f"{archive}: {shown(name)} is {method}; read are stored and deflated members. Unpack it, and prepare the folder."
        )
    deflated = entry.method == DEFLATED
    if entry.length != entry.stored_length and not deflated:
        raise DataError(
            f"{archive}: {shown(name)} is stored, and says two sizes ({entry.length:,} and {entry.stored_length:,} bytes)."
        )
    ratio = entry.length / max(1, entry.stored_length)
    if (
        ratio > MOST_RATIO
        or (is_photo and entry.length > LARGE and ratio > MOST_LARGE_RATIO)
        or (is_photo and entry.length > MOST_BYTES)
    ):
        raise DataError(
            f"{archive}: {shown(name)} says {entry.length:,} bytes, of {entry.stored_length:,} packed: a bomb, not a photo. "
            "Nothing of it is used."
        )
    return ZipMember(name, offset, entry.length, entry.stored_length, deflated, entry.crc)


def _data_offset(file: BinaryIO, entry: Entry, archive: str) -> int:
    """Where the bytes of a member begin. Raises DataError where its local header does not agree with the directory."""
    head = read_at(file, entry.at, _LOCAL.size + len(entry.stored_name))
    if len(head) == _LOCAL.size + len(entry.stored_name) and head.startswith(LOCAL_MARK):
        _, _, flags, method, _, _, crc, stored_length, length, name_length, extra = _LOCAL.unpack_from(head)
        same = (
            head[_LOCAL.size :] == entry.stored_name
            and name_length == len(entry.stored_name)
            and method == entry.method
        )
        # A writer that could not go back says them behind the bytes, one of large files in an extra field.
        if not flags & _DESCRIPTOR:
            same = (
                same
                and crc == entry.crc
                and stored_length in (entry.stored_length, _FULL)
                and length in (entry.length, _FULL)
            )
        if same:
            return entry.at + len(head) + extra
    raise DataError(
        f"{archive}: at byte {entry.at:,} there is not {shown(entry.name)}, which its directory has there: damaged. "
        "Copy or download the archive again."
    )


def _before_the_cut(file: BinaryIO, size: int, archive: str) -> Iterator[ZipMember]:
    """The members of an archive without a directory, as far as each says its size before its bytes; then Truncated."""
    at = records = 0
    while len(head := read_at(file, at, _LOCAL.size)) == _LOCAL.size and head.startswith(LOCAL_MARK):
        _, _, flags, method, _, _, crc, stored_length, length, name_length, extra = _LOCAL.unpack(head)
        texts = read_at(file, at + _LOCAL.size, name_length + extra)
        offset = at + _LOCAL.size + name_length + extra
        if _FULL in (length, stored_length) and len(texts) == name_length + extra:
            length, stored_length = large_numbers((length, stored_length), texts[name_length:], archive, at)
        if flags & _DESCRIPTOR or offset + stored_length > size:
            break
        name = texts[:name_length]
        member = _plain(Entry(name, name, at, length, stored_length, method, flags, crc, False), offset, archive)
        if member:
            yield member
            records += 1
        at = offset + stored_length
    raise Truncated(archive, records, size, f"before its directory, which begins after byte {at:,}")
