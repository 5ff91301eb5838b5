"""Photos with boxes in containers: annotations beside them (COCO's zips) or in them (RecordIO's labels, TFRecord's features,
WebDataset's JSON fields) -> `Annotations`, and the source that pipeline.py writes.

Letters: N photos, M objects of one photo.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from paceline._utils.errors import DataError
from paceline._utils.names import list_matching
from paceline._utils.text import abbreviate, escape_line
from paceline.data.containers.class_labels import read_numbered_names
from paceline.data.containers.listing import ContainedImages, ContainerListing, join_splits
from paceline.data.containers.reading import ImageBoxes
from paceline.data.containers.split_files import ContainerRequest
from paceline.data.formats.annotations import Annotations, ImageLabels, make_annotations
from paceline.data.formats.class_folders import tidy_class_name
from paceline.data.formats.coco import coco_annotations, load_json, match_files
from paceline.data.formats.layouts import DetectionLayout, escape_glob
from paceline.data.prepare.box_source import BoxRequest, BoxSource
from paceline.data.shapes.outlines import run_lengths
from paceline.data.transforms.image_io import open_image

# Under this name a JSON of WebDataset has the objects of the photo, as COCO's files have them.
OBJECTS = "annotations"
# Where those who made TFRecords of COCO have its JSON, relative to them.
_BESIDE = ("", "annotations", "raw-data/annotations", "../annotations")


def prepare_container_boxes(
    splits: dict[str, ContainerListing], request: ContainerRequest, target: Path, notes: list[str], **others: Any
) -> BoxSource:
    """Photos with boxes in containers as a source; others: its fields that do not follow from `request`.

    Raises DataError for every flaw of annotations.
    """
    splits = _unique_names(splits)
    annotated: dict[str, Annotations] = {}
    files: dict[str, tuple[str, ...]] = {}
    for split, part in splits.items():
        explicit = request.annotations if split == "train" else request.val_annotations
        if explicit:
            path = Path(os.path.realpath(os.path.expanduser(explicit)))
            file, record = load_json(path, split)
            read, more = coco_annotations(file, record, target)
            folder = _folder_of(read, part, path)
            start = f"{folder}/" if folder else ""
            below = [name.removeprefix(start) for name in map(os.fsdecode, part.names) if name.startswith(start)]
            annotated[split], more = match_files(replace(read, images_folder=target / folder), more, below)
            files[split] = (escape_glob(target, path),)
        elif part.annotations is not None:
            annotated[split], more = _named(replace(part.annotations, images_folder=target), request)
            more = [note for note in more if note not in notes]
            files[split] = ()
        else:
            flag = "--annotations" if split == "train" else "--val-annotations"
            raise DataError(f"{part.first_file}: boxes are required for these images. Pass their COCO JSON with {flag}.")
        notes += more
    names = {number: name for one in annotated.values() for number, name in one.names.items()}
    for split, one in annotated.items():
        if not files[split]:  # record files name the classes of their own photos alone, by numbers that mean the same
            annotated[split] = replace(one, names=dict(sorted(names.items())))
    held = join_splits(list(splits.values()))
    return BoxSource.of(
        DetectionLayout("coco", target, annotated, notes, files),
        BoxRequest.of(request),
        held=lambda root, names: ContainedImages(root, names, held),
        **others,
    )


def _unique_names(splits: dict[str, ContainerListing]) -> dict[str, ContainerListing]:
    """With the split before each photo's name where two archives call different photos the same."""
    locations = [
        {
            name: (part.files[file], offset)
            for name, file, offset in zip(part.names, part.file.tolist(), part.offsets.tolist())
        }
        for part in splits.values()
    ]
    if len(locations) < 2 or all(locations[1].get(name, location) == location for name, location in locations[0].items()):
        return splits
    return {
        split: replace(part, names=[split.encode() + b"/" + name for name in part.names]) for split, part in splits.items()
    }


def _named(annotations: Annotations, request: ContainerRequest) -> tuple[Annotations, list[str]]:
    """With the names of --class-names-file, which has all classes of the data set, those without objects here too; and notes.

    Without it, and where the files have numbers alone, with those of a COCO JSON beside them that has all numbers.
    """
    names = read_numbered_names(request.class_names_file, request)
    if lacking := sorted(set(annotations.names) - set(names)) if names else []:
        raise DataError(f"--class-names-file {request.class_names_file}: class {lacking[0]} of the objects is missing.")
    if names or any(name != f"class {number}" for number, name in annotations.names.items()):
        return replace(annotations, names=names or annotations.names), []
    folder = annotations.source.parent
    beside = (
        [path for near in _BESIDE for path in list_matching(folder / near, "instances_*.json")]
        if request.layout == "tfrecord"
        else []
    )
    for path in sorted(beside, key=lambda path: path.stat().st_size):  # those of validation are a twentieth
        with suppress(DataError):  # no command named it
            names = read_numbered_names(str(path), request)
            if set(annotations.names) <= set(names):
                return replace(annotations, names=names), [f"the class names are from {path}"]
    return annotations, [
        (f"{folder}: no class names found, so classes are named by index. To set names, use --class-names-file FILE")
    ]


