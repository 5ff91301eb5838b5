"""Folders, containers and addresses in each other's place, '.' for a folder, numbers of threads that are none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from packed_sets import photos_of, tar
from tiny_runs import command, make_photos, refused

TO_A_FOLDER = "must be a local folder. Copy the result to its destination afterwards."


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """DIR/set with DIR/photos.tar and DIR/val.tar, and nothing else."""
    root = tmp_path_factory.mktemp("places")
    make_photos(root / "set", train=2, val=1)
    tar(photos_of(root / "set", "train"), root / "photos.tar")
    tar(photos_of(root / "set", "val"), root / "val.tar")
    return root


@pytest.fixture
def here(photos, monkeypatch) -> Path:
    monkeypatch.chdir(photos)
    return photos


@pytest.mark.parametrize(
    "words",
    [
        ["data", "pack", "set"], ["prepare", "folder", "set"], ["prepare", "tar", "photos.tar"], ["prepare", "coco", "set"],
        ["prepare", "imagenet", "set"],
        ["prepare", "imagenet", "--train-tar", "photos.tar", "--val-tar", "val.tar", "--devkit", "val.tar"],
    ],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("out", ["s3://bucket/o", "GS://b/o", "file:///o"])
def test_what_is_written_in_place_takes_no_address(here, words, out, capsys):
    refused(command(capsys, *words, "--output-dir", out), f"--output-dir {out}: {TO_A_FOLDER}", lines=1)
    assert sorted(os.listdir(here)) == ["photos.tar", "set", "val.tar"]


@pytest.mark.parametrize(
    "words",
    [["data", "pack", "set"], ["prepare", "folder", "set"], ["prepare", "tar", "photos.tar"], ["prepare", "voc", "set"]],
)
def test_a_number_of_threads_below_0_is_refused(here, words, capsys):
    said = command(capsys, *words, "--output-dir", "o", "--workers", -1)
    refused(said, "--workers -1 ... 0", lines=1)
    assert not (here / "o").exists()


@pytest.mark.parametrize(
    "place, command_line",
    [
        ("photos.tar", "prepare tar --train photos.tar --val FILE --output-dir DIR"),
        ("s3://bucket/a b.zip", "prepare zip --train 's3://bucket/a b.zip' --val FILE --output-dir DIR"),
        ("gs://bucket/shards/", "prepare tar --train 'gs://bucket/shards/*.tar' --val FILE --output-dir DIR"),
    ],
    ids=["file", "address", "folder of a bucket"],
)
def test_a_container_where_a_data_set_belongs_is_answered_with_its_command(here, place, command_line, capsys):
    for words in (
        ["train", "classify-demo", "--data", place, "--output-dir", "run"],
        ["data", "pack", place, "--output-dir", "o"],
    ):
        said = command(capsys, *words)
        refused(said, f"{place}: ", f"paceline {command_line}", lines=1)
    assert not (here / "run").exists() and not (here / "o").exists()


def test_a_container_to_score_on_is_indexed_as_val(here, resnet_run, capsys):
    said = command(capsys, "eval", resnet_run.folder, "--data", "val.tar")
    refused(said, "paceline prepare tar --val val.tar --output-dir DIR", lines=1)


def test_a_container_that_is_not_there_is_no_container(here, capsys):
    refused(command(capsys, "train", "classify-demo", "--data", "gone.tar"), "gone.tar ... folder")


def test_bare_paths_are_the_training_files(here, tmp_path, capsys, monkeypatch):
    assert command(capsys, "prepare", "tar", "photos.tar", "--val", "val.tar", "--output-dir", tmp_path / "a").code == 0
    monkeypatch.chdir(tmp_path / "a")
    named, here_ = (command(capsys, "data", "info", place, "--json") for place in (tmp_path / "a", "."))
    assert named == here_ and named.code == 0
    assert {name: split["records"] for name, split in json.loads(named.out)["splits"].items()} == {"train": 6, "val": 3}
    monkeypatch.chdir(here)
    twice = command(capsys, "prepare", "tar", "photos.tar", "photos.tar", "--output-dir", tmp_path / "b")
    refused(twice, "two ... train/ant/0.jpg")
    said = command(capsys, "prepare", "tar", "photos.tar", "--train", "val.tar", "--output-dir", tmp_path / "c")
    refused(said, "photos.tar ... once", lines=1)


@pytest.mark.parametrize(
    "words", [["inspect", "."], ["convert", ".", "--format", "paceline", "--output", "a.safetensors"]], ids=" ".join
)
def test_the_folder_one_stands_in_is_a_weight_file_like_others(tmp_path, words, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    refused(command(capsys, "weights", *words), "checkpoint", lines=1)
