"""What a pack was requested to be, and which record goes into which file: planned before anything is written, so that files can be
written, recognized again and checked one by one. Also the name of each photo, and its bytes where it is written anew (smaller, or
of another JPEG quality).

Letters: N records of one split, in the order of packing
Name: CLASS/photo.jpg, so that unpacking or indexing it gives the classes as folders. WebDataset's key ends at the first dot of a
file's name, so other dots become "_"; a .lst has a name a line between tabs. A photo that is written anew is a JPEG and named
so. Of names that are then the same, the later ones get their record's number.

Bytes: decoded as training decodes it (data/transforms/image_io.py: 16 bits a value to 8, palettes and CMYK to RGB; gray stays
gray), resized by Lanczos' filter with antialiasing to torchvision's sizes, and written as a baseline JPEG with Pillow's usual
subsampling. The pixels stay in the stored frame and keep their EXIF orientation, so `--input.exif` means the same before and after.
Everything else that came with the photo (thumbnail, place, color profile) is left out.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from paceline._utils.errors import DataError, PacelineError
from paceline._utils.hashing import json_sha256
from paceline._utils.names import IMAGE_SUFFIXES
from paceline._utils.text import abbreviate
from paceline.data.index.box_split import BoxSplit, open_boxes
from paceline.data.index.index import Index, open_split
from paceline.data.index.manifest import FILES, Manifest
from paceline.data.loader.sampler import permutation
from paceline.data.prepare.verify_image import GRAY_MODES
from paceline.data.transforms.exif import UPRIGHT, read_orientation
from paceline.data.transforms.image_io import open_image, to_rgb

Form = Literal["webdataset", "recordio", "tfrecord"]
Order = Literal["kept", "shuffled"]

FORMS: tuple[Form, ...] = ("webdataset", "recordio", "tfrecord")
USUAL_QUALITY = 90  # of photos that are made smaller and no quality was named
USUAL_SHARD = 1 << 30
# Smaller photos than this are of no use to any network here.
MIN_SHORT, MAX_SHORT = 16, 1 << 16

SUFFIX = {"webdataset": ".tar", "recordio": ".rec", "tfrecord": ".tfrecord"}
# A tar's header, and what its label's file takes; RecordIO's headers with the lines beside it; an Example's names.
_BESIDE = {"webdataset": 2048, "recordio": 128, "tfrecord": 512}
# Bytes of an object's text, with polygons of usual length; of its five numbers; of its features with a small PNG as mask.
_OBJECT = {"webdataset": 500, "recordio": 20, "tfrecord": 300}
# The split "val" of class folders in file names of TensorFlow's model scripts; its detectors call it val.
VALIDATION = "validation"
# Photos that are written anew to learn how many bytes they will have.
_TRIED = 16
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([kMGT]?)(i?)B?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True)
class PackRequest:
    """What to write. By default the photos' bytes stay as they are."""

    format: Form = "webdataset"
    order: Order = "kept"
    seed: int = 0  # of the shuffled order
    resize_shorter_side: int = 0  # pixels of the shorter side of photos whose shorter side is longer; 0: sizes are kept
    jpeg_quality: int = 0  # of JPEGs that are written anew, 1 to 100; if sizes are kept, of every photo; 0: USUAL_QUALITY
    num_shards: int = 0  # files of the training split; 0: as many as `shard_bytes` makes
    shard_bytes: int = 0  # about so many a file; 0: USUAL_SHARD, or one file a split for recordio

    @property
    def encode_quality(self) -> int:
        return self.jpeg_quality or USUAL_QUALITY


def check_request(request: PackRequest) -> None:
    """Raises PacelineError, naming the flag, for an impossible value."""
    if request.format not in FORMS:
        raise PacelineError(f"--format {abbreviate(request.format)}: not found. Choose one of: {', '.join(FORMS)}.")
    if request.jpeg_quality and not 1 <= request.jpeg_quality <= 100:
        raise PacelineError(f"--jpeg-quality {request.jpeg_quality}: must be from 1 to 100; 90 is usual.")
    if request.resize_shorter_side and not MIN_SHORT <= request.resize_shorter_side <= MAX_SHORT:
        raise PacelineError(f"--resize-shorter-side {request.resize_shorter_side}: must be {MIN_SHORT} to {MAX_SHORT:,}.")
    if request.num_shards and request.shard_bytes:
        raise PacelineError("--num-shards and --shard-size: only one of them is allowed. Remove one.")
    if request.num_shards < 0:
        raise PacelineError(f"--num-shards {request.num_shards}: must be at least 1.")


def parse_bytes(text: str, flag: str) -> int:
    """'1GiB' -> 1073741824, '500MB' -> 500000000; "" -> 0. Raises PacelineError."""
    if not text:
        return 0
    match = _SIZE.fullmatch(text.strip())
    number = 0 if match is None else int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].lower()])
    if number < 1:
        raise PacelineError(f"{flag} {abbreviate(text)}: not a size. Use a value such as 1GiB, 500MB, or 1000000.")
    return number


