"""A photo by the path that predictions name, for the page: a file, or a record of the containers that a folder's manifest indexes."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from PIL import Image

from paceline.config.classification import Exif
from paceline.config.errors import DataError
from paceline.config.plain_file import read_plain
from paceline.data.header import MOST_BYTES
from paceline.data.index import Index, open_split
from paceline.data.manifest import FILE_NAME, Manifest, is_ours
from paceline.data.picture import open_rgb


def read_rgb(file: str | Path, exif: Exif, *, least: tuple[int, int] | None = None) -> Image.Image | None:
    """The photo as one whole RGB picture (data/picture.py open_rgb); None where it is gone, or is no picture any more."""
    try:
        data = read_plain(file, MOST_BYTES) if os.path.exists(file) else _contained(Path(file))
        return open_rgb(data, exif, least=least)
    except Exception:  # Pillow's format plugins raise many types on damaged bytes
        return None


def _contained(path: Path) -> bytes:
    """A record whose name is `path` relative to its data set's folder. Raises DataError where there is none."""
    for folder in path.parents:
        if is_ours(folder / FILE_NAME):
            status = os.stat(folder / FILE_NAME)
            index, i = _numbers(folder, status.st_mtime_ns).get(os.fsencode(path.relative_to(folder)), (None, 0))
            if index is not None:
                return index.read(i)
    raise DataError(f"{path}: no such file, and no such record of a container.")


@lru_cache(maxsize=2)
def _numbers(folder: Path, _: int) -> dict[bytes, tuple[Index, int]]:
    """Name -> where it is, of all records in the containers that the manifest in `folder` indexes."""
    manifest = Manifest.load(folder)
    indexes = [open_split(manifest, split) for split in manifest.splits] if manifest.in_containers else []
    return {index.relative_name(i): (index, i) for index in indexes for i in range(len(index))}
