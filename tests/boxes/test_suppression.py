"""Both forms of suppression against the sequential loop and torchvision."""

from __future__ import annotations

import pytest
import torch
import torchvision
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from slow_suppression import greedy

from paceline.boxes import suppression
from paceline.boxes.geometry import to_ltrb
from paceline.boxes.suppression import stays_in_list, stays_in_lists

# Boxes on a coarse grid: chains of overlaps, equal boxes and an IoU of exactly the threshold are common.
side = st.integers(1, 6)
box = st.tuples(st.integers(0, 6), st.integers(0, 6), side, side).map(
    lambda b: (b[0] / 8, b[1] / 8, (b[0] + b[2]) / 8, (b[1] + b[3]) / 8)
)


@examples(150)
@given(st.lists(st.tuples(box, st.integers(0, 2)), max_size=24), st.sampled_from([0.25, 0.5, 1.0]))
def test_what_stays_is_what_the_loop_keeps(rows, iou) -> None:
    boxes = torch.tensor([row[0] for row in rows]).reshape(-1, 4)
    classes = torch.tensor([row[1] for row in rows], dtype=torch.int64)
    expected = greedy(boxes, classes, iou)
    assert stays_in_list(boxes, classes, iou).nonzero().squeeze(1).tolist() == expected
    valid = torch.ones(len(rows), dtype=torch.bool)
    assert stays_in_lists(boxes, valid, iou, classes).nonzero().squeeze(1).tolist() == expected


@examples(50)
@given(st.lists(st.tuples(box, st.booleans()), min_size=1, max_size=16))
def test_invalid_boxes_neither_stay_nor_suppress(rows) -> None:
    boxes, valid = torch.tensor([row[0] for row in rows]), torch.tensor([row[1] for row in rows])
    stays = stays_in_lists(boxes[None], valid[None], 0.5)[0]
    alone = torch.zeros_like(valid)
    alone[valid] = stays_in_list(boxes[valid], torch.zeros(int(valid.sum()), dtype=torch.int64), 0.5)
    assert torch.equal(stays, alone)


def test_many_lists_are_the_lists_one_by_one() -> None:
    random = torch.Generator().manual_seed(0)
    boxes = to_ltrb(torch.rand(2, 3, 20, 4, generator=random) * torch.tensor([1, 1, 0.5, 0.5]))
    valid = torch.rand(2, 3, 20, generator=random) < 0.8
    together = stays_in_lists(boxes, valid, 0.4)
    for image in range(2):
        for one in range(3):
            assert torch.equal(together[image, one], stays_in_lists(boxes[image, one], valid[image, one], 0.4))


@pytest.mark.parametrize("at_once", [1, 7])
def test_pairs_may_be_looked_at_in_parts(at_once, monkeypatch) -> None:
    random = torch.Generator().manual_seed(0)
    boxes = to_ltrb(torch.rand(30, 4, generator=random))
    classes = torch.randint(0, 2, (30,), generator=random)
    monkeypatch.setattr(suppression, "PAIRS_AT_ONCE", at_once)
    assert stays_in_list(boxes, classes, 0.3).nonzero().squeeze(1).tolist() == greedy(boxes, classes, 0.3)


@pytest.mark.parametrize("count", [1, 500])
def test_it_is_torchvisions_batched_nms(count) -> None:
    random = torch.Generator().manual_seed(count)
    boxes = to_ltrb(torch.rand(count, 4, generator=random) * torch.tensor([1, 1, 0.4, 0.4]))
    classes = torch.randint(0, 5, (count,), generator=random)
    scores = torch.linspace(1, 0.1, count)
    # torchvision moves classes apart by an offset, which rounds; in float64 that changes nothing.
    expected = torchvision.ops.batched_nms(boxes.double(), scores.double(), classes, 0.5)
    assert stays_in_list(boxes, classes, 0.5).nonzero().squeeze(1).tolist() == expected.tolist()


def test_the_longest_chain_is_followed_to_its_end() -> None:
    """Each box overlaps its neighbours only: every second one stays."""
    left = torch.arange(60) * 0.3
    boxes = torch.stack((left, torch.zeros(60), left + 1, torch.ones(60)), dim=1)
    stays = stays_in_list(boxes, torch.zeros(60, dtype=torch.int64), 0.5)
    assert stays.tolist() == [place % 2 == 0 for place in range(60)]
