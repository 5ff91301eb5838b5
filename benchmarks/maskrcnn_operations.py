"""The operations around Mask R-CNN's convolutions, ours and torchvision's, on the same numbers, checked for the same results.

Letters: A anchors   P regions   D detections   n objects or masks   S side of a mask
One image of the scene's size. Proposals and detections are of noise, where every stage has its most to do. Each operation
has both contenders ready to be called, and says how far their results differ; what they get lies in the memory layout
that each wants. Pooling includes its backward, because both formulations trade one for the other.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.config.maskrcnn import MaskRCNNModel, MaskRCNNParity
from paceline.models.maskrcnn.proposals import detect_regions, make_proposals
from paceline.models.ops.anchors import make_pyramid_anchors
from paceline.models.ops.boxes import BoxCoder
from paceline.models.ops.matching import match_anchors
from paceline.models.ops.paste_masks import paste_to_rle
from paceline.models.ops.roi_align import assign_levels, mask_targets, pool_regions
from paceline.tools.bench.harness import OURS, Operation
from paceline.tools.bench.step_maskrcnn import MaskRCNNBench, MaskRCNNInputs

PEER = "torchvision"
STRIDES = (4, 8, 16, 32, 64)
MASKS = 100  # of an image that are pasted
# What still counts as agreement: a share of rows (overlaps within rounding of a threshold), or the largest difference
# relative to the largest value.
SHARE, RELATIVE = 5e-3, 1e-4
EDGE, SCORE = 0.02, 1e-4  # two boxes are one where their edges (pixels) and scores are


def operations(bench: MaskRCNNBench, device: torch.device) -> Iterator[Operation]:
    """On the scene with most positives."""
    scene = bench.scene(max(bench.positives)).to(device)
    for make in (matching, making_proposals, pooling, finding, targets, pasting):
        yield from make(bench.net, scene, bench.classes, device)


def matching(settings: MaskRCNNModel, scene: MaskRCNNInputs, _: int, device: torch.device) -> Iterator[Operation]:
    """Objects to anchors."""
    matcher = importlib.import_module("torchvision.models.detection._utils").Matcher(
        settings.rpn.fg_iou, settings.rpn.bg_iou, allow_low_quality_matches=True
    )
    box_iou = importlib.import_module("torchvision.ops").box_iou
    anchors = torch.cat(_anchors(settings, scene, device))
    labels, boxes = scene.batch.labels[:1], scene.batch.boxes[:1]

    def ours() -> tuple[Tensor, Tensor]:
        return match_anchors(
            boxes, labels, anchors, fg_iou=settings.rpn.fg_iou, bg_iou=settings.rpn.bg_iou,
            allow_low_quality_matches=True, eligible=None,
        )  # fmt: skip

    def apart(mine: tuple[Tensor, Tensor], theirs: Tensor) -> float:
        slots, kind = mine
        # Its matcher: an object's number, -1 below the lower threshold, -2 between both.
        wanted = torch.where(kind == 1, slots, torch.where(kind == 0, -1, -2))[0]
        return float((wanted != theirs).float().mean())

    works = {OURS: ours, PEER: lambda: matcher(box_iou(boxes[0], anchors))}
    yield Operation(f"matching of {len(anchors):,} anchors", works, {PEER: apart}, SHARE)


def making_proposals(settings: MaskRCNNModel, scene: MaskRCNNInputs, _: int, device: torch.device) -> Iterator[Operation]:
    """From the proposal head's outputs to proposals; torchvision's decodes every anchor, as its network does."""
    rules, anchors = settings.rpn, _anchors(settings, scene, device)
    draw = torch.Generator().manual_seed(0)
    logits = [torch.randn(1, len(part), generator=draw).to(device) for part in anchors]
    deltas = [0.3 * torch.randn(1, len(part), 4, generator=draw).to(device) for part in anchors]
    sizes = scene.batch.sizes[:1]
    theirs = importlib.import_module("torchvision.models.detection.rpn").RegionProposalNetwork(
        None, None, rules.fg_iou, rules.bg_iou, rules.samples_per_image, rules.positive_fraction,
        {"training": rules.pre_nms_topk_train, "testing": rules.pre_nms_topk_test},
            {"training": rules.post_nms_topk_train, "testing": rules.post_nms_topk_test},
        rules.nms_iou,
    )  # fmt: skip
    every, counts = torch.cat(anchors), [len(part) for part in anchors]
    flat_logits, flat_deltas = torch.cat(logits, 1).view(-1, 1), torch.cat(deltas, 1).view(-1, 4)
    photo = [tuple(sizes[0].tolist())]

    def ours() -> Tensor:
        found, valid, _ = make_proposals(logits, deltas, anchors, sizes, rules, MaskRCNNParity(), training=True)
        return found[valid] if device.type == "cpu" else found[0]

    def torchvision() -> Tensor:
        boxes = theirs.box_coder.decode(flat_deltas, [every]).view(1, -1, 4)
        return theirs.filter_proposals(boxes, flat_logits, photo, counts)[0][0]

    def apart(mine: Tensor, other: Tensor) -> float:
        return unlike(mine[(mine[:, 2:] > mine[:, :2]).all(dim=1)], other)

    yield Operation(f"proposals of {len(every):,} anchors", {OURS: ours, PEER: torchvision}, {PEER: apart}, SHARE)


def pooling(settings: MaskRCNNModel, scene: MaskRCNNInputs, _: int, device: torch.device) -> Iterator[Operation]:
    """Regions from the pyramid, forward and backward, in both memory layouts."""
    pooler_of = importlib.import_module("torchvision.ops").MultiScaleRoIAlign
    roi, channels = settings.roi, settings.fpn_channels
    size = (int(scene.batch.sizes[0, 0]), int(scene.batch.sizes[0, 1]))
    draw = torch.Generator().manual_seed(0)
    grids = [(size[0] // stride, size[1] // stride) for stride in STRIDES[:4]]
    values = [torch.randn(1, channels, *grid, generator=draw).to(device) for grid in grids]
    for count, side in (
        (roi.samples_per_image, roi.pool_size),
        (int(roi.samples_per_image * roi.positive_fraction), settings.mask.pool_size),
    ):
        boxes = scene.proposals[0, :count]
        image = torch.zeros(len(boxes), dtype=torch.int64, device=device)
        weights = torch.randn(len(boxes), channels, side, side, generator=draw).to(device)
        pooler = pooler_of([str(level) for level in range(4)], side, roi.sampling_ratio)
        for layout in (torch.contiguous_format, torch.channels_last):
            levels = [value.clone(memory_format=layout).requires_grad_() for value in values]

            def ours(levels=levels, boxes=boxes, image=image, weights=weights, side=side) -> tuple[Tensor, ...]:
                pooled = pool_regions(
                    levels, STRIDES[:4], image, boxes, assign_levels(boxes, levels=4, law="torchvision", first=2),
                    side=side, sampling_ratio=roi.sampling_ratio, aligned=roi.aligned,
                )  # fmt: skip
                return pooled.detach(), *torch.autograd.grad((pooled * weights).sum(), levels)

            def torchvision(levels=levels, boxes=boxes, weights=weights, pooler=pooler) -> tuple[Tensor, ...]:
                pooled = pooler({str(level): value for level, value in enumerate(levels)}, [boxes], [size])
                return pooled.detach(), *torch.autograd.grad((pooled * weights).sum(), levels)

            name = "channels_last" if layout == torch.channels_last else "contiguous"
            works = {OURS: ours, PEER: torchvision}
            yield Operation(f"{len(boxes)} regions to {side} x {side}, {name}", works, {PEER: _furthest}, RELATIVE)


def finding(settings: MaskRCNNModel, scene: MaskRCNNInputs, classes: int, device: torch.device) -> Iterator[Operation]:
    """From the box head's outputs to detections."""
    roi, rules = settings.roi, settings.detect
    regions = scene.proposals[:1, : settings.rpn.post_nms_topk_test]
    count, sizes = regions.shape[1], scene.batch.sizes[:1]
    draw = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(count, classes + 1, generator=draw).to(device)
    deltas = 0.3 * torch.randn(count, 4 * (classes + 1), generator=draw).to(device)
    module = importlib.import_module("torchvision.models.detection.roi_heads")
    theirs = module.RoIHeads(
        None, None, None, roi.fg_iou, roi.fg_iou, roi.samples_per_image, roi.positive_fraction, roi.box_reg_weights,
            rules.score_threshold, rules.nms_iou,
        rules.max_detections,
    )  # fmt: skip
    there = torch.ones(1, count, dtype=torch.bool, device=device)
    photo = [tuple(sizes[0].tolist())]

    def ours() -> Tensor:
        boxes, scores, labels, _ = detect_regions(
            logits[None], deltas[None], regions, there, sizes, BoxCoder(roi.box_reg_weights, roi.max_log_scale), rules
        )
        return torch.cat((boxes[0], scores[0, :, None], labels[0, :, None].float()), dim=1)

    def torchvision() -> Tensor:
        boxes, scores, labels = theirs.postprocess_detections(logits, deltas, [regions[0]], photo)
        return torch.cat((boxes[0], scores[0][:, None], labels[0][:, None].float()), dim=1)

    def apart(mine: Tensor, other: Tensor) -> float:
        return unlike(mine[mine[:, 5] > 0], other)

    works = {OURS: ours, PEER: torchvision}
    yield Operation(f"detections of {count:,} regions, {classes} classes", works, {PEER: apart}, SHARE)


