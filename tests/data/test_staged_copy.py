"""Copies on a local disk: whole or not there, taken up after a kill, shared by jobs, and cleared without touching anything else."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import raises

from paceline._utils.errors import DataError, PacelineError
from paceline.data.index.records import record_digest
from paceline.data.storage import staged_copy, store
from paceline.data.storage.staged_copy import (
    CopyStats,
    FileToStage,
    StagedCopy,
    clear_copies,
    list_copies,
    read_ledger,
    staged_name,
)

PART = 1000
KEY = "paceline-0123456789abcdef"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(staged_copy, "PART_BYTES", PART)


@pytest.fixture
def source(tmp_path) -> Path:
    """Thirty photos, one of them empty, and a container of several parts."""
    random, folder = np.random.default_rng(0), tmp_path / "source"
    (folder / "photos").mkdir(parents=True)
    for number in range(30):
        (folder / "photos" / f"{number}.jpg").write_bytes(random.bytes(30 * number))
    (folder / "all.tar").write_bytes(random.bytes(5 * PART + 10))
    return folder


def wanted_of(source: Path) -> list[FileToStage]:
    files = sorted(path for path in source.rglob("*") if path.is_file())
    return [
        FileToStage(
            os.fsencode(path),
            b"near/" + os.fsencode(path.relative_to(source)),
            path.stat().st_size,
            record_digest(path.read_bytes()) if path.suffix == ".jpg" else None,
        )
        for path in files
    ]


def bring(source: Path, stage: Path, wanted: list[FileToStage] | None = None) -> CopyStats:
    copy = StagedCopy(stage / KEY, {"from": str(source)}, "Prepare it again.")
    try:
        told: list[tuple[int, int]] = []
        done = copy.copy(
            wanted_of(source) if wanted is None else wanted,
            progress=lambda *both: told.append(both),
            waits=lambda: pytest.fail("nobody else copies"),
        )
        assert not told or told[-1] == (done.bytes, done.bytes)
        return done
    finally:
        copy.close()


def assert_same(source: Path, stage: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            assert (stage / KEY / "near" / path.relative_to(source)).read_bytes() == path.read_bytes(), path
    assert not list((stage / KEY / "parts").iterdir())


def test_files_are_copied_once_byte_for_byte(source, tmp_path):
    total = sum(one.size for one in wanted_of(source))
    assert bring(source, tmp_path / "disk") == CopyStats(31, total, 0, 0)
    assert_same(source, tmp_path / "disk")
    assert bring(source, tmp_path / "disk") == CopyStats(0, 0, 31, 0)
    # What another run wants beside that is added.
    (source / "photos" / "new.jpg").write_bytes(b"new")
    assert bring(source, tmp_path / "disk") == CopyStats(1, 3, 31, 0)


def test_a_copy_that_somebody_wrote_to_is_made_anew(source, tmp_path):
    bring(source, tmp_path)
    near = tmp_path / KEY / "near" / "photos"
    (near / "20.jpg").write_bytes(b"another")
    os.truncate(near / "21.jpg", 100)
    (near / "22.jpg").write_bytes(bytes(len((near / "22.jpg").read_bytes())))
    (near / "23.jpg").unlink()
    assert bring(source, tmp_path)[2:] == (27, 4)
    assert_same(source, tmp_path)


def test_a_container_that_changed_is_copied_again(source, tmp_path):
    bring(source, tmp_path)
    tar = source / "all.tar"
    tar.write_bytes(bytes(tar.stat().st_size))
    assert bring(source, tmp_path).files == 1
    assert_same(source, tmp_path)


def test_a_source_that_is_not_what_was_prepared_is_refused_by_name(source, tmp_path):
    wanted = wanted_of(source)
    photo = source / "photos" / "29.jpg"
    photo.write_bytes(bytes(photo.stat().st_size))
    with raises(DataError, "29.jpg", "bytes", "prepared"):
        bring(source, tmp_path, wanted)
    os.truncate(photo, 10)
    with raises(DataError, "29.jpg", "870 bytes"):
        bring(source, tmp_path, wanted)
    photo.unlink()
    with raises(DataError, "29.jpg", "No such file"):
        bring(source, tmp_path, wanted)
    assert not (tmp_path / KEY / "near" / "photos" / "29.jpg").exists()


def test_a_disk_that_gives_back_other_bytes_is_named(source, tmp_path, monkeypatch):
    monkeypatch.setattr(staged_copy, "pread", lambda descriptor, length, offset: bytes(length))
    with raises(PacelineError, "--copy-data-to", "faulty"):
        bring(source, tmp_path)
    assert not any(path.stat().st_size for path in (tmp_path / KEY / "near").rglob("*") if path.is_file())


def test_too_little_room_is_said_with_both_numbers_before_a_byte_is_copied(source, tmp_path, monkeypatch):
    room = SimpleNamespace(f_blocks=9, f_bfree=3, f_bavail=3, f_frsize=4096, f_files=0, f_favail=0)
    monkeypatch.setattr(os, "statvfs", lambda _: room)
    with pytest.raises(PacelineError, match=r"12\.0 KiB free, .*0\.1 MiB"):
        bring(source, tmp_path)
    room.f_bavail, room.f_files, room.f_favail = 1 << 20, 100, 7
    with pytest.raises(PacelineError, match=r"space for 7 more files \(inodes\), but 31 remain"):
        bring(source, tmp_path)
    assert not (tmp_path / KEY / "near").exists()
    room.f_favail = 31
    bring(source, tmp_path)
    room.f_bavail = room.f_favail = 0  # what is there needs no room
    assert bring(source, tmp_path).kept == 31


def test_a_disk_that_is_full_in_the_middle_ends_in_one_line_and_gives_its_room_back(source, tmp_path, monkeypatch):
    real, written = os.pwrite, []

    def pwrite(descriptor, data, offset):
        written.append(len(data))
        if sum(written) > 6 * PART:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with raises(PacelineError, "full", "folder"):
        bring(source, tmp_path)
    assert not list((tmp_path / KEY / "parts").iterdir())
    monkeypatch.setattr(os, "pwrite", real)
    bring(source, tmp_path)
    assert_same(source, tmp_path)


def test_a_ledger_that_is_torn_or_not_ours_only_costs_copies(source, tmp_path):
    bring(source, tmp_path)
    ledger = tmp_path / KEY / "ledger"
    lines = ledger.read_bytes().splitlines(keepends=True)
    kept = b"".join(lines[:10]) + b"file 1 2\npart zz - 0 near/x\n\xff\xfe rubbish\n" + lines[20][:-5]
    ledger.write_bytes(kept)
    done = bring(source, tmp_path)
    assert done.kept < 31 and done.files + done.kept == 31
    assert_same(source, tmp_path)
    assert bring(source, tmp_path).kept == 31


COPYING = """
import json, os, sys, time
from paceline.data.storage import staged_copy
from paceline.data.storage.store import LocalFiles
staged_copy.PART_BYTES = 1000
staged_copy.THREADS = 2
read = LocalFiles.read
def slow(self, wanted):
    time.sleep(float(sys.argv[2]))
    return read(self, wanted)
