"""Photos with boxes in containers: annotations beside them (COCO's zips) or in them (RecordIO's labels, TFRecord's features)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.config.errors import DataError
from paceline.prepare.box_source import BoxRequest, BoxSource
from paceline.prepare.containers.classes import names_by_number
from paceline.prepare.containers.contents import ContainedPhotos, Contents, joined
from paceline.prepare.formats.annotations import Annotations
from paceline.prepare.formats.coco import read_coco
from paceline.prepare.formats.layouts import BoxSet, pattern_of

if TYPE_CHECKING:
    from paceline.prepare.containers.source import ContainerRequest


def contained_boxes(
    splits: dict[str, Contents],
    request: ContainerRequest,
    place: Path,
    notes: list[str],
    **others: Any,
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
            annotated[split] = _named(replace(part.annotations, images_folder=place), request)
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


def _named(annotations: Annotations, request: ContainerRequest) -> Annotations:
    """With the names of --classes, which has all classes of the data set, those without objects here too."""
    names = names_by_number(request)
    if lacking := sorted(set(annotations.names) - set(names)) if names else []:
        raise DataError(f"--classes {request.classes}: lacks number {lacking[0]}, which objects belong to.")
    return replace(annotations, names=names or annotations.names)


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
