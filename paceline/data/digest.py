"""The number by which a record's bytes are known again: in the index, in prepare's journal, in a pack."""

from __future__ import annotations

import hashlib


def digest_of(data: bytes) -> int:
    """The first 8 bytes of the SHA-256 of `data`, big-endian."""
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
