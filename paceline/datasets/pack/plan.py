"""Which record goes into which file, before anything is written: so files can be written, found again and checked one by one.

Letters: N records of one split, in the order of packing
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from paceline.config.errors import DataError, UserError
from paceline.datasets.ensure import ensure_prepared, name_addresses
from paceline.datasets.formats.layouts import detect_layout
from paceline.datasets.pack.encode import encoded_anew, smaller_size
from paceline.datasets.pack.naming import packed_names
from paceline.datasets.pack.request import USUAL_SHARD, PackRequest
from paceline.input.stream import permutation
from paceline.store.box_split import BoxSplit, open_boxes
from paceline.store.containers.exports import prepare_first
from paceline.store.freshness import check_fresh
from paceline.store.index import Index, open_split
from paceline.store.manifest import Kind, Manifest, manifest_places, prepare_again

SUFFIX = {"webdataset": ".tar", "recordio": ".rec", "tfrecord": ".tfrecord"}
# A tar's header, and what its label's file takes; RecordIO's headers with the lines beside it; an Example's names.
_BESIDE = {"webdataset": 2048, "recordio": 128, "tfrecord": 512}
# Bytes of an object's text, with polygons of usual length; of its five numbers; of its features with a small PNG as mask.
_OBJECT = {"webdataset": 500, "recordio": 20, "tfrecord": 300}
# What the scripts of TensorFlow's models call a split of class folders; those of its detectors say val.
VALIDATION = "validation"
# Photos that are written anew to learn how many bytes they will have.
_TRIED = 16


@dataclass(frozen=True)
class Source:
    """One split of what is packed."""

    index: Index
    boxes: BoxSplit | None
    classes: tuple[str, ...]  # K readable names
    names: list[bytes]  # N in the index's order, what each is called in the pack
    order: np.ndarray  # (N,) int64, the record at each place of the pack
    anew: np.ndarray  # (N,) bool in the index's order: written anew
    says_sizes: np.ndarray  # (N,) bool in the index's order: the frame of boxes is known

    @property
    def split(self) -> str:
        return self.index.split


@dataclass(frozen=True)
class Shard:
    """One file: the places first..last-1 of a split's order."""

    split: str
    file: str
    first: int
    last: int
    estimate: int  # bytes


def open_sources(manifest: Manifest, request: PackRequest) -> dict[str, Source]:
    """The splits of a prepared data set, as they are to be packed. Raises DataError where an index is damaged."""
    sources = {}
    for name, split in manifest.splits.items():
        reading = "ignore" if split.boxes is None or split.boxes.exif != "apply" else "apply"
        boxes = None if split.boxes is None else open_boxes(manifest, name, reading)
        index = open_split(manifest, name)
        anew = np.zeros(len(index), bool)
        if request.encodes:
            shorter = np.minimum(index.heights, index.widths)
            anew = shorter > request.short if request.short else ~anew
        says = np.ones(len(index), bool)
        if split.boxes is not None and not split.boxes.exif and (manifest.request or {}).get("layout") != "yolo":
            # A photo that its camera turned, and boxes of a frame that nobody named: neither is named here.
            says = index.orientations == 1
        sources[name] = Source(
            index=index,
            boxes=boxes,
            classes=manifest.class_names or manifest.classes,
            names=packed_names(manifest, index, request.to, anew),
            order=np.arange(len(index)) if request.order == "kept" else _shuffled(len(index), request.seed),
            anew=anew,
            says_sizes=says,
        )
    return sources


def plan_shards(sources: dict[str, Source], request: PackRequest) -> list[Shard]:
    """How the splits are cut into files."""
    shards = []
    most = max((len(source.order) for source in sources.values()), default=0)
    first = sources.get("train")
    per_file = -(-(most if first is None else len(first.order)) // request.shards) if request.shards else 0
    for name, source in sources.items():
        sizes = _estimates(source, request)
        if request.shards:
            edges = list(range(0, len(sizes), max(1, per_file)))
        elif request.to == "recordio" and not request.shard_bytes:
            edges = [0]
        else:
            edges = _cut(sizes, request.shard_bytes or USUAL_SHARD)
        edges.append(len(sizes))
        for number, (begin, end) in enumerate(pairwise(edges)):
            alone = request.to == "recordio" and len(edges) == 2
            stem = name if alone else f"{name}-{number:05d}"
            if request.to == "tfrecord":
                called = VALIDATION if name == "val" and source.boxes is None else name
                stem = f"{called}-{number:05d}-of-{len(edges) - 1:05d}"
            shards.append(Shard(name, stem + SUFFIX[request.to], begin, end, int(sizes[begin:end].sum())))
    return shards


def identity(manifest: Manifest, request: PackRequest) -> str:
    """What a pack that was begun must have been asked for, to be gone on with: 64 hex digits."""
    text = json.dumps([asdict(request), manifest.content_hash], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _shuffled(number: int, seed: int) -> np.ndarray:
    """The same on every machine: as a training's first epoch of that seed."""
    return np.array(permutation(number, seed=seed, epoch=0))


def _estimates(source: Source, request: PackRequest) -> np.ndarray:
    """(N,) int64 bytes that each place of the pack will about take."""
    lengths = source.index.lengths.astype(np.float64)
    rows = np.flatnonzero(source.anew)
    if len(rows):
        tried = rows[np.unique(np.linspace(0, len(rows) - 1, _TRIED, dtype=np.int64))].tolist()
        found = sum(len(encoded_anew(source.index, i, request.short, request.jpeg_quality).data) for i in tried)
        # Bytes go with pixels, whatever quality the photos came in.
        pixels = np.array([_pixels(source.index, i, request.short) for i in rows.tolist()])
        of_tried = sum(_pixels(source.index, i, request.short) for i in tried)
        lengths[rows] = pixels * (found / of_tried)
    objects = np.zeros(len(lengths)) if source.boxes is None else np.diff(source.boxes.object_starts)
    return (lengths + _BESIDE[request.to] + objects * _OBJECT[request.to]).astype(np.int64)[source.order]


def _pixels(index: Index, i: int, short: int) -> int:
    height, width = smaller_size(int(index.heights[i]), int(index.widths[i]), short)
    return height * width


def _cut(sizes: Sequence[int] | np.ndarray, most: int) -> list[int]:
    """Where each file begins: one is full when the next record would make it larger than `most`."""
    edges, filled = [0], 0
    for place, size in enumerate(np.asarray(sizes).tolist()):
        if filled and filled + size > most:
            edges.append(place)
            filled = 0
        filled += size
    return edges


# What is packed: a prepared data set as it is, or a folder that is prepared first, as training would.


def prepared_source(folder: str, say: Callable[[str], None]) -> Manifest:
    """The manifest of a data set, fresh.

    folder  a data set's root, or a folder that prepare wrote to; it may have one split alone where it was prepared
    say     takes a line: of hosts that an index names, and when something is prepared
    Raises UserError where there is no such folder, DataError where it cannot be used.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        if first := prepare_first(folder):
            raise UserError(f"{folder}: {first}")
        raise UserError(f"{folder}: there is no such folder. Name a data set, or a folder that prepare wrote to.")
    stale = None
    for path in manifest_places(root):
        manifest = Manifest.load(path)
        name_addresses(manifest, root, say)
        if (why := check_fresh(manifest)) is None:
            return manifest
        stale = stale or DataError(f"{root}: out of date: {why}. Prepare it again:\n  {prepare_again(manifest)}")
    if stale is not None:
        raise stale
    kind: Kind = "class-folder" if detect_layout(root) is None else "boxes"
    return Manifest.load(ensure_prepared(root, kind=kind, say=say))
