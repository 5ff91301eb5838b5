"""Archives that hold a labelling tool's export with boxes: told by the names in them, and what to do with them instead."""

from __future__ import annotations

import os
import posixpath
import shlex
from collections.abc import Iterable
from typing import NamedTuple

PHOTOS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")


class Export(NamedTuple):
    """What an archive holds beside photos."""

    layout: str  # the kind of `paceline prepare` that reads it unpacked
    found: str  # the member that tells
    root: str  # folder in the archive that is the data set's; "" for all of it


def find_export(names: Iterable[str]) -> Export | None:
    """What members of these names are, or None where they are no boxes that a folder could be prepared with."""
    listed = sorted(name for name in names if not name.endswith("/"))
    bases = {name: posixpath.basename(name) for name in listed}
    for name, base in bases.items():
        if base == "_annotations.coco.json":
            return Export("coco", name, posixpath.dirname(posixpath.dirname(name)))
        if base.startswith("instances_") and base.endswith(".json"):
            return Export("coco", name, posixpath.dirname(posixpath.dirname(name)))
    stems = {posixpath.splitext(base)[0] for base in bases.values() if base.lower().endswith(PHOTOS)}

    def beside_photos(suffix: str) -> str:
        return next((n for n, b in bases.items() if b.endswith(suffix) and posixpath.splitext(b)[0] in stems), "")

    yaml = next((name for name, base in bases.items() if base in ("data.yaml", "data.yml")), "")
    if yaml and beside_photos(".txt"):
        return Export("yolo", yaml, posixpath.dirname(yaml))
    if name := beside_photos(".xml"):
        folder = posixpath.dirname(name)
        above = posixpath.basename(folder) in ("Annotations", "train", "valid", "val", "test")
        return Export("voc", name, posixpath.dirname(folder) if above else folder)
    return None


def unpack_first(archive: str, export: Export) -> str:
    """What is said of such an archive, with the commands that unpack and prepare it."""
    folder = os.path.splitext(archive)[0]
    module = "zipfile" if archive.lower().endswith(".zip") else "tarfile"
    words = [
        shlex.quote(word) for word in (archive, folder, os.path.join(folder, export.root) if export.root else folder)
    ]
    return (
        f"it holds photos with boxes ({export.found}), which are read from folders. Unpack it, then prepare the folder:\n"
        f"  python3 -m {module} -e {words[0]} {words[1]} && paceline prepare {export.layout} --data {words[2]}"
    )
