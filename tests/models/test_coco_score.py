"""Box scores whose value is known by hand; a rank's share as bytes; the confusion view against an obvious loop."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from messages import raises

from paceline.data.checks.suspicious_boxes import paired_overlaps
from paceline.models.metrics import detection_errors
from paceline.models.metrics.coco import Detections, GroundTruth, no_detections, score_boxes, select_images
from paceline.models.metrics.detection_errors import confusion_matrix
from paceline.models.object_predictions import CocoShard, join_detections, pack_shard, unpack_shard

NAMES = [
    "box_ap", "box_ap50", "box_ap75", "box_ap_small", "box_ap_medium", "box_ap_large",
    "box_ar1", "box_ar10", "box_ar100", "box_ar_small", "box_ar_medium", "box_ar_large",
]  # fmt: skip


def ground_truth(*images: list[tuple], num_classes: int = 3) -> GroundTruth:
    """Each image a list of (class, x, y, width, height) or (..., "crowd")."""
    objects = [entry for image in images for entry in image]
    boxes = np.array([entry[1:5] for entry in objects], np.float64).reshape(-1, 4)
    return GroundTruth(
        image_ids=10 * np.arange(len(images)),
        heights=np.full(len(images), 200),
        widths=np.full(len(images), 200),
        starts=np.cumsum([0] + [len(image) for image in images]),
        boxes=boxes,
        classes=np.array([entry[0] for entry in objects], np.int32),
        crowd=np.array([len(entry) > 5 for entry in objects], np.uint8),
        areas=boxes[:, 2] * boxes[:, 3],
        num_classes=num_classes,
    )


def found(*rows: tuple) -> Detections:
    """Each row (image, class, score, x, y, width, height)."""
    if not rows:
        return no_detections()
    columns = list(zip(*rows))
    return Detections(
        np.array(columns[0]), np.array([row[3:] for row in rows], np.float64), np.array(columns[1]), np.array(columns[2])
    )


def truth_as_found(truth: GroundTruth) -> Detections:
    owner = np.repeat(np.arange(len(truth.image_ids)), np.diff(truth.starts))
    return Detections(owner, truth.boxes, truth.classes, np.ones(len(owner)))


def random_scene(seed: int, images: int = 9) -> tuple[GroundTruth, Detections]:
    draw = np.random.default_rng(seed)
    truth = ground_truth(
        *(
            [
                (
                    int(draw.integers(1, 4)),
                    *draw.integers(0, 40, 2),
                    *draw.integers(5, 60, 2),
                    *["crowd"][: draw.random() < 0.2],
                )
                for _ in range(draw.integers(0, 6))
            ]
            for _ in range(images)
        )
    )
    count = 60
    guess = np.concatenate([draw.integers(0, 40, (count, 2)), draw.integers(5, 60, (count, 2))], 1).astype(np.float64)
    return truth, Detections(
        draw.integers(0, images, count), guess, draw.integers(1, 4, count), draw.integers(0, 11, count) / 10
    )


def test_ground_truth_as_prediction_scores_one():
    truth = ground_truth([(1, 0, 0, 10, 10), (2, 50, 50, 40, 40)], [], [(1, 5, 5, 150, 150), (2, 9, 9, 8, 8, "crowd")])
    scores = score_boxes(truth, truth_as_found(truth))
    assert list(scores.metrics) == NAMES
    assert scores.metrics == dict.fromkeys(NAMES, pytest.approx(1.0, abs=1e-12))
    assert [entry.objects for entry in scores.per_class] == [2, 1, 0]
    assert scores.per_class[0].ap == pytest.approx(1.0) and scores.per_class[0].ar100 == 1
    np.testing.assert_allclose(scores.curves[:2], 1, atol=1e-12)
    np.testing.assert_allclose(scores.mean_curve, 1, atol=1e-12)


def test_a_class_without_objects_scores_minus_one_and_stays_out_of_every_mean():
    truth = ground_truth([(1, 0, 0, 10, 10)], [(3, 9, 9, 20, 20, "crowd")])
    scores = score_boxes(truth, found((0, 1, 0.9, 0, 0, 10, 10), (0, 2, 0.9, 0, 0, 10, 10), (1, 3, 0.9, 9, 9, 20, 20)))
    assert [(entry.ap, entry.ap50, entry.ar100, entry.objects) for entry in scores.per_class[1:]] == [(-1, -1, -1, 0)] * 2
    assert (scores.curves[1:] == -1).all()
    assert scores.metrics["box_ap"] == pytest.approx(1.0) and scores.metrics["box_ap_large"] == -1
    np.testing.assert_allclose(scores.mean_curve, 1)


def test_nothing_found_scores_zero_and_nothing_to_find_minus_one():
    truth = ground_truth([(1, 0, 0, 50, 50)], [])
    scores = score_boxes(truth, no_detections())
    assert scores.metrics["box_ap"] == 0 and scores.metrics["box_ar100"] == 0 and scores.metrics["box_ap_small"] == -1
    assert scores.per_class[0].ap == 0
    nothing = score_boxes(ground_truth([], []), found((0, 1, 0.5, 0, 0, 9, 9)))
    assert set(nothing.metrics.values()) == {-1.0}
    assert (nothing.mean_curve == -1).all() and nothing.curves.shape == (3, 101)
    assert set(score_boxes(ground_truth(), no_detections()).metrics.values()) == {-1.0}


def test_average_precision_of_one_right_and_one_wrong_detection_by_hand():
    """Wrong first, then right: precision is 1/2 at every recall."""
    truth = ground_truth([(1, 0, 0, 50, 50)])
    scores = score_boxes(truth, found((0, 1, 0.9, 120, 120, 50, 50), (0, 1, 0.8, 0, 0, 50, 50)))
    assert scores.metrics["box_ap"] == pytest.approx(0.5)
    assert scores.metrics["box_ar1"] == 0 and scores.metrics["box_ar10"] == 1
    np.testing.assert_allclose(scores.curves[0], 0.5)


def test_only_overlap_at_the_threshold_counts():
    """A box of half the object's width has IoU 0.5 exactly: found at 0.50 alone, one of ten thresholds."""
    scores = score_boxes(ground_truth([(1, 0, 0, 64, 64)]), found((0, 1, 0.9, 0, 0, 32, 64)))
    assert scores.metrics["box_ap50"] == pytest.approx(1.0) and scores.metrics["box_ap"] == pytest.approx(0.1)


