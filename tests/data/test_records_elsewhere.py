"""Records in another process read at the source; in this one, a changed copy keeps its store and its cache."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from stand_ins import tiny_photo

from paceline.data.index.records import CachedRecords, FileRecords
from paceline.data.storage.cache import SharedMemoryCache
from paceline.tools.bench.input_cases import open_file_records


@pytest.fixture
def records(tmp_path) -> FileRecords:
    (tmp_path / "a.jpg").write_bytes(tiny_photo())
    return open_file_records([tmp_path / "a.jpg"])  # type: ignore[return-value]


def test_what_another_process_gets_reads_the_same_bytes_at_the_source(records):
    cached = CachedRecords(records, SharedMemoryCache(-1, 1, 4096), 0)
    there = pickle.loads(pickle.dumps(cached))
    assert type(there) is FileRecords and there.portable and not cached.portable
    assert there.read(0) == cached.read(0) == tiny_photo()


def test_records_whose_bytes_are_not_compared_keep_all_else(records):
    records.mark = object()
    found = records.unchecked()
    assert type(found) is type(records) and vars(found).keys() == vars(records).keys() and found.mark is records.mark
    assert found.places.digests is None and isinstance(records.places.digests, np.ndarray)
