"""SHA-256 in hex: of text, of JSON values, of files, of this package."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

BLOCK = 2**20  # bytes read at once


def sha256(content: str | bytes) -> str:
    """Of bytes, or of text in UTF-8."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def json_sha256(value: Any) -> str:
    """Of a JSON value, whatever the order of its keys and the spaces in its file."""
    return sha256(json.dumps(value, sort_keys=True, separators=(",", ":")))


def file_sha256(path: Path) -> str:
    """Of a file's bytes. Raises OSError if it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


@cache
def source_sha256() -> str:
    """Of every Python file of this package, with its name."""
    package = Path(__file__).parents[1]
    return json_sha256({path.relative_to(package).as_posix(): file_sha256(path) for path in package.rglob("*.py")})
