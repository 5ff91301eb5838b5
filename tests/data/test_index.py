"""The index: what was written comes back, bytes are read where they lie, and nothing is kept per image."""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from messages import check_text, raises

from paceline._utils.errors import DataError
from paceline.data.index.index import Index, describe_arrays, file_per_record_arrays, pack_names, write_index
from paceline.data.index.manifest import Manifest, Split
from paceline.data.index.staleness import find_stale_file
from paceline.data.prepare.pipeline import KEEP_OLD_INDEX_SECONDS, delete_old_indexes
from paceline.data.storage.store import OpenFiles

EMPTY = {"content_hash": "", "unreadable": (), "rotated": 0, "grayscale": 0, "cmyk": 0, "not_jpeg": 0, "misnamed": 0}


def save(folder: Path, arrays: dict[str, np.ndarray], kind: str = "files") -> Manifest:
    """A manifest with one split, train, over `arrays`."""
    images = len(arrays["labels"])
    numbers = {"folder": "train", "images": images, "bytes": 0, "per_class": (images,), "ignored": 0}
    split = Split(**numbers, **EMPTY, directory_mtimes=(0,), arrays=describe_arrays(arrays), records=kind)
    index = write_index(folder, {"train": arrays})
    manifest = Manifest("class-folder", "any", ".", ("a",), None, index, {"train": split}, "test", folder.absolute())
    manifest.save()
    return manifest


