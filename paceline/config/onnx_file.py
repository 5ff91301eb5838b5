"""What is taken of graphs that `paceline export` writes; and the metadata of an ONNX file, without any package.

An ONNX file is a row of numbered parts; metadata are pairs of texts beside the graph. Nothing else of it is read here.
Source: Protocol Buffers' encoding, and ModelProto of onnx.proto3, whose field 14 is metadata_props.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from paceline.config.errors import UserError
from paceline.config.plain_file import open_plain_sized

SUFFIX = ".onnx"
GRAPHS = (SUFFIX, ".pt2")
ANSWERING = ("predict", "eval", "load")  # verbs that take an ONNX file
_METADATA, _KEY, _VALUE = 14, 1, 2
# More parts at the top than any exporter writes: functions, metadata, versions of operators.
_MOST_PARTS = 10_000
_DAMAGED = "it is no ONNX file, or damaged"


def refuse_graph(path: Path, verb: str) -> None:
    """Raises UserError for a .pt2, and for an ONNX file where the verb has no use for one."""
    if path.suffix == SUFFIX and verb not in ANSWERING:
        raise UserError(
            f"{path}: an ONNX file, which `predict` and `eval` answer with. For `{verb}` name the run, or the .safetensors that "
            "`paceline export` writes of it."
        )
    if path.suffix in GRAPHS and path.suffix != SUFFIX:
        raise UserError(
            f"{path}: a .pt2 can run code of whoever made it as soon as torch opens it, so no verb here opens one. "
            "`paceline export` also writes .onnx and .safetensors, which cannot."
        )


def metadata(path: Path, key: str, most: int) -> bytes | None:
    """What an ONNX file has under `key`; None where it has nothing.

    most  bytes of it
    Raises OSError where it cannot be read, ValueError for what is no ONNX file or ends too early, and for longer metadata.
    """
    descriptor, size = open_plain_sized(path)
    with os.fdopen(descriptor, "rb") as file:
        for number, length in _parts(file, size):
            if number != _METADATA:
                continue
            if length > most:
                raise ValueError(f"its metadata have {length:,} bytes, more than the {most:,} that are read")
            pair = io.BytesIO(file.read(length))
            found = {place: pair.read(long) for place, long in _parts(pair, length)}
            if found.get(_KEY) == key.encode():
                return found.get(_VALUE, b"")
    return None


def _parts(file: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
    """Number and length of each part that has a length; `file` is at its beginning then, and may be read on from there."""
    for _ in range(_MOST_PARTS):
        if file.tell() >= size:
            return
        number, kind = divmod(_number(file), 8)
        if kind == 0:
            _number(file)
            continue
        length = {1: 8, 2: -1, 5: 4}.get(kind, size + 1)
        length = _number(file) if length < 0 else length
        behind = file.tell() + length
        if number == 0 or behind > size:
            raise ValueError(_DAMAGED)
        if kind == 2:
            yield number, length
        file.seek(behind)
    raise ValueError(_DAMAGED)


def _number(file: BinaryIO) -> int:
    """7 bits a byte, lowest first; bit 7 marks that more follow."""
    value = 0
    for place in range(10):
        byte = file.read(1)
        if not byte:
            break
        value |= (byte[0] & 127) << 7 * place
        if byte[0] < 128:
            return value
    raise ValueError(_DAMAGED)
