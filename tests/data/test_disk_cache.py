"""The cache of a remote store: right bytes always, asked for once, within the budget, whoever writes and whatever breaks."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from faulty_server import FaultyServer
from hypothesis import given
from hypothesis import strategies as st
from messages import raises

from paceline._utils.errors import DataError, PacelineError, RecipeError
from paceline.config.system import System, check_system, parse_store_cache_bytes
from paceline.data.index.records import CachedRecords, RangeRecords, RecordLocations
from paceline.data.storage import cache
from paceline.data.storage.cache import DiskCacheStore, SharedMemoryCache
from paceline.data.storage.store import ByteRange, ByteStore, FileStatus, LocalFiles, RangeError

NAME = b"s3://bucket/a.tar"
MIB = 2**20


class Memory(ByteStore):
    """A remote store that counts what it is asked."""

    is_remote = True
    at_once = 4

    def __init__(self, files: dict[bytes, bytes]) -> None:
        self.files, self.tags = files, dict.fromkeys(files, "first")
        self.reads: list[ByteRange] = []

    def status(self, name: bytes) -> FileStatus:
        return FileStatus(len(self.files[name]), 0, self.tags[name])

    def read(self, wanted: ByteRange) -> bytes:
        self.reads.append(wanted)
        return self.files[wanted.name][wanted.offset : wanted.offset + wanted.length]

    def open(self, name: bytes) -> BinaryIO:
        return io.BytesIO(self.files[name])

    def find(self, pattern: str) -> list[bytes]:
        return sorted(self.files)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ranges"


def held(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir() if path.name != "used")


def noise(number: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(number)


def test_a_range_is_asked_for_once_by_whoever_asks(folder: Path) -> None:
    remote = Memory({NAME: noise(MIB), b"s3://bucket/b.tar": noise(MIB, 1)})
    wanted = [ByteRange(name, 1000 * i, 999) for i in range(20) for name in remote.files]
    truth = [remote.files[one.name][one.offset : one.offset + one.length] for one in wanted]
    for _ in range(2):
        store = DiskCacheStore(remote, 100 * MIB)
        assert store.read_many(wanted) == truth
        assert [store.read(one) for one in wanted] == truth
    assert sorted(remote.reads) == sorted(wanted)
    # Part of a range, or more than one, is another range.
    assert store.read(ByteRange(NAME, 0, 998)) == remote.files[NAME][:998]
    assert len(remote.reads) == len(wanted) + 1


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("read"), st.integers(0, 9), st.integers(1, 40_000)),
            st.tuples(st.just("flip"), st.integers(0, 50_000), st.integers(0, 3)),
            st.tuples(st.just("cut"), st.integers(0, 50_000), st.integers(0, 3)),
            st.tuples(st.just("lose"), st.just(0), st.integers(0, 3)),
            st.tuples(st.just("change"), st.just(0), st.integers(0, 1)),
            st.tuples(st.just("again"), st.just(0), st.just(0)),
        ),
        max_size=30,
    )
)
def test_whatever_happens_to_its_files_the_bytes_are_right(tmp_path_factory: pytest.TempPathFactory, steps) -> None:
    os.environ["PACELINE_CACHE"] = str(tmp_path_factory.mktemp("any"))  # private_cache puts it back
    folder = Path(os.environ["PACELINE_CACHE"]) / "ranges"
    names = [b"s3://bucket/0", b"s3://bucket/1"]
    remote = Memory({name: noise(50_000, number) for number, name in enumerate(names)})
    store = DiskCacheStore(remote, MIB)
    for what, first, second in steps:
        files = sorted(path for path in folder.iterdir() if path.name != "used")
        if what == "read":
            wanted = ByteRange(names[first % 2], first * 5_000, second)
            assert store.read(wanted) == remote.files[wanted.name][wanted.offset : wanted.offset + wanted.length]
        elif what == "change":
            name = names[second]
            remote.files[name], remote.tags[name] = noise(50_000, len(remote.tags[name])), remote.tags[name] + "+"
            store = DiskCacheStore(remote, MIB)  # a change during a run is the remote store's to find
        elif what == "again":
            store = DiskCacheStore(remote, MIB)
        elif second < len(files):
            data = bytearray(files[second].read_bytes())
            if what == "flip" and first < len(data):
                data[first] ^= 0x55
                files[second].write_bytes(data)
            elif what == "cut":
                os.truncate(files[second], min(first, len(data)))
            elif what == "lose":
                files[second].unlink()


def test_one_flipped_bit_is_fetched_again_and_mended(folder: Path) -> None:
    remote = Memory({NAME: noise(50_000)})
    store = DiskCacheStore(remote, MIB)
    wanted = ByteRange(NAME, 10_000, 20_000)
    store.read(wanted)
    (kept,) = folder.glob("*.bytes")
    data = bytearray(kept.read_bytes())
    data[17_000] ^= 1
    kept.write_bytes(data)
    for _ in range(2):
        assert store.read(wanted) == remote.files[NAME][10_000:30_000]
    assert len(remote.reads) == 2


def test_the_end_of_a_file_and_nothing_at_all(folder: Path) -> None:
    remote = Memory({NAME: b"0123456789"})
    store = DiskCacheStore(remote, MIB)
    for _ in range(2):
        assert store.read(ByteRange(NAME, 8, 5)) == b"89"
        assert store.read(ByteRange(NAME, 20, 5)) == b""
        assert store.read(ByteRange(NAME, 3, 0)) == b""
        assert store.read_many([]) == []
    with store.open(NAME) as stream:
        assert stream.read() == b"0123456789"
    assert store.find("*") == [NAME]


def test_a_file_whose_contents_nothing_tells_apart_is_not_kept(folder: Path) -> None:
    remote = Memory({NAME: noise(5000)})
    remote.tags[NAME] = ""
    store = DiskCacheStore(remote, MIB)
    assert store.read(ByteRange(NAME, 0, 100)) == store.read(ByteRange(NAME, 0, 100))
    assert len(remote.reads) == 2


def test_a_row_of_slots_keeps_as_many_ranges_as_it_has(folder: Path) -> None:
    """Though the table ends with those that were written last."""
    remote = Memory({NAME: noise(200_000)})
    store = DiskCacheStore(remote, 10 * MIB)
    store.read(ByteRange(NAME, 0, 1))
    rows: dict[int, list[ByteRange]] = {}
    for at in range(1, 60_000):
        rows.setdefault(store._slots_at(ByteRange(NAME, at, 7)), []).append(ByteRange(NAME, at, 7))
    last = rows[max(rows)][: cache._ROW]
    assert len(last) == cache._ROW
    for _ in range(2):
        remote.reads.clear()
        for one in last:
            assert store.read(one) == remote.files[NAME][one.offset : one.offset + 7]
    assert not remote.reads


def test_the_budget_holds_and_what_was_kept_stays(folder: Path) -> None:
    remote = Memory({NAME: noise(8 * MIB)})
    store = DiskCacheStore(remote, 2 * MIB)
    wanted = [ByteRange(NAME, at, 30_000) for at in range(0, 8 * MIB - 30_000, 30_000)]
    for epoch in range(3):
        remote.reads.clear()
        order = random.Random(epoch).sample(wanted, len(wanted))
        for one in order:
            store.read(one)
            assert held(folder) <= 2 * MIB
    # At least half of the budget holds photos, and they are not driven out in each epoch by others.
    assert len(wanted) - len(remote.reads) >= MIB // 30_000


def test_what_nobody_used_for_an_hour_makes_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "FULL_SECONDS", 0.0)
    remote = Memory({b"s3://bucket/%d" % number: noise(MIB, number) for number in range(3)})
    store = DiskCacheStore(remote, MIB * 6 // 5)

    def fill(number: int) -> None:
        for at in range(0, MIB, 50_000):
            store.read(ByteRange(b"s3://bucket/%d" % number, at, 50_000))

    fill(0)
    old = {path.name for path in folder.iterdir()} - {"used"}
    fill(1)
    assert old <= {path.name for path in folder.iterdir()}
    for path in folder.iterdir():
        if path.name in old:
            os.utime(path, (time.time() - 4000,) * 2)
    fill(2)
    assert not old & {path.name for path in folder.iterdir()}
    assert held(folder) <= 1.2 * MIB
    remote.reads.clear()
    fill(2)
    assert len(remote.reads) <= 2


def test_a_counter_that_lies_is_put_right(folder: Path) -> None:
    remote = Memory({NAME: noise(MIB)})
    store = DiskCacheStore(remote, MIB)
    (folder / "used").write_bytes((10**15).to_bytes(8, "little"))
    for _ in range(2):
        store.read(ByteRange(NAME, 0, 1000))
    assert len(remote.reads) == 1


def test_where_it_cannot_write_it_says_so_and_photos_are_read_all_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remote = Memory({NAME: noise(MIB)})
    store = DiskCacheStore(remote, MIB)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "_write", full)
    for at in range(5):
        assert store.read(ByteRange(NAME, at, 1000)) == remote.files[NAME][at : at + 1000]
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "No space left on device" in said
    (tmp_path / "a file").touch()
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "a file"))
    with pytest.raises(PacelineError, match="PACELINE_CACHE"):
        DiskCacheStore(remote, MIB)


PROGRAM = """
import random, sys
from paceline.data.storage.cache import DiskCacheStore
from paceline.data.storage.object_store import open_store
from paceline.data.storage.store import ByteRange
name, seed, size = sys.argv[1].encode(), int(sys.argv[2]), int(sys.argv[3])
store = DiskCacheStore(open_store(name), 2 * 2**20)
wanted = [ByteRange(name, at, 20_000) for at in range(0, size - 20_000, 20_000)]
random.Random(seed).shuffle(wanted)
truth = open(sys.argv[4], "rb").read()
print("begun", flush=True)
while True:
    for start in range(0, len(wanted), 16):
        for one, data in zip(wanted[start:start + 16], store.read_many(wanted[start : start + 16])):
            assert data == truth[one.offset : one.offset + one.length]
    if seed:
        break
