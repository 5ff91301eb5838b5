"""What may lie in a run's folder before anything is written there: plain files and folders, each under a name of its kind.

A run's folder may come from somebody else, and what is written, swept and pruned under its names would follow a link to another
place. The folder itself may be reached through one: `--out` is the user's own.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from paceline.config.errors import UserError
from paceline.config.run_names import LAUNCH_FOLDER, MIRROR_FILE

CHECKPOINTS, PREDICTIONS, TENSORBOARD, PROFILE = "checkpoints", "predictions", "tensorboard", "profile"
FOLDERS = (CHECKPOINTS, PREDICTIONS, TENSORBOARD, PROFILE, LAUNCH_FOLDER)
FILES = ("run.json", "run-first.json", "events.jsonl", "mllog.txt", "report.html", MIRROR_FILE, ".lock")
# The links that a run's folder has, to checkpoints beside them, and what a kill leaves of them (checkpoint/layout.py, retention.py).
# One that leads to the other, or to itself, is damaged and leads nowhere else.
_OWN_LINK, _BESIDE = re.compile(r"last|best|\.(last|best)\.[0-9a-f]+\.part"), re.compile(r"step-\d+|last|best")
_PROBE, NOWHERE = re.compile(r"\.probe\.[0-9a-f]+\.part"), "nowhere"


def check_entries(run: Path) -> None:
    """Raises UserError naming an entry of the folder `run`, or of a folder in it that is written to, that is a link, a pipe or the
    like, or a file where a folder belongs. A folder that is not there has none."""
    for entry in _listed(run):
        inside = entry.name in FOLDERS
        if _PROBE.fullmatch(entry.name) and entry.is_symlink() and os.readlink(entry.path) == NOWHERE:
            continue
        if wrong := _wrong(entry, must_be="folder" if inside else "file" if entry.name in FILES else ""):
            raise _refusal(entry.path, wrong)
        for inner in _listed(Path(entry.path)) if inside else ():
            own = entry.name == CHECKPOINTS and _OWN_LINK.fullmatch(inner.name) and inner.is_symlink()
            if own and _BESIDE.fullmatch(os.readlink(inner.path)):
                continue
            if wrong := _wrong(inner):
                raise _refusal(inner.path, wrong)


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:  # not there yet, or for whoever writes to it to complain of
        return []


def _wrong(entry: os.DirEntry[str], *, must_be: str = "") -> str:
    """What an entry is, where that is wrong; must_be: "folder", "file" or "" for either."""
    if entry.is_symlink():
        return "a link, and what is written under this name would go elsewhere"
    folder, file = entry.is_dir(), entry.is_file()
    if not folder and not file:
        return "neither a file nor a folder"
    found = "folder" if folder else "file"
    return f"a {found} where a run has a {must_be}" if must_be not in ("", found) else ""


def _refusal(path: str, wrong: str) -> UserError:
    return UserError(f"{path}: this is {wrong}. Remove it, or choose another folder with --out.")
