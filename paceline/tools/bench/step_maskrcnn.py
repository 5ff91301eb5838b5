"""`paceline bench step --task instance-segmentation`: normalization, forward, sampling, losses, backward and the update.

Letters: B images of a step   H, W pixels of the input   K classes
         n objects of an image   P proposals of an image   C canvas side
Every contender gets the same pixels, objects, masks and proposals. Objects are ellipses whose sides are spread evenly over the
logarithm from 4 to 60 percent of the input's shorter side. How many positives an untrained network proposes is chance, so each
contender does the work of its own proposals and then continues with these: boxes jittered around the objects, as many as the
wanted positives lack when the objects' own boxes are added, and boxes that no object overlaps by half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from paceline.config.maskrcnn import InstanceInput, MaskRCNNModel
from paceline.config.recipe import Optim, Recipe
from paceline.config.system import Precision
from paceline.data.batch import InstanceBatch
from paceline.models.maskrcnn import module
from paceline.models.maskrcnn.loss import (
    anchor_box_loss,
    class_loss,
    mask_loss,
    objectness_loss,
    per_image,
    region_box_loss,
)
from paceline.models.maskrcnn.model import MaskRCNN, init_mask_rcnn
from paceline.models.maskrcnn.module import MaskRCNNWithLoss
from paceline.models.maskrcnn.proposals import make_proposals
from paceline.models.ops.boxes import pairwise_iou
from paceline.models.ops.matching import match_anchors, match_regions
from paceline.models.ops.paste_masks import paste_to_rle
from paceline.models.ops.roi_align import assign_levels, mask_targets, pool_regions
from paceline.models.ops.sampling import random_bits, sample_candidates
from paceline.tools.bench.profile import ProfiledPart, resolve_part
from paceline.tools.bench.step import StepBench, make_predict_function, to_device

# Steps without a step's effect on the next: weights that are not trained must not run away while they are timed.
LR = 1e-5
# Frozen statistics of 0 and 1 let a residual net that is not trained grow at every block; so each block adds this share.
LAST_NORM = 0.2
LOGIT_STD = 4.0  # the spread of class logits that an untrained head is scaled to, so that every image has detections


@dataclass(frozen=True, kw_only=True)
class MaskRCNNBench(StepBench):
    """What to measure."""

    task = "instance-segmentation"
    height: int  # H
    width: int  # W
    classes: int  # K
    objects: int  # of each image
    positives: tuple[int, ...]  # positive regions of each image; a run for each
    net: MaskRCNNModel = field(default_factory=MaskRCNNModel)

    def about(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("height", "width", "classes", "objects")},
            "depth": self.net.depth,
        }

    def recipe(self) -> Recipe[MaskRCNNModel, InstanceInput]:
        return Recipe(
            task=self.task,
            model=self.net,
            input=InstanceInput(),
            target_data="coco",
            global_batch_size=self.batch,
            max_images=100 * self.batch,
            bn_batch_size=self.batch,
            optim=Optim(lr=LR, momentum=0.9, weight_decay=1e-4),
        )

    def model(self, device: torch.device) -> MaskRCNNWithLoss:
        photo = InstanceInput()
        network = MaskRCNN(self.net, self.classes)
        init_mask_rcnn(network, torch.Generator().manual_seed(0))
        scale_residuals(network.backbone.body, ("bn3", "bn2"), self.net.depth)
        return to_device(MaskRCNNWithLoss(network, mean=photo.mean, std=photo.std, settings=self.net), self.system, device)

    def scenes(self, device: torch.device) -> Iterator[tuple[str, MaskRCNNInputs]]:
        """One for each count of positives."""
        for count in self.positives:
            yield f"{count} positive regions per image", self.scene(count).to(device)

    def scene(self, positives: int) -> MaskRCNNInputs:
        """The batch, on the CPU."""
        return make_maskrcnn_inputs(
            self.batch,
            self.height,
            self.width,
            classes=self.classes,
            objects=self.objects,
            positives=positives,
            proposals=self.net.rpn.post_nms_topk_train,
            canvas=self.net.mask.target_buffer_size,
        )

    def parts(self, model: MaskRCNNWithLoss) -> Sequence[ProfiledPart]:
        """As torchvision's network has them too (benchmarks/maskrcnn.py)."""
        backbone, rpn, heads = model.network.backbone, model.network.rpn, model.network.roi_heads
        return (
            *resolve_part("input", model.normalize),
            *resolve_part("backbone", backbone.body),
            *resolve_part("FPN", backbone.fpn),
            *resolve_part("proposal head", rpn.head, rpn.head.at),  # pyright: ignore[reportAttributeAccessIssue]
            *resolve_part("box head", heads.boxes),
            *resolve_part("mask head", heads.masks),
            *resolve_part("proposals", make_proposals, called_in=module),
            *resolve_part(
                "matching and sampling", match_anchors, match_regions, sample_candidates, random_bits, called_in=module
            ),
            *resolve_part("pooling", assign_levels, pool_regions, called_in=module),
            *resolve_part("mask targets", mask_targets, called_in=module),
            *resolve_part("losses", objectness_loss, anchor_box_loss, class_loss, region_box_loss, called_in=module),
            *resolve_part("losses", mask_loss, per_image, called_in=module),
        )

    def trained(self, scene: MaskRCNNInputs, device: torch.device) -> MaskRCNNWithLoss:
        """It goes on with the scene's proposals."""
        model = self.model(device).train()
        give_proposals(model, scene.proposals)
        return model

    def extra_facts(self, model: MaskRCNNWithLoss, batch: Any) -> dict[str, float]:
        """How many regions of an image are positive."""
        return {"positives_an_image": float(model.count(batch)[:, model.terms.index("mask")].sum()) / len(batch)}

    def predictor(self, precision: Precision, scene: MaskRCNNInputs, device: torch.device) -> Callable[[], list[list[Any]]]:
        """From photos to boxes and compressed masks, pasted on the device straight to run lengths: of each image a list of them."""
        ours = self.model(device).eval()
        scale_logits(ours, scene.batch, ours.network)
        predict = make_predict_function(self, precision, ours, scene.batch, device)
        extent = torch.tensor([self.width, self.height, self.width, self.height], device=device)

        def compressed() -> list[list[Any]]:
            result, pasted = predict(), []
            for rows, masks in zip(result.detections, result.masks):
                rows, masks = rows[rows[:, 5] > 0], masks[rows[:, 5] > 0]
                pasted.append(list(paste_to_rle(masks, rows[:, :4] * extent, self.height, self.width)))
            return pasted

        return compressed


