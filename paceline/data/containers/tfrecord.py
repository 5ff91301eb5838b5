"""TFRecord: where each record lies, with its checksums; and the tf.train.Example in it, read and written.

    record   uint64 length, uint32 checksum of those 8 bytes, the bytes, uint32 checksum of them; little-endian
    field    a number: field number and wire type; then a number, 8 bytes, 4 bytes, or a number of bytes and those bytes
A checksum is CRC-32C, turned right by 15 bits and increased by a constant ("masked").
An Example is a protocol buffer, walked here without its definition: what is wanted is where the photo lies, which a parsed message
does not have.

    Example   1 Features   1 repeated: entry of a map, 1 key (text), 2 Feature
    Feature   one of 1 BytesList (1 repeated bytes), 2 FloatList (1 repeated float), 3 Int64List (1 repeated varint)
Numbers may be packed or not; of two entries with one key the last counts; unknown fields are passed over.
Two layouts are read, a photo with its class (ImageNet) and one with its objects (COCO):
    both      image/encoded, image/filename, image/height, image/width
    classes   image/class/label (the original script counts from 1), image/class/synset, image/class/text
    objects   image/source_id, image/object/bbox/{xmin,ymin,xmax,ymax} (fractions), image/object/class/label (the data's own
              ids), image/object/class/text, image/object/is_crowd, image/object/area (px2), image/object/mask (a PNG for each object)
Source: TensorFlow, core/lib/io/record_writer.h, core/lib/hash/crc32c.h and core/example/example.proto, feature.proto; protobuf's
encoding page; tensorflow/models, research/slim's build_imagenet_data.py; tensorflow/tpu, models' create_coco_tf_record.py.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.text import escape_line
from paceline.data.containers.reading import MAX_BYTES, ImageBoxes, Truncated, read_at, refuse_compressed

_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
_HEADER_BYTES = _LENGTH.size + _CHECKSUM.size
_MASK_DELTA = 0xA282EAD8
# Wire types of protocol buffers.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class RecordSpan(NamedTuple):
    """One record: its first byte in the file, how many there are, and the bytes themselves."""

    offset: int
    length: int
    data: bytes


def masked_crc32c(data: bytes) -> int:
    """The checksum that TFRecord stores for `data`."""
    import google_crc32c  # here: only those who have TFRecords load it

    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def tfrecord_spans(file: BinaryIO, size: int, name: str) -> Iterator[RecordSpan]:
    """The records in the file's order; all bytes are read once. An empty file has none.

    Raises Truncated after the last whole record of a file that is cut off, DataError where a checksum is wrong, or the file
    was compressed as a whole.
    """
    at = records = 0
    while at < size:
        inside, damaged = f"inside the record that starts at byte {at:,}", "Copy or download it again."
        head = read_at(file, at, _HEADER_BYTES)
        if len(head) < _HEADER_BYTES:
            if at == 0:
                refuse_compressed(head, name)
            raise Truncated(name, records, size, inside)
        length = _LENGTH.unpack_from(head)[0]
        if masked_crc32c(head[: _LENGTH.size]) != _CHECKSUM.unpack_from(head, _LENGTH.size)[0]:
            if at == 0:
                refuse_compressed(head, name)
                raise DataError(f"{name}: not a TFRecord file: its first 12 bytes are not a length with a checksum.")
            raise DataError(
                f"{name}: checksum mismatch (CRC-32C) for the length of record {records:,}, at byte {at:,}. The rest of "
                f"the file is damaged. {damaged}"
            )
        begin = at + _HEADER_BYTES
        end = begin + length + _CHECKSUM.size
        if end > size:
            raise Truncated(name, records, size, inside)
        if length > MAX_BYTES:
            result = f"record {records:,}, at byte {at:,}, has {length:,} bytes"
            raise DataError(f"{name}: {result}; at most {MAX_BYTES:,} bytes are supported.")
        data, tail = read_at(file, begin, length), read_at(file, begin + length, _CHECKSUM.size)
        if len(data) + len(tail) < end - begin:  # the file is shorter than the given size
            raise Truncated(name, records, begin + len(data), inside)
        if masked_crc32c(data) != _CHECKSUM.unpack(tail)[0]:
            raise DataError(
                f"{name}: checksum mismatch (CRC-32C) for the {length:,} bytes of record {records:,}, at byte {at:,}. The "
                f"record is damaged. {damaged}"
            )
        yield RecordSpan(begin, length, data)
        records += 1
        at = end


def write_tfrecord(out: BinaryIO, records: Iterable[bytes]) -> int:
    """Write the records one after the other; -> how many there were."""
    count = 0
    for data in records:
        length = _LENGTH.pack(len(data))
        head, tail = length + _CHECKSUM.pack(masked_crc32c(length)), _CHECKSUM.pack(masked_crc32c(data))
        out.write(head + data + tail)
        count += 1
    return count


class MalformedMessage(ValueError):
    """What is wrong with a protocol buffer's message, and where."""


