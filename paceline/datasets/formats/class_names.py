"""Readable class names, where a data set brings them: pictures and reports say "tench" and not n01440764."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from paceline.config.errors import DataError
from paceline.config.plain_file import read_plain
from paceline.config.printable import tidy_name
from paceline.store.manifest import Manifest

MOST_BYTES = 64 << 20


def read_class_names(root: Path, classes: tuple[str, ...]) -> tuple[str, ...] | None:
    """Readable names of `classes`, where ROOT has them for every class, else None.

    From classes.json, {folder: name} or {"classes": {folder: name}}, or from LOC_synset_mapping.txt, whose lines are
    "folder name, synonym, ...". Raises DataError where classes.json is not JSON.
    """
    names: dict[str, object] = {}
    path = root / "classes.json"
    if path.is_file():
        names = _names_from_json(path)
    elif (root / "LOC_synset_mapping.txt").is_file():
        path = root / "LOC_synset_mapping.txt"
        lines = _read(path).decode("utf-8", "replace").splitlines()
        names = {line.split(" ", 1)[0]: line.split(" ", 1)[-1].split(",")[0].strip() for line in lines}
    found = [names.get(label) for label in classes]
    if not all(isinstance(name, str) for name in found):
        return None
    try:
        return tuple(tidy_name(str(name)) for name in found)
    except ValueError as error:
        raise DataError(f"{path}: one of its names cannot be used: {error}. Correct it.") from None


def names_changed(manifest: Manifest) -> str | None:
    """None where the readable names in a manifest of class folders are those of its data set now, else one line."""
    if manifest.kind != "class-folder" or manifest.in_containers:
        return None  # the names of boxes are in the annotations, which are compared as files; of containers, in the manifest
    now = read_class_names(manifest.root_path, manifest.classes)
    return None if now == manifest.class_names else f"{manifest.root_path}: its readable class names changed"


def tidy_class_name(given: object, blame: Callable[[str], Exception]) -> str:
    """A class's name on one line. Raises what `blame` makes of the reason where it is none."""
    if not isinstance(given, str):
        raise blame("has no name")
    try:
        return tidy_name(given)
    except ValueError as error:
        raise blame(f"has no name that can be used: {error}" if given.strip() else "has no name") from None


def first_twice(names: Iterable[str]) -> str | None:
    """The first name that was there before, or None."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _read(path: Path) -> bytes:
    try:
        return read_plain(path, MOST_BYTES)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). It only gives classes readable names.") from None


def _names_from_json(path: Path) -> dict[str, object]:
    try:
        record = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: not valid JSON ({error}). Mend it, or rename it: it only gives classes readable names."
        ) from None
    table = record.get("classes", record) if isinstance(record, dict) else {}
    return table if isinstance(table, dict) else {}
