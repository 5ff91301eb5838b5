"""Exports of labeling tools: zips with boxes are no class folders, and other tools' files are answered by name."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from coco_sets import json_file, make_set
from messages import check_text

from paceline.cli.main import main
from paceline.data.containers.label_exports import prepare_first

XML = (
    "<annotation><size><width>40</width><height>30</height></size><object><name>cat</name>"
    "<bndbox><xmin>2</xmin><ymin>3</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object></annotation>"
)


def _export(layout: str, root: Path, archive: Path) -> None:
    """Photos of a small set as Roboflow zips them; of Pascal VOC below a folder of its own."""
    make_set(root)
    with zipfile.ZipFile(archive, "w") as packed:
        for split, folder in (("train", "train"), ("val", "valid")):
            photos = sorted((root / f"{split}2017").iterdir())
            for photo in photos:
                place = {"coco": folder, "yolo": f"{folder}/images", "voc": f"set/{folder}"}[layout]
                packed.write(photo, f"{place}/{photo.name}")
                if layout == "yolo":
                    packed.writestr(f"{folder}/labels/{photo.stem}.txt", "0 0.5 0.5 0.2 0.2\n")
                if layout == "voc":
                    packed.writestr(f"set/{folder}/{photo.stem}.xml", XML)
            if layout == "coco":
                packed.write(json_file(root, split), f"{folder}/_annotations.coco.json")
        if layout == "yolo":
            packed.writestr("data.yaml", "train: ../train/images\nval: ../valid/images\nnc: 1\nnames: [cat]\n")


@pytest.mark.parametrize("layout", ["coco", "yolo", "voc"])
def test_a_zip_with_boxes_is_refused_with_commands_that_prepare_it(layout, tmp_path, capsys):
    archive = tmp_path / "my cells.v1.zip"
    _export(layout, tmp_path / "set", archive)
    assert main(["prepare", "zip", "--train", str(archive), "--output-dir", str(tmp_path / "out")]) == 2
    refused = capsys.readouterr().err
    assert not (tmp_path / "out" / "manifest.json").exists()
    check_text(refused, "boxes", "python3 -m zipfile -e", "paceline prepare")
    commands = refused.strip().splitlines()[-1].strip()
    assert commands in prepare_first(str(archive)), "training prints another command"
    unpack, _, prepare = commands.partition(" && ")
    words = shlex.split(unpack)
    subprocess.run([sys.executable, *words[1:]], check=True)
    assert main(shlex.split(prepare)[1:]) == 0
    assert "3 images" in capsys.readouterr().out and os.path.isfile(os.path.join(shlex.split(prepare)[-1], "manifest.json"))


def test_a_zip_of_splits_without_classes_is_refused(tmp_path, capsys):
    make_set(tmp_path / "set")
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as packed:
        for split, folder in (("train", "train"), ("val", "test")):
            for photo in (tmp_path / "set" / f"{split}2017").iterdir():
                packed.write(photo, f"{folder}/{photo.name}")
    assert main(["prepare", "zip", "--train", str(tmp_path / "photos.zip"), "--output-dir", str(tmp_path / "out")]) == 2
    check_text(capsys.readouterr().err, "test/", "train/", "--annotations FILE")


TABLE = "filename,width,height,class,xmin,ymin,xmax,ymax\na.jpg,40,30,cat,1,2,3,4\n"


def test_what_is_read_is_not_taken_for_another_tools(tmp_path, capsys):
    root = make_set(tmp_path / "set")
    (root / "classes.txt").write_text("cat")
    (root / "table.csv").write_text(TABLE)
    assert main(["prepare", "coco", str(root)]) == 0


def test_only_an_address_or_a_file_of_photos_has_to_be_indexed_first(tmp_path):
    (tmp_path / "notes.txt").write_text("no photos")
    assert [prepare_first(str(place)) for place in (tmp_path, tmp_path / "notes.txt", tmp_path / "gone.tar")] == [""] * 3
    assert "paceline prepare tar --train 's3://bucket/photos/*.tar' --val FILE" in prepare_first("s3://bucket/photos/")
    (tmp_path / "photos.rec").write_bytes(b"")
    assert f"paceline prepare recordio --train {tmp_path}/photos.rec --val FILE" in prepare_first(f"{tmp_path}/photos.rec")
