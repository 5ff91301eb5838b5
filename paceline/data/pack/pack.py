"""A prepared data set, wherever its photos lie, into WebDataset's tars, MXNet's RecordIO or TFRecord: every split, ready to train on.

    OUT/train-00000.tar ...  val-00000.tar ...    or    OUT/train.rec, train.idx, train.lst, val.rec ...
    or    OUT/train-00000-of-00004.tfrecord ... validation-00000-of-00001.tfrecord (of boxes: val-...)
    OUT/classes.json         the classes in order, with their readable names; of boxes, COCO's categories
    OUT/pack.jsonl           what was packed, and the checksum of each file (data/pack/journal.py)
    OUT/manifest.json        OUT is prepared: `--data OUT` trains

The same command again checks the finished files against their checksums and resumes with the others. Photos that were copied as
they were are not decoded again: their facts are handed over through prepare's journal, under their new names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import numpy as np

from paceline._utils.atomic_write import atomic_write, remove_stale_parts
from paceline._utils.errors import DataError
from paceline._utils.platform import count_cpus
from paceline._utils.text import tidy_name
from paceline.data.containers.listing import container_stamp
from paceline.data.containers.source import prepare_containers
from paceline.data.containers.split_files import ContainerRequest
from paceline.data.formats.class_folders import find_duplicate
from paceline.data.index.box_split import BoxSplit
from paceline.data.index.index import Index, open_split
from paceline.data.index.manifest import FILE_NAME as MANIFEST
from paceline.data.index.manifest import Manifest
from paceline.data.pack.journal import PackRecord, lock_folder
from paceline.data.pack.objects import box_fractions, fits_example, fits_label
from paceline.data.pack.plan import (
    Form,
    PackRequest,
    PackSplit,
    ShardPlan,
    check_request,
    open_sources,
    pack_identity,
    plan_shards,
)
from paceline.data.pack.write import EncoderPool, write_shard
from paceline.data.prepare.journal import PrepareJournal, open_prepare_journal
from paceline.data.prepare.verify_image import ImageInfo
from paceline.data.storage.store import LocalFiles

CLASSES = "classes.json"
# Index, journal and what a file system needs itself.
SPARE_BYTES = 64 << 20
# Forms whose boxes are fractions of a photo of one frame.
FRACTIONS = {"recordio": "MXNet's labels", "tfrecord": "Examples"}
# What makes a pattern of a path (data/containers/split_files.py); a path that exists is taken as it is.
_PATTERN = re.compile(r"[*?[{]")
Progress = Callable[[int, int, str], None]


def pack(
    manifest: Manifest,
    request: PackRequest,
    out: Path,
    *,
    workers: int = 0,
    progress: Progress = lambda done, total, what: None,
) -> tuple[Manifest, list[str]]:
    """-> the packed set, prepared, and notes for people.

    manifest  of what is packed, fresh
    workers   threads that read and encode; 0: one a core, more where a store answers many at once
    progress  called with (records done, records in all, what is being done)
    Raises PacelineError for an impossible request, DataError for a record that cannot be read or a folder that cannot take it;
    what is finished stays, and no file under its final name is ever half written.
    """
    check_request(request)
    out = Path(os.path.realpath(out))
    holder = next((folder for folder in _photo_folders(manifest) if out.is_relative_to(folder)), None)
    if holder is not None or out == manifest.folder:
        raise DataError(f"--out {out}: lies in the data set that is packed. Choose a folder outside {holder or out}.")
    _check_frames(manifest, request)
    with lock_folder(out):
        record = PackRecord(out)
        sources = open_sources(manifest, request)
        if any(not len(source.order) for source in sources.values()):
            raise DataError(f"{manifest.folder}: a split without photos cannot be packed.")
        if record.begun is None:
            facts = {"from": str(manifest.folder), "content_hash": manifest.content_hash, "request": asdict(request)}
            record.begin(pack_identity(manifest, request), plan_shards(sources, request), facts)
        counts = {name: len(source.order) for name, source in sources.items()}
        shards = record.shards(pack_identity(manifest, request), counts)
        remove_stale_parts(out)
        total = sum(shard.last - shard.first for shard in shards)
        left, done = [], 0
        for shard in shards:
            if shard.file in record.finished:
                progress(done, total, "checking")
                if record.is_whole(shard):
                    done += shard.last - shard.first
                    continue
            left.append(shard)
        needed, free = sum(shard.estimate for shard in left), shutil.disk_usage(out).free
        if left and needed + needed // 50 + SPARE_BYTES > free:
            raise DataError(
                f"{out}: about {needed:,} bytes are to be written, and {free:,} are free there. Make room, or choose another "
                "folder with --out."
            )
        write_classes(out, manifest, request)
        at_once = max((source.index.records.at_once for source in sources.values()), default=1)
        threads = workers or max(count_cpus(), min(64, at_once))
        wanted, written = list(sources.values()), lambda more: progress(done + more, total, "packing")
        with closing(EncoderPool(threads, wanted, request, written)) as pool:
            for shard in left:
                record.finish(shard, write_shard(out, shard, sources[shard.split], request, pool))
        packed = _prepare_packed(out, manifest, sources, shards, request, workers, progress)
    return packed, _notes(sources, request)


def _photo_folders(manifest: Manifest) -> list[Path]:
    """Folders in which a pack would lie among what is packed. The common parent of named files is not one."""
    if manifest.in_containers:
        return []
    folders = [Path(os.path.normpath(manifest.root_path / split.folder)) for split in manifest.splits.values()]
    named = (manifest.request or {}).get("images")
    return folders if named else [manifest.root_path, *folders]


def _check_frames(manifest: Manifest, request: PackRequest) -> None:
    """A detection label has fractions of a photo and cannot name their frame: readers take the stored one."""
    shown = [split for split in manifest.splits.values() if split.boxes is not None and split.boxes.exif == "apply"]
    if shown and request.to != "webdataset":
        raise DataError(
            f"{manifest.called}: {sum(split.rotated for split in shown):,} photos carry an EXIF rotation and their boxes fit them "
            f"as they are shown, which {FRACTIONS[request.to]} cannot say. Use  --to webdataset, or store the photos upright and "
            "export the boxes again."
        )


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
    atomic_write(out / CLASSES, text + "\n", sync=True)


def _prepare_packed(
    out: Path,
    manifest: Manifest,
    sources: dict[str, PackSplit],
    shards: Sequence[ShardPlan],
    request: PackRequest,
    workers: int,
    progress: Progress,
) -> Manifest:
    """Index what was packed. Raises DataError where it is not what was to be packed."""
    with_list = manifest.kind == "boxes" or _keeps_names(manifest.classes)
    wanted = ContainerRequest(
        request.to,
        train=_files(out, "train", shards),
        val=_files(out, "val", shards),
        classes=str(out / CLASSES) if with_list else "",
        on_class_mismatch="warn",
    )
    writer = PrepareJournal(open_prepare_journal(out))
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
        index = open_split(packed, split)
        same = np.array_equal(index.labels, source.index.labels[source.order])
        if source.boxes is not None and request.to != "recordio":
            same &= np.array_equal(index.extra["image_ids"], source.boxes.image_ids[source.order])
        if source.boxes is not None and request.to != "webdataset":
            same &= _same_objects(index, source.boxes, source.order, request.to)
        if not same:
            (packed.folder / MANIFEST).unlink()  # nobody trains from it
            raise DataError(f"{out}: {split} reads back other than it was packed. Delete it and pack again.")
    return packed


def _same_objects(index: Index, boxes: BoxSplit, order: np.ndarray, form: Form) -> bool:
    """Whether each photo has the classes and boxes that its label, or its Example, was to hold."""
    kept = fits_label if form == "recordio" else fits_example
    wanted = [box_fractions(boxes, row, kept(boxes.objects(row))).astype(np.float32) for row in order.tolist()]
    counts = [len(objects) for objects in wanted]
    if not np.array_equal(np.diff(index.extra["object_starts"]), counts):
        return False
    classes, corners = np.split(np.concatenate(wanted), [1], axis=1)
    read = np.array(index.extra["boxes"])
    read[:, 2:] += read[:, :2]
    read /= np.repeat(np.stack([index.widths, index.heights] * 2, axis=1), counts, axis=0)
    # Fractions went through float32, pixels through float64: a thousandth of a pixel is no other box.
    return np.array_equal(index.extra["classes"], classes[:, 0]) and np.allclose(read, corners, rtol=0, atol=1e-6)


def _keeps_names(classes: tuple[str, ...]) -> bool:
    """Whether a list of classes keeps these names; else the folders in the pack name them."""
    try:
        return find_duplicate(classes) is None and all(tidy_name(name) == name for name in classes)
    except ValueError:
        return False


def _files(out: Path, split: str, shards: Sequence[ShardPlan]) -> tuple[str, ...]:
    """The files of a split: by a pattern that finds them all, or by their names where the folder's own would be taken for one."""
    own = [shard.file for shard in shards if shard.split == split]
    if len(own) < 2 or _PATTERN.search(str(out)):
        return tuple(str(out / name) for name in own)
    return (f"{out}/{own[0].partition('-')[0]}-*{Path(own[0]).suffix}",)


