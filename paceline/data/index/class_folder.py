"""The content of one class folder by its names alone: image files, other files, folders.

Names are bytes, as the file system keeps them, so that no encoding can lose one.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from paceline._utils.errors import DataError
from paceline._utils.names import get_suffix, is_image_name, scan_folder


@dataclass(frozen=True)
class FolderNames:
    """Names in one folder, each list in byte order (= ImageFolder's order); hidden entries count as ignored."""

    images: list[bytes]  # with an image suffix (.jpg, .JPEG, ...), broken links too, which are named when they are read
    folders: list[bytes]
    others: Counter[str]  # how many files have which other suffix, in small letters; "" for none
    hidden: int  # number of hidden and system entries (._x.jpg, .ipynb_checkpoints, @eaDir, lost+found)

    @property
    def ignored(self) -> int:
        """Number of entries that are neither images nor folders."""
        return self.others.total() + self.hidden


def require_one_line(folder: Path | str, name: bytes) -> bytes:
    """`name`. Raises DataError where it holds a line break, which would forge lines of messages and lists."""
    if b"\n" in name:
        raise DataError(f"{folder}: {os.fsdecode(name)[:200]!r} in it has a line break in its name. Rename it.")
    return name


def list_folder(folder: Path) -> FolderNames:
    """The entries of `folder`, links followed. Raises DataError where it cannot be listed."""
    images, folders, others = [], [], Counter[str]()
    try:
        entries, hidden = scan_folder(os.fsencode(folder))
        for entry in entries:
            if _is_folder(entry):
                folders.append(require_one_line(folder, entry.name))
            elif is_image_name(entry.name):
                images.append(require_one_line(folder, entry.name))
            else:
                others[get_suffix(entry.name)] += 1
    except FileNotFoundError:
        raise DataError(f"{folder}: no such folder. Check the path (--data).") from None
    except NotADirectoryError:
        raise DataError(f"{folder}: this is a file, a folder is needed. Check the path (--data).") from None
    except PermissionError:
        raise DataError(f"{folder}: permission denied. Let this user read it:  chmod -R u+rX {folder}") from None
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be listed ({error.strerror}). Check the disk or mount, then try again."
        ) from None
    return FolderNames(images, folders, others, hidden)


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    """False for a link that leads to itself: it is named when it is read."""
    try:
        return entry.is_dir()
    except OSError:
        return False
