"""Photos in MXNet's RecordIO and TensorFlow's TFRecord files -> Contents, in the files' own order.

RecordIO   the class is the header's number, or the label is a detection label and brings boxes. Beside a .rec, a .idx is
           compared with it, and a .lst says what the photos are called.
TFRecord   an Example with image/class/label (classes), or with image/object/* (boxes).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np

from paceline.config.errors import DataError
from paceline.datasets.containers.contents import (
    AS_IT_IS,
    RANGES,
    ContainedPhotos,
    Contents,
    Held,
    contents,
    folder_names,
)
from paceline.datasets.containers.files import ContainerFiles
from paceline.datasets.containers.record_boxes import PhotoBoxes, annotations_of
from paceline.datasets.formats.annotations import Annotations
from paceline.store.containers.example import LABEL, coco_example, imagenet_example, parse_example
from paceline.store.containers.recordio import Record, read_recordio
from paceline.store.containers.recordio_lists import Listed, check_idx, detection_objects, read_idx, read_lst
from paceline.store.containers.tfrecord import tfrecord_spans
from paceline.store.header import read_header
from paceline.store.stores import Range, scheme_of

if TYPE_CHECKING:
    from paceline.datasets.containers.source import ContainerRequest

MOST_LIST_BYTES = 1 << 30


def read_recordio_files(files: ContainerFiles, request: ContainerRequest) -> dict[str, Contents]:
    """Raises DataError where labels are neither classes nor boxes, and where a .idx is that of other data."""
    found = files.walk(read_recordio)
    lists = [_list_beside(files, number, records) for number, records in enumerate(found)]
    held = [
        (name, status, [_held(record, files.split, stem, place, listed) for place, record in enumerate(records)])
        for name, status, stem, records, listed in zip(files.names, files.statuses, _stems(files), found, lists)
    ]
    split = any(record.parts > 1 for records in found for record in records)
    whole = contents("recordio" if split else RANGES, held)
    labels = [record.labels for records in found for record in records]
    if all(len(label) == 1 for label in labels) or request.label_column >= 0:
        named = {}
        numbers = _classes(labels, whole, max(0, request.label_column))
        if all(listed is not None for listed in lists):
            paths = [listed[record.id].path for records, listed in zip(found, lists) for record in records if listed]
            named = folder_names(numbers, paths)
        return {files.split: replace(whole, classes=numbers, class_names=named)}
    return {files.split: replace(whole, annotations=_detections(labels, whole))}


def _stems(files: ContainerFiles) -> list[str]:
    """What records that have no names are named by: their file's own, numbered where two files share it."""
    stems = [os.path.splitext(os.path.basename(os.fsdecode(name)))[0] for name in files.names]
    return stems if len(set(stems)) == len(stems) else [f"{number}-{stem}" for number, stem in enumerate(stems)]


def _held(record: Record, split: str, stem: str, place: int, listed: dict[int, Listed] | None) -> Held:
    if listed is None:
        name = os.fsencode(f"{stem}/{place:08d}.jpg")
    else:
        name = os.fsencode(os.path.normpath(os.fsdecode(listed[record.id].path)))
    stored = AS_IT_IS if record.parts == 1 else record.extent
    offset = record.offset if record.parts == 1 else record.start
    return Held(split.encode() + b"/" + name, offset, record.length, stored)


def _list_beside(files: ContainerFiles, number: int, records: Sequence[Record]) -> dict[int, Listed] | None:
    """Compare a .idx beside a .rec with it -> what the .lst beside it says of each id, where there is one that fits."""
    name = os.fsdecode(files.names[number])
    stem = name.removesuffix(".rec")
    text = _beside(files, f"{stem}.idx")
    if text is not None:
        keys, offsets = read_idx(text, f"{stem}.idx")
        starts, ids = (np.array([getattr(record, of) for record in records], np.int64) for of in ("start", "id"))
        # Of a file that is cut off, and may be, only what survives is compared.
        kept = np.isin(offsets, starts) if files.skip_truncated else np.ones(len(offsets), bool)
        check_idx(keys[kept], offsets[kept], starts, ids, files.statuses[number].size, f"{stem}.idx", name)
    text = _beside(files, f"{stem}.lst")
    if text is None:
        return None
    listed = {line.id: line for line in read_lst(text, f"{stem}.lst")}
    paths = [listed[record.id].path for record in records if record.id in listed]
    fits = len(paths) == len(records) == len(set(paths)) and not any(
        b".." in path or path[:1] == b"/" for path in paths
    )
    if not fits or any(abs(listed[r.id].labels[0] - float(r.labels[0])) > 1e-4 for r in records):
        files.notes.append(f"{stem}.lst: is not the list of this .rec, so photos are named by their place")
        return None
    return listed


def _beside(files: ContainerFiles, name: str) -> bytes | None:
    try:
        status = files.store.status(os.fsencode(name))
        if status.size > MOST_LIST_BYTES:
            raise DataError(f"{name}: {status.size:,} bytes are no list of a RecordIO file. Remove it.")
        return files.store.read(Range(os.fsencode(name), 0, status.size))
    except FileNotFoundError:
        return None  # neither is needed
    except OSError as error:
        if scheme_of(name):  # whoever may not list a bucket is refused what is not in it
            return None
        raise DataError(
            f"{name}: cannot be read ({error.strerror or error}). Make it readable, or remove it."
        ) from None


