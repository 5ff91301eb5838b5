"""Names inside a checkpoints folder.

    checkpoints/step-000123/model.safetensors ...   tensors, one file per group
                            state.json              the snapshot's facts
                            index.json              {"format", "step", "files": {name: {"bytes", "sha256"}}, "strides",
                                                    "sha256" of all that}
    checkpoints/last, best -> step-000123           relative links; on a file system without links, files that hold the name
    checkpoints/.step-000123.PID.part               being written, or left by a kill; never read

The index is written last. A folder whose files do not match its index is damaged. A checkpoint is never changed: later facts about
it are in the run's events, and `best` follows from these.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from paceline._utils.errors import PacelineError
from paceline._utils.formatting import format_bytes
from paceline._utils.names import NOWHERE
from paceline._utils.safe_read import read_entry

FORMAT = 1
INDEX, STATE = "index.json", "state.json"
LAST, BEST = "last", "best"
# Bytes of a file in place of a link.
MAX_NAME = 64
_STEP = re.compile(r"step-(\d+)")
# Unfinished (.part) and doomed (.trash) folders, and links being made.
HIDDEN = re.compile(r"\.(?:step-\d+|last|best)\.[0-9a-f]+\.(?:part|trash)")


def step_name(step: int) -> str:
    """123 -> 'step-000123'."""
    return f"step-{step:06d}"


def parse_step(name: str) -> int | None:
    """'step-000123' (or 'step-123') -> 123; None for any other name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def list_steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint, whole or damaged, oldest first; empty where there is no folder."""
    if not folder.is_dir():
        return []
    folders = (path.name for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    # A user's copy `step-8` is none of ours: counted beside step-000008 it would be deleted by that one's name.
    return sorted(step for name in folders if (step := parse_step(name)) is not None and name == step_name(step))


def link_step(folder: Path, link: str) -> int | None:
    """The step that `last` or `best` points to; None where there is no such link, or what it points to is gone."""
    path = folder / link
    try:
        # A link out of the folder is none of ours.
        name = str(path.readlink()) if path.is_symlink() else read_entry(path, MAX_NAME).decode("ascii", "replace").strip()
    except OSError:  # no link, or none any more
        return None
    step = parse_step(name)
    return step if step is not None and (folder / name).is_dir() else None


def resolve_link(path: Path) -> Path:
    """The folder of the checkpoint that `path` is, or that a file called `last` or `best` names."""
    step = link_step(path.parent, path.name) if path.name in (LAST, BEST) and not path.is_dir() else None
    return path if step is None else path.with_name(step_name(step))


def steps_to_delete(steps: Iterable[int], *, newest: int, keep: int, keep_every: int | None, best: int | None) -> list[int]:
    """The steps to delete once the checkpoint of step `newest` is safely on disk.

    keep        so many of the newest stay, `newest` among them
    keep_every  multiples of this many steps stay as well
    best        this one stays as well
    Steps after `newest` are damaged: the run resumed from before them.
    """
    past = sorted(step for step in steps if step <= newest)
    stay = set(past[-max(1, keep) :]) | {newest, best}
    if keep_every:
        stay |= {step for step in past if step % keep_every == 0}
    return [step for step in sorted(steps) if step > newest or step not in stay]


def check_space(folder: Path, bytes_needed: int) -> None:
    """Raises PacelineError for a folder that cannot be written, or a disk with fewer free bytes than needed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".probe.*.part"):  # a link, which nobody can hold: a killed process's
            if left.is_symlink() and os.readlink(left) == NOWHERE:
                left.unlink()
        # A kill leaves a part as any other (_utils/atomic_write.py).
        probe = folder / f".probe.{os.urandom(4).hex()}.part"
        with open(probe, "xb") as file:
            file.write(b"\0" * 4096)
        probe.unlink()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise PacelineError(
            f"{folder}: the folder is not writable ({error.strerror or error}). Choose another folder with --output-dir."
        ) from None
    if free < bytes_needed:
        raise PacelineError(
            f"{folder}: the checkpoints need {format_bytes(bytes_needed)}, and only {format_bytes(free)} are free. "
            "Free disk space, choose another --output-dir, or keep fewer checkpoints (--keep-checkpoints)."
        )
