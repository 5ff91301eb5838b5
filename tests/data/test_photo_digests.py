"""A photo whose bytes changed after prepare is named when it is read, wherever they lie, and never learnt unasked."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from faulty_server import FaultyServer
from messages import check_text
from packed_sets import CONTAINERS, pack_both, with_magic
from run_files import tensor_files
from tiny_runs import command, make_photos, train

from paceline._utils.errors import DataError
from paceline.data.index.index import Index, open_split
from paceline.data.index.manifest import Manifest
from paceline.data.index.records import CachedRecords, DamagedRecord
from paceline.data.prepare.class_source import prepare_folder
from paceline.data.storage.cache import SharedMemoryCache
from paceline.data.storage.staged_copy import staged_name
from paceline.data.storage.store import get_scheme
from paceline.training.staged_data import staged_records

SEVERAL = ["class folder", *CONTAINERS]
CHANGED = "the bytes differ from those that were prepared|damaged"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One photo is a record of RecordIO's in pieces."""
    root = make_photos(tmp_path_factory.mktemp("set") / "photos", ("a", "b"), train=3, val=2)
    first = root / "train" / "a" / "0.jpg"
    first.write_bytes(with_magic(first.read_bytes()))
    return root


def prepared(folder: Path, container: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], at: str = "") -> Manifest:
    """The photos in containers of this kind; at: the server that has them, "" for a disk."""
    if container == "class folder":
        shutil.copytree(folder, tmp_path / "set")
        return prepare_folder(tmp_path / "set")
    words = [word.replace(f"{tmp_path}/", at) if at else word for word in pack_both(folder, container, tmp_path / "packed")]
    said = command(capsys, "prepare", *words, "--output-dir", tmp_path / "set")
    assert said.code == 0, said.err
    return Manifest.load(tmp_path / "set")


def flip(path: Path, at: int) -> None:
    """One bit of a byte, and the file's size and time as they were: as a failing disk leaves it."""
    status, data = path.stat(), bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def middle_of(index: Index, i: int) -> int:
    """A byte in the middle of record i, counted in its file."""
    places = index.records.places
    stored = -1 if places.stored_lengths is None else int(places.stored_lengths[i])
    return int(places.offsets[i]) + (int(places.lengths[i]) if stored < 0 else stored) // 2


def check_named(index: Index, changed: int) -> None:
    """Of all records, that one alone is refused, however it is asked for."""
    for i in range(len(index)):
        if i != changed:
            assert len(index.read(i)) == index.lengths[i]
            continue
        with pytest.raises(DamagedRecord, match=CHANGED) as found:
            index.read(i)
        assert str(found.value).startswith(index.records.path(i)) and found.value.reason in str(found.value)
    with pytest.raises(DamagedRecord, match=CHANGED):
        index.records.read_many(range(len(index)))


@pytest.mark.parametrize("container", SEVERAL)
def test_one_changed_bit_names_its_photo(folder, container, tmp_path, capsys):
    manifest = prepared(folder, container, tmp_path, capsys)
    for split, changed in (("train", 0), ("val", 3)):
        index = open_split(manifest, split)
        whole = [index.read(i) for i in range(len(index))]
        flip(Path(index.records.path(changed)), middle_of(index, changed))
        check_named(open_split(manifest, split), changed)
        free = open_split(manifest, split).records.unchecked()
        assert [free.read(i) for i in range(len(index)) if i != changed] == whole[:changed] + whole[changed + 1 :]
        if container != "deflated zip":  # whose own format may say that it is damaged
            assert sum(np.frombuffer(free.read(changed), np.uint8) != np.frombuffer(whole[changed], np.uint8)) == 1


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_a_server_that_sends_other_bytes_is_not_believed(folder, container, scheme, tmp_path, capsys, monkeypatch):
    pytest.importorskip("obstore", reason="the extra paceline[remote] is not installed")
    with FaultyServer() as server:
        server.be_reached(monkeypatch)
        pack_both(folder, container, tmp_path / "packed")
        for path in (tmp_path / "packed").iterdir():
            server.files[f"/packed/{path.name}"] = path.read_bytes()
        manifest = prepared(folder, container, tmp_path, capsys, at=f"{server.url}/" if scheme == "http" else "s3://")
        index = open_split(manifest, "train")
        path = index.records.path(2)
        assert get_scheme(path) == scheme
        data = bytearray(server.files[f"/packed/{os.path.basename(path)}"])
        data[middle_of(index, 2)] ^= 4
        server.sent[f"/packed/{os.path.basename(path)}"] = bytes(data)
        check_named(index, 2)


