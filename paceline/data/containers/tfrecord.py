"""TFRecord: where each record lies, with its checksums; and protocol buffers, walked without their definition.

    record   uint64 length, uint32 checksum of those 8 bytes, the bytes, uint32 checksum of them; little-endian
    field    a number: field number and wire type; then a number, 8 bytes, 4 bytes, or a number of bytes and those bytes
A checksum is CRC-32C, turned right by 15 bits and increased by a constant ("masked").
Source: TensorFlow, core/lib/io/record_writer.h and core/lib/hash/crc32c.h; protobuf's encoding page.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from paceline._utils.errors import DataError
from paceline.data.containers.reading import MAX_BYTES, Truncated, read_at, refuse_compressed

_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
_HEADER_BYTES = _LENGTH.size + _CHECKSUM.size
_MASK_DELTA = 0xA282EAD8
# Wire types of protocol buffers.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class RecordSpan(NamedTuple):
    """One record: its first byte in the file, how many there are, and the bytes themselves."""

    offset: int
    length: int
    data: bytes


def masked_crc32c(data: bytes) -> int:
    """The checksum that TFRecord stores for `data`."""
    import google_crc32c  # here: only those who have TFRecords load it

    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def tfrecord_spans(file: BinaryIO, size: int, name: str) -> Iterator[RecordSpan]:
    """The records in the file's order; all bytes are read once. An empty file has none.

    Raises Truncated after the last whole record of a file that is cut off, DataError where a checksum is wrong, or the file
    was compressed as a whole.
    """
    at = records = 0
    while at < size:
        inside, damaged = f"inside the record that begins at byte {at:,}", "Copy or download it again."
        head = read_at(file, at, _HEADER_BYTES)
        if len(head) < _HEADER_BYTES:
            if at == 0:
                refuse_compressed(head, name)
            raise Truncated(name, records, size, inside)
        length = _LENGTH.unpack_from(head)[0]
        if masked_crc32c(head[: _LENGTH.size]) != _CHECKSUM.unpack_from(head, _LENGTH.size)[0]:
            if at == 0:
                refuse_compressed(head, name)
                raise DataError(f"{name}: its first 12 bytes are no length with its checksum, so this is no TFRecord file.")
            raise DataError(
                f"{name}: wrong checksum (CRC-32C) of the length of record {records:,}, at byte {at:,}: damaged from there on. "
                f"{damaged}"
            )
        begin = at + _HEADER_BYTES
        end = begin + length + _CHECKSUM.size
        if end > size:
            raise Truncated(name, records, size, inside)
        if length > MAX_BYTES:
            result = f"record {records:,}, at byte {at:,}, has {length:,} bytes"
            raise DataError(f"{name}: {result}; {MAX_BYTES:,} are read at most.")
        data, tail = read_at(file, begin, length), read_at(file, begin + length, _CHECKSUM.size)
        if len(data) + len(tail) < end - begin:  # the file is shorter than the given size
            raise Truncated(name, records, begin + len(data), inside)
        if masked_crc32c(data) != _CHECKSUM.unpack(tail)[0]:
            raise DataError(
                f"{name}: wrong checksum (CRC-32C) of the {length:,} bytes of record {records:,}, at byte {at:,}: damaged. "
                f"{damaged}"
            )
        yield RecordSpan(begin, length, data)
        records += 1
        at = end


def write_tfrecord(out: BinaryIO, records: Iterable[bytes]) -> int:
    """Write the records one after the other; -> how many there were."""
    count = 0
    for data in records:
        length = _LENGTH.pack(len(data))
        head, tail = length + _CHECKSUM.pack(masked_crc32c(length)), _CHECKSUM.pack(masked_crc32c(data))
        out.write(head + data + tail)
        count += 1
    return count


class MalformedMessage(ValueError):
    """What is wrong with a protocol buffer's message, and where."""


def read_fields(data: bytes, begin: int, end: int, what: str) -> Iterator[tuple[int, int, int, int]]:
    """-> (field number, wire type, first byte of the value, its end) of each field of the message in data[begin:end].

    Raises Malformed.
    """
    at = begin
    while at < end:
        tag, value = read_varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if wire == BYTES:
            length, value = read_varint(data, value, end)
            stop = value + length
        elif wire == VARINT:
            stop = read_varint(data, value, end)[1]
        elif wire in (FIXED32, FIXED64):
            stop = value + (4 if wire == FIXED32 else 8)
        else:
            raise MalformedMessage(f"wire type {wire} in {what} at byte {at:,}")
        if number == 0:
            raise MalformedMessage(f"field 0 at byte {at:,}")
        if stop > end:
            raise MalformedMessage(f"field {number} of {what} at byte {at:,} reaches beyond it")
        yield number, wire, value, stop
        at = stop


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """-> the number at `at`, and what comes after it. Raises Malformed."""
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift >= 70:
            raise MalformedMessage(f"a number of more than 10 bytes at byte {at:,}")
    raise MalformedMessage(f"a number that is cut off at byte {end:,}")
