"""Names inside a checkpoints folder.

    checkpoints/step-000123/model.safetensors ...   tensors, one file per group
                            state.json              the snapshot's facts
                            index.json              {"format", "step", "files": {name: {"bytes", "sha256"}}, "strides",
                                                    "sha256" of all that}
    checkpoints/last, best -> step-000123           relative links
    checkpoints/.step-000123.PID.part               being written, or left by a kill; never read

The index is written last. A folder whose files do not match its index is damaged. A checkpoint is never changed: what becomes
known of it later stands in the run's events, and `best` follows from these.
"""

from __future__ import annotations

import re
from pathlib import Path

FORMAT = 1
INDEX, STATE = "index.json", "state.json"
LAST, BEST = "last", "best"
_STEP = re.compile(r"step-(\d+)")
# Unfinished (.part) and doomed (.trash) folders, and links being made.
HIDDEN = re.compile(r"\.(?:step-\d+|last|best)\.[0-9a-f]+\.(?:part|trash)")


def step_name(step: int) -> str:
    """123 -> 'step-000123'."""
    return f"step-{step:06d}"


def step_of(name: str) -> int | None:
    """'step-000123' (or 'step-123') -> 123; None for any other name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def list_steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint, whole or damaged, oldest first; empty where there is no folder."""
    if not folder.is_dir():
        return []
    folders = (path.name for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    # Somebody's copy `step-8` is none of ours: counted beside step-000008 it would be deleted by that one's name.
    return sorted(step for name in folders if (step := step_of(name)) is not None and name == step_name(step))


def link_step(folder: Path, link: str) -> int | None:
    """The step that `last` or `best` points to; None where there is no such link, or what it points to is gone."""
    path = folder / link
    try:
        # One that leads out of the folder is none of ours.
        return step_of(str(path.readlink())) if path.is_dir() else None
    except OSError:  # no link, or none any more
        return None
