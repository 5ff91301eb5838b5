"""A pack that is killed, runs out of space or is given again: finished files stay, half ones never have a final name."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from messages import raises
from sets_to_pack import class_set, photos_and_labels

from paceline._utils.errors import DataError, PacelineError
from paceline.data.containers.tar import RECORD
from paceline.data.index.manifest import Manifest
from paceline.data.pack import pack as packing
from paceline.data.pack import write
from paceline.data.pack.pack import FILE_NAME, pack
from paceline.data.pack.plan import PackRequest

REQUEST = PackRequest("webdataset", num_shards=5)
# Reads photos slowly, so that a kill finds files that are finished and one that is not.
SLOW = """
import sys, time
from pathlib import Path
from paceline.data.index.manifest import Manifest
from paceline.data.index.records import FileRecords
from paceline.data.pack.pack import pack
from paceline.data.pack.plan import PackRequest

read = FileRecords.read
FileRecords.read = lambda self, i: time.sleep(0.05) or read(self, i)
pack(Manifest.load(Path(sys.argv[1])), PackRequest("webdataset", num_shards=5), Path(sys.argv[2]), workers=1)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Manifest:
    return class_set(tmp_path_factory.mktemp("classes"), tmp_path_factory.mktemp("index"))


@pytest.mark.parametrize("name", ["pack.jsonl", ".pack.lock"])
def test_a_file_of_the_users_under_a_name_of_ours_is_neither_cut_nor_followed(source, tmp_path, name):
    mine, out = tmp_path / "mine", tmp_path / "out"
    mine.write_text("first line\nsecond, without an end")
    for make in (lambda: (out / name).symlink_to(mine), lambda: (out / name).write_bytes(mine.read_bytes())):
        out.mkdir()
        make()
        whole = (out / name).is_symlink() or name == "pack.jsonl"
        if whole:
            with raises(DataError, "another"):
                pack(source, REQUEST, out)
        else:
            pack(source, REQUEST, out)
        assert mine.read_text() == (out / name).read_text() == "first line\nsecond, without an end"
        shutil.rmtree(out)


def files_of(out: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.glob("*.tar")}


def test_killed_and_given_again_is_as_never_killed(source, tmp_path):
    whole, _ = pack(source, REQUEST, tmp_path / "whole")
    out = tmp_path / "out"
    child = subprocess.Popen([sys.executable, "-c", SLOW, str(source.folder), str(out)])
    deadline = time.monotonic() + 60
    while not (out / "train-00001.tar").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    before = files_of(out)
    recorded = [json.loads(line) for line in (out / FILE_NAME).read_text().splitlines()[1:]]
    finished = {line["file"] for line in recorded}
    assert 1 <= len(finished) < 7 and not (out / "manifest.json").exists()
    again, _ = pack(source, REQUEST, out)
    after = files_of(out)
    assert {name: data for name, (data, _) in after.items()} == {n: d for n, (d, _) in files_of(tmp_path / "whole").items()}
    assert all(before[name][1] == after[name][1] for name in finished)  # not written once more
    assert not list(out.glob(".*.part"))
    assert again.content_hash == whole.content_hash


def test_given_again_it_mends_what_is_not_as_it_was_written(source, tmp_path):
    first, _ = pack(source, REQUEST, tmp_path)
    wanted = files_of(tmp_path)
    (tmp_path / "train-00002.tar").unlink()
    damaged = bytearray(wanted["train-00003.tar"][0])
    damaged[600] ^= 1
    (tmp_path / "train-00003.tar").write_bytes(damaged)
    again, _ = pack(source, REQUEST, tmp_path)
    assert {name: data for name, (data, _) in files_of(tmp_path).items()} == {n: d for n, (d, _) in wanted.items()}
    assert again.content_hash == first.content_hash
    assert photos_and_labels(again, "train") == photos_and_labels(source, "train")


def test_a_photo_that_changed_stops_it_and_leaves_no_half_file(tmp_path):
    source = class_set(tmp_path / "set", tmp_path / "index")
    path = tmp_path / "set" / "train" / "sea lion" / "d.jpg"
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    with raises(DataError, "d.jpg", "bytes", "prepared"):
        pack(source, PackRequest("recordio"), tmp_path / "out")
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == [".pack.lock", "classes.json", FILE_NAME]


def test_a_disk_that_fills_up_is_named_and_the_finished_files_are_kept(source, tmp_path, monkeypatch):
    calls = []

    def full(out, files):
        calls.append(1)
        if len(calls) > 2:
            raise OSError(28, "No space left on device")
        return real(out, files)

    real = write.write_tar
    monkeypatch.setattr(write, "write_tar", full)
    with raises(DataError, "No space left on device", "command"):
        pack(source, REQUEST, tmp_path)
    assert sorted(files_of(tmp_path)) == ["train-00000.tar", "train-00001.tar"]
    monkeypatch.setattr(write, "write_tar", real)
    packed, _ = pack(source, REQUEST, tmp_path)
    assert photos_and_labels(packed, "train") == photos_and_labels(source, "train")


def test_a_disk_without_room_is_refused_before_anything_is_written(source, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(packing.shutil, "disk_usage", lambda _: usage._replace(free=packing.SPARE_BYTES))
    with raises(DataError, f"{packing.SPARE_BYTES:,}", "free", "--output-dir"):
        pack(source, REQUEST, tmp_path)
    assert not files_of(tmp_path)


def test_other_data_other_flags_and_other_things_are_refused(source, tmp_path):
    out = tmp_path / "out"
    pack(source, REQUEST, out)
    with raises(DataError, "unfinished pack", "--output-dir"):
        pack(source, PackRequest("webdataset", num_shards=4), out)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match=r"has 'thesis\.txt'"):
        pack(source, REQUEST, tmp_path / "mine")
    with raises(DataError, "--output-dir", "packed dataset"):
        pack(source, REQUEST, source.root_path / "packed")
    assert not (source.root_path / "packed").exists()


@pytest.mark.parametrize("line", [0, 1])
def test_a_record_that_was_changed_is_named(source, tmp_path, line):
    pack(source, REQUEST, tmp_path)
    lines = (tmp_path / FILE_NAME).read_text().splitlines()
    lines[line] = lines[line].replace("train-0000", "../rain-0", 1)
    (tmp_path / FILE_NAME).write_text("\n".join(lines) + "\n")
    with pytest.raises(PacelineError, match=f"line {line + 1} is damaged"):
        pack(source, REQUEST, tmp_path)


def test_the_same_source_gives_the_same_bytes(source, tmp_path):
    for name in ("a", "b"):
        pack(source, REQUEST, tmp_path / name)
    first, second = (files_of(tmp_path / name) for name in ("a", "b"))
    assert [data for data, _ in first.values()] == [data for data, _ in second.values()]
    assert all(len(data) % RECORD == 0 for data, _ in first.values())
