"""What --save-formats writes, read back by the tools' own readers where these are light, else as their formats' pages describe
them.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from hotcoco.mask import decode, encode
from PIL import Image
from pycocotools.coco import COCO
from shared_runs import SSD
from tiny_runs import command, refused

from paceline._utils.errors import PacelineError
from paceline.data.formats.yolo import read_yolo
from paceline.inference.outputs.formats import ResultLocation, select_displayed, trace_mask
from paceline.inference.outputs.prediction_dir import check_prediction_dir, name_rendered_images, open_prediction_dir
from paceline.inference.results import DetectionResult
from paceline.inference.writer import FORMATS

pytestmark = pytest.mark.usefixtures("no_charts")

H, W = 90, 120
CLASSES, IDS = ("cat, <dog>", "no"), (7, 3)  # names that want quoting; ids in no order


def ellipse(x: float, y: float, a: float, b: float) -> np.ndarray:
    rows, columns = np.mgrid[:H, :W] + 0.5
    return ((columns - x) / a) ** 2 + ((rows - y) / b) ** 2 <= 1


SHAPES = (ellipse(30, 30, 20, 12), ellipse(70, 50, 9, 30) | ellipse(100, 60, 8, 8), ellipse(10, 80, 6, 5))


def found(file: Path, *, masks: bool, seconds: int = 3) -> DetectionResult:
    """Three objects, the last of which looks over the photo's edge as a box."""
    boxes = []
    for shape in SHAPES:
        rows, columns = np.flatnonzero(shape.any(1)), np.flatnonzero(shape.any(0))
        boxes.append([columns[0], rows[0], columns[-1] + 1 - columns[0], rows[-1] + 1 - rows[0]])
    boxes[2] = [-4.0, boxes[2][1], 20.0, H]
    rle = tuple(encode(np.asfortranarray(shape.astype(np.uint8)))["counts"] for shape in SHAPES)
    return DetectionResult(
        file=str(file),
        pixels=lambda: np.zeros((H, W, 3), np.uint8),
        width=W,
        height=H,
        boxes_xywh=np.array(boxes, float)[:seconds],
        class_ids=(0, 1, 0)[:seconds],
        names=(CLASSES[0], CLASSES[1], CLASSES[0])[:seconds],
        scores=(0.9, 0.8, 0.1)[:seconds],
        category_ids=(IDS[0], IDS[1], IDS[0])[:seconds],
        masks_rle=tuple(text.encode() if isinstance(text, str) else text for text in rle)[:seconds] if masks else None,
    )


def written(tmp_path: Path, *, masks: bool, above: float = 0.0) -> tuple[Path, list[Path], list[DetectionResult]]:
    """All formats' files of two photos, the second of which has nothing -> the folder, the photos, what should be in it."""
    photos = [tmp_path / "photos" / "a b.png", tmp_path / "photos" / "deep" / "c.png"]
    for photo in photos:
        photo.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (W, H)).save(photo)
    results = [found(photos[0], masks=masks), found(photos[1], masks=masks, seconds=0)]
    folder, kinds = tmp_path / "out", [kind for kind in FORMATS.values() if masks or not kind.of_masks]
    formats = [kind(folder, CLASSES, IDS, masks) for kind in kinds]
    places = [photo.relative_to(tmp_path / "photos") for photo in photos]
    names = name_rendered_images(places, formats)
    shown = [select_displayed(result, above) for result in results]
    with open_prediction_dir(folder, {}, coco=False, formats=formats) as answers:
        for number, (result, people, photo, name) in enumerate(zip(results, shown, photos, names), 1):
            answers.add(result, people, ResultLocation(name, str(places[number - 1]), photo, number), None, None)
        answers.finish([])
    return folder, photos, [result for result in shown if isinstance(result, DetectionResult)]


def iou(one: np.ndarray, other: np.ndarray) -> float:
    return (one & other).sum() / (one | other).sum()


def test_objects_for_people_are_cut_at_the_photo_and_those_below_the_score_are_left_out():
    whole = select_displayed(found(Path("a"), masks=False), 0.0)
    assert isinstance(whole, DetectionResult) and whole.boxes_xywh[2].tolist() == [0, 75, 16, 15]
    best = select_displayed(found(Path("a"), masks=True), 0.8)
    assert isinstance(best, DetectionResult) and best.scores == (0.9, 0.8) and len(best.masks_rle or ()) == 2