@dataclass(frozen=True)
class PackSplit:
    """One split of what is packed."""

    index: Index
    boxes: BoxSplit | None
    classes: tuple[str, ...]  # K readable names
    names: list[bytes]  # N in the index's order, each one's name in the pack
    order: np.ndarray  # (N,) int64, the record at each place of the pack
    anew: np.ndarray  # (N,) bool in the index's order: written anew
    has_frame: np.ndarray  # (N,) bool in the index's order: the frame of boxes is known

    @property
    def split(self) -> str:
        return self.index.split


@dataclass(frozen=True)
class ShardPlan:
    """One file: the places first..last-1 of a split's order."""

    split: str
    file: str
    first: int
    last: int
    estimate: int  # bytes


def open_sources(manifest: Manifest, request: PackRequest) -> dict[str, PackSplit]:
    """The splits of a prepared data set, as they are to be packed. Raises DataError where an index is damaged."""
    sources = {}
    for name, split in manifest.splits.items():
        reading = "ignore" if split.boxes is None or split.boxes.exif != "apply" else "apply"
        index = open_split(manifest, name)
        anew = np.zeros(len(index), bool)
        if request.resize_shorter_side or request.jpeg_quality:  # photos are written anew
            shorter = np.minimum(index.heights, index.widths)
            anew = shorter > request.resize_shorter_side if request.resize_shorter_side else ~anew
        has_frame = np.ones(len(index), bool)
        if split.boxes is not None and not split.boxes.exif and (manifest.request or {}).get("layout") != "yolo":
            # A photo with an EXIF rotation, and boxes of an unknown frame: the pack names none either.
            has_frame = index.orientations == 1
        kept = request.order == "kept"
        sources[name] = PackSplit(
            index=index,
            boxes=None if split.boxes is None else open_boxes(manifest, name, reading),
            classes=manifest.class_names or manifest.classes,
            names=packed_names(manifest, index, request.format, anew),
            # Shuffled alike on every machine: as a training's first epoch of that seed.
            order=np.arange(len(index)) if kept else np.array(permutation(len(index), seed=request.seed, epoch=0)),
            anew=anew,
            has_frame=has_frame,
        )
    return sources


