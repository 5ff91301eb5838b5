"""Photos with boxes in containers: annotations beside them (COCO's zips) or in them (RecordIO's labels, TFRecord's features)."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.config.errors import DataError
from paceline.datasets.box_source import BoxRequest, BoxSource
from paceline.datasets.containers.classes import names_by_number
from paceline.datasets.containers.contents import ContainedPhotos, Contents, joined
from paceline.datasets.containers.record_boxes import unnamed
from paceline.datasets.formats.annotations import Annotations
from paceline.datasets.formats.coco import read_coco
from paceline.datasets.formats.layouts import BoxSet, pattern_of

if TYPE_CHECKING:
    from paceline.datasets.containers.source import ContainerRequest


# Where those who made TFRecords of COCO have its JSON, seen from them.
_BESIDE = tuple(
    f"{folder}instances_*.json" for folder in ("", "annotations/", "raw-data/annotations/", "../annotations/")
)


def contained_boxes(
    splits: dict[str, Contents], request: ContainerRequest, place: Path, notes: list[str], **others: Any
) -> BoxSource:
    """Photos with boxes in containers as a source; others: its fields that do not follow from `request`.

    Raises DataError for every flaw of annotations.
    """
    splits = _apart(splits)
    annotated: dict[str, Annotations] = {}
    files: dict[str, tuple[str, ...]] = {}
    for split, part in splits.items():
        given = request.annotations if split == "train" else request.val_annotations
        if given:
            path = Path(os.path.realpath(os.path.expanduser(given)))
            found, said = read_coco(path, place, split=split)
            annotated[split] = replace(found, images_folder=place / _folder_of(found, part, path))
            files[split] = (pattern_of(place, path),)
            notes += said
        elif part.annotations is not None:
            named, said = _named(replace(part.annotations, images_folder=place), request)
            annotated[split] = named
            notes += [one for one in said if one not in notes]
            files[split] = ()
        else:
            flag = "--annotations" if split == "train" else "--val-annotations"
            raise DataError(
                f"{os.fsdecode(part.files[0])}: no boxes for these photos. Name their COCO JSON with {flag}."
            )
    own = {number: name for found in annotated.values() for number, name in found.names.items()}
    for split, found in annotated.items():
        if not files[split]:  # record files name the classes of their own photos alone, by numbers that mean the same
            annotated[split] = replace(found, names=dict(sorted(own.items())))
    held = joined(list(splits.values()))
    return BoxSource.of(
        BoxSet("coco", place, annotated, notes, files),
        BoxRequest.of(request),
        held=lambda root, names: ContainedPhotos(root, names, held),
        **others,
    )


def _apart(splits: dict[str, Contents]) -> dict[str, Contents]:
    """With the split before each photo's name where two archives call different photos the same."""
    places = [
        {
            name: (part.files[file], offset)
            for name, file, offset in zip(part.names, part.file.tolist(), part.offsets.tolist())
        }
        for part in splits.values()
    ]
    if len(places) < 2 or all(places[1].get(name, place) == place for name, place in places[0].items()):
        return splits
    return {
        split: replace(part, names=[split.encode() + b"/" + name for name in part.names])
        for split, part in splits.items()
    }


def _named(annotations: Annotations, request: ContainerRequest) -> tuple[Annotations, list[str]]:
    """With the names of --classes, which has all classes of the data set, those without objects here too; and notes.

    Without it, and where the files have numbers alone, with those of a COCO JSON beside them that has all numbers.
    """
    names = names_by_number(request.classes, request)
    if lacking := sorted(set(annotations.names) - set(names)) if names else []:
        raise DataError(f"--classes {request.classes}: lacks number {lacking[0]}, which objects belong to.")
    if names or any(name != unnamed(number) for number, name in annotations.names.items()):
        return replace(annotations, names=names or annotations.names), []
    folder = annotations.source.parent
    beside = [found for pattern in _BESIDE for found in folder.glob(pattern)] if request.layout == "tfrecord" else []
    for path in sorted(beside, key=lambda found: found.stat().st_size):  # those of validation are a twentieth
        with suppress(DataError):  # nobody named it
            names = names_by_number(str(path), request)
            if set(annotations.names) <= set(names):
                return replace(annotations, names=names), [f"classes are called as in {path}"]
    return annotations, [f"{folder}: its files name no classes, they are called by number; --classes FILE names them"]


def _folder_of(annotations: Annotations, part: Contents, path: Path) -> str:
    """The folder, in the archive, that the annotations' names begin in."""
    known = set(part.names)
    first = os.fsencode(os.path.normpath(annotations.file_names[0]))
    if first in known:
        return ""
    folders = {name[: -len(first) - 1] for name in known if name.endswith(b"/" + first)}
    if not folders:
        folders = {os.path.dirname(name) for name in known}
    if len(folders) != 1:
        raise DataError(
            f"{os.fsdecode(part.files[0])}: {path} names {annotations.file_names[0]}, and the archive's photos lie in "
            f"{len(folders)} folders. Name photos as the archive has them."
        )
    return os.fsdecode(folders.pop())
