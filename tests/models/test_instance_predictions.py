"""From what a network finds to 24 numbers and the report's JSON: masks stay beside their boxes whatever the number of ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from coco_sets import box, document, edit, make_set
from mask_scenes import box_of, strings, truth_of
from messages import check_text, raises

from paceline._utils.errors import DataError
from paceline.data.batch import Batch, DetectedInstances
from paceline.data.index.box_split import BoxSplit, open_boxes
from paceline.data.prepare.box_source import prepare_boxes
from paceline.data.rle import RLE, decode_mask, mask_areas
from paceline.models.metrics import coco, self_check
from paceline.models.metrics.coco import Detections, GroundTruth, select_images
from paceline.models.metrics.self_check import masks_score_one
from paceline.models.object_predictions import (
    InstanceScore,
    InstanceTruth,
    instance_predictions_json,
    read_instance_truth,
    require_masks,
    score_instances,
)
from paceline.models.registry import WORKLOADS

SIZES = [(60, 80), (50, 40), (30, 30)]
HEIGHTS, WIDTHS = (np.array(column) for column in zip(*SIZES))
CLASSES, IDS = ["cat", "dog", "hen"], [3, 7, 9]


def rectangle(size: tuple[int, int], top: int, left: int, bottom: int, right: int) -> np.ndarray:
    bits = np.zeros(size, np.uint8)
    bits[top:bottom, left:right] = 1
    return bits


def truth() -> InstanceTruth:
    """Photo 0 with a cat, a dog and a crowd of cats, photo 1 empty, photo 2 with a dog."""
    boxes, masks = truth_of(
        [
            (1, rectangle(SIZES[0], 10, 20, 40, 60)),
            (2, rectangle(SIZES[0], 0, 0, 20, 15)),
            (1, rectangle(SIZES[0], 50, 0, 60, 80), "crowd"),
        ],
        [],
        [(2, rectangle(SIZES[2], 4, 4, 26, 26))],
        sizes=SIZES,
    )
    return InstanceTruth(boxes, masks, np.ones(4, bool))


def outputs(numbers: list[int], rows: dict[int, list[tuple]], places: int = 5) -> tuple[Batch, DetectedInstances]:
    """rows: of a photo its (left, top, right, bottom in pixels, score, class); masks fill their boxes, as far as 28 x 28 can."""
    detections, masks = torch.zeros(len(numbers), places, 6), torch.zeros(len(numbers), places, 28, 28)
    for image, number in enumerate(numbers):
        for place, (*corners, score, k) in enumerate(rows.get(number, [])):
            height, width = SIZES[number]
            detections[image, place, :4] = torch.tensor(corners) / torch.tensor([width, height, width, height])
            detections[image, place, 4:] = torch.tensor([score, k])
            masks[image, place] = 1
    empty = torch.zeros(len(numbers), 1, dtype=torch.int64)
    return Batch(torch.zeros(len(numbers), 3, 8, 8), empty, torch.tensor(numbers)), DetectedInstances(detections, masks)


PERFECT = {0: [(20, 10, 60, 40, 0.9, 1), (0, 0, 15, 20, 0.8, 2)], 2: [(4, 4, 26, 26, 0.7, 2)]}


def packed_of(batches: list[tuple[Batch, DetectedInstances]]) -> bytes:
    score = InstanceScore(HEIGHTS, WIDTHS)
    for batch, found in batches:
        score.add(batch, found)
    return score.pack()


def test_the_24_numbers_are_those_of_boxes_then_of_masks() -> None:
    metrics = WORKLOADS["instance-segmentation"].reporting.metrics
    assert len(metrics) == 24 and metrics[:2] == ("box_ap", "box_ap50") and metrics[12:14] == ("mask_ap", "mask_ap50")
    scored = score_instances(truth(), [packed_of([outputs([0, 1, 2], PERFECT)])], np.arange(3))
    assert tuple(scored.metrics) == metrics
    assert scored.metrics["box_ap"] == pytest.approx(1) == scored.metrics["mask_ap50"]
    assert 0.5 < scored.metrics["mask_ap"] <= 1  # pasting moves an edge by up to a pixel
    nothing = score_instances(truth(), [packed_of([outputs([0, 1, 2], {})])], np.arange(3))
    assert nothing.metrics["box_ap"] == 0 == nothing.metrics["mask_ap"]


def test_masks_begin_where_the_recipe_says() -> None:
    batch, found = outputs([0], {0: [(20, 10, 60, 40, 0.9, 1)]})
    found.masks[0, 0] = torch.linspace(0, 1, 28)
    areas = []
    for above in (0.25, 0.5, 0.75, 0.999):
        score = InstanceScore(HEIGHTS, WIDTHS, above)
        score.add(batch, found)
        areas.append(int(decode_mask(score.masks[0][0], *SIZES[0]).sum()))
    assert areas == sorted(areas, reverse=True) and areas[0] > 1.3 * areas[1] > 1.6 * areas[2] and areas[3] < 60
    plain = InstanceScore(HEIGHTS, WIDTHS)
    plain.add(batch, found)
    assert int(decode_mask(plain.masks[0][0], *SIZES[0]).sum()) == areas[1]


def test_what_accelerators_left_open_is_summed_over_photos_and_ranks() -> None:
    shares = []
    for numbers, left_open in (([0, 1], [[1, 10], [2, 0]]), ([2], [[4, 100]])):
        batch, found = outputs(numbers, PERFECT)
        shares.append(packed_of([(batch, found._replace(open=torch.tensor(left_open)))]))
    scored = score_instances(truth(), shares, np.arange(3))
    assert scored.approximated == {"unsettled_boxes": 7, "candidates_left_out": 110}
    assert score_instances(truth(), [packed_of([outputs([0, 1, 2], PERFECT)])], np.arange(3)).approximated == {}


@pytest.mark.parametrize("shares", [[[[0, 1, 2]]], [[[2], [0, 1]]], [[[1]], [[2, 0]]], [[], [[2]], [[1], [0]]]])
def test_the_ranks_shares_score_as_one(shares: list[list[list[int]]]) -> None:
    whole = score_instances(truth(), [packed_of([outputs([0, 1, 2], PERFECT)])], np.arange(3))
    parts = score_instances(
        truth(), [packed_of([outputs(batch, PERFECT) for batch in rank]) for rank in shares], np.arange(3)
    )
    assert parts.metrics == whole.metrics and list(parts.masks) == list(whole.masks)
    np.testing.assert_array_equal(parts.found.boxes, whole.found.boxes)


def test_masks_lie_in_their_own_photo_beside_their_box() -> None:
    found = score_instances(truth(), [packed_of([outputs([2, 0, 1], PERFECT)])], np.arange(3))
    assert found.found.images.tolist() == [0, 0, 2] and found.found.classes.tolist() == [1, 2, 2]
    np.testing.assert_allclose(found.found.boxes[0], [20, 10, 40, 30], atol=1e-5)
    for text, image, around in zip(found.masks, found.found.images, found.found.boxes):
        np.testing.assert_allclose(box_of(decode_mask(text, *SIZES[image])), around, atol=2.01)


def test_an_evaluation_of_some_photos_knows_only_those() -> None:
    some = np.array([2, 0])
    few = truth_of(
        [(2, rectangle(SIZES[2], 4, 4, 26, 26))], [(1, rectangle(SIZES[0], 10, 20, 40, 60))], sizes=[SIZES[2], SIZES[0]]
    )
    scored = score_instances(InstanceTruth(*few, np.ones(2, bool)), [packed_of([outputs([0, 2], PERFECT)])], some)
    assert scored.found.images.tolist() == [0, 1, 1] and scored.metrics["box_ar100"] == 1
    with pytest.raises(RuntimeError, match="scored"):
        score_instances(truth(), [packed_of([outputs([0, 2], PERFECT)])], np.arange(3))


def described(of: InstanceTruth, rows: dict[int, list[tuple]]) -> dict[str, Any]:
    scored = score_instances(of, [packed_of([outputs([0, 1, 2], rows)])], np.arange(3))
    made = instance_predictions_json(of, scored, ["a.jpg", "b.jpg", "c.jpg"], np.array([5, 6, 7]), CLASSES, IDS)
    return json.loads(json.dumps(made, allow_nan=False))


def test_predictions_are_those_of_boxes_with_masks_beside_them() -> None:
    unsorted = {0: PERFECT[0][::-1], 2: PERFECT[2]}
    made = described(truth(), unsorted)
    assert made["kind"] == "instances" and made["classes"] == CLASSES and made["category_ids"] == IDS
    first, empty, last = made["images"]
    assert (first["index"], first["file"], first["width"], first["height"]) == (5, "a.jpg", 80, 60)
    assert first["scores"] == [0.9, 0.8] and first["labels"] == [1, 2]
    for image, size in ((first, SIZES[0]), (last, SIZES[2])):
        assert len(image["masks"]) == len(image["boxes"])
        for text, around in zip(image["masks"], image["boxes"]):
            np.testing.assert_allclose(box_of(decode_mask(text.encode(), *size)), around, atol=2.01)
    assert first["truth"]["masks"] == [text.decode() for text in truth().masks][:3]
    assert first["truth"]["crowd"] == [0, 0, 1]
    assert (empty["masks"], empty["truth"]["masks"]) == ([], [])
    assert list(made["per_class"][0]) == [
        *("name", "ap", "ap50", "ar100", "objects", "ap_small", "ap_medium", "ap_large", "f1", "precision", "recall"),
        *("mask_ap", "mask_ap50", "mask_ap_small", "mask_ap_medium", "mask_ap_large"),
    ]
    for row in made["per_class"]:  # whose objects are all of one size
        assert max(row["ap_small"], row["ap_medium"], row["ap_large"]) == pytest.approx(row["ap"])
    assert made["best_f1"] == {**made["best_f1"], "iou": 0.5, "f1": 1.0, "precision": 1.0, "recall": 1.0}
    assert made["per_class"][1]["mask_ap50"] == pytest.approx(1) and made["per_class"][2]["mask_ap"] == -1
    assert made["mask_curves"].keys() == made["curves"].keys() and set(made["mask_curves"]["classes"]) == set(CLASSES)
    assert len(made["mask_curves"]["mean"]) == 101


def test_an_object_without_a_mask_is_neither_missed_nor_wrong_as_a_mask() -> None:
    whole = truth()
    without = whole._replace(known=np.array([True, False, True, True]))
    masks = strings([rectangle(SIZES[0], 0, 0, 20, 15)])
    without = without._replace(masks=RLE.join([whole.masks.take(np.array([0])), masks, whole.masks.take(np.array([2, 3]))]))
    made = described(without, PERFECT)
    assert made["images"][0]["truth"]["masks"][1] is None and made["images"][0]["truth"]["masks"][0]
    assert [entry["objects"] for entry in made["per_class"]] == [1, 2, 0]
    assert made["per_class"][1]["mask_ap50"] == pytest.approx(1)
    scored = score_instances(without, [packed_of([outputs([0, 1, 2], {2: PERFECT[2]})])], np.arange(3))
    assert scored.mask_scores.per_class[1].ap50 == pytest.approx(1) and scored.box_scores.per_class[1].ap50 < 0.6


def test_a_score_holds_strings_and_no_bitmaps() -> None:
    score = InstanceScore(np.array([40_000]), np.array([40_000]))
    batch, found = outputs([0], {0: [(10, 10, 20, 20, 0.5, 1)] * 5})
    detections = found.detections / torch.tensor([500, 666, 500, 666, 1, 1.0])
    score.add(batch, found._replace(detections=detections))
    assert len(score.pack()) < 4000 and len(score.masks[0]) == 5


def prepared(root: Path, segmentations: list[Any]) -> BoxSplit:
    """The val split of a set whose single photo (40 x 30) has one dog for each segmentation; None: the key is missing."""
    make_set(root)
    objects = [
        box(
            1,
            3,
            *((2, 2, 8, 8) if given is not THIN else (2.1, 2.1, 0.1, 0.1)),
            **({} if given is None else {"segmentation": given}),
        )
        for given in segmentations
    ]
    edit(root, lambda record: record.update(annotations=document([1, 2], objects)["annotations"]), "val")
    return open_boxes(prepare_boxes(root), "val")


SQUARE = [[2, 2, 10, 2, 10, 10, 2, 10]]
THIN = [[2.1, 2.1, 2.2, 2.1, 2.2, 2.2]]


def truth_in(split: BoxSplit, numbers: np.ndarray) -> InstanceTruth:
    every = GroundTruth(**split.truth_arrays(), num_classes=len(split.names))
    return read_instance_truth(select_images(every, numbers), split, numbers)


def test_the_truth_of_a_split_is_rasterised_once(tmp_path: Path) -> None:
    split = prepared(tmp_path / "set", [SQUARE, None, THIN, {"counts": [10, 20, 1170], "size": [30, 40]}])
    made = truth_in(split, np.array([1, 0]))
    assert made.boxes.image_ids.tolist() == [2, 1] and made.known.tolist() == [True, False, True, True]
    assert mask_areas(made.masks).tolist() == [64, 64, 0, 20]  # the second is its box
    assert made.for_masks.crowd.tolist() == [0, 1, 0, 0] and made.boxes.crowd.tolist() == [0, 0, 0, 0]
    assert masks_score_one(made, CLASSES) == 1  # the thin one covers no pixel


def test_a_set_without_a_single_mask_is_refused_with_every_way_out(tmp_path: Path) -> None:
    split = prepared(tmp_path / "set", [None, []])
    with pytest.raises(DataError) as refusal:
        require_masks(split, tmp_path / "set")
    first, *ways = str(refusal.value).splitlines()
    assert check_text(first, "boxes", "masks") and "segmentation" in ways[-1]
    assert [" ".join(way.split("  ")[1].split()[:4]) for way in ways[:-1]] == [
        f"paceline train {name} --data" for name in ("fasterrcnn-finetune", "ssd-finetune")
    ]


@pytest.mark.parametrize("name", ["coco_mini", "facades10"])
def test_real_masks_score_one(shared_data: Path, name: str) -> None:
    from paceline.data.index.manifest import Manifest
    from paceline.data.prepare.auto_prepare import prepare_if_needed

    split = open_boxes(Manifest.load(prepare_if_needed(shared_data / name, kind="boxes")), "val")
    assert masks_score_one(truth_in(split, np.arange(len(split))), split.names) == 0


def test_masks_that_cannot_be_found_are_named_with_class_and_image(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = truth()
    huge.boxes.classes[3], huge.boxes.areas[3] = 3, 1e11  # beyond what is scored
    with raises(DataError, "class hen", "its 1 masks") as caught:
        masks_score_one(huge, CLASSES)
    assert "image: id 20, box [4, 4, 22, 22] with area 1e+11 in 30 x 30 pixels" in str(caught.value)
    right = coco.score_masks

    def shifted(boxes: Any, wanted: RLE, found: Detections, masks: RLE) -> Any:
        """The detections' masks of another object of the same photo."""
        return right(boxes, wanted, found, masks.take(np.array([1, 0, *range(2, len(masks))])) if len(masks) > 1 else masks)

    monkeypatch.setattr(self_check, "score_masks", shifted)
    with pytest.raises(DataError, match=r"class (cat|dog): .*masks"):
        masks_score_one(truth(), CLASSES)


def test_only_a_sample_of_a_large_set_of_masks_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "MAX_IMAGES", 3)
    seen, right = [], coco.score_masks

    def noted(boxes: Any, wanted: RLE, found: Detections, masks: RLE) -> Any:
        seen.append((boxes.image_ids.tolist(), mask_areas(wanted).tolist()))
        return right(boxes, wanted, found, masks)

    monkeypatch.setattr(self_check, "score_masks", noted)
    images = [[(1, rectangle((30, 30), 0, 0, 2, 3 + number))] for number in range(9)]
    boxes, masks = truth_of(*images, sizes=[(30, 30)] * 9)
    assert masks_score_one(InstanceTruth(boxes, masks, np.ones(9, bool))) == 0
    assert seen == [([0, 40, 80], [6, 14, 22])]


def test_arrays_that_contradict_each_other_are_refused() -> None:
    wrong = truth()
    with raises(DataError, "add up"):
        masks_score_one(wrong._replace(boxes=replace(wrong.boxes, areas=np.ones(2))))
