"""One header of a tar, and those that describe the file after them: GNU's long names, pax' records.

    bytes   0..99 name   124..135 length   148..155 sum of all bytes   156 kind   257..262 format   345..499 what precedes the name
Numbers are octal digits, or, where the first bit is set, the rest of the field as a binary number.
Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header"; GNU tar's manual, "Basic Tar Format".
"""

from __future__ import annotations

import re
from typing import NamedTuple

BLOCK = 512
PLAIN, FOLDER, SPARSE = b"0", b"5", b"S"
LONG_NAME, LONG_LINK, PAX, PAX_GLOBAL = b"L", b"K", b"x", b"g"
# Followed by a text about the next file.
DESCRIBING = frozenset((LONG_NAME, LONG_LINK, PAX, PAX_GLOBAL))
# Names of Linux have 4,096 bytes at most; pax' records hold a few of them, and times.
MOST_DESCRIBED = 1 << 20

# Links, devices, folders and pipes have no data, whatever their length says.
WITHOUT_DATA = frozenset((b"1", b"2", b"3", b"4", b"5", b"6"))
_RECORD = re.compile(rb"([1-9][0-9]{0,9}) ([^=\n]+)=")


class Header(NamedTuple):
    """What one header says; `data` bytes follow it, filled up to whole blocks."""

    name: bytes
    kind: bytes  # PLAIN for each of the three marks of a plain file
    data: int


class Described(NamedTuple):
    """What earlier headers say of the next file; None: nothing."""

    name: bytes | None = None
    data: int | None = None
    sparse: bool = False


def parse_header(block: bytes) -> Header | None:
    """The header in 512 bytes; None where their sum is wrong. Raises ValueError where a number in it is none."""
    try:
        said = _number(block[148:156])
    except ValueError:
        return None
    # The sum counts its own field as eight spaces; old programs added the bytes as signed ones.
    found = sum(block) - sum(block[148:156]) + 8 * 32
    if said != found and said != found - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
        return None
    name = block[:100].partition(b"\0")[0]
    if block[257:263] == b"ustar\0":
        # Some writers (star) keep times behind a shorter prefix, and say so in the last bytes.
        before = block[345:476] if block[508:512] == b"tar\0" else block[345:500]
        if before[0]:
            name = before.partition(b"\0")[0] + b"/" + name
    kind = block[156:157]
    if kind == b"\0" and name.endswith(b"/"):  # as folders were marked before ustar
        kind = FOLDER
    elif kind in (b"\0", b"7"):
        kind = PLAIN
    elif kind == b"X":  # Solaris' own letter
        kind = PAX
    return Header(name, kind, 0 if kind in WITHOUT_DATA else _number(block[124:136]))


def described(before: Described, kind: bytes, text: bytes) -> Described:
    """`before` with what one more describing header says. Raises ValueError, in a few words, where it cannot be read.

    Of two that name a file, the first counts, as in GNU tar's and Python's readers.
    """
    if kind == LONG_NAME:
        name = text.partition(b"\0")[0]
        return before if before.name is not None else before._replace(name=name)
    if kind == LONG_LINK:
        return before
    records = pax_records(text)
    if kind == PAX_GLOBAL:
        if b"path" in records or b"size" in records:
            raise ValueError("one name or length for all files")
        return before
    name = before.name if before.name is not None else records.get(b"path")
    data = before.data
    if data is None and b"size" in records:
        if not records[b"size"].isdigit():
            raise ValueError("a length that is no number")
        data = int(records[b"size"][:30])
    return Described(name, data, before.sparse or any(key.startswith(b"GNU.sparse.") for key in records))


def pax_records(text: bytes) -> dict[bytes, bytes]:
    """Key -> value of the records "LENGTH KEY=VALUE\\n". Raises ValueError where they are none."""
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(text) and text[at]:
        found = _RECORD.match(text, at)
        end = at + int(found[1]) if found else 0
        if not found or end <= found.end() or text[end - 1 : end] != b"\n":
            raise ValueError("pax records that are none")
        records[found[2]] = text[found.end() : end - 1]
        at = end
    return records


def _number(field: bytes) -> int:
    """Octal digits between spaces and zero bytes, or a binary number. Raises ValueError."""
    if field[0] & 0x80:
        value = int.from_bytes(field, "big") - (0x80 << 8 * (len(field) - 1))
        if value >= 1 << 62:
            raise ValueError("a length below 0 or without end")
        return value
    digits = field.partition(b"\0")[0].strip()
    if not digits:
        return 0
    if not digits.isdigit():
        raise ValueError("a length that is no number")
    return int(digits, 8)
