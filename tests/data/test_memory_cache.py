"""Encoded photos kept in memory: the same bytes, read once, never more than there is room for, shared between processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from paceline.data.index.records import CachedRecords, RecordLocations, RecordReader
from paceline.data.storage.cache import SharedMemoryCache, cache_file_size, create_memory_file, open_memory_file

memfd = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files in memory without a name are Linux's")


class Counted(RecordReader):
    """Photo i is i + 1 times its number's byte; what is asked for is noted."""

    at_once = 4

    def __init__(self, photos: int) -> None:
        zeros = np.zeros(photos, np.int64)
        lengths = np.arange(1, photos + 1)
        super().__init__(RecordLocations(os.curdir, zeros, zeros, lengths, zeros, zeros, zeros, ""))  # type: ignore[arg-type]
        self.asked: list[list[int]] = []

    def name(self, i: int) -> str:
        return f"photo {i}"

    def relative_name(self, i: int) -> bytes:
        return b"relative %d" % i

    def read(self, i: int) -> bytes:
        return self.read_many([i])[0]

    def read_many(self, numbers):
        self.asked.append(list(numbers))
        return [bytes([i % 256]) * (i + 1) for i in numbers]


def test_a_photo_is_read_once_and_comes_back_as_it_was():
    records = Counted(20)
    cached = CachedRecords(records, SharedMemoryCache(-1, 20, 1000), 0)
    assert cached.read_many([3, 7, 3]) == [b"\x03" * 4, b"\x07" * 8, b"\x03" * 4]
    assert cached.read(7) == b"\x07" * 8 and cached.read_many([7, 9]) == [b"\x07" * 8, b"\x09" * 10]
    assert records.asked == [[3, 7], [9]]
    assert (len(cached), cached.at_once, cached.name(4), cached.relative_name(4)) == (20, 4, "photo 4", b"relative 4")


def test_splits_share_the_room_and_do_not_mix():
    first, second = Counted(4), Counted(4)
    shelf = SharedMemoryCache(-1, 8, 1000)
    splits = CachedRecords(first, shelf, 0), CachedRecords(second, shelf, 4)
    assert splits[0].read(2) == splits[1].read(2) == b"\x02" * 3
    assert first.asked == second.asked == [[2]] and shelf.kept() == 2


def test_what_no_longer_fits_is_read_again_and_nothing_is_thrown_out():
    records, room = Counted(10), 1 + 2 + 3 + 4
    shelf = SharedMemoryCache(-1, 10, room)
    cached = CachedRecords(records, shelf, 0)
    everything = [bytes([i]) * (i + 1) for i in range(10)]
    assert [cached.read_many(range(10)) for _ in range(3)] == [everything] * 3
    assert shelf.kept() == 4 and records.asked[1:] == [list(range(4, 10))] * 2
    assert (shelf.reads, shelf.hits) == (30, 8)


@memfd
def test_ranks_fill_their_own_parts_and_read_all():
    room = 60
    file, _ = create_memory_file(cache_file_size(10, room))
    shelves = [SharedMemoryCache(file, 10, room, part=part, parts=3) for part in range(3)]
    os.close(file)
    ranks = [CachedRecords(Counted(10), shelf, 0) for shelf in shelves]
    for rank, photos in zip(ranks, ((0, 1, 2, 3, 4), (5, 6), (7, 8, 9))):
        rank.read_many(photos)
    # 15 of 20 bytes, 13 of 20, 17 of 20: photo 9 has 10 bytes.
    assert [shelf.kept() for shelf in shelves] == [9] * 3
    for rank in ranks:
        assert rank.read_many(range(8)) == [bytes([i]) * (i + 1) for i in range(8)]


@memfd
def test_another_process_reads_what_this_one_kept():
    file, name = create_memory_file(cache_file_size(3, 100))
    CachedRecords(Counted(3), SharedMemoryCache(file, 3, 100), 0).read(2)
    program = (
        "import sys; from paceline.data.storage.cache import *\n"
        "process, file, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]\n"
        "print(SharedMemoryCache(open_memory_file(process, file, name), 3, 100).get(2, 3))"
    )
    words = [sys.executable, "-c", program, str(os.getpid()), str(file)]
    other = subprocess.run([*words, name], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == str(b"\x02" * 3)
    for another in (name[:-1], name + "0", "paceline-photos"):
        with pytest.raises(OSError, match="another file"):
            open_memory_file(os.getpid(), file, another)
    os.close(file)


def test_many_threads_get_the_right_bytes_and_every_read_is_counted():
    records, shelf = Counted(200), SharedMemoryCache(-1, 200, 10_000)
    cached, wrong = CachedRecords(records, shelf, 0), []

    def read(seed: int) -> None:
        for i in np.random.default_rng(seed).integers(0, 200, 1500).tolist():
            if cached.read(i) != bytes([i % 256]) * (i + 1):
                wrong.append(i)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and shelf.reads == 8 * 1500 and shelf.hits == 8 * 1500 - len(records.asked)
