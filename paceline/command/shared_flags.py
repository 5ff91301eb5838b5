"""Flags that several verbs have: what no verb can mean by them is refused here, in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.config.errors import UserError
from paceline.store.stores import scheme_of


def check_shared(flags: Any) -> None:
    """Raises UserError for a number of threads that is none; `flags` may have no such flag."""
    workers = getattr(flags, "workers", 0)
    if workers < 0:
        raise UserError(f"--workers {workers}: a number of threads, 0 or more (0: one a core).")


def out_folder(out: str) -> Path | None:
    """The folder that --out names, None for "". Raises UserError for an address: what is written has to be renamed in place."""
    if scheme_of(out):
        raise UserError(f"--out {out}: packs and indexes are written to folders; copy them there.")
    return Path(out).expanduser() if out else None
