"""One file of a pack: its records in order, under their names, whole or not at all.

Letters: M objects of one photo
WebDataset  NAME.jpg with NAME.cls (the class's number), or with NAME.json, which has all that the index knows, so that what is
    prepared from it is the same set:
    {"image_id", "file_name", "height", "width", "annotations": [{"id", "category_id", "category", "bbox" (x, y, width, height in
    pixels), "area", "iscrowd", "segmentation" (polygons, or run lengths as COCO's tools write them)}, ...]}
RecordIO    FILE.rec with FILE.idx and FILE.lst; in each record's header the class's number, or MXNet's detection label: classes and
    boxes alone. Crowd regions and boxes that training leaves out would become objects like any other, so they are left out.
TFRecord    an Example each, in the layout of ImageNet's scripts, or in that of the detection tools:
    classes  image/encoded, format, height, width, colorspace, channels, filename; image/class/label from 1, synset, text
    objects  image/encoded, format, height, width, filename, source_id, key/sha256; image/object/bbox/{xmin,xmax,ymin,ymax} as
             fractions, class/{label,text} (the data's own ids and names), is_crowd, area in pixels, mask (a PNG for each)
    Source: tensorflow/models, research/slim's build_imagenet_data.py; tensorflow/tpu, models' create_coco_tf_record.py.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from paceline._utils.atomic_write import atomic_write, atomic_writer
from paceline._utils.hashing import sha256
from paceline.data.containers.recordio import RecordIOContent, format_idx, format_lst_line, write_recordio
from paceline.data.containers.tar import write_tar
from paceline.data.containers.tfrecord import Values, example_bytes, write_tfrecord
from paceline.data.index.box_split import BoxSplit, ImageObjects, has_masks, read_object_masks
from paceline.data.index.index import Index
from paceline.data.index.manifest import Manifest
from paceline.data.pack.plan import EncodedImage, Form, PackRequest, PackSplit, ShardPlan, reencode_record
from paceline.data.rle import compress, mask_pixels
from paceline.data.shapes.outlines import run_lengths
from paceline.data.transforms.exif import swaps_sides
from paceline.data.workers.crew import WorkerCrew

CLASSES = "classes.json"


class PackedImage(NamedTuple):
    """One record to be packed."""

    place: int  # in the split's packed order
    row: int  # in the index
    encoded: EncodedImage


def open_encoders(sources: Sequence[PackSplit], request: PackRequest, workers: int) -> WorkerCrew[PackedImage]:
    """Workers that read photos and encode them. A call is the number of a source and a place in its order.

    They raise DataError where a photo cannot be read, or changed.
    """
    # What is only copied is soon read; who waits for a store needs no core.
    anew = any(source.anew.any() for source in sources)
    portable = all(source.index.records.portable for source in sources)
    return WorkerCrew(partial(_photo, sources, request), workers, processes=anew and portable)


def _photo(sources: Sequence[PackSplit], request: PackRequest, number: int, position: int) -> PackedImage:
    source = sources[number]
    row, index = int(source.order[position]), source.index
    if source.anew[row]:
        return PackedImage(position, row, reencode_record(index, row, request.resize_shorter_side, request.encode_quality))
    return PackedImage(position, row, EncodedImage(index.read(row), int(index.heights[row]), int(index.widths[row])))


def write_shard(
    out: Path, shard: ShardPlan, source: PackSplit, request: PackRequest, photos: Iterator[PackedImage]
) -> dict[str, dict[str, Any]]:
    """-> file name -> bytes and SHA-256 of what is in place now.

    photos  those of the shard, in order
    Raises DataError for a record, OSError for the folder; then none of the new files is there.
    """
    if request.format == "webdataset":
        return {shard.file: _write_summed(out / shard.file, lambda file: write_tar(file, _samples(photos, source)))}
    if request.format == "tfrecord":
        examples = (make_example(source, photo.row, photo.encoded) for photo in photos)
        return {shard.file: _write_summed(out / shard.file, lambda file: write_tfrecord(file, examples))}
    placed: list[tuple[int, int]] = []
    lines: list[bytes] = []

    def write_records(file: Any) -> None:
        placed.extend(write_recordio(file, _records(photos, source, lines)))

    parts = {shard.file: _write_summed(out / shard.file, write_records)}
    stem = Path(shard.file).stem
    for name, text in ((f"{stem}.idx", format_idx(placed)), (f"{stem}.lst", b"".join(lines))):
        parts[name] = _write_summed(out / name, lambda file, text=text: file.write(text))
    return parts


def _samples(photos: Iterator[PackedImage], source: PackSplit) -> Iterator[tuple[bytes, bytes]]:
    for photo in photos:
        name = source.names[photo.row]
        yield name, photo.encoded.data
        stem = os.path.splitext(name)[0]
        if source.boxes is None:
            yield stem + b".cls", b"%d" % source.index.labels[photo.row]
        else:
            size, has_frame = (photo.encoded.height, photo.encoded.width), bool(source.has_frame[photo.row])
            yield stem + b".json", json_field(source.boxes, photo.row, os.fsdecode(name), size, has_frame)


def _records(photos: Iterator[PackedImage], source: PackSplit, lines: list[bytes]) -> Iterator[RecordIOContent]:
    for photo in photos:
        boxes = source.boxes
        labels = float(source.index.labels[photo.row]) if boxes is None else detection_label(boxes, photo.row)
        lines.append(format_lst_line(photo.place, np.atleast_1d(labels).tolist(), source.names[photo.row]))
        yield RecordIOContent(photo.place, labels, photo.encoded.data)


class _Summed(io.RawIOBase):
    """Passes bytes on to a file; counts and hashes them."""

    def __init__(self, file: Any) -> None:
        self._file, self.digest, self.total = file, hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        self._file.write(data)
        self.digest.update(data)
        self.total += len(data)
        return len(data)


def _write_summed(path: Path, write: Callable[[Any], object]) -> dict[str, Any]:
    with atomic_writer(path, sync=True) as part, open(part, "wb", buffering=1 << 20) as file:
        summed = _Summed(file)
        write(summed)
    return {"bytes": summed.total, "sha256": summed.digest.hexdigest()}


# Widths of a detection label's header, and of an object: class and corners.
HEADER_WIDTH, OBJECT_WIDTH = 2, 5
# What stands for a photo without objects: MXNet's ImageDetIter ends on a label without any (1.9.1, _parse_label), and takes class -1
# for padding everywhere, as our reader does.
PADDING = (-1.0, 0.0, 0.0, 1.0, 1.0)
_FORMATS = ((b"\xff\xd8", b"JPEG"), (b"\x89PNG", b"PNG"), (b"RIFF", b"WEBP"), (b"BM", b"BMP"), (b"GIF8", b"GIF"))


def json_field(split: BoxSplit, i: int, name: str, size: tuple[int, int], with_size: bool) -> bytes:
    """The JSON of image i, which is called `name`.

    size       (height, width) in pixels of the photo as it is packed, in the stored frame: boxes and masks are scaled to it
    with_size  whether the annotations' frame is known
    """
    height, width = reversed(size) if swaps_sides(split.index.orientation(i)) else size  # as the split was opened
    scale = np.array([width / split.widths[i], height / split.heights[i]])
    objects = split.objects(i)
    annotations = []
    for index in range(len(objects.boxes)):
        entry: dict[str, Any] = {
            "id": int(objects.annotation_ids[index]),
            "category_id": int(split.category_ids[objects.classes[index] - 1]),
            "category": split.names[objects.classes[index] - 1],
            "bbox": (objects.boxes[index] * np.tile(scale, 2)).tolist(),
            "area": float(objects.areas[index] * scale.prod()),
            "iscrowd": int(objects.crowd[index]),
        }
        mask = _segmentation(split, objects.first + index, i, scale, (height, width))
        annotations.append(entry if mask is None else {**entry, "segmentation": mask})
    record: dict[str, Any] = {"image_id": int(split.image_ids[i]), "file_name": name}
    if with_size:
        record |= {"height": height, "width": width}
    return json.dumps({**record, "annotations": annotations}, separators=(",", ":")).encode()


def detection_label(split: BoxSplit, i: int) -> np.ndarray:
    """(2 + 5 max(1, M),) float32: the widths 2 and 5, then class from 0 and corners as fractions inside the photo, or padding."""
    objects = box_fractions(split, i, fits_label(split.objects(i))) - [1, 0, 0, 0, 0]
    numbers = objects.reshape(-1) if len(objects) else PADDING
    return np.concatenate([[HEADER_WIDTH, OBJECT_WIDTH], numbers]).astype(np.float32)


def make_example(source: PackSplit, row: int, photo: EncodedImage) -> bytes:
    """The Example of row `row` of the source's index, whose photo is packed as `photo`."""
    name = source.names[row]
    form = next((form for beginning, form in _FORMATS if photo.data.startswith(beginning)), b"TIFF")
    features: dict[str, Values] = {
        "image/encoded": [photo.data],
        "image/filename": [os.path.basename(name)],
        "image/height": [photo.height],
        "image/width": [photo.width],
    }
    if source.boxes is not None:
        return example_bytes(features | _object_features(source.boxes, row, photo) | {"image/format": [form.lower()]})
    number = int(source.index.labels[row])
    return example_bytes(
        features
        | {
            "image/format": [form],
            "image/colorspace": [b"RGB"],
            "image/channels": [3],
            "image/class/label": [number + 1],  # 0 is a background that no photo has
            "image/class/synset": [os.path.dirname(name)],
            "image/class/text": [source.classes[number].encode()],
        }
    )


