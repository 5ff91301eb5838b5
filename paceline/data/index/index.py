"""The index: memory-mapped arrays over bytes that lie where the user has them.

Letters: N records of one split, F files that hold them (record i is file i where each image is a file of its own).
    files    (N,) int32   which file            labels   (N,) int32  class, 0..K-1
    offsets  (N,) int64   first byte in it      heights  (N,) int32  pixels as stored, EXIF orientation ignored
    lengths  (N,) int64   bytes                 widths   (N,) int32
    name_bytes   (total,) uint8  all F file names (relative to the root, or absolute), without separators
    name_starts  (F+1,) int64    file f is name_bytes[name_starts[f]:name_starts[f+1]]
    file_sizes   (F,) int64      bytes; only where records are no files of their own, whose sizes are their lengths
Of some containers also:
    record_bytes (total,) uint8  all N record names in them, record_starts (N+1,) int64 as for files
    stored_lengths (N,) int64    bytes of the record as it lies in the file; -1: as it is read
The kind of a record, and so what its offset means, stands in the manifest; data/index/records.py reads it.
Any further array of the split is listed in the manifest too and is in `Index.extra` (flags, the bits of data/prepare/verify_image.py,
digests, mtimes; for what varies in length: one array of rows and one of N+1 starts). Each array is a plain .npy file,
FOLDER/index/<hash>/SPLIT.NAME.npy; <hash> is over all of them, so two writers of the same data write the same files.

A process holds no Python object for each image: lists of them are what makes a loader's memory grow (pytorch#13246).
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.safe_read import require_plain
from paceline.config.resnet import Exif
from paceline.data.index.manifest import FILES, Manifest, repeat_command
from paceline.data.index.records import RecordLocations, RecordReader, open_records
from paceline.data.transforms.exif import UPRIGHT, orientations, swaps_sides

RECORD_ARRAYS = {
    "files": np.int32,
    "offsets": np.int64,
    "lengths": np.int64,
    "labels": np.int32,
    "heights": np.int32,
    "widths": np.int32,
}
NAME_ARRAYS = {"name_bytes": np.uint8, "name_starts": np.int64}
PLACE_ARRAYS = ("files", "offsets", "lengths", *NAME_ARRAYS)
SIZE_ARRAY = "file_sizes"
OPTIONAL_PLACES = ("record_bytes", "record_starts", "stored_lengths")
INDEX_FOLDER = "index"
# Where a photo's bytes changed and nobody meant it. prepare verifies again what has another size or time.
CHANGED = "Restore the file. If the change is intended, touch the file (its modification time counts), then:"


@dataclass(frozen=True)
class Index:
    """One split, opened. Arrays as in the module's docstring; all methods may be called from any number of threads."""

    split: str
    records: RecordReader = field(repr=False, compare=False)  # the bytes
    labels: np.ndarray
    heights: np.ndarray
    widths: np.ndarray
    extra: dict[str, np.ndarray]
    exif: Exif = "ignore"  # "apply": heights and widths are those of the photos as they are shown

    @classmethod
    def open(cls, folder: Path, split: str) -> Index:
        """Map the arrays of one split of the data set whose manifest.json lies in `folder`.

        Raises DataError as `open_split`.
        """
        return open_split(Manifest.load(folder), split)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def root(self) -> Path:
        """The folder that relative names begin in."""
        return self.records.places.root

    @property
    def lengths(self) -> np.ndarray:
        """(N,) int64, bytes of each record."""
        return self.records.places.lengths

    def name(self, i: int) -> str:
        """Name of record i in messages."""
        return self.records.name(i)

    def relative_name(self, i: int) -> bytes:
        """Name of record i for lists: its file relative to the root, or absolute; in a container, as `name` has it."""
        return self.records.relative_name(i)

    def path(self, i: int) -> str:
        """Record i as a path: its file; in a container, `relative_name` below the data set's root."""
        return os.path.join(self.root, os.fsdecode(self.relative_name(i)))

    def read(self, i: int) -> bytes:
        """The bytes of record i. Raises DataError naming it where they cannot be read, or are not those of the index."""
        return self.records.read(i)

    def orientation(self, i: int) -> int:
        """The turn that makes record i, decoded, the picture whose size is in the index: 1 (none) to 8."""
        return int(self.orientations[i]) if self.exif == "apply" else UPRIGHT

    @property
    def orientations(self) -> np.ndarray:
        """(N,) uint8, 1 to 8, as the cameras noted them."""
        flags = self.extra.get("flags")
        return np.full(len(self), UPRIGHT, np.uint8) if flags is None else orientations(flags)

    def as_shown(self) -> Index:
        """The same records with the sizes of the photos as they are shown.

        Raises DataError where prepare, of an older version, noted that photos are rotated and not how.
        """
        result = self.orientations
        if not result.all():
            raise DataError(
                f"{self.name(int(result.argmin()))}: has an EXIF rotation, but the dataset was prepared without EXIF. "
                f"{self.records.places.remedy}"
            )
        if self.exif == "apply" or (result == UPRIGHT).all():
            return replace(self, exif="apply")
        side = swaps_sides(result)
        return replace(
            self,
            exif="apply",
            heights=np.where(side, self.widths, self.heights),
            widths=np.where(side, self.heights, self.widths),
        )


