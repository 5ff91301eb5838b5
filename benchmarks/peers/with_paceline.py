"""paceline's loader on the same photos: files, or the records of a prepared data set that hold the same bytes; or bare decoding."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from peer_protocol import Contender, Task, serve  # pyright: ignore[reportMissingImports]

import paceline
from paceline.data.index.index import open_split
from paceline.data.index.manifest import Manifest
from paceline.data.index.records import RecordReader
from paceline.tools.bench.input_cases import BATCH, bare_decode, open_file_records, paceline_loader

_open = ExitStack()  # until the process ends


def make(task: Task) -> Contender:
    """options: bare, or decoder and data (a folder with manifest.json; without it the files themselves)."""
    assert task.batch == BATCH
    paths = [Path(path) for path in task.photos]
    if task.options.get("bare"):
        take = _open.enter_context(bare_decode(paths, task.threads))
        return Contender(take, f"{task.threads} threads, whole photos", paceline.__version__)
    decoder = task.options["decoder"]
    records, numbers = open_file_records(paths), None
    if data := task.options.get("data"):
        manifest = Manifest.load(Path(data))
        records = open_split(manifest, manifest.learnt).records
        numbers = same_photos(records, {_digest(path.read_bytes()) for path in paths})
    take = _open.enter_context(paceline_loader(records, task.size, task.threads, decoder, numbers=numbers))
    return Contender(take, f"{task.threads} threads", paceline.__version__)


def same_photos(records: RecordReader, wanted: set[bytes]) -> np.ndarray:
    """(n,) int64, numbers of the records that hold these bytes. Raises ValueError where one of them is not there."""
    digests = [_digest(records.read(number)) for number in range(len(records))]
    found = [number for number, digest in enumerate(digests) if digest in wanted]
    if lacking := len(wanted - set(digests)):
        raise ValueError(f"{lacking} of {len(wanted)} photos are not in it: prepare it from the same photos")
    return np.array(found, np.int64)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


if __name__ == "__main__":
    serve(make)