def scale_residuals(backbone: nn.Module, names: tuple[str, str], depth: int) -> None:
    """Let each residual block add LAST_NORM of what it would; names: its last norm's with three convolutions, with two."""
    name = names[0] if depth >= 50 else names[1]
    for path, part_of_trunk in backbone.named_modules():
        if path.endswith(name):
            cast(Tensor, part_of_trunk.weight).detach().fill_(LAST_NORM)


def give_proposals(model: MaskRCNNWithLoss, regions: Tensor) -> None:
    """From now on the model goes on with these regions (B, P, 4) when it has made its own."""
    propose = model.propose

    def given(batch: Any) -> Any:
        return propose(batch)._replace(regions=regions, valid=torch.ones_like(regions[..., 0], dtype=torch.bool))

    model.propose = given


@torch.no_grad()
def scale_logits(ours: MaskRCNNWithLoss, batch: Any, *networks: Any) -> None:
    """Scale the class weights of networks with our weights so that scores of this batch lie far apart."""
    seen: list[Tensor] = []
    hook = ours.network.roi_heads.box_predictor.cls_score.register_forward_hook(lambda *call: seen.append(call[2]))
    ours.predict(batch)
    hook.remove()
    for network in networks:
        network.roi_heads.box_predictor.cls_score.weight.mul_(LOGIT_STD / float(seen[0].float().std()))


SMALLEST, LARGEST = 0.04, 0.6  # an object's side, of the input's shorter side
MIN_PIXELS = 6.0  # the same in pixels: tiny inputs
# A box jittered by this share of its side keeps an IoU of over one half with the object; both limits leave room for rounding.
JITTER = 0.12
POSITIVE_IOU, NEGATIVE_IOU = 0.55, 0.45
DRAWN_AT_ONCE = 4096


@dataclass(frozen=True)
class MaskRCNNInputs:
    """One batch in the two forms that contenders want."""

    batch: InstanceBatch
    boxes: list[Tensor]  # of each image (n, 4) float32 ltrb pixels
    labels: list[Tensor]  # of each image (n,) int64, 1..K
    bitmaps: list[Tensor]  # of each image (n, H, W) uint8: what torchvision and detectron2 take masks from
    proposals: Tensor  # (B, P, 4) float32 ltrb pixels

    def to(self, device: torch.device) -> MaskRCNNInputs:
        """The same on another device."""
        boxes, labels, bitmaps = ([part.to(device) for part in parts] for parts in (self.boxes, self.labels, self.bitmaps))
        batch = self.batch.to(device)
        assert isinstance(batch, InstanceBatch)
        return MaskRCNNInputs(batch, boxes, labels, bitmaps, self.proposals.to(device))


def make_maskrcnn_inputs(
    images: int, height: int, width: int, *, classes: int, objects: int, positives: int, proposals: int, canvas: int
) -> MaskRCNNInputs:
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
    results = [synthetic_proposals(rows, positives - objects, proposals, height, width, draw) for rows in boxes]
    return MaskRCNNInputs(batch, boxes, labels, bitmaps, torch.stack(results))


def object_boxes(count: int, height: int, width: int, draw: torch.Generator) -> Tensor:
    """(count, 4) ltrb pixels, a pixel or more away from the border."""
    least = max(MIN_PIXELS, SMALLEST * min(height, width))
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


def synthetic_proposals(objects: Tensor, near: int, count: int, height: int, width: int, draw: torch.Generator) -> Tensor:
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
    result = torch.cat((torch.cat(close)[:near], torch.cat(away)[: count - near]))
    return result[torch.randperm(count, generator=draw)]