"""


def test_processes_share_it_and_one_may_be_killed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="the extra paceline[remote] is not installed")
    data = noise(3 * MIB)
    (tmp_path / "truth").write_bytes(data)
    with FaultyServer(files={"/bucket/a.tar": data}) as server:
        server.be_reached(monkeypatch)
        command = [sys.executable, "-c", PROGRAM, "s3://bucket/a.tar"]
        rest = [str(len(data)), str(tmp_path / "truth")]
        with subprocess.Popen([*command, "0", *rest], stdout=subprocess.PIPE) as endless:
            assert endless.stdout is not None
            endless.stdout.readline()
            others = [subprocess.Popen([*command, str(seed), *rest], stdout=subprocess.DEVNULL) for seed in (1, 2)]
            endless.kill()
            assert [other.wait(60) for other in others] == [0, 0]
        assert held(folder) <= 2 * MIB
        server.requests.clear()
        subprocess.run([*command, "3", *rest], check=True, stdout=subprocess.DEVNULL, timeout=60)
        reads = [line for line in server.requests if line.startswith("GET")]
        assert len(reads) < 0.7 * len(data) / 20_000


def test_records_are_kept_where_they_come_over_a_network_and_are_asked_to(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = Memory({NAME: noise(1000)})
    places = RecordLocations(
        root=Path("/nowhere"),
        files=np.zeros(10, np.int32),
        offsets=np.arange(10, dtype=np.int64) * 100,
        lengths=np.full(10, 100, np.int64),
        name_bytes=np.frombuffer(NAME, np.uint8),
        name_starts=np.array([0, len(NAME)]),
        file_sizes=np.array([1000]),
        remedy="Prepare it again.",
    )
    monkeypatch.setattr("paceline.data.storage.object_store.open_store", lambda _: remote)
    records = RangeRecords(places)
    assert records.kept_on_disk(0) is records
    records.read(0)
    records.read(0)
    assert len(remote.reads) == 2
    for _ in range(2):  # as every evaluation does
        assert records.kept_on_disk(MIB) is records
        assert [records.read(i) for i in range(10)] == records.read_many(range(10))
    assert len(remote.reads) == 2 + 10
    # A cache in memory hands on what it is told.
    other = RangeRecords(places)
    CachedRecords(other, SharedMemoryCache(-1, 10, MIB), 0).kept_on_disk(MIB)
    assert other.read_many(range(10)) == records.read_many(range(10))
    assert len(remote.reads) == 2 + 10
    monkeypatch.setattr("paceline.data.storage.object_store.open_store", lambda _: LocalFiles())
    near = RangeRecords(places)
    assert near.kept_on_disk(MIB) is near and type(near._store) is LocalFiles

    def fails(wanted: Sequence[ByteRange]) -> list[bytes]:
        raise RangeError(OSError(5, "gone"), 1)

    remote.tags[NAME] = "second"
    fresh = DiskCacheStore(remote, MIB)
    fresh.read(ByteRange(NAME, 0, 5))
    monkeypatch.setattr(remote, "read_many", fails)
    with pytest.raises(RangeError) as caught:
        fresh.read_many([ByteRange(NAME, 0, 5), ByteRange(NAME, 5, 5), ByteRange(NAME, 6, 5)])
    assert caught.value.at == 2
    records._store = fresh
    with raises(DataError, "from byte 100", "gone"):
        records.read_many(range(3))


def test_its_size_is_given_with_a_unit() -> None:
    assert [parse_store_cache_bytes(text) for text in ("off", "200GiB", "1.5 TB")] == [0, 200 * 2**30, 3 * 2**39]
    for odd in ("auto", "200", "-1GiB", "0GiB", "many"):
        with raises(RecipeError, "--system.disk-cache", "off", "40GiB"):
            check_system(System(disk_cache=odd))
