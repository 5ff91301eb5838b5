"""The card of a file of weights: inside the file, in the words of a run.json, what others need of its run.

A safetensors file has room for texts in its header, a graph beside its operators. Under our key stands one JSON object, read as a
stranger's: bounded, each fact of its own type, and those that are not known left out. Whatever is asked of a run.json can be asked of
what `read_card` returns. Nothing of the run's machine is in it, neither paths nor clocks, so that equal checkpoints of equal runs have
equal bytes.
"""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from xml.parsers import expat

from paceline._utils.atomic_write import IN_ZIP
from paceline._utils.errors import CheckpointError, PacelineError
from paceline._utils.safe_read import open_plain, open_plain_sized, parse_json
from paceline._utils.text import MAX_NAME, abbreviate, escape_line, format_count, join_names

GRAPHS = ONNX, OPENVINO, TORCH = (".onnx", ".xml", ".pt2")
ANSWERING = ("predict", "eval", "serve", "load")  # verbs that take one
_METADATA, _KEY, _VALUE = 14, 1, 2
# More parts at the top than any exporter writes: functions, metadata, versions of operators.
_MAX_PARTS = 10_000
# Operators and their names alone; numbers are in the .bin.
_MAX_XML, _DEEPEST = 256 << 20, 1000
_DAMAGED = "not a valid ONNX file"
SCHEMA = 1
SUFFIX = ".safetensors"
# Files that may have a card.
SUFFIXES = (SUFFIX, *GRAPHS)
# Key of the file's metadata.
METADATA = "paceline"
# Of a file's header, whose card names twenty thousand classes at most, as a run.json does.
MAX_HEADER = 16 << 20
# How photos lie in a graph's input, and their bounds: photos of one call, pixels of a side.
LAYOUTS = NHWC, NCHW = ("NHWC uint8", "NCHW float32 from 0 to 1")
MAX_PHOTOS, MAX_SIDE = 64, 8192
# Of versions, of metrics.
MAX_FACTS = 200
# Of a run's facts, those that decide its answers or how it is scored.
OF_SYSTEM = ("device", "precision", "channels_last")
OF_PLAN = ("train_images", "val_images", "micro_batch_size")
OF_DATA = ("hash", "category_ids", "class_folders")


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_NAME and escape_line(value) == value


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _each(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, dict)
        and len(value) <= MAX_FACTS
        and all(_text(name) and check(one) for name, one in value.items())
    )


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300


def _data(value: Any) -> bool:
    checks = {
        "hash": _text,
        "category_ids": lambda ids: isinstance(ids, list) and all(type(one) is int and abs(one) < 2**63 for one in ids),
        "class_folders": _texts,
    }
    return isinstance(value, dict) and all(checks[name](one) for name, one in value.items() if name in checks)


def _dict(value: Any) -> bool:
    return isinstance(value, dict)