@pytest.mark.parametrize("masks", [False, True])
def test_coco_and_yolo_files_hold_the_objects_for_pycocotools_and_for_paceline(masks, tmp_path):
    folder, _, shown = written(tmp_path, masks=masks)
    coco = COCO(str(folder / "coco.json"))
    assert [image["file_name"] for image in coco.loadImgs([1, 2])] == ["a b.png", os.path.join("deep", "c.png")]
    rows = coco.loadAnns(coco.getAnnIds(imgIds=[1]))
    assert [row["bbox"] for row in rows] == shown[0].boxes_xywh.tolist() and not coco.getAnnIds(imgIds=[2])
    assert [coco.cats[row["category_id"]]["name"] for row in rows] == list(shown[0].names)
    assert [row["score"] for row in rows] == [0.9, 0.8, 0.1]
    splits, notes = read_yolo(folder / "yolo")
    read = splits["train"]
    assert read.names == dict(enumerate(CLASSES)) and not notes
    assert [name.split("/")[-1] for name in read.file_names] == ["a b.png", "c.png"]
    assert [read.names[number] for number in read.categories] == list(shown[0].names) and not read.object_rows.any()
    if masks:
        outlines = [trace_mask(shape)[0] for shape in SHAPES]
        assert all(np.allclose(np.ravel(one), two.ravel(), atol=1e-3) for one, two in zip(read.segmentations, outlines))
    else:
        assert np.allclose(read.boxes, shown[0].boxes_xywh, atol=1e-3)
    scored = (folder / "yolo-scores" / "labels" / "a b.txt").read_text().splitlines()
    plain = (folder / "yolo" / "labels" / "a b.txt").read_text().splitlines()
    assert [line.rsplit(" ", 1) for line in scored] == [[one, f"{x:.5f}"] for one, x in zip(plain, shown[0].scores)]
    if masks:
        for row, shape in zip(rows, SHAPES):
            assert iou(decode(coco.annToRLE(row)).astype(bool), shape) > 0.93


