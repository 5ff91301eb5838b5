"""`paceline prepare coco`: what it reports, and what it refuses: one clear message, exit code 2, nothing half-written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from coco_sets import box, edit, json_file, make_set
from tiny_runs import command, refused


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_set(tmp_path / "set")


def test_a_folder_is_prepared_and_everything_odd_is_reported(root: Path, capsys) -> None:
    edit(root, lambda record: record["annotations"].append({"id": 9, **box(1, 3, 5, 5, 0, 4)}))
    os.remove(root / "val2017" / "2.jpg")
    said = command(capsys, "prepare", "coco", root, "--on-missing", "skip")
    assert said.code == 0, said.err
    for text in (
        "train: 3 images, 5 objects of 2 classes",
        "zero-area boxes, ignored in training: 1",
        "images without objects: 1",
        "val: 1 image (1 unusable, skipped), 1 object of 1 class",
        "skipped: val2017/2.jpg: not found",
        "2 classes: dog, cat",
        f"manifest: {root / 'manifest.json'}",
    ):
        assert text in said.out


def test_files_may_be_named_one_by_one(root: Path, tmp_path: Path, capsys) -> None:
    files = ("--images-dir", root / "train2017", "--annotations", json_file(root, "train"))
    val = ("--val-images-dir", root / "val2017", "--val-annotations", json_file(root, "val"))
    said = command(capsys, "prepare", "coco", *files, *val, "--output-dir", tmp_path / "out")
    assert said.code == 0, said.err
    assert (
        f"fasterrcnn-finetune-cpu --data {tmp_path / 'out'} --auto-config" in said.out
        and (tmp_path / "out" / "manifest.json").is_file()
    )
    refused(
        command(capsys, "prepare", "coco", *files, "--output-dir", tmp_path / "other"),
        "validation images",
        "--val-fraction",
    )
    refused(command(capsys, "prepare", "coco", root, *files), "not both")
    assert not (tmp_path / "other").exists()


def test_what_is_no_coco_set_is_refused(root: Path, tmp_path: Path, capsys) -> None:
    refused(command(capsys, "prepare", "coco"), "folder", "--annotations")
    refused(command(capsys, "prepare", "coco", tmp_path / "nowhere"), "nowhere", "folder")
    refused(command(capsys, "prepare", "coco", root / "train2017"), "no COCO annotations")
    for layout in ("voc", "yolo"):
        refused(command(capsys, "prepare", layout, root), f"paceline prepare coco {root}")
    refused(command(capsys, "prepare", "yolo", root / "train2017"), "data.yaml not found")
    json_file(root, "train").write_text("{}")
    refused(command(capsys, "prepare", "coco", root), "instances_train2017.json", "not a COCO annotation file")
    assert not (root / "manifest.json").exists()


def test_a_missing_image_is_named_with_the_switch(root: Path, capsys) -> None:
    os.remove(root / "train2017" / "2.jpg")
    refused(command(capsys, "prepare", "coco", root), "train2017/2.jpg", "--on-missing skip")
