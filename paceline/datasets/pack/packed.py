"""The packed folder as a data set: its classes in a file, its manifest and index.

Photos that were copied as they were need not be decoded once more: what prepare learnt of them at their source is handed over
through its journal, under their new names.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from paceline.config.errors import DataError
from paceline.config.printable import tidy_name
from paceline.config.whole import write_whole
from paceline.datasets.containers.contents import container_stamp
from paceline.datasets.containers.source import ContainerRequest, prepare_containers
from paceline.datasets.formats.class_names import first_twice
from paceline.datasets.journal import PrepareJournal, journal_of
from paceline.datasets.pack.objects import SAID
from paceline.datasets.pack.plan import Shard, Source
from paceline.datasets.pack.request import Form, PackRequest
from paceline.datasets.verify import Facts
from paceline.store.box_split import BoxSplit
from paceline.store.index import Index, open_split
from paceline.store.manifest import FILE_NAME as MANIFEST
from paceline.store.manifest import Manifest
from paceline.store.stores import LocalFiles

CLASSES = "classes.json"
# What makes a pattern of a path (datasets/containers/files.py); a path that is there is taken as it is.
_PATTERN = re.compile(r"[*?[{]")


def write_classes(out: Path, manifest: Manifest, request: PackRequest) -> None:
    """OUT/classes.json. Raises OSError.

    class folders  {name: readable name, ...} in class order
    boxes          {"categories": [{"id", "name"}, ...]}, ids as the pack's labels have them
    """
    if manifest.kind == "class-folder":
        readable = manifest.class_names or manifest.classes
        text = json.dumps(dict(zip(manifest.classes, readable)), indent=1)
    else:
        ids = range(len(manifest.classes)) if request.to == "recordio" else manifest.category_ids
        named = [{"id": number, "name": name} for number, name in zip(ids or (), manifest.classes)]
        text = json.dumps({"categories": named}, indent=1)
    write_whole(out / CLASSES, text + "\n", sync=True)


def prepare_packed(
    out: Path,
    manifest: Manifest,
    sources: dict[str, Source],
    shards: Sequence[Shard],
    request: PackRequest,
    workers: int,
    progress: Callable[[int, int, str], None],
) -> Manifest:
    """Index what was packed. Raises DataError where it is not what was to be packed."""
    with_list = manifest.kind == "boxes" or _says_all(manifest.classes)
    wanted = ContainerRequest(
        request.to,
        train=_files(out, "train", shards),
        val=_files(out, "val", shards),
        classes=str(out / CLASSES) if with_list else "",
        on_class_mismatch="warn",
    )
    writer = PrepareJournal(journal_of(out))
    for source in sources.values():
        writer.append(_known(out, source, shards))
    packed = prepare_containers(
        wanted,
        out=out,
        workers=workers or None,
        walked=lambda done, total: progress(done, total, "listing"),
        progress=lambda done, total: progress(done, total, "verifying"),
    )
    for split, source in sources.items():
        found = open_split(packed, split)
        same = np.array_equal(found.labels, source.index.labels[source.order])
        if source.boxes is not None and request.to != "recordio":
            same &= np.array_equal(found.extra["image_ids"], source.boxes.image_ids[source.order])
        if source.boxes is not None and request.to != "webdataset":
            same &= _same_objects(found, source.boxes, source.order, request.to)
        if not same:
            (packed.folder / MANIFEST).unlink()  # nobody trains from it
            raise DataError(f"{out}: {split} reads back other than it was packed. Delete it and pack again.")
    return packed


def _same_objects(found: Index, boxes: BoxSplit, order: np.ndarray, form: Form) -> bool:
    """Whether each photo has the classes and boxes that its label, or its Example, was to say."""
    said = [SAID[form](boxes, row) for row in order.tolist()]
    counts = [len(objects) for objects in said]
    if not np.array_equal(np.diff(found.extra["object_starts"]), counts):
        return False
    classes, corners = np.split(np.concatenate(said), [1], axis=1)
    read = np.array(found.extra["boxes"])
    read[:, 2:] += read[:, :2]
    read /= np.repeat(np.stack([found.widths, found.heights] * 2, axis=1), counts, axis=0)
    # Fractions went through float32, pixels through float64: a thousandth of a pixel is no other box.
    return np.array_equal(found.extra["classes"], classes[:, 0]) and np.allclose(read, corners, rtol=0, atol=1e-6)


def _says_all(classes: tuple[str, ...]) -> bool:
    """Whether a list of classes keeps these names; else the folders in the pack say them."""
    try:
        return first_twice(classes) is None and all(tidy_name(name) == name for name in classes)
    except ValueError:
        return False


def _files(out: Path, split: str, shards: Sequence[Shard]) -> tuple[str, ...]:
    """The files of a split: by a pattern that finds them all, or by their names where the folder's own would be taken for one."""
    own = [shard.file for shard in shards if shard.split == split]
    if len(own) < 2 or _PATTERN.search(str(out)):
        return tuple(str(out / name) for name in own)
    return (f"{out}/{own[0].partition('-')[0]}-*{Path(own[0]).suffix}",)


def _known(out: Path, source: Source, shards: Sequence[Shard]) -> Iterator[tuple[bytes, Facts]]:
    """What is known of the photos that were copied as they were."""
    index = source.index
    if not {"flags", "digests"} <= index.extra.keys():
        return
    flags, digests = index.extra["flags"], index.extra["digests"]
    for shard in shards:
        if shard.split != source.split:
            continue
        path = os.fsencode(out / shard.file)
        stamp = container_stamp(path, LocalFiles().status(path))
        for row in source.order[shard.first : shard.last].tolist():
            if not source.anew[row]:
                size = (int(index.heights[row]), int(index.widths[row]))
                facts = Facts(int(index.lengths[row]), stamp, *size, int(flags[row]), int(digests[row]))
                yield f"{source.split}/".encode() + source.names[row], facts
