"""TFRecord: where each record lies, with its checksums.

    record   uint64 length, uint32 checksum of those 8 bytes, the bytes, uint32 checksum of them; little-endian
A checksum is CRC-32C, turned right by 15 bits and increased by a constant ("masked").
Source: TensorFlow, core/lib/io/record_writer.h and core/lib/hash/crc32c.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from paceline.config.errors import DataError
from paceline.store.containers.reading import MOST_BYTES, Truncated, read_at, refuse_compressed

LENGTH = struct.Struct("<Q")
CHECKSUM = struct.Struct("<I")
HEADER_BYTES = LENGTH.size + CHECKSUM.size
_MASK_DELTA = 0xA282EAD8


class Span(NamedTuple):
    """One record: its first byte in the file, how many there are, and the bytes themselves."""

    offset: int
    length: int
    data: bytes


def masked_crc32c(data: bytes) -> int:
    """The checksum that TFRecord stores for `data`."""
    import google_crc32c  # here: only those who have TFRecords load it

    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def tfrecord_spans(file: BinaryIO, size: int, name: str) -> Iterator[Span]:
    """The records in the file's order; all bytes are read once. An empty file has none.

    Raises Truncated after the last whole record of a file that is cut off, DataError where a checksum is wrong, or the file
    was compressed as a whole.
    """
    at = records = 0
    while at < size:
        head = read_at(file, at, HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            if at == 0:
                refuse_compressed(head, name)
            raise Truncated(name, records, size, f"inside the record that begins at byte {at:,}")
        length = LENGTH.unpack_from(head)[0]
        if masked_crc32c(head[: LENGTH.size]) != CHECKSUM.unpack_from(head, LENGTH.size)[0]:
            if at == 0:
                refuse_compressed(head, name)
                raise DataError(
                    f"{name}: its first 12 bytes are no TFRecord's length with its checksum, so this is no TFRecord file."
                )
            raise DataError(
                f"{name}: wrong checksum (CRC-32C) of the length of record {records:,}, at byte {at:,}: damaged from there on. "
                "Copy or download it again."
            )
        end = at + HEADER_BYTES + length + CHECKSUM.size
        if end > size:
            raise Truncated(name, records, size, f"inside the record that begins at byte {at:,}")
        if length > MOST_BYTES:
            raise DataError(
                f"{name}: record {records:,}, at byte {at:,}, has {length:,} bytes; {MOST_BYTES:,} are read at most."
            )
        data = read_at(file, at + HEADER_BYTES, length)
        tail = read_at(file, at + HEADER_BYTES + length, CHECKSUM.size)
        if len(data) + len(tail) < length + CHECKSUM.size:  # shorter than its size said
            raise Truncated(
                name, records, at + HEADER_BYTES + len(data), f"inside the record that begins at byte {at:,}"
            )
        if masked_crc32c(data) != CHECKSUM.unpack(tail)[0]:
            raise DataError(
                f"{name}: wrong checksum (CRC-32C) of the {length:,} bytes of record {records:,}, at byte {at:,}: damaged. "
                "Copy or download it again."
            )
        yield Span(at + HEADER_BYTES, length, data)
        records += 1
        at = end