LocalFiles.read = slow
wanted = [staged_copy.FileToStage(os.fsencode(a), os.fsencode(b), c, d) for a, b, c, d in json.load(sys.stdin)]
copy = staged_copy.StagedCopy(__import__("pathlib").Path(sys.argv[1]), {"from": "here"}, "again")
done = copy.copy(wanted, progress=lambda *_: None, waits=lambda: print("waits", flush=True))
print(json.dumps(done), flush=True)
"""


def copying(source: Path, folder: Path, seconds: float, name: str = "job") -> tuple[subprocess.Popen, Path]:
    """A process of its own that copies, so many seconds a part; what it says goes to the file."""
    rows = [(os.fsdecode(one.source), os.fsdecode(one.name), one.size, one.digest) for one in wanted_of(source)]
    asked, said = (source.parent / f"{name}.{kind}" for kind in ("json", "txt"))
    asked.write_text(json.dumps(rows))
    with asked.open() as stdin, said.open("w") as stdout:
        command = [sys.executable, "-c", COPYING, str(folder), str(seconds)]
        return subprocess.Popen(command, stdin=stdin, stdout=stdout), said


def killed_when(source: Path, folder: Path, seconds: float, there: Callable[[bytes], bool]) -> None:
    """Copy, and kill the process as soon as its ledger is as `there` wants it."""
    process, _ = copying(source, folder, seconds)
    ledger = folder / "ledger"
    wait_until(lambda: ledger.exists() and there(ledger.read_bytes()))
    process.send_signal(signal.SIGKILL)
    process.wait()


def wait_until(condition, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)


def test_killed_in_the_middle_it_goes_on_and_copies_nothing_twice(source, tmp_path, monkeypatch):
    folder = tmp_path / KEY
    # "all.tar" comes first: all parts of it, and then some photos.
    killed_when(source, folder, 0.02, lambda text: text.count(b"\nfile") >= 8)
    finished, begun = read_ledger(folder / "ledger")
    assert 8 <= len(finished) < 31 and not begun
    assert {path.name for path in (folder / "near").rglob("*.*")} <= {os.path.basename(os.fsdecode(n)) for n in finished}
    read: list[bytes] = []
    real = store.LocalFiles.read
    monkeypatch.setattr(store.LocalFiles, "read", lambda self, wanted: (read.append(wanted.name), real(self, wanted))[1])
    done = bring(source, tmp_path)
    there = {os.fsencode(source) + name.removeprefix(b"near") for name in finished}
    assert len(there & set(read)) <= 1  # at most the one whose name was missing
    assert done.kept >= len(finished) - 1
    assert_same(source, tmp_path)


def test_killed_in_the_middle_of_a_large_file_it_goes_on_there(source, tmp_path, monkeypatch):
    shutil.rmtree(source / "photos")
    folder = tmp_path / KEY
    killed_when(source, folder, 0.1, lambda text: b"\npart" in text)
    _, begun = read_ledger(folder / "ledger")
    ((_, _, firsts),) = begun.values()
    asked: list[int] = []
    real = store.LocalFiles.read
    monkeypatch.setattr(store.LocalFiles, "read", lambda self, w: (asked.append(w.offset), real(self, w))[1])
    bring(source, tmp_path)
    assert firsts and sorted([*asked, *firsts]) == list(range(0, 5 * PART + 10, PART))
    assert_same(source, tmp_path)


def test_parts_of_a_source_that_changed_meanwhile_are_not_joined_with_it(source, tmp_path):
    shutil.rmtree(source / "photos")
    folder = tmp_path / KEY
    killed_when(source, folder, 0.1, lambda text: b"\npart" in text)
    (source / "all.tar").write_bytes(b"x" * (5 * PART + 10))
    bring(source, tmp_path)
    assert_same(source, tmp_path)


def test_two_jobs_at_once_share_one_copy(source, tmp_path):
    jobs = [copying(source, tmp_path / KEY, 0.1, "one")]
    wait_until((tmp_path / KEY / "ledger").exists)  # it holds the lock, and has seconds of parts before it
    jobs.append(copying(source, tmp_path / KEY, 0.1, "other"))
    assert [process.wait() for process, _ in jobs] == [0, 0]
    said = [text.read_text().splitlines() for _, text in jobs]
    done = [json.loads(lines[-1]) for lines in said]
    assert sorted(one[0] for one in done) == [0, 31] and sum("waits" in lines for lines in said) == 1
    assert_same(source, tmp_path)


def test_clearing_removes_what_staging_wrote_and_nothing_else(source, tmp_path):
    disk = tmp_path / "disk"
    bring(source, disk)
    (disk / "mine").mkdir()
    (disk / "mine" / "staged.json").write_text('{"paceline_staged": 1}')
    (disk / "paceline-fedcba9876543210").mkdir()  # looks like ours, and is not
    (disk / "paceline-fedcba9876543210" / "notes").write_text("mine")
    assert list_copies(disk) == [disk / KEY]
    assert clear_copies(disk) == (1, sum(one.size for one in wanted_of(source)), [])
    assert sorted(path.name for path in disk.iterdir()) == ["mine", "paceline-fedcba9876543210"]
    assert clear_copies(disk) == (0, 0, [])
    bring(source, disk)
    (disk / KEY / "near" / "photos" / "my notes").write_text("mine")
    _, _, left = clear_copies(disk)
    assert left == [disk / KEY]
    assert [path.name for path in (disk / KEY).rglob("*") if path.is_file() and path.name not in staged_copy.OURS] == [
        "my notes"
    ]
    bring(source, disk)
    assert_same(source, disk)


def test_clearing_follows_no_link_out_of_a_copy_and_leaves_other_users_copies(source, tmp_path, monkeypatch):
    disk, mine = tmp_path / "disk", tmp_path / "mine"
    bring(source, disk)
    near = disk / KEY / "near"
    shutil.copytree(near, mine)
    shutil.rmtree(near)
    near.symlink_to(mine)
    (disk / KEY / "parts").rmdir()
    (disk / KEY / "parts").symlink_to(mine)
    (mine / "thesis.tex").write_text("mine")
    before = sorted(mine.rglob("*"))
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert list_copies(disk) == []
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    clear_copies(disk)
    assert sorted(mine.rglob("*")) == before


def test_a_copy_in_use_is_not_cleared(source, tmp_path):
    copy = StagedCopy(tmp_path / KEY, {}, "")
    with raises(PacelineError, "run", "copy"):
        clear_copies(tmp_path)
    copy.close()
    assert clear_copies(tmp_path)[0] == 1 and not (tmp_path / KEY).exists()


def test_a_folder_that_cannot_be_ours_is_refused(source, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / KEY).symlink_to(tmp_path / "elsewhere")
    with raises(PacelineError, "--copy-data-to", "folder"):
        bring(source, tmp_path)
    (tmp_path / "file").write_text("")
    with raises(PacelineError, "--copy-data-to", "file", "written"):
        bring(source, tmp_path / "file")
    assert not list((tmp_path / "elsewhere").iterdir())


@given(st.binary(min_size=1, max_size=60).filter(lambda name: b"\0" not in name))
def test_no_name_leads_out_of_the_copy(name):
    inside = os.path.normpath(b"/copy/" + staged_name(name))
    assert inside.startswith((b"/copy/near/", b"/copy/far/")) and all(
        len(part) <= 255 or part in name for part in inside.split(b"/")
    )


def test_names_that_lead_elsewhere_have_places_of_their_own():
    assert staged_name(b"train/ant/1.jpg") == b"near/train/ant/1.jpg"
    far = [staged_name(name) for name in (b"/data/a.tar", b"../a.tar", b"s3://bucket/a.tar", b"x//a.tar")]
    assert len(set(far)) == 4 and all(name.startswith(b"far/") and name.endswith(b"-a.tar") for name in far)
