"""A file appears whole or not at all, and there is one way to write it so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import paceline
import paceline._utils.atomic_write as module
from paceline._utils.atomic_write import atomic_write, atomic_writer, new_folder_part, remove_stale_parts

PACKAGE = Path(paceline.__file__).parent
# Who puts something in place that is no single file written at once: folders, links, and files that grow until they are whole.
OWN = {
    "_utils/atomic_write.py",
    "data/index/index.py",
    "data/storage/staged_copy.py",
    "data/download/part.py",
    "data/download/unpack.py",
    "inference/outputs/prediction_dir.py",
}


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("content", ["tür\n", "tür\n".encode(), ["t", "ür".encode(), "\n"], (), ""], ids=str)
def test_the_file_holds_all_pieces_and_nothing_else_is_left(tmp_path, content, sync):
    file = tmp_path / "a"
    file.write_text("much longer than what comes")
    atomic_write(file, content, sync=sync)
    assert file.read_bytes() == ("tür\n".encode() if content else b"")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError()], ids=repr)
def test_an_error_half_way_leaves_the_old_file_and_no_part(tmp_path, error):
    def pieces():
        yield "new"
        raise error

    file = tmp_path / "a"
    atomic_write(file, "old")
    with pytest.raises(type(error)):
        atomic_write(file, pieces())
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_what_cannot_take_its_place_leaves_no_part(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError):
        atomic_write(tmp_path / "a", "x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_two_writers_at_once_do_not_meet(tmp_path):
    file = tmp_path / "a"
    with atomic_writer(file) as first, atomic_writer(file) as second:
        first.write_text("first")
        second.write_text("second")
        assert not file.exists()
    assert file.read_text() == "first" and list(tmp_path.iterdir()) == [file]


def test_synced_bytes_are_on_the_disk_before_the_name_and_the_name_before_anything_else(tmp_path, monkeypatch):
    done: list[str] = []

    def noting(name, real):
        return lambda *args: (done.append(name), real(*args))[1]

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, noting(name, getattr(os, name)))
    atomic_write(tmp_path / "a", "x", sync=True)
    assert done == ["fsync", "replace", "fsync"]  # the folder last, or the name may be lost


def test_a_folder_that_cannot_be_synced_has_the_file_all_the_same(tmp_path, monkeypatch):
    def opened(path, *more):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "open", opened)
    atomic_write(tmp_path / "a", "x", sync=True)
    assert (tmp_path / "a").read_text() == "x" and list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_what_a_kill_left_is_swept_and_nothing_else(tmp_path):
    theirs = [".events.jsonl.part", ".mine.0f0f0f0g.part", "a.0f0f0f0f.part", ".lock", "run.json"]
    for name in (*theirs, ".run.json.0f0f0f0f.part", ".b.0f0f0f0f.part"):
        (tmp_path / name).touch()
    (tmp_path / ".folder.0f0f0f0f.part").mkdir()
    (tmp_path / ".link.0f0f0f0f.part").symlink_to("run.json")
    theirs += [".folder.0f0f0f0f.part", ".link.0f0f0f0f.part"]
    remove_stale_parts(tmp_path, {"b"})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([*theirs, ".run.json.0f0f0f0f.part"])
    remove_stale_parts(tmp_path)
    remove_stale_parts(tmp_path / "missing")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(theirs)


@pytest.mark.parametrize("sweeper", ["done", "at work"])
@pytest.mark.parametrize("kind", [atomic_writer, new_folder_part])
def test_a_writer_makes_another_part_if_one_is_swept_before_its_lock(tmp_path, monkeypatch, kind, sweeper):
    opened = []

    def late(descriptor, *, own=module.flock):
        monkeypatch.setattr(module, "flock", own)
        if sweeper == "done":
            remove_stale_parts(tmp_path)
            with kind(tmp_path / "a") as other:
                assert other.exists()
        else:
            (part,) = tmp_path.iterdir()
            opened.extend([part, os.open(part, os.O_RDONLY)])
            own(opened[1])
        own(descriptor)

    monkeypatch.setattr(module, "flock", late)
    with kind(tmp_path / "a") as part:
        assert part.exists() and part not in opened
    if opened:
        os.close(opened[1])


def test_the_part_of_a_living_writer_is_not_swept_and_that_of_a_killed_one_is(tmp_path):
    with atomic_writer(tmp_path / "a") as part:
        part.write_text("x")
        remove_stale_parts(tmp_path)
        assert part.exists()
    code = (
        "import os, sys; from pathlib import Path; from paceline._utils.atomic_write import atomic_writer\n"
        "with atomic_writer(Path(sys.argv[1])) as part: part.write_text('half'); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path / "b"], check=False).returncode == -9
    assert len(list(tmp_path.iterdir())) == 2
    remove_stale_parts(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_there_is_one_way_to_write_a_file_whole():
    files = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if "os.replace(" in path.read_text()}
    assert files == OWN