def _folder_of(annotations: Annotations, part: ContainerListing, path: Path) -> str:
    """The folder, in the archive, that the annotations' names begin in."""
    known = set(part.names)
    first = os.fsencode(os.path.normpath(annotations.file_names[0]))
    if first in known:
        return ""
    folders = {name[: -len(first) - 1] for name in known if name.endswith(b"/" + first)}
    folders = folders or {os.path.dirname(name) for name in known}
    if len(folders) != 1:
        raise DataError(
            f"{part.first_file}: {path} lists {annotations.file_names[0]}, but the images in the archive are in "
            f"{len(folders)} folders. Write the file names as in the archive."
        )
    return os.fsdecode(folders.pop())


def join_annotations(
    source: Path, names: Sequence[bytes], objects: Sequence[ImageBoxes], ids: Sequence[str] = ()
) -> Annotations:
    """N photos with their objects.

    source  the first file, for messages
    names   N, what lists call the photos
    ids     N photo ids, used where all are different whole numbers; otherwise photos count from 1
    Raises DataError where a mask cannot be decoded or has another size than its photo.
    """
    whole = ids and len(set(ids)) == len(ids) and all(one.isdecimal() and len(one) < 19 for one in ids)
    photos = []
    for name, photo in zip(names, objects):
        corners = photo.boxes.astype(np.float64).reshape(-1, 4) * ([photo.width, photo.height] * 2)
        boxes = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
        areas = np.full(len(boxes), np.nan) if photo.areas is None else photo.areas.astype(np.float64)
        labels = ImageLabels(os.fsdecode(name), photo.height, photo.width)
        labels.categories, labels.boxes, labels.crowd = photo.classes.tolist(), boxes.tolist(), photo.crowd.tolist()
        labels.areas, labels.segmentations = areas.tolist(), _segmentations(photo, labels.file_name)
        photos.append(labels)
    image_ids = list(map(int, ids)) if whole else ()
    return make_annotations(source, source.parent, photos, _class_names(source, objects), image_ids=image_ids)


def _class_names(source: Path, objects: Sequence[ImageBoxes]) -> dict[int, str]:
    """Number -> name, in order. Raises DataError where the photos call one number differently, or a name is unfit."""
    named: dict[int, bytes] = {}
    for photo in objects:
        for number, name in zip(photo.classes.tolist(), photo.names):
            if name and named.setdefault(number, name) != name:
                first, other = (escape_line(os.fsdecode(one)) for one in (named[number], name))
                raise DataError(f"{source}: class {number} is named {first} and {other}. Pack them with one class list.")
    return {
        number: tidy_class_name(os.fsdecode(named[number]), f"{source}: a class") if number in named else f"class {number}"
        for number in sorted({number for photo in objects for number in photo.classes.tolist()})
    }


def _segmentations(photo: ImageBoxes, name: str) -> list[Any]:
    """COCO's run lengths of each mask, None where there are none."""
    if photo.masks is None:
        return [None] * len(photo.classes)
    size = (photo.width, photo.height)
    segmentations = []
    for data in photo.masks:
        try:
            with open_image(data, ("PNG",)) as image:
                if image.size != size:
                    raise DataError(
                        f"{name}: a mask has {image.size[0]} x {image.size[1]} px, but the image has {size[0]} x {size[1]}."
                    )
                inside = np.asarray(image.convert("L")).astype(bool)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise DataError(f"{name}: a mask is not a valid PNG ({error}).") from None
        segmentations.append({"counts": run_lengths(inside), "size": [photo.height, photo.width]})
    return segmentations


def sample_annotations(
    source: Path, names: Sequence[bytes], labels: Sequence[dict[str, Any]]
) -> tuple[Annotations, list[str]]:
    """Objects in the JSON fields of WebDataset's samples, as `paceline data pack` writes them.

    A sample's JSON has "annotations", each with category_id (and its name as "category"), bbox and what else COCO's have; and, where
    known, image_id, height and width. Photos that lack an id are numbered from 1.

    source  the first file, for messages
    names   N, what lists call the photos
    labels  N JSON objects with a list of "annotations"
    -> annotations of N photos in their order, and notes on what they leave out
    Raises DataError where one contradicts itself, or two call one category differently.
    """
    numbered = all(isinstance(label.get("image_id"), int) for label in labels)
    images, objects = [], []
    categories: dict[int, str] = {}
    for index, (name, label) in enumerate(zip(names, labels)):
        number = label["image_id"] if numbered else index + 1
        size = {key: label.get(key) for key in ("height", "width")}
        images.append({"id": number, "file_name": os.fsdecode(name), **size})
        where = f"{source}: {os.fsdecode(name)}"
        for entry in label[OBJECTS]:
            if not isinstance(entry, dict):
                raise DataError(f"{where} has the invalid object {abbreviate(entry)!r}. Expected a JSON object.")
            objects.append({**entry, "image_id": number})
            category, called = entry.get("category_id"), entry.get("category")
            if not isinstance(category, int):
                raise DataError(f"{where} has an object without an integer category_id.")
            called = called if isinstance(called, str) else categories.get(category, f"class {category}")
            if (first := categories.setdefault(category, called)) != called:
                raise DataError(
                    f"{where} names category {category} {abbreviate(called)!r}, but other samples name it "
                    f"{abbreviate(first)!r}. Pack the files again with one name."
                )
    # Photos without objects alone have no category either; their classes are those of the other split, or of --class-names-file.
    categories = categories or {0: "class 0"}
    listed = [{"id": number, "name": name} for number, name in sorted(categories.items())]
    return coco_annotations(source, {"images": images, "annotations": objects, "categories": listed}, source.parent)
