"""A written form's answers beside the run's own: matched one to one, and the largest difference told.

The run's own are those of the CPU's forms (boxes/forms.py), which share neither suppression nor pooling with a graph's.
A detection has its partner where class and place are the same: IoU above a half, the nearest. It may be without one where the
other list may have ended before it: at the threshold, or at the last place of a full list, within the bound.

Letters: n photos   K classes   D places   S side of a mask
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from paceline._utils.text import counted
from paceline.boxes.geometry import pairwise_iou
from paceline.export.graph import Graph
from paceline.predict.graph_model import Input, through
from paceline.predict.runners import Run

# The outputs for one photo.
Answers: TypeAlias = Sequence[np.ndarray]
# Bounds of fp32: sums in another order move a score by 1e-6 to 5e-5 and an edge by a hundredth of a pixel at most. A mask is read at
# one half, where 0.01 of a probability is a fiftieth of a cell.
SCORE, BOX, MASK = 1e-4, 1e-2, 1e-2


@dataclass
class Difference:
    """The largest ones between the answers for n photos."""

    photos: int
    found: int = 0  # objects of the run; 0 of a classifier
    alone: int = 0  # objects of either that have no partner; photos whose best class is another one
    score: float = 0.0
    box: float = 0.0  # of an edge, pixels of the input
    mask: float = 0.0  # of a probability
    overlap: float = 1.0  # least IoU of two masks

    @property
    def small(self) -> bool:
        """Whether all are within the bounds of fp32."""
        return not self.alone and self.score <= SCORE and self.box <= BOX and self.mask <= MASK

    def in_words(self, outputs: Sequence[str]) -> str:
        """On one line."""
        what = counted(self.photos, "image")
        if "boxes" not in outputs:
            return f"{what}: largest difference of a probability {self.score:.1g}; another best class in {self.alone:,}"
        masks = f", of a mask {self.mask:.1g} (least IoU {self.overlap:.4f})" if "masks" in outputs else ""
        return (
            f"{what}, {counted(self.found, 'object')}, {self.alone:,} without a partner: largest difference of a score "
            f"{self.score:.1g}, of a box {self.box:.1g} px{masks}"
        )


def answers(run: Run, graph: Graph, photos: Sequence[Input]) -> list[Answers]:
    """Of each photo, by `run`, float32."""

    def floats(arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [np.asarray(part, np.float32) for part in run(arguments)]

    count = max(1, len(photos)) if graph.any_batch else graph.flags.batch
    return list(through(floats, photos, count, graph.flags.input, sized=len(graph.example()) > 1))


def own_answers(graph: Graph, photos: Sequence[Input]) -> list[Answers]:
    """Of each photo, by the model itself."""

    def run(arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        with torch.inference_mode():
            return [part.numpy() for part in graph(*map(torch.from_numpy, arguments))]

    return answers(run, graph, photos)


def compare(own: Sequence[Answers], theirs: Sequence[Answers], least: float = 0.0) -> Difference:
    """The model's answers for n photos, and another form's; least: score from which on objects are found."""
    found = Difference(len(own))
    for one, other in zip(own, theirs, strict=True):
        if len(one) == 1:
            found.alone += int(one[0].argmax() != other[0].argmax())
            found.score = _largest(found.score, one[0] - other[0])
        else:
            _add(found, one, other, least)
    return found


def _add(found: Difference, one: Answers, other: Answers, least: float) -> None:
    """The objects of one photo."""
    (boxes, scores, labels), (their_boxes, their_scores, their_labels) = one[:3], other[:3]
    overlaps = pairwise_iou(*(torch.from_numpy(np.ascontiguousarray(part)) for part in (boxes, their_boxes))).numpy()
    same = (labels[:, None] == their_labels) & (labels[:, None] >= 0)
    # Boxes without area have no overlap, with themselves neither.
    apart = np.abs(boxes[:, None] - their_boxes).max(axis=2, initial=0)
    near = np.where(same & ((overlaps > 0.5) | (apart < BOX)), apart + np.abs(scores[:, None] - their_scores), np.inf)
    partners = {}
    for place in np.flatnonzero(labels >= 0):
        nearest = int(near[place].argmin())
        if np.isfinite(near[place, nearest]):
            partners[int(place)] = nearest
            near[:, nearest] = np.inf
    mine, its = np.array(list(partners), int), np.array(list(partners.values()), int)
    found.found += int((labels >= 0).sum())
    found.score = _largest(found.score, scores[mine] - their_scores[its])
    found.box = _largest(found.box, boxes[mine] - their_boxes[its])
    for values, taken, kinds, ends in ((scores, mine, their_labels, their_scores), (their_scores, its, labels, scores)):
        # The other list may have lacked a place for it.
        end = max(least, float(ends[-1]) if kinds[-1] >= 0 else least) + SCORE
        found.alone += int((np.delete(values, taken) > end).sum())
    if len(one) == 4 and len(mine):
        masks, their_masks = one[3][mine], other[3][its]
        found.mask = _largest(found.mask, masks - their_masks)
        both, either = (masks > 0.5) & (their_masks > 0.5), (masks > 0.5) | (their_masks > 0.5)
        shares = both.sum(axis=(1, 2)) / np.maximum(either.sum(axis=(1, 2)), 1)
        found.overlap = min(found.overlap, float(np.where(either.any(axis=(1, 2)), shares, 1.0).min()))


def _largest(before: float, differences: np.ndarray) -> float:
    return max(before, float(np.abs(differences).max(initial=0.0)))
