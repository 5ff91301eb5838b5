"""Box forms, area and IoU."""

from __future__ import annotations

import pytest
import torch
import torchvision
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paceline.models.ops.boxes import box_area, clip_fractions, pairwise_iou, to_cxcywh, to_ltrb

edge = st.floats(-2, 2, width=32)
box = st.tuples(edge, edge, st.floats(0, 3, width=32), st.floats(0, 3, width=32)).map(
    lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3])
)
box_lists = st.lists(box, min_size=0, max_size=6).map(lambda rows: torch.tensor(rows).reshape(-1, 4))


@examples(100)
@given(box_lists, box_lists)
def test_iou_is_symmetric_and_between_0_and_1(left: Tensor, right: Tensor) -> None:
    overlap = pairwise_iou(left, right)
    assert overlap.shape == (len(left), len(right))
    assert torch.equal(overlap, pairwise_iou(right, left).T)
    assert bool(((overlap >= 0) & (overlap <= 1 + 1e-5)).all())


@examples(50)
@given(box_lists)
def test_a_box_overlaps_itself_fully_unless_it_has_no_area(boxes: Tensor) -> None:
    itself = pairwise_iou(boxes, boxes).diagonal()
    usual = box_area(boxes) > 1e-30
    assert torch.allclose(itself[usual], torch.ones(int(usual.sum())), atol=1e-5)
    assert not itself[box_area(boxes) == 0].any()


def test_iou_of_a_batch_is_torchvisions() -> None:
    random = torch.Generator().manual_seed(0)
    left = to_ltrb(torch.rand(3, 5, 4, generator=random))
    right = to_ltrb(torch.rand(40, 4, generator=random))
    expected = torch.stack([torchvision.ops.box_iou(rows, right) for rows in left])
    assert torch.allclose(pairwise_iou(left, right), expected, atol=1e-6)
    assert torch.allclose(box_area(left), torchvision.ops.box_area(left.reshape(-1, 4)).reshape(3, 5))


@pytest.mark.parametrize("shape", [(0, 4), (7, 4), (2, 3, 4)])
def test_forms_undo_each_other(shape) -> None:
    boxes = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(to_cxcywh(to_ltrb(boxes)), boxes, atol=1e-6)
    assert to_ltrb(torch.tensor([0.5, 0.25, 1.0, 0.5])).tolist() == [0.0, 0.0, 1.0, 0.5]


def test_clip_moves_edges_into_the_image() -> None:
    assert clip_fractions(torch.tensor([-0.5, 0.25, 1.5, 2.0])).tolist() == [0.0, 0.25, 1.0, 1.0]


def test_a_box_turned_upside_down_has_no_area() -> None:
    turned = torch.tensor([[0.5, 0.5, 0.2, 0.1]])
    assert box_area(turned).item() == 0
    assert pairwise_iou(turned, torch.tensor([[0.0, 0.0, 1.0, 1.0]])).item() == 0
