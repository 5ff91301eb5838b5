"""Readable class names, where a data set brings them: pictures and reports say "tench" and not n01440764."""

from __future__ import annotations

import json
from pathlib import Path

from paceline.config.errors import DataError


def read_class_names(root: Path, classes: tuple[str, ...]) -> tuple[str, ...] | None:
    """Readable names of `classes`, where ROOT has them for every class, else None.

    From classes.json, {folder: name} or {"classes": {folder: name}}, or from LOC_synset_mapping.txt, whose lines are
    "folder name, synonym, ...". Raises DataError where classes.json is not JSON.
    """
    names: dict[str, object] = {}
    if (root / "classes.json").is_file():
        names = _names_from_json(root / "classes.json")
    elif (root / "LOC_synset_mapping.txt").is_file():
        lines = (root / "LOC_synset_mapping.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        names = {line.split(" ", 1)[0]: line.split(" ", 1)[-1].split(",")[0].strip() for line in lines}
    found = [names.get(label) for label in classes]
    return tuple(str(name) for name in found) if all(isinstance(name, str) for name in found) else None


def _names_from_json(path: Path) -> dict[str, object]:
    try:
        record = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(
            f"{path}: not valid JSON ({error}). Mend it, or rename it: it only gives classes readable names."
        ) from None
    table = record.get("classes", record) if isinstance(record, dict) else {}
    return table if isinstance(table, dict) else {}