def open_split(manifest: Manifest, split: str) -> Index:
    """`Index.open` for a manifest that is loaded already.

    Raises DataError where the manifest has no such split, an array is missing, torn or of another shape, or the records
    are of a kind that is not known here or cannot be opened.
    """
    arrays = _required_arrays(manifest, split)
    if manifest.relabel is not None and manifest.kind == "class-folder":
        arrays["labels"] = np.array(manifest.relabel, np.int32)[arrays["labels"]]
    return make_index(
        arrays, manifest.root_path, split, kind=manifest.splits[split].records, remedy=suggested_command(manifest)
    )


def locate_records(manifest: Manifest, split: str) -> RecordLocations:
    """Where a split's records lie, without opening what holds them. Raises DataError as `open_split` of the arrays."""
    arrays, kind = _required_arrays(manifest, split), manifest.splits[split].records
    return _places(arrays, manifest.root_path, kind, suggested_command(manifest))


def make_index(arrays: Mapping[str, np.ndarray], root: Path, split: str, *, kind: str = FILES, remedy: str = "") -> Index:
    """The index of these arrays. Raises DataError where the records' kind is not known, or they cannot be opened."""
    known = {*RECORD_ARRAYS, *NAME_ARRAYS, SIZE_ARRAY, *OPTIONAL_PLACES}
    return Index(
        split=split,
        records=open_records(kind, _places(arrays, root, kind, remedy)),
        labels=arrays["labels"],
        heights=arrays["heights"],
        widths=arrays["widths"],
        extra={name: array for name, array in arrays.items() if name not in known},
    )


def _places(arrays: Mapping[str, np.ndarray], root: Path, kind: str, remedy: str) -> RecordLocations:
    sizes = arrays["lengths" if kind == FILES else SIZE_ARRAY]
    named = {name: arrays[name] for name in (*PLACE_ARRAYS, *OPTIONAL_PLACES) if name in arrays}
    digests = arrays.get("digests")
    if digests is not None and (digests.dtype != np.uint64 or digests.shape != arrays["lengths"].shape):
        raise DataError(f"{root}: its index has checksums {digests.dtype} {digests.shape}, not one per image. {remedy}")
    return RecordLocations(root=root, file_sizes=sizes, remedy=remedy, digests=digests, changed=CHANGED, **named)


def _required_arrays(manifest: Manifest, split: str) -> dict[str, np.ndarray]:
    if split not in manifest.splits:
        known = ", ".join(manifest.splits)
        raise DataError(f"{manifest.folder}: split {split!r} not found in this dataset. It has {known}.")
    arrays = _arrays(manifest, split)
    needed = [*RECORD_ARRAYS, *NAME_ARRAYS, *(() if manifest.splits[split].records == FILES else (SIZE_ARRAY,))]
    if lacking := [name for name in needed if name not in arrays]:
        raise DataError(f"{manifest.folder}: its index has no {lacking[0]!r} of {split}. {suggested_command(manifest)}")
    own_files, boxes = manifest.splits[split].records == FILES, manifest.kind == "boxes"
    classes = len(manifest.classes if manifest.relabel is None else manifest.relabel)
    if wrong := find_contradiction(arrays, classes=classes, own_files=own_files, boxes=boxes):
        raise DataError(f"{manifest.folder}: its index of {split} is invalid: {wrong}. {suggested_command(manifest)}")
    return arrays


