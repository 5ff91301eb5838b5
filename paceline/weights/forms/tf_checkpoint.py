"""Read TensorFlow's checkpoints (PREFIX.index beside PREFIX.data-00000-of-0000N) without TensorFlow, with numpy.

The index is a sorted table as LevelDB has it: blocks of keys that share their beginnings, and a footer that says where the block of
blocks lies. Each value is a small protocol buffer: type, shape, shard, offset, size, checksum of one variable; the data files are the
variables' bytes. Nothing in either can be executed; every offset and size is compared with the file before it is used.
Source: tensorflow/core/util/tensor_bundle, tensorflow/core/lib/io/format.cc, core/protobuf/tensor_bundle.proto.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from paceline.config.errors import CheckpointError
from paceline.config.plain_file import read_plain
from paceline.config.printable import short
from paceline.store.containers.tfrecord import BYTES, VARINT, fields, masked_crc32c, varint

MAGIC = 0xDB4775248B80FB57
FOOTER, TRAILER = 48, 5
INDEX = ".index"
# An index names variables: this is a hundred thousand of them.
MOST_INDEX = 2**24
MOST_VARIABLES = 10**5
MOST_SIDES = 32
# TensorFlow's numbers of types that weights come in; text (7) is what newer checkpoints keep beside variables.
TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "|u1", 5: "<i2", 6: "|i1", 9: "<i8", 10: "|b1", 19: "<f2"}
TEXT = 7


def find_index(path: Path) -> Path | None:
    """The index of the checkpoint that `path` means: itself, one of its data files, their common prefix, or a folder with one."""
    if path.is_dir():
        found = indexes(path)
        return found[0] if len(found) == 1 else None
    prefix = path.with_name(path.name.rpartition(".data-")[0] or path.name.removesuffix(INDEX).removesuffix(".meta"))
    index = prefix.with_name(prefix.name + INDEX)
    return index if index.is_file() else None


def indexes(folder: Path) -> list[Path]:
    """The indexes in a folder; none in what is no folder."""
    return sorted(folder.glob(f"*{INDEX}")) if folder.is_dir() else []


def read_tf_checkpoint(index: Path, most: int) -> dict[str, np.ndarray]:
    """Variable's name -> array, as TensorFlow laid it out; texts are left out.

    most   bytes of a data file at most
    Raises CheckpointError where a file is missing, torn, damaged (checksum), or not a checkpoint.
    """
    try:
        entries = {}
        for name, value in _table(_read(index, MOST_INDEX)):
            entries[name] = _fields(value)
            if len(entries) > MOST_VARIABLES:
                raise ValueError(f"it names more than {MOST_VARIABLES:,} variables")
        # Before they are read: many names may stand for the same bytes.
        if sum(_number(entry, 5) for entry in entries.values()) > most:
            raise ValueError(f"its variables have more than {most:,} bytes")
        header = entries.pop(b"", None)
        if header is None:
            raise ValueError("it has no header")
        shards = _number(header, 1)
        if not 1 <= shards <= 1000 or _number(header, 2) != 0:
            raise ValueError("its header is of another machine's byte order, or of more shards than there can be")
        prefix = index.name.removesuffix(INDEX)
        files: dict[int, memoryview] = {}
        arrays = {}
        for raw, entry in entries.items():
            if _number(entry, 1) == TEXT:
                continue
            shard = _number(entry, 3)
            if shard >= shards:
                raise ValueError(f"shard {shard} of {shards}")
            if shard not in files:
                file = index.with_name(f"{prefix}.data-{shard:05d}-of-{shards:05d}")
                files[shard] = memoryview(_read(file, most))
            name = raw.decode()
            arrays[name] = _array(name, entry, files[shard])
    except (ValueError, IndexError, struct.error, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index}: not a readable TensorFlow checkpoint: {short(str(error), 200)}") from None
    return arrays


def _read(path: Path, most: int) -> bytes:
    try:
        return read_plain(path, most)
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read as a part of a TensorFlow checkpoint ({error.strerror}); its .index and all its .data files "
            "belong together."
        ) from None


def _array(name: str, entry: Mapping[int, list], data: memoryview) -> np.ndarray:
    kind, offset, size = (_number(entry, place) for place in (1, 4, 5))
    if kind not in TYPES:
        raise ValueError(f"{name} is of type {kind}")
    if 7 in entry:
        raise ValueError(f"{name} is cut into slices; save it as one variable")
    shape = [_number(_fields(side), 1) for side in _fields(entry.get(2, [b""])[0]).get(2, [])]
    dtype = np.dtype(TYPES[kind])
    if len(shape) > MOST_SIDES or math.prod(shape) * dtype.itemsize != size or offset + size > len(data):
        raise ValueError(f"{name} of shape {tuple(shape)} has {size:,} bytes at {offset:,} of {len(data):,}")
    content = data[offset : offset + size]
    if 6 in entry and masked_crc32c(bytes(content)) != entry[6][0]:
        raise ValueError(f"{name} is damaged: its bytes are not what was written (checksum)")
    return np.frombuffer(content, dtype).reshape(shape)


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a sorted table, in order."""
    if len(data) < FOOTER or struct.unpack_from("<Q", data, len(data) - 8)[0] != MAGIC:
        raise ValueError("it does not end as an index does")
    place = len(data) - FOOTER
    for _ in range(2):  # of the block that describes the table, which is not needed
        _, place = varint(data, place, len(data))
    handle = data[place : len(data) - 8]
    seen = set()
    for _, value in _block(data, handle):
        if value in seen:
            raise ValueError("it names a block twice")
        seen.add(value)
        yield from _block(data, value)


def _block(data: bytes, handle: bytes) -> Iterator[tuple[bytes, bytes]]:
    offset, place = varint(handle, 0, len(handle))
    size, _ = varint(handle, place, len(handle))
    if offset + size + TRAILER > len(data):
        raise ValueError("a block lies outside of it")
    block = data[offset : offset + size]
    if data[offset + size]:
        raise ValueError("it is compressed, which TensorFlow itself never writes")
    if masked_crc32c(data[offset : offset + size + 1]) != struct.unpack_from("<I", data, offset + size + 1)[0]:
        raise ValueError("damaged: a block is not what was written (checksum)")
    (restarts,) = struct.unpack_from("<I", block, size - 4)
    end = size - 4 - 4 * restarts
    place, key = 0, b""
    while place < end:
        shared, place = varint(block, place, len(block))
        own, place = varint(block, place, len(block))
        length, place = varint(block, place, len(block))
        if shared > len(key) or place + own + length > end:
            raise ValueError("a key lies outside of its block")
        key = key[:shared] + block[place : place + own]
        place += own
        yield key, block[place : place + length]
        place += length


def _fields(message: bytes) -> dict[int, list]:
    """A protocol buffer's fields by number: numbers, or bytes."""
    found: dict[int, list] = {}
    for number, wire, start, end in fields(message, 0, len(message), "an entry"):
        value = message[start:end]
        if wire == VARINT:
            value = varint(message, start, end)[0]
        elif wire != BYTES:
            value = int.from_bytes(value, "little")
        found.setdefault(number, []).append(value)
    return found


def _number(entry: Mapping[int, list], place: int) -> int:
    value = entry.get(place, [0])[0]
    if not isinstance(value, int) or value >= 2**63:
        raise ValueError(f"field {place} is no number that it could be")
    return value
