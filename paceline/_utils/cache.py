"""Where paceline keeps what it can make again: rendered data sets, prepared weights, numbers that take a while to work out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline._utils.atomic_write import atomic_write
from paceline._utils.errors import PacelineError
from paceline._utils.hashing import json_sha256
from paceline._utils.safe_read import has_valid_checksum, parse_json, with_checksum


def cache_folder() -> Path:
    """`$PACELINE_CACHE` where it is set and not empty, else `~/.cache/paceline`. The folder need not exist yet.

    Raises PacelineError where neither the variable nor a home folder is known.
    """
    chosen = os.environ.get("PACELINE_CACHE") or "~/.cache/paceline"
    try:
        return Path(chosen).expanduser().absolute()
    except RuntimeError:
        raise PacelineError(
            f"the cache folder {chosen} is not available, because this user has no home folder.\n"
            "Set PACELINE_CACHE to a writable folder."
        ) from None


def cached_answer(kind: str, question: Mapping[str, Any], work_out: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The answer to a question, of what JSON has: as it was worked out once, or worked out now and kept.

    kind      folder of the cache
    question  everything that the answer follows from, also the code and the libraries that work it out
    A damaged file is replaced. Without a cache that can be written everything is worked out anew: only time is lost.
    """
    name = json_sha256(question)
    try:
        file = cache_folder() / kind / f"{name}.json"
    except PacelineError:
        return work_out()
    with suppress(OSError, ValueError):
        kept = parse_json(file.read_bytes())
        if isinstance(kept, dict) and has_valid_checksum(kept):
            return kept["answer"]
    answer = work_out()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, json.dumps(with_checksum({"question": question, "answer": answer})))
    return answer