def _known(out: Path, source: PackSplit, shards: Sequence[ShardPlan]) -> Iterator[tuple[bytes, ImageInfo]]:
    """The facts of the photos that were copied as they were."""
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
                facts = ImageInfo(int(index.lengths[row]), stamp, *size, int(flags[row]), int(digests[row]))
                yield f"{source.split}/".encode() + source.names[row], facts


def _notes(sources: dict[str, PackSplit], request: PackRequest) -> list[str]:
    """What a reader of the pack should know of changes and losses."""
    notes = []
    if anew := sum(int(source.anew.sum()) for source in sources.values()):
        size = f"of {request.short} pixels on the shorter side" if request.short else "of their size"
        notes.append(
            f"{anew:,} photos were written anew, JPEGs {size}, quality {request.jpeg_quality}: grey ones stay grey, all others "
            "are RGB, rotations stay noted, other EXIF and colour profiles are gone"
        )
    boxed = [source.boxes for source in sources.values() if source.boxes is not None]
    if boxed and request.to == "tfrecord":
        lost = sum(int(np.count_nonzero(~fits_example(boxes))) for boxes in boxed)
        clipped = "boxes are cut at the photo's border, annotation ids are left out, masks are PNGs of its pixels"
        left_out = f", {lost:,} boxes without area inside the photo are left out" if lost else ""
        notes.append(f"Examples hold numbers of 32 bits: {clipped}{left_out}. --to webdataset keeps everything")
    if boxed and request.to == "recordio":
        lost = sum(int(np.count_nonzero(~fits_label(boxes))) for boxes in boxed)
        masks = any(len(boxes.polygon_points) or len(boxes.rle_counts) for boxes in boxed)
        left = ["category ids", "image ids", "areas", *(["masks"] if masks else [])]
        if lost:
            left.append(f"crowd regions and boxes without area inside the photo ({lost:,})")
        notes.append(
            f"MXNet's detection labels have classes from 0 and boxes alone. Left out: {', '.join(left)}. --to webdataset keeps "
            "everything"
        )
    return notes
