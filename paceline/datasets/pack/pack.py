"""A prepared data set, wherever its photos lie, into WebDataset's tars, MXNet's RecordIO or TFRecord: every split, ready to train on.

    OUT/train-00000.tar ...  val-00000.tar ...    or    OUT/train.rec, train.idx, train.lst, val.rec ...
    or    OUT/train-00000-of-00004.tfrecord ... validation-00000-of-00001.tfrecord (of boxes: val-...)
    OUT/classes.json         the classes in order, with their readable names; of boxes, COCO's categories
    OUT/pack.jsonl           what was packed, and the checksum of each file (datasets/pack/record.py)
    OUT/manifest.json        OUT is prepared: `--data OUT` trains

The same command again checks the finished files against their checksums and goes on with the others.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from paceline.config.errors import DataError
from paceline.config.whole import sweep
from paceline.datasets.pack.objects import in_example, in_label
from paceline.datasets.pack.packed import prepare_packed, write_classes
from paceline.datasets.pack.plan import Shard, Source, identity, open_sources, plan_shards
from paceline.datasets.pack.record import PackRecord, locked
from paceline.datasets.pack.request import PackRequest, check_request
from paceline.datasets.pack.write import Pool, write_shard
from paceline.machine.detect import cpu_cores
from paceline.store.manifest import Manifest

# Index, journal and what a file system needs itself.
SPARE_BYTES = 64 << 20
# Forms whose boxes are fractions of a photo of one frame.
SAYS = {"recordio": "MXNet's labels", "tfrecord": "Examples"}
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
    Raises UserError for a request that cannot be, DataError for a record that cannot be read or a folder that cannot take it;
    what is finished stays, and no file under its final name is ever half written.
    """
    check_request(request)
    out = Path(os.path.realpath(out))
    holder = next((folder for folder in _photo_folders(manifest) if out.is_relative_to(folder)), None)
    if holder is not None or out == manifest.folder:
        raise DataError(
            f"--out {out}: lies in the data set that is packed. Choose a folder outside of {holder or out}."
        )
    _check_frames(manifest, request)
    with locked(out):
        record = PackRecord(out)
        sources = open_sources(manifest, request)
        if any(not len(source.order) for source in sources.values()):
            raise DataError(f"{manifest.folder}: a split without photos cannot be packed.")
        shards = _planned(record, manifest, request, sources)
        sweep(out)
        total = sum(shard.last - shard.first for shard in shards)
        left, done = [], 0
        for shard in shards:
            if shard.file in record.finished:
                progress(done, total, "checking")
                if record.is_whole(shard):
                    done += shard.last - shard.first
                    continue
            left.append(shard)
        _check_space(out, left)
        write_classes(out, manifest, request)
        _write(out, left, sources, request, record, workers, lambda more: progress(done + more, total, "packing"))
        packed = prepare_packed(out, manifest, sources, shards, request, workers, progress)
    return packed, _notes(sources, request)


def _photo_folders(manifest: Manifest) -> list[Path]:
    """Folders in which a pack would lie among what is packed. What named files have in common is nobody's folder."""
    if manifest.in_containers:
        return []
    folders = [Path(os.path.normpath(manifest.root_path / split.folder)) for split in manifest.splits.values()]
    named = (manifest.request or {}).get("images")
    return folders if named else [manifest.root_path, *folders]


def _check_frames(manifest: Manifest, request: PackRequest) -> None:
    """A detection label has fractions of a photo and cannot say of which frame: readers take the stored one."""
    shown = [split for split in manifest.splits.values() if split.boxes is not None and split.boxes.exif == "apply"]
    if shown and request.to != "webdataset":
        raise DataError(
            f"{manifest.called}: {sum(split.rotated for split in shown):,} photos carry an EXIF rotation and their boxes fit them "
            f"as they are shown, which {SAYS[request.to]} cannot say. Use  --to webdataset, or store the photos upright and export "
            "the boxes again."
        )


def _planned(record: PackRecord, manifest: Manifest, request: PackRequest, sources: dict[str, Source]) -> list[Shard]:
    """The files; as they were planned where a pack was begun."""
    asked = identity(manifest, request)
    if record.begun is None:
        facts = {"from": str(manifest.folder), "content_hash": manifest.content_hash, "request": asdict(request)}
        record.begin(asked, plan_shards(sources, request), facts)
    return record.shards(asked, {name: len(source.order) for name, source in sources.items()})


def _check_space(out: Path, left: list[Shard]) -> None:
    needed, free = sum(shard.estimate for shard in left), shutil.disk_usage(out).free
    if left and needed + needed // 50 + SPARE_BYTES > free:
        raise DataError(
            f"{out}: about {needed:,} bytes are to be written, and {free:,} are free there. Make room, or choose another folder "
            "with --out."
        )


def _write(
    out: Path,
    left: list[Shard],
    sources: dict[str, Source],
    request: PackRequest,
    record: PackRecord,
    workers: int,
    progress: Callable[[int], None],
) -> None:
    at_once = max((source.index.records.at_once for source in sources.values()), default=1)
    pool = Pool(workers or max(cpu_cores(), min(64, at_once)), request)
    written = 0

    def one_more() -> None:
        nonlocal written
        written += 1
        progress(written)

    try:
        for shard in left:
            record.finish(shard, write_shard(out, shard, sources[shard.split], request, pool, one_more))
    finally:
        pool.close()


def _notes(sources: dict[str, Source], request: PackRequest) -> list[str]:
    """What a reader of the pack should know of what was changed or could not be said."""
    notes = []
    if anew := sum(int(source.anew.sum()) for source in sources.values()):
        size = f"of {request.short} pixels on the shorter side" if request.short else "of their size"
        notes.append(
            f"{anew:,} photos were written anew, JPEGs {size}, quality {request.jpeg_quality}: grey ones stay grey, all others "
            "are RGB, rotations stay noted, other EXIF and colour profiles are gone"
        )
    boxed = [source.boxes for source in sources.values() if source.boxes is not None]
    if boxed and request.to == "tfrecord":
        lost = sum(int(np.count_nonzero(~in_example(boxes))) for boxes in boxed)
        clipped = "boxes are cut at the photo's border, annotation ids are left out, masks are PNGs of its pixels"
        left_out = f", {lost:,} boxes without area inside the photo are left out" if lost else ""
        notes.append(f"Examples hold numbers of 32 bits: {clipped}{left_out}. --to webdataset keeps everything")
    if boxed and request.to == "recordio":
        lost = sum(int(np.count_nonzero(~in_label(boxes))) for boxes in boxed)
        masks = any(len(boxes.polygon_points) or len(boxes.rle_counts) for boxes in boxed)
        left = ["category ids", "image ids", "areas", *(["masks"] if masks else [])]
        if lost:
            left.append(f"crowd regions and boxes without area inside the photo ({lost:,})")
        notes.append(
            "MXNet's detection labels have classes from 0 and boxes alone. Left out: "
            + ", ".join(left)
            + ". --to webdataset keeps everything"
        )
    return notes