def read_fields(data: bytes, begin: int, end: int, what: str) -> Iterator[tuple[int, int, int, int]]:
    """-> (field number, wire type, first byte of the value, its end) of each field of the message in data[begin:end].

    Raises Malformed.
    """
    at = begin
    while at < end:
        tag, value = read_varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if wire == BYTES:
            length, value = read_varint(data, value, end)
            stop = value + length
        elif wire == VARINT:
            stop = read_varint(data, value, end)[1]
        elif wire in (FIXED32, FIXED64):
            stop = value + (4 if wire == FIXED32 else 8)
        else:
            raise MalformedMessage(f"wire type {wire} in {what} at byte {at:,}")
        if number == 0:
            raise MalformedMessage(f"field 0 at byte {at:,}")
        if stop > end:
            raise MalformedMessage(f"field {number} of {what} at byte {at:,} extends beyond its end")
        yield number, wire, value, stop
        at = stop


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """-> the number at `at`, and what comes after it. Raises Malformed."""
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift >= 70:
            raise MalformedMessage(f"a number of more than 10 bytes at byte {at:,}")
    raise MalformedMessage(f"a truncated number at byte {end:,}")


_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
PHOTO, LABEL = "image/encoded", "image/class/label"
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
# The values of one feature to write: all of one type. An empty list is written without a type.
Values = Sequence[bytes] | Sequence[int] | Sequence[float]


class ByteSpan(NamedTuple):
    """Bytes of a record: where they begin in it, and how many there are."""

    start: int
    length: int


class Feature(NamedTuple):
    """The values of one feature; of the three, two are empty."""

    ranges: tuple[ByteSpan, ...]  # of each run of bytes
    floats: np.ndarray  # (n,) float32
    ints: np.ndarray  # (n,) int64

    def texts(self, data: bytes) -> list[bytes]:
        """The runs of bytes themselves, out of the record `data`."""
        return [data[start : start + length] for start, length in self.ranges]


_NO_FLOATS, _NO_INTS = np.zeros(0, np.float32), np.zeros(0, np.int64)
NOTHING = Feature((), _NO_FLOATS, _NO_INTS)


class ImageExample(NamedTuple):
    """A photo with its class or its objects; what is not given is empty."""

    photo: ByteSpan  # where it lies in the record
    filename: str
    label: int = -1  # as it is stored: from 1 where the original script wrote it; -1 where there are boxes
    synset: str = ""  # WordNet id of the class
    source_id: str = ""  # the photo's id in the data's own files
    boxes: ImageBoxes | None = None  # its height and width are 0 where they are not given


def parse_example(data: bytes, where: str) -> dict[str, Feature]:
    """Name -> feature, of one record `data`. Raises DataError, beginning with `where`, where it is no Example."""
    features: dict[str, Feature] = {}
    try:
        for number, begin, end in _messages(data, 0, len(data), "Example"):
            if number == 1:
                for kind, entry, entry_end in _messages(data, begin, end, "Features"):
                    if kind == 1:
                        key, feature = _entry(data, entry, entry_end)
                        features[key] = feature
    except MalformedMessage as error:
        raise DataError(f"{where}: not a tf.train.Example ({error}). Only TFRecords of Examples are supported.") from None
    return features


def _entry(data: bytes, begin: int, end: int) -> tuple[str, Feature]:
    key, feature = "", NOTHING
    for number, start, stop in _messages(data, begin, end, "entry"):
        if number == 1:
            try:
                key = data[start:stop].decode()
            except UnicodeDecodeError:
                raise MalformedMessage(f"a feature name at byte {start:,} is not UTF-8") from None
        elif number == 2:
            feature = _feature(data, start, stop)
    return key, feature


