"""Our box scores are pycocotools' to the last bit: the twelve numbers, every class and every precision curve."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from example_counts import examples
from hypothesis import example, given
from hypothesis import strategies as st
from official_coco import assert_same, judge, loaded, results_of, truth_of
from pycocotools.cocoeval import COCOeval

from paceline.models.metrics.coco import Detections, GroundTruth, no_detections, score_boxes, select_images


def check(truth: GroundTruth, detections: Detections, **columns: int) -> None:
    assert_same(score_boxes(truth, detections), judged_by(truth, detections, **columns))


def judged_by(truth: GroundTruth, detections: Detections, **columns: int) -> COCOeval:
    return judge(truth_of(truth, **columns), results_of(truth, detections), "bbox")


def scene(seed: int, images: int, objects: int, found: int, crowds: float, ties: bool, grid: bool):
    """A ground truth with detections, made of hard cases.

    grid  boxes from few coordinates, so that many overlaps are equal, and areas lie on the borders 32^2 and 96^2
    ties  scores from five values; equal ones within and across images
    """
    draw = np.random.default_rng(seed)
    classes = int(draw.integers(1, 5))

    def boxes(count: int) -> np.ndarray:
        if grid:
            made = draw.choice([0.0, 8, 10, 16, 32, 96], (count, 4))
        else:
            made = draw.random((count, 4)) * [60, 60, 110, 110]
        made[draw.random(count) < 0.05, draw.integers(2, 4)] = 0  # some without area
        return made

    owner = np.sort(draw.integers(0, images, objects)) if images else np.zeros(0, np.int64)
    objects = len(owner)
    wanted = boxes(objects)
    areas = wanted[:, 2] * wanted[:, 3]
    borders = draw.choice([0, 1, 1023.99, 1024, 1024.01, 9216, 9216.01, 1e10, 2e10], objects)
    truth = GroundTruth(
        image_ids=draw.choice(10**6, images, replace=False) + int(draw.choice([0, 1 << 40])),
        heights=np.full(images, 200),
        widths=np.full(images, 200),
        starts=np.searchsorted(owner, np.arange(images + 1)),
        boxes=wanted,
        # The last class never has an object.
        classes=draw.integers(1, max(2, classes), objects).astype(np.int32),
        crowd=(draw.random(objects) < crowds).astype(np.uint8),
        areas=np.where(draw.random(objects) < 0.4, borders, areas),
        num_classes=classes,
    )
    if not images:
        return truth, no_detections()
    seen = draw.integers(0, images, found)
    guess = boxes(found)
    for row in np.flatnonzero(draw.random(found) < 0.6):  # most are near an object of their image
        near = np.arange(truth.starts[seen[row]], truth.starts[seen[row] + 1])
        if len(near):
            guess[row] = np.abs(wanted[draw.choice(near)] + (draw.choice([0, 0, 1, 2]) if grid else draw.normal(0, 3)))
    scores = draw.integers(0, 5, found) / 5 if ties else draw.random(found).astype(np.float32)
    return truth, Detections(seen, guess, draw.integers(1, classes + 1, found), scores)


@examples(250)
@given(
    seed=st.integers(0, 2**32 - 1),
    images=st.integers(0, 6),
    objects=st.integers(0, 40),
    found=st.sampled_from([0, 1, 7, 40, 150]),
    crowds=st.sampled_from([0.0, 0.3, 1.0]),
    ties=st.booleans(),
    grid=st.booleans(),
)
@example(seed=0, images=1, objects=30, found=700, crowds=0.1, ties=True, grid=False)  # over 100 a class in one image
@example(seed=1, images=5, objects=40, found=0, crowds=0.3, ties=False, grid=False)  # nothing found
@example(seed=2, images=5, objects=0, found=40, crowds=0.0, ties=False, grid=False)  # nothing to find
@example(seed=3, images=0, objects=0, found=0, crowds=0.0, ties=False, grid=False)  # no image
def test_random_scenes_score_as_pycocotools_scores_them(seed, images, objects, found, crowds, ties, grid):
    truth, detections = scene(seed, images, objects, found, crowds, ties, grid)
    check(truth, detections)


@examples(30)
@given(seed=st.integers(0, 2**32 - 1), kept=st.integers(0, 6))
def test_a_subset_of_the_images_scores_as_pycocotools_scores_those_images(seed, kept):
    truth, detections = scene(seed, 6, 40, 150, 0.2, True, True)
    numbers = np.random.default_rng(seed).permutation(6)[:kept]
    inside = np.isin(detections.images, numbers)
    place = np.full(6, -1)
    place[numbers] = np.arange(kept)
    few = Detections(
        place[detections.images[inside]], detections.boxes[inside], detections.classes[inside], detections.scores[inside]
    )
    judged = judged_by(truth, detections)
    judged.params.imgIds = truth.image_ids[numbers].tolist()
    if kept:
        with contextlib.redirect_stdout(io.StringIO()):
            judged.evaluate()
            judged.accumulate()
            judged.summarize()
        assert_same(score_boxes(select_images(truth, numbers), few), judged)
    else:
        assert set(score_boxes(select_images(truth, numbers), few).metrics.values()) == {-1.0}


def test_ignore_flags_of_annotations_change_nothing_as_in_pycocotools():
    truth, detections = scene(7, 5, 40, 150, 0.3, True, False)
    check(truth, detections, ignore=1)


def test_the_harness_sees_the_order_of_equal_scores():
    """Two images, one detection each, equal scores, one right: which comes first decides, and ids decide which is first."""
    box = np.array([[10.0, 10, 20, 20]])
    truth = GroundTruth(
        np.array([9, 4]), np.full(2, 99), np.full(2, 99), np.array([0, 1, 1]), box,
        np.array([1]), np.zeros(1, np.uint8), np.array([400.0]), 1,
    )  # fmt: skip
    detections = Detections(np.array([0, 1]), box.repeat(2, 0), np.array([1, 1]), np.array([0.5, 0.5]))
    check(truth, detections)
    assert score_boxes(truth, detections).metrics["box_ap"] == pytest.approx(0.5, abs=1e-9)  # image 4, the wrong one, first
    other = GroundTruth(np.array([4, 9]), *(getattr(truth, name) for name in list(truth.__dataclass_fields__)[1:]))
    assert score_boxes(other, detections).metrics["box_ap"] == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("split", ["val", "train"])
def test_real_annotations_score_as_pycocotools_scores_the_file(shared_data: Path, seed: int, split: str):
    """COCO's own ids, holes and all, through the file and loadRes; detections are jittered objects, some of a wrong class."""
    path = sorted((shared_data / "coco_mini" / "annotations").glob(f"*{split}*.json"))[0]
    wanted = loaded(path)
    raw = json.loads(path.read_text())
    categories = sorted(category["id"] for category in raw["categories"])
    row = {image["id"]: number for number, image in enumerate(raw["images"])}
    objects = sorted(raw["annotations"], key=lambda entry: row[entry["image_id"]])  # stable, as an index keeps them
    owner = np.array([row[entry["image_id"]] for entry in objects])
    truth = GroundTruth(
        image_ids=np.array([image["id"] for image in raw["images"]]),
        heights=np.array([image["height"] for image in raw["images"]]),
        widths=np.array([image["width"] for image in raw["images"]]),
        starts=np.searchsorted(owner, np.arange(len(row) + 1)),
        boxes=np.array([entry["bbox"] for entry in objects], np.float64),
        classes=np.array([categories.index(entry["category_id"]) + 1 for entry in objects], np.int32),
        crowd=np.array([entry["iscrowd"] for entry in objects], np.uint8),
        areas=np.array([entry["area"] for entry in objects], np.float64),
        num_classes=len(categories),
    )
    draw = np.random.default_rng(seed)
    times = draw.integers(0, 4, len(objects))
    boxes = truth.boxes.repeat(times, 0) * draw.normal(1, 0.04, (times.sum(), 4))
    classes = np.where(
        draw.random(times.sum()) < 0.8, truth.classes.repeat(times), draw.integers(1, truth.num_classes + 1, times.sum())
    )
    detections = Detections(owner.repeat(times), np.abs(boxes), classes, draw.random(times.sum()).round(2))
    judged = judge(wanted, results_of(truth, detections, categories), "bbox")
    assert 0.05 < judged.stats[0] < 0.95
    assert_same(score_boxes(truth, detections), judged)
