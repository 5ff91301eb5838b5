"""Anchors against torchvision's generator and against Faster R-CNN's published numbers."""

from __future__ import annotations

import pytest
import torch
from messages import raises
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList

from paceline.models.ops.anchors import BEYOND_LAST, make_cell_anchors, make_pyramid_anchors
from paceline.models.ops.matching import is_inside_image

SIZES, RATIOS = (32.0, 64.0, 128.0, 256.0, 512.0), (0.5, 1.0, 2.0)
# Width and height of each level's anchors by GluonCV's and the MLPerf reference's generator, ratios 0.5, 1, 2.
LEGACY = {
    4: (32, [(48, 24), (32, 32), (24, 48)]),
    8: (64, [(88, 48), (64, 64), (48, 96)]),
    16: (128, [(184, 96), (128, 128), (88, 176)]),
    32: (256, [(360, 176), (256, 256), (184, 368)]),
    64: (512, [(728, 368), (512, 512), (360, 720)]),
}
# What py-faster-rcnn's generate_anchors.py prints for stride 16: by size, then by ratio.
PRINTED = {
    128: [(-84, -40, 99, 55), (-56, -56, 71, 71), (-36, -80, 51, 95)],
    256: [(-176, -88, 191, 103), (-120, -120, 135, 135), (-80, -168, 95, 183)],
    512: [(-360, -184, 375, 199), (-248, -248, 263, 263), (-168, -344, 183, 359)],
}


def grids_of(height: int, width: int, levels: int = 5) -> list[tuple[int, int]]:
    """Maps of an input: halved and rounded up from level to level, as convolutions of stride 2 do."""
    first = 2 if levels == 5 else 3
    return [(-(-height // 2**level), -(-width // 2**level)) for level in range(first, first + levels)]


@pytest.mark.parametrize("stride", LEGACY)
def test_legacy_anchors_have_the_published_sides(stride) -> None:
    size, sides = LEGACY[stride]
    anchors = make_cell_anchors(size, RATIOS, rounding="legacy", stride=stride)
    assert (anchors[:, 2:] - anchors[:, :2] + 1).tolist() == [list(pair) for pair in sides]
    assert ((anchors[:, 2:] + anchors[:, :2]) / 2).unique().tolist() == [(stride - 1) / 2]


@pytest.mark.parametrize("size", PRINTED)
def test_legacy_anchors_are_those_that_the_original_prints(size) -> None:
    anchors = make_cell_anchors(size, RATIOS, rounding="legacy", stride=16)
    assert anchors.tolist() == [list(row) for row in PRINTED[size]]


@pytest.mark.parametrize("ratios", [RATIOS, (1.0,), (0.3, 0.7, 1.4, 3.1)])
@pytest.mark.parametrize(
    ("height", "width", "sizes"),
    [(800, 1216, SIZES), (96, 64, (5.0, 11.0, 23.5, 51.0, 97.0)), (160, 224, (19.0, 43.0, 77.0, 133.0))],
)
def test_half_even_anchors_are_torchvisions_bit_for_bit(height, width, sizes, ratios) -> None:
    grids = grids_of(height, width, len(sizes))
    generator = AnchorGenerator(tuple((size,) for size in sizes), (ratios,) * len(sizes))
    image = ImageList(torch.empty(1, 1, height, width), [(height, width)])
    expected = generator(image, [torch.empty(1, 1, *grid) for grid in grids])[0]
    found = make_pyramid_anchors(grids, height, width, sizes=sizes, ratios=ratios, rounding="half-even")
    assert [len(level) for level in found] == [h * w * len(ratios) for h, w in grids]
    assert torch.equal(torch.cat(found), expected)


@pytest.mark.parametrize("rounding", ["legacy", "none"])
def test_other_anchors_step_by_the_levels_stride_where_the_map_is_rounded_up(rounding) -> None:
    """13 rows of stride 64 cover 832 of 800 pixels; torchvision would step by 61."""
    grids = grids_of(800, 1216)
    assert grids[4] == (13, 19)
    for level, anchors in enumerate(make_pyramid_anchors(grids, 800, 1216, sizes=SIZES, ratios=RATIOS, rounding=rounding)):
        stride, (h, w) = 4 * 2**level, grids[level]
        corner = make_cell_anchors(SIZES[level], RATIOS, rounding=rounding, stride=stride)
        cells = anchors.reshape(h, w, 3, 4)
        assert anchors.dtype == torch.float32
        assert torch.equal(cells[0, 0], corner)
        assert torch.equal(cells[h - 1, 2], corner + stride * torch.tensor([2, h - 1, 2, h - 1]))


def test_exact_anchors_have_the_size_and_the_ratio_asked_for() -> None:
    anchors = make_cell_anchors(50.0, RATIOS, rounding="none", stride=8)
    width, height = (anchors[:, 2:] - anchors[:, :2]).unbind(1)
    assert torch.allclose(height / width, torch.tensor(RATIOS))
    assert torch.allclose(width * height, torch.full((3,), 2500.0))
    assert torch.equal(anchors[:, :2], -anchors[:, 2:])


@pytest.mark.parametrize("rounding", BEYOND_LAST)
def test_an_anchor_that_ends_with_the_photo_lies_inside_it(rounding) -> None:
    """Of legacy anchors right and bottom name the last pixel inside; the edges of the same box lie one further."""
    last = {"legacy": 63.0, "legacy-edges": 64.0, "half-even": 63.5, "none": 63.5}[rounding]
    anchors = torch.tensor([[0.0, 0.0, last, last], [0.0, 0.0, last + 1, last], [0.0, 0.0, last, last + 1]])
    inside = is_inside_image(anchors, torch.tensor([[64, 64]]), BEYOND_LAST[rounding])
    assert inside.tolist() == [[True, False, False]]


def test_a_size_for_each_level_is_asked_for() -> None:
    with raises(ValueError, "5 FPN levels", "5 anchor sizes", "4"):
        make_pyramid_anchors(grids_of(64, 64), 64, 64, sizes=SIZES[:4], ratios=RATIOS, rounding="none")
