"""Graphs that `paceline export` writes: which verbs take them; and the metadata in such a file, read without any package.

An ONNX file is a row of numbered parts; metadata are pairs of texts beside the graph. OpenVINO's is XML, with them as elements at its
end; a .pt2 is a zip archive, with an entry of ours. Nothing else of a file is read here.
Source: Protocol Buffers' encoding, and ModelProto of onnx.proto3, whose field 14 is metadata_props.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO
from xml.parsers import expat

from paceline._utils.atomic_write import IN_ZIP
from paceline._utils.errors import PacelineError
from paceline._utils.safe_read import open_plain_sized

GRAPHS = ONNX, OPENVINO, TORCH = (".onnx", ".xml", ".pt2")
ANSWERING = ("predict", "eval", "serve", "load")  # verbs that take one
_METADATA, _KEY, _VALUE = 14, 1, 2
# More parts at the top than any exporter writes: functions, metadata, versions of operators.
_MAX_PARTS = 10_000
# Operators and their names alone; numbers are in the .bin.
_MAX_XML, _DEEPEST = 256 << 20, 1000
_DAMAGED = "it is no ONNX file, or damaged"


def refuse_graph(path: Path, verb: str, *, trust: bool = False) -> None:
    """Refuse a graph where the verb has no use for one, and a .pt2 without the user's consent.

    trust  the consent: whoever made the file may run code here
    Raises PacelineError for these, and for a consent to what needs none.
    """
    graph = path.suffix in GRAPHS and path.is_file()
    if trust and path.suffix != TORCH:
        raise PacelineError(f"--trust: for a .pt2; {path} is opened without. Leave it away.")
    if graph and verb not in ANSWERING:
        raise PacelineError(
            f"{path}: a graph, which `predict`, `eval` and `serve` answer with. For `{verb}` name the run, or the .safetensors "
            "that `paceline export` writes of it."
        )
    if graph and path.suffix == TORCH and not trust:
        consent = "trust=True" if verb == "load" else "--trust"
        raise PacelineError(
            f"{path}: a .pt2 can run code of whoever made it as soon as torch opens it; {consent} opens one from somebody whose "
            "programs you would run, and `paceline export` also writes .onnx and .xml, which run none."
        )


def metadata(path: Path, key: str, most: int) -> bytes | None:
    """What a graph's file has under `key`; None where it has nothing.

    most  bytes of it
    Raises OSError where it cannot be read, ValueError for what is no file of its suffix or ends too early, and for longer metadata.
    """
    descriptor, size = open_plain_sized(path)
    with os.fdopen(descriptor, "rb") as file:
        result = {ONNX: _of_onnx, OPENVINO: _of_xml, TORCH: _of_zip}[path.suffix](file, size, key, most)
    if result is not None and len(result) > most:
        raise _too_long(f"{len(result):,}", most)
    return result


def _too_long(length: str, most: int) -> ValueError:
    return ValueError(f"its metadata have {length} bytes, more than the {most:,} that are read")


def _of_onnx(file: BinaryIO, size: int, key: str, most: int) -> bytes | None:
    for number, length in _parts(file, size):
        if number != _METADATA:
            continue
        if length > most:
            raise _too_long(f"{length:,}", most)
        pair = io.BytesIO(file.read(length))
        result = {index: pair.read(long) for index, long in _parts(pair, length)}
        if result.get(_KEY) == key.encode():
            return result.get(_VALUE, b"")
    return None


def _of_xml(file: BinaryIO, size: int, key: str, most: int) -> bytes | None:
    """<net><rt_info><KEY value="...">; no entity is expanded."""
    way: list[str] = []
    results: list[bytes] = []

    def begins(name: str, values: dict[str, str]) -> None:
        way.append(name)
        if len(way) > _DEEPEST:  # each takes memory until it ends
            raise ValueError("its elements lie deeper than those of any file of OpenVINO")
        if way == ["net", "rt_info", key]:
            results.append(values.get("value", "").encode())

    def declares(*_: Any) -> None:
        raise ValueError("it declares entities of its own, as no file of OpenVINO does")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EntityDeclHandler = begins, declares
    parser.EndElementHandler = lambda _: way.pop()
    try:
        parser.Parse(file.read(_MAX_XML), True)
    except (expat.ExpatError, LookupError):  # the latter for an encoding that Python does not know
        raise ValueError("it is no XML of OpenVINO, or damaged") from None
    return results[0] if results else None


def _of_zip(file: BinaryIO, size: int, key: str, most: int) -> bytes | None:
    try:
        with zipfile.ZipFile(file) as archive:
            if IN_ZIP not in archive.namelist():
                return None
            if archive.getinfo(IN_ZIP).compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise zipfile.BadZipFile  # bzip2 and LZMA are unpacked without bounds
            with archive.open(IN_ZIP) as entry:
                return entry.read(most + 1)
    except (zipfile.BadZipFile, RuntimeError, EOFError, UnicodeDecodeError, zlib.error):
        raise ValueError("it is no .pt2, or damaged") from None


def _parts(file: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
    """Number and length of each part that has a length; `file` is at its beginning then, and may be read on from there."""
    for _ in range(_MAX_PARTS):
        if file.tell() >= size:
            return
        number, kind = divmod(_number(file), 8)
        if kind == 0:
            _number(file)
            continue
        length = _number(file) if kind == 2 else {1: 8, 5: 4}.get(kind, size + 1)
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
    for index in range(10):
        if not (byte := file.read(1)):
            break
        value |= (byte[0] & 127) << 7 * index
        if byte[0] < 128:
            return value
    raise ValueError(_DAMAGED)