def records(lengths: list[int], **extra: np.ndarray) -> dict[str, np.ndarray]:
    number = len(lengths)
    names = [b"train/a/%d.jpg" % i for i in range(number)]
    ones = np.ones(number)
    return file_per_record_arrays(
        names, lengths=np.array(lengths), labels=0 * ones, heights=ones, widths=2 * ones, extra=extra
    )


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Seven files of 1, 2, ... bytes with an index over them."""
    (tmp_path / "train" / "a").mkdir(parents=True)
    for i in range(7):
        (tmp_path / "train" / "a" / f"{i}.jpg").write_bytes(bytes([i]) * (i + 1))
    save(tmp_path, records([i + 1 for i in range(7)], rows=np.arange(12).reshape(6, 2)))
    return tmp_path


def test_every_record_reads_back_its_own_file(photos):
    index = Index.open(photos, "train")
    assert len(index) == 7
    for i in range(7):
        assert index.read(i) == bytes([i]) * (i + 1)
        assert index.name(i) == str(photos / "train" / "a" / f"{i}.jpg")
    assert (index.heights[3], index.widths[3], index.labels[3]) == (1, 2, 0)


def test_extra_arrays_come_back_by_name(photos):
    assert np.array_equal(Index.open(photos, "train").extra["rows"], np.arange(12).reshape(6, 2))


def test_a_split_without_records_opens(tmp_path):
    save(tmp_path, records([]))
    assert len(Index.open(tmp_path, "train")) == 0


def test_records_in_containers_are_read_by_position(tmp_path):
    (tmp_path / "one.bin").write_bytes(b"0123456789")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "two.bin").write_bytes(b"abcdef")
    arrays = {
        "files": np.array([0, 0, 1, 0], np.int32),
        "offsets": np.array([0, 3, 2, 10], np.int64),
        "lengths": np.array([3, 4, 4, 0], np.int64),
        **{name: np.zeros(4, np.int32) for name in ("labels", "heights", "widths")},
        **pack_names([b"one.bin", os.fsencode(elsewhere / "two.bin")]),
        "file_sizes": np.array([10, 6], np.int64),
    }
    manifest = save(tmp_path, arrays, "ranges")
    assert find_stale_file(manifest) is None
    index = Index.open(tmp_path, "train")
    assert [index.read(i) for i in range(4)] == [b"012", b"3456", b"cdef", b""]
    assert index.name(1) == f"{tmp_path / 'one.bin'} (from byte 3)"
    (tmp_path / "one.bin").write_bytes(b"01234")
    with raises(DataError, "one.bin", "2 bytes", "4"):
        index.read(1)
    stale = find_stale_file(manifest)
    check_text(str(stale), tmp_path / "one.bin", "5 bytes", "10")


def test_one_record_a_container_is_a_range_and_no_whole_file(tmp_path):
    """As many files as records, which says nothing about what a record is: the manifest does."""
    arrays = {**records([2, 2]), "offsets": np.array([1, 3]), "file_sizes": np.array([4, 6])}
    (tmp_path / "train" / "a").mkdir(parents=True)
    for i, content in enumerate((b"-01-", b"---23-")):
        (tmp_path / "train" / "a" / f"{i}.jpg").write_bytes(content)
    manifest = save(tmp_path, arrays, "ranges")
    index = Index.open(tmp_path, "train")
    assert [index.read(i) for i in range(2)] == [b"01", b"23"] and find_stale_file(manifest) is None


def test_a_manifest_says_what_its_records_are_only_where_they_are_no_files(photos):
    assert '"records"' not in (photos / "manifest.json").read_text()
    manifest = Manifest.load(photos)
    assert manifest.splits["train"].records == "files"
    split = replace(manifest.splits["train"], records="ranges")
    replace(manifest, splits={"train": split}).save()
    assert Manifest.load(photos).splits["train"] == split
    with raises(DataError, "'file_sizes'", "train"):
        Index.open(photos, "train")


def test_records_of_an_unknown_kind_are_refused_with_those_that_are_known(tmp_path):
    save(tmp_path, {**records([1]), "file_sizes": np.array([1])}, "tar.zst")
    with raises(DataError, "'tar.zst'", "files, ranges, deflate, recordio", "RECORDS"):
        Index.open(tmp_path, "train")


@pytest.mark.parametrize("content", [b"", b"1", b"123"])
def test_a_file_that_shrank_or_grew_is_named_with_the_next_step(photos, content):
    (photos / "train" / "a" / "1.jpg").write_bytes(content)
    index = Index.open(photos, "train")
    with raises(DataError, "train/a/1.jpg", "2", "paceline prepare folder --data"):
        index.read(1)


def test_a_file_that_is_gone_is_named(photos):
    (photos / "train" / "a" / "1.jpg").unlink()
    with raises(DataError, "train/a/1.jpg", "No such file"):
        Index.open(photos, "train").read(1)


def test_many_threads_read_the_right_bytes(photos):
    index = Index.open(photos, "train")
    order = np.random.default_rng(0).integers(0, 7, 2000).tolist()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(index.read, order)) == [bytes([i]) * (i + 1) for i in order]


def test_many_threads_share_few_descriptors(tmp_path):
    paths = [os.fsencode(tmp_path / str(i)) for i in range(20)]
    for i, path in enumerate(paths):
        Path(os.fsdecode(path)).write_bytes(bytes([i]))
    table = OpenFiles(most=3)

    def read(i: int) -> bytes:
        with table.descriptor(paths[i]) as descriptor:
            return os.pread(descriptor, 2, 0)

    order = np.random.default_rng(0).integers(0, 20, 3000).tolist()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, order)) == [bytes([i]) for i in order]
    assert len(table) == 3
    table.close()
    assert len(table) == 0


def test_a_descriptor_stays_open_while_a_thread_reads_it(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"1")
    second.write_bytes(b"2")
    table, inside, go_on = OpenFiles(most=1), threading.Event(), threading.Event()
    seen = []

    def slow_reader() -> None:
        with table.descriptor(os.fsencode(first)) as descriptor:
            inside.set()
            go_on.wait(10)
            seen.append(os.pread(descriptor, 1, 0))

    reader = threading.Thread(target=slow_reader)
    reader.start()
    inside.wait(10)
    with table.descriptor(os.fsencode(second)):
        assert len(table) == 2
    go_on.set()
    reader.join()
    assert seen == [b"1"] and len(table) == 1
    table.close()


def test_a_file_that_cannot_be_opened_leaves_no_trace_in_the_table(tmp_path):
    table = OpenFiles()
    with pytest.raises(FileNotFoundError), table.descriptor(os.fsencode(tmp_path / "missing")):
        raise AssertionError("not reached")
    assert len(table) == 0


def test_an_index_of_1_281_167_records_is_all_memory_maps(tmp_path):
    number = 1_281_167
    # Names of one length make the blob without a Python object each.
    digits = np.char.zfill(np.arange(number).astype("S7"), 7)
    arrays = {
        "files": np.arange(number, dtype=np.int32),
        "offsets": np.zeros(number, np.int64),
        "lengths": np.full(number, 5, np.int64),
        **{name: np.zeros(number, np.int32) for name in ("labels", "heights", "widths")},
        "name_bytes": digits.view(np.uint8),
        "name_starts": np.arange(number + 1, dtype=np.int64) * 7,
    }
    save(tmp_path, arrays)
    index = Index.open(tmp_path, "train")
    assert len(index) == number and index.name(number - 1).endswith("/1281166")
    places = index.records.places
    for array in (places.files, places.offsets, index.lengths, index.labels, places.name_bytes, places.name_starts):
        assert isinstance(array.base, np.memmap) and not array.flags.writeable and array.dtype != object
    (tmp_path / "0777777").write_bytes(b"hello")
    assert index.read(777_777) == b"hello"


def test_writing_the_same_data_twice_gives_the_same_folder_and_mends_a_damaged_one(photos):
    first = Manifest.load(photos).index
    torn = photos / first / "train.lengths.npy"
    torn.write_bytes(torn.read_bytes()[:-8])
    with raises(DataError, "train.lengths.npy", "missing"):
        Index.open(photos, "train")
    again = save(photos, records([i + 1 for i in range(7)], rows=np.arange(12).reshape(6, 2)))
    assert again.index == first and Index.open(photos, "train").read(6) == bytes([6]) * 7
    assert [entry.name for entry in (photos / "index").iterdir()] == [Path(first).name]


def test_the_folder_of_the_same_data_never_changes(tmp_path):
    """It is what the index's arrays are compared with, of data sets of older versions too."""
    arrays = {"lengths": np.array([1, 2], np.int64), "labels": np.array([0, 5], np.int32)}
    text = b"val.labels int32 (2,)\n" + bytes([0, 0, 0, 0, 5, 0, 0, 0])
    text += b"val.lengths int64 (2,)\n" + bytes([1, *[0] * 7, 2, *[0] * 7])
    wanted = hashlib.sha256(text).hexdigest()[:16]
    assert write_index(tmp_path, {"val": arrays}) == f"index/{wanted}"


