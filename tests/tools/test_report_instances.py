"""What the report tells of instance segmentation: masks beside boxes in numbers, curves, tables and pictures."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from detected_runs import (
    HEIGHT,
    HERE,
    NAMES,
    THERE,
    TWELVE,
    WIDTH,
    image_of,
    make_run,
    predictions_of,
    report_of,
    scenes_of,
    write_predictions,
)
from PIL import Image
from pycocotools import mask as coco_mask

from paceline._utils.formatting import select_leading_metrics
from paceline.tools.report import detection_results as scene_pictures
from paceline.tools.report.curves import class_table, draw_curves, read_curves
from paceline.tools.report.detection_results import ImageComparison, add_rendered_images, read_detections
from paceline.tools.report.gallery import MAX_OF_A_KIND
from paceline.tools.report.prediction_section import size_table
from paceline.training.logging.console import Console
from paceline.training.logging.events import EventLog, read_events

METRICS = [f"{what}_{name}" for what in ("box", "mask") for name in TWELVE]
BOTH = [(HERE, 1, 0), (THERE, 3, 0)]


@pytest.fixture
def run(tmp_path) -> Path:
    """A run that reached the box target and, one evaluation later, the mask target."""

    def values(step: int) -> dict[str, float]:
        return {name: -1.0 if name == "mask_ap_small" else step / (150 if "box" in name else 200) for name in METRICS}

    images = [
        image_of(index, [(HERE, 1, 0.9, 1.0), (THERE, 3, 0.8, 0.5)][: 1 + index], BOTH, masks=True) for index in range(3)
    ]
    return make_run(tmp_path, "maskrcnn", {"box_ap": 0.2, "mask_ap": 0.3}, values, images)


def test_mask_ap_stands_beside_box_ap_everywhere(run):
    page = report_of(run)
    for piece in (
        *("best box AP | 40.0 | target 20, epoch 3", "best mask AP | 30.0 | target 30, epoch 3", "Target reached"),
        "time to target | 1 min 00 s",  # when the second target was reached as well
        *("target box AP 20", "target mask AP 30"),
        "size | area | box AP | mask AP | box AR | mask AR | small | under 32 x 32 | 40.0 | n/a | 40.0 | 30.0",
        "box | mask | class | AP | AP50 | AR100 | AP | AP50 | objects | cat | 50.0 | 75.0 | 60.0 | 12.5 | 25.0 | 6 |",
        "box | mask | epoch | step | AP | AP50 | AP75 | small | medium | large | AP | AP50 | AP75 | small | medium | large | time",
        *("1 of 2 | objects found | mask IoU 1.00, F1 0.67", "2 of 2 | objects found | mask IoU 0.75, F1 1.00"),
        "mean mask IoU of the detected objects is 0.80",  # three whole masks and two halves
    ):
        assert piece in page.text, piece
    curves = [f"Precision-recall curve at IoU 0.5, {what}" for what in ("boxes", "masks")]
    assert page.charts[2:6] == ["Precision, recall, and F1 by score threshold", *curves, "Calibration"]
    listed = json.loads(re.search(r"^const charts = (.*);$", page.html, re.MULTILINE).group(1))  # type: ignore[union-attr]
    assert [line["name"] for line in listed[1]["lines"]] == ["box AP", "mask AP", "box AP50", "mask AP50"]
    assert len(listed) == len(page.all("div", class_="plot"))
    assert NAMES[2] in page.words and page.html.count("<script") == 1


def test_the_page_s_size_is_bounded_whatever_the_number_of_photos(run, monkeypatch):
    monkeypatch.setattr("paceline.tools.report.curves.draw_chart", lambda *_, **__: None)
    images = [image_of(index % 3, [(HERE, 1, 0.9, 0.5)], BOTH[: 1 + index % 2], masks=True) for index in range(90)]
    write_predictions(run, predictions_of(images, masks=True))
    page = report_of(run)
    # Twelve whole photos, and of the ninety missed and misplaced objects at most MAX_OF_A_KIND.
    assert page.html.count("<img") == 12 + MAX_OF_A_KIND and "90 validation images" in page.html
    assert len(page.html) < 24 * 60_000


def test_objects_without_a_known_mask_are_boxes_and_count_in_no_mask_number(tmp_path):
    Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "x.jpg")
    found = [(HERE, 1, 0.9, 0.5), (THERE, 3, 0.8, 1.0)]
    content = predictions_of([image_of(0, found, BOTH, masks=True)], masks=True)
    content["images"][0]["truth"]["masks"][0] = None
    content["per_class"][0].update(mask_ap=-1.0, mask_ap50=-1.0)
    (scene,) = scenes_of(content, tmp_path)
    assert scene.mask_overlaps.tolist() == [1.0] and scene.counts == (2, 2, 0)
    ((shown, picture),) = add_rendered_images([replace(scene, file=str(tmp_path / "x.jpg"))], NAMES, "ignore")
    assert picture and shown.mask_iou == 1.0
    assert [row["name"] for row in class_table(content)] == [NAMES[2], "cat"]  # by 0.375 and, boxes alone, 0.5
    chart = draw_curves(read_curves(content, "mask"))
    assert chart is not None and [line["name"] for line in chart.hover["lines"]] == [NAMES[2]]


def test_a_found_pair_has_one_hue_on_both_sides_and_all_others_have_their_own(monkeypatch, tmp_path):
    Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "x.jpg")
    drawn = []
    monkeypatch.setattr(
        scene_pictures, "draw_side_by_side", lambda photo, left, right, **_: drawn.append((left, right)) or photo
    )
    far = (40, 60, 15, 15)
    found, truth = [(THERE, 1, 0.9, 1.0), (far, 1, 0.8, 1.0)], [(HERE, 1, 0), (THERE, 1, 0)]
    content = predictions_of([image_of(0, found, truth, masks=True)], masks=True)
    (scene,) = read_detections(content, tmp_path).scenes(0.3)
    add_rendered_images([replace(scene, file=str(tmp_path / "x.jpg"))], NAMES, "ignore")
    ((left, right),) = drawn
    hue = {tuple(round(edge) for edge in mark.box): mark.hue for mark in right}
    assert sorted(hue.values()) == [0, 1]
    assert [mark.hue for mark in left] == [hue[THERE], 2]
    assert all(mark.mask["size"] == [HEIGHT, WIDTH] for mark in (*left, *right))


@pytest.mark.parametrize("damage", ["too long", "none annotated"])
def test_the_page_of_damaged_masks_says_so_and_stands(run, damage):
    content = json.loads((run / "predictions" / "step-000060.json").read_text())
    if damage == "too long":
        too_long = coco_mask.encode(np.zeros((999, 999), np.uint8, order="F"))["counts"].decode()
        content["images"][0]["masks"][0] = too_long
    else:
        for image in content["images"]:
            del image["truth"]["masks"]
    write_predictions(run, content)
    text = report_of(run).text
    assert "predictions/step-000060.json" in text and "Target reached" in text


def test_boxes_alone_have_a_size_table_of_their_own_and_no_word_of_masks(run):
    content = json.loads((run / "predictions" / "step-000060.json").read_text())
    content["kind"] = "boxes"
    for image in content["images"]:
        del image["masks"], image["truth"]["masks"]
    write_predictions(run, {name: value for name, value in content.items() if name != "mask_curves"})
    events = read_events(run / "events.jsonl")
    (run / "events.jsonl").unlink()
    log = EventLog(run / "events.jsonl")
    for event in events:
        log.write(**{name: value for name, value in event.items() if "mask" not in name})
    text = report_of(run).text
    assert "size | area | box AP | box AR | small | under 32 x 32 | 40.0 | 40.0" in text
    assert "mask" not in text.replace("mask_ap", "").replace("maskrcnn", "")  # the target stands in the recipe
    assert size_table({"top1": 0.5}) == ([], [])


def test_a_scene_without_masks_has_no_mask_overlaps():
    box = np.array([HERE], float)
    plain = ImageComparison("x", WIDTH, HEIGHT, box, np.array([1]), np.array([0.9]), box, np.array([1]), np.array([False]))
    assert plain.counts == (1, 1, 0) and plain.mask_overlaps.size == 0


def test_one_line_has_room_for_ap_and_ap50_of_boxes_and_masks():
    assert select_leading_metrics(METRICS) == ["box_ap", "mask_ap", "box_ap50", "mask_ap50"]
    assert select_leading_metrics(METRICS[:12]) == ["box_ap", "box_ap50", "box_ap75"]
    assert select_leading_metrics(["top1", "top5", "eval_loss"]) == ["top1", "top5", "eval_loss"]
    out = io.StringIO()
    Console(100, target="box AP 20, mask AP 30", out=out).evaluation(60, 3.0, dict.fromkeys(METRICS, 0.25), 2.0)
    assert "box AP 25.0  mask AP 25.0  box AP50 25.0  mask AP50 25.0" in out.getvalue()
