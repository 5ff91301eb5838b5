"""Beside our box scores: pycocotools and faster-coco-eval, used as their users write it.

What a peer wants as a list of dicts (the ground truth, as its JSON file gives it) is made outside the clock; its own loading, indexing
and taking in of an (N * P, 7) result array is inside.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
from collections.abc import Callable

import numpy as np

from paceline.models.metrics.coco import Detections, GroundTruth

# name -> module of the index, module and class of the scorer; none is needed to import or type-check this.
LIBRARIES = {
    "pycocotools": ("pycocotools.coco", "pycocotools.cocoeval", "COCOeval"),
    "faster-coco-eval": ("faster_coco_eval", "faster_coco_eval", "COCOeval_faster"),
}


def contenders(truth: GroundTruth, detections: Detections, side: int) -> dict[str, Callable[[], tuple[float, ...]]]:
    """Those that are installed; side: of every image, pixels."""
    return {
        name: scorer(name, truth, detections, side)
        for name, (module, *_) in LIBRARIES.items()
        if importlib.util.find_spec(module.partition(".")[0])
    }


def scorer(name: str, truth: GroundTruth, detections: Detections, side: int) -> Callable[[], tuple[float, ...]]:
    """-> what loads, scores and gives the twelve numbers."""
    index, scorer, kind = LIBRARIES[name]
    coco_class = importlib.import_module(index).COCO
    eval_class = getattr(importlib.import_module(scorer), kind)
    owner = truth.image_ids[np.repeat(np.arange(len(truth.image_ids)), np.diff(truth.starts))].tolist()
    columns = zip(owner, truth.classes.tolist(), truth.boxes.tolist(), truth.areas.tolist(), truth.crowd.tolist())
    dataset = {
        "info": {},
        "images": [{"id": number, "height": side, "width": side} for number in truth.image_ids.tolist()],
        "categories": [{"id": k, "name": str(k)} for k in range(1, truth.num_classes + 1)],
        "annotations": [
            {"id": row + 1, "image_id": image, "category_id": k, "bbox": box, "area": area, "iscrowd": crowd}
            for row, (image, k, box, area, crowd) in enumerate(columns)
        ],
    }
    places = truth.image_ids[detections.images]
    results = np.column_stack([places, detections.boxes, detections.scores, detections.classes])

    def score() -> tuple[float, ...]:
        with contextlib.redirect_stdout(io.StringIO()):
            wanted = coco_class()
            wanted.dataset = dataset
            wanted.createIndex()
            found = eval_class(wanted, wanted.loadRes(results), "bbox")
            found.evaluate()
            found.accumulate()
            found.summarize()
        return tuple(float(number) for number in found.stats[:12])

    return score
