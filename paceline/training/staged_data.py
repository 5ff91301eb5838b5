"""Copies of a run's photos on a disk of each node (`--copy-data-to DIR`).

The data set stays what it is: the same manifest, hash, order and names, so a run that was begun with a copy resumes without one and
back. Records keep the names that they have at their source, so messages, lists of predictions and everything else that a run writes
down is the same too. Each node's first rank stages, all nodes at once; the others wait on the store, in no collective that could time
out.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from paceline._utils.commands import format_command
from paceline._utils.formatting import format_bytes
from paceline._utils.reporter import Reporter
from paceline._utils.text import format_count
from paceline.data.index.index import Index, pack_names
from paceline.data.index.manifest import FILES, repeat_command
from paceline.data.index.records import OtherRecords, RecordReader, open_records
from paceline.data.storage.staged_copy import FileToStage, StagedCopy, is_near, staged_name
from paceline.distributed.comm.world import DistContext
from paceline.models.datamodule import DataModule

# Records of a staged copy that are read and compared before training: as many as of a container that is opened.
SAMPLED_RECORDS = 16
# Where no live line is drawn, seconds between two lines on the progress of staging.
LINE_EVERY = 30.0


@contextmanager
def open_staged_copy(data: DataModule, stage: str, world: DistContext, reporter: Reporter) -> Iterator[None]:
    """While this is open, its photos are read from a copy below the folder `stage`. Every rank calls it.

    Raises PacelineError where the disk has too little room or cannot be written, DataError where a photo's file cannot be read or is
    not what the index says.
    """
    folder = Path(stage).expanduser().absolute() / f"paceline-{dataset_key(data)}"
    again = f"Prepare the data again:  {repeat_command(data.manifest)}"
    with ExitStack() as held:
        copy = StagedCopy(folder, {"from": str(data.manifest.root_path), "hash": data.manifest.content_hash}, again)
        held.callback(copy.close)
        remedy = f"Remove the copy to copy the data again:  {format_command('data', 'clear', folder.parent)}"
        if world.local_rank == 0:
            _copy(copy, data, reporter, folder.parent)
        _wait_for_all(world)
        splits = _splits(data)
        near = {
            split: staged_records(index.records, data.manifest.splits[split].records, folder, remedy)
            for split, (index, _) in splits.items()
        }
        for split, (index, numbers) in splits.items():
            if world.local_rank == 0:
                _compare_some(replace(index, records=near[split]), numbers)
        held.enter_context(data.reading(near[data.manifest.learnt], near["val"]))
        yield


def dataset_key(data: DataModule) -> str:
    """16 hex digits: equal exactly where the data set is, with the names and sizes of its files."""
    digest = hashlib.sha256(data.manifest.content_hash.encode())
    for split, (index, _) in _splits(data).items():
        locations = index.records.places
        digest.update(f"{split} {data.manifest.splits[split].records} {len(locations.name_bytes)}".encode())
        for array in (locations.name_bytes, locations.name_starts, locations.file_sizes):
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def _splits(data: DataModule) -> dict[str, tuple[Index, np.ndarray]]:
    """Split -> its index, and the numbers of the photos that this run reads."""
    train, val = (data.train_index, data.train_numbers), (data.val_index, data.val_numbers)
    return {data.manifest.learnt: train, "val": val}


def _copy(copy: StagedCopy, data: DataModule, reporter: Reporter, stage: Path) -> None:
    wanted: dict[bytes, FileToStage] = {}  # a container may hold photos of both splits
    for split, (index, numbers) in _splits(data).items():
        wanted |= {one.name: one for one in list_files_to_stage(index, data.manifest.splits[split].records, numbers)}
    reported = began = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal reported
        reporter.progress("copying the data (MiB)", done >> 20, total >> 20)
        if not reporter.is_live and time.monotonic() - reported > LINE_EVERY:
            reported = time.monotonic()
            reporter.line(f"copied {format_bytes(done)} of {format_bytes(total)} to {stage}")

    def waits() -> None:
        reporter.progress("waiting for the copy of another process", 0, 0)
        reporter.line(f"another process is copying this dataset to {stage}; waiting for it")

    copied = copy.copy(list(wanted.values()), progress=progress, waits=waits)
    if copied.changed:
        reporter.line(f"{format_count(copied.changed, 'file')} of the copy changed after the write and were copied again")
    there = f", {copied.kept:,} already existed" if copied.kept else ""
    reporter.line(
        f"data in {stage}: copied {copied.files:,} files ({format_bytes(copied.bytes)} in "
        f"{time.monotonic() - began:.0f} s){there}"
    )


def _wait_for_all(world: DistContext) -> None:
    """Return when every node has its copy. Copying may take hours, so no rank waits in a collective."""
    if world.world == 1:
        return
    world.post(f"staged/{world.rank}", "")
    if world.is_main:
        for rank in range(1, world.world):
            world.wait_for(f"staged/{rank}")
        world.post("staged/all", "")
    else:
        world.wait_for("staged/all")


def _compare_some(index: Index, numbers: np.ndarray) -> None:
    """Read some records and compare their digests too, whatever the system does for later reads."""
    if len(numbers):
        index.records.read_many(
            numbers[np.unique(np.linspace(0, len(numbers) - 1, num=SAMPLED_RECORDS, dtype=np.int64))].tolist()
        )


class StagedRecords(OtherRecords):
    """The records of a split, read from `local`, whose file an error names."""

    def __init__(self, records: RecordReader, local: RecordReader) -> None:
        super().__init__(records)
        self._local, self.at_once = local, local.at_once

    def path(self, i: int) -> str:
        """The file that is read: the copy."""
        return self._local.path(i)

    def unchecked(self) -> RecordReader:
        return StagedRecords(self._records, self._local.unchecked())

    def read_many(self, numbers: Sequence[int]) -> list[bytes]:
        return self._local.read_many(numbers)


def staged_records(records: RecordReader, kind: str, folder: Path, remedy: str) -> StagedRecords:
    """These records, read from the copy in `folder`; kind: theirs in the manifest."""
    names = [records.places.file_name(file) for file in range(len(records.places.file_sizes))]
    locations = replace(records.places, remedy=remedy, changed="", root=folder)
    if all(map(is_near, names)):
        locations = replace(locations, root=folder / "near")
    else:
        locations = replace(locations, **pack_names([staged_name(name) for name in names]))
    return StagedRecords(records, open_records(kind, locations))


def list_files_to_stage(index: Index, kind: str, numbers: np.ndarray) -> list[FileToStage]:
    """The files that these records lie in, each once."""
    locations = index.records.places
    digests: dict[int, int] = {}
    if kind == FILES and "digests" in index.extra:
        digests = dict(zip(locations.files[numbers].tolist(), index.extra["digests"][numbers].tolist()))
    return [
        FileToStage(
            locations.file_path(file),
            staged_name(locations.file_name(file)),
            int(locations.file_sizes[file]),
            digests.get(file),
        )
        for file in np.unique(locations.files[numbers]).tolist()
    ]
