"""Suppression in blocks and rounds against torchvision and the sequential loop."""

from __future__ import annotations

import pytest
import torch
import torchvision
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paceline.boxes import suppression
from paceline.boxes.geometry import pairwise_iou, to_ltrb
from paceline.boxes.suppression import ROUNDS, stays_settled

# Boxes on a coarse grid: chains of overlaps, equal boxes and an IoU of exactly the threshold are common.
side = st.integers(0, 6)
box = st.tuples(st.integers(0, 6), st.integers(0, 6), side, side).map(
    lambda b: (8.0 * b[0], 8.0 * b[1], 8.0 * (b[0] + b[2]), 8.0 * (b[1] + b[3]))
)


def greedy(boxes: Tensor, valid: Tensor, classes: Tensor, iou: float) -> list[bool]:
    overlap = pairwise_iou(boxes, boxes)
    stays: list[bool] = []
    for place in range(len(boxes)):
        beaten = any(
            stays[better] and classes[better] == classes[place] and overlap[better, place] > iou
            for better in range(place)
        )
        stays.append(bool(valid[place]) and not beaten)
    return stays


def crowd(lists: int, count: int, seed: int) -> Tensor:
    """Boxes around few objects, in pixels."""
    random = torch.Generator().manual_seed(seed)
    boxes = torch.rand(lists, count, 4, generator=random) * torch.tensor([200.0, 200.0, 60.0, 60.0])
    return to_ltrb(boxes + torch.tensor([0.0, 0.0, 20.0, 20.0]))


@examples(100)
@given(
    st.lists(st.tuples(box, st.booleans(), st.integers(0, 1)), max_size=24),
    st.sampled_from([0.25, 0.5, 0.7, 1.0]),
    st.sampled_from([3, 8, 100]),
)
def test_what_stays_is_what_the_loop_keeps(rows, iou, block) -> None:
    boxes = torch.tensor([row[0] for row in rows]).reshape(-1, 4)
    valid = torch.tensor([row[1] for row in rows], dtype=torch.bool)
    classes = torch.tensor([row[2] for row in rows], dtype=torch.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suppression, "BLOCK", block)
        stays, unsettled = stays_settled(boxes, valid, iou, rounds=ROUNDS, classes=classes)
        assert stays.tolist() == greedy(boxes, valid, classes, iou)
        assert not unsettled.any()
        alone, _ = stays_settled(boxes, valid, iou, rounds=ROUNDS)
        assert alone.tolist() == greedy(boxes, valid, torch.zeros_like(classes), iou)


@pytest.mark.parametrize("count", [0, 1, suppression.BLOCK, 3 * suppression.BLOCK + 5])
@pytest.mark.parametrize("iou", [0.5, 0.7])
def test_it_is_torchvisions_nms_over_several_blocks(count, iou) -> None:
    boxes = crowd(2, count, seed=count)
    stays, unsettled = stays_settled(boxes, torch.ones(2, count, dtype=torch.bool), iou, rounds=ROUNDS)
    for one in range(2):
        expected = torchvision.ops.nms(boxes[one], -torch.arange(count, dtype=torch.float32), iou)
        assert stays[one].nonzero().squeeze(1).tolist() == expected.tolist()
    assert not unsettled.any()


def test_classes_compete_apart_as_in_batched_nms() -> None:
    boxes = crowd(1, 600, seed=3)[0]
    classes = torch.randint(0, 5, (600,), generator=torch.Generator().manual_seed(0))
    stays, _ = stays_settled(boxes, torch.ones(600, dtype=torch.bool), 0.5, rounds=ROUNDS, classes=classes)
    expected = torchvision.ops.batched_nms(boxes.double(), torch.linspace(1, 0.1, 600).double(), classes, 0.5)
    assert stays.nonzero().squeeze(1).tolist() == expected.tolist()


def test_an_overlap_of_exactly_the_threshold_does_not_suppress() -> None:
    boxes = torch.tensor([[0.0, 0.0, 2.0, 1.0], [0.0, 0.0, 1.0, 1.0]])
    valid = torch.ones(2, dtype=torch.bool)
    assert stays_settled(boxes, valid, 0.5, rounds=2)[0].tolist() == [True, True]
    assert stays_settled(boxes, valid, 0.499, rounds=2)[0].tolist() == [True, False]


@pytest.mark.parametrize("rounds", [1, 2, 7, 20, 59])
def test_too_few_rounds_are_counted_and_an_even_number_keeps_too_many(rounds) -> None:
    """A chain in which every second box stays, settled one link a round."""
    left = torch.arange(60) * 0.3
    boxes = torch.stack((left, torch.zeros(60), left + 1, torch.ones(60)), dim=1)
    valid = torch.ones(60, dtype=torch.bool)
    right = torch.arange(60) % 2 == 0
    stays, unsettled = stays_settled(boxes, valid, 0.5, rounds=rounds)
    assert torch.equal(stays[: rounds + 1], right[: rounds + 1])
    assert int(unsettled) == 60 - rounds
    assert (stays >= right).all() if rounds % 2 == 0 else (stays <= right).all()
    stays, unsettled = stays_settled(boxes, valid, 0.5, rounds=60)
    assert torch.equal(stays, right) and not unsettled.any()


def test_the_memory_estimate_runs_it_without_data() -> None:
    boxes = torch.empty(2, 3, 700, 4, device="meta")
    stays, unsettled = stays_settled(boxes, torch.empty(2, 3, 700, dtype=torch.bool, device="meta"), 0.7, rounds=2)
    assert stays.shape == (2, 3, 700) and unsettled.shape == (2, 3)
