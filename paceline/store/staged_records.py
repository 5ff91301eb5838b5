"""Records that are read from a copy on this machine, and called by the names that they have at their source.

So messages, lists of predictions and everything else that a run writes down is the same with and without a copy.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from paceline.store.index import Index, name_arrays
from paceline.store.manifest import FILES
from paceline.store.records import Places, Records, open_records
from paceline.store.staged_copy import Wanted
from paceline.store.stores import scheme_of


class StagedRecords(Records):
    """The records of a split, read from `local`."""

    def __init__(self, records: Records, local: Records) -> None:
        super().__init__(records.places)
        self._records, self._local = records, local
        self.at_once = local.at_once

    def path(self, i: int) -> str:
        """The file that is read: the copy."""
        return self._local.path(i)

    def name(self, i: int) -> str:
        """As at the source."""
        return self._records.name(i)

    def relative_name(self, i: int) -> bytes:
        """As at the source."""
        return self._records.relative_name(i)

    def unchecked(self) -> Records:
        """Of the copy too."""
        return StagedRecords(self._records, self._local.unchecked())

    def read(self, i: int) -> bytes:
        """From the copy. Raises DataError, naming the copy's file, where that is gone or damaged."""
        return self._local.read(i)

    def read_many(self, numbers: Sequence[int]) -> list[bytes]:
        """As `read`."""
        return self._local.read_many(numbers)


def staged_records(records: Records, kind: str, folder: Path, remedy: str) -> StagedRecords:
    """These records, read from the copy in `folder`; kind: what their manifest calls them."""
    return StagedRecords(records, open_records(kind, _places_in(records.places, folder, remedy)))


def wanted_files(index: Index, kind: str, numbers: np.ndarray) -> list[Wanted]:
    """The files that these records lie in, each once."""
    places = index.records.places
    digests: dict[int, int] = {}
    if kind == FILES and "digests" in index.extra:
        digests = dict(zip(places.files[numbers].tolist(), index.extra["digests"][numbers].tolist()))
    return [
        Wanted(
            places.file_path(file), staged_name(places.file_name(file)), int(places.file_sizes[file]), digests.get(file)
        )
        for file in np.unique(places.files[numbers]).tolist()
    ]


def staged_name(name: bytes) -> bytes:
    """Where a file lies in the copy, by its name in the index: below near/ as it is called, where that leads nowhere else."""
    if _is_near(name):
        return b"near/" + name
    last = re.sub(rb"[^A-Za-z0-9._-]", b"_", os.path.basename(name))[-80:]
    return b"far/%b-%b" % (hashlib.sha256(name).hexdigest()[:16].encode(), last)


def _is_near(name: bytes) -> bool:
    return not scheme_of(name) and not any(part in (b"", b".", b"..") for part in name.split(b"/"))


def _places_in(places: Places, folder: Path, remedy: str) -> Places:
    names = [places.file_name(file) for file in range(len(places.file_sizes))]
    places = replace(places, remedy=remedy, changed="")
    if all(map(_is_near, names)):
        return replace(places, root=folder / "near")
    return replace(places, root=folder, **name_arrays([staged_name(name) for name in names]))
