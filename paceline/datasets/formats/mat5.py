"""One struct array out of a MATLAB file (version 5 to 7.2), as far as ImageNet's meta.mat needs it: numbers and texts.

Values only: nothing in the format is code. Each size is compared with the bytes there are before it is believed.
Source: MathWorks, "MAT-File Format", chapter 1, level 5.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

# The official meta.mat has less than 1 MB.
MOST_BYTES = 32 << 20
_HEADER = 128
_INT8, _UINT8, _UINT16, _MATRIX, _COMPRESSED, _UTF8, _UTF16 = 1, 2, 4, 14, 15, 16, 17
_NUMBERS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
_TEXTS = {_INT8: "latin-1", _UINT8: "latin-1", _UTF8: "utf-8"}
_STRUCT_CLASS, _CHAR_CLASS = 2, 4
Value = float | str | None


def struct_array(data: bytes, variable: str, fields: Sequence[str]) -> list[dict[str, Value]]:
    """The elements of the struct array `variable`, with these fields; a field that holds an array or a struct is None.

    Raises ValueError, in a few words, where the file is another one, damaged, or has no such variable or field.
    """
    if len(data) < _HEADER or data[124:126] not in (b"\x00\x01", b"\x01\x00"):
        raise ValueError("no MATLAB file of version 5 to 7.2")
    order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    if order is None:
        raise ValueError("no MATLAB file: it does not say its byte order")
    reader = _Reader(order)
    for kind, body in reader.elements(memoryview(data)[_HEADER:]):
        if kind == _COMPRESSED:
            unpacker = zlib.decompressobj()
            try:
                plain = unpacker.decompress(body, MOST_BYTES)
            except zlib.error as error:
                raise ValueError(f"damaged ({error})") from None
            if unpacker.unconsumed_tail:
                raise ValueError(f"a variable of more than {MOST_BYTES:,} bytes")
            if not unpacker.eof:
                raise ValueError("cut off")
            kind, body = next(reader.elements(memoryview(plain)))
        if kind == _MATRIX:
            found = reader.struct_array(body, variable, fields)
            if found is not None:
                return found
    raise ValueError(f"no variable {variable!r} in it")


class _Reader:
    def __init__(self, order: str) -> None:
        self._order = order

    def elements(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Type and bytes of each element, one after the other."""
        at = 0
        while at + 8 <= len(data):
            kind, size = struct.unpack_from(f"{self._order}II", data, at)
            if kind >> 16:  # a small one: size and type share four bytes, the data are the next four
                kind, size, begin, past = kind & 0xFFFF, kind >> 16, at + 4, at + 8
                if size > 4:
                    raise ValueError(f"damaged at byte {at:,} of a part")
            else:
                begin = at + 8
                past = begin + size if kind == _COMPRESSED else begin + -(-size // 8) * 8
            if begin + size > len(data):
                raise ValueError("cut off")
            yield kind, data[begin : begin + size]
            at = past

    def numbers(self, kind: int, body: memoryview) -> tuple[float, ...]:
        letter = _NUMBERS.get(kind)
        if letter is None:
            raise ValueError(f"numbers of type {kind}")
        count = len(body) // struct.calcsize(letter)
        return struct.unpack_from(f"{self._order}{count}{letter}", body)

    def struct_array(self, matrix: memoryview, variable: str, fields: Sequence[str]) -> list[dict[str, Value]] | None:
        """None where this is another variable. Raises ValueError."""
        parts = self.elements(matrix)
        try:
            class_, shape, name = self._head(parts)
            if name != variable:
                return None
            if class_ != _STRUCT_CLASS:
                raise ValueError(f"{variable} is no struct")
            _, width_body = next(parts)
            (width,) = self.numbers(5, width_body)[:1]
            _, names_body = next(parts)
            width = int(width)
            if not 0 < width <= 64 or len(names_body) % width:
                raise ValueError("damaged names of fields")
            raw = bytes(names_body)
            names = [raw[i : i + width].split(b"\0")[0].decode("latin-1") for i in range(0, len(raw), width)]
            missing = [field for field in fields if field not in names]
            if missing:
                raise ValueError(f"{variable} has no field {missing[0]!r}")
            rows: list[dict[str, Value]] = []
            count = 1
            for side in shape:
                count *= int(side)
            if not 0 <= count <= len(matrix):  # each element takes bytes
                raise ValueError("an impossible number of elements")
            for _ in range(count):
                row: dict[str, Value] = {}
                for field in names:
                    kind, body = next(parts)
                    if field in fields:
                        row[field] = self._value(kind, body)
                rows.append(row)
            return rows
        except StopIteration:
            raise ValueError("cut off") from None
        except struct.error as error:
            raise ValueError(f"damaged ({error})") from None

    def _head(self, parts: Iterator[tuple[int, memoryview]]) -> tuple[int, tuple[float, ...], str]:
        """Class, shape and name of an array."""
        _, flags = next(parts)
        (first,) = struct.unpack_from(f"{self._order}I", flags)
        kind, shape = next(parts)
        _, name = next(parts)
        return first & 0xFF, self.numbers(kind, shape), bytes(name).decode("latin-1")

    def _value(self, kind: int, matrix: memoryview) -> Value:
        """A number or a text; None for all else, and for an empty array."""
        if kind != _MATRIX or not len(matrix):
            return None
        parts = self.elements(matrix)
        class_, _, _ = self._head(parts)
        if class_ != _CHAR_CLASS and not 6 <= class_ <= 15:  # 6 to 15 are arrays of numbers
            return None
        kind, body = next(parts, (_INT8, memoryview(b"")))
        if class_ == _CHAR_CLASS:
            if kind in (_UINT16, _UTF16):
                return bytes(body).decode("utf-16-le" if self._order == "<" else "utf-16-be", "replace")
            return bytes(body).decode(_TEXTS.get(kind, "latin-1"), "replace")
        found = self.numbers(kind, body)
        return float(found[0]) if len(found) == 1 else None
