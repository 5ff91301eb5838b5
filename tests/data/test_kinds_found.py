"""`paceline prepare DIR` finds the kind of real data by its files: every kind, two kinds in one folder, and none."""

from __future__ import annotations

import gzip
import os
import shutil
import zipfile
from pathlib import Path

import pytest
from coco_sets import make_set
from label_formats import link, put, read_coco, voc_xml
from messages import check_line, check_text
from packed_sets import CONTAINERS, pack_both
from photo_folders import paint
from tiny_runs import Said, command, refused

from paceline.data.index.manifest import Manifest
from paceline.data.prepare.detect import find_kinds

DATA_YAML = "train: images\nval: images\nnames: [RBC, WBC, Platelets]\n"


def prepared(capsys: pytest.CaptureFixture[str], out: Path, kind: str, sign: str, *words: object) -> Manifest:
    """Prepare without a kind, and by the kind's name; both give one data set, and a line names the kind and its sign."""
    said = command(capsys, "prepare", *words, "--output-dir", out / "found")
    assert said.code == 0, said
    first = said.out.splitlines()[0]
    check_text(first, kind, sign)
    named = command(capsys, "prepare", kind, *words, "--output-dir", out / "named")
    assert named.code == 0 and first not in named.out
    found, wanted = (Manifest.load(out / name) for name in ("found", "named"))
    assert found.content_hash == wanted.content_hash and found.splits.keys() == wanted.splits.keys()
    return found


def link_images(source: Path, folder: Path) -> Path:
    """Folders of links to the images of `source`, two of each of its folders."""
    for label in sorted(source.iterdir())[:3]:
        for image in sorted(label.iterdir())[:2]:
            link(image, folder / label.name / image.name)
    return folder


@pytest.fixture
def classes(shared_data: Path, tmp_path: Path) -> Path:
    """A few real class folders."""
    for split in ("train", "val"):
        link_images(shared_data / "grocery20" / split, tmp_path / "classes" / split)
    return tmp_path / "classes"


@pytest.fixture
def voc(shared_data: Path, tmp_path: Path) -> Path:
    for truth in read_coco(shared_data / "bccd3"):
        boxes = [(n, (b[0] + 1, b[1] + 1, b[0] + b[2], b[1] + b[3]), 0) for n, b, _, _ in truth.objects]
        put(tmp_path / f"voc/Annotations/{truth.path.stem}.xml", voc_xml(truth.path.name, (480, 640), boxes))
        link(truth.path, tmp_path / "voc/JPEGImages" / truth.path.name)
    return tmp_path / "voc"


@pytest.fixture
def yolo(shared_data: Path, tmp_path: Path) -> Path:
    put(tmp_path / "yolo/data.yaml", DATA_YAML)
    for truth in read_coco(shared_data / "bccd3"):
        put(tmp_path / f"yolo/labels/{truth.path.stem}.txt", "0 0.5 0.5 0.25 0.25\n")
        link(truth.path, tmp_path / "yolo/images" / truth.path.name)
    return tmp_path / "yolo"


def test_coco_is_found_by_its_json(shared_data, tmp_path, capsys):
    found = prepared(capsys, tmp_path, "coco", "annotations/instances_train2017.json", shared_data / "bccd3")
    assert found.splits["train"].images == 297


def test_class_folders_are_found(classes, tmp_path, capsys):
    assert prepared(capsys, tmp_path, "folder", "3 ... train/", classes).splits["val"].images == 6
    shutil.move(classes / "train", tmp_path / "unsplit")
    prepared(capsys, tmp_path / "of unsplit", "folder", "3", tmp_path / "unsplit", "--val-fraction", 0.5)


def test_voc_is_found_by_its_xml_files(voc, tmp_path, capsys):
    prepared(capsys, tmp_path, "voc", "Annotations/*.xml", voc, "--val-fraction", 0.5)


def test_yolo_is_found_by_its_data_yaml_and_by_labels_that_lack_one(yolo, tmp_path, capsys):
    prepared(capsys, tmp_path, "yolo", "data.yaml", yolo)
    (yolo / "data.yaml").unlink()
    said = command(capsys, "prepare", yolo)
    check_text(said.out, "yolo", "labels/*.txt")
    refused(said, "data.yaml", "names:")


@pytest.mark.parametrize("container", CONTAINERS)
def test_containers_are_found_by_their_suffix_and_tars_by_what_is_in_them(container, classes, tmp_path, capsys):
    kind, *words = pack_both(classes, container, tmp_path / "packed")
    _, train, _, val = words
    found = prepared(capsys, tmp_path, kind, os.path.basename(train), train, "--val", val)
    said = command(capsys, "prepare", tmp_path / "packed", "--output-dir", tmp_path / "of the folder")
    assert said.code == 0 and check_text(said.out.splitlines()[0], kind, f"*train*{Path(train).suffix}"), said
    assert Manifest.load(tmp_path / "of the folder").content_hash == found.content_hash


def test_a_compressed_webdataset_is_one(classes, tmp_path, capsys):
    train = pack_both(classes, "webdataset", tmp_path / "packed")[2]
    Path(f"{train}.gz").write_bytes(gzip.compress(Path(train).read_bytes()))
    assert list(find_kinds(f"{train}.gz")) == ["webdataset"]


