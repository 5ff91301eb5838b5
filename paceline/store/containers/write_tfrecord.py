"""TFRecord files and the Examples in them, as TensorFlow writes them (the layouts stand in tfrecord.py and example.py)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import BinaryIO

from paceline.store.containers.example import BYTES_LIST, FLOAT_LIST, INT64_LIST
from paceline.store.containers.protobuf import BYTES
from paceline.store.containers.tfrecord import CHECKSUM, LENGTH, masked_crc32c

# The values of one feature: all of one type. An empty list has none, and is written without.
Values = Sequence[bytes] | Sequence[int] | Sequence[float]


def write_tfrecord(out: BinaryIO, records: Iterable[bytes]) -> int:
    """Writes the records one after the other; -> how many there were."""
    count = 0
    for data in records:
        out.write(tfrecord_bytes(data))
        count += 1
    return count


def tfrecord_bytes(data: bytes) -> bytes:
    """One record: length, data, and the checksums of both."""
    length = LENGTH.pack(len(data))
    return length + CHECKSUM.pack(masked_crc32c(length)) + data + CHECKSUM.pack(masked_crc32c(data))


def example_bytes(features: Mapping[str, Values]) -> bytes:
    """An Example with these features, in order of their names."""
    entries = (_run(1, _run(1, name.encode()) + _run(2, _feature(features[name]))) for name in sorted(features))
    return _run(1, b"".join(entries))


def _feature(values: Values) -> bytes:
    if not values:
        return b""
    if isinstance(values[0], bytes):
        return _run(BYTES_LIST, b"".join(_run(1, value) for value in values if isinstance(value, bytes)))
    if isinstance(values[0], float):
        return _run(FLOAT_LIST, _run(1, struct.pack(f"<{len(values)}f", *values)))
    return _run(INT64_LIST, _run(1, b"".join(_varint(value) for value in values if isinstance(value, int))))


def _run(number: int, data: bytes) -> bytes:
    """A field that has a length."""
    return _varint(number << 3 | BYTES) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; below 0 as 64 bits."""
    value &= 0xFFFFFFFFFFFFFFFF
    text = bytearray()
    while value > 0x7F:
        text.append(value & 0x7F | 0x80)
        value >>= 7
    text.append(value)
    return bytes(text)
