"""The 3x3 neighbourhoods of chosen cells, cut out of the maps of several levels, with the gradient to the maps.

Letters: B images   C channels   H_l, W_l cells of level l   n chosen cells
A 3x3 convolution whose loss looks at few cells needs its gradient at those cells only; everywhere else it is zero. Computed on
neighbourhoods, the backward of such a convolution costs n cells instead of H_l * W_l.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.boxes.forms import fixed_shapes


def cell_patches(levels: Sequence[Tensor], image: Tensor, level: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Neighbourhoods as rows, zeros outside the map.

    levels  of each (B, C, H_l, W_l)
    image, level, row, column  (n,) int64, where each chosen cell is
    return  (n, 9 * C) in the maps' type: row by row, column by column, channels last
    """
    form = cell_patches_fixed if fixed_shapes(levels[0]) else cell_patches_cpu
    return form(levels, image, level, row, column)


def cell_patches_cpu(levels: Sequence[Tensor], image: Tensor, level: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """A CPU's form: each level cuts out its own cells."""
    parts, places = [], []
    for number, map in enumerate(levels):
        mine = (level == number).nonzero().squeeze(1)
        parts.append(_patches(map, image[mine], row[mine], column[mine]))
        places.append(mine)
    order = torch.cat(places).argsort()
    return torch.cat(parts)[order]


def cell_patches_fixed(levels: Sequence[Tensor], image: Tensor, level: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """The same with shapes that depend on shapes only, and no host synchronisation: every cell is looked for on every level."""
    found = None
    for number, map in enumerate(levels):
        mine = level == number
        part = _patches(map, image, row.masked_fill(~mine, 0), column.masked_fill(~mine, 0))
        part = part.masked_fill(~mine.unsqueeze(1), 0.0)
        found = part if found is None else found + part
    assert found is not None
    return found


def _patches(map: Tensor, image: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Neighbourhoods on one map: (B, C, H, W) -> (n, 9 * C). A view of channels_last memory is all that is read."""
    _, channels, height, width = map.shape
    step = torch.arange(-1, 2, device=map.device)
    rows, columns = row.view(-1, 1, 1) + step.view(1, 3, 1), column.view(-1, 1, 1) + step.view(1, 1, 3)
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    cell = (image.view(-1, 1, 1) * height + rows.clamp(0, height - 1)) * width + columns.clamp(0, width - 1)
    cells = map.permute(0, 2, 3, 1).reshape(-1, channels)
    patches = cells.index_select(0, cell.flatten()).masked_fill(~inside.reshape(-1, 1), 0.0)
    return patches.view(-1, 9 * channels)
