"""Greedy suppression and the whole way to detections as the slow, obvious loops."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.config.ssd import DetectionFilter
from paceline.models.ops.boxes import SSD_CODER, clip_fractions, pairwise_iou


def greedy(boxes: Tensor, classes: Tensor, iou: float) -> list[int]:
    """Places of the boxes that are kept; (C, 4) best first."""
    overlap = pairwise_iou(boxes, boxes)
    keep: list[int] = []
    for place in range(len(boxes)):
        if not any(classes[better] == classes[place] and overlap[better, place] > iou for better in keep):
            keep.append(place)
    return keep


def slow_detections(
    logits, deltas, anchors, rules: DetectionFilter, clip: bool
) -> list[list[tuple[int, int, float, list[float]]]]:
    """Of each image (default box, class, score, ltrb), best first."""
    found = []
    for probs, boxes in zip(logits.float().softmax(dim=2), SSD_CODER.decode(deltas, anchors)):
        entries = [
            (float(probs[place, number]), place, number)
            for place in range(probs.shape[0])
            for number in range(1, probs.shape[1])
            if probs[place, number] > rules.score_threshold
        ]
        entries.sort(key=lambda entry: -entry[0])
        if rules.topk_per == "image":
            entries = entries[: rules.topk_candidates]
        else:
            counts: dict[int, int] = {}
            entering = []
            for entry in entries:
                counts[entry[2]] = counts.get(entry[2], 0) + 1
                if counts[entry[2]] <= rules.topk_candidates:
                    entering.append(entry)
            entries = entering
        places = torch.tensor([place for _, place, _ in entries], dtype=torch.int64)
        kept = greedy(boxes[places], torch.tensor([number for _, _, number in entries]), rules.nms_iou)[
            : rules.max_detections
        ]
        shown = clip_fractions(boxes) if clip else boxes
        found.append([(entries[s][1], entries[s][2], entries[s][0], shown[entries[s][1]].tolist()) for s in kept])
    return found
