"""Photos, objects, masks and proposals for the Mask R-CNN benchmark, the same on every call and for every contender.

Letters: B images   H, W pixels of the input   n objects of an image   P proposals of an image   C canvas side
Objects are ellipses whose sides are spread evenly over the logarithm from 4 to 60 percent of the input's shorter side.
A network that is not trained proposes what it likes, so how many positives it has is chance. Each contender therefore does
all the work of its own proposals and then goes on with these: boxes jittered around the objects, as many as the wanted
positives lack when the objects' own boxes are added, and boxes that no object overlaps by half.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.batch import InstanceBatch
from paceline.boxes.geometry import pairwise_iou

SMALLEST, LARGEST = 0.04, 0.6  # an object's side, of the input's shorter side
FEWEST_PIXELS = 6.0  # the same in pixels: tiny inputs
# A box jittered by this share of its side keeps an IoU of over one half with the object; both limits leave room for rounding.
JITTER = 0.12
POSITIVE_IOU, NEGATIVE_IOU = 0.55, 0.45
DRAWN_AT_ONCE = 4096


@dataclass(frozen=True)
class Scene:
    """One batch in the two forms that contenders want.

    boxes      of each image (n, 4) float32 ltrb pixels
    labels     of each image (n,) int64, 1..K
    bitmaps    of each image (n, H, W) uint8: what torchvision and detectron2 take masks from
    proposals  (B, P, 4) float32 ltrb pixels
    """

    batch: InstanceBatch
    boxes: list[Tensor]
    labels: list[Tensor]
    bitmaps: list[Tensor]
    proposals: Tensor

    def to(self, device: torch.device) -> Scene:
        """The same on another device."""
        boxes, labels, bitmaps = (
            [part.to(device) for part in parts] for parts in (self.boxes, self.labels, self.bitmaps)
        )
        batch = self.batch.to(device)
        assert isinstance(batch, InstanceBatch)
        return Scene(batch, boxes, labels, bitmaps, self.proposals.to(device))


def synthetic_scene(
    images: int, height: int, width: int, *, classes: int, objects: int, positives: int, proposals: int, canvas: int
) -> Scene:
    """On the CPU.

    objects    n, of each image
    positives  regions of an image that overlap an object, n of them the objects' own boxes; n or more
    proposals  P; canvas: C
    """
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (images, 3, height, width), dtype=torch.uint8, generator=draw)
    boxes = [object_boxes(objects, height, width, draw) for _ in range(images)]
    labels = [torch.randint(1, classes + 1, (objects,), generator=draw) for _ in range(images)]
    pairs = [[canvas_of_ellipse(box, canvas) for box in rows] for rows in boxes]
    canvases = torch.stack([bitmap for rows in pairs for bitmap, _ in rows])
    frames = torch.stack([frame for rows in pairs for _, frame in rows])
    batch = InstanceBatch(
        images=pixels,
        labels=torch.stack(labels),
        indices=torch.arange(images),
        boxes=torch.stack(boxes),
        sizes=torch.tensor([[height, width]]).repeat(images, 1),
        keys=torch.arange(images),
        canvases=canvases.unflatten(0, (images, objects)),
        frames=frames.unflatten(0, (images, objects)),
    )
    whole = torch.tensor([0.0, 0.0, 1.0, 1.0])
    bitmaps = [torch.stack([ellipse(box, whole, height, width) for box in rows]) for rows in boxes]
    found = [proposed(rows, positives - objects, proposals, height, width, draw) for rows in boxes]
    return Scene(batch, boxes, labels, bitmaps, torch.stack(found))


def object_boxes(count: int, height: int, width: int, draw: torch.Generator) -> Tensor:
    """(count, 4) ltrb pixels, a pixel or more away from the border."""
    least = max(FEWEST_PIXELS, SMALLEST * min(height, width))
    most = max(least, LARGEST * min(height, width))
    side = least * (most / least) ** torch.rand(count, 1, generator=draw)
    stretch = 2 ** (torch.rand(count, 1, generator=draw) - 0.5)
    room = torch.tensor([width - 2.0, height - 2.0])
    sides = torch.minimum(torch.cat((side * stretch, side / stretch), dim=1), room)
    low = 1 + torch.rand(count, 2, generator=draw) * (room - sides)
    return torch.cat((low, low + sides), dim=1)


def ellipse(box: Tensor, frame: Tensor, rows: int, columns: int) -> Tensor:
    """The ellipse in a box, sampled at the middles of pixels: (rows, columns) uint8.

    frame  x and y of the grid's left upper corner, width and height of its pixels
    """
    x = frame[0] + (torch.arange(columns) + 0.5) * frame[2]
    y = frame[1] + (torch.arange(rows) + 0.5) * frame[3]
    middle, half = (box[:2] + box[2:]) / 2, (box[2:] - box[:2]) / 2
    distance = ((x - middle[0]) / half[0]).square() + ((y - middle[1]) / half[1]).square().unsqueeze(1)
    return (distance <= 1).to(torch.uint8)


def canvas_of_ellipse(box: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """-> canvas (C + 2, C + 2) uint8 and frame (4,), as in InstanceBatch."""
    corner = box[:2].floor()
    pitch = ((box[2:].ceil() - corner) / side).clamp(min=1.0)
    frame = torch.cat((corner, pitch))
    return ellipse(box, torch.cat((corner - pitch, pitch)), side + 2, side + 2), frame


def proposed(objects: Tensor, near: int, count: int, height: int, width: int, draw: torch.Generator) -> Tensor:
    """`count` proposals, `near` of them on an object and the others on none, in a random order."""
    limits = torch.tensor([width, height, width, height], dtype=torch.float32)
    close, away = [objects[:0]], [objects[:0]]
    while sum(map(len, close)) < near:
        some = objects[torch.randint(len(objects), (DRAWN_AT_ONCE,), generator=draw)]
        sides = (some[:, 2:] - some[:, :2]).repeat(1, 2)
        some = some + JITTER * sides * (2 * torch.rand(len(some), 4, generator=draw) - 1)
        some = torch.minimum(some.clamp(min=0.0), limits)
        close.append(some[pairwise_iou(some, objects).amax(dim=1) >= POSITIVE_IOU])
    while sum(map(len, away)) < count - near:
        some = object_boxes(DRAWN_AT_ONCE, height, width, draw)
        away.append(some[pairwise_iou(some, objects).amax(dim=1) < NEGATIVE_IOU])
    found = torch.cat((torch.cat(close)[:near], torch.cat(away)[: count - near]))
    return found[torch.randperm(count, generator=draw)]
