"""A prepared data set, wherever its photos lie, into WebDataset's tars, MXNet's RecordIO or TFRecord: every split, ready to train on.

    OUT/train-00000.tar ...  val-00000.tar ...    or    OUT/train.rec, train.idx, train.lst, val.rec ...
    or    OUT/train-00000-of-00004.tfrecord ... validation-00000-of-00001.tfrecord (of boxes: val-...)
    OUT/classes.json         the classes in order, with their readable names; of boxes, COCO's categories
    OUT/pack.jsonl           what was requested, of which data, how it is cut into files; then a line for each finished file, with
                             the checksums of all that belongs to it. Each line has a checksum of its own; a torn last one is cut
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
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from paceline._utils.atomic_write import remove_stale_parts
from paceline._utils.errors import DataError
from paceline._utils.journal import LineWriter, lock
from paceline._utils.platform import count_cpus
from paceline._utils.safe_read import has_valid_checksum, open_plain_sized, parse_json, with_checksum
from paceline._utils.text import tidy_name
from paceline.data.containers.listing import container_stamp
from paceline.data.containers.source import prepare_containers
from paceline.data.containers.split_files import ContainerRequest
from paceline.data.download.fetch import ExpectedFile
from paceline.data.formats.class_folders import find_duplicate
from paceline.data.index.index import open_split
from paceline.data.index.manifest import FILE_NAME as MANIFEST
from paceline.data.index.manifest import Manifest
from paceline.data.pack.plan import (
    PackRequest,
    PackSplit,
    ShardPlan,
    check_request,
    open_sources,
    pack_identity,
    plan_shards,
)
from paceline.data.pack.write import (
    CLASSES,
    PackedImage,
    fits_example,
    fits_label,
    holds_objects,
    open_encoders,
    write_classes,
    write_shard,
)
from paceline.data.prepare.verify_image import ImageInfo
from paceline.data.prepare.verify_images import PrepareJournal, open_prepare_journal
from paceline.data.storage.store import LocalFiles

FILE_NAME = "pack.jsonl"
LOCK = ".pack.lock"
FORMAT = 1
_PLAIN = re.compile(r"[A-Za-z0-9_-]+\.(tar|rec|idx|lst|tfrecord)")
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
        raise DataError(f"--output-dir {out}: is inside the packed dataset. Choose a folder outside {holder or out}.")
    _check_frames(manifest, request)
    with lock_folder(out):
        record = PackRecord(out)
        sources = open_sources(manifest, request)
        if any(not len(source.order) for source in sources.values()):
            raise DataError(f"{manifest.folder}: a split without images is not supported.")
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
                f"{out}: about {needed:,} bytes are required, but only {free:,} are free. Free some space, or choose "
                "another folder with --output-dir."
            )
        write_classes(out, manifest, request)
        at_once = max((source.index.records.at_once for source in sources.values()), default=1)
        threads = workers or max(count_cpus(), min(64, at_once))
        names, ahead = list(sources), 2 * threads
        with open_encoders(list(sources.values()), request, threads) as crew:
            for shard in left:
                calls = ((names.index(shard.split), place) for place in range(shard.first, shard.last))
                photos = _reported(crew.map_ordered(calls, ahead=ahead), done, total, progress)
                record.finish(shard, write_shard(out, shard, sources[shard.split], request, photos))
                done += shard.last - shard.first
        packed = _prepare_packed(out, manifest, sources, shards, request, workers, progress)
    return packed, _notes(sources, request)


def _reported(photos: Iterator[PackedImage], done: int, total: int, progress: Progress) -> Iterator[PackedImage]:
    """The photos; each is counted when it is written."""
    for number, photo in enumerate(photos, start=done + 1):
        yield photo
        progress(number, total, "packing")


def _photo_folders(manifest: Manifest) -> list[Path]:
    """Folders in which a pack would lie among what is packed. The common parent of named files is not one."""
    if manifest.in_containers:
        return []
    folders = [Path(os.path.normpath(manifest.root_path / split.folder)) for split in manifest.splits.values()]
    named = (manifest.request or {}).get("images_dir")
    return folders if named else [manifest.root_path, *folders]


def _check_frames(manifest: Manifest, request: PackRequest) -> None:
    """A detection label has fractions of a photo and cannot name their frame: readers take the stored one."""
    shown = [split for split in manifest.splits.values() if split.boxes is not None and split.boxes.exif == "apply"]
    if shown and request.format != "webdataset":
        raise DataError(
            f"{manifest.called}: {sum(split.rotated for split in shown):,} images have an EXIF rotation and boxes that "
            f"match the rotated images, which {FRACTIONS[request.format]} cannot represent. Use  --format webdataset, or "
            "store the images upright and export the boxes again."
        )


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
        request.format,
        train=_files(out, "train", shards),
        val=_files(out, "val", shards),
        class_names_file=str(out / CLASSES) if with_list else "",
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
        if source.boxes is not None and request.format != "recordio":
            same &= np.array_equal(index.extra["image_ids"], source.boxes.image_ids[source.order])
        if source.boxes is not None and request.format != "webdataset":
            same &= holds_objects(index, source.boxes, source.order, request.format)
        if not same:
            (packed.folder / MANIFEST).unlink()  # nobody trains from it
            raise DataError(f"{out}: the packed {split} split differs from its source. Delete the folder and pack again.")
    return packed


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
        short = request.resize_shorter_side
        size = f"with {short} pixels on the shorter side" if short else "of unchanged size"
        notes.append(
            f"{anew:,} images were re-encoded as JPEG {size}, quality {request.encode_quality}. Grayscale images "
            "stay grayscale, all others are RGB. The EXIF orientation is kept; other EXIF tags and color profiles are removed"
        )
    boxed = [source.boxes for source in sources.values() if source.boxes is not None]
    if boxed and request.format == "tfrecord":
        lost = sum(int(np.count_nonzero(~fits_example(boxes))) for boxes in boxed)
        clipped = "boxes are clipped to the image, annotation ids are omitted, and masks are PNGs"
        left_out = f", and {lost:,} boxes without area inside the image are omitted" if lost else ""
        notes.append(f"Examples have 32-bit numbers; {clipped}{left_out}. --format webdataset keeps everything")
    if boxed and request.format == "recordio":
        lost = sum(int(np.count_nonzero(~fits_label(boxes))) for boxes in boxed)
        masks = any(len(boxes.polygon_points) or len(boxes.rle_counts) for boxes in boxed)
        left = ["category ids", "image ids", "areas", *(["masks"] if masks else [])]
        if lost:
            left.append(f"crowd regions and boxes without area inside the image ({lost:,})")
        notes.append(
            f"MXNet labels have only boxes and classes from 0. Omitted: {', '.join(left)}. --format webdataset keeps "
            "everything"
        )
    return notes


class PackRecord:
    """The record of one folder, open for appending."""

    def __init__(self, out: Path) -> None:
        """Raises DataError where the folder holds something else, PacelineError where it cannot be written to."""
        self.out = out
        path = out / FILE_NAME
        if not path.exists():
            others = sorted(entry.name for entry in out.iterdir() if entry.name != LOCK)
            if others:
                raise DataError(
                    f"{out}: has {others[0]!r} and {len(others) - 1:,} other files, and no unfinished pack. Choose an "
                    "empty or new folder with --output-dir."
                )
        elif not _begins_as_ours(path):
            raise DataError(f"{path}: not a packed dataset, so it is kept. Choose another --output-dir.")
        self._lines = LineWriter(path)
        results = [_line(path, number, line) for number, line in enumerate(self._lines.lines(), 1)]
        self.begun: dict[str, Any] | None = results[0] if results else None
        self.finished = {str(line["file"]): line for line in results[1:]}

    def begin(self, identity: str, shards: list[ShardPlan], facts: dict[str, Any]) -> None:
        """Write down what is going to be packed."""
        self.begun = {"pack": FORMAT, "identity": identity, **facts, "shards": [asdict(shard) for shard in shards]}
        self._append(self.begun)

    def shards(self, identity: str, counts: dict[str, int]) -> list[ShardPlan]:
        """The files as they were planned when the pack was begun.

        counts  split -> its records
        Raises DataError where another one was begun here, or the plan is none.
        """
        assert self.begun is not None
        if self.begun.get("pack") != FORMAT or self.begun.get("identity") != identity:
            begun = {key: self.begun.get(key) for key in ("from", "request")}
            raise DataError(
                f"{self.out}: has an unfinished pack of other data or with other flags ({json.dumps(begun)[:300]}). Run "
                "that command again, or choose another folder with --output-dir."
            )
        try:
            shards = [ShardPlan(**entry) for entry in self.begun["shards"]]
            whole = all(_PLAIN.fullmatch(shard.file) for shard in shards)
            for split, count in counts.items():
                own = [shard for shard in shards if shard.split == split]
                edges = [0, *(shard.last for shard in own)]
                whole &= edges == [*(shard.first for shard in own), count] and edges == sorted(edges)
        except (TypeError, KeyError, ValueError):
            whole, shards = False, []
        if not whole:
            raise DataError(f"{self.out / FILE_NAME}: damaged. Delete {self.out} and pack again.")
        return shards

    def finish(self, shard: ShardPlan, parts: dict[str, dict[str, Any]]) -> None:
        """All files of a shard are in place. parts: file name -> its bytes and SHA-256."""
        line = {"file": shard.file, "parts": parts}
        self._append(line)
        self.finished[shard.file] = line

    def is_whole(self, shard: ShardPlan) -> bool:
        """Whether a shard was finished, and its files are what was written. Reads all of them."""
        parts = self.finished.get(shard.file, {}).get("parts", {})
        try:
            for name, facts in parts.items():
                ExpectedFile(facts["bytes"], facts["sha256"]).check(self.out / name)
        except (DataError, KeyError, TypeError):
            return False
        return bool(parts) and all(map(_PLAIN.fullmatch, parts))

    def _append(self, facts: dict[str, Any]) -> None:
        self._lines.append(json.dumps(with_checksum(facts)), durable=True)


@contextmanager
def lock_folder(out: Path) -> Iterator[None]:
    """Makes the folder and holds it. Raises DataError where another process does, or it cannot be written to."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        descriptor = lock(out / LOCK, no_locks=lambda: None)  # then nothing keeps a second process out
        try:
            yield
        finally:
            os.close(descriptor)
    except BlockingIOError:
        raise DataError(
            f"{out}: another process is packing into this folder. Wait until it finishes, or choose another --output-dir."
        ) from None
    except OSError as error:
        raise DataError(
            f"{out}: cannot be written ({error.strerror or error}). Free some space or choose another folder. Finished "
            "files are kept; run the same command again to continue."
        ) from None


def _begins_as_ours(path: Path) -> bool:
    """Whether a file begins as `PackRecord.begin` does, or with as much of it as a kill left; a link is none of ours."""
    beginning = b'{"pack": '
    try:
        descriptor, _ = open_plain_sized(path, links=False)
        with os.fdopen(descriptor, "rb") as file:
            return beginning.startswith(file.read(len(beginning)))
    except OSError:
        return False


def _line(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        facts = parse_json(text)
        if isinstance(facts, dict) and has_valid_checksum(facts) and (number == 1 or "file" in facts):
            return facts
    except ValueError:
        pass
    raise DataError(f"{path}: line {number} is damaged. Delete {path.parent} and pack again.")
