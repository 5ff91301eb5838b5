"""Photos in containers: the content of their class folders, bit for bit, from every layout; what is wrong with one is one line."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import packed_sets
import pytest
from instance_sets import json_file, make_instances
from messages import check_text, raises
from packed_sets import ARCHIVES, CONTAINERS, pack_both, photos_of, with_magic
from tiny_runs import command, make_photos

from paceline._utils.errors import DataError
from paceline.data.containers.recordio import RecordIOContent, write_recordio
from paceline.data.containers.tfrecord import example_bytes, write_tfrecord
from paceline.data.index.box_split import open_boxes
from paceline.data.index.index import open_split
from paceline.data.index.manifest import Manifest
from paceline.data.index.staleness import find_stale_file
from paceline.data.prepare import verify_images
from paceline.data.prepare.class_source import prepare_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = make_photos(tmp_path_factory.mktemp("set"), ("a", "a-b", "b"), train=3, val=2)
    for split in ("train", "val"):  # one record of RecordIO's in pieces
        first = root / split / "a" / "0.jpg"
        first.write_bytes(with_magic(first.read_bytes()))
    return prepare_folder(root)


def prepared(capsys, out: Path, *words: str) -> Manifest:
    said = command(capsys, "prepare", *words, "--output-dir", out)
    assert said.code == 0, said.err
    assert said.out.splitlines()[-1].endswith(f"-finetune-cpu --data {out} --auto-config")
    return Manifest.load(out)


@pytest.mark.parametrize("backwards", [False, True], ids=["in order", "backwards"])
@pytest.mark.parametrize("container", CONTAINERS)
def test_the_records_of_a_container_are_the_folders(folder, container, backwards, tmp_path, capsys):
    manifest = prepared(
        capsys, tmp_path / "out", *pack_both(folder.root_path, container, tmp_path / "packed", backwards=backwards)
    )
    assert manifest.classes == folder.classes and find_stale_file(manifest) is None
    if not backwards or container in ARCHIVES:  # archives are read in the order of class folders
        assert manifest.content_hash == folder.content_hash
    for split in ("train", "val"):
        ours, theirs = open_split(manifest, split), open_split(folder, split)
        numbers = {theirs.relative_name(i): i for i in range(len(theirs))}
        rows = [numbers[ours.relative_name(i)] for i in range(len(ours))]
        assert sorted(rows) == list(range(len(theirs)))
        assert rows == sorted(rows, reverse=backwards and container not in ARCHIVES)
        assert [ours.read(i) for i in range(len(ours))] == [theirs.read(i) for i in rows]
        assert ours.records.read_many([1, 0]) == [ours.read(1), ours.read(0)]
        for name in ("labels", "heights", "widths"):
            assert np.array_equal(getattr(ours, name), getattr(theirs, name)[rows])


def test_without_lists_records_are_named_by_place_and_classes_by_number(folder, tmp_path, capsys):
    packed_sets.recordio(photos_of(folder.root_path, "train"), tmp_path / "t.rec", listed=False)
    manifest = prepared(capsys, tmp_path / "out", "recordio", "--train", str(tmp_path / "t.rec"))
    assert manifest.classes == ("0", "1", "2")
    assert open_split(manifest, "train").relative_name(4) == b"train/t/00000004.jpg"
    (tmp_path / "names.txt").write_text("x\ny\nz\nunseen\n")
    again = prepared(
        capsys,
        tmp_path / "named",
        "recordio",
        "--train",
        f"{tmp_path}/t.rec",
        "--class-names-file",
        f"{tmp_path}/names.txt",
    )
    assert again.classes == ("x", "y", "z", "unseen") and again.splits["train"].per_class == (3, 3, 3, 0)


def test_shards_are_read_in_the_order_of_their_names_by_pattern_or_by_number(folder, tmp_path, capsys):
    photos = photos_of(folder.root_path, "train")
    for shard in range(3):
        packed_sets.webdataset(photos[shard * 3 : shard * 3 + 3], tmp_path / f"s-{shard:03d}.tar")
    one = prepared(capsys, tmp_path / "a", "webdataset", "--train", f"{tmp_path}/s-*.tar")
    two = prepared(capsys, tmp_path / "b", "webdataset", "--train", f"{tmp_path}/s-{{000..002}}.tar")
    assert one.splits["train"].content_hash == two.splits["train"].content_hash == folder.splits["train"].content_hash


def test_one_archive_of_both_splits_is_told_by_its_folders(folder, tmp_path, capsys):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for split in ("val", "train"):
            for label, _, name, data in photos_of(folder.root_path, split):
                archive.writestr(f"some/where/{split}/{label}/{name}", data)
        archive.writestr("some/where/README.txt", "hello")
    manifest = prepared(capsys, tmp_path / "out", "zip", "--train", f"{tmp_path}/all.zip")
    assert manifest.content_hash == folder.content_hash
    assert [split.ignored for split in manifest.splits.values()] == [1, 0]


def test_a_share_is_set_apart_as_it_is_of_folders(folder, tmp_path, capsys):
    packed_sets.tar(photos_of(folder.root_path, "train"), tmp_path / "t.tar")
    with tarfile.open(tmp_path / "t.tar", "a") as archive:
        archive.addfile(tarfile.TarInfo("a/notes.txt"))
    manifest = prepared(capsys, tmp_path / "out", "tar", "--train", f"{tmp_path}/t.tar", "--val-fraction", "0.4")
    assert [split.ignored for split in manifest.splits.values()] == [1, 0]
    root = tmp_path / "alone"
    for label, _, name, data in photos_of(folder.root_path, "train"):
        path = root / "train" / label / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    said = command(capsys, "prepare", "folder", root, "--val-fraction", "0.4")
    assert said.code == 0
    assert Manifest.load(root).content_hash == manifest.content_hash


def test_zips_with_annotations_hold_what_the_unpacked_set_does(tmp_path, capsys):
    root = make_instances(tmp_path / "set", train=7, val=6)
    place = tmp_path / "zips"
    place.mkdir()
    for split in ("train", "val"):
        with zipfile.ZipFile(place / f"{split}2017.zip", "w") as archive:
            for path in sorted((root / f"{split}2017").iterdir(), reverse=True):
                archive.write(path, f"{split}2017/{path.name}")
    with zipfile.ZipFile(place / "annotations_trainval2017.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for split in ("train", "val"):
            archive.write(json_file(root, split), f"annotations/instances_{split}2017.json")
    manifest = prepared(capsys, tmp_path / "out", "coco", "--zip-dir", str(place))
    assert command(capsys, "prepare", "coco", root).code == 0
    plain = Manifest.load(root)
    assert manifest.content_hash == plain.content_hash
    assert (manifest.classes, manifest.category_ids) == (plain.classes, plain.category_ids)
    assert find_stale_file(manifest) is None
    (place / "annotations_trainval2017.zip").write_bytes(b"other")
    check_text(str(find_stale_file(manifest)), "annotations_trainval2017.zip", "annotations", "changed")


def test_boxes_come_out_of_tfrecord_and_recordio_as_they_went_in(tmp_path, capsys):
    root = make_instances(tmp_path / "set", train=7, val=6)
    assert command(capsys, "prepare", "coco", root).code == 0
    plain = Manifest.load(root)
    boxes = open_boxes(plain, "train")
    examples, records = [], []
    for i in range(len(boxes)):
        rows = range(boxes.object_starts[i], boxes.object_starts[i + 1])
        height, width = int(boxes.index.heights[i]), int(boxes.index.widths[i])
        x, y, w, h = (boxes.boxes[list(rows), k].astype(float) for k in range(4))
        classes = [int(boxes.category_ids[boxes.classes[row] - 1]) for row in rows]
        corners = {"xmin": x / width, "xmax": (x + w) / width, "ymin": y / height, "ymax": (y + h) / height}
        examples.append(
            example_bytes(
                {
                    "image/encoded": [boxes.index.read(i)],
                    "image/source_id": [str(int(boxes.image_ids[i])).encode()],
                    "image/height": [height],
                    "image/width": [width],
                    "image/object/class/label": classes,
                    "image/object/is_crowd": [int(boxes.crowd[row]) for row in rows],
                    "image/object/area": [float(boxes.areas[row]) for row in rows],
                    **{f"image/object/bbox/{name}": values.tolist() for name, values in corners.items()},
                }
            )
        )
        order = ("xmin", "ymin", "xmax", "ymax")
        label = [2.0, 5.0, *np.stack([np.array(classes), *(corners[name] for name in order)], 1).ravel()]
        records.append(RecordIOContent(i, label, boxes.index.read(i)))
    with open(tmp_path / "t.tfrecord", "wb") as file:
        write_tfrecord(file, examples)
    with open(tmp_path / "t.rec", "wb") as file:
        write_recordio(file, records)
    names = tmp_path / "names.json"
    names.write_text(json.dumps(dict(zip(map(str, plain.category_ids or ()), plain.classes))))
    for layout, source in (("tfrecord", "t.tfrecord"), ("recordio", "t.rec")):
        words = (layout, "--train", f"{tmp_path}/{source}", "--class-names-file", str(names))
        manifest = prepared(capsys, tmp_path / layout, *words)
        assert (manifest.classes, manifest.category_ids) == (plain.classes, plain.category_ids)
        found = open_boxes(manifest, "train")
        assert np.array_equal(found.object_starts, boxes.object_starts)
        assert np.allclose(found.boxes, boxes.boxes, atol=1e-4)
        assert np.array_equal(found.classes, boxes.classes)
        if layout == "tfrecord":
            assert np.array_equal(found.image_ids, boxes.image_ids) and np.array_equal(found.crowd, boxes.crowd)
            assert np.allclose(found.areas, boxes.areas)


def test_a_killed_prepare_verifies_few_photos_twice(folder, tmp_path, capsys, monkeypatch):
    words = pack_both(folder.root_path, "tar", tmp_path / "packed")
    real, count = packed_verify(monkeypatch, fail_at=8)
    with pytest.raises(RuntimeError):
        from paceline.data.containers.source import ContainerRequest, prepare_containers

        monkeypatch.setattr(verify_images, "BATCH", 1)
        prepare_containers(ContainerRequest("tar", (words[2],), (words[4],)), out=tmp_path / "out", workers=1)
    assert not (tmp_path / "out" / "manifest.json").exists()
    packed_verify(monkeypatch, real=real, count=count)  # goes on counting
    prepared(capsys, tmp_path / "out", *words)
    assert 15 + 1 <= len(count) <= 15 + 1 + 2  # the one that was broken off, and at most two that waited behind it
    count.clear()
    prepared(capsys, tmp_path / "out", *words)
    assert not count


def packed_verify(monkeypatch, *, fail_at: int = 0, real=None, count=None):
    from paceline.data.containers import listing

    real = real or listing.verify_bytes
    count = [] if count is None else count

    def verify(*arguments):
        count.append(arguments[1])
        if len(count) == fail_at:
            raise RuntimeError("killed")
        return real(*arguments)

    monkeypatch.setattr(listing, "verify_bytes", verify)
    return real, count


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-700])


@pytest.mark.parametrize("container", [name for name in CONTAINERS if "zip" not in name])
def test_a_container_that_is_cut_off_is_refused_or_used_as_far_as_it_goes(folder, container, tmp_path, capsys):
    words = pack_both(folder.root_path, container, tmp_path / "packed")
    file = Path(words[2])
    data = file.read_bytes()
    at = data.index(photos_of(folder.root_path, "train")[-2][3])
    file.write_bytes(data[: at + 500])
    said = command(capsys, "prepare", *words, "--output-dir", tmp_path / "out")
    assert said.code == 2 and len(said.err.splitlines()) == 1
    assert check_text(said.err, "train", "--on-truncated skip") and not (tmp_path / "out").exists()
    said = command(capsys, "prepare", *words, "--on-truncated", "skip", "--output-dir", tmp_path / "out")
    if said.code:  # the tar of a class is gone with all its photos
        assert check_text(said.err, "train")
        return
    index = open_split(Manifest.load(tmp_path / "out"), "train")
    assert 0 < len(index) < 9 and "truncated" in said.out
    whole = {
        name: data for label, _, one, data in photos_of(folder.root_path, "train") for name in [f"train/{label}/{one}"]
    }
    assert all(index.read(i) == whole[os.fsdecode(index.relative_name(i))] for i in range(len(index)))


def test_flaws_are_one_line_each_and_nothing_is_written(folder, tmp_path, capsys):
    photos, place = photos_of(folder.root_path, "train"), tmp_path / "files"
    place.mkdir()
    packed_sets.tfrecord(photos, place / "crc.tfrecord")
    flip(place / "crc.tfrecord", 400)
    packed_sets.deflated_zip(photos, place / "flipped.zip")
    with zipfile.ZipFile(place / "flipped.zip") as archive:
        at = archive.infolist()[0].header_offset
    flip(place / "flipped.zip", at + 200)
    packed_sets.stored_zip(photos, place / "stored.zip")
    flip(place / "stored.zip", (place / "stored.zip").read_bytes().index(photos[1][3]) + len(photos[1][3]) - 40)
    packed_sets.recordio(photos, place / "other.rec")
    packed_sets.recordio(photos[:-1], place / "less.rec")
    (place / "other.idx").write_bytes((place / "less.idx").read_bytes())
    (place / "none.tar").write_bytes(b"")
    (place / "text.tar").write_text("hello " * 300)
    packed_sets.webdataset(photos, place / "wds.tar")
    packed_sets.tar(photos, place / "plain.tar")
    with open(place / "half.rec", "wb") as file:
        write_recordio(file, [RecordIOContent(0, 0.5, photos[0][3])])
    with open(place / "zero.tfrecord", "wb") as file:
        write_tfrecord(file, [example_bytes({"image/encoded": [photos[0][3]], "image/class/label": [0]})])
    with zipfile.ZipFile(place / "up.zip", "w") as archive:
        archive.writestr("../../a/x.jpg", photos[0][3])
    two = io.BytesIO()
    with zipfile.ZipFile(two, "w") as archive:
        archive.writestr("x.jpg", photos[0][3])
    (place / "flat.zip").write_bytes(two.getvalue())
    cases = {
        "tfrecord crc.tfrecord": "checksum mismatch",
        "zip flipped.zip": "damaged",
        "zip stored.zip": "its CRC differs from the CRC in the archive",
        "recordio other.rec": "belongs to other data",
        "tar none.tar": "tar",
        "tar text.tar": "tar",
        "webdataset plain.tar": "no label",
        "recordio half.rec": "not a class index",
        "tfrecord zero.tfrecord": "--label-offset 0",
        "zip up.zip": '".."',
        "zip flat.zip": "classes are unknown",
        "tar plain.rec": "file not found",
        "tar missing-*.tar": "no file matches",
        "tar s4://bucket/x.tar": "s4:// is not supported",
        "tar .": "a folder",
    }
    for words, expected in cases.items():
        layout, name = words.split()
        source = name if "://" in name else f"{place}/{name}"
        said = command(capsys, "prepare", layout, "--train", source, "--output-dir", tmp_path / "out")
        text = said.err.strip()
        assert said.code == 2, (words, said)
        assert expected in text and "Traceback" not in text, (words, text)
        assert not (tmp_path / "out" / "manifest.json").exists()


def test_files_that_changed_after_indexing_are_told(folder, tmp_path, capsys):
    words = pack_both(folder.root_path, "tar", tmp_path / "packed")
    manifest = prepared(capsys, tmp_path / "out", *words)
    file = Path(words[2])
    whole = file.read_bytes()
    file.write_bytes(whole + bytes(512))
    assert "bytes" in str(find_stale_file(manifest))
    data = bytearray(whole)
    for i in range(9):  # the same size, other photos
        at = int(open_split(manifest, "train").records.places.offsets[i])
        data[at + 300] ^= 1
    file.write_bytes(data)
    assert "bytes differ" in str(find_stale_file(manifest))
    said = command(capsys, "train", "classify-demo", "--data", tmp_path / "out")
    assert said.code == 2 and "paceline prepare tar --train" in said.err
    file.write_bytes(whole)
    os.utime(file, (1, 1))
    assert find_stale_file(manifest) is None  # copied anew


def test_containers_in_the_folder_of_their_index_move_with_it(folder, tmp_path, capsys):
    words = pack_both(folder.root_path, "zip", tmp_path / "here")
    prepared(capsys, tmp_path / "here", *words)
    (tmp_path / "here").rename(tmp_path / "there")
    moved = Manifest.load(tmp_path / "there")
    assert find_stale_file(moved) is None and open_split(moved, "val").read(0)


def test_data_info_says_what_is_there(folder, tmp_path, capsys):
    import hashlib

    manifest = prepared(capsys, tmp_path / "out", *pack_both(folder.root_path, "recordio", tmp_path / "packed"))
    said = command(capsys, "data", "info", tmp_path / "out", "--json")
    train = json.loads(said.out)["splits"]["train"]
    labels = np.repeat([0, 1, 2], 3).astype("<i4")
    assert train["labels_sha256"] == hashlib.sha256(labels.tobytes()).hexdigest()
    assert (train["records"], train["classes"], train["bytes"]) == (9, 3, manifest.splits["train"].bytes)
    text = command(capsys, "data", "info", folder.folder).out
    assert "train: 9 records of 3 classes" in text and train["labels_sha256"] in text
    assert command(capsys, "data", "info", tmp_path).code == 2


def wds(path: Path, keys: dict[str, int], data: bytes) -> str:
    with open(path, "wb") as file:
        members = [
            (f"{key}.{ext}".encode(), what) for key, n in keys.items() for ext, what in (("jpg", data), ("cls", b"%d" % n))
        ]
        packed_sets.write_tar(file, members)
    return str(path)


def test_what_would_be_learned_wrong_is_refused_by_name(folder, tmp_path, capsys):
    photos = photos_of(folder.root_path, "train")
    data = photos[0][3]
    place = tmp_path / "files"
    place.mkdir()

    def tar(name: str, *paths: str) -> str:
        with open(place / name, "wb") as file:
            packed_sets.write_tar(file, [(path.encode(), data) for path in paths])
        return str(place / name)

    with open(place / "two.tfrecord", "wb") as file:
        two = [{"image/class/label": [1], "image/class/synset": [name]} for name in (b"n1", b"n2")]
        write_tfrecord(file, [example_bytes({"image/encoded": [data], **one}) for one in two])
    train = wds(place / "t.tar", {"a/0": 0, "b/0": 1}, data)
    cases = [
        (("webdataset", "--train", train, "--val", wds(place / "v.tar", {"a/0": 1, "b/0": 0}, data)), "other split"),
        (("webdataset", "--train", train, "--val", wds(place / "w.tar", {"x0": 1, "y0": 2}, data)), "no training image"),
        (("webdataset", "--train", wds(place / "one.tar", {"x0": 1, "y0": 2}, data)), "--label-offset 1"),
        (("tfrecord", "--train", str(place / "two.tfrecord")), "different class lists"),
        (("tar", "--train", tar("nested.tar", "a/0.jpg", "a/1.jpg", "b/small/0.jpg")), "at the same level"),
        (("tar", "--train", tar("which.tar", "train/a/0.jpg", "test/a/0.jpg"), "--val-fraction", "0.5"), "one class"),
        (("tar", "--val", tar("which.tar", "train/a/0.jpg", "test/b/0.jpg")), "which of them belong to --val"),
        (("tar", "--train", train, "--label-offset", "1"), "--label-offset"),
        (("webdataset", "--train", train, "--group-by", "x"), "--group-by"),
        (("zip", "--train", train, "--annotations", "a.json", "--val-annotations", "b.json"), "--val-annotations"),
    ]
    for words, expected in cases:
        said = command(capsys, "prepare", *words, "--output-dir", tmp_path / "out")
        assert said.code == 2 and expected in said.err, (words, said)
        assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_files_of_an_archive_that_are_no_photos_are_counted_by_their_suffix(folder, kind, tmp_path, capsys):
    for split in ("train", "val"):
        tree = tmp_path / split
        for label, _, name, data in photos_of(folder.root_path, split):
            (tree / label).mkdir(parents=True, exist_ok=True)
            (tree / label / name).write_bytes(data)
        for name in ("1.HEIC", "notes.txt", ".hidden.heic") if split == "train" else ():
            (tree / "a" / name).write_bytes(b"x")
        shutil.make_archive(str(tree), kind, tree)
    files = [f"--{split}={tmp_path}/{split}.{kind}" for split in ("train", "val")]
    manifest = prepared(capsys, tmp_path / "out", kind, *files)
    assert manifest.content_hash == folder.content_hash
    (note,) = manifest.notes
    check_text(note, f"train.{kind}", "2 files", "1 .heic", "1 .txt", "JPEG")


def test_pictures_beside_the_splits_of_an_archive_are_left_out_aloud(folder, tmp_path, capsys):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for split, inside in (("train", "Train"), ("val", "valid"), ("val", "test")):
            for label, _, name, data in photos_of(folder.root_path, split):
                archive.writestr(f"set/{inside}/{label}/{name}", data)
        archive.writestr("set/Train/preview.jpg", photos_of(folder.root_path, "val")[0][3])
    manifest = prepared(capsys, tmp_path / "out", "zip", "--train", f"{tmp_path}/all.zip")
    assert manifest.content_hash == folder.content_hash
    check_text(manifest.notes[0], "7 images", "train, val")


def test_two_zips_that_call_different_photos_the_same_keep_them_apart(tmp_path, capsys):
    root = make_instances(tmp_path / "set", train=7, val=6)
    words = ["zip"]
    for split, flag in (("train", ""), ("val", "val-")):
        with zipfile.ZipFile(tmp_path / f"{split}.zip", "w") as archive:
            for path in (root / f"{split}2017").iterdir():
                archive.write(path, f"images/{path.name}")
        words += [f"--{split}", f"{tmp_path}/{split}.zip", f"--{flag}annotations", str(json_file(root, split))]
    manifest = prepared(capsys, tmp_path / "out", *words)
    for split in ("train", "val"):
        index = open_split(manifest, split)
        for i in range(len(index)):
            name = os.path.basename(os.fsdecode(index.relative_name(i)))
            assert index.read(i) == (root / f"{split}2017" / name).read_bytes()


def test_another_file_of_the_same_size_and_time_is_verified_anew(tmp_path, capsys):
    for name, gray in (("x1", 10), ("x2", 200)):
        pixels = {label: (b"P5 8 8 255\n" + bytes([gray + n]) * 64) for n, label in enumerate(("a", "b"))}
        with open(tmp_path / f"{name}.tar", "wb") as file:
            packed_sets.write_tar(file, [(f"{label}/0.pgm".encode(), data) for label, data in pixels.items()])
        os.utime(tmp_path / f"{name}.tar", (1, 1))
        manifest = prepared(capsys, tmp_path / "out", "tar", "--train", f"{tmp_path}/{name}.tar")
        assert find_stale_file(manifest) is None


def test_the_command_that_is_printed_prepares_the_same_again_from_anywhere(folder, tmp_path, capsys, monkeypatch):
    import shlex

    place = tmp_path / "real"
    place.mkdir()
    (tmp_path / "link").symlink_to(place)
    with open(place / "t.tfrecord", "wb") as file:
        photos = photos_of(folder.root_path, "train")
        write_tfrecord(
            file, [example_bytes({"image/encoded": [data], "image/class/label": [number]}) for _, number, _, data in photos]
        )
    (place / "names.txt").write_text("x\ny\nz\n")
    monkeypatch.chdir(tmp_path)
    words = (
        "--train",
        "link/t.tfrecord",
        "--label-offset",
        "0",
        "--class-names-file",
        "link/names.txt",
        "--val-fraction",
        "0.4",
    )
    said = command(capsys, "prepare", "tfrecord", *words, "--output-dir", "link")
    assert said.code == 0, said.err
    first = Manifest.load(place)
    place.rename(tmp_path / "moved")
    moved = Manifest.load(tmp_path / "moved")
    assert find_stale_file(moved) is None
    monkeypatch.chdir("/")
    assert moved.again is not None and str(tmp_path / "moved" / "t.tfrecord") in moved.again
    assert command(capsys, *shlex.split(moved.again)[1:]).code == 0
    assert Manifest.load(tmp_path / "moved").content_hash == first.content_hash


def test_a_folder_with_the_index_of_folders_is_not_taken(folder, tmp_path, capsys):
    packed_sets.tar(photos_of(folder.root_path, "train"), tmp_path / "t.tar")
    said = command(capsys, "prepare", "tar", "--train", tmp_path / "t.tar", "--output-dir", folder.root_path)
    assert said.code == 2 and check_text(said.err, "folders", "images")
    assert Manifest.load(folder.root_path).content_hash == folder.content_hash


def test_a_place_that_cannot_be_written_to_is_refused_with_the_flag_that_names_another(folder, tmp_path):
    from paceline.data.containers.source import ContainerRequest, prepare_containers

    words = pack_both(folder.root_path, "tar", tmp_path / "packed")
    (tmp_path / "file").write_text("")
    with raises(DataError, "file/out", "--output-dir DIR"):
        prepare_containers(ContainerRequest("tar", (words[2],), (words[4],)), out=tmp_path / "file" / "out", workers=1)
