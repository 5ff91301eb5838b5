"""What the report tells of instance segmentation: masks beside boxes in numbers, curves, tables and pictures."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from paceline.log.console import Console
from paceline.log.events import EventLog, read_events
from paceline.log.prose import leading_metrics
from paceline.report import scene_pictures
from paceline.report.detected import Scene, read_scenes
from paceline.report.page import write_report
from paceline.report.scene_pictures import with_pictures
from paceline.report.scored import class_table, precision_recall, size_table

NAMES = ["cat", "dog", "<b>ox</b>"]
TWELVE = (
    *("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large"),
    *("ar1", "ar10", "ar100", "ar_small", "ar_medium", "ar_large"),
)
METRICS = [f"{what}_{name}" for what in ("box", "mask") for name in TWELVE]
WIDTH, HEIGHT = 100, 80
HERE, THERE = (10, 10, 20, 20), (60, 10, 20, 40)


def counts(box: tuple[int, int, int, int], share: float = 1.0) -> str:
    """Run lengths of the left `share` of a box."""
    left, top, width, height = box
    mask = np.zeros((HEIGHT, WIDTH), np.uint8, order="F")
    mask[top : top + height, left : left + round(share * width)] = 1
    return coco_mask.encode(mask)["counts"].decode()


def image_of(index: int, found, truth) -> dict:
    """found: (box, label, score, share of the box that the mask covers); truth: (box, label), masks cover the boxes."""
    return {
        **{"index": index, "image_id": 10 + index, "file": f"val/{index}.jpg", "width": WIDTH, "height": HEIGHT},
        **{
            "boxes": [one[0] for one in found],
            "labels": [one[1] for one in found],
            "scores": [one[2] for one in found],
        },
        "masks": [counts(one[0], one[3]) for one in found],
        "truth": {
            **{"boxes": [box for box, _ in truth], "labels": [label for _, label in truth], "crowd": [0] * len(truth)},
            "masks": [counts(box) for box, _ in truth],
        },
    }


def predictions_of(images) -> dict:
    curve = [1 - place / 200 for place in range(101)]
    curves = {
        **{"iou": 0.5, "recall": [place / 100 for place in range(101)], "mean": curve},
        "classes": {"cat": curve, "dog": [-1.0] * 101, NAMES[2]: curve},
    }
    absent = dict.fromkeys(("ap", "ap50", "ar100", "mask_ap", "mask_ap50"), -1.0)
    return {
        **{"step": 60, "kind": "instances", "classes": NAMES, "images": images, "category_ids": [1, 5, 9]},
        "per_class": [
            {"name": "cat", "ap": 0.5, "ap50": 0.75, "ar100": 0.6, "objects": 6, "mask_ap": 0.125, "mask_ap50": 0.25},
            {"name": "dog", "objects": 0, **absent},
            {"name": NAMES[2], "ap": 0.25, "ap50": 0.5, "ar100": 0.3, "objects": 2, "mask_ap": 0.5, "mask_ap50": 0.875},
        ],
        **{"curves": curves, "mask_curves": curves},
    }


@pytest.fixture
def run(tmp_path) -> Path:
    """A run that reached the box target and, one evaluation later, the mask target."""
    folder, data = tmp_path / "run", tmp_path / "data"
    folder.mkdir()
    (data / "val").mkdir(parents=True)
    recipe = {"task": "maskrcnn", "global_batch": 8, "quality": {"targets": [["box_ap", 0.2], ["mask_ap", 0.3]]}}
    parts = {"system": {"accelerator": "cpu"}, "plan": {"total_steps": 60}, "controls": {}}
    facts = {"format": 1, "name": "maskrcnn-tiny", "world": 1, "recipe": recipe, **parts, "data": {"root": str(data)}}
    (folder / "run.json").write_text(json.dumps(facts))
    log = EventLog(folder / "events.jsonl")
    for step in (20, 40, 60):
        when = {"step": step, "epoch": step / 20, "seconds": float(step)}
        log.write("train", **when, loss=4 / step, lr=0.1, images_per_second=5.0, data_wait=0.0, samples=step)
        values = {name: -1.0 if name == "mask_ap_small" else step / (150 if "box" in name else 200) for name in METRICS}
        log.write("eval", **when, images=3, eval_seconds=0.5, **values)
    log.write("end", step=60, epoch=3.0, seconds=60.0, status="success", best={})
    images = []
    for index in range(3):
        Image.new("RGB", (WIDTH, HEIGHT), (60 * index, 90, 90)).save(data / "val" / f"{index}.jpg")
        images.append(
            image_of(index, [(HERE, 1, 0.9, 1.0), (THERE, 3, 0.8, 0.5)][: 1 + index], [(HERE, 1), (THERE, 3)])
        )
    write_predictions(folder, predictions_of(images))
    return folder


def write_predictions(folder: Path, content: dict) -> None:
    (folder / "predictions").mkdir(exist_ok=True)
    (folder / "predictions" / "step-000060.json").write_text(json.dumps(content))


class Page(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside not in ("script", "style"):
            self.text += " ".join(data.split()) + " | " if data.strip() else ""


def test_mask_ap_stands_beside_box_ap_everywhere(run):
    html = write_report(run).read_text(encoding="utf-8")
    page = Page(html)
    for piece in (
        *("best box AP | 40.0 | target 20, epoch 3", "best mask AP | 30.0 | target 30, epoch 3", "Target reached"),
        "time to target | 1 min 00 s",  # when the second target was reached as well
        *("target box AP 20", "target mask AP 30"),
        "size | area | box AP | mask AP | box AR | mask AR | small | under 32 x 32 | 40.0 | n/a | 40.0 | 30.0",
        "box | mask | class | AP | AP50 | AP | AP50 | objects | cat | 50.0 | 75.0 | 12.5 | 25.0 | 6 |",
        "box | mask | epoch | step | AP | AP50 | AP75 | small | medium | large | AP | AP50 | AP75 | small | medium | large | at",
        *("1 of 2 | objects found | mask IoU 1.00, F1 0.67", "2 of 2 | objects found | mask IoU 0.75, F1 1.00"),
        "mask IoU of those found | 0.80 | mean",  # three whole masks and two halves
    ):
        assert piece in page.text, piece
    charts = [attrs["aria-label"] for tag, attrs in page.tags if tag == "svg"]
    assert charts[-2:] == ["Precision over recall at IoU 0.5, boxes", "Precision over recall at IoU 0.5, masks"]
    listed = json.loads(re.search(r"^const charts = (.*);$", html, re.MULTILINE).group(1))  # type: ignore[union-attr]
    assert [line["name"] for line in listed[1]["lines"]] == ["box AP", "mask AP", "box AP50", "mask AP50"]
    assert len(listed) == sum(attrs.get("class") == "plot" for _, attrs in page.tags)
    assert "<b>ox" not in html and html.count("<script") == 1


def test_the_page_s_size_is_bounded_whatever_the_number_of_photos(run, monkeypatch):
    monkeypatch.setattr("paceline.report.page.draw_chart", lambda *_, **__: None)
    images = [
        image_of(index % 3, [(HERE, 1, 0.9, 0.5)], [(HERE, 1), (THERE, 3)][: 1 + index % 2]) for index in range(90)
    ]
    write_predictions(run, predictions_of(images))
    html = write_report(run).read_text(encoding="utf-8")
    assert html.count("<img") == 24 and "90 validation photos" in html
    assert len(html) < 24 * 60_000


def test_objects_without_a_known_mask_are_boxes_and_count_in_no_mask_number(tmp_path):
    Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "x.jpg")
    content = predictions_of([image_of(0, [(HERE, 1, 0.9, 0.5), (THERE, 3, 0.8, 1.0)], [(HERE, 1), (THERE, 3)])])
    content["images"][0]["truth"]["masks"][0] = None
    content["per_class"][0].update(mask_ap=-1.0, mask_ap50=-1.0)
    (scene,) = read_scenes(content, tmp_path)
    assert scene.mask_overlaps.tolist() == [1.0] and scene.counts == (2, 2, 0)
    (shown,) = with_pictures([replace(scene, file=str(tmp_path / "x.jpg"))], NAMES, "ignore")
    assert shown.picture and shown.mask_iou == 1.0
    assert [row.name for row in class_table(content)] == [NAMES[2], "cat"]  # by 0.375 and, boxes alone, 0.5
    chart = precision_recall(content, "mask")
    assert chart is not None and [line["name"] for line in chart.hover["lines"]] == [NAMES[2]]


def test_a_found_pair_has_one_hue_on_both_sides_and_all_others_have_their_own(monkeypatch, tmp_path):
    Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "x.jpg")
    drawn = []
    monkeypatch.setattr(scene_pictures, "beside", lambda photo, left, right, **_: drawn.append((left, right)) or photo)
    far = (40, 60, 15, 15)
    content = predictions_of([image_of(0, [(THERE, 1, 0.9, 1.0), (far, 1, 0.8, 1.0)], [(HERE, 1), (THERE, 1)])])
    (scene,) = read_scenes(content, tmp_path)
    with_pictures([replace(scene, file=str(tmp_path / "x.jpg"))], NAMES, "ignore")
    ((left, right),) = drawn
    hue = {tuple(round(edge) for edge in mark.box): mark.hue for mark in right}
    assert sorted(hue.values()) == [0, 1]
    assert [mark.hue for mark in left] == [hue[THERE], 2]
    assert all(mark.mask["size"] == [HEIGHT, WIDTH] for mark in (*left, *right))


def test_the_page_of_damaged_masks_says_so_and_stands(run):
    content = json.loads((run / "predictions" / "step-000060.json").read_text())
    too_long = coco_mask.encode(np.zeros((999, 999), np.uint8, order="F"))["counts"].decode()
    content["images"][0]["masks"][0] = too_long
    write_predictions(run, content)
    text = Page(write_report(run).read_text(encoding="utf-8")).text
    assert "predictions/step-000060.json cannot be read" in text and "Target reached" in text


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
    text = Page(write_report(run).read_text(encoding="utf-8")).text
    assert "size | area | box AP | box AR | small | under 32 x 32 | 40.0 | 40.0" in text
    assert "mask" not in text.replace("mask_ap", "").replace("maskrcnn", "")  # the target stands in the recipe
    assert size_table({"top1": 0.5}) == ([], [])


def test_a_scene_without_masks_has_no_mask_overlaps():
    box = np.array([HERE], float)
    plain = Scene("x", WIDTH, HEIGHT, box, np.array([1]), np.array([0.9]), box, np.array([1]), np.array([False]))
    assert plain.counts == (1, 1, 0) and plain.mask_overlaps.size == 0


def test_one_line_has_room_for_ap_and_ap50_of_boxes_and_masks():
    assert leading_metrics(METRICS) == ["box_ap", "mask_ap", "box_ap50", "mask_ap50"]
    assert leading_metrics(METRICS[:12]) == ["box_ap", "box_ap50", "box_ap75"]
    assert leading_metrics(["top1", "top5", "eval_loss"]) == ["top1", "top5", "eval_loss"]
    out = io.StringIO()
    Console(100, target="box AP 20, mask AP 30", out=out).evaluation(60, 3.0, dict.fromkeys(METRICS, 0.25), 2.0)
    assert "box AP 25.0  mask AP 25.0  box AP50 25.0  mask AP50 25.0" in out.getvalue()
