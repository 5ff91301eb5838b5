"""Both forms of suppression against the sequential loop and torchvision."""

from __future__ import annotations

import pytest
import torch
import torchvision
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from slow_nms import greedy
from torch import Tensor

from paceline.models.ops.boxes import to_ltrb
from paceline.models.ops.nms import BLOCK, nms_cpu, nms_fixed

# Boxes on a coarse grid: chains of overlaps, equal boxes, boxes without area and an IoU of exactly the threshold are common.
side = st.integers(0, 6)
box = st.tuples(st.integers(0, 6), st.integers(0, 6), side, side).map(
    lambda b: (8.0 * b[0], 8.0 * b[1], 8.0 * (b[0] + b[2]), 8.0 * (b[1] + b[3]))
)


def crowd(lists: int, count: int, seed: int) -> Tensor:
    """Boxes around few objects, in pixels."""
    random = torch.Generator().manual_seed(seed)
    boxes = torch.rand(lists, count, 4, generator=random) * torch.tensor([200.0, 200.0, 60.0, 60.0])
    return to_ltrb(boxes + torch.tensor([0.0, 0.0, 20.0, 20.0]))


def chain(count: int) -> Tensor:
    """Each box overlaps its neighbors only: every second one is kept."""
    left = torch.arange(count) * 0.3
    return torch.stack((left, torch.zeros(count), left + 1, torch.ones(count)), dim=1)


@examples(150)
@given(
    st.lists(st.tuples(box, st.booleans(), st.integers(0, 2)), max_size=24),
    st.sampled_from([0.25, 0.5, 0.7, 1.0]),
    st.sampled_from([3, 8, 100]),
)
def test_what_is_kept_is_what_the_loop_keeps(rows, iou, block) -> None:
    """Invalid boxes neither stay nor suppress."""
    boxes = torch.tensor([row[0] for row in rows]).reshape(-1, 4)
    valid = torch.tensor([row[1] for row in rows], dtype=torch.bool)
    classes = torch.tensor([row[2] for row in rows], dtype=torch.int64)
    places = valid.nonzero().squeeze(1)
    for compete in (classes, None):
        among = None if compete is None else compete[valid]
        one_class = torch.zeros(len(places), dtype=torch.int64)
        expected = greedy(boxes[valid], one_class if among is None else among, iou)
        assert nms_cpu(boxes[valid], iou, among).tolist() == expected
        kept, unsettled = nms_fixed(boxes, valid, iou, compete, block=block)
        assert kept.nonzero().squeeze(1).tolist() == places[expected].tolist()
        assert not unsettled.any()


def test_many_lists_are_the_lists_one_by_one() -> None:
    boxes = crowd(6, 20, seed=0).unflatten(0, (2, 3))
    valid = torch.rand(2, 3, 20, generator=torch.Generator().manual_seed(0)) < 0.8
    kept, _ = nms_fixed(boxes, valid, 0.4)
    for image in range(2):
        for one in range(3):
            assert torch.equal(kept[image, one], nms_fixed(boxes[image, one], valid[image, one], 0.4)[0])


@pytest.mark.parametrize("count", [0, 1, BLOCK, 3 * BLOCK + 5])
@pytest.mark.parametrize("iou", [0.5, 0.7])
def test_it_is_torchvisions_nms_over_several_blocks(count, iou) -> None:
    boxes = crowd(2, count, seed=count)
    kept, unsettled = nms_fixed(boxes, torch.ones(2, count, dtype=torch.bool), iou)
    for one in range(2):
        expected = torchvision.ops.nms(boxes[one], -torch.arange(count, dtype=torch.float32), iou)
        assert kept[one].nonzero().squeeze(1).tolist() == expected.tolist()
    assert not unsettled.any()


@pytest.mark.parametrize("count", [1, 600])
def test_classes_compete_apart_as_in_batched_nms(count) -> None:
    boxes = crowd(1, count, seed=3)[0]
    classes = torch.randint(0, 5, (count,), generator=torch.Generator().manual_seed(0))
    # torchvision moves classes apart by an offset, which rounds; in float64 that changes nothing.
    scores = torch.linspace(1, 0.1, count).double()
    expected = torchvision.ops.batched_nms(boxes.double(), scores, classes, 0.5).tolist()
    assert nms_cpu(boxes, 0.5, classes).tolist() == expected
    kept, _ = nms_fixed(boxes, torch.ones(count, dtype=torch.bool), 0.5, classes)
    assert kept.nonzero().squeeze(1).tolist() == expected


def test_an_overlap_of_exactly_the_threshold_does_not_suppress() -> None:
    boxes = torch.tensor([[0.0, 0.0, 2.0, 1.0], [0.0, 0.0, 1.0, 1.0]])
    for iou, expected in ((0.5, [0, 1]), (0.499, [0])):
        assert nms_cpu(boxes, iou).tolist() == expected
        assert nms_fixed(boxes, torch.ones(2, dtype=torch.bool), iou)[0].nonzero().squeeze(1).tolist() == expected


@pytest.mark.parametrize("block", [2, 16, 60, 256])
def test_a_round_less_than_a_block_has_boxes_is_always_enough(block) -> None:
    kept, _ = nms_fixed(chain(60), torch.ones(60, dtype=torch.bool), 0.5, block=block, rounds=block - 1)
    assert kept.tolist() == [place % 2 == 0 for place in range(60)]
    assert nms_cpu(chain(60), 0.5).tolist() == list(range(0, 60, 2))


@pytest.mark.parametrize("rounds", [1, 2, 7, 20, 59])
def test_too_few_rounds_are_counted_and_an_even_number_keeps_too_many(rounds) -> None:
    """A chain is settled one link a round."""
    valid = torch.ones(60, dtype=torch.bool)
    right = torch.arange(60) % 2 == 0
    kept, unsettled = nms_fixed(chain(60), valid, 0.5, rounds=rounds)
    assert torch.equal(kept[: rounds + 1], right[: rounds + 1])
    assert int(unsettled) == 60 - rounds
    assert (kept >= right).all() if rounds % 2 == 0 else (kept <= right).all()
    kept, unsettled = nms_fixed(chain(60), valid, 0.5, rounds=60)
    assert torch.equal(kept, right) and not unsettled.any()


@pytest.mark.parametrize("counting", [torch.float16, torch.bfloat16])
def test_counts_in_half_precision_keep_the_same_boxes(monkeypatch, counting) -> None:
    """Up to 255 equal boxes beat one of their block, among them many that nearly overlap."""
    boxes = torch.cat((crowd(2, 700, seed=5), crowd(2, 1, seed=6).expand(-1, BLOCK + 9, -1)), dim=1)
    boxes = torch.cat((boxes[:, -BLOCK - 9 :], boxes[:, : -BLOCK - 9]), dim=1)
    valid = torch.rand(2, boxes.shape[1], generator=torch.Generator().manual_seed(1)) < 0.9
    expected = nms_fixed(boxes, valid, 0.3)
    monkeypatch.setattr("paceline.models.ops.nms._counting_type", lambda device: counting)
    found = nms_fixed(boxes, valid, 0.3)
    assert all(torch.equal(one, other) for one, other in zip(found, expected))
    assert not found[1].any()


def test_the_memory_estimate_runs_it_without_data() -> None:
    boxes = torch.empty(2, 3, 700, 4, device="meta")
    kept, unsettled = nms_fixed(boxes, torch.empty(2, 3, 700, dtype=torch.bool, device="meta"), 0.7, rounds=2)
    assert kept.shape == (2, 3, 700) and unsettled.shape == (2, 3)
