"""MXNet's RecordIO (.rec), read and written: where each photo lies, its header, and the lists beside it.

    record   uint32 0xced7230a, uint32 (flag << 29 | length), payload, zeros up to a multiple of four bytes
    payload  image header: uint32 number of labels, float32 label, uint64 id, uint64 id2; then that many float32; then the photo
Where the number of labels is 0, the header's own label counts. Where a payload holds the magic word at a multiple of
four bytes, the writer cuts it there and leaves the word out: flag 1 is the first piece, 2 a middle one, 3 the last, 0 all.
Everything is little-endian. Lists lie beside the file, and a header's labels may be MXNet's detection label, the boxes of a photo:

    .idx    key <tab> first byte of the record
    .lst    id <tab> label [<tab> label ...] <tab> path below the folder that im2rec packed
    label   A, B, A-2 further numbers, then for each object: class, xmin, ymin, xmax, ymax, B-5 further numbers
A, the width of the label's header, is 2 or more; B, the width of an object, is 5 or more; coordinates are fractions of width and
height, classes count from 0.
Source: dmlc-core's recordio.h and MXNet 1.9.1's recordio.py (IRHeader, pack, MXRecordIO), ImageDetIter._parse_label and
tools/im2rec.py (--pack-label).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.text import abbreviate
from paceline.data.containers.reading import MAX_BYTES, Truncated, read_at

MAGIC = struct.pack("<I", 0xCED7230A)
LENGTH_BITS = 29
MAX_LENGTH = (1 << LENGTH_BITS) - 1
WHOLE, FIRST, MIDDLE, LAST = range(4)

PIECE = struct.Struct("<4sI")
IMAGE = struct.Struct("<IfQQ")
# Read of each record at once: both headers, and the labels of most.
_GLANCE = PIECE.size + IMAGE.size + 8 * 4


class Record(NamedTuple):
    """One photo of a RecordIO file."""

    offset: (
        int  # first byte of the photo in the file; of a record in several pieces, where its first piece's payload begins
    )
    length: int  # bytes of the photo
    id: int  # the header's number, for im2rec the first column of its list
    labels: np.ndarray  # (W,) float32, W at least 1
    parts: int  # pieces; 1 means that the photo's bytes lie together, so that they are read by offset and length alone
    start: int  # first byte of the record, which an .idx names
    extent: int  # bytes from there to the end of the last piece: `read_payload` reads that much


def read_recordio(file: BinaryIO, size: int, name: str) -> Iterator[Record]:
    """The records in the file's order, by one short read each; of records in several pieces all bytes are read.

    Raises Truncated after the last whole record of a file that is cut off, DataError where bytes are no record or a record
    holds no image header.
    """
    at = records = 0
    while at < size:
        head = read_at(file, at, _GLANCE)
        where, inside = f"{name}: record {records:,} (byte {at:,})", f"inside the record that starts at byte {at:,}"
        if len(head) < PIECE.size:
            raise Truncated(name, records, size, inside)
        flag, length = _piece(head, where, at, records)
        end = at + PIECE.size + length
        if flag == WHOLE:
            if end > size:
                raise Truncated(name, records, size, inside)
            payload, total, parts = head[PIECE.size : PIECE.size + length], length, 1
            count = _label_count(payload, length, where)
            missing = IMAGE.size + 4 * count - len(payload)
            if missing > 0:
                payload += read_at(file, at + len(head), missing)
        elif flag == FIRST:
            ends = _piece_ends(file, at, size, where)
            if ends is None:
                raise Truncated(name, records, size, inside)
            end, parts = ends[-1], len(ends)
            payload = _joined(read_at(file, at, end - at), where)
            total = len(payload)
            count = _label_count(payload, total, where)
        else:
            raise DataError(f"{where}: the first part of this record is missing. Copy the file again.")
        _, label, own_id, _ = IMAGE.unpack_from(payload)
        labels = np.frombuffer(payload, "<f4", count, IMAGE.size) if count else [label]
        yield Record(
            offset=at + PIECE.size + (IMAGE.size + 4 * count if parts == 1 else 0),
            length=total - IMAGE.size - 4 * count,
            id=own_id,
            labels=np.array(labels, np.float32),
            parts=parts,
            start=at,
            extent=end - at,
        )
        records += 1
        at = end + -end % 4
        if at > size:
            raise Truncated(name, records, size, "inside the zeros after the last record")


def read_payload(read: Callable[[int, int], bytes], start: int, extent: int, name: str) -> bytes:
    """The photo of a record in any number of pieces, by one call of `read` (offset, length -> that many bytes).

    Raises DataError where what lies there is not that record.
    """
    where = f"{name} (byte {start:,})"
    payload = _joined(read(start, extent), where)
    return payload[IMAGE.size + 4 * _label_count(payload, len(payload), where) :]


def _piece(head: bytes, where: str, at: int, records: int = 0) -> tuple[int, int]:
    """-> flag and length of the piece that begins with `head`."""
    magic, word = PIECE.unpack_from(head)
    if magic != MAGIC:
        if at == 0:
            raise DataError(f"{where}: not a RecordIO file, because its magic number is missing.")
        raise DataError(
            f"{where}: the RecordIO magic number is missing after {records:,} complete records. The file is damaged, or "
            "not a RecordIO file. Copy it again."
        )
    return word >> LENGTH_BITS, word & MAX_LENGTH


def _piece_ends(file: BinaryIO, at: int, size: int, where: str) -> list[int] | None:
    """-> where the payload of each piece of the record that begins at `at` ends; None where the file ends before."""
    ends: list[int] = []
    begin = at
    while True:
        head = read_at(file, begin, PIECE.size)
        if len(head) < PIECE.size:
            return None
        flag, length = _piece(head, where, begin)
        if (flag == FIRST) != (begin == at) or flag == WHOLE:
            raise DataError(f"{where}: its parts end at byte {begin:,} without a last part. Copy the file again.")
        ends.append(begin + PIECE.size + length)
        if ends[-1] > size:
            return None
        if ends[-1] - at > MAX_BYTES:
            raise DataError(f"{where}: over {MAX_BYTES:,} bytes in parts, too large for an image. Copy the file again.")
        if flag == LAST:
            return ends
        begin = ends[-1] + -ends[-1] % 4


def _joined(data: bytes, where: str) -> bytes:
    """The payload of one record, `data` from its first byte to the end of its last piece."""
    pieces: list[bytes] = []
    at, flag = 0, FIRST
    while flag in (FIRST, MIDDLE):
        begin = at + PIECE.size
        magic, word = PIECE.unpack_from(data, at) if begin <= len(data) else (b"", 0)
        flag, length = word >> LENGTH_BITS, word & MAX_LENGTH
        if magic != MAGIC or begin + length > len(data):
            raise DataError(f"{where}: not the record that was prepared. Prepare the data again.")
        pieces.append(data[begin : begin + length])
        at = begin + length + -length % 4
    return MAGIC.join(pieces)


def _label_count(payload: bytes, length: int, where: str) -> int:
    """-> labels that follow the image header. `payload` begins the payload, of `length` bytes."""
    if length < IMAGE.size:
        raise DataError(
            f"{where}: {length:,} bytes are too short for an image header ({IMAGE.size} bytes). It was not written by "
            "im2rec or mx.recordio.pack, so it has no label."
        )
    count = IMAGE.unpack_from(payload)[0]
    if IMAGE.size + 4 * count > length:
        raise DataError(f"{where}: the {count:,} labels of its header exceed its {length:,} bytes. The file is damaged.")
    return count


class RecordIOContent(NamedTuple):
    """The content of one record; several labels, or a single one in an array, follow the header as im2rec --pack-label has it."""

    id: int
    labels: float | Sequence[float] | np.ndarray
    photo: bytes


def write_recordio(out: BinaryIO, records: Iterable[RecordIOContent]) -> list[tuple[int, int]]:
    """Write the records as MXNet 1.9.1 does, byte for byte; -> (id, first byte) of each, for `format_idx`.

    Raises DataError where one is larger than the format allows.
    """
    at, placed = 0, []
    for record in records:
        data = record_bytes(record)
        out.write(data)
        placed.append((record.id, at))
        at += len(data)
    return placed


def record_bytes(record: RecordIOContent) -> bytes:
    """One record, its zeros at the end included."""
    if isinstance(record.labels, (int, float, np.integer, np.floating)):
        header = IMAGE.pack(0, record.labels, record.id, 0)
    else:
        labels = np.asarray(record.labels, "<f4")
        header = IMAGE.pack(len(labels), 0.0, record.id, 0) + labels.tobytes()
    payload = header + record.photo
    if len(payload) > MAX_LENGTH:
        size = len(record.photo)
        raise DataError(f"image {record.id} has {size:,} bytes; RecordIO supports at most {MAX_LENGTH:,} with the header.")
    pieces: list[bytes] = []
    begin = 0
    # The magic word at a multiple of four would look like the next record: it is left out, and its place begins a new piece.
    result = payload.find(MAGIC)
    while result >= 0:
        if result % 4 == 0:
            pieces.append(payload[begin:result])
            begin = result + 4
        result = payload.find(MAGIC, result + (4 if result % 4 == 0 else 1))
    pieces.append(payload[begin:])
    last = len(pieces) - 1
    flags = [WHOLE] if not last else [FIRST, *[MIDDLE] * (last - 1), LAST]
    text = b"".join(PIECE.pack(MAGIC, flag << LENGTH_BITS | len(piece)) + piece for flag, piece in zip(flags, pieces))
    return text + bytes(-len(text) % 4)


def format_idx(placed: Iterable[tuple[int, int]]) -> bytes:
    """The .idx of records whose (key, first byte) are `placed`."""
    return b"".join(b"%d\t%d\n" % pair for pair in placed)


def format_lst_line(number: int, labels: Sequence[float], path: bytes) -> bytes:
    """A line of the .lst, as im2rec --list writes it."""
    return b"%d\t%s\t%s\n" % (number, b"\t".join(b"%f" % label for label in labels), path)


class LstLine(NamedTuple):
    """A line of a .lst: the record's id, its labels, and the photo's path as it was written."""

    id: int
    labels: tuple[float, ...]
    path: bytes


def read_idx(text: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """-> (N,) int64 keys and (N,) int64 offsets, in the file's order. `text` is the whole file.

    Raises DataError naming the line that is none of an .idx, or whose key or offset was there before.
    """
    keys: list[int] = []
    offsets: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        words = line.split(b"\t")
        if len(words) != 2 or not all(word.strip().isdigit() and len(word) < 19 for word in words):
            raise DataError(f"{name}: line {number:,} is {abbreviate(repr(line))}; expected KEY <tab> OFFSET. Remove it.")
        keys.append(int(words[0]))
        offsets.append(int(words[1]))
    result = np.array(keys, np.int64), np.array(offsets, np.int64)
    for what, values in zip(("key", "offset"), result):
        unique, counts = np.unique(values, return_counts=True)
        if len(unique) < len(values):
            raise DataError(f"{name}: {what} {unique[counts.argmax()]:,} is listed more than once. Remove the .idx file.")
    return result


def check_idx(
    keys: np.ndarray, offsets: np.ndarray, starts: np.ndarray, ids: np.ndarray, size: int, name: str, rec: str
) -> None:
    """Raises DataError where an .idx is that of other data than the .rec beside it.

    keys, offsets  (N,) as `read_idx` has them
    starts, ids    (M,) of the records that the file `rec` of `size` bytes holds
    A key need not be the record's id; where the two are the same numbers in another order, they belong to other data.
    Raises Truncated where the .rec ends between two records, and the .idx goes on.
    """
    remedy = f"The .idx belongs to other data. Replace it with the right one, or remove it ({rec} can be read without it)."
    order, wanted = np.argsort(offsets, kind="stable"), np.argsort(starts, kind="stable")
    there = len(starts)
    if len(offsets) > there and offsets[order[there]] >= size and np.array_equal(offsets[order[:there]], starts[wanted]):
        raise Truncated(rec, there, size, f"at which {name} has another record")
    if len(offsets) != len(starts):
        raise DataError(f"{name}: it lists {len(offsets):,} records, but {rec} has {len(starts):,}. {remedy}")
    wrong = offsets[order] != starts[wanted]
    if wrong.any():
        first = int(wrong.argmax())
        key, begin = keys[order][first], offsets[order][first]
        raise DataError(f"{name}: record {key} should start at byte {begin:,}, but no record of {rec} does. {remedy}")
    keys, ids = keys[order], ids[wanted]
    moved = keys != ids
    if moved.any() and np.array_equal(np.sort(keys), np.sort(ids)):
        first = int(moved.argmax())
        at = offsets[order][first]
        raise DataError(f"{name}: it has record {keys[first]} at byte {at:,}, but {rec} has {ids[first]}. {remedy}")


def read_lst(text: bytes, name: str) -> Iterator[LstLine]:
    """The lines of a .lst in its order. Raises DataError naming a line that is none, or whose label is no finite number."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        words = [word.strip() for word in line.strip().split(b"\t")]
        try:
            if len(words) < 3:
                raise ValueError
            labels = tuple(float(word) for word in words[1:-1])
            if not all(map(math.isfinite, labels)):
                raise ValueError
            yield LstLine(int(words[0]), labels, words[-1])
        except ValueError:
            raise DataError(
                f"{name}: line {number:,}, {abbreviate(repr(line))}, is not ID <tab> LABEL <tab> PATH."
            ) from None


