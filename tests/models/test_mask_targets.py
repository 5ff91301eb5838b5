"""Mask targets from canvases against torchvision's, which has the bitmap of the whole photo."""

from __future__ import annotations

import pytest
import torch
from example_counts import examples
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torchvision.models.detection.roi_heads import project_masks_on_boxes

from paceline.models.ops.roi_align import mask_targets

HEIGHT, WIDTH = 40, 56
CANVAS = 12


def ragged(height: int, width: int, seed: int) -> Tensor:
    """(h, w) a mask with holes that reaches all four edges of its box."""
    mask = torch.rand(height, width, generator=torch.Generator().manual_seed(seed)) < 0.6
    mask[0, 0] = mask[-1, -1] = True
    return mask.to(torch.uint8)


def cut_out(bitmap: Tensor, x: int, y: int) -> Tensor:
    """The canvas whose pixel (1, 1) is the bitmap's pixel (y, x); beyond the bitmap the nearest pixel inside."""
    rows = (torch.arange(CANVAS + 2) + y - 1).clamp(0, bitmap.shape[0] - 1)
    columns = (torch.arange(CANVAS + 2) + x - 1).clamp(0, bitmap.shape[1] - 1)
    return bitmap[rows][:, columns]


def both(x: int, y: int, height: int, width: int, boxes: Tensor, side: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Targets of one object in each of the boxes: ours from its canvas, and torchvision's from the whole bitmap."""
    bitmap = torch.zeros(HEIGHT, WIDTH, dtype=torch.uint8)
    bitmap[y : y + height, x : x + width] = ragged(height, width, seed)
    count = len(boxes)
    canvases = cut_out(bitmap, x, y).expand(count, -1, -1)
    frames = torch.tensor([[x, y, 1.0, 1.0]]).expand(count, -1)
    whole = project_masks_on_boxes(bitmap.unsqueeze(0), boxes, torch.zeros(count), side)
    return mask_targets(canvases, frames, boxes, side=side, target="soft"), whole


corners = st.tuples(*(st.floats(0, 1) for _ in range(4)))


@examples(100)
@given(
    sides=st.tuples(st.integers(1, CANVAS), st.integers(1, CANVAS)),
    where=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    boxes=st.lists(corners, min_size=1, max_size=4),
    side=st.sampled_from([4, 7]),
    seed=st.integers(0, 9),
)
@example(sides=(1, 1), where=(1.0, 0.0), boxes=[(0.0, 1.0, 0.0, 1.0)], side=4, seed=0)
def test_targets_from_a_canvas_are_those_from_the_whole_bitmap(sides, where, boxes, side, seed) -> None:
    """Boxes anywhere in the photo: around the object, across its canvas or elsewhere, also without width."""
    height, width = sides
    y, x = round(where[0] * (HEIGHT - height)), round(where[1] * (WIDTH - width))
    scaled = torch.tensor(boxes) * torch.tensor([WIDTH, HEIGHT, WIDTH, HEIGHT], dtype=torch.float32)
    # torchvision samples a box over a pixel at least; of one without height at the far border that pixel lies outside, and is 0.
    last = torch.tensor([WIDTH - 1.0, HEIGHT - 1.0])
    ordered = torch.cat((scaled[:, :2].minimum(scaled[:, 2:]).minimum(last), scaled[:, :2].maximum(scaled[:, 2:])), 1)
    # Quarters of pixels: then both see the same sample points, to the last bit.
    found, whole = both(x, y, height, width, (4 * ordered).round() / 4, side, seed)
    assert torch.allclose(found, whole, atol=1e-5)


@pytest.mark.parametrize(("x", "y"), [(0, 0), (WIDTH - CANVAS, HEIGHT - CANVAS), (0, HEIGHT - 9), (WIDTH - 5, 3)])
def test_objects_at_the_photos_border_have_their_targets(x, y) -> None:
    """Also in boxes that reach to the border itself, half a pixel beyond the last pixel's middle."""
    height, width = min(CANVAS, HEIGHT - y), min(CANVAS, WIDTH - x)
    boxes = torch.tensor(
        [
            [x, y, x + width, y + height],
            [max(x - 3.0, 0), max(y - 3.0, 0), min(x + width + 3.0, WIDTH), min(y + height + 3.0, HEIGHT)],
            [0, 0, WIDTH, HEIGHT],
        ]
    ).float()
    found, whole = both(x, y, height, width, boxes, 14)
    assert torch.allclose(found, whole, atol=1e-5)
    assert float(whole.amax(dim=(1, 2)).min()) > 0.5


def test_boxes_that_touch_cross_or_miss_the_canvas() -> None:
    x, y, end = 20, 15, 20 + CANVAS
    boxes = torch.tensor(
        [
            [end, y, end + 8, y + 8],  # touches its right edge, behind which no pixel is the object's
            [x - 6, y - 6, x + 2, y + 2],  # crosses a corner
            [x - 15, y + 4, end + 15, y + 6],  # crosses both sides
            [0, 0, 9, 9],  # is elsewhere
            [x + 3, y + 3, x + 3, y + 3],  # has no area: a pixel
        ]
    ).float()
    found, whole = both(x, y, CANVAS, CANVAS, boxes, 7)
    assert torch.allclose(found, whole, atol=1e-5)
    assert not found[[0, 3]].any()
    assert (found[[1, 2, 4]].amax(dim=(1, 2)) > 0).all()


def test_binary_targets_are_one_from_a_half_on() -> None:
    canvas = torch.zeros(1, 6, 6, dtype=torch.uint8)
    canvas[0, 1:5, 1:3] = 1
    frames, box = torch.tensor([[10.0, 20.0, 1.0, 1.0]]), torch.tensor([[10.0, 20.0, 13.0, 23.0]])
    soft = mask_targets(canvas, frames, box, side=3, target="soft")
    assert soft[0, 0].tolist() == [1.0, 0.5, 0.0]  # sample points between pixels' middles, the second on the edge
    binary = mask_targets(canvas, frames, box, side=3, target="binary")
    assert binary.dtype == torch.float32
    assert binary[0].tolist() == [[1.0, 1.0, 0.0]] * 3


def test_binary_targets_count_places_and_soft_ones_pixels_middles() -> None:
    """The object ends at x 12, in the middle of the second cell; where 12 is a pixel's middle, that pixel is none of it."""
    canvas = torch.zeros(1, 6, 6, dtype=torch.uint8)
    canvas[0, 1:5, 1:3] = 1
    frames, box = torch.tensor([[10.0, 20.0, 1.0, 1.0]]), torch.tensor([[10.5, 20.0, 13.5, 23.0]])
    assert mask_targets(canvas, frames, box, side=3, target="binary")[0].tolist() == [[1.0, 1.0, 0.0]] * 3
    assert mask_targets(canvas, frames, box, side=3, target="soft")[0, 0].tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("pitch", [1.5, 3.0, 5.0])
def test_a_coarse_canvas_gives_the_mask_unmoved(pitch) -> None:
    """A large disc on a canvas of a few pixels: the target's middle and area stay where the whole bitmap has them."""
    canvas, sides = 32, int(32 * pitch)
    height = sides + 20
    middle = torch.arange(height) + 0.5 - height / 2
    bitmap = (middle.square() + middle.unsqueeze(1).square() < (sides / 2 - 1) ** 2).to(torch.uint8)
    seen = (10 + (torch.arange(-1, canvas + 1) + 0.5) * pitch).long()
    frames = torch.tensor([[10.0, 10.0, pitch, pitch]])
    box = torch.tensor([[6.0, 8.0, height - 9.0, height - 7.0]])
    found = mask_targets(bitmap[seen][:, seen].unsqueeze(0), frames, box, side=28, target="soft")[0]
    whole = project_masks_on_boxes(bitmap.unsqueeze(0), box, torch.zeros(1), 28)[0]
    assert float((found - whole).abs().mean()) < 0.02
    for axis in (0, 1):
        cells = torch.arange(28.0)
        moved = [(share.sum(dim=axis) * cells).sum() / share.sum() for share in (found, whole)]
        assert float(moved[0] - moved[1]) == pytest.approx(0, abs=0.03)


def test_every_region_sees_its_own_canvas() -> None:
    canvases = torch.zeros(3, 10, 10, dtype=torch.uint8)
    canvases[1] = 1
    frames = torch.tensor([[0.0, 0.0, 1.0, 1.0], [30.0, 8.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]])
    boxes = torch.tensor([[0.0, 0.0, 8.0, 8.0], [31.0, 9.0, 37.0, 15.0], [0.0, 0.0, 0.0, 0.0]])
    targets = mask_targets(canvases, frames, boxes, side=4, target="soft")
    assert targets.tolist() == [[[0.0] * 4] * 4, [[1.0] * 4] * 4, [[0.0] * 4] * 4]


def test_no_regions_and_no_data() -> None:
    def shapes(count: int, device: str):
        canvases = torch.zeros(count, CANVAS + 2, CANVAS + 2, dtype=torch.uint8, device=device)
        numbers = torch.ones(count, 4, device=device)
        return mask_targets(canvases, numbers, numbers, side=28, target="binary").shape

    assert shapes(0, "cpu") == (0, 28, 28)
    assert shapes(128, "meta") == (128, 28, 28)