def _classes(labels: Sequence[np.ndarray], whole: Contents, column: int) -> np.ndarray:
    numbers = np.zeros(len(labels), np.int64)
    for i, label in enumerate(labels):
        value = float(label[column]) if column < len(label) else float("nan")
        if not value.is_integer() or value < 0:
            given = " ".join(f"{one:g}" for one in label[:8])
            raise DataError(
                f"{os.fsdecode(whole.files[whole.file[i]])}: {os.fsdecode(whole.names[i])} has the label {given}, and number "
                f"{column} of it is no class (0, 1, ...). Name another with --label-column, or pack it again."
            )
        numbers[i] = int(value)
    return numbers


def _detections(labels: Sequence[np.ndarray], whole: Contents) -> Annotations:
    """Boxes of MXNet's detection labels. Raises DataError where a label is none."""
    photos = ContainedPhotos(Path("/"), whole.names, whole)
    found = []
    for i, label in enumerate(labels):
        where = f"{os.fsdecode(whole.files[whole.file[i]])}: {os.fsdecode(whole.names[i])}"
        try:
            objects = detection_objects(label, where)
        except DataError as error:
            raise DataError(f"{error} If one of its numbers is the class: --label-column 0") from None
        header = read_header(photos.read(i), where)
        crowd = np.zeros(len(objects.classes), bool)
        found.append(PhotoBoxes(header.height, header.width, objects.boxes, objects.classes, crowd))
    return annotations_of(Path(os.fsdecode(whole.files[0])), whole.names, found)


class _Photo(NamedTuple):
    held: Held
    filename: str
    label: int  # -1 where there are boxes
    synset: str
    boxes: PhotoBoxes | None
    source_id: str


def read_tfrecord_files(files: ContainerFiles, request: ContainerRequest) -> dict[str, Contents]:
    """Raises DataError where a checksum is wrong, or an Example has neither a class nor objects."""
    walked = files.walk(_examples)
    found = [photo for photos in walked for photo in photos]
    names = _photo_names(files, walked)
    held = [
        (name, status, [replace(photo.held, name=one) for photo, one in zip(photos, own)])
        for name, status, photos, own in zip(files.names, files.statuses, walked, names)
    ]
    whole = contents(RANGES, held)
    boxed = [photo.boxes for photo in found if photo.boxes is not None]
    if boxed and len(boxed) < len(found):
        raise DataError(
            f"{os.fsdecode(files.names[0])}: some of its photos have a class and some have boxes. Prepare them apart."
        )
    if boxed:
        ids = [photo.source_id for photo in found]
        annotations = annotations_of(Path(os.fsdecode(files.names[0])), whole.names, boxed, ids)
        return {files.split: replace(whole, annotations=annotations)}
    numbers = np.array([photo.label for photo in found], np.int64)
    called: dict[int, str] = {}
    for photo, name in zip(found, whole.names):
        if photo.synset and called.setdefault(photo.label, photo.synset) != photo.synset:
            raise DataError(
                f"{os.fsdecode(name)}: its class is {photo.label}, {photo.synset}, and of another photo "
                f"{photo.label}, {called[photo.label]}. These files were written with different lists of classes."
            )
    return {files.split: replace(whole, classes=numbers, class_names=called)}


def _photo_names(files: ContainerFiles, walked: Sequence[Sequence[_Photo]]) -> list[list[bytes]]:
    """As the Examples name them, below their class; by file and place where these names are not unique."""
    own = [
        [os.path.join(photo.synset, os.path.basename(photo.filename)) if photo.filename else "" for photo in photos]
        for photos in walked
    ]
    counts = Counter(name for names in own for name in names)
    if max(counts.values(), default=1) > 1 or "" in counts:
        own = [
            [f"{stem}/{place:08d}.jpg" for place in range(len(photos))] for stem, photos in zip(_stems(files), walked)
        ]
    return [[os.fsencode(f"{files.split}/{name}") for name in names] for names in own]


def _examples(file: BinaryIO, size: int, name: str) -> Iterator[_Photo]:
    for number, span in enumerate(tfrecord_spans(file, size, name)):
        where = f"{name}: record {number:,}"
        features = parse_example(span.data, where)
        if LABEL in features:
            one = imagenet_example(features, span.data, where)
            photo, boxes, source = one.photo, None, ""
            filename, label, synset = one.filename, one.label, one.synset
        else:
            objects = coco_example(features, span.data, where)
            photo, filename, label, synset, source = objects.photo, objects.filename, -1, "", objects.source_id
            height, width = objects.height, objects.width
            if not height or not width:
                header = read_header(span.data[photo.start : photo.start + photo.length], where)
                height, width = header.height, header.width
            masks = None if objects.masks is None else [span.data[a : a + n] for a, n in objects.masks]
            boxes = PhotoBoxes(
                height, width, objects.boxes, objects.classes, objects.is_crowd, objects.areas, masks, objects.names
            )
        yield _Photo(Held(b"", span.offset + photo.start, photo.length), filename, label, synset, boxes, source)
