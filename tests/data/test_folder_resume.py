"""A killed prepare loses nothing, a repeated one decodes only what changed, and two at once do no harm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from photo_folders import paint

from paceline._utils.errors import DataError
from paceline._utils.reporter import Lines
from paceline.cli.printing import format_prepared
from paceline.data.index.index import Index
from paceline.data.index.manifest import cached_manifest_folder, find_manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.data.prepare.class_source import prepare_folder
from paceline.data.prepare.verify_image import ImageInfo
from paceline.data.prepare.verify_images import PrepareJournal, open_prepare_journal, read_journal

KILLED = """
import os, signal, sys
from pathlib import Path
from paceline.data.prepare.class_source import prepare_folder
def kill(done, total):
    if done >= 64:
        os.kill(os.getpid(), signal.SIGKILL)
prepare_folder(Path(sys.argv[1]), workers=1, progress=kill)
"""


def test_a_killed_prepare_leaves_no_manifest_and_the_next_one_goes_on(photos, verified):
    for i in range(120):
        paint(photos / "train" / "cat" / f"many {i}.jpg")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    died = subprocess.run([sys.executable, "-c", KILLED, str(photos)], env=environment, timeout=60)
    assert died.returncode == -signal.SIGKILL and find_manifest(photos) is None
    kept = {name for name, _ in read_journal(open_prepare_journal(photos))}
    assert len(kept) >= 64
    assert not list(photos.glob("*journal*"))
    with open(open_prepare_journal(photos), "ab") as file:
        file.write(b"v3 4711 17")  # what a kill may leave of a line
    progress = []
    manifest = prepare_folder(photos, progress=lambda done, total: progress.append((done, total)))
    assert len(verified) == 130 - len(kept) and progress[0] == (0, 130) and progress[-1] == (130, 130)
    assert sorted(os.listdir(photos)) == ["index", "manifest.json", "train", "val"]
    fresh = prepare_folder(photos, out=photos / "again")
    assert fresh.splits == manifest.splits and fresh.index == manifest.index


def test_only_what_changed_is_decoded_again(photos, verified):
    prepare_folder(photos)
    verified.clear()
    paint(photos / "train" / "cat" / "new.jpg")
    paint(photos / "val" / "dog" / "1.jpg", size=(20, 20))
    prepare_folder(photos)
    assert sorted(verified) == ["1.jpg", "new.jpg"]
    assert Index.open(photos, "val").widths.tolist() == [16, 16, 16, 20]


def test_after_a_refusal_only_the_mended_file_is_decoded(photos, verified):
    (photos / "train" / "cat" / "0.jpg").write_bytes(b"")
    with pytest.raises(DataError):
        prepare_folder(photos)
    verified.clear()
    paint(photos / "train" / "cat" / "0.jpg")
    prepare_folder(photos)
    assert verified == ["0.jpg"]


@pytest.mark.parametrize(
    "torn", [b"v3 5 6 7", b"v3 1 2 3 4 5 6 7 name-without-newline", b"\0\0\0\0\n", b"v2 1 2 3 4 5 6 x\n", b"\0" * (1 << 15)]
)
def test_a_torn_journal_line_is_dropped_and_the_next_one_kept(tmp_path, torn):
    path = tmp_path / "journal"
    odd = b"train/a b/\xff\n%.jpg"
    facts = ImageInfo(10, 1_700_000_000_000_000_000, 3, 4, 5, 2**64 - 1)
    for name in (b"first", odd):
        journal = PrepareJournal(path)
        journal.append([(name, facts)])
        with open(path, "ab") as file:
            file.write(torn)
    assert [entry for entry in read_journal(path) if entry[0] != b"name-without-newline"] == [
        (b"first", facts),
        (odd, facts),
    ]


def test_a_changed_bit_of_the_journal_makes_its_photo_be_verified_again(tmp_path):
    path, facts = tmp_path / "journal", ImageInfo(10, 1_700_000_000_000_000_000, 3, 4, 5, 2**64 - 1)
    journal = PrepareJournal(path)
    journal.append([(b"a/b.jpg", facts), (b"c.jpg", facts)])
    data, whole = path.read_bytes(), {(b"a/b.jpg", facts), (b"c.jpg", facts)}
    for bit in range(0, 8 * len(data), 7):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert set(read_journal(path)) <= whole, bit


def test_a_journal_that_a_folder_brings_is_not_believed(photos, verified):
    """As an earlier version left it, and as this one writes it: beside the photos neither is looked at, or touched."""
    for name in ("prepare.journal", "another.journal"):
        journal = PrepareJournal(photos / name)
        for path in sorted(photos.rglob("*.jpg")):
            status = path.stat()
            facts = ImageInfo(status.st_size, status.st_mtime_ns, 12, 16, 0, 7)
            journal.append([(os.fsencode(path.relative_to(photos)), facts)])
    before = (photos / "prepare.journal").read_bytes()
    prepare_folder(photos)
    assert len(verified) == 10 and (photos / "prepare.journal").read_bytes() == before


def test_another_users_journal_is_not_believed(photos, verified, monkeypatch):
    """As one in a cache folder that several users share."""
    (photos / "train" / "cat" / "0.jpg").write_bytes(b"")
    with pytest.raises(DataError):
        prepare_folder(photos)
    verified.clear()
    paint(photos / "train" / "cat" / "0.jpg")
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    prepare_folder(photos)
    assert len(verified) == 10


@pytest.mark.parametrize("cache", ["a file", "nowhere"])
def test_without_a_cache_that_can_be_written_prepare_works_and_remembers_nothing(photos, tmp_path, monkeypatch, cache):
    (tmp_path / "a file").touch()
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "a file") if cache == "a file" else "~nobody-of-this-name/x")
    prepare_folder(photos)
    assert sorted(os.listdir(photos)) == ["index", "manifest.json", "train", "val"]


def test_two_prepares_at_once_both_end_with_a_valid_index(photos):
    for i in range(60):
        paint(photos / "train" / "cat" / f"many {i}.jpg")
    together = threading.Barrier(2)
    results: list[Path] = []

    def run() -> None:
        together.wait(10)
        results.append(prepare_if_needed(photos, reporter=Lines(str, format_prepared)))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [cached_manifest_folder(photos)] * 2
    index = Index.open(results[0], "train")
    assert len(index) == 66 and all(index.read(i) for i in range(66))
    assert sorted(os.listdir(results[0])) == ["check.html", "index", "manifest.json"]


def test_the_number_of_threads_changes_nothing(photos, tmp_path):
    one, four = (prepare_folder(photos, out=tmp_path / str(workers), workers=workers) for workers in (1, 4))
    assert one.splits == four.splits and one.index == four.index
