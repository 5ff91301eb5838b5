"""What SSD is measured against: the MLPerf reference's formulation, written plainly, and torchvision's own detection parts.

Letters: B images   A default boxes   C = K + 1 classes with background   n objects of an image   D detections of an image
The reference's outputs are (B, C, A) and (B, 4, A), its network NCHW with separate heads, and it matches image by image. Its
default boxes may come in any order here. torchvision's SSD divides its loss by the positives of the whole batch, counts an
IoU of exactly the threshold as positive, and clips boxes before it suppresses.
Sources: MLPerf reference SSD (utils.py, base_model.py, ssd300.py, train.py); torchvision.models.detection.ssd.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.plain_loop import normalized, plain_loop
from paceline.config.recipe import Optim
from paceline.config.ssd import DetectionFilter
from paceline.models.ops.boxes import CENTER_SCALE, SIZE_SCALE, to_ltrb
from paceline.tools.bench.harness import Step
from paceline.tools.bench.profile import MARK

Objects = Sequence[tuple[Tensor, Tensor]]  # of each image: boxes (n, 4) ltrb fractions, labels (n,)
NEGATIVES = 3
LOSS = MARK + "matching and loss"  # this part of a step in a profile
# torchvision clips boxes to an image that begins at 0: moved so far into a larger one, none is cut and the rules coincide.
SHIFT, ROOM = 1.0, 3.0


def iou_of_pairs(left: Tensor, right: Tensor) -> Tensor:
    """(N, 4) and (M, 4) ltrb -> (N, M), by broadcasting both to (N, M, 2)."""
    low = torch.maximum(left[:, None, :2], right[None, :, :2])
    high = torch.minimum(left[:, None, 2:], right[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(dim=2)
    areas = [(boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) for boxes in (left, right)]
    return shared / (areas[0][:, None] + areas[1][None, :] - shared)


def reference_matching(objects: Objects, anchors: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Image by image: -> boxes (B, A, 4) cxcywh and labels (B, A); a negative default box keeps itself and class 0."""
    corners, boxes_of, labels_of = to_ltrb(anchors), [], []
    for boxes, labels in objects:
        matched, classes = anchors.clone(), labels.new_zeros(len(anchors))
        if len(boxes):
            overlap = iou_of_pairs(boxes, corners)
            best, slot = overlap.max(dim=0)
            forced = overlap.max(dim=1).indices
            best.index_fill_(0, forced, 2.0)
            for number, anchor in enumerate(forced):
                slot[anchor] = number
            positive = best > threshold
            chosen = boxes[slot[positive]]
            classes[positive] = labels[slot[positive]]
            matched[positive] = torch.cat(((chosen[:, :2] + chosen[:, 2:]) / 2, chosen[:, 2:] - chosen[:, :2]), 1)
        boxes_of.append(matched)
        labels_of.append(classes)
    return torch.stack(boxes_of), torch.stack(labels_of)


def reference_loss(deltas: Tensor, logits: Tensor, boxes: Tensor, labels: Tensor, anchors: Tensor) -> Tensor:
    """Mean over images of both losses, each divided by the image's positives: a scalar.

    deltas  (B, 4, A), logits (B, C, A), boxes (B, A, 4) cxcywh and labels (B, A) of `reference_matching`
    """
    boxes, shapes = boxes.transpose(1, 2).contiguous(), anchors.t()
    moved = (boxes[:, :2] - shapes[:2]) / shapes[2:] / CENTER_SCALE
    grown = (boxes[:, 2:] / shapes[2:]).log() / SIZE_SCALE
    true = torch.cat((moved, grown), dim=1)
    positive = labels > 0
    count = positive.sum(dim=1)
    localisation = (F.smooth_l1_loss(deltas, true, reduction="none").sum(dim=1) * positive.float()).sum(dim=1)
    entropy = F.cross_entropy(logits, labels, reduction="none")
    negative = entropy.clone()
    negative[positive] = 0
    rank = negative.sort(dim=1, descending=True).indices.sort(dim=1).indices
    hard = rank < (NEGATIVES * count).clamp(max=labels.shape[1]).unsqueeze(1)
    classification = (entropy * (positive.float() + hard.float())).sum(dim=1)
    share = (count > 0).float() / count.float().clamp(min=1e-6)
    return ((localisation + classification) * share).mean()


def reference_detections(deltas: Tensor, logits: Tensor, anchors: Tensor, knobs: DetectionFilter) -> list[Tensor]:
    """Of each image: (D, 6) ltrb, score, class. deltas (B, 4, A), logits (B, C, A)."""
    deltas, chances = deltas.transpose(1, 2), logits.transpose(1, 2).softmax(dim=2)
    center = anchors[:, :2] + deltas[..., :2] * CENTER_SCALE * anchors[:, 2:]
    size = anchors[:, 2:] * (deltas[..., 2:] * SIZE_SCALE).exp()
    return [_suppressed(boxes, scores, knobs) for boxes, scores in zip(to_ltrb(torch.cat((center, size), dim=2)), chances)]


def _suppressed(boxes: Tensor, scores: Tensor, knobs: DetectionFilter) -> Tensor:
    """Class by class, box by box. boxes (A, 4) ltrb, scores (A, C)."""
    found = [boxes.new_zeros(0, 6)]
    for number, score in enumerate(scores.unbind(dim=1)):
        above = score > knobs.score_threshold
        if number == 0 or not above.any():
            continue
        candidates, score = boxes[above], score[above]
        order = score.sort().indices[-knobs.topk_candidates :]
        kept = []
        while len(order):
            best = int(order[-1])
            kept.append(best)
            overlap = iou_of_pairs(candidates[order], candidates[best : best + 1]).squeeze(1)
            overlap[-1] = 1.0  # itself, also where it has no area
            order = order[overlap < knobs.nms_iou]
        rows = candidates[kept]
        found.append(torch.cat((rows, score[kept, None], torch.full_like(rows[:, :1], number)), dim=1))
    every = torch.cat(found)
    return every[every[:, 4].argsort(descending=True)[: knobs.max_detections]]


