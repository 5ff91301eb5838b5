"""Protocol buffers, walked without their definition: which fields a message has, and where the value of each lies.

    field   a number: field number and wire type; then a number, 8 bytes, 4 bytes, or a number of bytes and those bytes
Source: protobuf's encoding page.
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Malformed(ValueError):
    """What is wrong with a message, and where."""


def fields(data: bytes, begin: int, end: int, what: str) -> Iterator[tuple[int, int, int, int]]:
    """-> (field number, wire type, first byte of the value, its end) of each field of the message in data[begin:end]."""
    at = begin
    while at < end:
        tag, value = varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if wire == BYTES:
            length, value = varint(data, value, end)
            stop = value + length
        elif wire == VARINT:
            stop = varint(data, value, end)[1]
        elif wire in (FIXED32, FIXED64):
            stop = value + (4 if wire == FIXED32 else 8)
        else:
            raise Malformed(f"wire type {wire} in {what} at byte {at:,}")
        if stop > end or number == 0:
            raise Malformed(
                f"field {number} of {what} at byte {at:,} reaches beyond it" if number else f"field 0 at byte {at:,}"
            )
        yield number, wire, value, stop
        at = stop


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """-> the number at `at`, and what comes after it."""
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift >= 70:
            raise Malformed(f"a number of more than 10 bytes at byte {at:,}")
    raise Malformed(f"a number that is cut off at byte {end:,}")