def box_fractions(split: BoxSplit, i: int, kept: np.ndarray) -> np.ndarray:
    """(kept objects, 5) float64: class 1..K, then x and y of both corners as fractions inside the photo.

    kept  (M,) bool
    """
    objects = split.objects(i)
    corners = np.concatenate([objects.boxes[:, :2], objects.boxes[:, :2] + objects.boxes[:, 2:]], axis=1)[kept]
    fractions = (corners / np.tile([split.widths[i], split.heights[i]], 2)).clip(0.0, 1.0)
    return np.concatenate([objects.classes[kept, None], fractions], axis=1)


def fits_label(split: BoxSplit | ImageObjects) -> np.ndarray:
    """(objects of the split, or of the image,) bool: those that a detection label can hold."""
    return fits_example(split) & (np.asarray(split.crowd) == 0)


def fits_example(split: BoxSplit | ImageObjects) -> np.ndarray:
    """(objects,) bool: those that an Example of the detection tools can hold, crowd regions among them."""
    return np.asarray(split.usable) == 1


def _object_features(split: BoxSplit, i: int, photo: EncodedImage) -> dict[str, Values]:
    objects = split.objects(i)
    kept = fits_example(objects)
    numbers = box_fractions(split, i, kept)
    classes = objects.classes[kept] - 1
    scale = photo.width / float(split.widths[i]) * photo.height / float(split.heights[i])
    features: dict[str, Values] = {
        f"image/object/bbox/{corner}": numbers[:, index].tolist()
        for index, corner in enumerate(("xmin", "ymin", "xmax", "ymax"), start=1)
    }
    features |= {
        "image/source_id": [b"%d" % split.image_ids[i]],
        "image/key/sha256": [sha256(photo.data).encode()],
        "image/object/class/label": [int(split.category_ids[number]) for number in classes],
        "image/object/class/text": [split.names[number].encode() for number in classes],
        "image/object/is_crowd": objects.crowd[kept].astype(int).tolist(),
        "image/object/area": (objects.areas[kept] * scale).tolist(),
    }
    if has_masks(split):
        features["image/object/mask"] = _png_masks(split, i, kept, (photo.height, photo.width))
    return features


