"""Annotated boxes of any source -> manifest.json and index: every image is decoded once, in parallel.

    annotations + images   ->   PLACE/manifest.json, PLACE/index/<hash>/*.npy
PLACE is `out`; else the data set's folder where that may be written to; else, and where files were named one by one, a
folder in the cache. As with class folders, the manifest is written last, and PLACE/prepare.journal holds what was verified.

Letters: N images of one split, M objects, K classes 1..K.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import PIL

from paceline.config.errors import DataError
from paceline.data.boxes import class_table
from paceline.data.freshness import check_fresh, refuse_stale_containers
from paceline.data.index import delete_old_indexes, write_index
from paceline.data.manifest import Manifest, box_command, cache_place, manifest_places, prepare_again
from paceline.prepare import journal
from paceline.prepare.box_sources import BoxSource, Layout, detect_layout, read_files, read_source
from paceline.prepare.box_splits import (
    LeftOut,
    count_unlisted,
    describe_split,
    in_both,
    inspect_images,
    leave_out,
)
from paceline.prepare.class_names import first_twice
from paceline.prepare.class_splits import UNREADABLE_LIST
from paceline.prepare.coco2017 import check_coco2017, part_of_coco2017
from paceline.prepare.exif_reading import notes_on_rotation, reading_of
from paceline.prepare.folder import choose_place, known_facts, previous_manifest, refuse_half
from paceline.prepare.listing import some
from paceline.prepare.val_groups import ValSplit
from paceline.prepare.val_split import split_off


@dataclass(frozen=True)
class BoxRequest:
    """What to prepare: a folder whose layout is known, or files one by one. The fields are the command's flags."""

    layout: Layout | Literal[""] = ""  # "" = whichever the folder has
    images: str = ""  # folder of the training images; with it, the folder's layout does not matter
    annotations: str = ""  # COCO JSON of the training images
    val_images: str = ""  # "" = `images`
    val_annotations: str = ""
    val_fraction: float = 0.0  # share of the training images that becomes val, where the source has none
    val_seed: int = 0
    val_group: str = ""  # photos whose paths match with the same captured text stay together
    on_missing: Literal["refuse", "skip"] = "refuse"
    on_unreadable: Literal["refuse", "skip"] = "refuse"
    on_class_mismatch: Literal["refuse", "warn"] = "refuse"
    expect: Literal["", "coco2017"] = ""  # the published set that this has to be, the whole of it


