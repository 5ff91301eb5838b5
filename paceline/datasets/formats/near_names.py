"""Match names of files that differ from the expected ones, and paths of another machine.

`form_of` gives one text to names that differ only in case or in Unicode form (a macOS disk stores a decomposed form).
`loose_form_of` also ignores URL encoding, and reads underscores and runs of spaces as one space.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from urllib.parse import unquote

from paceline.config.listing import scan

SPLITS = ("train", "training", "val", "valid", "validation", "test")


def form_of(name: str) -> str:
    """`name` in lower case and in the composed Unicode form."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def loose_form_of(name: str) -> str:
    """`form_of` of a decoded URL, with one space for underscores and spaces."""
    return re.sub(r"[\s_]+", " ", form_of(unquote(name))).strip()


def grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The second of each pair by the first."""
    groups: dict[str, list[str]] = {}
    for key, name in pairs:
        groups.setdefault(key, []).append(name)
    return groups


class NearNames:
    """The names in folders, each folder listed once."""

    def __init__(self) -> None:
        self.names: Callable[[str], list[str]] = cache(self._names)
        self.path: Callable[[str], str] = cache(self._path)
        self._forms = cache(lambda folder: grouped((form_of(name), name) for name in self.names(folder)))

    @staticmethod
    def _names(folder: str) -> list[str]:
        try:
            return [entry.name for entry in scan(folder)[0]]
        except OSError:
            return []

    def _path(self, path: str) -> str:
        """The path that exists and differs from `path` at most in case and Unicode form; "" for none or several."""
        if os.path.lexists(path):
            return path
        above, name = os.path.split(path)
        folder = self.path(above) if name and above else ""
        same = self.below(folder, name) if folder else []
        return same[0] if len(same) == 1 else ""

    def below(self, folder: str, *names: str) -> list[str]:
        """The paths below `folder` whose parts differ from `names` at most in case and Unicode form."""
        found = [folder]
        for name in map(form_of, names):
            found = [os.path.join(place, one) for place in found for one in self._forms(place).get(name, ())]
        return found

    def other_machines(self, path: str, folders: Sequence[str]) -> str:
        """The file or folder that the longest end of `path`, a path of another machine, names in `folders`; "" for none.

        An end of a single part is used only for a path that leads out of every folder (absolute, of Windows, with `..`), and no
        end lacks the name of a split that `path` has.
        """
        parts = re.split(r"[/\\]", re.sub(r"^[A-Za-z]:", "", path))
        shortest = 1 if os.path.isabs(path) or ".." in parts or re.match(r"[A-Za-z]:|.*\\", path) else 2
        parts = [part for part in parts if part not in ("", ".", "..")]
        last = max((at for at, part in enumerate(parts) if part.lower() in SPLITS), default=len(parts))
        ends = [os.sep.join(parts[at:]) for at in range(min(last, len(parts) - shortest) + 1)]
        tried = (self.path(os.path.join(folder, end)) for end in ends for folder in folders)
        return next((place for place in tried if place), "")