def file_per_record_arrays(
    names: Sequence[bytes],
    *,
    lengths: np.ndarray,
    labels: np.ndarray,
    heights: np.ndarray,
    widths: np.ndarray,
    extra: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """The arrays of a split whose every record is a file of its own: record i is `names[i]`, offset 0. N may be 0."""
    number = len(names)
    return {
        "files": np.arange(number, dtype=np.int32),
        "offsets": np.zeros(number, dtype=np.int64),
        "lengths": lengths.astype(np.int64),
        "labels": labels.astype(np.int32),
        "heights": heights.astype(np.int32),
        "widths": widths.astype(np.int32),
        **pack_names(names),
        **extra,
    }


def pack_names(names: Sequence[bytes]) -> dict[str, np.ndarray]:
    """File names in one blob: `name_bytes` and `name_starts`."""
    starts = np.zeros(len(names) + 1, dtype=np.int64)
    np.cumsum([len(name) for name in names], out=starts[1:])
    return {"name_bytes": np.frombuffer(b"".join(names), dtype=np.uint8), "name_starts": starts}


def describe_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    """A split's arrays for its manifest: name -> [dtype, *shape]."""
    return {name: [str(array.dtype), *array.shape] for name, array in arrays.items()}


def write_index(folder: Path, splits: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    """Write every split's arrays under `folder`/index; they appear whole or not at all. Returns their folder, relative.

    Nothing refers to them until a manifest with this folder (and `describe_arrays` of each split) is saved. Raises OSError.
    """
    final = folder / INDEX_FOLDER / _digest(splits)
    part = final.with_name(f".{final.name}.{secrets.token_hex(4)}.part")
    part.mkdir(parents=True)
    try:
        for split, arrays in splits.items():
            for name, array in arrays.items():
                with open(part / f"{split}.{name}.npy", "wb") as file:
                    np.save(file, array, allow_pickle=False)
                    file.flush()
                    os.fsync(file.fileno())
        try:
            os.rename(part, final)
        except OSError:
            if final.is_symlink() or not final.is_dir():
                raise
            # The same content is there already (a second writer, or a damaged copy): put each file over its twin.
            for file in part.iterdir():
                os.replace(file, final / file.name)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    os.utime(final)
    return f"{INDEX_FOLDER}/{final.name}"


def find_index_damage(manifest: Manifest) -> str | None:
    """None where the index's arrays are the written ones, by the hash that names their folder; else one line.

    Reads all of them, about 100 MB for ImageNet: once, when the data set is opened. Raises DataError as open_split does.
    """
    splits = {name: _arrays(manifest, name) for name in manifest.splits}
    folder = manifest.folder / manifest.index
    return None if _digest(splits) == folder.name else f"{folder}: checksum mismatch of its arrays"


def _digest(splits: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    """The name of an index's folder: a hash of the names, types, shapes and numbers of all its arrays."""
    digest = hashlib.sha256()
    for split, arrays in sorted(splits.items()):
        for name, array in sorted(arrays.items()):
            digest.update(f"{split}.{name} {array.dtype} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def suggested_command(manifest: Manifest) -> str:
    """The next step after damage to the index, with which each message of one ends."""
    if manifest.in_containers and manifest.again is None:
        return f"Write its containers again, and the manifest.json in {manifest.folder}."
    return f"Prepare the data again:  {repeat_command(manifest)}"


def _arrays(manifest: Manifest, split: str) -> dict[str, np.ndarray]:
    result: dict[str, np.ndarray] = {}
    stored = split if manifest.fold is None else "train"
    for name, expected in manifest.splits[split].arrays.items():
        path = manifest.folder / manifest.index / f"{stored}.{name}.npy"
        try:
            require_plain(path)
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            if not isinstance(array, np.ndarray):  # an archive of arrays
                raise ValueError("expected one array, got several")
        except Exception as error:  # numpy's reader of headers raises whatever Python's parser does
            raise DataError(f"{path}: missing or damaged ({error}). {suggested_command(manifest)}") from None
        if describe_arrays({name: array})[name] != expected:
            holds = f"{array.dtype} {array.shape}"
            raise DataError(f"{path}: has {holds}, but the manifest expects {expected}. {suggested_command(manifest)}")
        # A plain view of the map: indexing one element of np.memmap itself is several times slower.
        result[name] = array.view(np.ndarray)
    return result


Arrays = Mapping[str, np.ndarray]
# One entry of each record; arrays that are not there are not checked.
OF_RECORDS = (*RECORD_ARRAYS, "stored_lengths", "flags", "digests", "image_ids")
OF_OBJECTS = ("classes", "crowd", "areas", "annotation_ids", "usable")
# Starts of rows -> the things that they are starts of, and the array that the rows are cut from.
STARTS = {
    "name_starts": ("files", "name_bytes"),
    "record_starts": ("records", "record_bytes"),
    "object_starts": ("records", "classes"),
    "polygon_starts": ("polygons", "polygon_points"),
    "object_polygons": ("objects", ""),
    "object_rles": ("objects", "rle_counts"),
}
FINITE = ("boxes", "areas", "polygon_points")


def find_contradiction(arrays: Arrays, *, classes: int, own_files: bool, boxes: bool) -> str:
    """Why the arrays of one split cannot be right, in words; "" where they can.

    classes    K
    own_files  whether each record is a file of its own
    boxes      whether objects have the classes, 1..K, and not records, 0..K-1
    """
    records, files = len(arrays["lengths"]), len(arrays["lengths" if own_files else "file_sizes"])
    objects, polygons = len(arrays.get("classes", ())), max(0, len(arrays.get("polygon_starts", ())) - 1)
    counts = {"records": records, "files": files, "objects": objects, "polygons": polygons}
    rows = {**dict.fromkeys(OF_RECORDS, records), **dict.fromkeys(OF_OBJECTS, objects)}
    for name, array in arrays.items():
        if name in rows and array.shape != (rows[name],):
            return f"{name} has shape {array.shape}, expected {rows[name]:,}"
        if name in (*rows, *STARTS) and name not in FINITE and array.dtype.kind not in "iub":
            return f"{name} is not an array of integers"
        if name in FINITE and (array.dtype.kind != "f" or not np.isfinite(array).all()):
            return f"{name} has values that are not finite numbers"
    if "boxes" in arrays and arrays["boxes"].shape != (objects, 4):
        return f"boxes has shape {arrays['boxes'].shape}, expected {objects:,} rows of 4"
    for name, (of, cut) in STARTS.items():
        if name in arrays:
            end = polygons if not cut else len(arrays[cut]) if cut in arrays else 0
            starts, pieces = arrays[name], counts[of]
            fits = starts.shape == (pieces + 1,) and int(starts[0]) == 0 and int(starts[-1]) == end
            if not (fits and bool((starts[1:] >= starts[:-1]).all())):
                return f"{name} does not divide {end:,} into {pieces:,} parts"
    limits: list[tuple[str, int, int | None]] = [("files", 0, files), ("stored_lengths", -1, None)]
    limits += [(name, 0, None) for name in ("offsets", "lengths", "heights", "widths", "file_sizes")]
    limits += [("classes", 1, classes + 1)] if boxes else [("labels", 0, classes)]
    for name, least, beyond in limits:
        if name in arrays and len(array := arrays[name]):
            low, high = int(array.min()), int(array.max())
            if low < least or (beyond is not None and high >= beyond):
                what = "label" if name in ("labels", "classes") else name
                most = "" if beyond is None else f" to {beyond - 1:,}"
                return f"{what} {low if low < least else high:,} is out of range; expected {least:,}{most}"
    return ""