def prepare_boxes(
    root: Path | None,
    request: BoxRequest = BoxRequest(),
    *,
    out: Path | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Read the annotations, verify every image they speak of, write manifest and index.

    root      the data set's folder; None where `request` names files
    workers   threads; None: one for each usable core
    progress  called with (files done, files in all)
    Raises DataError for every flaw of annotations or images; then no manifest is written.
    """
    source = _read(root, request)
    if root is None and out is None:
        key = "+".join(
            os.path.realpath(path) for path in (request.images, request.annotations, request.val_annotations)
        )
        out = cache_place(source.root) / hashlib.sha256(os.fsencode(key)).hexdigest()[:12]
    return _prepare_source(source, request, choose_place(source.root, out), workers, progress)


def prepare_one_split(source: BoxSource, place: Path) -> Manifest:
    """Verify the images of a source that has val alone, and write manifest and index to `place`.

    Raises DataError for every flaw of annotations or images.
    """
    request = BoxRequest(layout=source.layout)
    try:
        place.mkdir(parents=True, exist_ok=True)
        return write_boxes(source, request, place, _stored_request(request), "", None, None)
    except OSError as error:
        raise DataError(
            f"{place}: the index cannot be written here ({error.strerror or error}). "
            "Name another cache folder:  PACELINE_CACHE=DIR"
        ) from None


def ensure_boxes_prepared(
    root: Path,
    *,
    say: Callable[[str], None],
    on_missing: Literal["refuse", "skip"] = "refuse",
    small: int = 20_000,
) -> Path:
    """The folder of a manifest that matches the files of `root`; a small data set is prepared for it, into the cache.

    root        a data set's folder, or one that prepare wrote to
    say         takes one line, when something is prepared
    on_missing  "skip" leaves out images that are not on disk, where the set is prepared now
    small       up to so many images are prepared without asking; beyond, DataError with the command to run
    `root` itself is never written to. Raises DataError as `prepare_boxes` does.
    """
    why = "no manifest yet"
    source_root = Path(os.path.realpath(root))
    request = BoxRequest(on_missing=on_missing)
    places = manifest_places(root)
    for path in places:
        try:
            manifest = Manifest.load(path)
        except DataError as error:
            if detect_layout(source_root) is None:
                raise  # a folder that prepare wrote to; only its manifest knew where the images are
            why = str(error)
            continue
        if manifest.kind != "boxes":
            why = "its manifest is one of class folders, not of boxes"
            continue
        refuse_half(manifest)
        stale = check_fresh(manifest)
        if stale is None:
            return path.parent
        why, source_root = f"its manifest is out of date: {stale}", manifest.root_path
        refuse_stale_containers(manifest, why)
        request = _request_of(manifest)
        request = replace(request, on_missing="skip" if on_missing == "skip" else request.on_missing)
        if request.images:
            raise DataError(f"{root}: {why}. Prepare it again:\n  {prepare_again(manifest)}")
        places.extend(other for other in manifest_places(source_root) if other not in places)
    source = _read(source_root, request)
    images = sum(len(split.file_names) for split in source.splits.values())
    if images > small:
        command = box_command(source_root, asdict(replace(request, layout=source.layout)))
        raise DataError(f"{source_root}: {images:,} images, {why}. Verify them once, before training:\n  {command}")
    place = cache_place(source_root)
    say(f"{source_root}: {why}; verifying its {images:,} images once (kept in {place})")
    return _prepare_source(source, request, place, None, None).folder


def _request_of(manifest: Manifest) -> BoxRequest:
    """Raises DataError where it was written by a version with other flags."""
    try:
        return BoxRequest(**(manifest.request or {}))
    except TypeError:
        raise DataError(
            f"{manifest.folder}: prepared by another version of paceline. Delete its manifest.json and prepare it again."
        ) from None


def _read(root: Path | None, request: BoxRequest) -> BoxSource:
    if not request.images and not request.annotations:
        if root is None:
            raise DataError("no data set is named. Use  paceline prepare coco DIR  or --images DIR --annotations FILE")
        return read_source(Path(os.path.realpath(root)), request.layout or None)
    if not request.images or not request.annotations:
        raise DataError("--images and --annotations belong together: the folder of the photos and their COCO JSON.")
    if request.val_images and not request.val_annotations:
        raise DataError("--val-images without --val-annotations: name the COCO JSON of the validation photos too.")

    def real(path: str) -> Path:
        return Path(os.path.realpath(os.path.expanduser(path)))

    return read_files(
        real(request.images),
        real(request.annotations),
        real(request.val_images) if request.val_images else None,
        real(request.val_annotations) if request.val_annotations else None,
    )


def _prepare_source(
    source: BoxSource,
    request: BoxRequest,
    place: Path,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> Manifest:
    request = replace(request, layout=source.layout)
    command = box_command(source.root, asdict(request))
    _check_splits(source, request, command)
    if request.expect:
        check_coco2017(source.root, source.splits)  # before a photo is opened
    try:
        place.mkdir(parents=True, exist_ok=True)
        return write_boxes(source, request, place, _stored_request(request), command, workers, progress)
    except OSError as error:
        raise DataError(
            f"{place}: the index cannot be written here ({error.strerror or error}). "
            f"Choose another folder:  {command} --out DIR"
        ) from None


def _check_splits(source: BoxSource, request: BoxRequest, command: str) -> None:
    if "train" not in source.splits:
        raise DataError(f"{source.root}: no training images in it, only {some(source.splits)}.")
    if "val" not in source.splits and not request.val_fraction:
        raise DataError(
            f"{source.root}: no validation images, so nothing to measure on. {_where_val(request)}, or set a fifth of the "
            f"training images apart:\n  {command} --val-fraction 0.2"
        )
    if "val" in source.splits and request.val_fraction:
        raise DataError(f"{source.root}: it has validation images of its own; leave --val-fraction out.")
    if request.val_group and not request.val_fraction:
        raise DataError(
            "--val-group without --val-fraction: it groups photos for a validation split that is set apart."
        )


def _where_val(request: BoxRequest) -> str:
    """Where validation images would be named, in words that fit what was prepared."""
    if request.images:
        return "Name some (--val-images, --val-annotations)"
    return {
        "coco": "Add some (annotations/instances_val2017.json with val2017/, or valid/_annotations.coco.json)",
        "voc": "Name some in ImageSets/Main/val.txt",
        "yolo": "Name some in data.yaml (val: images/val)",
    }.get(request.layout, "Add some")


def _class_names(source: BoxSource, request: BoxRequest, command: str) -> tuple[dict[int, str], list[str]]:
    """-> category id -> name for all splits, and notes.

    Raises DataError where the splits call one id differently, or val has objects of a class that train does not know.
    """
    train = source.splits.get("train", source.splits.get("val"))
    assert train is not None
    val = source.splits.get("val", train)
    for category in sorted(set(train.names) & set(val.names)):
        if train.names[category] != val.names[category]:
            raise DataError(
                f"category id {category} is {train.names[category]!r} in {train.source} and {val.names[category]!r} in "
                f"{val.source}. Export both with the same classes."
            )
    names = {**val.names, **train.names}
    twice = first_twice(names.values())
    if twice is not None:
        ids = [category for category, name in names.items() if name == twice]
        raise DataError(
            f"{twice!r} has category id {ids[1]} in {train.source} and {ids[0]} in {val.source}. "
            "Export both with the same classes."
        )
    notes = []
    in_train = set(np.unique(train.categories).tolist())
    alone = [category for category in np.unique(val.categories).tolist() if category not in in_train]
    unknown = [category for category in alone if category not in train.names]
    if unknown and request.on_class_mismatch == "refuse":
        raise DataError(
            f"{val.source}: it has objects of class {some(repr(names[category]) for category in unknown)}, and "
            f"{train.source} has no such class: it could never be learned. Export both with the same classes, or keep it "
            f"among the classes as one that is never found:\n  {command} --on-class-mismatch warn"
        )
    if alone:
        called = some(names[category] for category in alone)
        notes.append(f"classes with objects in val and none in train, which cannot be learned: {called}")
    return names, notes


def write_boxes(
    source: BoxSource,
    request: BoxRequest,
    place: Path,
    stored: dict[str, Any],
    command: str,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> Manifest:
    """Verify the photos of a source, write manifest and index to `place`.

    stored   what the manifest says was asked for
    command  the one that was given, for messages; empty where none could leave photos out
    Raises DataError for every flaw of annotations or photos, OSError where `place` cannot be written to.
    """
    names, notes = _class_names(source, request, command)
    previous = previous_manifest(place, source.root)
    files = inspect_images(
        source,
        place,
        command,
        known=known_facts(previous) if previous is not None else (),
        on_missing=request.on_missing,
        on_unreadable=request.on_unreadable,
        workers=workers,
        progress=progress,
    )
    # Before the files of annotations are listed: it would count as one where they are .txt files.
    (place / UNREADABLE_LIST).unlink(missing_ok=True)
    usable, left_out = {}, {}
    for key, found in source.splits.items():
        usable[key], left_out[key] = leave_out(source.root, found, files)
    if request.expect:
        check_coco2017(source.root, usable)
    part_of = part_of_coco2017(usable)
    if request.val_fraction:
        digests = files.found.digests[files.rows(source.root, usable["train"])]
        split = ValSplit(request.val_fraction, request.val_seed, request.val_group)
        usable["train"], usable["val"], alone = split_off(usable["train"], split, digests=digests)
        if alone:
            notes.append(f"{alone:,} photos do not match --val-group and stand alone in the validation split")
    category_ids, classes = class_table(names)
    unlisted = count_unlisted(source)
    of_files = {key: (kept, files.rows(source.root, kept)) for key, kept in usable.items()}
    reading = reading_of(source.layout, of_files, files.found)
    splits, arrays = {}, {}
    for key, kept in usable.items():
        splits[key], arrays[key] = describe_split(
            source, key, kept, category_ids, files, left_out.get(key, LeftOut()), unlisted.get(key, 0), reading
        )
    notes += notes_on_rotation(source.layout, of_files, files.found, reading)
    notes = [*source.notes, *notes, *in_both(source.root, usable, files)]
    manifest = Manifest(
        kind="boxes",
        expect=request.expect or "any",
        root="." if place == source.root else str(source.root),
        classes=classes,
        class_names=None,
        index=write_index(place, arrays),
        splits=splits,
        made_by=f"Pillow {PIL.__version__}",
        folder=place,
        category_ids=tuple(category_ids.tolist()),
        request=stored,
        notes=tuple(notes),
        part_of=part_of,
    )
    manifest.save()
    delete_old_indexes(place, keep={manifest.index} | ({previous.index} if previous is not None else set()))
    (place / journal.FILE_NAME).unlink(missing_ok=True)
    return manifest


def _stored_request(request: BoxRequest) -> dict[str, Any]:
    """Paths as they are seen from anywhere."""
    record = asdict(request)
    for name in ("images", "annotations", "val_images", "val_annotations"):
        record[name] = os.path.realpath(os.path.expanduser(record[name])) if record[name] else ""
    return record
