"""Targets of the mask head: an object's mask inside a region, from the small canvas that holds the mask.

Letters: n regions   C canvas side without its ring
RoIAlign of a whole photo's bitmap needs the bitmap; the object's canvas has all of it that is not 0 and a ring of its
surroundings, so RoIAlign of the canvas, with the region moved to the canvas's corner, is the same where the canvas has
the input's resolution (pitch 1). Within a pixel of the photo's border the ring continues the mask as RoIAlign does;
regions reach no farther, as they are cut at the photo's border.
Sources: "soft" is RoIAlign of He et al. 2017 as torchvision's project_masks_on_boxes calls it: scale 1, not aligned, as many
sample points as a cell has pixels (GluonCV, mask_rcnn/rcnn_target.py: two along a side). "binary" follows the MLPerf reference,
which scales the polygon from the region to the cells and rasterises it there: so a coordinate is a place, not a pixel's middle,
and RoIAlign is aligned. What is left of the difference between the two ways to rasterise: docs/deviations.md.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from paceline.boxes.kernels import roi_align

MaskTarget = Literal["soft", "binary"]


def mask_targets(
    canvases: Tensor, frames: Tensor, boxes: Tensor, *, side: int, target: MaskTarget, sampling_ratio: int = 0
) -> Tensor:
    """The share of the object in each cell of its region.

    canvases  (n, C + 2, C + 2) uint8, 0 or 1: the mask of each region's object, see InstanceBatch
    frames    (n, 4) float32: x and y of the left upper corner of canvas pixel (1, 1), width and height of a canvas pixel
    boxes     (n, 4) ltrb pixels of the network's input
    side      cells along a region's side
    target    the share itself ("soft"), or 1 where it is at least a half and else 0 ("binary")
    sampling_ratio  sample points along a cell's side; 0: as many as it has canvas pixels
    return    (n, side, side) float32 in [0, 1]. n may be 0
    """
    count = len(canvases)
    places = torch.arange(count, device=boxes.device, dtype=torch.float32).unsqueeze(1)
    regions = torch.cat((places, on_canvas(boxes.float(), frames, aligned=target == "binary")), dim=1)
    shares = roi_align(
        canvases.float().unsqueeze(1), regions, side, scale=1.0, sampling_ratio=sampling_ratio or -1, aligned=False
    ).squeeze(1)
    return shares if target == "soft" else (shares >= 0.5).float()


def on_canvas(boxes: Tensor, frames: Tensor, *, aligned: bool) -> Tensor:
    """Regions in canvas pixels, for a RoIAlign that is not aligned: (n, 4) ltrb, (n, 4) -> (n, 4).

    That one takes a whole number for a pixel's middle. Canvas pixel 1 begins at the frame's corner, so its middle lies half a
    pixel of the canvas from there: with `aligned` that is all. Else number u of the input counts as a pixel's middle too, and
    lies u + 1/2 pixels from the border: in sum 1 (the ring) at pitch 1.
    """
    corner, pitch = frames[:, :2].repeat(1, 2), frames[:, 2:].repeat(1, 2)
    return (boxes - corner) / pitch + (0.5 if aligned else 0.5 / pitch + 0.5)
