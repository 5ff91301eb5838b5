"""JSON objects that tell whether they are as they were written: their key `sha256` is over all the others.

It is over the content, not over the bytes: a file that an editor has only laid out anew still fits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

SEAL = "sha256"


def sealed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """`facts` (of what JSON has), with their checksum as the last key."""
    return {**facts, SEAL: _digest(json.loads(json.dumps(facts)))}


def is_whole(facts: Mapping[str, Any]) -> bool:
    """Whether parsed JSON has a checksum, and it is the content's."""
    return facts.get(SEAL) == _digest({key: value for key, value in facts.items() if key != SEAL})


def parse(content: str | bytes) -> Any:
    """The JSON value that a file holds.

    Raises ValueError for everything that is not one, also for what is nested deeper than Python goes.
    """
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