def targets(settings: MaskRCNNModel, scene: MaskRCNNInputs, _: int, device: torch.device) -> Iterator[Operation]:
    """Mask targets of as many regions as may be positive: from canvases here, from bitmaps of the whole photo there.

    They are compared where the canvas has the input's resolution.
    """
    project = importlib.import_module("torchvision.models.detection.roi_heads").project_masks_on_boxes
    overlap = importlib.import_module("torchvision.ops").box_iou(scene.proposals[0], scene.boxes[0])
    best, slots = overlap.max(dim=1)
    rows = (
        (best >= settings.roi.fg_iou)
        .nonzero()
        .squeeze(1)[: int(settings.roi.samples_per_image * settings.roi.positive_fraction)]
    )
    boxes, slots, side = scene.proposals[0, rows], slots[rows], 2 * settings.mask.pool_size
    canvases, frames, bitmaps = scene.batch.canvases[0], scene.batch.frames[0], scene.bitmaps[0]
    exact = (frames[slots, 2:] == 1).all(dim=1)

    def ours() -> Tensor:
        return mask_targets(canvases[slots], frames[slots], boxes, side=side, target="soft")

    works = {OURS: ours, PEER: lambda: project(bitmaps, boxes, slots, side)}
    yield Operation(
        f"{len(rows)} mask targets", works, {PEER: lambda mine, other: _furthest((mine[exact],), (other[exact],))}, RELATIVE
    )


