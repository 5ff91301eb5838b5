"""Where paceline keeps what it can make again: rendered data sets, prepared weights."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.config.errors import UserError


def cache_folder() -> Path:
    """`$PACELINE_CACHE` where it is set and not empty, else `~/.cache/paceline`. The folder need not exist yet.

    Raises UserError where neither the variable nor a home folder is known.
    """
    chosen = os.environ.get("PACELINE_CACHE") or "~/.cache/paceline"
    try:
        return Path(chosen).expanduser().absolute()
    except RuntimeError:
        raise UserError(
            f"the cache folder {chosen} has no place: this user has no home folder.\n"
            "Set PACELINE_CACHE to a folder that can be written."
        ) from None
