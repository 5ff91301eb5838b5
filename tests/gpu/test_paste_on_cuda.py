"""Pasting on a GPU: the CPU's masks, but for pixels on the very threshold.

Run by scripts/gpu/campaign.py; CI has no GPU, so these skip there too.
"""

from __future__ import annotations

import pytest
import torch

from paceline.data.rle import decode_mask
from paceline.models.ops import paste_masks
from paceline.models.ops.paste_masks import paste_to_rle

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
HEIGHT, WIDTH = 300, 400


@pytest.mark.parametrize("chunk", [2000, 1 << 23])
def test_pasted_masks_are_the_cpus(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paste_masks, "CHUNK", chunk)
    draw = torch.Generator().manual_seed(0)
    masks = torch.rand(60, 28, 28, generator=draw)
    corners = torch.rand(60, 2, 2, generator=draw) * 1.2 - 0.1
    boxes = torch.cat((corners.amin(1), corners.amax(1)), 1) * torch.tensor([WIDTH, HEIGHT, WIDTH, HEIGHT])
    boxes[0] = torch.tensor([0, 0, WIDTH, HEIGHT])
    wanted = paste_to_rle(masks, boxes, HEIGHT, WIDTH)
    # By hand: monkeypatch cannot take back what is no attribute of the object itself.
    before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, True  # it must not matter
    try:
        found = paste_to_rle(masks.cuda(), boxes.cuda(), HEIGHT, WIDTH)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    different = sum(
        int((decode_mask(a, HEIGHT, WIDTH) != decode_mask(b, HEIGHT, WIDTH)).sum()) for a, b in zip(wanted, found)
    )
    assert len(found) == 60 and different < 1e-5 * 60 * HEIGHT * WIDTH
