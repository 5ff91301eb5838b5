"""Mask scores whose value is known by hand, and a rank's masks as bytes."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from mask_scenes import Scene, as_found, mask_scene, strings, truth_of

from paceline.data.rle import RLE
from paceline.models.metrics import coco
from paceline.models.metrics.coco import Detections, GroundTruth, no_detections, score_masks
from paceline.models.object_predictions import CocoShard, join_detection_masks, join_detections, pack_shard, unpack_shard

NAMES = [
    "mask_ap", "mask_ap50", "mask_ap75", "mask_ap_small", "mask_ap_medium", "mask_ap_large",
    "mask_ar1", "mask_ar10", "mask_ar100", "mask_ar_small", "mask_ar_medium", "mask_ar_large",
]  # fmt: skip


def square(top: int, left: int, height: int, width: int) -> np.ndarray:
    bits = np.zeros((200, 220), np.uint8)
    bits[top : top + height, left : left + width] = 1
    return bits


def test_ground_truth_as_prediction_scores_one() -> None:
    truth, wanted = truth_of(
        [(1, square(0, 0, 10, 10)), (2, square(50, 50, 40, 40))],
        [],
        [(1, square(5, 5, 150, 150)), (2, square(9, 9, 8, 8), "crowd")],
    )
    scores = score_masks(truth, wanted, as_found(truth), wanted)
    assert list(scores.metrics) == NAMES
    assert scores.metrics == dict.fromkeys(NAMES, pytest.approx(1.0, abs=1e-12))
    assert [entry.objects for entry in scores.per_class] == [2, 1, 0]
    assert scores.per_class[2].ap == -1 and scores.per_class[0].ar100 == 1
    np.testing.assert_allclose(scores.mean_curve, 1, atol=1e-12)


def test_boxes_do_not_count_and_only_overlap_at_the_threshold_does() -> None:
    """Half of the object's pixels, in every second row: the boxes overlap wholly, the masks by 0.5 exactly, one threshold of ten."""
    whole, half = square(0, 0, 64, 64), square(0, 0, 64, 64)
    half[1::2] = 0
    truth, wanted = truth_of([(1, whole)])
    scores = score_masks(truth, wanted, as_found(truth), strings([half]))
    assert scores.metrics["mask_ap50"] == pytest.approx(1.0) and scores.metrics["mask_ap"] == pytest.approx(0.1)


def test_a_detection_is_small_or_large_by_the_pixels_of_its_mask() -> None:
    """A miss of 10 x 10 pixels, surer than the hit, counts among the small alone, whatever its box."""
    truth, wanted = truth_of([(1, square(100, 100, 60, 60))], [(1, square(0, 0, 10, 10))])
    guess = Detections(np.array([0, 0]), np.tile([0.0, 0, 199, 199], (2, 1)), np.array([1, 1]), np.array([0.9, 0.8]))
    masks = strings([square(0, 0, 10, 10), square(100, 100, 60, 60)])
    metrics = score_masks(truth, wanted, guess, masks).metrics
    assert metrics["mask_ap_medium"] == pytest.approx(1.0) and metrics["mask_ap_small"] == 0
    assert metrics["mask_ap"] < 0.5


def test_what_lies_on_a_crowd_is_not_held_against_a_model() -> None:
    truth, wanted = truth_of([(1, square(0, 0, 20, 20)), (1, square(50, 50, 100, 100), "crowd")])
    guess = Detections(np.zeros(3, np.int64), np.zeros((3, 4)), np.ones(3, np.int64), np.array([0.9, 0.8, 0.7]))
    masks = strings([square(60, 60, 30, 30), square(70, 70, 30, 30), square(0, 0, 20, 20)])
    assert score_masks(truth, wanted, guess, masks).metrics["mask_ap"] == pytest.approx(1.0)


def test_nothing_found_scores_zero_and_nothing_to_find_minus_one() -> None:
    truth, wanted = truth_of([(1, square(0, 0, 50, 50))], [])
    assert score_masks(truth, wanted, no_detections(), RLE.of([])).metrics["mask_ap"] == 0
    for images in ([[], []], []):
        truth, wanted = truth_of(*images)
        assert set(score_masks(truth, wanted, no_detections(), RLE.of([])).metrics.values()) == {-1.0}


def test_an_empty_mask_is_found_by_nothing_and_finds_nothing() -> None:
    empty = square(0, 0, 0, 0)
    truth, wanted = truth_of([(1, empty), (1, square(0, 0, 50, 50))])
    scores = score_masks(truth, wanted, as_found(truth), wanted)
    assert 0 < scores.metrics["mask_ap"] < 0.6


