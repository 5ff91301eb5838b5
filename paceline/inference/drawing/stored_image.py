"""A photo by the path that predictions name, for the page: a file, or a record of the containers that a folder's manifest indexes.

A predictions file may come from somebody else, and the page is given away: it shows photos that the index of the run's data set
lists, and no other file. An index in the run's own folder may list photos in that folder alone.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from PIL import Image

from paceline._utils.errors import DataError, PacelineError
from paceline._utils.safe_read import read_plain
from paceline.config.resnet import Exif
from paceline.data.index.index import Index, open_split
from paceline.data.index.manifest import FILE_NAME, Manifest, is_paceline_manifest, manifest_candidates
from paceline.data.transforms.image_io import MAX_BYTES, open_rgb


def find_listed_images(files: Collection[str], run: Path, root: str, manifest: str) -> dict[str, str]:
    """Each of `files`, as predictions name them, that the data set's index lists -> its absolute path.

    root, manifest   folders of the data set and of its manifest, as run.json has them
    """
    if not root or not os.path.isabs(root):
        return {}
    wanted = {os.path.join(root, file): file for file in files}
    result: dict[str, str] = {}
    for opened in _manifests(Path(root), manifest):
        own = _is_below(str(opened.folder), run)
        # Photos that were scored are in another split than the million that trained.
        for split in sorted(opened.splits, key=lambda name: name == opened.learnt):
            if len(result) == len(wanted):
                return result
            with suppress(PacelineError):  # it is damaged, or needs what is not installed: its photos are not shown
                index = open_split(opened, split)
                paths = (os.path.join(root, os.fsdecode(index.relative_name(i))) for i in range(len(index)))
                result |= {wanted[path]: path for path in paths if path in wanted and (not own or _is_below(path, run))}
    return result


def _manifests(root: Path, folder: str) -> Iterator[Manifest]:
    """Those of `root`: in it, in the cache, or in the folder of prepare's --out."""
    named = [Path(folder) / FILE_NAME] if os.path.isabs(folder) else []
    for path in dict.fromkeys((*manifest_candidates(root), *named)):
        with suppress(DataError):  # gone, or of another version: the page goes without photos
            manifest = Manifest.load(path)
            if os.path.realpath(manifest.root_path) == os.path.realpath(root):
                yield manifest


def _is_below(path: str, folder: Path) -> bool:
    return os.path.realpath(path).startswith(os.path.join(os.path.realpath(folder), ""))


def read_rgb(file: str | Path, exif: Exif, *, least: tuple[int, int] | None = None) -> Image.Image | None:
    """The photo as one whole RGB picture (data/transforms/image_io.py open_rgb); None where it is gone, or is no picture any more.

    None also where `file` is a name alone: only photos that may be shown have absolute paths.
    """
    if not os.path.isabs(file):
        return None
    try:
        data = read_plain(file, MAX_BYTES) if os.path.exists(file) else _contained(Path(file))
        return open_rgb(data, exif, least=least)
    except Exception:  # Pillow's format plugins raise many types on damaged bytes
        return None


def _contained(path: Path) -> bytes:
    """A record whose name is `path` relative to its data set's folder. Raises DataError where there is none."""
    for folder in path.parents:
        if is_paceline_manifest(folder / FILE_NAME):
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