@pytest.mark.parametrize("container", SEVERAL)
def test_a_copy_that_changed_is_named_and_said_how_to_make_anew(folder, container, tmp_path, capsys):
    manifest = prepared(folder, container, tmp_path, capsys)
    index = open_split(manifest, "train")
    places = index.records.places
    for file in range(len(places.file_sizes)):
        there = tmp_path / "copy" / os.fsdecode(staged_name(places.file_name(file)))
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(os.fsdecode(places.file_path(file)), there)
    staged = staged_records(index.records, manifest.splits["train"].records, tmp_path / "copy", "Make it anew.")
    whole = staged.read_many(range(len(index)))
    flip(Path(staged.path(1)), middle_of(index, 1))
    with pytest.raises(DataError, match=rf"copy/.*({CHANGED}).*Make it anew\.$") as found:
        staged.read(1)
    assert "touch" not in str(found.value)
    assert staged.read(2) == whole[2] and index.read(1) == whole[1]
    if container != "deflated zip":
        assert len(staged.unchecked().read(1)) == len(whole[1])


def test_what_memory_keeps_was_compared_as_it_was_read(folder, tmp_path, capsys):
    index = open_split(prepared(folder, "class folder", tmp_path, capsys), "train")
    kept = CachedRecords(index.records, SharedMemoryCache(-1, len(index), 1 << 20), 0)
    whole = kept.read(0)
    for i in (0, 1):
        flip(Path(index.records.path(i)), 50)
    assert kept.read(0) == whole
    with pytest.raises(DamagedRecord, match=CHANGED):
        kept.read(1)
    assert len(kept.unchecked().read(1)) == index.lengths[1]


def test_an_index_without_digests_is_read_as_it_is_and_one_of_another_shape_is_refused(folder, tmp_path, capsys):
    index = open_split(prepared(folder, "class folder", tmp_path, capsys), "train")
    from paceline.data.index.index import file_per_record_arrays, make_index

    names = [index.relative_name(i) for i in range(len(index))]
    facts = {"lengths": index.lengths, "labels": index.labels, "heights": index.heights, "widths": index.widths}
    flip(Path(index.records.path(0)), 50)
    without = make_index(file_per_record_arrays(names, **facts, extra={}), index.root, "train")
    assert len(without.read(0)) == index.lengths[0]
    for odd in (index.extra["digests"][1:], index.extra["digests"].astype(np.int64)):
        with pytest.raises(DataError, match="digests"):
            make_index(file_per_record_arrays(names, **facts, extra={"digests": odd}), index.root, "train")


@pytest.mark.usefixtures("no_report")
def test_a_run_that_reads_a_changed_photo_ends_by_its_name_unless_it_was_told_not_to_look(folder, tmp_path, capsys):
    data = tmp_path / "data"
    shutil.copytree(folder, data)
    assert train(capsys, data, tmp_path / "before").code == 0
    photo = data / "train" / "b" / "1.jpg"
    flip(photo, photo.stat().st_size * 2 // 3)
    said = train(capsys, data, tmp_path / "named")
    assert said.code == 2 and check_text(said.err, photo, "bytes", "prepared")
    assert check_text(said.err, "Restore") and "Traceback" not in said.err
    said = train(capsys, data, tmp_path / "told", "--system.no-verify-checksums")
    assert said.code == 0, said.err
    assert tensor_files(tmp_path / "before") != tensor_files(tmp_path / "told")
    # Where the change is meant, what the message says helps.
    photo.touch()
    assert command(capsys, "prepare", "folder", data).code == 0
    index = Index.open(data, "train")
    assert all(index.read(i) for i in range(len(index)))


@pytest.mark.usefixtures("no_report")
def test_evaluation_and_preview_name_a_changed_photo(folder, tmp_path, capsys):
    data = tmp_path / "data"
    shutil.copytree(folder, data)
    assert train(capsys, data, tmp_path / "run").code == 0
    photo = data / "val" / "b" / "1.jpg"
    flip(photo, photo.stat().st_size // 2)
    said = command(capsys, "eval", tmp_path / "run")
    assert said.code == 2 and f"{photo}: the bytes" in said.err
    for photo in data.rglob("train/*/*.jpg"):
        flip(photo, photo.stat().st_size // 2)
    said = command(capsys, "preview", "classify-demo", "--data", data, "--output", tmp_path / "preview.png")
    assert said.code == 2 and check_text(said.err, "bytes", "prepared")