def test_other_data_goes_to_another_folder_and_an_open_index_stays_valid(photos):
    before = Index.open(photos, "train")
    changed = save(photos, records([i + 1 for i in range(6)]))
    assert len(Index.open(photos, "train")) == 6 and len(before) == 7 and before.read(6) == bytes([6]) * 7
    assert len(list((photos / "index").iterdir())) == 2
    delete_old_indexes(photos, keep={changed.index}, alone=True)
    assert len(list((photos / "index").iterdir())) == 2, "a run may just be opening the one before"
    for entry in (photos / "index").iterdir():
        os.utime(entry, (0, entry.stat().st_mtime - KEEP_OLD_INDEX_SECONDS - 60))
    delete_old_indexes(photos, keep={changed.index}, alone=True)
    assert [f"index/{entry.name}" for entry in (photos / "index").iterdir()] == [changed.index]


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="No space left"):
        write_index(tmp_path, {"train": records([1])})
    assert list((tmp_path / "index").iterdir()) == []


@pytest.mark.parametrize("described", [["int64", 8], ["int32", 7], ["int64", 7, 1]])
def test_an_array_unlike_the_manifest_is_refused(photos, described):
    manifest = Manifest.load(photos)
    split = manifest.splits["train"]
    arrays = {**split.arrays, "lengths": described}
    replace(manifest, splits={"train": replace(split, arrays=arrays)}).save()
    with raises(DataError, "manifest"):
        Index.open(photos, "train")


def test_a_missing_required_array_and_an_unknown_split_are_named(photos):
    manifest = Manifest.load(photos)
    split = manifest.splits["train"]
    arrays = {name: shape for name, shape in split.arrays.items() if name != "widths"}
    replace(manifest, splits={"train": replace(split, arrays=arrays)}).save()
    with raises(DataError, "'widths'", "train"):
        Index.open(photos, "train")
    with raises(DataError, "'val'", "train"):
        Index.open(photos, "val")


def test_names_that_are_not_utf8_survive(tmp_path):
    name = b"train/a/\xff\xfe.jpg"
    (tmp_path / "train" / "a").mkdir(parents=True)
    Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))).write_bytes(b"ok")
    ones = np.ones(1)
    save(tmp_path, file_per_record_arrays([name], lengths=2 * ones, labels=0 * ones, heights=ones, widths=ones, extra={}))
    assert Index.open(tmp_path, "train").read(0) == b"ok"
