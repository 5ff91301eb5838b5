"""What a record is called in a packed set: CLASS/photo.jpg, so that who unpacks or indexes it finds the classes as folders.

Names are kept where the form can say them. WebDataset's key ends at the first dot of a file's name, so other dots become "_";
a .lst has a name a line between tabs. A photo that is written anew is a JPEG and called so. Of names that are then the same, the
later ones get their record's number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np

from paceline.config.image_name import IMAGE_SUFFIXES
from paceline.datasets.pack.request import Form
from paceline.store.index import Index
from paceline.store.manifest import FILES, Manifest

_JPEG = (b".jpg", b".jpeg")
_BREAKS = bytes.maketrans(b"\t\n\r\0", b"____")


def class_folders(classes: Sequence[str]) -> list[bytes]:
    """K folder names: the classes' own, or their numbers where a class's name is no folder's."""
    return [os.fsencode(name) if _is_folder(os.fsencode(name)) else b"%04d" % k for k, name in enumerate(classes)]


def packed_names(manifest: Manifest, index: Index, form: Form, anew: np.ndarray) -> list[bytes]:
    """N names, each once.

    anew  (N,) bool, photos that are written anew
    """
    split = manifest.splits[index.split]
    if split.boxes is None:
        folders = class_folders(manifest.classes)
        found = (
            folders[label] + b"/" + os.path.basename(index.relative_name(i)) for i, label in enumerate(index.labels)
        )
    else:
        found = _below(index, os.fsencode(split.folder), split.records != FILES)
    names: list[bytes] = []
    seen: set[bytes] = set()
    for i, name in enumerate(found):
        name = _fitting(name, form, bool(anew[i]))
        stem, suffix = os.path.splitext(name)
        key = stem if form == "webdataset" else name
        if key in seen:
            stem += b"-%d" % i
            while (stem if form == "webdataset" else stem + suffix) in seen:
                stem += b"_"
            name = stem + suffix
            key = stem if form == "webdataset" else name
        seen.add(key)
        names.append(name)
    return names


def _is_folder(name: bytes) -> bool:
    return (
        bool(name.strip(b"."))
        and b"/" not in name
        and name == name.strip()
        and name == name.translate(_BREAKS)
        and len(name) < 256
    )


def _below(index: Index, folder: bytes, contained: bool) -> Iterator[bytes]:
    """Paths below the split's folder of photos."""
    prefixes = [os.path.normpath(folder) + b"/", *([index.split.encode() + b"/"] if contained else [])]
    for i in range(len(index)):
        name = index.relative_name(i)
        for prefix in prefixes:
            name = name.removeprefix(prefix)
        yield b"/".join(part for part in name.split(b"/") if part not in (b"", b".", b".."))


def _fitting(path: bytes, form: Form, anew: bool) -> bytes:
    folder, slash, name = path.translate(_BREAKS).rpartition(b"/")
    stem, suffix = os.path.splitext(name)
    if suffix.lower() not in IMAGE_SUFFIXES:
        stem, suffix = name, b".jpg"
    if anew and suffix.lower() not in _JPEG:
        suffix = b".jpg"
    stem = stem.strip() or b"photo"
    if form == "webdataset":
        stem = stem.replace(b".", b"_")
    return (folder + slash).lstrip() + stem + suffix
