"""Containers (tar, zip, WebDataset, RecordIO, TFRecord) -> manifest.json and index; their bytes stay where they are.

A container is listed first (prepare/archives.py, record_files.py), then every photo in it is decoded once, as photos in folders
are, and what was verified is kept in PLACE/prepare.journal until the manifest is written.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import PIL

from paceline.config.cache import cache_folder
from paceline.config.errors import DataError
from paceline.config.lazily import lazily
from paceline.data.index import delete_old_indexes, write_index
from paceline.data.manifest import CONTAINER_FILES, Expect, Manifest, container_command, is_ours
from paceline.data.manifest import FILE_NAME as MANIFEST
from paceline.prepare import journal
from paceline.prepare.class_splits import UNREADABLE_LIST, describe_class_split, set_apart, why_unreadable
from paceline.prepare.container_boxes import prepare_contained_boxes
from paceline.prepare.container_classes import Classes, resolve_classes
from paceline.prepare.container_files import find_files, lasting
from paceline.prepare.contents import ContainedPhotos, Contents, joined
from paceline.prepare.folder import choose_place, known_facts, previous_manifest
from paceline.prepare.imagenet import check_imagenet, part_of_imagenet
from paceline.prepare.inspection import inspect_photos
from paceline.prepare.listing import Listing, SplitListing
from paceline.prepare.val_groups import ValSplit, check_fraction

Layout = Literal["tar", "zip", "webdataset", "recordio", "tfrecord"]
# Layout -> what lists such files: ContainerFiles, ContainerRequest -> split -> Contents.
READERS: dict[Layout, Callable[..., dict[str, Contents]]] = {
    "tar": lazily("paceline.prepare.archives:read_tar"),
    "zip": lazily("paceline.prepare.archives:read_zip"),
    "webdataset": lazily("paceline.prepare.archives:read_webdataset"),
    "recordio": lazily("paceline.prepare.record_files:read_recordio_files"),
    "tfrecord": lazily("paceline.prepare.record_files:read_tfrecord_files"),
}


@dataclass(frozen=True)
class ContainerRequest:
    """What to prepare. The fields are the command's flags."""

    layout: Layout
    train: tuple[str, ...] = ()  # files, patterns, URLs
    val: tuple[str, ...] = ()
    annotations: str = ""  # COCO JSON of the training photos, or the zip that holds it
    val_annotations: str = ""
    classes: str = ""  # a file of class names, one a line, or how many classes there are
    first_label: int = -1  # number of the first class in the files; -1: as the format's original scripts count
    label_column: int = -1  # which number of a label of several is the class
    devkit: str = ""  # ImageNet's devkit, which knows the classes of the validation photos
    expect: Expect = "any"
    val_fraction: float = 0.0
    val_seed: int = 0
    val_group: str = ""
    on_truncated: Literal["refuse", "skip"] = "refuse"
    on_unreadable: Literal["refuse", "skip"] = "refuse"
    on_missing: Literal["refuse", "skip"] = "refuse"
    on_class_mismatch: Literal["refuse", "warn"] = "refuse"


