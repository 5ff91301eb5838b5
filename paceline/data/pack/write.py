"""One file of a pack: its records in order, under their names, whole or not at all.

WebDataset   NAME.jpg with NAME.cls (the class's number), or with NAME.json (the objects)
TFRecord     an Example each (data/pack/objects.py)
RecordIO     FILE.rec with FILE.idx and FILE.lst; the class's number, or a detection label, in each record's header
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paceline._utils.atomic_write import atomic_writer
from paceline.data.containers.recordio import RecordIOContent, format_idx, format_lst_line, write_recordio
from paceline.data.containers.tar import write_tar
from paceline.data.containers.tfrecord import write_tfrecord
from paceline.data.pack.encode_image import EncodedImage, reencode_record
from paceline.data.pack.objects import detection_label, json_field, make_example
from paceline.data.pack.plan import PackRequest, PackSplit, ShardPlan
from paceline.data.workers.crew import WorkerCrew


class PackedImage(NamedTuple):
    """One record to be packed."""

    place: int  # in the split's packed order
    row: int  # in the index
    encoded: EncodedImage


class EncoderPool:
    """Workers that read photos and encode them, a bounded number ahead of the writer.

    sources   of all shards
    progress  called with the number of records written so far, after each
    """

    def __init__(
        self, workers: int, sources: Sequence[PackSplit], request: PackRequest, progress: Callable[[int], None]
    ) -> None:
        self._sources, self._ahead, self._progress, self._written = sources, 2 * workers, progress, 0
        # What is only copied is soon read; who waits for a store needs no core.
        anew = any(source.anew.any() for source in sources)
        portable = all(source.index.records.portable for source in sources)
        self._crew = WorkerCrew(partial(_photo, sources, request), workers, processes=anew and portable)

    def photos(self, source: PackSplit, first: int, last: int) -> Iterator[PackedImage]:
        """The records at these places, in order. Raises DataError where one cannot be read, or changed."""
        number = next(number for number, one in enumerate(self._sources) if one is source)
        for photo in self._crew.map_ordered(((number, index) for index in range(first, last)), ahead=self._ahead):
            yield photo
            self._written += 1
            self._progress(self._written)

    def close(self) -> None:
        """End the workers."""
        self._crew.close()


def _photo(sources: Sequence[PackSplit], request: PackRequest, number: int, position: int) -> PackedImage:
    source = sources[number]
    row, index = int(source.order[position]), source.index
    if source.anew[row]:
        return PackedImage(position, row, reencode_record(index, row, request.short, request.jpeg_quality))
    return PackedImage(position, row, EncodedImage(index.read(row), int(index.heights[row]), int(index.widths[row])))


def write_shard(
    out: Path, shard: ShardPlan, source: PackSplit, request: PackRequest, pool: EncoderPool
) -> dict[str, dict[str, Any]]:
    """-> file name -> bytes and SHA-256 of what is in place now.

    Raises DataError for a record, OSError for the folder; then none of the new files is there.
    """
    photos = pool.photos(source, shard.first, shard.last)
    if request.to == "webdataset":
        return {shard.file: _write_summed(out / shard.file, lambda file: write_tar(file, _samples(photos, source)))}
    if request.to == "tfrecord":
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
