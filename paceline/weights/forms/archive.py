"""An archive of torch.save, looked at before torch's reader opens it: would it unpack to more than weights can be?

The look is Python's, the opening torch's own reader's (miniz), and the two read a directory that was made for it differently: where
its end is, which of two ends counts, what stands before it. So only the plain layout is taken, as torch.save and zipfile write it:
members, directory, end of the directory, nothing else, no name twice.
Source: APPNOTE.TXT of PKWARE, 4.3.12 to 4.3.16.
"""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path
from typing import BinaryIO

from paceline._utils.errors import CheckpointError
from paceline._utils.safe_read import open_plain

# torch.load takes for an archive what begins so, and nothing else.
BEGINNING = b"PK\3\4"
# torch.save does not compress, and weights hardly can be; zeros can, a thousandfold.
MOST_UNPACKED = 20
END, END64, LOCATOR64 = b"PK\5\6", b"PK\6\6", b"PK\6\7"
END_BYTES, END64_BYTES, LOCATOR64_BYTES = 22, 56, 20
ZIP64_FIELD = 1  # number of the extra field that holds a member's large sizes


def refuse_bomb(path: Path, most: int, damaged: str) -> None:
    """Raises CheckpointError where an archive unpacks to more than `most` bytes or 20 times its own, or is not laid out plainly.

    damaged   what to say then
    """
    with os.fdopen(open_plain(path), "rb") as file:
        if file.read(len(BEGINNING)) != BEGINNING:
            return
        size = os.fstat(file.fileno()).st_size
        try:
            _check_end(file, size)
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
            for member in members:
                _check_extra(member.extra)
            if len({member.filename for member in members}) != len(members):
                raise ValueError("a name twice")
        except Exception:  # whatever a stranger's bytes make zipfile raise
            raise CheckpointError(f"{path}: {damaged}") from None
    unpacked = sum(max(member.file_size, member.compress_size) for member in members)
    if unpacked > min(most, MOST_UNPACKED * size):
        raise CheckpointError(
            f"{path}: its {size / 2**20:,.1f} MiB would unpack to {unpacked / 2**20:,.1f} MiB, which weights do not; "
            "it is not opened"
        )


def _check_end(file: BinaryIO, size: int) -> None:
    """The file ends with the end of its directory, which lies right before it. Raises ValueError, struct.error, OSError."""
    begins = size - END_BYTES
    end = _at(file, begins, END_BYTES)
    *_, length, offset, comment = struct.unpack("<4s4H2LH", end)
    if end[:4] != END or comment:
        raise ValueError("it does not end with a directory")
    locator = _at(file, max(0, begins - LOCATOR64_BYTES), LOCATOR64_BYTES)
    if locator[:4] == LOCATOR64:
        begins -= LOCATOR64_BYTES + END64_BYTES
        end64 = _at(file, begins, END64_BYTES)
        if end64[:4] != END64 or struct.unpack("<4sLQL", locator)[2] != begins:
            raise ValueError("two ends")
        length, offset = struct.unpack("<2Q", end64[40:])
    if offset + length != begins:
        raise ValueError("something between the directory and its end")


def _at(file: BinaryIO, place: int, count: int) -> bytes:
    file.seek(place)  # below 0 for a file that is too short: ValueError or OSError
    return file.read(count)


def _check_extra(extra: bytes) -> None:
    """A member says its large sizes once."""
    seen = 0
    while len(extra) >= 4:
        number, length = struct.unpack_from("<2H", extra)
        seen += number == ZIP64_FIELD
        extra = extra[4 + length :]
    if seen > 1:
        raise ValueError("sizes twice")