def _graph(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    sides, batch = [value.get("height"), value.get("width")], value.get("batch", 0)
    shapes: Any = value.get("shapes") if sides == [None, None] else [sides]  # those that photos are padded to
    return (
        isinstance(shapes, list)
        and all(isinstance(shape, list) and list(map(type, shape)) == [int, int] for shape in shapes)
        and all(1 <= side <= MAX_SIDE for shape in shapes for side in shape)
        and value.get("layout") in LAYOUTS
        and (batch is None or (type(batch) is int and 1 <= batch <= MAX_PHOTOS))
        and _text(value.get("numbers", ""))
    )


# Every card has the first seven; recipe and system are checked where they are made from it, as those of a run.json.
CHECKS: dict[str, Callable[[Any], bool]] = {
    "name": _text,
    "recipe": _dict,
    "system": _dict,
    "plan": _each(_whole),
    "options": _dict,
    "classes": lambda value: _texts(value) and bool(value),
    "data": _data,
    "system_name": _text,
    "color_order": lambda value: value == "rgb",  # order of the pixels that the network takes
    "averaged": lambda value: value is False,  # the run was evaluated with an average of these weights
    "versions": _each(_text),
    "step": _whole,
    "metrics": _each(_number),
    "best_f1": _each(lambda value: _number(value) and 0 <= value <= 1),
    "run": _each(_text),
    "graph": _graph,  # of a graph's file: what it takes
}
NEEDED = tuple(CHECKS)[:7]


def _whole_as_int(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _whole_as_int(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_whole_as_int(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def make_card(facts: Mapping[str, Any], **more: Any) -> str:
    """The card of a run by the facts of its run.json, or of another card.

    more   facts in place of the run's own, and those that a run.json has not: step, metrics, best_f1, run
    Raises PacelineError where a name in them is none that `read_card` takes.
    """
    facts = {"system": {}, "plan": {}, "options": {}, "data": {}, "color_order": "rgb", **facts, **more}
    parts = {"system": OF_SYSTEM, "plan": OF_PLAN, "data": OF_DATA}
    card = {name: facts[name] for name in CHECKS if name in facts}
    card |= {name: {key: facts[name][key] for key in keys if key in facts[name]} for name, keys in parts.items()}
    card["options"] = {"synthetic": bool(facts["options"].get("synthetic"))}
    # A recipe that was written in Python and one that was read from a run.json differ in their order, and as 12 and 12.0 do.
    text = json.dumps(_whole_as_int({"schema": SCHEMA, **card}), separators=(",", ":"), sort_keys=True)
    if len(text) > MAX_HEADER // 2:  # the tensors' names have the rest
        raise PacelineError(
            f"the metadata has {len(text):,} bytes; the limit is {MAX_HEADER // 2:,}. Use shorter class names."
        )
    _checked(text, "the run")
    return text


def has_card(path: Path) -> bool:
    """Whether a file says itself which network its weights are for. Raises CheckpointError for a card that is none of ours."""
    return path.suffix in SUFFIXES and path.is_file() and _card(path) is not None


def read_card(path: Path) -> dict[str, Any]:
    """The facts of a file's card, as `config/run.py` reads those of a run.json. Raises CheckpointError where it has none."""
    if not path.is_file():
        raise CheckpointError(f"{path}: not found.")
    if (card := _card(path)) is None:
        if path.suffix in GRAPHS:
            raise CheckpointError(
                f"{path}: was not written by `paceline export`, so its classes and image sizes are unknown. "
                "Graphs of other programs are not supported."
            )
        raise CheckpointError(
            f"{path}: has no metadata about its network, or is damaged. `weights inspect` lists its contents."
        )
    return card


def format_card(card: Mapping[str, Any]) -> dict[str, str]:
    """What a card says, a line each by its head; nothing of none."""
    if not card:
        return {}
    step, run, best = card.get("step"), card.get("run", {}), card.get("best_f1")
    results = [f"{name} {value:.4g}" for name, value in card.get("metrics", {}).items()]
    if best:
        results.append(f"best F1 {best.get('f1', math.nan):.3f} at score threshold {best.get('threshold', math.nan):.3f}")
    lines = {
        "model": f"{card['name']}{f', step {step:,}' if step else ''}: {format_count(len(card['classes']), 'class')} "
        f"({join_names(card['classes'], 8)})",
        "metrics": ", ".join(results),
        "run": ", ".join(f"{name} {value}" for name, value in run.items()),
        "dataset": card["data"].get("hash", ""),
        "versions": ", ".join(f"{name} {version}" for name, version in card.get("versions", {}).items()),
    }
    return {head: line for head, line in lines.items() if line}


def header_bytes(path: Path) -> int:
    """Bytes that a safetensors file says its header has. Raises OSError."""
    with os.fdopen(open_plain(path), "rb") as file:
        return int.from_bytes(file.read(8), "little")


def _card(path: Path) -> dict[str, Any] | None:
    """None where there is none; whoever reads the tensors says what is wrong with a file that is damaged."""
    if path.suffix in GRAPHS:
        return _card_of_graph(path)
    try:
        if (length := header_bytes(path)) > MAX_HEADER:
            return None
        with os.fdopen(open_plain(path), "rb") as file:
            text = parse_json(file.read(8 + length)[8:])["__metadata__"][METADATA]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return _checked(text, str(path))


def _card_of_graph(path: Path) -> dict[str, Any] | None:
    try:
        text = read_graph_metadata(path, METADATA, MAX_HEADER)
    except OSError as problem:
        raise CheckpointError(f"{path}: not readable ({problem.strerror}).") from None
    except ValueError as problem:
        raise CheckpointError(f"{path}: {problem}.") from None
    card = None if text is None else _checked(text, str(path))
    if card is not None and "graph" not in card:
        raise CheckpointError(f"{path}: its metadata has no graph inputs, so paceline did not write it.")
    return card


def _checked(text: Any, where: str) -> dict[str, Any] | None:
    """The card's facts; None where it is older than cards. Raises CheckpointError for what is none of ours."""
    try:
        card = parse_json(text)
    except (ValueError, TypeError) as problem:
        raise CheckpointError(f"{where}: the metadata is damaged ({abbreviate(str(problem))}).") from None
    if not isinstance(card, dict) or "schema" not in card:
        return None
    if card["schema"] != SCHEMA:
        raise CheckpointError(
            f"{where}: metadata schema {abbreviate(card['schema'])} is not supported. This paceline reads schema {SCHEMA}."
        )
    for name, can_be in CHECKS.items():
        if name not in card and name not in NEEDED:
            continue
        if not can_be(card.get(name)):
            value = abbreviate(card[name]) if name in card else "missing"
            raise CheckpointError(f"{where}: invalid metadata: {name} is {value}.")
    known = {name: value for name, value in card.items() if name in CHECKS}
    data = {name: value for name, value in card["data"].items() if name in OF_DATA}
    return {**known, "data": data, "options": {"synthetic": card["options"].get("synthetic") is True}, "world_size": 1}


# Graphs that `paceline export` writes: which verbs take them; and the metadata in such a file, read without any package.
#
# An ONNX file is a row of numbered parts; metadata are pairs of texts beside the graph. OpenVINO's is XML, with them as elements at
# its end; a .pt2 is a zip archive, with an entry of ours. Nothing else of a file is read here.
# Source: Protocol Buffers' encoding, and ModelProto of onnx.proto3, whose field 14 is metadata_props.


def refuse_graph(path: Path, verb: str, *, allow_code_execution: bool = False) -> None:
    """Refuse a graph where the verb has no use for one, and a .pt2 without the user's consent.

    verb                  a command, or "load" for Python
    allow_code_execution  the consent: the author of the file may run code here
    Raises PacelineError for these, and for a consent to what needs none.
    """
    graph = path.suffix in GRAPHS and path.is_file()
    consent = "allow_code_execution=True" if verb == "load" else "--allow-code-execution"
    if allow_code_execution and path.suffix != TORCH:
        raise PacelineError(f"{consent}: only required for .pt2 files, and {path} is not one. Remove it.")
    if graph and verb not in ANSWERING:
        raise PacelineError(
            f"{path}: an exported graph is not supported by `{verb}`, only by `predict`, `eval`, and `serve`. "
            "Use the run, or a .safetensors file that `paceline export` wrote."
        )
    if graph and path.suffix == TORCH and not allow_code_execution:
        raise PacelineError(
            f"{path}: a .pt2 file can run arbitrary code when it is opened. If you trust its author, add {consent}. "
            "The .onnx and .xml files that `paceline export` writes run no code."
        )


def read_graph_metadata(path: Path, key: str, most: int) -> bytes | None:
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
    return ValueError(f"the metadata has {length} bytes; the limit is {most:,}")


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
            raise ValueError("its elements are nested deeper than in OpenVINO files")
        if way == ["net", "rt_info", key]:
            results.append(values.get("value", "").encode())

    def declares(*_: Any) -> None:
        raise ValueError("it declares XML entities, which OpenVINO files do not")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EntityDeclHandler = begins, declares
    parser.EndElementHandler = lambda _: way.pop()
    try:
        parser.Parse(file.read(_MAX_XML), True)
    except (expat.ExpatError, LookupError):  # the latter for an encoding that Python does not know
        raise ValueError("not a valid OpenVINO XML file") from None
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
        raise ValueError("not a valid .pt2 file") from None


def _parts(file: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
    """Number and length of each part that has a length; `file` is at its beginning then, and may be read on from there."""
    for _ in range(_MAX_PARTS):
        if file.tell() >= size:
            return
        number, kind = divmod(_varint(file), 8)
        if kind == 0:
            _varint(file)
            continue
        length = _varint(file) if kind == 2 else {1: 8, 5: 4}.get(kind, size + 1)
        behind = file.tell() + length
        if number == 0 or behind > size:
            raise ValueError(_DAMAGED)
        if kind == 2:
            yield number, length
        file.seek(behind)
    raise ValueError(_DAMAGED)


def _varint(file: BinaryIO) -> int:
    """7 bits a byte, lowest first; bit 7 marks that more follow."""
    value = 0
    for index in range(10):
        if not (byte := file.read(1)):
            break
        value |= (byte[0] & 127) << 7 * index
        if byte[0] < 128:
            return value
    raise ValueError(_DAMAGED)