def pasting(settings: MaskRCNNModel, scene: MaskRCNNInputs, _: int, device: torch.device) -> Iterator[Operation]:
    """Small masks into the photo and to compressed run lengths; torchvision's goes by bitmaps and pycocotools."""
    paste = importlib.import_module("torchvision.models.detection.roi_heads").paste_masks_in_image
    height, width = (int(length) for length in scene.batch.sizes[0])
    boxes = scene.proposals[0, :MASKS]
    draw = torch.Generator().manual_seed(0)
    coarse = torch.randn(len(boxes), 1, 7, 7, generator=draw)
    masks = torch.nn.functional.interpolate(coarse, size=2 * settings.mask.pool_size, mode="bilinear").sigmoid().to(device)

    def apart(mine: Any, other: list[bytes]) -> float:
        return sum(bytes(ours) != theirs for ours, theirs in zip(mine, other)) / max(1, len(other))

    works: dict[str, Callable[[], Any]] = {
        OURS: lambda: paste_to_rle(masks[:, 0], boxes, height, width),
        PEER: lambda: compressed(paste(masks, boxes, (height, width))),
    }
    yield Operation(f"paste of {len(boxes)} masks to run lengths", works, {PEER: apart}, SHARE)


def compressed(masks: Tensor) -> list[bytes]:
    """(n, 1, H, W) probabilities -> compressed run lengths, by pycocotools."""
    encode = importlib.import_module("pycocotools.mask").encode
    inside = (masks > 0.5).cpu().numpy()
    return [encode(np.asfortranarray(mask[0].astype(np.uint8)))["counts"] for mask in inside]


def _anchors(settings: MaskRCNNModel, scene: MaskRCNNInputs, device: torch.device) -> list[Tensor]:
    height, width = (int(length) for length in scene.batch.sizes[0])
    grids = [(-(-height // stride), -(-width // stride)) for stride in STRIDES]
    rpn = settings.rpn
    made = make_pyramid_anchors(
        grids, height, width, sizes=rpn.anchor_sizes, ratios=rpn.aspect_ratios, rounding=settings.parity.anchor_rounding
    )
    return [part.to(device) for part in made]


def _furthest(mine: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> float:
    """The largest difference, relative to the largest value of its tensor."""
    return max(
        (float((a - b).abs().max() / b.abs().max().clamp(min=1e-12)) for a, b in zip(mine, other) if b.numel()), default=0.0
    )


def unlike(mine: Tensor, other: Tensor) -> float:
    """Share of rows (ltrb pixels; or ltrb, score, class) that the other side has not, of both sides' rows."""
    if not len(mine) or not len(other):
        return float(len(mine) + len(other) > 0)
    apart = torch.cdist(mine[:, :4], other[:, :4], p=float("inf"))
    same = apart < EDGE
    if mine.shape[1] > 4:
        same &= torch.cdist(mine[:, 4:], other[:, 4:], p=float("inf")) < SCORE
    lone = (~same.any(dim=1)).sum() + (~same.any(dim=0)).sum()
    return float(lone) / (len(mine) + len(other))