def test_the_order_of_images_among_detections_does_not_matter():
    truth, detections = random_scene(0)
    order = np.argsort(np.random.default_rng(1).permutation(9)[detections.images], kind="stable")
    shuffled = Detections(*(column[order] for column in vars(detections).values()))
    assert score_boxes(truth, shuffled).metrics == score_boxes(truth, detections).metrics


def test_scoring_prints_nothing_and_leaves_its_input_alone(capfd):
    truth, detections = random_scene(2)
    before = [array.copy() for array in (truth.boxes, truth.crowd, detections.boxes, detections.scores)]
    for array in (*vars(truth).values(), *vars(detections).values()):
        if isinstance(array, np.ndarray):
            array.setflags(write=False)  # as memory-mapped index arrays are
    score_boxes(truth, detections)
    assert capfd.readouterr() == ("", "")
    for array, copy in zip((truth.boxes, truth.crowd, detections.boxes, detections.scores), before):
        np.testing.assert_array_equal(array, copy)


def test_scoring_in_two_threads_gives_the_same_numbers():
    scenes = [random_scene(seed) for seed in range(2)]
    alone = [score_boxes(*scene).metrics for scene in scenes]
    together: dict[int, dict] = {}
    threads = [
        threading.Thread(target=lambda place=place: together.update({place: score_boxes(*scenes[place]).metrics}))
        for place in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[0], together[1]] == alone


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ((3, 1, 0.5, 0, 0, 9, 9), "image outside 0..0: 3"),
        ((0, 0, 0.5, 0, 0, 9, 9), "class outside 1..3: 0"),
        ((0, 4, 0.5, 0, 0, 9, 9), "class outside 1..3: 4"),
        ((0, 1, float("nan"), 0, 0, 9, 9), "not finite"),
        ((0, 1, 0.5, 0, float("inf"), 9, 9), "not finite"),
    ],
)
def test_detections_that_cannot_be_scored_are_refused(row, says):
    with pytest.raises(ValueError, match=says):
        score_boxes(ground_truth([(1, 0, 0, 9, 9)]), found(row))