def _feature(data: bytes, begin: int, end: int) -> Feature:
    ranges: list[ByteSpan] = []
    floats: list[np.ndarray] = []
    ints: list[int] = []
    last = 0
    for kind, start, stop in _messages(data, begin, end, "Feature"):
        if kind != last:  # one of three: a later one takes the place of the earlier
            ranges, floats, ints, last = [], [], [], kind
        if kind == _BYTES_LIST:
            ranges += [ByteSpan(a, b - a) for number, a, b in _messages(data, start, stop, "BytesList") if number == 1]
        elif kind == _FLOAT_LIST:
            for number, wire, a, b in read_fields(data, start, stop, "FloatList"):
                if number == 1 and wire in (BYTES, FIXED32):
                    if (b - a) % 4:
                        raise MalformedMessage(f"{b - a} bytes of 4-byte numbers at byte {a:,}")
                    floats.append(np.frombuffer(data, "<f4", (b - a) // 4, a))
        elif kind == _INT64_LIST:
            for number, wire, at, b in read_fields(data, start, stop, "Int64List"):
                while number == 1 and wire in (BYTES, VARINT) and at < b:
                    value, at = read_varint(data, at, b)
                    ints.append(value - (1 << 64) if value >> 63 else value)
    return Feature(
        tuple(ranges),
        np.concatenate(floats).astype(np.float32) if floats else _NO_FLOATS,
        np.array(ints, np.int64) if ints else _NO_INTS,
    )


def _messages(data: bytes, begin: int, end: int, what: str) -> Iterator[tuple[int, int, int]]:
    """-> (field number, first byte, end) of the fields that have a length."""
    return ((number, a, b) for number, wire, a, b in read_fields(data, begin, end, what) if wire == BYTES)


def imagenet_example(features: dict[str, Feature], data: bytes, where: str) -> ImageExample:
    """The record `data` with its `features`, as a photo with one class. Raises DataError naming the feature that is missing."""
    label = features.get(LABEL, NOTHING).ints
    if len(label) != 1:
        raise _unlike(features, where, LABEL, "one integer")
    synset, filename = (_text(features, data, name) for name in ("image/class/synset", "image/filename"))
    return ImageExample(_photo(features, where), filename, int(label[0]), synset)


def coco_example(features: dict[str, Feature], data: bytes, where: str) -> ImageExample:
    """The record `data` with its `features`, as a photo with objects. Raises DataError naming the feature that does not fit."""

    def of_objects(name: str) -> Feature:
        return features.get(f"image/object/{name}", NOTHING)

    classes = of_objects("class/label").ints
    names = of_objects("class/text").texts(data)
    if names and not len(classes):
        raise DataError(
            f"{where}: image/object/class/label is missing; only image/object/class/text is present. Add the class indices "
            "as int64 from 1, and pass the class names with --class-names-file FILE."
        )
    corners = [of_objects(f"bbox/{corner}").floats for corner in _CORNERS]
    for corner, values in zip(_CORNERS, corners):
        if len(values) != len(classes):
            wanted = f"{len(classes)} values, one per object"
            raise _unlike(features, where, f"image/object/bbox/{corner}", wanted)
    is_crowd, areas, masks = of_objects("is_crowd").ints, of_objects("area").floats, of_objects("mask").texts(data)
    for name, values in (("is_crowd", is_crowd), ("area", areas), ("mask", masks)):
        if len(values) not in (0, len(classes)):
            raise _unlike(features, where, f"image/object/{name}", f"{len(classes)} values, one per object")
    height, width = (features.get(f"image/{side}", NOTHING).ints for side in ("height", "width"))
    boxes = ImageBoxes(
        int(height[0]) if len(height) else 0,
        int(width[0]) if len(width) else 0,
        np.stack(corners, 1),
        classes,
        is_crowd.astype(bool) if len(is_crowd) else np.zeros(len(classes), bool),
        areas if len(areas) or not len(classes) else None,
        masks if len(masks) or (not len(classes) and "image/object/mask" in features) else None,
        names if len(names) == len(classes) else (),
    )
    source_id, filename = (_text(features, data, name) for name in ("image/source_id", "image/filename"))
    return ImageExample(_photo(features, where), filename, source_id=source_id, boxes=boxes)


def _photo(features: dict[str, Feature], where: str) -> ByteSpan:
    ranges = features.get(PHOTO, NOTHING).ranges
    if len(ranges) != 1:
        raise _unlike(features, where, PHOTO, "the bytes of one image")
    return ranges[0]


def _text(features: dict[str, Feature], data: bytes, name: str) -> str:
    texts = features.get(name, NOTHING).texts(data)
    return os.fsdecode(texts[0]) if texts else ""


def _unlike(features: dict[str, Feature], where: str, name: str, wanted: str) -> DataError:
    if name in features:
        result = f"it has {max(len(values) for values in features[name])}"
    else:
        result = "it is missing; the features are " + escape_line(", ".join(sorted(features)[:20])[:500] or "none")
    return DataError(f"{where}: {name} must have {wanted}: {result}. Check that the reference scripts wrote this file.")


def example_bytes(features: Mapping[str, Values]) -> bytes:
    """An Example with these features, in order of their names."""
    entries = (_run(1, _run(1, name.encode()) + _run(2, _feature_bytes(features[name]))) for name in sorted(features))
    return _run(1, b"".join(entries))


def _feature_bytes(values: Values) -> bytes:
    if not values:
        return b""
    if isinstance(values[0], bytes):
        return _run(_BYTES_LIST, b"".join(_run(1, value) for value in values if isinstance(value, bytes)))
    if isinstance(values[0], float):
        return _run(_FLOAT_LIST, _run(1, struct.pack(f"<{len(values)}f", *values)))
    return _run(_INT64_LIST, _run(1, b"".join(_varint_bytes(value) for value in values if isinstance(value, int))))


def _run(number: int, data: bytes) -> bytes:
    """A field that has a length."""
    return _varint_bytes(number << 3 | BYTES) + _varint_bytes(len(data)) + data


def _varint_bytes(value: int) -> bytes:
    """Seven bits a byte, the lowest first; below 0 as 64 bits."""
    value &= 0xFFFFFFFFFFFFFFFF
    text = bytearray()
    while value > 0x7F:
        text.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*text, value))