def plan_shards(sources: dict[str, PackSplit], request: PackRequest) -> list[ShardPlan]:
    """How the splits are cut into files."""
    shards = []
    most = max((len(source.order) for source in sources.values()), default=0)
    first = sources.get("train")
    per_file = -(-(most if first is None else len(first.order)) // request.num_shards) if request.num_shards else 0
    for name, source in sources.items():
        sizes = _estimates(source, request)
        if request.num_shards:
            edges = list(range(0, len(sizes), max(1, per_file)))
        elif request.format == "recordio" and not request.shard_bytes:
            edges = [0]
        else:
            edges = _cut(sizes, request.shard_bytes or USUAL_SHARD)
        edges.append(len(sizes))
        for number, (begin, end) in enumerate(pairwise(edges)):
            alone = request.format == "recordio" and len(edges) == 2
            stem = name if alone else f"{name}-{number:05d}"
            if request.format == "tfrecord":
                split = VALIDATION if name == "val" and source.boxes is None else name
                stem = f"{split}-{number:05d}-of-{len(edges) - 1:05d}"
            shards.append(ShardPlan(name, stem + SUFFIX[request.format], begin, end, int(sizes[begin:end].sum())))
    return shards


def pack_identity(manifest: Manifest, request: PackRequest) -> str:
    """What a begun pack must be of, to be resumed: 64 hex digits of the request and the data."""
    return json_sha256([asdict(request), manifest.content_hash])


def _estimates(source: PackSplit, request: PackRequest) -> np.ndarray:
    """(N,) int64 bytes that each place of the pack will about take."""
    index = source.index
    lengths = index.lengths.astype(np.float64)
    rows = np.flatnonzero(source.anew)

    def pixels(i: int) -> int:
        height, width = smaller_size(int(index.heights[i]), int(index.widths[i]), request.resize_shorter_side)
        return height * width

    if len(rows):
        tried = rows[np.unique(np.linspace(0, len(rows) - 1, _TRIED, dtype=np.int64))].tolist()
        short, quality = request.resize_shorter_side, request.encode_quality
        written = sum(len(reencode_record(index, i, short, quality).data) for i in tried)
        # Bytes go with pixels, whatever quality the photos came in.
        lengths[rows] = np.array([pixels(i) for i in rows.tolist()]) * (written / sum(map(pixels, tried)))
    objects = np.zeros(len(lengths)) if source.boxes is None else np.diff(source.boxes.object_starts)
    return (lengths + _BESIDE[request.format] + objects * _OBJECT[request.format]).astype(np.int64)[source.order]


def _cut(sizes: Sequence[int] | np.ndarray, most: int) -> list[int]:
    """Where each file begins: one is full when the next record would make it larger than `most`."""
    edges, filled = [0], 0
    for index, size in enumerate(np.asarray(sizes).tolist()):
        if filled and filled + size > most:
            edges.append(index)
            filled = 0
        filled += size
    return edges


_ORIENTATION = 0x0112
_JPEG = (b".jpg", b".jpeg")
_BREAKS = bytes.maketrans(b"\t\n\r\0", b"____")


class EncodedImage(NamedTuple):
    """A photo as it is packed; sizes in pixels of the stored frame."""

    data: bytes
    height: int
    width: int


def smaller_size(height: int, width: int, short: int) -> tuple[int, int]:
    """-> (height, width) with the shorter side `short`, the longer one cut to whole pixels as torchvision's Resize does.

    The same where the photo is no larger, or `short` is 0.
    """
    if not short or min(height, width) <= short:
        return height, width
    longer = int(short * max(height, width) / min(height, width))
    return (short, longer) if height <= width else (longer, short)


def reencode_record(index: Index, row: int, short: int, quality: int) -> EncodedImage:
    """A record of a data set as `encode` makes it. Raises DataError, naming it, where it cannot be read or decoded."""
    data = index.read(row)
    try:
        return encode(data, short, quality)
    except Exception as error:  # Pillow's readers raise whatever a damaged file leads them into
        raise DataError(f"{index.name(row)}: cannot be decoded ({error}). {index.records.places.remedy}") from None


def encode(data: bytes, short: int, quality: int) -> EncodedImage:
    """The photo as a JPEG, its shorter side at most `short` (0: its size). Raises whatever Pillow's readers raise."""
    orientation = read_orientation(data)
    with open_image(data) as opened:
        if opened.format == "TIFF":
            orientation = UPRIGHT  # Pillow turned it as it read it
        gray = opened.mode in GRAY_MODES
        picture = to_rgb(opened)
    if gray:
        picture = picture.convert("L")
    height, width = smaller_size(picture.height, picture.width, short)
    if (height, width) != (picture.height, picture.width):
        picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    exif = Image.Exif()
    if orientation != UPRIGHT:
        exif[_ORIENTATION] = orientation
    picture.save(out, "JPEG", quality=quality, **({"exif": exif.tobytes()} if orientation != UPRIGHT else {}))
    return EncodedImage(out.getvalue(), height, width)


def class_folders(classes: Sequence[str]) -> list[bytes]:
    """K folder names: the classes' own, or their numbers where a class's name is no folder's."""
    return [os.fsencode(name) if _is_folder(os.fsencode(name)) else b"%04d" % k for k, name in enumerate(classes)]


def packed_names(manifest: Manifest, index: Index, form: str, anew: np.ndarray) -> list[bytes]:
    """N names, each once.

    form  of the pack: "webdataset", "recordio" or "tfrecord"
    anew  (N,) bool, photos that are written anew
    """
    split = manifest.splits[index.split]
    if split.boxes is None:
        folders = class_folders(manifest.classes)
        own = (folders[label] + b"/" + os.path.basename(index.relative_name(i)) for i, label in enumerate(index.labels))
    else:
        own = _below(index, os.fsencode(split.folder), split.records != FILES)
    names: list[bytes] = []
    seen: set[bytes] = set()
    for i, path in enumerate(own):
        stem, suffix = _fitting(path, form, bool(anew[i]))
        of_key = b"" if form == "webdataset" else suffix  # what of the suffix keeps two names apart
        if stem + of_key in seen:
            stem += b"-%d" % i
            while stem + of_key in seen:
                stem += b"_"
        seen.add(stem + of_key)
        names.append(stem + suffix)
    return names


def _is_folder(name: bytes) -> bool:
    plain = name == name.strip() == name.translate(_BREAKS)
    return bool(name.strip(b".")) and b"/" not in name and plain and len(name) < 256


def _below(index: Index, folder: bytes, contained: bool) -> Iterator[bytes]:
    """Paths below the split's folder of photos."""
    prefixes = [os.path.normpath(folder) + b"/", *([index.split.encode() + b"/"] if contained else [])]
    for i in range(len(index)):
        name = index.relative_name(i)
        for prefix in prefixes:
            name = name.removeprefix(prefix)
        yield b"/".join(part for part in name.split(b"/") if part not in (b"", b".", b".."))


def _fitting(path: bytes, form: str, anew: bool) -> tuple[bytes, bytes]:
    """-> the path less its suffix, and the suffix, as the form can store them."""
    folder, slash, name = path.translate(_BREAKS).rpartition(b"/")
    stem, suffix = os.path.splitext(name)
    if suffix.lower() not in IMAGE_SUFFIXES:
        stem, suffix = name, b".jpg"
    if anew and suffix.lower() not in _JPEG:
        suffix = b".jpg"
    stem = stem.strip() or b"photo"
    if form == "webdataset":
        stem = stem.replace(b".", b"_")
    return (folder + slash).lstrip() + stem, suffix
