"""Photos that annotations name by their paths on another machine: /home/ann/set/a.jpg, C:\\set\\a.jpg, ../set/a.jpg.

Such a name is never followed. Of its parts the longest end that is a file in the folder of images here is taken, or else the only
file in there that has its last part.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from paceline.config.errors import DataError
from paceline.config.printable import short, some

_DRIVE = re.compile(r"[A-Za-z]:[/\\]|\\\\")


def is_of_elsewhere(name: str) -> bool:
    """Whether a name is no path below the folder of images, as it stands: absolute, of Windows, or with  ..  in it."""
    return os.path.isabs(name) or _DRIVE.match(name) is not None or ".." in re.split(r"[/\\]", name) or "\\" in name


class Elsewhere:
    """What names of another machine are in `folder`, the images' here. Counts what it found, for a note."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found: list[tuple[str, str]] = []
        self._by_name: dict[str, list[str]] | None = None

    def here(self, name: str, called: str) -> str:
        """-> the path below `folder`. called: the entry, for messages. Raises DataError where none or several could be meant."""
        if "\\" in name and (self.folder / name).is_file() and _DRIVE.match(name) is None and ".." not in name:
            return name  # Unix allows a backslash in a file's name
        parts = [part for part in re.split(r"[/\\]", _DRIVE.sub("", name)) if part not in ("", ".", "..")]
        ends = ("/".join(parts[at:]) for at in range(len(parts)))
        found = next((end for end in ends if (self.folder / end).is_file()), None)
        if found is None:
            meant = self._named(parts[-1]) if parts else []
            if len(meant) != 1:
                what = f"and {'several files' if meant else 'no file'} in {self.folder} {'are' if meant else 'is'} called so"
                what += f" ({some(meant)})" if meant else ""
                raise DataError(
                    f"{called}: its file_name leads out of the folder of images, {what}. "
                    "Make it relative to that folder, without  ..  in it, or name the right folder (--images)."
                )
            found = meant[0]
        self._found.append((name, found))
        return found

    def notes(self, path: Path) -> list[str]:
        """For people; nothing where every name was a path below the folder."""
        if not self._found:
            return []
        (name, found), count = self._found[0], len(self._found)
        return [
            f"{path}: {count:,} file_name{'s are paths' if count > 1 else ' is a path'} of another machine ({short(name, 120)}), "
            f"taken as what is called so in {self.folder} ({found})"
        ]

    def _named(self, name: str) -> list[str]:
        """Files anywhere in the folder with that name, relative to it; the folder is walked once."""
        if self._by_name is None:
            self._by_name = {}
            for place, _, files in os.walk(self.folder):
                for file in files:
                    self._by_name.setdefault(file, []).append(os.path.relpath(os.path.join(place, file), self.folder))
        return sorted(self._by_name.get(name, []))
