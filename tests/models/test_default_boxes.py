"""Default boxes of any input size and the two orders (the reference's own numbers: tests/oracle)."""

from __future__ import annotations

import pytest
import torch
from messages import raises

from paceline.config.ssd import SSDModel, grid_sizes
from paceline.models.ops.anchors import anchor_to_cell, count_boxes_per_cell, default_boxes

SIZES = [64, 128, 300, 320, 512]


def scales(levels: int) -> tuple[float, ...]:
    return tuple(0.07 + 0.98 * level / levels for level in range(levels + 1))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("order", ["cell", "anchor"])
def test_every_cell_of_every_level_has_its_boxes(size, order) -> None:
    sides = grid_sizes(size)
    boxes = default_boxes(size, sides, scales(len(sides)), order=order)
    assert boxes.shape == (sum(side * side * n for side, n in zip(sides, count_boxes_per_cell(len(sides)))), 4)
    assert boxes.dtype == torch.float32
    assert float(boxes.min()) > 0 and float(boxes.max()) <= 1


@pytest.mark.parametrize("size", SIZES)
def test_the_permutation_turns_one_order_into_the_other(size) -> None:
    sides = grid_sizes(size)
    by_anchor = default_boxes(size, sides, scales(len(sides)), order="anchor")
    by_cell = default_boxes(size, sides, scales(len(sides)))
    places = anchor_to_cell(sides)
    assert torch.equal(by_anchor[places], by_cell)
    assert torch.equal(places.sort().values, torch.arange(len(by_cell)))


def test_ssd300_has_8732_boxes_and_the_papers_shapes() -> None:
    assert count_boxes_per_cell(6) == (4, 6, 6, 6, 4, 4)
    boxes = 300 * default_boxes(300, grid_sizes(300), SSDModel().scales)
    assert len(boxes) == 8732
    assert boxes[:4].tolist() == [
        pytest.approx(row, abs=1e-4)
        for row in [[4, 4, 21, 21], [4, 4, 30.7409, 30.7409], [4, 4, 29.6985, 14.8492], [4, 4, 14.8492, 29.6985]]
    ]
    assert boxes[4].tolist() == pytest.approx([12, 4, 21, 21], abs=1e-4)  # the next column, then the next row
    assert boxes[4 * 38].tolist() == pytest.approx([4, 12, 21, 21], abs=1e-4)
    assert boxes[-1].tolist() == pytest.approx([150, 150, 261 / 2**0.5, 300], abs=1e-4)  # clipped: 261 sqrt(2) > 300


def test_too_few_scales_are_refused() -> None:
    with raises(ValueError, "6 levels", "7 scales", "6"):
        default_boxes(300, grid_sizes(300), SSDModel().scales[:6])
