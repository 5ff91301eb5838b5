"""Tars of plain files: ustar, and pax where a name or a size does not fit. The same files give the same bytes."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable
from typing import BinaryIO

from paceline.store.containers.tar_header import BLOCK

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
