"""System A's decoding: its own network tail on MXNet, recorded by scripts/originals/ssd_mxnet.py, beside recipes ssd-mlperf-*."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ready_outputs import NOTHING, ReadyOutputs

from paceline.config.recipes.ssd import mlperf_1024
from paceline.config.ssd import DetectionFilter, SSDModel, grid_sizes
from paceline.data.batch import detection_batch
from paceline.models.object_predictions import to_pixel_detections
from paceline.models.ops.anchors import default_boxes
from paceline.models.registry import WORKLOADS
from paceline.models.ssd.loss import SSDWithLoss
from paceline.models.ssd.postprocess import detect_by_image_fixed, postprocess_ssd

# As in scripts/originals/ssd_mxnet.py: grids, default boxes of a cell, K, candidates, places, what kind of numbers, generator.
FULL = ((38, 19, 10, 5, 3, 1), (4, 6, 6, 6, 4, 4))
SMALL = ((8, 4, 2), (4, 6, 6))
CASES = {
    "random": (*FULL, 80, 200, 200, "random", 1),
    "few": (*SMALL, 3, 40, 25, "random", 2),
    "sharp": (*SMALL, 3, 40, 40, "sharp", 3),
    "coarse": (*SMALL, 3, 150, 100, "coarse", 4),
    "equal": (*SMALL, 3, 60, 60, "equal", 5),
}
KNOBS: DetectionFilter = mlperf_1024().model.detect
PARITY = mlperf_1024().model.parity


@pytest.fixture(scope="module")
def theirs() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).parent / "recorded" / "ssd_mxnet.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def detector() -> SSDWithLoss:
    return WORKLOADS["detection"].network.build(mlperf_1024(), 1)


def head_outputs(grids, boxes, classes: int, kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(A, K + 1) logits and (A, 4) deltas, as the script draws them."""
    random = np.random.RandomState(seed)
    count = sum(grid * grid * number for grid, number in zip(grids, boxes))
    logits, deltas = 2.2 * random.standard_normal((count, classes + 1)), 0.5 * random.standard_normal((count, 4))
    if kind == "sharp":
        logits *= 60
    elif kind == "coarse":
        chosen = random.randint(0, classes + 1, count)
        logits[:], deltas = 0, np.round(deltas) * 5
        logits[np.arange(count), chosen] = random.choice((20, 40), count)
    elif kind == "equal":
        logits[:], deltas[:] = logits[0], 0
    return logits.astype(np.float32), deltas.astype(np.float32)


def small_boxes(grids, boxes) -> torch.Tensor:
    rows = []
    for grid, number in zip(grids, boxes):
        shapes = [(1, 1), (2, 2), (2, 1), (1, 2), (1.5, 1), (1, 1.5)][:number]
        for row in range(grid):
            for column in range(grid):
                rows += [((column + 0.5) / grid, (row + 0.5) / grid, w / grid, h / grid) for w, h in shapes]
    return torch.tensor(rows, dtype=torch.float32)


def compare(found: torch.Tensor, wanted: np.ndarray) -> None:
    """Rows of one image as (left, top, right, bottom, score, class) with theirs, as written for a photo of 640 x 427."""
    found = found[found[:, 5] > 0]
    rows = np.column_stack((np.zeros(len(found)), found.numpy().astype(np.float64)))
    ours = to_pixel_detections(rows, np.array([427]), np.array([640]), PARITY.plus_one)
    assert len(rows) == len(wanted)
    np.testing.assert_array_equal(rows[:, 6] - 1, wanted[:, 5])
    np.testing.assert_allclose(rows[:, 5], wanted[:, 4], rtol=1e-5)
    np.testing.assert_allclose(ours.boxes, wanted[:, :4], atol=2e-4)


@pytest.mark.parametrize("name", CASES)
def test_detections_are_the_submissions_in_its_order(theirs, detector, name) -> None:
    cells, boxes, classes, candidates, places, kind, seed = CASES[name]
    full = len(cells) == 6
    anchors = default_boxes(300, grid_sizes(300), SSDModel().scales) if full else small_boxes(cells, boxes)
    logits, deltas = (torch.from_numpy(part)[None] for part in head_outputs(cells, boxes, classes, kind, seed))
    if full:
        assert (KNOBS.topk_candidates, KNOBS.max_detections) == (candidates, places)
    found = postprocess_ssd(
        logits,
        deltas,
        anchors,
        replace(KNOBS, topk_candidates=candidates, max_detections=places),
        detector.suppressed_above,
        PARITY.clip_boxes,
    )[0]
    compare(found, theirs[name])


@pytest.mark.parametrize("name", ["sharp", "coarse", "equal"])
def test_a_detector_with_the_recipes_settings_answers_so(theirs, name) -> None:
    cells, boxes, classes, candidates, places, kind, seed = CASES[name]
    model = mlperf_1024().model
    model = replace(model, detect=replace(KNOBS, topk_candidates=candidates, max_detections=places))
    network = ReadyOutputs(*(torch.from_numpy(part)[None] for part in head_outputs(cells, boxes, classes, kind, seed)))
    ready = SSDWithLoss(network, small_boxes(cells, boxes), mean=(0, 0, 0), std=(1, 1, 1), settings=model)  # type: ignore[arg-type]
    batch = detection_batch(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), [NOTHING], torch.zeros(1))
    compare(ready.predict(batch)[0], theirs[name])


@pytest.mark.parametrize("name", ["few", "coarse", "equal"])
def test_an_accelerators_form_has_the_same_order_of_equals(detector, name) -> None:
    """Every score is a candidate here: which of equals makes the cut is its own choice."""
    cells, boxes, classes, *_, kind, seed = CASES[name]
    anchors = small_boxes(cells, boxes)
    logits, deltas = (torch.from_numpy(part)[None] for part in head_outputs(cells, boxes, classes, kind, seed))
    rules, iou = (
        replace(KNOBS, topk_candidates=classes * len(anchors), max_detections=classes * len(anchors)),
        detector.suppressed_above,
    )
    fixed = detect_by_image_fixed(logits.softmax(2)[..., 1:], deltas, anchors, rules, iou)
    assert torch.equal(fixed, postprocess_ssd(logits, deltas, anchors, replace(rules, topk_per="image"), iou))
