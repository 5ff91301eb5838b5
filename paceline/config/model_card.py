"""The card of a file of weights: inside the file, in the words of a run.json, what others need of its run.

A safetensors file has room for texts in its header, a graph beside its operators. Under our key stands one JSON object, read as a
stranger's: bounded, each fact of its own type, and those that are not known left out. Whatever is asked of a run.json can be asked of
what `read_card` returns. Nothing of the run's machine is in it, neither paths nor clocks, so that equal checkpoints of equal runs have
equal bytes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline._utils.errors import CheckpointError, PacelineError
from paceline._utils.safe_read import open_plain, parse_json
from paceline._utils.text import MAX_NAME, abbreviate, escape_line, format_count, join_names
from paceline.config.graph_file import GRAPHS, metadata

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
OF_SYSTEM = ("accelerator", "precision", "channels_last")
OF_PLAN = ("train_images", "val_images", "images_per_forward")
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
    "controls": _dict,
    "classes": lambda value: _texts(value) and bool(value),
    "data": _data,
    "system_name": _text,
    "colours": lambda value: value == "rgb",  # order of the pixels that the network takes
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
    facts = {"system": {}, "plan": {}, "controls": {}, "data": {}, "colours": "rgb", **facts, **more}
    parts = {"system": OF_SYSTEM, "plan": OF_PLAN, "data": OF_DATA}
    card = {name: facts[name] for name in CHECKS if name in facts}
    card |= {name: {key: facts[name][key] for key in keys if key in facts[name]} for name, keys in parts.items()}
    card["controls"] = {"synthetic": bool(facts["controls"].get("synthetic"))}
    # A recipe that was written in Python and one that was read from a run.json differ in their order, and as 12 and 12.0 do.
    text = json.dumps(_whole_as_int({"schema": SCHEMA, **card}), separators=(",", ":"), sort_keys=True)
    if len(text) > MAX_HEADER // 2:  # the tensors' names have the rest
        raise PacelineError(f"its names have {len(text):,} bytes, more than a file of weights has room for.")
    _checked(text, "the run")
    return text


def has_card(path: Path) -> bool:
    """Whether a file says itself which network its weights are for. Raises CheckpointError for a card that is none of ours."""
    return path.suffix in SUFFIXES and path.is_file() and _card(path) is not None


def read_card(path: Path) -> dict[str, Any]:
    """The facts of a file's card, as `config/run.py` reads those of a run.json. Raises CheckpointError where it has none."""
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file.")
    if (card := _card(path)) is None:
        if path.suffix in GRAPHS:
            raise CheckpointError(
                f"{path}: a graph that says nothing of classes and sizes of photos, as those of `paceline export` do. "
                "Others' files are for their own programs."
            )
        raise CheckpointError(
            f"{path}: weights that do not say which network they are for, or damaged. `weights check` says what it is."
        )
    return card


def format_card(card: Mapping[str, Any]) -> dict[str, str]:
    """What a card says, a line each by its head; nothing of none."""
    if not card:
        return {}
    step, run, best = card.get("step"), card.get("run", {}), card.get("best_f1")
    results = [f"{name} {value:.4g}" for name, value in card.get("metrics", {}).items()]
    if best:
        results.append(f"best F1 {best.get('f1', math.nan):.3f} from score {best.get('threshold', math.nan):.3f} on")
    lines = {
        "holds": f"{card['name']}{f', step {step:,}' if step else ''}: {format_count(len(card['classes']), 'class')} "
        f"({join_names(card['classes'], 8)})",
        "scores": ", ".join(results),
        "from": ", ".join(f"{name} {value}" for name, value in run.items()),
        "of data": card["data"].get("hash", ""),
        "made by": ", ".join(f"{name} {version}" for name, version in card.get("versions", {}).items()),
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
        text = metadata(path, METADATA, MAX_HEADER)
    except OSError as problem:
        raise CheckpointError(f"{path}: cannot be read ({problem.strerror}).") from None
    except ValueError as problem:
        raise CheckpointError(f"{path}: {problem}.") from None
    card = None if text is None else _checked(text, str(path))
    if card is not None and "graph" not in card:
        raise CheckpointError(f"{path}: its card does not say what the graph takes; no file of ours is so.")
    return card


def _checked(text: Any, where: str) -> dict[str, Any] | None:
    """The card's facts; None where it is older than cards. Raises CheckpointError for what is none of ours."""
    try:
        card = parse_json(text)
    except (ValueError, TypeError) as problem:
        raise CheckpointError(f"{where}: its metadata of paceline's is damaged ({abbreviate(str(problem))}).") from None
    if not isinstance(card, dict) or "schema" not in card:
        return None
    if card["schema"] != SCHEMA:
        raise CheckpointError(
            f"{where}: its card is of schema {abbreviate(card['schema'])}; this paceline reads schema {SCHEMA}."
        )
    for name, can_be in CHECKS.items():
        if name not in card and name not in NEEDED:
            continue
        if not can_be(card.get(name)):
            value = abbreviate(card[name]) if name in card else "missing"
            raise CheckpointError(f"{where}: its card has {name} {value}, which no model of ours has.")
    known = {name: value for name, value in card.items() if name in CHECKS}
    data = {name: value for name, value in card["data"].items() if name in OF_DATA}
    return {**known, "data": data, "controls": {"synthetic": card["controls"].get("synthetic") is True}, "world": 1}
