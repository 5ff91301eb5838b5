"""What the MLPerf reference SSD computes on fixed inputs: the oracle of default boxes, matching, loss, detections."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from by_night import ONE_MORE
from ready_outputs import ReadyOutputs
from torch import Tensor

from paceline.config.recipes.ssd import mlperf
from paceline.config.ssd import DetectionFilter, SSDModel, grid_sizes
from paceline.data.batch import DetectionBatch, Objects, detection_batch
from paceline.models.ops.anchors import anchor_to_cell, default_boxes
from paceline.models.ops.boxes import pairwise_iou, to_cxcywh, to_ltrb
from paceline.models.ops.matching import match
from paceline.models.registry import WORKLOADS
from paceline.models.ssd.loss import normalize_per_image, ssd_loss
from paceline.models.ssd.postprocess import postprocess_ssd

IMAGES = 7
# Of the default boxes in cell order, as the network has them: in which order the reference has them.
REFERENCE_ORDER = anchor_to_cell(grid_sizes(300)).argsort()


# Outputs on drawn boxes, which lie beside this file (scripts/originals/ssd_reference.py); and on objects of real photos.
RECORDED = Path(__file__).parent / "recorded" / "ssd_reference.npz"


@pytest.fixture(scope="module", params=["drawn boxes", pytest.param("photos", marks=ONE_MORE)])
def oracle(request) -> dict[str, np.ndarray]:
    photos = request.param == "photos"
    with np.load(request.getfixturevalue("shared_data") / "oracle" / "ssd300.npz" if photos else RECORDED) as file:
        return dict(file)


def ssd300(order="anchor") -> Tensor:
    return default_boxes(300, grid_sizes(300), SSDModel().scales, order=order)


def objects(oracle) -> tuple[Tensor, Tensor]:
    """boxes and labels of the seven images and of one without objects, padded as the input path pads them."""
    rows = [Objects(oracle[f"gt_boxes_ltrb_{k}"], oracle[f"gt_labels_{k}"]) for k in range(IMAGES)]
    rows.append(Objects(np.zeros((0, 4), np.float32), np.zeros(0, np.int64)))
    batch = detection_batch(torch.zeros(len(rows), 3, 1, 1, dtype=torch.uint8), rows, torch.arange(len(rows)))
    return batch.boxes, batch.labels


def test_default_boxes_are_the_references_bit_for_bit(oracle) -> None:
    assert np.array_equal(ssd300().numpy(), oracle["default_boxes_xywh"])
    assert np.array_equal(to_ltrb(ssd300()).numpy(), oracle["default_boxes_ltrb"])
    assert np.array_equal(ssd300("cell").numpy(), oracle["default_boxes_xywh"][anchor_to_cell(grid_sizes(300)).numpy()])


@pytest.mark.parametrize("order", ["anchor", "cell"])
def test_matching_is_the_references(oracle, order) -> None:
    """36 objects of one image are smaller than any default box, and some overlap a wide and a tall one equally."""
    boxes, labels = objects(oracle)
    if order == "anchor":
        slots, positives = match(boxes, labels, to_ltrb(ssd300()))
    else:
        found = match(boxes, labels, to_ltrb(ssd300("cell")), order=REFERENCE_ORDER)
        slots, positives = (part[:, REFERENCE_ORDER] for part in found)
    targets = labels.gather(1, slots) * positives
    matched = to_cxcywh(boxes.gather(1, slots.unsqueeze(-1).expand(-1, -1, 4)))
    for k in range(IMAGES):
        assert np.array_equal(targets[k].numpy(), oracle[f"encoded_labels_{k}"])
        assert np.array_equal(positives[k].nonzero().squeeze(1).numpy(), oracle[f"matched_index_{k}"])
        assert np.array_equal(matched[k][positives[k]].numpy(), oracle[f"matched_boxes_xywh_{k}"])
    assert not positives[IMAGES].any()


def test_the_order_of_default_boxes_only_decides_between_equally_good_ones(oracle) -> None:
    """An object inside a wide and a tall default box of one area overlaps both equally; the first one is forced."""
    boxes, labels = objects(oracle)
    overlap = pairwise_iou(boxes, to_ltrb(ssd300("cell")))
    anchors = to_ltrb(ssd300("cell"))
    here, there = match(boxes, labels, anchors), match(boxes, labels, anchors, order=REFERENCE_ORDER)
    same = (here[1] == there[1]) & (~here[1] | (here[0] == there[0]))
    assert not same.all()
    for slots, positives in (here, there):
        for image, anchor in (~same & positives).nonzero().tolist():
            wants = overlap[image, int(slots[image, anchor])]
            assert wants[anchor] == wants.max()


@pytest.mark.parametrize("order", ["anchor", "cell"])
def test_loss_is_the_references(oracle, order) -> None:
    boxes, labels = objects(oracle)
    random = np.random.RandomState(int(oracle["loss_seed"]))
    deltas = torch.from_numpy(random.standard_normal((8, 4, 8732)).astype(np.float32)).transpose(1, 2)
    logits = torch.from_numpy(random.standard_normal((8, 81, 8732)).astype(np.float32)).transpose(1, 2)
    if order == "cell":
        places = anchor_to_cell(grid_sizes(300))
        deltas, logits = deltas[:, places], logits[:, places]
    losses = ssd_loss(
        logits, deltas, boxes, labels, ssd300(order), SSDModel(),
        order=REFERENCE_ORDER if order == "cell" else None,
    )  # fmt: skip
    classification, localisation = normalize_per_image(losses)
    expected = oracle["loss_per_image"]
    assert expected[IMAGES] == 0
    assert (classification + localisation).numpy() == pytest.approx(expected, rel=2e-6)
    assert float((classification + localisation).mean()) == pytest.approx(float(oracle["loss"]), rel=2e-6)


def test_the_recipes_own_detector_has_the_references_loss(oracle) -> None:
    """Objects of small photos among them: production has default boxes cell by cell."""
    boxes, labels = objects(oracle)
    random = np.random.RandomState(int(oracle["loss_seed"]))
    deltas = torch.from_numpy(random.standard_normal((8, 4, 8732)).astype(np.float32)).transpose(1, 2)
    logits = torch.from_numpy(random.standard_normal((8, 81, 8732)).astype(np.float32)).transpose(1, 2)
    detector, places = WORKLOADS["detection"].network.build(mlperf(), 80), anchor_to_cell(grid_sizes(300))
    detector.network = ReadyOutputs(logits[:, places], deltas[:, places])  # type: ignore[assignment]
    images = torch.zeros(8, 3, 8, 8, dtype=torch.uint8)
    found = detector(DetectionBatch(images=images, labels=labels, indices=torch.arange(8), boxes=boxes))
    assert float(found["loss"]) / 8 == pytest.approx(float(oracle["loss"]), rel=2e-6)


@pytest.mark.parametrize("order", ["anchor", "cell"])
def test_detections_are_the_references(oracle, order) -> None:
    random = np.random.RandomState(int(oracle["decode_seed"]))
    deltas = torch.from_numpy((0.5 * random.standard_normal((2, 4, 8732))).astype(np.float32)).transpose(1, 2)
    logits = torch.from_numpy((2.2 * random.standard_normal((2, 81, 8732))).astype(np.float32)).transpose(1, 2)
    if order == "cell":
        places = anchor_to_cell(grid_sizes(300))
        deltas, logits = deltas[:, places], logits[:, places]
    found = postprocess_ssd(logits, deltas, ssd300(order), DetectionFilter(), 0.5).numpy()
    for k in range(2):
        assert np.array_equal(found[k, ::-1, 5], oracle[f"decoded_labels_{k}"])
        assert found[k, ::-1, 4] == pytest.approx(oracle[f"decoded_scores_{k}"], rel=1e-6)
        assert found[k, ::-1, :4] == pytest.approx(oracle[f"decoded_boxes_ltrb_{k}"], rel=1e-6, abs=1e-6)
