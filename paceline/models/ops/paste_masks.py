"""From small masks to the photo's pixels, straight to run lengths: no bitmap of a photo is made.

Letters: n masks   S side of a mask   H, W pixels of the photo   m pieces that are resized together
A mask gets a ring of one zero, its box grows by (S + 2) / S about its middle and is cut to whole pixels towards zero, both ends
included; the mask is resized to that region, bilinear with half-pixel centers, and is the object where it is above the threshold.
The law "gluoncv" rounds the box's corners (halves to even), and smooths where it makes a mask smaller, as Pillow does.
Only places where a column begins, ends or changes are recorded: the runs are the distances between them. Two changes at one place
cancel out, for example where a column that reaches the photo's bottom goes on at the top of the next.
Sources: He et al. 2017; the integer boxes are torchvision's `paste_masks_in_image`; GluonCV, data/transforms/mask.py, `fill`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.data.rle import RLE, compress

# Pixels that are resized at once on an accelerator, and the largest region that a CPU resizes in one piece: 32 MiB of float32.
CHUNK = 1 << 23
PasteLaw = Literal["torchvision", "gluoncv"]


class MaskPatch(NamedTuple):
    """The part of a mask's region that lies in the photo, or a band of rows of it."""

    mask: int  # 0..n-1
    height: int  # of the whole region, pixels
    width: int
    above: int  # rows of the region above the piece
    before: int  # columns of the region left of the piece
    top: int  # of the piece, in the photo
    left: int
    rows: int  # of the piece; 1 or more
    columns: int


def paste_to_rle(
    masks: Tensor, boxes: Tensor, height: int, width: int, *, threshold: float = 0.5, law: PasteLaw = "torchvision"
) -> RLE:
    """The masks in the photo as compressed run lengths, in their order; n may be 0.

    masks      (n, S, S) probabilities; computed in float32, on their device
    boxes      (n, 4) left, top, right, bottom in pixels of the photo; they may reach beyond it
    height, width  H, W of the photo, pixels
    threshold  a pixel whose probability is above it belongs to the object
    law        which whole pixels a region has, and how a mask is made smaller
    """
    pieces = visible_patches(boxes, masks.shape[-1], height, width, law)
    padded = functional.pad(masks.detach().to(torch.float32), (1, 1, 1, 1))
    if masks.device.type == "cpu":
        changes = rle_changes_cpu(padded, pieces, threshold, law)
    else:
        changes = rle_changes_batched(padded, pieces, threshold, law)
    # One number for each pair (mask, place): places count the photo's pixels column by column, 0..H W.
    indices = height * width + 1
    keys = [
        np.array([piece.mask * indices + piece.left * height + piece.top for piece in part], np.int64)[which]
        + column * height
        + row
        for part, which, row, column in changes
    ]
    return compress(*_runs(np.sort(np.concatenate([np.zeros(0, np.int64), *keys])), len(masks), indices))


def visible_patches(boxes: Tensor, side: int, height: int, width: int, law: PasteLaw = "torchvision") -> list[MaskPatch]:
    """The region of each box, cut at the photo's borders; masks that lie outside have none. See `paste_to_rle`."""
    boxes = boxes.detach().to("cpu", torch.float32)
    grow = float(side + 2) / side
    half = (boxes[:, 2:] - boxes[:, :2]) * 0.5 * grow
    middle = (boxes[:, 2:] + boxes[:, :2]) * 0.5
    corners = torch.cat((middle - half, middle + half), dim=1)
    corners = (corners.round() if law == "gluoncv" else corners).to(torch.int64).tolist()
    pieces = []
    for mask, (left, top, right, bottom) in enumerate(corners):
        region_height, region_width = max(bottom - top + 1, 1), max(right - left + 1, 1)
        x, y = max(left, 0), max(top, 0)
        columns, rows = min(right + 1, width) - x, min(bottom + 1, height) - y
        if columns > 0 and rows > 0:
            pieces.append(MaskPatch(mask, region_height, region_width, y - top, x - left, y, x, rows, columns))
    return pieces


# Pieces, and of each change its piece (its place in that list), row and column; row `rows` is below the piece.
Changes = tuple[list[MaskPatch], np.ndarray, np.ndarray, np.ndarray]


def rle_changes_cpu(
    padded: Tensor, pieces: list[MaskPatch], threshold: float, law: PasteLaw = "torchvision"
) -> Iterator[Changes]:
    """A CPU's form: every region of padded (n, S + 2, S + 2) float32 resized as torchvision does, to the same bits.

    A region of more than CHUNK pixels is resized by `rle_changes_batched`, in bands, with other last bits.
    """
    large = [piece for piece in pieces if piece.height * piece.width > CHUNK]
    yield from rle_changes_batched(padded, large, threshold, law)
    for piece in pieces:
        if piece.height * piece.width > CHUNK:
            continue
        resized = functional.interpolate(
            padded[None, piece.mask : piece.mask + 1],
            size=(piece.height, piece.width),
            mode="bilinear",
            antialias=law == "gluoncv",
        )[0, 0]
        inside = torch.zeros(piece.rows + 2, piece.columns, dtype=torch.bool)
        below, right = piece.above + piece.rows, piece.before + piece.columns
        torch.gt(resized[piece.above : below, piece.before : right], threshold, out=inside[1:-1])
        bits = inside.numpy()
        result = np.flatnonzero(bits[1:] != bits[:-1])
        row, column = np.divmod(result, piece.columns)
        yield [piece], np.zeros(len(result), np.int64), row, column


