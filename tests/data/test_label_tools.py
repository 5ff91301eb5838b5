"""Exports of labeling tools that no reader takes: each is known by what it holds, and answered with what to do instead."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
from messages import check_text, raises
from PIL import Image

from paceline._utils.errors import DataError
from paceline.cli.main import main
from paceline.data.formats.layouts import read_one_split, read_source

LABELME = {"version": "5.4.1", "flags": {}, "shapes": [{"label": "cat", "points": [[1, 2], [9, 8]], "shape_type": "rectangle"}],
           "imagePath": "a.jpg", "imageData": None, "imageHeight": 32, "imageWidth": 48}  # fmt: skip
LABEL_STUDIO = [{"id": 1, "annotations": [{"id": 1, "result": [{"type": "rectanglelabels", "value": {"x": 1.0}}]}],
                 "data": {"image": "/data/upload/1/a.jpg"}}]  # fmt: skip
LABEL_STUDIO_MIN = [{"image": "/data/upload/1/a.jpg", "id": 1, "label": [{"x": 1.0}], "annotator": 1, "annotation_id": 1}]
VIA = {
    "a.jpg1024": {
        "filename": "a.jpg",
        "size": 1024,
        "regions": [{"shape_attributes": {"name": "rect"}}],
        "file_attributes": {},
    }
}
CREATE_ML = [
    {"image": "a.jpg", "annotations": [{"label": "cat", "coordinates": {"x": 5, "y": 5, "width": 4, "height": 4}}]}
]
CVAT = '<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n  <version>1.1</version>\n  <meta/>\n</annotations>\n'
TENSORFLOW_CSV = "filename,width,height,class,xmin,ymin,xmax,ymax\na.jpg,48,32,cat,1,2,9,8\n"
VIA_CSV = 'filename,file_size,file_attributes,region_count,region_id,region_shape_attributes\na.jpg,1,"{}",1,0,"{}"\n'


@pytest.mark.parametrize(
    ("name", "content", "tool", "advice"),
    [
        ("a.json", LABELME, "LabelMe JSON", "labelme2coco"),
        ("project.json", LABEL_STUDIO, "Label Studio JSON", "Export > COCO"),
        ("project.json", LABEL_STUDIO_MIN, "Label Studio JSON", "Export > COCO"),
        ("via.json", VIA, "VGG Image Annotator JSON", "COCO format"),
        ("_annotations.createml.json", CREATE_ML, "Create ML JSON", "COCO"),
        ("annotations.xml", CVAT, "CVAT XML", "COCO 1.0"),
        ("_annotations.csv", TENSORFLOW_CSV, "CSV", "Roboflow"),
        ("via.csv", VIA_CSV, "CSV", "COCO"),
        (
            "obj.data",
            "classes = 1\ntrain = data/train.txt\nnames = data/obj.names\nbackup = backup/\n",
            "Darknet",
            "COCO 1.0",
        ),
    ],
)
def test_an_export_of_a_labelling_tool_is_answered_with_the_one_to_choose(
    name: str, content: object, tool: str, advice: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    Image.new("RGB", (48, 32)).save(tmp_path / "a.jpg")
    for read in (lambda: read_source(tmp_path), lambda: read_one_split(tmp_path, ("val",))):
        with pytest.raises(DataError) as refused:
            read()
        assert check_text(str(refused.value), tool) and advice in str(refused.value) and str(file) in str(refused.value)


@pytest.mark.parametrize("images", ["images", "."])
def test_yolo_labels_without_a_data_yaml_get_one_to_paste_that_prepares(
    images: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "my labels"
    labels = root / ("labels" if images == "images" else ".")
    for folder in (root / images, labels):
        folder.mkdir(parents=True, exist_ok=True)
    for i in range(6):
        Image.new("RGB", (48, 32), (40 * i, 9, 9)).save(root / images / f"{i}.jpg")
        (labels / f"{i}.txt").write_text(f"{i % 2} 0.5 0.5 0.4 0.4\n")
    (root / "classes.txt").write_text("cat\nold dog\n")
    assert main(["prepare", "coco", str(root)]) == 2
    said = capsys.readouterr().err
    first, *lines = said.split("data.yaml with these two lines next to it, then run  ")[1].splitlines()
    (root / "data.yaml").write_text("\n".join(line.strip() for line in lines[:2]))
    assert main([*shlex.split(first)[1:], "--output-dir", str(tmp_path / "set")]) == 0, capsys.readouterr().err
    assert "old dog" in (tmp_path / "set" / "manifest.json").read_text()


def test_a_coco_json_under_another_name_gets_the_command_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "images").mkdir()
    for i in range(8):
        Image.new("RGB", (48, 32), (30 * i, 9, 9)).save(tmp_path / "images" / f"{i}.jpg")
    content = {
        "images": [{"id": i, "file_name": f"images/{i}.jpg", "width": 48, "height": 32} for i in range(8)],
        "annotations": [{"id": i, "image_id": i, "category_id": 0, "bbox": [4, 4, 20, 20], "area": 400} for i in range(8)],
        "categories": [{"id": 0, "name": "cat"}],
    }
    (tmp_path / "result.json").write_text(json.dumps(content))
    assert main(["prepare", "coco", str(tmp_path)]) == 2
    command = capsys.readouterr().err.split("Pass it with its images:  ")[1].splitlines()[0]
    assert main([*shlex.split(command)[1:], "--output-dir", str(tmp_path / "set")]) == 0, capsys.readouterr().err


def test_files_that_say_nothing_leave_the_answer_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("{" * 100_000)
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    (tmp_path / "broken.names").write_bytes(b"\xff\xfe\n\n")
    os.mkfifo(tmp_path / "pipe.data")  # opened by nobody: would keep a reader waiting
    with raises(DataError, "annotations"):
        read_source(tmp_path)


def test_prepare_coco_on_another_layout_prints_the_command_that_reads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in range(6):
        Image.new("RGB", (48, 32), (40 * i, 9, 9)).save(tmp_path / f"{i}.jpg")
        (tmp_path / f"{i}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    (tmp_path / "data.yaml").write_text("train: .\nval: .\nnames: [cat]\n")
    assert main(["prepare", "coco", str(tmp_path)]) == 2
    command = capsys.readouterr().err.split("another layout. Use  ")[1].strip()
    assert main([*shlex.split(command)[1:], "--output-dir", str(tmp_path / "set")]) == 0