@pytest.mark.parametrize("chunk", [1, 5, 20])
def test_matching_a_few_images_at_a_time_changes_nothing(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = mask_scene(3)
    whole = score_masks(*scene)
    monkeypatch.setattr(coco, "CHUNK", chunk)
    parts = score_masks(*scene)
    assert parts.metrics == whole.metrics and parts.per_class == whole.per_class
    np.testing.assert_array_equal(parts.curves, whole.curves)


def test_ranges_of_images_cover_all_and_hold_no_more_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coco, "CHUNK", 10)
    for counts, expected in (
        ([], []),
        ([0, 0], [(0, 2)]),
        ([4, 6, 1, 30, 0, 9, 1, 1], [(0, 2), (2, 3), (3, 4), (4, 7), (7, 8)]),
    ):
        assert list(coco._chunks(counts)) == expected


def test_scoring_prints_nothing_leaves_its_input_alone_and_may_run_twice_at_once(capfd) -> None:
    scene = mask_scene(4)
    arrays = [array for part in scene for array in vars(part).values() if isinstance(array, np.ndarray)]
    for array in arrays:
        array.setflags(write=False)  # as memory-mapped index arrays are
    alone, together = score_masks(*scene).metrics, []
    threads = [threading.Thread(target=lambda: together.append(score_masks(*scene).metrics)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == [alone, alone] and capfd.readouterr() == ("", "")


def test_masks_and_rows_must_be_as_many() -> None:
    truth, wanted = truth_of([(1, square(0, 0, 9, 9))])
    with pytest.raises(ValueError, match="1 masks for 1 objects, 0 for 1 detections"):
        score_masks(truth, wanted, as_found(truth), RLE.of([]))
    strange = Detections(np.array([4]), np.zeros((1, 4)), np.array([1]), np.array([0.5]))
    with pytest.raises(ValueError, match=r"image outside 0\.\.0: 4"):
        score_masks(truth, wanted, strange, wanted)


def shares_of(scene: Scene, ranks: int) -> list[bytes]:
    """What each rank sends, the images dealt out in ranges."""
    truth, _, found, masks = scene
    images, packed = len(truth.image_ids), []
    for rank in range(ranks):
        mine = np.arange(images * rank // ranks, images * (rank + 1) // ranks)
        rows = np.flatnonzero(np.isin(found.images, mine))
        part = Detections(*(column[rows] for column in vars(found).values()))
        packed.append(pack_shard(CocoShard(mine, part, masks.take(rows))))
    return packed


@pytest.mark.parametrize("ranks", [1, 2, 3, 12])
def test_any_number_of_ranks_gives_the_same_scores(ranks: int) -> None:
    truth, wanted, found, masks = scene = mask_scene(5)
    shares = [unpack_shard(data) for data in shares_of(scene, ranks)][::-1]
    joined, its_masks = join_detection_masks(shares, np.arange(len(truth.image_ids)))
    assert (np.diff(joined.images) >= 0).all()
    assert score_masks(truth, wanted, joined, its_masks).metrics == score_masks(truth, wanted, found, masks).metrics
    order = np.argsort(found.images, kind="stable")
    assert list(its_masks) == list(masks.take(order))
    np.testing.assert_array_equal(joined.scores, found.scores[order])
    np.testing.assert_array_equal(join_detections(shares, np.arange(len(truth.image_ids))).scores, joined.scores)


def test_masks_come_back_byte_for_byte_and_a_share_without_them_stays_so() -> None:
    _, _, found, masks = mask_scene(6)
    back = unpack_shard(pack_shard(CocoShard(np.arange(9), found, masks)))
    assert back.masks is not None and list(back.masks) == list(masks)
    assert unpack_shard(pack_shard(CocoShard(np.arange(9), found))).masks is None
    nothing = unpack_shard(pack_shard(CocoShard(np.arange(9), no_detections(), RLE.of([]))))
    assert nothing.masks is not None and len(nothing.masks) == 0


def test_a_share_with_too_few_masks_is_refused() -> None:
    _, _, found, masks = mask_scene(6)
    for wrong in (None, masks.take(np.arange(3))):
        with pytest.raises(RuntimeError, match=r"share 0 has [03] masks for 60 detections"):
            join_detection_masks([CocoShard(np.arange(9), found, wrong)], np.arange(9))
    truth = GroundTruth(*([np.zeros(0)] * 3), np.zeros(1, np.int64), np.zeros((0, 4)), *([np.zeros(0)] * 3), 1)
    empty, its_masks = join_detection_masks([], truth.image_ids.astype(np.int64))
    assert len(empty.scores) == 0 == len(its_masks)
