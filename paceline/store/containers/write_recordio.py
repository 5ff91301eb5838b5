"""RecordIO files as MXNet 1.9.1 writes them, byte for byte, with their .idx and .lst (the layout stands in recordio.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from paceline.config.errors import DataError
from paceline.store.containers.recordio import FIRST, IMAGE, LAST, LENGTH_BITS, MAGIC, MIDDLE, MOST_LENGTH, PIECE, WHOLE


class Packed(NamedTuple):
    """What goes into one record; several labels, or a single one in an array, follow the header as im2rec --pack-label has it."""

    id: int
    labels: float | Sequence[float] | np.ndarray
    photo: bytes


def write_recordio(out: BinaryIO, records: Iterable[Packed]) -> list[tuple[int, int]]:
    """Writes the records one after the other; -> (id, first byte) of each, for `idx_text`. Raises DataError as `record_bytes`."""
    at, placed = 0, []
    for record in records:
        data = record_bytes(record)
        out.write(data)
        placed.append((record.id, at))
        at += len(data)
    return placed


def record_bytes(record: Packed) -> bytes:
    """One record, its zeros at the end included. Raises DataError where it is larger than the format can say."""
    payload = _image_header(record) + record.photo
    if len(payload) > MOST_LENGTH:
        raise DataError(
            f"photo {record.id} has {len(record.photo):,} bytes; RecordIO takes {MOST_LENGTH:,} with its header at most."
        )
    pieces: list[bytes] = []
    begin = 0
    # The magic word at a multiple of four would look like the next record: it is left out, and its place begins a new piece.
    found = payload.find(MAGIC)
    while found >= 0:
        if found % 4 == 0:
            pieces.append(payload[begin:found])
            begin = found + 4
        found = payload.find(MAGIC, found + (4 if found % 4 == 0 else 1))
    pieces.append(payload[begin:])
    last = len(pieces) - 1
    flags = [WHOLE] if not last else [FIRST, *[MIDDLE] * (last - 1), LAST]
    text = b"".join(PIECE.pack(MAGIC, flag << LENGTH_BITS | len(piece)) + piece for flag, piece in zip(flags, pieces))
    return text + bytes(-len(text) % 4)


def idx_text(placed: Iterable[tuple[int, int]]) -> bytes:
    """The .idx of records whose (key, first byte) are `placed`."""
    return b"".join(b"%d\t%d\n" % pair for pair in placed)


def lst_line(number: int, labels: Sequence[float], path: bytes) -> bytes:
    """A line of the .lst: what was packed, as im2rec --list says it."""
    return b"%d\t%s\t%s\n" % (number, b"\t".join(b"%f" % label for label in labels), path)


def _image_header(record: Packed) -> bytes:
    if isinstance(record.labels, (int, float, np.integer, np.floating)):
        return IMAGE.pack(0, record.labels, record.id, 0)
    labels = np.asarray(record.labels, "<f4")
    return IMAGE.pack(len(labels), 0.0, record.id, 0) + labels.tobytes()