def test_a_table_has_a_row_an_object_and_masks_have_its_number(tmp_path):
    folder, photos, shown = written(tmp_path, masks=True)
    with (folder / "answers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == list(shown[0].names) and rows[0]["file"] == str(photos[0])
    boxes = [[float(row[side]) for side in ("left", "top", "width", "height")] for row in rows]
    assert boxes == shown[0].boxes_xywh.tolist()
    pixels = np.asarray(Image.open(folder / "masks" / "a b.png"))
    for number, shape in enumerate(SHAPES, 1):
        assert ((pixels == number) == shape).all()
    assert not np.asarray(Image.open(folder / "masks" / "deep" / "c.png")).any()


@pytest.mark.parametrize("masks", [False, True])
def test_label_tools_files_hold_the_objects_and_lead_to_the_photos(masks, tmp_path):
    folder, photos, shown = written(tmp_path, masks=masks)
    facts = json.loads((folder / "labelme" / "deep" / "c.json").read_text())
    assert (folder / "labelme" / "deep" / facts["imagePath"]).resolve() == photos[1] and facts["shapes"] == []
    facts = json.loads((folder / "labelme" / "a b.json").read_text())
    tasks = json.loads((folder / "labelstudio.json").read_text())
    assert ["/" + unquote(task["data"]["image"].partition("?d=")[2]) for task in tasks] == list(map(str, photos))
    (one,) = tasks[0]["predictions"]
    kind = "polygonlabels" if masks else "rectanglelabels"
    config = ElementTree.parse(folder / "labelstudio.xml").getroot()
    assert [label.get("value") for label in config.iter("Label")] == list(CLASSES)
    assert [region["value"][kind] for region in one["result"]] == [[name] for name in shown[0].names]
    image, empty = ElementTree.parse(folder / "cvat.xml").getroot().findall("image")
    assert (image.get("name"), image.get("width"), image.get("height")) == ("a b.png", str(W), str(H)) and not len(empty)
    size = np.array([W, H])
    if not masks:
        ltrb = shown[0].boxes_xyxy
        assert np.allclose([np.ravel(shape["points"]) for shape in facts["shapes"]], ltrb, atol=0.01)
        sides = [[region["value"][side] for side in ("x", "y", "width", "height")] for region in one["result"]]
        assert np.allclose(np.array(sides) / 100 * np.tile(size, 2), shown[0].boxes_xywh, atol=0.01)
        corners = [[float(box.get(side, "")) for side in ("xtl", "ytl", "xbr", "ybr")] for box in image]
        assert np.allclose(corners, ltrb, atol=0.01) and [box.get("label") for box in image] == list(shown[0].names)
        return
    parts = [trace_mask(shape) for shape in SHAPES]
    every = [points for outlines in parts for points in outlines]
    assert len(parts[1]) == 2 and [s["group_id"] for s in facts["shapes"]] == [None, 2, 2, None]
    for points, shape, polygon in zip(every, facts["shapes"], image):
        assert np.allclose(shape["points"], points, atol=0.01)
        pairs = [list(map(float, pair.split(","))) for pair in polygon.get("points", "").split(";")]
        assert np.allclose(pairs, points, atol=0.01)
    for outlines, region in zip(parts, one["result"]):
        assert np.allclose(np.array(region["value"]["points"]) / 100 * size, outlines[0], atol=0.01)


def test_an_outline_has_few_corners_and_covers_its_mask():
    from PIL import ImageDraw

    for shape in SHAPES:
        picture = Image.new("L", (8 * W, 8 * H))
        for points in trace_mask(shape):
            assert 3 <= len(points) < 60
            ImageDraw.Draw(picture).polygon([tuple(8 * point - 0.5) for point in points], fill=1)
        drawn = np.asarray(picture).reshape(H, 8, W, 8).mean((1, 3)) > 0.5
        assert iou(drawn, shape) > 0.95
    dot = np.zeros((H, W), bool)
    assert trace_mask(dot) == []
    dot[4, 7] = True
    ((diamond,),) = [trace_mask(dot)]
    assert len(diamond) >= 3 and diamond.mean(0).tolist() == [7.5, 4.5]


def test_a_file_that_somebody_corrected_is_never_replaced(tmp_path):
    folder, _, _ = written(tmp_path, masks=False)
    check_prediction_dir(folder)
    label = folder / "yolo" / "labels" / "a b.txt"
    label.write_text("0 0.5 0.5 0.1 0.1\n")
    with pytest.raises(PacelineError, match=r"yolo/labels/a b.txt was edited .* not overwritten"):
        check_prediction_dir(folder)
    assert label.read_text() == "0 0.5 0.5 0.1 0.1\n"


def test_answers_of_an_earlier_prediction_go_with_all_their_files_and_the_photos_behind_the_links_stay(tmp_path):
    folder, photos, _ = written(tmp_path, masks=True)
    with open_prediction_dir(folder, {}, coco=False) as answers:
        answers.finish([])
    assert os.listdir(folder) == ["predictions.json"] and all(photo.exists() for photo in photos)


def test_photos_in_folders_that_are_called_as_a_formats_lie_beside_its_files(tmp_path):
    formats = [kind(tmp_path, CLASSES, IDS, True) for kind in FORMATS.values()]
    assert name_rendered_images([Path("yolo/images/a.jpg"), Path("x/a.jpg"), Path("coco.json/b.png")], formats) == [
        "images/a.jpg",
        "x/a.jpg",
        "b.jpg",
    ]


def test_unknown_formats_and_those_that_the_run_cannot_fill_are_refused(resnet_run, ssd_run, tmp_path, capsys):
    photo = sorted((ssd_run.data / "val2017").iterdir())[0]
    words = ["predict", ssd_run.folder, photo, "--output-dir", tmp_path / "out", "--save-formats"]
    refused(command(capsys, *words, "coco,yolov5"), "--save-formats yolov5", "yolo")
    refused(command(capsys, *words, "masks"), "--save-formats masks", "boxes")
    refused(command(capsys, "predict", resnet_run.folder, photo, "--save-formats", "coco"), "--save-formats coco", "csv")
    assert not (tmp_path / "out").exists()
    out = tmp_path / "classes"
    assert command(capsys, "predict", resnet_run.folder, photo, "--output-dir", out, "--save-formats", "csv").code == 0
    with (out / "answers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    (image,) = json.loads((out / "predictions.json").read_text())["images"]
    assert [row["name"] for row in rows] == image["names"]


@pytest.mark.parametrize("form", ["yolo", "coco"])
def test_answers_are_trained_on_again(form, ssd_run, tmp_path, capsys):
    photos, out, mine = tmp_path / "photos", tmp_path / "out", tmp_path / "mine"
    shutil.copytree(ssd_run.data / "val2017", photos)
    words = ["--save-formats", form, "--score-threshold", 0.05, "--max-detections", 5, "--no-save-images"]
    assert command(capsys, "predict", ssd_run.folder, photos, "--output-dir", out, *words).code == 0
    where = (
        ["yolo", out / "yolo"] if form == "yolo" else ["coco", "--images-dir", photos, "--annotations", out / "coco.json"]
    )
    said = command(capsys, "prepare", *where, "--val-fraction", 0.34, "--output-dir", mine)
    assert said.code == 0, said
    run = tmp_path / "run"
    said = command(capsys, "train", "ssd-demo", "--data", mine, "--output-dir", run, *SSD.split(), "--max-steps", 1)
    assert said.code == 0, said
