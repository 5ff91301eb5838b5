"""Pasting: torchvision's bits, encoded as pycocotools encodes them, without a bitmap of the photo."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from example_counts import examples
from hypothesis import example, given
from hypothesis import strategies as st
from pycocotools import mask as official
from torch import Tensor
from torchvision.models.detection.roi_heads import paste_masks_in_image

from paceline.data.rle import decode_mask, mask_areas
from paceline.models.ops import paste_masks
from paceline.models.ops.paste_masks import paste_to_rle, rle_changes_batched, rle_changes_cpu, visible_patches

VALUES = ["any", "few", "same", "ones", "zeros"]
BOXES = ["any", "whole photo", "no size", "inside a pixel", "far outside", "whole numbers"]


def scene(seed: int, count: int, height: int, width: int, side: int, values: str, where: str) -> tuple[Tensor, Tensor]:
    """Masks and boxes of a kind."""
    draw = torch.Generator().manual_seed(seed)
    masks = torch.rand(count, side, side, generator=draw)
    if values == "few":  # many pixels lie exactly on the threshold
        masks = (masks * 2).round() / 2
    elif values == "same":
        masks = torch.rand(count, 1, 1, generator=draw).expand(count, side, side).contiguous()
    elif values in ("ones", "zeros"):
        masks = torch.full_like(masks, float(values == "ones"))
    photo = torch.tensor([width, height, width, height], dtype=torch.float32)
    corners = torch.rand(count, 2, 2, generator=draw) * 1.4 - 0.2
    boxes = torch.cat((corners.amin(1), corners.amax(1)), 1) * photo
    if where == "whole photo":
        boxes = photo * torch.tensor([0.0, 0, 1, 1]).expand(count, 4)
    elif where == "no size":
        boxes[:, 2:] = boxes[:, :2]
    elif where == "inside a pixel":
        boxes[:, 2:] = boxes[:, :2] + 0.01
    elif where == "far outside":
        boxes += photo * torch.randint(-1, 2, (count, 1), generator=draw) * 2
    elif where == "whole numbers":
        boxes = boxes.round()
    return masks, boxes


def obvious(masks: Tensor, boxes: Tensor, height: int, width: int) -> np.ndarray:
    """(n, H, W) uint8 by torchvision. It fails on boxes whose region lies outside; their masks are empty."""
    bits = np.zeros((len(masks), height, width), np.uint8)
    for piece in visible_patches(boxes, masks.shape[-1], height, width):
        one = slice(piece.mask, piece.mask + 1)
        bits[piece.mask] = (paste_masks_in_image(masks[one, None], boxes[one], (height, width)) > 0.5)[0, 0].numpy()
    return bits


@examples(80)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(0, 4),
    height=st.integers(1, 60),
    width=st.integers(1, 60),
    side=st.sampled_from([2, 14, 28]),
    values=st.sampled_from(VALUES),
    where=st.sampled_from(BOXES),
)
@example(seed=0, count=0, height=9, width=9, side=28, values="any", where="any")
@example(seed=0, count=2, height=1, width=1, side=28, values="ones", where="whole photo")
@example(seed=0, count=2, height=50, width=31, side=28, values="ones", where="whole photo")
@example(seed=1, count=100, height=48, width=64, side=28, values="any", where="any")
def test_masks_are_torchvisions_bits_as_pycocotools_writes_them(seed, count, height, width, side, values, where):
    masks, boxes = scene(seed, count, height, width, side, values, where)
    expected = obvious(masks, boxes, height, width)
    found = paste_to_rle(masks, boxes, height, width)
    assert list(found) == [official.encode(np.asfortranarray(bits))["counts"] for bits in expected]
    assert mask_areas(found).tolist() == expected.sum((1, 2)).tolist()


def exact(mask: Tensor, box: Tensor, height: int, width: int) -> np.ndarray:
    """(H, W) float64: the resized mask by a slow loop over pixels; 0 outside the region."""
    side = mask.shape[-1]
    padded = np.pad(mask.double().numpy(), 1)
    pasted = np.zeros((height, width))
    for piece in visible_patches(box[None], side, height, width):
        for row in range(piece.rows):
            for column in range(piece.columns):
                at = [
                    min(max((place + 0.5) * (side + 2) / size - 0.5, 0.0), side + 1.0)
                    for place, size in ((piece.above + row, piece.height), (piece.before + column, piece.width))
                ]
                (y, part_y), (x, part_x) = ((int(value), value - int(value)) for value in at)
                next_y, next_x = min(y + 1, side + 1), min(x + 1, side + 1)
                upper = padded[y, x] * (1 - part_x) + padded[y, next_x] * part_x
                lower = padded[next_y, x] * (1 - part_x) + padded[next_y, next_x] * part_x
                pasted[piece.top + row, piece.left + column] = upper * (1 - part_y) + lower * part_y
    return pasted


@examples(25)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(0, 4),
    height=st.integers(1, 24),
    width=st.integers(1, 24),
    side=st.sampled_from([3, 28]),
    values=st.sampled_from(["any", "ones"]),
    where=st.sampled_from(BOXES),
    chunk=st.sampled_from([1, 7, 60, 1 << 23]),
)
def test_both_forms_agree_with_the_obvious_loop_in_chunks_of_any_size(
    seed, count, height, width, side, values, where, chunk
):
    masks, boxes = scene(seed, count, height, width, side, values, where)
    values_of = [exact(mask, box, height, width) for mask, box in zip(masks, boxes)]
    with pytest.MonkeyPatch.context() as patch:
        for form in (rle_changes_cpu, rle_changes_batched):
            patch.setattr(paste_masks, "CHUNK", chunk)
            patch.setattr(paste_masks, "rle_changes_cpu", form)
            found = paste_to_rle(masks, boxes, height, width)
            for text, value in zip(found, values_of):
                clear = np.abs(value - 0.5) > 1e-5
                np.testing.assert_array_equal(decode_mask(text, height, width)[clear], (value > 0.5)[clear])


def test_a_chunk_never_holds_more_pixels_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paste_masks, "CHUNK", 500)
    _, boxes = scene(3, 12, 90, 70, 28, "any", "any")
    boxes[0] = torch.tensor([0.0, 0, 70, 90])
    pieces = visible_patches(boxes, 28, 90, 70)
    chunks = list(paste_masks._chunks(pieces))
    assert len(chunks) > 3
    for chunk in chunks:
        assert len(chunk) * max(piece.rows for piece in chunk) * max(piece.columns for piece in chunk) <= 500
    area = sum(piece.rows * piece.columns for piece in pieces)
    assert area == sum(piece.rows * piece.columns for chunk in chunks for piece in chunk)


def test_a_photo_of_any_size_costs_no_more_than_the_regions() -> None:
    """3.6 billion pixels: no bitmap of them could be made."""
    height = width = 60_000
    masks = torch.ones(2, 28, 28)
    boxes = torch.tensor([[59_000.0, 100, 59_040, 160], [0.0, 59_990, 20, 60_010]])
    found = paste_to_rle(masks, boxes, height, width)
    boxes_of = [official.toBbox({"size": [height, width], "counts": text}).tolist() for text in found]
    np.testing.assert_allclose(boxes_of, [[59_000, 100, 40, 60], [0, 59_990, 20, 10]], atol=2)


def test_the_threshold_is_a_choice_and_is_itself_outside() -> None:
    """The box's region is 30 pixels, as many as the mask has with its ring: each pixel is one of the mask's."""
    masks = torch.tensor([0.25, 0.5, 0.75])[:, None, None].expand(3, 28, 28)
    boxes = torch.tensor([[6.25, 6.25, 33.75, 33.75]]).expand(3, 4)
    for threshold, expected in ((0.2, [784, 784, 784]), (0.25, [0, 784, 784]), (0.5, [0, 0, 784]), (0.75, [0, 0, 0])):
        assert mask_areas(paste_to_rle(masks, boxes, 40, 40, threshold=threshold)).tolist() == expected


def test_half_precision_masks_with_gradients_are_pasted_as_float32() -> None:
    masks, boxes = scene(5, 3, 30, 40, 28, "any", "any")
    half = masks.bfloat16().requires_grad_()
    assert list(paste_to_rle(half, boxes, 30, 40)) == list(paste_to_rle(half.detach().float(), boxes, 30, 40))
