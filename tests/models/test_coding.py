"""Deltas and back, as SSD and as R-CNN code boxes; R-CNN's against torchvision's coder."""

from __future__ import annotations

import math

import pytest
import torch
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchvision.models.detection._utils import BoxCoder as TorchvisionCoder

from paceline.models.ops.boxes import SSD_CODER, BoxCoder, to_cxcywh, to_ltrb

LIMIT = math.log(1000 / 16)
ANCHORS, REGIONS = BoxCoder(limit=LIMIT), BoxCoder((10.0, 10.0, 5.0, 5.0), LIMIT)
CODERS = [SSD_CODER, ANCHORS, REGIONS]

share = st.floats(0, 1, width=32)
small_side = st.floats(0.0009765625, 1, width=32)
fractions = st.tuples(share, share, small_side, small_side)
corner = st.floats(-100, 1300, width=32)
side = st.floats(1, 800, width=32)
pixels = st.tuples(corner, corner, side, side).map(lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3]))


def some_boxes(count: int, seed: int) -> Tensor:
    """ltrb, which is some cxcywh too."""
    random = torch.Generator().manual_seed(seed)
    low = 1000 * torch.rand(count, 2, generator=random)
    return torch.cat((low, low + 1 + 300 * torch.rand(count, 2, generator=random)), dim=1)


@pytest.mark.parametrize("coder", [ANCHORS, REGIONS])
def test_coding_is_torchvisions(coder) -> None:
    boxes, references = some_boxes(200, 0), some_boxes(200, 1)
    theirs = TorchvisionCoder(coder.factors)
    assert torch.allclose(coder.encode(boxes, references), theirs.encode_single(boxes, references), rtol=1e-6, atol=1e-6)
    random = 6 * torch.randn(200, 4, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(coder.decode(random, references), theirs.decode_single(random, references), rtol=1e-6, atol=1e-3)


@examples(100)
@given(st.lists(st.tuples(fractions, fractions), min_size=1, max_size=8))
def test_decode_undoes_ssd_s_encode(pairs) -> None:
    boxes, anchors = (torch.tensor(rows) for rows in zip(*pairs))
    assert torch.allclose(SSD_CODER.decode(SSD_CODER.encode(boxes, anchors), anchors), to_ltrb(boxes), atol=2e-5)


@examples(50)
@given(st.lists(st.tuples(pixels, pixels), min_size=1, max_size=8))
def test_decode_undoes_r_cnn_s_encode(pairs) -> None:
    boxes, references = (torch.tensor(rows) for rows in zip(*pairs))
    coder = BoxCoder(REGIONS.factors, math.log(1e3))
    assert torch.allclose(coder.decode(coder.encode(boxes, references), references), boxes, atol=5e-3)


def test_deltas_are_distances_in_default_boxes_over_the_two_scales() -> None:
    anchor = torch.tensor([[0.5, 0.5, 0.2, 0.4]])
    box = torch.tensor([[0.52, 0.46, 0.4, 0.2]])
    growth = 2**0.5  # any
    assert SSD_CODER.encode(box, anchor)[0].tolist() == pytest.approx([1.0, -1.0, 5 * 0.6931472, -5 * 0.6931472], rel=1e-5)
    deltas = torch.tensor([[0.0, 0.0, 0.0, 5 * torch.tensor(growth).log()]])
    decoded = to_cxcywh(SSD_CODER.decode(deltas, anchor))[0].tolist()
    assert decoded == pytest.approx([0.5, 0.5, 0.2, 0.4 * growth], rel=1e-5)


def test_deltas_are_distances_in_references_times_the_weights() -> None:
    reference = torch.tensor([[100.0, 100.0, 120.0, 140.0]])
    box = torch.tensor([[104.0, 106.0, 124.0, 126.0]])  # 4 right, 4 up, half as high
    expected = [10 * 4 / 20, 10 * -4 / 40, 0.0, 5 * math.log(0.5)]
    assert REGIONS.encode(box, reference)[0].tolist() == pytest.approx(expected)


def test_scales_divide_and_weights_multiply_to_the_last_bit() -> None:
    """Trajectories that were recorded before hang on it: x / 0.1 is not x * 10."""
    boxes, anchors = torch.rand(500, 4) + 0.1, torch.rand(500, 4) + 0.1
    moved = (boxes[:, :2] - anchors[:, :2]) / anchors[:, 2:]
    assert torch.equal(SSD_CODER.encode(boxes, anchors)[:, :2], moved / 0.1) and not torch.equal(moved / 0.1, moved * 10)
    turned = BoxCoder((10.0, 10.0, 5.0, 5.0), cxcywh=True, least=1e-6)
    assert torch.equal(turned.encode(boxes, anchors)[:, :2], moved * 10)


def test_the_limit_bounds_growth_after_the_weights() -> None:
    reference = torch.tensor([[0.0, 0.0, 16.0, 16.0]])
    deltas = torch.tensor([[0.0, 0.0, 5 * LIMIT - 0.5, 1e9]])
    left, top, right, bottom = REGIONS.decode(deltas, reference)[0].tolist()
    assert right - left == pytest.approx(1000 * math.exp(-0.1), rel=1e-5)
    assert bottom - top == pytest.approx(1000, rel=1e-5)


def test_each_class_has_its_own_deltas_of_one_region() -> None:
    deltas, regions = torch.randn(5, 7, 4), some_boxes(5, 3)
    found = REGIONS.decode(deltas, regions.unsqueeze(1))
    assert found.shape == (5, 7, 4)
    assert torch.equal(found[:, 6], REGIONS.decode(deltas[:, 6], regions))


@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("shape", [(0, 4), (2, 5, 4), (4,)])
def test_leading_dimensions_are_free(coder, shape) -> None:
    boxes = torch.rand(shape) + torch.tensor([0.0, 0.0, 2.0, 2.0])
    assert coder.decode(coder.encode(boxes, boxes), boxes).shape == shape
    assert coder.encode(boxes.expand(3, *shape), boxes).shape == (3, *shape)


def test_empty_slots_stay_finite_and_so_do_their_gradients() -> None:
    empty = torch.zeros(3, 4)
    deltas = torch.zeros(3, 4, requires_grad=True)
    (REGIONS.encode(some_boxes(3, 4), empty) - deltas).sum().backward()
    assert deltas.grad is not None and bool(deltas.grad.isfinite().all())
    for coder in CODERS:
        for boxes, references in ((empty, empty), (some_boxes(3, 4), empty), (empty, some_boxes(3, 4))):
            assert bool(coder.encode(boxes, references).isfinite().all())
    assert REGIONS.decode(torch.full((3, 4), 50.0), empty).tolist() == empty.tolist()


def test_wild_deltas_stay_finite() -> None:
    assert bool(SSD_CODER.decode(torch.full((1, 4), 1e4), torch.tensor([[0.5, 0.5, 0.1, 0.1]])).isfinite().all())


@pytest.mark.parametrize("coder", CODERS)
def test_half_precision_is_coded_in_float32(coder) -> None:
    references = some_boxes(3, 5)
    found = coder.decode(torch.zeros(3, 4, dtype=torch.bfloat16), references)
    assert found.dtype == torch.float32
    assert torch.allclose(found, to_ltrb(references) if coder.cxcywh else references)
