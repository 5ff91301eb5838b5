"""Weight files of MXNet and TensorFlow, written byte by byte after their formats' own rules: what the readers are tested against."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

MXNET_TYPES = {"f4": 0, "f8": 1, "f2": 2, "u1": 3, "i4": 4, "i1": 5, "i8": 6, "b1": 7}
TF_TYPES = {"f4": 1, "f8": 2, "i4": 3, "u1": 4, "i2": 5, "i1": 6, "i8": 9, "b1": 10, "f2": 19}
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA


def params(arrays: Mapping[str, np.ndarray], magic: int = V2) -> bytes:
    """A .params file; magic 0: the layout of MXNet's first years, whose arrays begin with their number of sides."""
    head = struct.pack("<QQQ", 0x112, 0, len(arrays))
    names = b"".join(struct.pack("<Q", len(name.encode())) + name.encode() for name in arrays)
    body = b"".join(_ndarray(array, magic) for array in arrays.values())
    return head + body + struct.pack("<Q", len(arrays)) + names


def _ndarray(array: np.ndarray, magic: int) -> bytes:
    sides = struct.pack(f"<{array.ndim}{'q' if magic else 'I'}", *array.shape)
    start = {0: b"", V1: struct.pack("<I", V1)}.get(magic, struct.pack("<Ii", magic, 0))
    kind = MXNET_TYPES[array.dtype.str[1:]]
    return start + struct.pack("<i", array.ndim) + sides + struct.pack("<3i", 1, 0, kind) + array.tobytes()


def crc32c(content: bytes) -> int:
    """RFC 3720's, bit by bit."""
    state = 0xFFFFFFFF
    for byte in content:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def masked(content: bytes) -> int:
    checksum = crc32c(content)
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def block(rows: list[tuple[bytes, bytes]], every: int = 3) -> bytes:
    """A table's block: each key shares what it can with the one before, but for every third one."""
    body, restarts, before = b"", [], b""
    for number, (key, value) in enumerate(rows):
        shared = 0
        if number % every:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        else:
            restarts.append(len(body))
        body += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    return body + struct.pack(f"<{len(restarts)}I", *restarts) + struct.pack("<I", len(restarts))


def table(blocks: list[list[tuple[bytes, bytes]]]) -> bytes:
    out, index = b"", []
    for rows in blocks:
        content = block(rows)
        index.append((rows[-1][0], varint(len(out)) + varint(len(content))))
        out += content + b"\0" + struct.pack("<I", masked(content + b"\0"))
    places = []
    for content in (block([]), block(index, 1)):
        places.append(varint(len(out)) + varint(len(content)))
        out += content + b"\0" + struct.pack("<I", masked(content + b"\0"))
    return out + b"".join(places).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def tf_checkpoint(prefix: Path, variables: Mapping[str, np.ndarray], *, checksums: bool = True, blocks: int = 2) -> Path:
    """PREFIX.index and PREFIX.data-00000-of-00001; -> the index."""
    rows, data = [(b"", field(1, 1) + field(3, field(1, 1)))], b""
    for name in sorted(variables):
        array = variables[name]
        sides = b"".join(field(2, field(1, side)) for side in array.shape)
        entry = field(1, TF_TYPES[array.dtype.str[1:]]) + field(2, sides)
        entry += field(4, len(data)) + field(5, array.nbytes)
        if checksums:
            entry += varint(6 << 3 | 5) + struct.pack("<I", masked(array.tobytes()))
        rows.append((name.encode(), entry))
        data += array.tobytes()
    prefix.with_name(prefix.name + ".data-00000-of-00001").write_bytes(data)
    index = prefix.with_name(prefix.name + ".index")
    cut = max(1, len(rows) // blocks)
    index.write_bytes(table([rows[at : at + cut] for at in range(0, len(rows), cut)]))
    return index
