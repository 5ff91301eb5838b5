"""Photos in MXNet's RecordIO and TensorFlow's TFRecord files -> Contents, in the files' own order.

RecordIO   the class is the header's number, or the label is a detection label and brings boxes. Beside a .rec, a .idx is
           compared with it, and a .lst names the photos.
TFRecord   an Example with image/class/label (classes), or with image/object/* (boxes).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from paceline._utils.errors import DataError
from paceline.data.containers.box_labels import join_annotations
from paceline.data.containers.listing import RANGES, ContainedImages, ContainerListing, folder_names, join_files
from paceline.data.containers.reading import AS_IT_IS, ImageBoxes, Member
from paceline.data.containers.recordio import (
    LstLine,
    Record,
    check_idx,
    parse_detection_label,
    read_idx,
    read_lst,
    read_recordio,
)
from paceline.data.containers.split_files import ContainerFiles, ContainerRequest
from paceline.data.containers.tfrecord import (
    LABEL,
    ImageExample,
    coco_example,
    imagenet_example,
    parse_example,
    tfrecord_spans,
)
from paceline.data.formats.annotations import Annotations
from paceline.data.storage.store import ByteRange, get_scheme
from paceline.data.transforms.image_io import read_header

MAX_LIST_BYTES = 1 << 30


def read_recordio_files(files: ContainerFiles, request: ContainerRequest) -> dict[str, ContainerListing]:
    """Raises DataError where labels are neither classes nor boxes, and where a .idx is that of other data."""
    walked = files.walk(read_recordio)
    lists = [_list_beside(files, number, records) for number, records in enumerate(walked)]
    held = [
        [_held(record, files.split, stem, index, listed) for index, record in enumerate(records)]
        for stem, records, listed in zip(_stems(files), walked, lists)
    ]
    split = any(record.parts > 1 for records in walked for record in records)
    whole = join_files("recordio" if split else RANGES, files, held)
    labels = [record.labels for records in walked for record in records]
    if all(len(label) == 1 for label in labels) or request.label_column >= 0:
        named = {}
        numbers = _classes(labels, whole, max(0, request.label_column))
        if all(listed is not None for listed in lists):
            paths = [listed[record.id].path for records, listed in zip(walked, lists) for record in records if listed]
            named = folder_names(numbers, paths)
        return {files.split: replace(whole, classes=numbers, class_names=named)}
    return {files.split: replace(whole, annotations=_detections(labels, whole))}


def _stems(files: ContainerFiles) -> list[str]:
    """What records without names are named by: their file's own name, numbered where two files share it."""
    stems = [os.path.splitext(os.path.basename(os.fsdecode(name)))[0] for name in files.names]
    return stems if len(set(stems)) == len(stems) else [f"{number}-{stem}" for number, stem in enumerate(stems)]


def _held(record: Record, split: str, stem: str, index: int, listed: dict[int, LstLine] | None) -> Member:
    path = f"{stem}/{index:08d}.jpg" if listed is None else os.path.normpath(os.fsdecode(listed[record.id].path))
    stored = AS_IT_IS if record.parts == 1 else record.extent
    offset = record.offset if record.parts == 1 else record.start
    return Member(os.fsencode(f"{split}/{path}"), offset, record.length, stored)


def _list_beside(files: ContainerFiles, number: int, records: Sequence[Record]) -> dict[int, LstLine] | None:
    """Compare a .idx beside a .rec with it -> the .lst's line of each id, where one lies beside it that fits."""
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
    inside = not any(b".." in path or path[:1] == b"/" for path in paths)
    fits = len(paths) == len(records) == len(set(paths)) and inside
    if not fits or any(abs(listed[r.id].labels[0] - float(r.labels[0])) > 1e-4 for r in records):
        files.notes.append(f"{stem}.lst: does not match this .rec file, so images are named by their position")
        return None
    return listed


def _beside(files: ContainerFiles, name: str) -> bytes | None:
    try:
        status = files.store.status(os.fsencode(name))
        if status.size > MAX_LIST_BYTES:
            raise DataError(f"{name}: {status.size:,} bytes are too many for the list of a RecordIO file. Remove the file.")
        return files.store.read(ByteRange(os.fsencode(name), 0, status.size))
    except FileNotFoundError:
        return None  # neither is needed
    except OSError as error:
        if get_scheme(name):  # a bucket that may not be listed refuses what is not in it
            return None
        reason = error.strerror or error
        raise DataError(f"{name}: cannot be read ({reason}). Make it readable, or remove it.") from None


