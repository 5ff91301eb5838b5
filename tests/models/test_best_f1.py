"""The threshold with the best F1 against a slow loop over all thresholds, each matched anew."""

from __future__ import annotations

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

from paceline.models.metrics.coco import Detections, GroundTruth, no_detections, score_boxes
from paceline.models.metrics.detection_errors import ThresholdCounts, counts_at_thresholds, find_best_f1

PLACES = [(0, 0, 10, 10), (1, 0, 10, 10), (3, 0, 10, 10), (30, 0, 10, 10), (30, 4, 10, 10), (0, 0, 40, 14)]


def truth_of(images: list[list[tuple[int, int, int]]], classes: int = 3) -> GroundTruth:
    """Of each image its objects: place, class, crowd."""
    flat = [one for objects in images for one in objects]
    boxes = np.array([PLACES[place] for place, _, _ in flat], np.float64).reshape(-1, 4)
    return GroundTruth(
        image_ids=np.arange(len(images)),
        heights=np.full(len(images), 20),
        widths=np.full(len(images), 50),
        starts=np.cumsum([0, *map(len, images)]),
        boxes=boxes,
        classes=np.array([label for _, label, _ in flat], np.int32),
        crowd=np.array([crowd for _, _, crowd in flat], np.uint8),
        areas=boxes[:, 2:].prod(axis=1),
        num_classes=classes,
    )


def found_of(rows: list[tuple[int, int, int, float]]) -> Detections:
    """Image, place, class, score."""
    columns = list(zip(*rows)) if rows else [(), (), (), ()]
    return Detections(
        np.array(columns[0], np.int64),
        np.array([PLACES[place] for place in columns[1]], np.float64).reshape(-1, 4),
        np.array(columns[2], np.int32),
        np.array(columns[3], np.float64),
    )


def overlap(one: np.ndarray, other: np.ndarray, crowd: bool) -> float:
    low, high = np.maximum(one[:2], other[:2]), np.minimum(one[:2] + one[2:], other[:2] + other[2:])
    shared = np.clip(high - low, 0, None).prod()
    return float(shared / (one[2:].prod() + (0 if crowd else other[2:].prod() - shared)))


def counted(truth: GroundTruth, found: Detections, threshold: float, label: int = 0) -> tuple[int, int, int]:
    """Hits, false ones and objects at a threshold, by a plain loop; label 0: of all classes."""
    hits = false = 0
    taken: set[int] = set()
    for d in sorted(range(len(found.scores)), key=lambda d: -found.scores[d]):
        if found.scores[d] < threshold or (label and found.classes[d] != label):
            continue
        rows = range(truth.starts[found.images[d]], truth.starts[found.images[d] + 1])
        rows = [row for row in rows if truth.classes[row] == found.classes[d]]
        close = [
            (overlap(found.boxes[d], truth.boxes[row], False), -row)
            for row in rows
            if not truth.crowd[row] and row not in taken
        ]
        best = max(close, default=(0.0, 0))
        if best[0] >= 0.5:
            taken.add(-best[1])
            hits += 1
        elif not any(truth.crowd[row] and overlap(found.boxes[d], truth.boxes[row], True) >= 0.5 for row in rows):
            false += 1
    mine = (truth.crowd == 0) & ((truth.classes == label) | (label == 0))
    return hits, false, int(mine.sum())


def f1(hits: int, false: int, objects: int) -> float:
    return 2 * hits / (hits + false + objects) if hits + false + objects else 0.0


OBJECTS = st.tuples(st.integers(0, 5), st.integers(1, 3), st.sampled_from([0, 0, 0, 1]))
SCORES = st.one_of(st.sampled_from([0.1, 0.25, 0.5, 0.5, 0.9]), st.integers(1, 99_999).map(lambda one: one / 1e5))


