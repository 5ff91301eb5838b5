"""This module lists folders for every reader of users' data: hidden files and files of operating systems are never data.

Hidden names begin with a dot (`._photo.jpg`, `.ipynb_checkpoints`, `.DS_Store`). The other names are those that macOS, Windows,
file systems, and network storage (Synology, QNAP) write into folders of photos. Standard library only.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import AnyStr

_SYSTEM = re.compile(
    r"__macosx|icon\r|(eh)?thumbs\.db|desktop\.ini|\$recycle\.bin|recycler|system volume information|lost\+found|"
    "@eadir|@tmp|#recycle|#snapshot|@recycle|@recently-snapshot",
    re.IGNORECASE,
)


def is_system_name(name: str | bytes) -> bool:
    """True for the name of a hidden file or folder, or of one that an operating system writes."""
    text = os.fsdecode(name)
    return text.startswith(".") or _SYSTEM.fullmatch(text) is not None


def in_system_folder(path: str | bytes) -> bool:
    """True if a part of `path`, its last one included, is a system name. Parts are separated by slashes."""
    return any(is_system_name(part) and part not in (".", "..") for part in os.fsdecode(path).split("/"))


def scan_folder(folder: AnyStr) -> tuple[list[os.DirEntry[AnyStr]], int]:
    """Return the entries of `folder` by name, and the number of system entries left out. Raises OSError."""
    with os.scandir(folder) as entries:
        results = sorted(entries, key=lambda entry: entry.name)
    visible = [entry for entry in results if not is_system_name(entry.name)]
    return visible, len(results) - len(visible)


def list_matching(folder: str | Path, *patterns: str) -> list[Path]:
    """Return the entries of `folder` that match a pattern, sorted; all without patterns, none if it cannot be listed."""
    try:
        names = [entry.name for entry in scan_folder(os.fspath(folder))[0]]
    except OSError:
        return []
    return [Path(folder, name) for name in names if any(fnmatch.fnmatchcase(name, one) for one in patterns or ("*",))]


def walk_visible(folder: str | Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder, its folders and its files from `folder` down, as `os.walk_visible` does, without system entries."""
    for location, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not is_system_name(name)]
        yield location, folders, [name for name in files if not is_system_name(name)]


def glob_paths(pattern: str, *, recursive: bool = False) -> list[str]:
    """Return the paths that `pattern` matches, sorted, without system entries that it does not name itself."""
    named = set(pattern.split(os.sep))
    results = sorted(glob.iglob(pattern, recursive=recursive))
    return [path for path in results if not any(map(_SYSTEM.fullmatch, {*path.split(os.sep)} - named))]