def test_a_subset_holds_the_named_images_in_the_named_order():
    truth = ground_truth([(1, 0, 0, 1, 1)], [], [(2, 0, 0, 2, 2), (3, 0, 0, 3, 3)], [(1, 0, 0, 4, 4)])
    few = select_images(truth, np.array([2, 1, 0]))
    assert few.image_ids.tolist() == [20, 10, 0] and few.starts.tolist() == [0, 2, 2, 3]
    assert few.classes.tolist() == [2, 3, 1] and few.boxes[:, 2].tolist() == [2, 3, 1]
    assert len(select_images(truth, np.zeros(0, np.int64)).boxes) == 0
    for numbers in ([4], [-1], [1, 1]):
        with pytest.raises(ValueError, match="without duplicates"):
            select_images(truth, np.array(numbers))


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 12])
def test_any_number_of_ranks_gives_the_same_scores(ranks: int):
    truth, detections = random_scene(3)
    packed = []
    for rank in range(ranks):
        mine = np.arange(9 * rank // ranks, 9 * (rank + 1) // ranks)
        rows = np.isin(detections.images, mine)
        packed.append(pack_shard(CocoShard(mine, Detections(*(column[rows] for column in vars(detections).values())))))
    joined = join_detections([unpack_shard(data) for data in packed[::-1]], np.arange(9))
    assert (np.diff(joined.images) >= 0).all()
    scores, whole = score_boxes(truth, joined), score_boxes(truth, detections)
    assert scores.metrics == whole.metrics and scores.per_class == whole.per_class
    np.testing.assert_array_equal(scores.curves, whole.curves)


def test_joined_detections_are_rows_of_the_subset_that_was_scored():
    numbers = np.array([7, 2, 5])
    share = CocoShard(np.array([2, 5, 7]), found((2, 1, 0.5, 0, 0, 1, 1), (7, 1, 0.4, 0, 0, 2, 2), (5, 1, 0.3, 0, 0, 3, 3)))
    assert join_detections([share], numbers).images.tolist() == [0, 1, 2]
    assert join_detections([share], numbers).scores.tolist() == [0.4, 0.5, 0.3]
    assert len(join_detections([CocoShard(numbers, no_detections())], numbers).scores) == 0
    assert len(join_detections([], np.zeros(0, np.int64)).scores) == 0


@pytest.mark.parametrize("scored", [[0, 1, 1], [0, 1], [0, 1, 3], []])
def test_an_image_that_is_missing_or_scored_twice_is_refused(scored: list[int]):
    with pytest.raises(RuntimeError, match="scored"):
        join_detections([CocoShard(np.array(scored, np.int64), no_detections())], np.arange(3))


def test_a_detection_in_an_image_of_another_rank_is_refused():
    shares = [CocoShard(np.array([0]), found((1, 1, 0.5, 0, 0, 1, 1))), CocoShard(np.array([1]), no_detections())]
    with raises(RuntimeError, "score"):
        join_detections(shares, np.arange(2))


@examples(40)
@given(st.lists(st.floats(allow_nan=False), max_size=20), st.booleans(), st.integers(0, 2**62))
def test_packing_changes_no_value(values: list[float], single: bool, image: int):
    with np.errstate(over="ignore"):
        scores = np.array(values, np.float64).astype(np.float32 if single else np.float64)
    boxes = scores.astype(np.float64)[:, None].repeat(4, 1)
    share = CocoShard(
        np.array([image]), Detections(np.full(len(scores), image), boxes, np.ones(len(scores), np.int64), scores)
    )
    back = unpack_shard(pack_shard(share))
    np.testing.assert_array_equal(back.scored, share.scored)
    for name, column in vars(back.detections).items():
        np.testing.assert_array_equal(column, getattr(share.detections, name))


def test_a_detection_computed_in_float32_takes_28_bytes():
    count = 5000
    boxes = np.random.default_rng(0).random((count, 4), np.float32).astype(np.float64)
    share = CocoShard(np.arange(50), Detections(np.arange(count) // 100, boxes, np.ones(count, np.int32), boxes[:, 0]))
    assert len(pack_shard(share)) < 28 * count + 2500


def obvious_confusion(truth: GroundTruth, detections: Detections) -> np.ndarray:
    counts = np.zeros((truth.num_classes + 1,) * 2, np.int64)
    for image in range(len(truth.image_ids)):
        objects = range(truth.starts[image], truth.starts[image + 1])
        free = [row for row in objects if not truth.crowd[row]]
        left = [d for d in range(len(detections.scores)) if detections.images[d] == image and detections.scores[d] >= 0.3]
        left.sort(key=lambda d: -detections.scores[d])
        for own_class in (True, False):
            for d in list(left):
                best, best_iou = None, 0.0
                for row in free:
                    value = iou(detections.boxes[d], truth.boxes[row])
                    fits = not own_class or truth.classes[row] == detections.classes[d]
                    if fits and value >= 0.5 and value > best_iou:
                        best, best_iou = row, value
                if best is not None:
                    counts[truth.classes[best], detections.classes[d]] += 1
                    free.remove(best)
                    left.remove(d)
        for row in free:
            counts[truth.classes[row], 0] += 1
        for d in left:
            if not any(truth.crowd[row] and covered(detections.boxes[d], truth.boxes[row]) >= 0.5 for row in objects):
                counts[0, detections.classes[d]] += 1
    return counts


def shared_area(a: np.ndarray, b: np.ndarray) -> float:
    width = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    height = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    return max(width, 0.0) * max(height, 0.0)


def iou(a: np.ndarray, b: np.ndarray) -> float:
    whole = a[2] * a[3] + b[2] * b[3] - shared_area(a, b)
    return shared_area(a, b) / whole if whole > 0 else 0.0


def covered(a: np.ndarray, crowd: np.ndarray) -> float:
    return shared_area(a, crowd) / (a[2] * a[3]) if a[2] * a[3] > 0 else 0.0


@examples(60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_confusion_agrees_with_the_obvious_loop(seed: int, images: int):
    truth, detections = random_scene(seed, images)
    counts = confusion_matrix(truth, detections)
    np.testing.assert_array_equal(counts, obvious_confusion(truth, detections))
    objects = np.bincount(truth.classes[truth.crowd == 0], minlength=4)
    np.testing.assert_array_equal(counts.sum(1)[1:], objects[1:])


def test_confusion_prefers_the_right_class_and_ignores_what_lies_on_a_crowd():
    truth = ground_truth([(1, 0, 0, 50, 50), (3, 100, 100, 90, 90, "crowd")], [(2, 0, 0, 20, 20)])
    seen = found(
        (0, 2, 0.9, 0, 0, 50, 50),  # the wrong class, surer: what is left over is background
        (0, 1, 0.5, 0, 0, 45, 50),  # the right class
        (0, 1, 0.29, 0, 0, 45, 50),  # not shown
        (0, 2, 0.8, 110, 110, 20, 20),  # on the crowd
        (1, 3, 0.3, 0, 0, 20, 20),  # the only one: named wrongly
    )
    assert confusion_matrix(truth, seen).tolist() == [[0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert confusion_matrix(truth, no_detections())[:, 0].tolist() == [0, 1, 1, 0]
    assert confusion_matrix(ground_truth(), no_detections()).sum() == 0


def test_boxes_without_area_overlap_nothing():
    boxes, others = np.array([[5.0, 5, 0, 10], [0, 0, 10, 10]]), np.array([[5.0, 5, 0, 10], [0, 0, 20, 10]])
    assert paired_overlaps(boxes, others, np.array([False, False])).tolist() == [0, 0.5]
    assert paired_overlaps(boxes, others, np.array([True, True])).tolist() == [0, 1]


def test_confusion_is_the_same_in_blocks(monkeypatch):
    truth, detections = random_scene(5)
    whole = confusion_matrix(truth, detections)
    monkeypatch.setattr(detection_errors, "BLOCK", 7)
    np.testing.assert_array_equal(confusion_matrix(truth, detections), whole)
