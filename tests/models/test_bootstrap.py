"""Intervals: each draw is what the official scorer says of the drawn photos, whole and counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.rle import RLE, gather_rows
from paceline.models.metrics import bootstrap
from paceline.models.metrics.bootstrap import (
    confidence_intervals,
    paired_difference,
    resample_accuracy,
    resample_boxes,
    resample_masks,
)
from paceline.models.metrics.coco import Detections, GroundTruth, no_detections, score_boxes, score_masks

CLASSES = 3
NAMES = ("box_ap", "box_ap50", "box_ap75", "box_ar100")


def scene(seed: int, photos: int, crowds: bool = True) -> tuple[GroundTruth, Detections]:
    """Objects of three classes, most of them found about where they are, some found twice, some nowhere."""
    random = np.random.default_rng(seed)
    starts, boxes, classes, found = [0], [], [], []
    for photo in range(photos):
        for _ in range(random.integers(0, 5)):
            box, k = (
                np.r_[random.integers(0, 100, 2), random.integers(10, 90, 2)].astype(float),
                int(random.integers(1, CLASSES + 1)),
            )
            boxes.append(box)
            classes.append(k)
            for _ in range(random.integers(0, 3)):
                found.append((photo, *(box + random.integers(-4, 5, 4)).clip(1), k, random.random()))
        if random.random() < 0.5:
            found.append((photo, 5, 5, *random.integers(10, 90, 2), random.integers(1, CLASSES + 1), random.random()))
        starts.append(len(boxes))
    truth, rows = np.array(boxes).reshape(-1, 4), np.array(found).reshape(-1, 7)
    crowd = (random.random(len(truth)) < 0.1 * crowds).astype(np.uint8)
    ids = random.permutation(photos)
    sides = np.full(photos, 200)
    of = np.array(classes, np.int64)
    everything = GroundTruth(ids, sides, sides, np.array(starts), truth, of, crowd, truth[:, 2] * truth[:, 3], CLASSES)
    return everything, Detections(rows[:, 0].astype(np.int64), rows[:, 1:5], rows[:, 5].astype(np.int64), rows[:, 6])


def drawn(
    truth: GroundTruth, found: Detections, weights: np.ndarray
) -> tuple[GroundTruth, Detections, np.ndarray, np.ndarray]:
    """The photos as often as the weights say, in the order of their ids -> truth, detections, and the rows of both."""
    order = np.argsort(truth.image_ids)
    picked = np.repeat(order, weights[order].astype(int))
    objects = gather_rows(truth.starts, picked)
    by_photo = np.argsort(found.images, kind="stable")
    starts = np.searchsorted(found.images[by_photo], np.arange(len(truth.image_ids) + 1))
    rows = by_photo[gather_rows(starts, picked)]
    counts = np.diff(truth.starts)[picked]
    again = GroundTruth(
        np.arange(len(picked)), truth.heights[picked], truth.widths[picked], np.r_[0, np.cumsum(counts)],
        truth.boxes[objects], truth.classes[objects], truth.crowd[objects], truth.areas[objects], truth.num_classes,
    )  # fmt: skip
    images = np.repeat(np.arange(len(picked)), np.diff(starts)[picked])
    return again, Detections(images, found.boxes[rows], found.classes[rows], found.scores[rows]), objects, rows


def same(value: float, official: float) -> bool:
    assert np.isnan(value) if official < 0 else abs(value - official) < 1e-6, f"{value}, the official one is {official}"
    return True


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 1000), st.integers(1, 40))
def test_every_draw_is_the_official_score_of_the_drawn_photos(seed, photos):
    truth, found = scene(seed, photos)
    draws = resample_boxes(truth, found, seed=seed)
    weights = bootstrap._weights(photos, bootstrap.DRAWS, seed)
    assert set(draws) == (set(NAMES) if len(truth.classes) else set())
    for place in range(0, bootstrap.DRAWS, 250) if draws else ():
        official = score_boxes(*drawn(truth, found, weights[place])[:2]).metrics
        assert all(same(draws[name][place], official[name]) for name in NAMES), (place, official)


def test_masks_are_drawn_alike_and_photos_in_parts(monkeypatch):
    from hotcoco import mask

    truth, found = scene(4, 30)
    strings = [
        RLE.of([mask.fr_bbox(box.tolist(), 200, 200)["counts"] for box in boxes]) for boxes in (truth.boxes, found.boxes)
    ]
    monkeypatch.setattr(bootstrap, "CHUNK", 7)
    monkeypatch.setattr(bootstrap, "BLOCK", 1000)
    draws, weights = resample_masks(truth, strings[0], found, strings[1]), bootstrap._weights(30, bootstrap.DRAWS, 0)
    for place in (0, 999):
        again, other, objects, rows = drawn(truth, found, weights[place])
        official = score_masks(again, strings[0].take(objects), other, strings[1].take(rows)).metrics
        assert all(same(draws[f"mask_{name[4:]}"][place], official[f"mask_{name[4:]}"]) for name in NAMES)


def test_the_interval_holds_95_percent_of_newly_drawn_sets():
    truth, found = scene(1, 400, crowds=False)
    low, high = confidence_intervals(resample_boxes(truth, found))["box_ap50"]
    official = score_boxes(truth, found).metrics["box_ap50"]
    assert low < official < high
    random, inside = np.random.default_rng(9), 0
    for _ in range(200):
        weights = np.bincount(random.integers(0, 400, 400), minlength=400)
        inside += low <= score_boxes(*drawn(truth, found, weights)[:2]).metrics["box_ap50"] <= high
    assert 180 <= inside <= 199


def test_nothing_to_find_nothing_found_and_no_photos():
    truth, _ = scene(2, 10)
    assert set(confidence_intervals(resample_boxes(truth, no_detections())).values()) == {(0.0, 0.0)}
    empty, found = scene(3, 1)
    nothing = GroundTruth(
        empty.image_ids, empty.heights, empty.widths, np.zeros(2, np.int64), np.zeros((0, 4)), np.zeros(0, np.int64),
        np.zeros(0, np.uint8), np.zeros(0), CLASSES,
    )  # fmt: skip
    assert (
        resample_boxes(nothing, found) == {}
        and resample_accuracy({"top1": np.zeros(0, bool)}) == {}
        and resample_accuracy({}) == {}
    )


def test_accuracy_has_the_binomial_s_spread_and_a_difference_that_of_pairs():
    random = np.random.default_rng(0)
    right = random.random(500) < 0.8
    other = right ^ (random.random(500) < 0.02)  # two models that differ on ten photos or so
    one, two = resample_accuracy({"top1": right}), resample_accuracy({"top1": other})
    low, high = confidence_intervals(one)["top1"]
    wide = 2 * 1.96 * (right.mean() * (1 - right.mean()) / 500) ** 0.5
    assert high - low == pytest.approx(wide, rel=0.1)
    low, high = paired_difference(one, two)["top1"]
    assert high - low < wide / 2 and low <= other.mean() - right.mean() <= high
