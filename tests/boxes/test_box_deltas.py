"""The R-CNN box coding against torchvision's coder, and back."""

from __future__ import annotations

import math

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchvision.models.detection._utils import BoxCoder

from paceline.boxes.box_deltas import decode_deltas, encode_deltas

ANCHOR_WEIGHTS, REGION_WEIGHTS = (1.0, 1.0, 1.0, 1.0), (10.0, 10.0, 5.0, 5.0)
LIMIT = math.log(1000 / 16)

corner = st.floats(-100, 1300, width=32)
side = st.floats(1, 800, width=32)
box = st.tuples(corner, corner, side, side).map(lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3]))


def some_boxes(count: int, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    low = 1000 * torch.rand(count, 2, generator=random)
    return torch.cat((low, low + 1 + 300 * torch.rand(count, 2, generator=random)), dim=1)


@pytest.mark.parametrize("weights", [ANCHOR_WEIGHTS, REGION_WEIGHTS])
def test_coding_is_torchvisions(weights) -> None:
    boxes, references = some_boxes(200, 0), some_boxes(200, 1)
    coder = BoxCoder(weights)
    deltas = encode_deltas(boxes, references, weights)
    assert torch.allclose(deltas, coder.encode_single(boxes, references), rtol=1e-6, atol=1e-6)
    random = 6 * torch.randn(200, 4, generator=torch.Generator().manual_seed(2))
    expected = coder.decode_single(random, references)
    assert torch.allclose(decode_deltas(random, references, weights, LIMIT), expected, rtol=1e-6, atol=1e-3)


@examples(50)
@given(st.lists(st.tuples(box, box), min_size=1, max_size=8))
def test_decode_undoes_encode(pairs) -> None:
    boxes, references = (torch.tensor(rows) for rows in zip(*pairs))
    back = decode_deltas(encode_deltas(boxes, references, REGION_WEIGHTS), references, REGION_WEIGHTS, math.log(1e3))
    assert torch.allclose(back, boxes, atol=5e-3)


def test_deltas_are_distances_in_references_times_the_weights() -> None:
    reference = torch.tensor([[100.0, 100.0, 120.0, 140.0]])
    box = torch.tensor([[104.0, 106.0, 124.0, 126.0]])  # 4 right, 4 up, half as high
    expected = [10 * 4 / 20, 10 * -4 / 40, 0.0, 5 * math.log(0.5)]
    assert encode_deltas(box, reference, REGION_WEIGHTS)[0].tolist() == pytest.approx(expected)


def test_the_limit_bounds_growth_after_the_weights() -> None:
    reference = torch.tensor([[0.0, 0.0, 16.0, 16.0]])
    deltas = torch.tensor([[0.0, 0.0, 5 * LIMIT - 0.5, 1e9]])
    left, top, right, bottom = decode_deltas(deltas, reference, REGION_WEIGHTS, LIMIT)[0].tolist()
    assert right - left == pytest.approx(1000 * math.exp(-0.1), rel=1e-5)
    assert bottom - top == pytest.approx(1000, rel=1e-5)


def test_each_class_has_its_own_deltas_of_one_region() -> None:
    deltas, regions = torch.randn(5, 7, 4), some_boxes(5, 3)
    found = decode_deltas(deltas, regions.unsqueeze(1), REGION_WEIGHTS, LIMIT)
    assert found.shape == (5, 7, 4)
    assert torch.equal(found[:, 6], decode_deltas(deltas[:, 6], regions, REGION_WEIGHTS, LIMIT))


@pytest.mark.parametrize("shape", [(0, 4), (2, 5, 4), (4,)])
def test_leading_dimensions_are_free(shape) -> None:
    boxes = torch.rand(shape) + torch.tensor([0.0, 0.0, 2.0, 2.0])
    assert decode_deltas(encode_deltas(boxes, boxes, ANCHOR_WEIGHTS), boxes, ANCHOR_WEIGHTS, LIMIT).shape == shape


def test_empty_slots_stay_finite_and_so_do_their_gradients() -> None:
    empty = torch.zeros(3, 4)
    deltas = torch.zeros(3, 4, requires_grad=True)
    (encode_deltas(some_boxes(3, 4), empty, REGION_WEIGHTS) - deltas).sum().backward()
    assert deltas.grad is not None and bool(deltas.grad.isfinite().all())
    for boxes, references in ((empty, empty), (some_boxes(3, 4), empty), (empty, some_boxes(3, 4))):
        assert bool(encode_deltas(boxes, references, REGION_WEIGHTS).isfinite().all())
    assert decode_deltas(torch.full((3, 4), 50.0), empty, REGION_WEIGHTS, LIMIT).tolist() == empty.tolist()


def test_half_precision_is_coded_in_float32() -> None:
    references = some_boxes(3, 5)
    found = decode_deltas(torch.zeros(3, 4, dtype=torch.bfloat16), references, ANCHOR_WEIGHTS, LIMIT)
    assert found.dtype == torch.float32
    assert torch.allclose(found, references)
