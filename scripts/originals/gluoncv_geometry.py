"""GluonCV's anchors, their targets, the sampling of regions, RoIAlign, levels and mask targets, on drawn boxes and outlines.

Letters: M objects   A anchors   N regions   C channels   S side of a mask
Random choice is taken out by quotas that nothing exceeds, or only its counts are recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import mxnet as mx
import numpy as np
from gluoncv.data.transforms.mask import to_mask
from gluoncv.model_zoo.rcnn.faster_rcnn.faster_rcnn import FasterRCNN
from gluoncv.model_zoo.rcnn.faster_rcnn.rcnn_target import RCNNTargetSampler
from gluoncv.model_zoo.rcnn.mask_rcnn.rcnn_target import MaskTargetGenerator
from gluoncv.model_zoo.rcnn.rpn.anchor import RPNAnchorGenerator
from gluoncv.model_zoo.rcnn.rpn.rpn_target import RPNTargetGenerator
from gluoncv.nn.coder import NormalizedBoxCenterDecoder

STRIDES, SCALES, RATIOS = (4, 8, 16, 32, 64), (2, 4, 8, 16, 32), (0.5, 1, 2)
HEIGHT, WIDTH = 320, 416
IMAGES = 4
UNLIMITED = 10**6


@contextmanager
def whole_regions() -> Iterator[None]:
    """GluonCV's way of pooling for MXNet before 1.6: all regions on each level, then those of other levels set to 0.

    Its way since marks them by -1, and MXNet 1.9.1's ROIAlign writes such a row's zero into another row on a CPU.
    """
    kept = mx.nd.contrib.__dict__.pop("box_encode")
    try:
        yield
    finally:
        mx.nd.contrib.box_encode = kept


def drawn_boxes(random: np.random.RandomState, count: int, height: float, width: float, least: float) -> np.ndarray:
    """(count, 4) ltrb float32 inside the photo; sides from `least` on, the logarithm uniform; a quarter on whole pixels."""
    sides = np.exp(random.uniform(np.log(least), np.log([width, height]), size=(count, 2)))
    low = random.uniform(0, 1, size=(count, 2)) * ([width, height] - sides)
    boxes = np.concatenate((low, low + sides), axis=1)
    whole = random.uniform(size=count) < 0.25
    boxes[whole] = np.concatenate((np.floor(boxes[whole, :2]), np.ceil(boxes[whole, 2:])), axis=1)
    return np.clip(boxes, 0, [width, height] * 2).astype(np.float32)


def anchors_of(height: int, width: int) -> list[mx.nd.NDArray]:
    """Of each level (1, A_l, 4), as the RPN slices them to its maps."""
    levels = []
    for stride, scale in zip(STRIDES, SCALES):
        generator = RPNAnchorGenerator(stride, 16, RATIOS, scale, (-(-height // stride), -(-width // stride)))
        generator.initialize()
        levels.append(generator(mx.nd.zeros((1, 1, -(-height // stride), -(-width // stride)))))
    return levels


def anchors(random: np.random.RandomState) -> dict[str, np.ndarray]:
    """-> the anchors of the first cell and of the cell in row 2, column 3 of each level, and all of a small map."""
    levels = anchors_of(HEIGHT, WIDTH)
    cells = []
    for stride, level in zip(STRIDES, levels):
        grid = level.asnumpy().reshape(-(-HEIGHT // stride), -(-WIDTH // stride), 3, 4)
        cells.append((grid[0, 0], grid[2, 3]))
    return {"cells": np.array(cells), "whole": levels[4].asnumpy()[0], "counts": np.array([x.shape[1] for x in levels])}


def anchor_targets(random: np.random.RandomState, boxes: list[np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """-> of each photo its boxes, the kind and object of all anchors without quotas, targets of positives, counts with quotas.

    boxes  objects of photos of HEIGHT x WIDTH; None: drawn, the last photo with objects that share their best anchors
    """
    every = mx.nd.concat(*anchors_of(HEIGHT, WIDTH), dim=1)[0]
    if boxes is None:
        boxes = [drawn_boxes(random, count, HEIGHT, WIDTH, 6) for count in (1, 5, 20)]
        # On the anchors' own grid many anchors overlap an object equally well.
        corner = 16 * random.randint(2, 10, size=(6, 2))
        boxes.append(np.concatenate((corner, corner + 16 * random.randint(2, 6, size=(6, 2))), 1).astype(np.float32))
    found: dict[str, np.ndarray] = {"photos": np.array(len(boxes))}
    free = RPNTargetGenerator(num_sample=UNLIMITED)
    limited = RPNTargetGenerator()
    for photo, objects in enumerate(boxes):
        kind, targets, mask = free(mx.nd.array(objects), every, WIDTH, HEIGHT)
        positive = kind > 0
        assert np.array_equal(mask[:, 0] > 0, positive)
        sampled, _, _ = limited(mx.nd.array(objects), every, WIDTH, HEIGHT)
        found.update(
            {
                f"boxes_{photo}": objects,
                f"kind_{photo}": kind.astype(np.int8),
                f"targets_{photo}": targets[positive].astype(np.float32),
                f"sampled_{photo}": np.array([(sampled > 0).sum(), (sampled == 0).sum()]),
            }
        )
    return found


def region_samples(random: np.random.RandomState) -> dict[str, np.ndarray]:
    """-> how many positives, negatives and repeated regions the sampler takes, from so many that there are.

    There are `there` (cases, 2) positives and negatives; `taken` (cases, 5): positives, negatives, ignored, different
    positives, different negatives. 64 places, a quarter for positives first; 96 proposals and 2 objects.
    """
    object_box = np.array([[0, 0, 100, 100], [500, 500, 600, 600]], np.float32)
    there, taken = [], []
    for positives in (0, 6, 14, 30, 70, 90):
        for negatives in (96 - positives, 20, 4):
            if positives + negatives > 96:
                continue
            # Positives overlap the first object by 0.9, each a little otherwise; negatives touch nothing.
            good = np.tile(object_box[:1], (positives, 1)) * (1, 1, 0.9, 1) + random.uniform(0, 0.5, size=(positives, 4))
            bad = np.array([300, 0, 320, 20]) + random.uniform(0, 9, size=(negatives, 4))
            rois = np.full((1, 96, 4), -1, np.float32)
            rois[0, : positives + negatives] = np.concatenate((good, bad))
            scores = np.full((1, 96, 1), -1, np.float32)
            scores[0, : positives + negatives] = 0.5
            sampler = RCNNTargetSampler(1, 96, 64, 0.5, 0.25, 2)
            new, kind, _ = (x.asnumpy()[0] for x in sampler(*(mx.nd.array(x) for x in (rois, scores, object_box[None]))))
            different = [len(np.unique(new[kind == sign], axis=0)) for sign in (1, -1)]
            there.append((positives + 2, negatives))
            taken.append([(kind == 1).sum(), (kind == -1).sum(), (kind == 0).sum(), *different])
    return {"there": np.array(there), "taken": np.array(taken)}


def pooling(random: np.random.RandomState) -> dict[str, np.ndarray]:
    """-> regions, what MXNet's ROIAlign makes of them on one map, and their pyramid level 2 to 5."""
    feature = random.normal(size=(2, 2, 20, 26)).astype(np.float32)
    boxes = drawn_boxes(random, 10, 80, 104, 1)
    boxes[0] = 10, 10, 10, 10  # no area
    boxes[1] = 0, 0, 104, 80
    boxes[2] = 90, 70, 130, 95  # beyond the map
    boxes[3] = -9, -12, 30, 20
    image = random.randint(0, 2, size=(10, 1))
    rows = mx.nd.array(np.concatenate((image, boxes), axis=1))
    pooled = mx.nd.contrib.ROIAlign(mx.nd.array(feature), rows, (14, 14), 0.25, sample_ratio=2)
    # A level's map holds its own number, so the pooled number is the level.
    sides = np.concatenate((random.uniform(1, 900, size=(60, 2)), random.choice([55, 111, 223, 447, 895], size=(40, 2))))
    at = random.uniform(0, 40, size=(100, 2))
    regions = np.concatenate((at, at + sides), axis=1).astype(np.float32)
    regions[60:, :2] = 0
    regions[60:, 2:] = sides[60:]
    maps = [mx.nd.full((1, 1, 4096 // stride, 4096 // stride), level) for level, stride in enumerate(STRIDES[:4], start=2)]
    net = type("Stages", (), {"_max_stage": 6, "_min_stage": 2})()
    padded = mx.nd.array(np.concatenate((np.zeros((100, 1)), regions), axis=1))
    with whole_regions():
        levels = FasterRCNN._pyramid_roi_feats(net, mx.nd, maps, padded, (2, 2), STRIDES)
    return {
        "feature": feature,
        "image": image[:, 0],
        "boxes": boxes,
        "pooled": pooled.asnumpy(),
        "regions": regions,
        "levels": levels.asnumpy()[:, 0, 0, 0].round().astype(np.int8),
    }


def decoding(random: np.random.RandomState) -> dict[str, np.ndarray]:
    """-> regions, deltas (some beyond the clip), and the boxes that they describe, for regions and for anchors."""
    boxes = drawn_boxes(random, 30, HEIGHT, WIDTH, 2)
    deltas = random.normal(0, 1, size=(30, 4)).astype(np.float32)
    deltas[:4, 2:] = [[30, 1], [1, 40], [4.42, -4.42], [-30, -30]]
    of = [
        NormalizedBoxCenterDecoder(stds=stds, clip=4.42, convert_anchor=True)(
            mx.nd.array(deltas[None]), mx.nd.array(boxes[None])
        )
        for stds in ((0.1, 0.1, 0.2, 0.2), (1.0, 1.0, 1.0, 1.0))
    ]
    return {"boxes": boxes, "deltas": deltas, "of_regions": of[0].asnumpy()[0], "of_anchors": of[1].asnumpy()[0]}


def mask_targets(random: np.random.RandomState) -> dict[str, np.ndarray]:
    """-> outlines (M, P, 2) in a photo, regions, each region's object, and the targets (N, S, S) of its mask."""
    height, width, points, side = 120, 150, 12, 28
    centers = random.uniform([30, 30], [width - 30, height - 30], size=(5, 1, 2))
    angle = np.sort(random.uniform(0, 2 * np.pi, size=(5, points)), axis=1)[..., None]
    radius = random.uniform(8, [[[16]], [[30]], [[45]], [[55]], [[90]]], size=(5, points, 1))
    outlines = centers + radius * np.concatenate((np.cos(angle), np.sin(angle)), axis=2)
    outlines = np.clip(outlines, 0, [width, height]).astype(np.float32)
    bitmaps = np.stack([to_mask([outline], (width, height)) for outline in outlines])
    matches = np.concatenate((np.arange(5), random.randint(0, 5, size=11)))
    around = np.concatenate((outlines.min(axis=1), outlines.max(axis=1)), axis=1)[matches]
    sides = np.tile(around[:, 2:] - around[:, :2], (1, 2))
    rois = around + np.where(np.arange(16)[:, None] < 5, 0, random.uniform(-0.2, 0.2, size=(16, 4))) * sides
    rois = np.clip(rois, 0, [width, height] * 2).astype(np.float32)
    generator = MaskTargetGenerator(1, 16, 1, (side, side))
    targets, _ = generator(
        mx.nd.array(rois[None]), mx.nd.array(bitmaps[None]), mx.nd.array(matches[None]), mx.nd.ones((1, 16))
    )
    return {
        "size": np.array([height, width]),
        "outlines": outlines,
        "bitmaps": np.packbits(bitmaps),
        "rois": rois,
        "matches": matches,
        "targets": targets.asnumpy()[0, :, 0],
    }