@examples(300)
@given(data=st.data(), images=st.lists(st.lists(OBJECTS, max_size=5), min_size=1, max_size=4))
def test_no_threshold_of_a_slow_loop_is_better_and_none_higher_is_as_good(data, images):
    truth = truth_of(images)
    row = st.tuples(st.integers(0, len(images) - 1), st.integers(0, 5), st.integers(1, 3), SCORES)
    found = found_of(data.draw(st.lists(row, max_size=24)))
    every = {score: f1(*counted(truth, found, score)) for score in set(found.scores.tolist())}
    most = max(every.values(), default=0.0)
    got = find_best_f1(truth, found)
    if most == 0:
        assert got is None
        return
    assert got is not None
    best = got.best
    highest = max(score for score, value in every.items() if value == pytest.approx(most, abs=1e-12))
    assert best.threshold <= highest and best.f1 == pytest.approx(most, abs=1e-12)
    assert (found.scores >= best.threshold).sum() == (found.scores >= highest).sum(), "the same are taken"
    for label, one in enumerate([best, *got.per_class]):
        hits, false, objects = counted(truth, found, best.threshold, label)
        if not hits + false + objects:
            assert one is None
        else:
            assert one is not None and one.threshold == best.threshold
            wanted = (f1(hits, false, objects), hits / max(1, hits + false), hits / max(1, objects))
            assert (one.f1, one.precision, one.recall) == pytest.approx(wanted)


def test_the_threshold_has_as_few_digits_as_divide_the_detections_alike():
    truth = truth_of([[(0, 1, 0), (3, 1, 0)]])
    found = found_of([(0, 0, 1, 0.91234), (0, 3, 1, 0.41236), (0, 5, 2, 0.39), (0, 5, 3, 0.2)])
    got = find_best_f1(truth, found)
    assert got is not None and got.best == ThresholdCounts(0.4, 1.0, 1.0, 1.0)
    found = found_of([(0, 0, 1, 0.91234), (0, 3, 1, 0.41236), (0, 5, 2, 0.41235)])
    got = find_best_f1(truth, found)
    assert got is not None and got.best.threshold == 0.41236
    assert got.per_class[0] == got.best and got.per_class[1] is None and got.per_class[2] is None


@pytest.mark.parametrize("images", [[[]], [[], [(0, 1, 1)]], [[(0, 1, 0)]]])
def test_without_objects_or_without_a_hit_there_is_none(images):
    truth = truth_of(images)
    assert find_best_f1(truth, no_detections()) is None
    assert find_best_f1(truth, found_of([(0, 3, 1, 0.9), (0, 0, 2, 0.8)])) is None


def test_recall_without_a_threshold_is_cocos_where_no_image_has_more_than_it_counts():
    random = np.random.default_rng(0)
    images = [[(int(random.integers(6)), int(random.integers(1, 4)), 0) for _ in range(4)] for _ in range(20)]
    truth = truth_of(images)
    rows = [(i, *one[:2], float(random.uniform(0.5, 0.9))) for i, objects in enumerate(images) for one in objects[:3]]
    got, scores = find_best_f1(truth, found_of(rows)), score_boxes(truth, found_of(rows))
    assert got is not None and got.best.recall == pytest.approx(0.75)
    assert all(one is not None and one.precision == 1 for one in got.per_class)
    assert scores.metrics["box_ap50"] > 0.6


@examples(40)
@given(st.lists(st.tuples(st.integers(0, 100), st.booleans()), max_size=12), st.integers(0, 12))
def test_the_curve_over_the_score_agrees_with_a_loop(found, more):
    scores, right = np.array([score / 100 for score, _ in found]), np.array([hit for _, hit in found], bool)
    objects = int(right.sum()) + more
    points = {point.threshold: point for point in counts_at_thresholds(scores, right, objects)}
    for number in range(1, 100):
        threshold = number / 100
        shown = [hit for score, hit in found if score >= number]
        if not shown or not objects:
            assert threshold not in points
            continue
        point = points.pop(threshold)
        assert (point.precision, point.recall) == (sum(shown) / len(shown), sum(shown) / objects)
        assert point.f1 == pytest.approx(2 * sum(shown) / (len(shown) + objects))
    assert not points