def prepare_containers(
    request: ContainerRequest,
    *,
    out: Path | None = None,
    workers: int | None = None,
    walked: Callable[[int, int], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """List the containers, verify every photo in them, write manifest and index; the manifest's `folder` says where.

    out       None: a folder in the cache
    workers   threads; None: one for each usable core
    walked    called with (containers listed, containers in all)
    progress  called with (photos verified, photos in all)
    Raises DataError for every flaw of a container or a photo; then no manifest is written.
    """
    if not request.train and not request.val:
        raise DataError("name the files: --train FILE... and --val FILE...")
    if request.val_fraction:
        check_fraction(request.val_fraction)
    _check_flags(request)
    request = _from_anywhere(request)
    place = choose_place(Path("/"), out if out is not None else _place_of(request))
    command = container_command(asdict(request), place)
    _refuse_another_kind(place)
    splits, notes = _listed(request, workers, walked)
    if "val" in splits and request.val_fraction:
        raise DataError("--val-fraction: there are validation photos already; leave it out.")
    try:
        place.mkdir(parents=True, exist_ok=True)
        if request.annotations or request.val_annotations or any(part.annotations for part in splits.values()):
            stored = stored_request(request, place)
            return prepare_contained_boxes(splits, request, place, stored, notes, command, workers, progress)
        return _write_classes(splits, request, place, notes, command, workers, progress)
    except OSError as error:
        raise DataError(
            f"{place}: the index cannot be written here ({error.strerror or error}). Choose another folder with --out DIR."
        ) from None


def _check_flags(request: ContainerRequest) -> None:
    """Raises DataError for a flag that would do nothing."""
    archive, boxes = request.layout in ("tar", "zip"), bool(request.annotations or request.val_annotations)
    idle = {
        "--val-annotations": bool(request.val_annotations) and not request.val,
        "--annotations": bool(request.annotations) and not request.train,
        "--val-group": bool(request.val_group) and not request.val_fraction,
        "--first-label": request.first_label >= 0 and archive,
        "--label-column": request.label_column >= 0 and request.layout != "recordio",
        "--devkit": bool(request.devkit) and (not archive or boxes),
    }
    meant = {
        "--val-annotations": "name the archive of its photos with --val, the same as --train's where they are in it",
        "--annotations": "name the archive of its photos with --train",
        "--val-group": "it groups photos for --val-fraction",
    }
    if flag := next((flag for flag, alone in idle.items() if alone), None):
        raise DataError(
            f"{flag}: {meant.get(flag, f'says nothing of {request.layout} files of this kind; leave it out')}."
        )


def _from_anywhere(request: ContainerRequest) -> ContainerRequest:
    """The same from whatever folder the command is given again."""

    def whole(name: str, value: str) -> str:
        return value if not value or (name == "classes" and value.isdecimal()) else lasting(value)

    return replace(request, **_of_files(request, whole))


def stored_request(request: ContainerRequest, place: Path) -> dict[str, Any]:
    """What the manifest says was asked for: files in its own folder are named from there, so that the whole can be moved."""
    prefix = os.path.join(str(place), "")
    return asdict(replace(request, **_of_files(request, lambda _, value: value.removeprefix(prefix))))


def _of_files(request: ContainerRequest, change: Callable[[str, str], str]) -> dict[str, Any]:
    found = {name: getattr(request, name) for name in CONTAINER_FILES}
    return {
        name: tuple(change(name, one) for one in value) if isinstance(value, tuple) else change(name, value)
        for name, value in found.items()
    }


def _place_of(request: ContainerRequest) -> Path:
    """A folder in the cache for exactly these files, annotations and share of validation."""
    parts = [getattr(request, name) for name in (*CONTAINER_FILES, "layout", "val_fraction", "val_seed", "val_group")]
    first = (request.train or request.val)[0]
    digest = hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9._-]", "_", os.path.basename(first))
    return cache_folder() / "index" / f"{name}-{digest}"


def _refuse_another_kind(place: Path) -> None:
    """Raises DataError where `place` holds the index of folders: the photos there would be taken for these."""
    if is_ours(place / MANIFEST) and not Manifest.load(place).in_containers:
        raise DataError(
            f"{place}: holds the index of photos in folders. Choose another folder with --out DIR, or delete its manifest.json."
        )


def _listed(
    request: ContainerRequest, workers: int | None, walked: Callable[[int, int], None] | None
) -> tuple[dict[str, Contents], list[str]]:
    """Split -> what its containers hold, and notes."""
    splits: dict[str, Contents] = {}
    notes: list[str] = []
    for split, sources in (("train", request.train), ("val", request.val)):
        if not sources:
            continue
        files = find_files(
            split,
            sources,
            listed=bool(request.annotations or request.val_annotations),
            skip_truncated=request.on_truncated == "skip",
            workers=workers,
            progress=walked,
        )
        for name, part in READERS[request.layout](files, request).items():
            if name in splits:
                raise DataError(f"{sources[0]}: it brings photos of {name}, and --{name} names others. Leave one out.")
            if not part.names:
                raise DataError(f"{sources[0]}: no photo in it.")
            splits[name] = part
            notes += part.notes
        notes += files.notes
    return splits, notes


def _write_classes(
    splits: dict[str, Contents],
    request: ContainerRequest,
    place: Path,
    notes: list[str],
    command: str,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> Manifest:
    known = resolve_classes(splits, request)
    splits, classes = known.splits, known.names
    listings = {name: _listing(place, name, part, known) for name, part in splits.items()}
    if request.expect == "imagenet":
        # What is wrong lies in the containers.
        named = {name: replace(one, folder=Path(os.fsdecode(splits[name].files[0]))) for name, one in listings.items()}
        check_imagenet(Listing(place, named))
    held = joined(list(splits.values()))
    photos = ContainedPhotos(place, held.names, held)
    previous = previous_manifest(place, place)
    found = inspect_photos(
        photos,
        journal=place / journal.FILE_NAME,
        known=known_facts(previous) if previous is not None else (),
        workers=workers,
        progress=progress,
    )
    if found.reasons and request.on_unreadable == "refuse":
        raise DataError(why_unreadable(photos, found.reasons, place, command))
    if len(found.reasons) == len(photos.names):
        raise DataError(
            f"{photos.called(0)}: {found.reasons[0]}. None of the {len(photos.names):,} photos can be used."
        )
    described, arrays, first = {}, {}, 0
    for name, part in splits.items():
        rows = np.arange(first, first + len(part.names))
        first += len(part.names)
        good = np.setdiff1d(rows, list(found.reasons))
        labels = known.labels[name][good - rows[0]]
        parts = {name: np.ones(len(good), bool)}
        if request.val_fraction:
            val = ValSplit(request.val_fraction, request.val_seed, request.val_group)
            named = [photos.names[i] for i in good.tolist()]
            in_val, said = set_apart(named, labels, found.digests[good], val, place, listings[name])
            notes += said
            parts = {"train": ~in_val, "val": in_val}
        for key, chosen in parts.items():
            left_out = [i for i in rows.tolist() if i in found.reasons] if key == name else []
            described[key], arrays[key] = describe_class_split(
                listings[name], photos, found, good[chosen], labels[chosen], left_out
            )
    manifest = Manifest(
        kind="class-folder",
        expect=request.expect,
        root=".",
        classes=classes,
        class_names=known.readable,
        index=write_index(place, arrays),
        splits=described,
        made_by=f"Pillow {PIL.__version__}",
        folder=place,
        request=stored_request(request, place),
        notes=tuple(notes),
        part_of=part_of_imagenet(classes, described) if request.expect == "any" else "",
    )
    manifest.save()
    delete_old_indexes(place, keep={manifest.index} | ({previous.index} if previous is not None else set()))
    for left_over in (journal.FILE_NAME, UNREADABLE_LIST):
        (place / left_over).unlink(missing_ok=True)
    return manifest


def _listing(place: Path, split: str, part: Contents, known: Classes) -> SplitListing:
    """As class folders of that split would be listed."""
    names: list[list[bytes]] = [[] for _ in known.names]
    for name, label in zip(part.names, known.labels[split].tolist()):
        names[label].append(os.path.basename(name))
    return SplitListing(place / split, list(known.names), names, [], part.ignored)
