"""Deltas and back."""

from __future__ import annotations

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from paceline.boxes.coding import decode, encode
from paceline.boxes.geometry import to_cxcywh, to_ltrb

centre = st.floats(0, 1, width=32)
side = st.floats(0.0009765625, 1, width=32)
box = st.tuples(centre, centre, side, side)


@examples(100)
@given(st.lists(st.tuples(box, box), min_size=1, max_size=8))
def test_decode_undoes_encode(pairs) -> None:
    boxes, anchors = (torch.tensor(rows) for rows in zip(*pairs))
    assert torch.allclose(decode(encode(boxes, anchors), anchors), to_ltrb(boxes), atol=2e-5)


def test_deltas_are_distances_in_default_boxes_over_the_two_scales() -> None:
    anchor = torch.tensor([[0.5, 0.5, 0.2, 0.4]])
    box = torch.tensor([[0.52, 0.46, 0.4, 0.2]])
    growth = 2**0.5  # any
    assert encode(box, anchor)[0].tolist() == pytest.approx([1.0, -1.0, 5 * 0.6931472, -5 * 0.6931472], rel=1e-5)
    deltas = torch.tensor([[0.0, 0.0, 0.0, 5 * torch.tensor(growth).log()]])
    assert to_cxcywh(decode(deltas, anchor))[0].tolist() == pytest.approx([0.5, 0.5, 0.2, 0.4 * growth], rel=1e-5)


@pytest.mark.parametrize("shape", [(0, 4), (2, 5, 4)])
def test_leading_dimensions_are_free(shape) -> None:
    boxes = torch.rand(shape) + 0.1
    anchors = torch.rand(shape[-2:]) + 0.1
    assert decode(encode(boxes, anchors), anchors).shape == shape


def test_boxes_without_width_and_wild_deltas_stay_finite() -> None:
    anchors = torch.tensor([[0.5, 0.5, 0.1, 0.1]])
    assert bool(encode(torch.zeros(1, 4), anchors).isfinite().all())
    assert bool(decode(torch.full((1, 4), 1e4), anchors).isfinite().all())


def test_half_precision_is_coded_in_float32() -> None:
    anchors = torch.rand(3, 4) + 0.1
    assert decode(torch.zeros(3, 4, dtype=torch.bfloat16), anchors).dtype == torch.float32
    assert torch.allclose(decode(torch.zeros(3, 4, dtype=torch.bfloat16), anchors), to_ltrb(anchors))