def _png_masks(split: BoxSplit, i: int, kept: np.ndarray, size: tuple[int, int]) -> list[bytes]:
    """A PNG of 0 and 1 for each object that is kept, of the photo's packed size (height, width)."""
    annotated = int(split.heights[i]), int(split.widths[i])
    masks = []
    for counts in read_object_masks(split, np.array([i])).masks.take(np.flatnonzero(kept)):
        out = io.BytesIO()
        mask = _nearest(mask_pixels({"size": list(annotated), "counts": counts}), size)
        Image.fromarray(mask).save(out, "PNG")
        masks.append(out.getvalue())
    return masks


def _segmentation(split: BoxSplit, row: int, i: int, scale: np.ndarray, size: tuple[int, int]) -> Any:
    """The mask of object row `row`, on image i, scaled to `size` (height, width), as COCO's JSON has it; None for no mask."""
    if len(runs := split.rle(row)):
        if (scale != 1).any():
            marked = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
            mask = marked.reshape(int(split.widths[i]), int(split.heights[i])).T
            runs = np.array(run_lengths(_nearest(mask, size)), np.int64)
        counts = compress(runs.astype(np.int64), np.array([0, len(runs)], np.int64))[0]
        return {"size": list(size), "counts": counts.decode()}
    polygons = split.polygons(row)
    return [(points * scale).reshape(-1).tolist() for points in polygons] or None


def _nearest(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The mask resized to (height, width) by its nearest pixels."""
    rows, columns = (((np.arange(new) + 0.5) * old / new).astype(np.int64) for old, new in zip(mask.shape, size))
    return mask[rows][:, columns]


def write_classes(out: Path, manifest: Manifest, request: PackRequest) -> None:
    """OUT/classes.json. Raises OSError.

    class folders  {name: readable name, ...} in class order
    boxes          {"categories": [{"id", "name"}, ...]}, ids as the pack's labels have them
    """
    if manifest.kind == "class-folder":
        readable = manifest.class_names or manifest.classes
        text = json.dumps(dict(zip(manifest.classes, readable)), indent=1)
    else:
        ids = range(len(manifest.classes)) if request.format == "recordio" else manifest.category_ids
        named = [{"id": number, "name": name} for number, name in zip(ids or (), manifest.classes)]
        text = json.dumps({"categories": named}, indent=1)
    atomic_write(out / CLASSES, text + "\n", sync=True)


def holds_objects(index: Index, boxes: BoxSplit, order: np.ndarray, form: Form) -> bool:
    """Whether each photo of an index of the pack has the classes and boxes that its label, or its Example, was to hold."""
    kept = fits_label if form == "recordio" else fits_example
    wanted = [box_fractions(boxes, row, kept(boxes.objects(row))).astype(np.float32) for row in order.tolist()]
    counts = [len(objects) for objects in wanted]
    if not np.array_equal(np.diff(index.extra["object_starts"]), counts):
        return False
    classes, corners = np.split(np.concatenate(wanted), [1], axis=1)
    read = np.array(index.extra["boxes"])
    read[:, 2:] += read[:, :2]
    read /= np.repeat(np.stack([index.widths, index.heights] * 2, axis=1), counts, axis=0)
    # Fractions went through float32, pixels through float64: a thousandth of a pixel is no other box.
    return np.array_equal(index.extra["classes"], classes[:, 0]) and np.allclose(read, corners, rtol=0, atol=1e-6)
