"""Greedy suppression and the whole way to detections as the slow, obvious loops."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.boxes.coding import decode
from paceline.boxes.geometry import clip as clip_to_image
from paceline.boxes.geometry import pairwise_iou


def greedy(boxes: Tensor, classes: Tensor, iou: float) -> list[int]:
    """Places of the boxes that stay; (C, 4) best first."""
    overlap = pairwise_iou(boxes, boxes)
    stays: list[int] = []
    for place in range(len(boxes)):
        if not any(classes[better] == classes[place] and overlap[better, place] >= iou for better in stays):
            stays.append(place)
    return stays


def slow_detections(
    logits, deltas, anchors, *, score_above, iou, candidates, candidates_of, keep, clip
) -> list[list[tuple[int, int, float, list[float]]]]:
    """Of each image (default box, class, score, ltrb), best first."""
    found = []
    for chances, boxes in zip(logits.float().softmax(dim=2), decode(deltas, anchors)):
        entries = [
            (float(chances[place, number]), place, number)
            for place in range(chances.shape[0])
            for number in range(1, chances.shape[1])
            if chances[place, number] > score_above
        ]
        entries.sort(key=lambda entry: -entry[0])
        if candidates_of == "image":
            entries = entries[:candidates]
        else:
            counts: dict[int, int] = {}
            entering = []
            for entry in entries:
                counts[entry[2]] = counts.get(entry[2], 0) + 1
                if counts[entry[2]] <= candidates:
                    entering.append(entry)
            entries = entering
        places = torch.tensor([place for _, place, _ in entries], dtype=torch.int64)
        stays = greedy(boxes[places], torch.tensor([number for _, _, number in entries]), iou)[:keep]
        shown = clip_to_image(boxes) if clip else boxes
        found.append([(entries[s][1], entries[s][2], entries[s][0], shown[entries[s][1]].tolist()) for s in stays])
    return found