def _classes(labels: Sequence[np.ndarray], whole: ContainerListing, column: int) -> np.ndarray:
    numbers = np.zeros(len(labels), np.int64)
    for i, label in enumerate(labels):
        value = float(label[column]) if column < len(label) else float("nan")
        if not value.is_integer() or value < 0:
            explicit = " ".join(f"{one:g}" for one in label[:8])
            raise DataError(
                f"{whole.title(i)}: value {column} of the label {explicit} is not a class index (0, 1, ...). Choose "
                "another value with --label-column, or pack the file again."
            )
        numbers[i] = int(value)
    return numbers


def _detections(labels: Sequence[np.ndarray], whole: ContainerListing) -> Annotations:
    """Boxes of MXNet's detection labels. Raises DataError where a label is none."""
    photos = ContainedImages(Path("/"), whole.names, whole)
    boxes = []
    for i, label in enumerate(labels):
        try:
            objects = parse_detection_label(label, whole.title(i))
        except DataError as error:
            raise DataError(f"{error} If one of its values is the class, add --label-column 0") from None
        header = read_header(photos.read(i), whole.title(i))
        crowd = np.zeros(len(objects.classes), bool)
        boxes.append(ImageBoxes(header.height, header.width, objects.boxes, objects.classes, crowd))
    return join_annotations(Path(whole.first_file), whole.names, boxes)


def read_tfrecord_files(files: ContainerFiles, request: ContainerRequest) -> dict[str, ContainerListing]:
    """Raises DataError where a checksum is wrong, or an Example has neither a class nor objects."""
    walked = files.walk(_examples)
    photos = [photo for some in walked for _, photo in some]
    held = [
        [member._replace(name=one) for (member, _), one in zip(some, own)]
        for some, own in zip(walked, _photo_names(files, walked))
    ]
    whole = join_files(RANGES, files, held)
    boxed = [photo.boxes for photo in photos if photo.boxes is not None]
    if boxed and len(boxed) < len(photos):
        raise DataError(f"{files.first}: some images have a class and others have boxes. Prepare them separately.")
    if boxed:
        ids = [photo.source_id for photo in photos]
        return {files.split: replace(whole, annotations=join_annotations(Path(files.first), whole.names, boxed, ids))}
    named: dict[int, str] = {}
    for photo, name in zip(photos, whole.names):
        if photo.synset and named.setdefault(photo.label, photo.synset) != photo.synset:
            raise DataError(
                f"{os.fsdecode(name)}: class {photo.label} is {photo.synset}, but {named[photo.label]} for another image. "
                "These files were written with different class lists."
            )
    numbers = np.array([photo.label for photo in photos], np.int64)
    return {files.split: replace(whole, classes=numbers, class_names=named)}


def _photo_names(files: ContainerFiles, walked: Sequence[Sequence[tuple[Member, ImageExample]]]) -> list[list[bytes]]:
    """As the Examples name them, below their class; by file and place where these names are not unique."""
    own = [
        [os.path.join(photo.synset, os.path.basename(photo.filename)) if photo.filename else "" for _, photo in photos]
        for photos in walked
    ]
    counts = Counter(name for names in own for name in names)
    if max(counts.values(), default=1) > 1 or "" in counts:
        own = [[f"{stem}/{index:08d}.jpg" for index in range(len(photos))] for stem, photos in zip(_stems(files), walked)]
    return [[os.fsencode(f"{files.split}/{name}") for name in names] for names in own]


def _examples(file: BinaryIO, size: int, name: str) -> Iterator[tuple[Member, ImageExample]]:
    for number, span in enumerate(tfrecord_spans(file, size, name)):
        where = f"{name}: record {number:,}"
        features = parse_example(span.data, where)
        photo = (imagenet_example if LABEL in features else coco_example)(features, span.data, where)
        (start, length), boxes = photo.photo, photo.boxes
        if boxes is not None and not (boxes.height and boxes.width):
            header = read_header(span.data[start : start + length], where)
            photo = photo._replace(boxes=boxes._replace(height=header.height, width=header.width))
        yield Member(b"", span.offset + start, length), photo
