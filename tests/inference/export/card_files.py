"""Files of weights with cards, changed as a stranger may change them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def parts(file: Path) -> tuple[dict[str, Any], bytes]:
    """-> a safetensors file's header and the bytes behind it."""
    data = file.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def put(file: Path, header: str, tensors: bytes) -> None:
    text = header.encode() + b" " * (-len(header.encode()) % 8)
    file.write_bytes(len(text).to_bytes(8, "little") + text + tensors)


def card_in(file: Path) -> dict[str, Any]:
    return json.loads(parts(file)[0]["__metadata__"]["paceline"])


def with_text(file: Path, text: str) -> None:
    """Put `text` where the card stands."""
    header, tensors = parts(file)
    header["__metadata__"]["paceline"] = text
    put(file, json.dumps(header), tensors)


def with_facts(file: Path, changes: Mapping[str, Any] | Callable[[dict[str, Any]], Any]) -> None:
    """Change the card: dotted keys, or a function of it."""
    card = card_in(file)
    for dotted, value in changes.items() if isinstance(changes, Mapping) else ():
        node, (*above, last) = card, dotted.split(".")
        for key in above:
            node = node[key]
        node[last] = value
    if not isinstance(changes, Mapping):
        changes(card)
    with_text(file, json.dumps(card))


def without_card(file: Path) -> None:
    """As files of weights were before they had cards."""
    header, tensors = parts(file)
    del header["__metadata__"]
    put(file, json.dumps(header), tensors)