def rle_changes_batched(
    padded: Tensor, pieces: list[MaskPatch], threshold: float, law: PasteLaw = "torchvision"
) -> Iterator[Changes]:
    """An accelerator's form: many regions resized at once, CHUNK pixels or fewer; only the changes are copied to the host."""
    for part in _chunks(pieces):
        numbers = torch.tensor(part, device=padded.device)
        mask, height, width, above, before, _, _, rows, columns = numbers.unbind(1)
        down = (above, height, max(piece.rows for piece in part), padded.shape[-1])
        across = (before, width, max(piece.columns for piece in part), padded.shape[-1])
        resize = _smoothed if law == "gluoncv" else _sampled
        inside = resize(padded, mask, down, across) > threshold  # (m, rows, columns)
        inside &= (torch.arange(inside.shape[1], device=padded.device) < rows[:, None])[:, :, None]
        inside &= (torch.arange(inside.shape[2], device=padded.device) < columns[:, None])[:, None, :]
        inside = functional.pad(inside, (0, 0, 1, 1))
        result = (inside[:, 1:] != inside[:, :-1]).nonzero().cpu().numpy()
        yield part, result[:, 0], result[:, 1], result[:, 2]


def _chunks(pieces: list[MaskPatch]) -> Iterator[list[MaskPatch]]:
    """Lists of pieces that have CHUNK pixels or fewer when all are padded to the list's greatest height and width."""
    bands = []
    for piece in pieces:
        most = max(1, CHUNK // piece.columns)
        bands += [
            piece._replace(above=piece.above + first, top=piece.top + first, rows=min(most, piece.rows - first))
            for first in range(0, piece.rows, most)
        ]
    part: list[MaskPatch] = []
    rows = columns = 0
    for piece in sorted(bands, key=lambda band: band.rows * band.columns):
        rows, columns = max(rows, piece.rows), max(columns, piece.columns)
        if part and (len(part) + 1) * rows * columns > CHUNK:
            yield part
            part, rows, columns = [], piece.rows, piece.columns
        part.append(piece)
    if part:
        yield part


# Of an axis: the first pixel of each region's piece (m,), the region's size (m,), pixels to make, values of the mask.
Axis = tuple[Tensor, Tensor, int, int]


def _sampled(padded: Tensor, mask: Tensor, down: Axis, across: Axis) -> Tensor:
    """Masks at each pixel's place, between the four values around it: (m, rows, columns)."""
    y, y_next, weight_y = _samples(*down)
    x, x_next, weight_x = _samples(*across)
    lines = padded[mask[:, None], :, x] * (1 - weight_x)[:, :, None]
    lines += padded[mask[:, None], :, x_next] * weight_x[:, :, None]  # (m, columns, S + 2)
    which = torch.arange(len(mask), device=padded.device)[:, None]
    resized = lines[which, :, y] * (1 - weight_y)[:, :, None]
    resized += lines[which, :, y_next] * weight_y[:, :, None]
    return resized


def _smoothed(padded: Tensor, mask: Tensor, down: Axis, across: Axis) -> Tensor:
    """The same with a triangle as wide as a pixel of the photo, or of the mask where that is wider: (m, rows, columns)."""
    return _triangles(*down) @ padded[mask] @ _triangles(*across).transpose(1, 2)


def _triangles(first: Tensor, size: Tensor, count: int, side: int) -> Tensor:
    """Weights of a line's values in each pixel: (m, count, side) float32, of a pixel in sum 1; see `_samples`."""
    step = (side / size.to(torch.float32))[:, None, None]
    pixel = torch.arange(count, device=first.device)[:, None] + first[:, None, None]
    away = torch.arange(side, device=first.device) + 0.5 - (pixel + 0.5) * step
    weights = (1 - away.abs() / step.clamp(min=1)).clamp(min=0)
    return weights / weights.sum(dim=2, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)


def _samples(first: Tensor, size: Tensor, count: int, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where `count` pixels of each region, from pixel `first` on, sample a line of `side` values stretched over `size` pixels.

    first, size  (m,) -> the value before and the value after (m, count) int64, and the weight of the second (m, count) float32
    """
    pixel = torch.arange(count, device=first.device) + first[:, None]
    at = ((pixel + 0.5) * (side / size.to(torch.float32))[:, None] - 0.5).clamp(0, side - 1)
    value = at.floor()
    return value.long(), (value + 1).clamp(max=side - 1).long(), at - value


def _runs(keys: np.ndarray, masks: int, indices: int) -> tuple[np.ndarray, np.ndarray]:
    """Sorted changes mask * places + place -> runs of all masks and where each mask's begin, (masks + 1,)."""
    twice = np.flatnonzero(keys[1:] == keys[:-1])
    keys = np.delete(keys, np.concatenate([twice, twice + 1]))
    keys = keys[keys % indices != indices - 1]  # the last run always ends with the photo
    ends = np.arange(1, masks + 1) * indices - 1
    before = np.searchsorted(keys, ends)
    starts = np.concatenate([np.zeros(1, np.int64), before + np.arange(1, masks + 1)])
    keys = np.insert(keys, before, ends)
    runs = np.diff(keys, prepend=0)
    runs[starts[1:-1]] -= 1  # from the end of the mask before, place H W, to its own place 0
    return runs, starts