def test_files_of_other_systems_are_found(shared_data, tmp_path, capsys):
    formats = shared_data / "formats"
    rec = formats / "recordio" / "imagenet_style.rec"
    prepared(capsys, tmp_path / "rec", "recordio", rec.name, rec, "--val-fraction", 0.2)
    shards = str(formats / "tfrecord" / "imagenet_train-*")
    for words in ([shards], ["--data", shards]):
        prepared_here = command(capsys, "prepare", *words, "--val-fraction", 0.5, "--output-dir", tmp_path / "tf")
        assert prepared_here.code == 0 and check_text(prepared_here.out.splitlines()[0], "tfrecord"), prepared_here
    assert list(find_kinds(str(formats / "tfrecord" / "coco_val-00000-of-00002.tfrecord"))) == ["tfrecord"]


def test_images_that_a_pattern_names_are_found(classes, tmp_path, capsys):
    train, val = (f"{classes}/{split}/*/*.jpg" for split in ("train", "val"))
    prepared(capsys, tmp_path, "photos", "*.jpg", train, "--val", val)


def test_cocos_zips_as_they_were_downloaded_are_found(tmp_path, capsys):
    make_set(tmp_path / "set")
    (tmp_path / "zips").mkdir()
    for name, inside in (("train2017", "train2017"), ("val2017", "val2017"), ("annotations_trainval2017", "annotations")):
        with zipfile.ZipFile(tmp_path / "zips" / f"{name}.zip", "w") as packed:
            for file in sorted((tmp_path / "set" / inside).iterdir()):
                packed.write(file, f"{inside}/{file.name}")
    said = command(capsys, "prepare", tmp_path / "zips", "--output-dir", tmp_path / "out")
    assert said.code == 0 and check_text(said.out.splitlines()[0], "coco", "train2017.zip"), said
    assert Manifest.load(tmp_path / "out").splits["train"].images == 3


def test_an_archive_next_to_its_unpacked_folders_is_not_a_second_kind(classes, capsys):
    (classes / "train.zip").write_bytes(b"what was unpacked")
    assert list(find_kinds(str(classes))) == ["folder"]


def test_a_folder_of_two_kinds_is_refused_with_the_command_of_each_and_a_named_kind_decides(voc, yolo, tmp_path, capsys):
    shutil.copytree(voc, yolo, symlinks=True, dirs_exist_ok=True)
    said = command(capsys, "prepare", yolo, "--val-fraction", 0.5, "--output-dir", tmp_path / "out")
    refused(said, "data.yaml", "Annotations/*.xml")
    for kind in ("voc", "yolo"):
        check_line(said.err, f"paceline prepare {kind} {yolo} --val-fraction 0.5 --output-dir {tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()
    assert command(capsys, "prepare", "voc", yolo, "--val-fraction", 0.5, "--output-dir", tmp_path / "out").code == 0


def listed_kinds(said: Said, *contents: str) -> bool:
    """The command was refused with what was found, and with all kinds that it looked for."""
    refused(said, *contents, lines=20)
    return all(
        check_line(said.err, kind) for kind in ("folder DIR", "coco DIR", "voc DIR", "yolo DIR", "webdataset", "recordio")
    )


def test_where_no_kind_fits_the_message_lists_what_was_found_and_the_kinds(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert listed_kinds(command(capsys, "prepare", tmp_path / "empty"), "empty ... none")
    paint(tmp_path / "flat" / "a.jpg")
    put(tmp_path / "flat" / "notes.txt")
    assert listed_kinds(command(capsys, "prepare", tmp_path / "flat", "--output-dir", "set"), "a.jpg ... notes.txt")
    assert listed_kinds(command(capsys, "prepare", tmp_path / "flat" / "notes.txt"), "notes.txt")
    assert listed_kinds(command(capsys, "prepare", "nowhere"), "nowhere")
    for words in ([""], ["--output-dir", "set"], ["--json"]):
        assert listed_kinds(command(capsys, "prepare", *words))


def test_a_table_of_boxes_gets_the_export_to_choose(tmp_path, capsys):
    put(tmp_path / "train/_annotations.csv", "ImageID,XMin,XMax,YMin,YMax\na,0,1,0,1\n")
    paint(tmp_path / "train" / "a.jpg")
    refused(command(capsys, "prepare", tmp_path), "_annotations.csv", "CSV", "COCO")


def test_a_set_of_coco_that_contradicts_itself_is_refused_by_its_own_message(tmp_path, capsys):
    shutil.rmtree(make_set(tmp_path) / "train2017")
    refused(command(capsys, "prepare", tmp_path), "instances_train2017.json", "train2017")


def test_the_kind_is_a_message_which_quiet_leaves_out(classes, tmp_path, capsys):
    said = command(capsys, "prepare", classes, "--output-dir", tmp_path / "out", "--quiet")
    assert said.code == 0 and not check_kind(said.out)
    said = command(capsys, "prepare", "--json", classes, "--output-dir", tmp_path / "out")
    assert said.code == 0 and check_kind(said.err) and not check_kind(said.out)
    assert "--val-fraction" in command(capsys, "prepare", classes, "--help").out


def check_kind(text: str) -> bool:
    return "kind folder" in text