class PlainSSD(nn.Module):
    """The reference's network around torchvision's ResNet, under the reference's names."""

    def __init__(self, depth: int, classes: int, cells: Sequence[int], boxes_a_cell: Sequence[int]) -> None:
        """classes: C. cells: of each level's side, at least four levels."""
        super().__init__()
        resnet = importlib.import_module("torchvision").models.get_model(f"resnet{depth}", weights=None)
        for unit in resnet.layer3[:1]:
            unit.conv1.stride = unit.downsample[0].stride = (1, 1)
        stem = (resnet.conv1, resnet.bn1, resnet.relu, resnet.maxpool)
        self.model = nn.ModuleDict({
            "layer1": nn.Sequential(*stem, resnet.layer1, resnet.layer2), "layer2": nn.Sequential(resnet.layer3),
        })  # fmt: skip
        channels = (256, 512, 512, 256, 256, 256)[: len(cells)]
        middle = (256, 256, 128, 128, 128)
        self.additional_blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(inputs, between, 1),
                nn.ReLU(inplace=True),
                nn.Conv2d(between, outputs, 3, 2 if level < 3 else 1, padding=1 if level < 3 else 0),
                nn.ReLU(inplace=True),
            )
            for level, (inputs, between, outputs) in enumerate(zip(channels, middle, channels[1:]))
        )
        self.classes = classes
        heads = list(zip(channels, boxes_a_cell))
        self.loc = nn.ModuleList(nn.Conv2d(inputs, boxes * 4, 3, padding=1) for inputs, boxes in heads)
        self.conf = nn.ModuleList(nn.Conv2d(inputs, boxes * classes, 3, padding=1) for inputs, boxes in heads)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) normalized -> deltas (B, 4, A), logits (B, C, A); default boxes run level, box of the cell, cell."""
        maps = [self.model["layer2"](self.model["layer1"](images))]
        for block in self.additional_blocks:
            maps.append(block(maps[-1]))
        deltas = [head(map).reshape(len(images), 4, -1) for head, map in zip(self.loc, maps)]
        logits = [head(map).reshape(len(images), self.classes, -1) for head, map in zip(self.conf, maps)]
        return torch.cat(deltas, 2), torch.cat(logits, 2)


def torchvision_parts(anchors: Tensor, knobs: DetectionFilter, threshold: float) -> dict[str, Callable[..., Any]]:
    """torchvision's matching, loss and detections for these default boxes, {} where it is not installed.

    matching    objects -> of each image (A,) the object's number, -1 where none
    loss        (objects, its matching, deltas (B, A, 4), logits (B, A, C)) -> scalar
    detections  (deltas, logits) -> of each image {"boxes", "scores", "labels"}, boxes moved by SHIFT
    """
    try:
        detection = importlib.import_module("torchvision.models.detection.ssd")
        parts = importlib.import_module("torchvision.models.detection._utils")
        box_iou = importlib.import_module("torchvision.ops.boxes").box_iou
    except ImportError:
        return {}
    corners, moved = to_ltrb(anchors), to_ltrb(anchors) + SHIFT
    matcher = parts.SSDMatcher(threshold)
    # What the methods read from their model; they are its own.
    settings = SimpleNamespace(
        box_coder=parts.BoxCoder(weights=(10.0, 10.0, 5.0, 5.0)),
        neg_to_pos_ratio=float(NEGATIVES),
        score_thresh=knobs.score_threshold,
        nms_thresh=knobs.nms_iou,
        detections_per_img=knobs.max_detections,
        topk_candidates=knobs.topk_candidates,
    )

    def matching(objects: Objects) -> list[Tensor]:
        nothing = torch.full((len(anchors),), -1, dtype=torch.int64, device=anchors.device)
        return [matcher(box_iou(boxes, corners)) if len(boxes) else nothing for boxes, _ in objects]

    def loss(objects: Objects, matched: list[Tensor], deltas: Tensor, logits: Tensor) -> Tensor:
        targets = [{"boxes": boxes, "labels": labels} for boxes, labels in objects]
        heads = {"bbox_regression": deltas, "cls_logits": logits}
        losses = detection.SSD.compute_loss(settings, targets, heads, [corners] * len(objects), matched)
        return losses["bbox_regression"] + losses["classification"]

    def detections(deltas: Tensor, logits: Tensor) -> list[dict[str, Tensor]]:
        heads = {"bbox_regression": deltas, "cls_logits": logits}
        sides = [(ROOM, ROOM)] * len(deltas)
        return detection.SSD.postprocess_detections(settings, heads, [moved] * len(deltas), sides)

    return {"matching": matching, "loss": loss, "detections": detections}


def plain_step(
    model: PlainSSD,
    images: Tensor,
    objects: Objects,
    anchors: Tensor,
    *,
    threshold: float,
    optim: Optim,
    autocast: Callable[[], Any],
    compile: bool,
) -> Step:
    """The loop around it, on a model that is on its device.

    images  (B, 3, H, W) uint8, in the memory format that the model is to work in
    """
    network: Any = torch.compile(model) if compile else model

    def loss() -> Tensor:
        with torch.profiler.record_function(LOSS):
            boxes, labels = reference_matching(objects, anchors, threshold)
        with autocast():
            deltas, logits = network(normalized(images))
        with torch.profiler.record_function(LOSS):
            return reference_loss(deltas.float(), logits.float(), boxes, labels, anchors)

    return plain_loop(model, loss, optim)
