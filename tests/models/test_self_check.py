"""Ground truth as prediction: real annotations pass, and what no model could ever find is named with class and image."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from messages import raises

from paceline._utils.errors import DataError
from paceline.models.metrics import coco, self_check
from paceline.models.metrics.coco import GroundTruth
from paceline.models.metrics.self_check import ground_truth_scores_one


def truth_of(rows: list[list[tuple[list[float], int, int]]], classes: int = 2) -> GroundTruth:
    """rows: of each image its objects (box, class, crowd)."""
    flat = [row for image in rows for row in image]
    boxes = np.array([box for box, _, _ in flat], np.float64).reshape(len(flat), 4)
    return GroundTruth(
        image_ids=np.arange(10, 10 + len(rows)),
        heights=np.full(len(rows), 100),
        widths=np.full(len(rows), 200),
        starts=np.cumsum([0, *map(len, rows)]),
        boxes=boxes,
        classes=np.array([k for _, k, _ in flat], np.int64),
        crowd=np.array([crowd for _, _, crowd in flat], np.uint8),
        areas=np.abs(boxes[:, 2] * boxes[:, 3]),
        num_classes=classes,
    )


GOOD = ([5.0, 6.0, 30.0, 40.0], 1, 0)
# So far out that x + width is x in float64: its width is lost, and it overlaps with nothing.
FAR = ([1e18, 0.0, 1.0, 1.0], 2, 0)


@pytest.mark.parametrize("name", ["coco_mini", "bccd3", "facemask3", "facades10"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_real_annotations_pass(shared_data: Path, name: str, split: str) -> None:
    record = json.loads((shared_data / name / "annotations" / f"instances_{split}2017.json").read_text())
    place = {image["id"]: i for i, image in enumerate(record["images"])}
    known = sorted(category["id"] for category in record["categories"])
    rows: list[list] = [[] for _ in place]
    for entry in record["annotations"]:
        rows[place[entry["image_id"]]].append((entry["bbox"], known.index(entry["category_id"]) + 1, entry["iscrowd"]))
    ground_truth_scores_one(truth_of(rows, len(known)))


@pytest.mark.parametrize("degenerate", [[5, 5, 0, 9], [5, 5, 9, -1], [np.nan, 5, 9, 9], [5, 5, np.inf, 9]])
def test_crowds_and_boxes_without_area_are_left_out(degenerate: list[float]) -> None:
    crowd = ([0.0, 0.0, 90.0, 90.0], 1, 1)
    with np.errstate(invalid="ignore"):
        ground_truth_scores_one(truth_of([[crowd, GOOD, GOOD], [], [(degenerate, 2, 0), crowd]]))


def test_nothing_to_find_passes() -> None:
    ground_truth_scores_one(truth_of([]))
    ground_truth_scores_one(truth_of([[], []]))


def test_more_objects_of_a_class_than_are_scored_are_no_fault() -> None:
    many = [([float(i), 0.0, 5.0, 5.0], 1, 0) for i in range(150)]
    truth = truth_of([many, [GOOD], many[:100]])
    assert coco.score_boxes(truth, self_check._as_detections(truth)).metrics["box_ap"] < 0.9
    ground_truth_scores_one(truth)


def test_a_box_that_cannot_be_found_is_named_with_class_score_and_image() -> None:
    truth = truth_of([[], [([1.0, 1.0, 5.0, 5.0], 2, 0), GOOD], [FAR], [GOOD]])
    with pytest.raises(DataError, match=r"class dog: .*its 2 boxes.* AP 0\.\d{4}") as caught:
        ground_truth_scores_one(truth, ["cat", "dog"])
    assert "image: id 12, box [1e+18, 0, 1, 1] with area 1 in 200 x 100 pixels" in str(caught.value)
    with pytest.raises(DataError, match="class 2: "):
        ground_truth_scores_one(truth)


def test_an_area_beyond_what_is_scored_is_named() -> None:
    truth = truth_of([[GOOD]])
    with pytest.raises(DataError, match=r"class 1: .*its 1 boxes(.|\n)*area 1e"):
        ground_truth_scores_one(replace(truth, areas=np.array([1e11])))


def test_a_scorer_that_is_a_pixel_off_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = coco.score_boxes

    def shifted(truth: GroundTruth, detections: coco.Detections) -> coco.BoxScores:
        return right(truth, replace(detections, boxes=detections.boxes + np.array([1, 1, 0, 0])))

    monkeypatch.setattr(self_check, "score_boxes", shifted)
    with pytest.raises(DataError, match="class 1: "):
        ground_truth_scores_one(truth_of([[GOOD]]))


def test_only_a_sample_of_a_large_set_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "MAX_IMAGES", 3)
    seen = []
    right = coco.score_boxes
    monkeypatch.setattr(self_check, "score_boxes", lambda t, d: (seen.append(t.image_ids.tolist()), right(t, d))[1])
    ground_truth_scores_one(truth_of([[GOOD]] * 9))
    assert seen == [[10, 14, 18]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"classes": np.array([1, 3])}, "image id 11 ... class 3 ... 1 to 2"),
        ({"classes": np.array([0, 1])}, "image id 10 ... class 0"),
        ({"starts": np.array([0, 1, 3])}, "add up"),
        ({"starts": np.array([0, 2])}, "add up"),
        ({"areas": np.ones(3)}, "add up"),
        ({"image_ids": np.array([7, 7])}, "image id 7 ... 2 images"),
    ],
)
def test_arrays_that_contradict_each_other_are_refused(change: dict, reason: str) -> None:
    with raises(DataError, reason):
        ground_truth_scores_one(replace(truth_of([[GOOD], [GOOD]]), **change))