# A float32 holds every whole number up to here.
_MAX_CLASS = 1 << 24


class RecordIOObjects(NamedTuple):
    """Objects of one photo, M of them (0 too), in the label's order."""

    boxes: np.ndarray  # (M, 4) float32 xyxy, fractions of width and height
    classes: np.ndarray  # (M,) int64, from 0
    extra: np.ndarray  # (M, B-5) float32, the further numbers (difficult, for instance)


def parse_detection_label(labels: np.ndarray, where: str) -> RecordIOObjects:
    """`labels` (W,) float32 of one record, read as boxes. Raises DataError, beginning with `where`, where it is no such label.

    An object whose class is below 0 is padding, as MXNet's iterators write it, and is left out.
    """
    if len(labels) < 2 or not np.isfinite(labels).all():
        raise DataError(f"{where}: {len(labels)} values are not a detection label (header width, object width, objects).")
    if labels[0] != int(labels[0]) or labels[1] != int(labels[1]) or labels[0] < 2 or labels[1] < 5:
        raise DataError(
            f"{where}: its label starts with {labels[0]:g}, {labels[1]:g}. A detection label starts with the width of the "
            "header (at least 2) and of an object (at least 5)."
        )
    header, width = int(labels[0]), int(labels[1])
    count, left = divmod(len(labels) - header, width)
    if count < 0 or left:
        result = f"its label has {len(labels)} values"
        raise DataError(f"{where}: {result}; expected {header} for the header and {width} per object.")
    objects = labels[header:].reshape(count, width)
    objects = objects[objects[:, 0] >= 0]
    classes = objects[:, 0]
    wrong = classes[(classes != np.floor(classes)) | (classes > _MAX_CLASS)]
    if len(wrong):
        raise DataError(f"{where}: an object has class {wrong[0]:g}; expected an integer up to {_MAX_CLASS:,}.")
    return RecordIOObjects(objects[:, 1:5].astype(np.float32), classes.astype(np.int64), objects[:, 5:].astype(np.float32))
