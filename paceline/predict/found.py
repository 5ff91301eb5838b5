"""From a network's outputs to what people get of them.

Each function takes (outputs, photos, trained): what the model's `predict` gave for a batch, its n photos, and the run.
Letters: n photos   K classes   D places for detections   S side of a mask
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.batch import FoundInstances
from paceline.boxes.paste import paste_to_rle
from paceline.predict.photos import Photo, name_of, whole_photo
from paceline.predict.results import Answer, Found, Result
from paceline.store.header import Header
from paceline.tasks.metrics.top_k import best_classes
from paceline.tasks.predictions import to_detections
from paceline.training.trained import Trained


class Seen(NamedTuple):
    """A photo as the network took it."""

    photo: Photo
    header: Header  # its size in the frame that the recipe works in
    orientation: int  # as EXIF has it, 1 to 8
    pixels: np.ndarray  # (H, W, 3) uint8, the network's input
    label: Any  # what the workload's `draw_eval` labelled it with


def answers_of(outputs: Any, photos: Sequence[Seen], trained: Trained) -> Sequence[Result]:
    """The workload's own results, or ours for this kind of outputs."""
    own = trained.workload.answers(outputs, photos, trained)
    if own is not None:
        return own
    if isinstance(outputs, FoundInstances):
        return instances_found(outputs, photos, trained)
    return (boxes_found if trained.workload.finds_objects else best_five)(outputs, photos, trained)


def best_five(outputs: Tensor, photos: Sequence[Seen], trained: Trained) -> list[Answer]:
    """outputs: (n, K) logits."""
    classes, scores = best_classes(outputs)
    return [
        Answer(
            **_of(seen, trained),
            classes=tuple(best),
            names=tuple(trained.classes[index] for index in best),
            scores=tuple(values),
        )
        for seen, best, values in zip(photos, classes.tolist(), scores.tolist())
    ]


def boxes_found(outputs: Tensor, photos: Sequence[Seen], trained: Trained) -> list[Found]:
    """outputs: (n, D, 6), as `Detector.predict` has them; a network's settings may have `detect.plus_one`."""
    plus_one = trained.recipe.model.detect.plus_one
    found = []
    for seen, rows in zip(photos, outputs.cpu().numpy()):
        rows = rows[rows[:, 5] > 0].astype(np.float64)
        one = np.column_stack((np.zeros(len(rows)), rows))  # image number 0: each photo stands alone
        here = to_detections(one, np.array([seen.header.height]), np.array([seen.header.width]), plus_one)
        order = np.argsort(-here.scores, kind="stable")
        found.append(_found(seen, trained, here.boxes[order], here.classes[order], here.scores[order]))
    return found


def instances_found(outputs: FoundInstances, photos: Sequence[Seen], trained: Trained) -> list[Found]:
    """outputs: detections (n, D, 6) and masks (n, D, S, S); a network's settings have `detect.mask_above`."""
    found, rules = [], trained.recipe.model.detect
    for seen, detections, masks in zip(photos, outputs.detections, outputs.masks):
        height, width = seen.header.height, seen.header.width
        places = (detections[:, 5] > 0).nonzero()[:, 0]
        rows = detections[places].cpu().double()
        ltrb = rows[:, :4] * torch.tensor([width, height, width, height])
        boxes = ltrb.numpy().copy()
        boxes[:, 2:] -= boxes[:, :2]
        drawn = tuple(paste_to_rle(masks[places], ltrb, height, width, threshold=rules.mask_above, law=rules.paste))
        found.append(_found(seen, trained, boxes, rows[:, 5].long().numpy(), rows[:, 4].numpy(), drawn))
    return found


def _found(
    seen: Seen,
    trained: Trained,
    boxes: np.ndarray,
    classes: np.ndarray,
    scores: np.ndarray,
    masks: tuple[bytes, ...] | None = None,
) -> Found:
    """boxes: (m, 4) left, top, width, height in pixels; classes (m,) 1..K, best first."""
    labels = classes.tolist()
    return Found(
        **_of(seen, trained),
        width=seen.header.width,
        height=seen.header.height,
        boxes=boxes,
        classes=tuple(labels),
        names=tuple(trained.classes[label - 1] for label in labels),
        scores=tuple(scores.tolist()),
        category_ids=tuple(trained.category_ids[label - 1] for label in labels),
        masks=masks,
    )


def _of(seen: Seen, trained: Trained) -> dict[str, Any]:
    """What every result has."""
    pixels = partial(whole_photo, seen.photo, trained.recipe.input)
    return {"file": name_of(seen.photo), "pixels": pixels, "orientation": seen.orientation}
