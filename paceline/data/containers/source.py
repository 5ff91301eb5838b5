"""Containers (tar, zip, WebDataset, RecordIO, TFRecord; photos alone) -> manifest.json and index; their bytes stay where they are.

A container is listed first (archives.py, record_files.py), then every photo in it is decoded once, as photos in folders are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from paceline._utils.cache import cache_folder
from paceline._utils.errors import DataError
from paceline._utils.hashing import sha256
from paceline.data.containers.archives import read_archive, read_photos, read_webdataset
from paceline.data.containers.box_labels import prepare_container_boxes
from paceline.data.containers.class_labels import ClassLabels, resolve_classes
from paceline.data.containers.listing import ContainedImages, ContainerListing, join_splits
from paceline.data.containers.record_files import read_recordio_files, read_tfrecord_files
from paceline.data.containers.split_files import (
    ARCHIVES,
    ContainerFiles,
    ContainerRequest,
    absolute_source,
    find_files,
    unpack_compressed,
)
from paceline.data.formats.class_folders import ClassFolderListing, SplitListing
from paceline.data.formats.published_sets import check_imagenet
from paceline.data.index.manifest import CONTAINER_FILES, Manifest, container_command, is_paceline_manifest
from paceline.data.index.manifest import FILE_NAME as MANIFEST
from paceline.data.prepare.class_source import ClassSource
from paceline.data.prepare.pipeline import choose_manifest_folder, write_prepared
from paceline.data.prepare.val_split import ValSplit, check_fraction

# Layout -> what lists such files: ContainerFiles, ContainerRequest -> split -> Contents.
READERS: dict[str, Callable[[ContainerFiles, ContainerRequest], dict[str, ContainerListing]]] = {
    "photos": read_photos,
    **dict.fromkeys(ARCHIVES, read_archive),
    "webdataset": read_webdataset,
    "recordio": read_recordio_files,
    "tfrecord": read_tfrecord_files,
}


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
        raise DataError("--train FILE... or --val FILE... is required.")
    if request.val_fraction:
        check_fraction(request.val_fraction)
    _check_flags(request)
    request = _with_absolute_paths(request)
    path = choose_manifest_folder(Path("/"), out if out is not None else _place_of(request))
    command = container_command(asdict(request), path)
    if (
        is_paceline_manifest(path / MANIFEST) and not Manifest.load(path).in_containers
    ):  # its photos would be taken for these
        raise DataError(
            f"{path}: has the index of images in folders. Set another --output-dir DIR, or delete its manifest.json."
        )
    splits, notes = _listed(request, workers, walked)
    if "val" in splits and request.val_fraction:
        raise DataError("--val-fraction: the dataset already has validation images. Remove --val-fraction.")
    boxed = request.annotations or request.val_annotations or any(part.annotations for part in splits.values())
    # The manifest names files in its own folder relative to it, so that the whole can be moved.
    prefix = os.path.join(str(path), "")
    stored = replace(request, **_changed_paths(request, lambda _, value: value.removeprefix(prefix)))
    source = (prepare_container_boxes if boxed else _contained_classes)(
        splits,
        request,
        path,
        notes,
        command=command,
        remedy="Choose another folder with --output-dir DIR.",
        on_unreadable=request.on_unreadable,
        stored=asdict(stored),
    )
    return write_prepared(source, path, workers, progress)


def _check_flags(request: ContainerRequest) -> None:
    """Raises DataError for a flag that would do nothing."""
    archive, boxes = request.layout in ("photos", *ARCHIVES), bool(request.annotations or request.val_annotations)
    idle = {
        "--val-annotations": bool(request.val_annotations) and not request.val,
        "--annotations": bool(request.annotations) and not request.train,
        "--group-by": bool(request.group_by) and not request.val_fraction,
        "--label-offset": request.label_offset >= 0 and archive,
        "--label-column": request.label_column >= 0 and request.layout != "recordio",
        "--num-classes": bool(request.num_classes) and (boxes or bool(request.class_names_file)),
        "--devkit": bool(request.devkit) and (not archive or boxes),
    }
    remedies = {
        "--val-annotations": "requires the archive of its images. Pass --val, which may be the same file as --train",
        "--annotations": "requires the archive of its images. Pass --train",
        "--group-by": "requires --val-fraction",
        "--num-classes": "the annotations or --class-names-file set the number of classes. Remove --num-classes",
    }
    if flag := next((flag for flag, alone in idle.items() if alone), None):
        raise DataError(f"{flag}: {remedies.get(flag, f'has no effect on {request.layout} files. Remove it')}.")


def _with_absolute_paths(request: ContainerRequest) -> ContainerRequest:
    """The same from whatever folder the command is given again."""
    return replace(request, **_changed_paths(request, lambda _, value: value and absolute_source(value)))


def _changed_paths(request: ContainerRequest, change: Callable[[str, str], str]) -> dict[str, Any]:
    values = {name: getattr(request, name) for name in CONTAINER_FILES}
    return {
        name: tuple(change(name, one) for one in value) if isinstance(value, tuple) else change(name, value)
        for name, value in values.items()
    }


def _place_of(request: ContainerRequest) -> Path:
    """A folder in the cache for exactly these files, annotations and share of validation."""
    names = (*CONTAINER_FILES, "layout", "num_classes", "val_fraction", "split_seed", "group_by")
    parts = [getattr(request, name) for name in names]
    first = (request.train or request.val)[0]
    digest = sha256(repr(parts).encode("utf-8", "surrogateescape"))[:12]
    name = re.sub(r"[^A-Za-z0-9._-]", "_", os.path.basename(first))
    return cache_folder() / "index" / f"{name}-{digest}"


def _listed(
    request: ContainerRequest, workers: int | None, walked: Callable[[int, int], None] | None
) -> tuple[dict[str, ContainerListing], list[str]]:
    """Split -> what its containers hold, and notes."""
    splits: dict[str, ContainerListing] = {}
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
        files = unpack_compressed(files)
        for name, part in READERS[request.layout](files, request).items():
            if name in splits:
                raise DataError(f"{sources[0]}: already has {name} images, so --{name} is not allowed. Remove one of them.")
            if not part.names:
                raise DataError(f"{sources[0]}: no images found.")
            splits[name] = part
            notes += part.notes
        notes += files.notes
    return splits, notes


def _contained_classes(
    splits: dict[str, ContainerListing], request: ContainerRequest, path: Path, notes: list[str], **others: Any
) -> ClassSource:
    """Photos with a class each as a source. Raises DataError where their classes are unknown, or are not ImageNet's."""
    known = resolve_classes(splits, request)
    listings = {name: _listing(path, name, part, known) for name, part in known.splits.items()}
    if request.expect == "imagenet":
        # What is wrong lies in the containers.
        files = {name: Path(part.first_file) for name, part in known.splits.items()}
        check_imagenet(ClassFolderListing(path, {name: replace(one, folder=files[name]) for name, one in listings.items()}))
    held = join_splits(list(known.splits.values()))
    return ClassSource(
        root=path,
        listing=ClassFolderListing(path, listings),
        all_photos=ContainedImages(path, held.names, held),
        labels=known.labels,
        class_names=known.readable,
        expect=request.expect,
        val=ValSplit(request.val_fraction, request.split_seed, request.group_by),
        notes=tuple(notes),
        **others,
    )


def _listing(path: Path, split: str, part: ContainerListing, known: ClassLabels) -> SplitListing:
    """As class folders of that split would be listed."""
    names: list[list[bytes]] = [[] for _ in known.names]
    for name, label in zip(part.names, known.labels[split].tolist()):
        names[label].append(os.path.basename(name))
    return SplitListing(path / split, list(known.names), names, [], part.ignored)
