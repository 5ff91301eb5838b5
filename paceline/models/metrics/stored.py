"""Intervals of a run's own evaluations, from what it wrote of them: RUN/predictions/step-N.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paceline._utils.safe_read import read_entry
from paceline.data.rle import RunLengths
from paceline.models.metrics.bootstrap import Draws, Interval, accuracy_draws, box_draws, intervals, mask_draws
from paceline.models.metrics.coco import Detections, GroundTruth

MOST_BYTES = 1 << 30  # of a predictions file
# At the end of a run, which should not last: about five seconds with 100 detections a photo.
MOST_PHOTOS, MOST_BYTES_AT_END = 1000, 64 << 20


def read_predictions(file: Path, most_bytes: int = MOST_BYTES) -> dict[str, Any] | None:
    """A predictions file of one of paceline's kinds; None where it is not there, damaged, too large, or of another kind."""
    try:
        found = json.loads(read_entry(file, most_bytes))
        return found if found and found["kind"] in ("classification", "boxes", "instances") else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def intervals_at_end(file: Path) -> dict[str, Interval]:
    """Of the metrics of boxes, or the share of right photos, and of masks; {} where photos are many or the file cannot be read."""
    try:
        if file.stat().st_size > MOST_BYTES_AT_END:
            return {}
    except OSError:
        return {}
    found = read_predictions(file, MOST_BYTES_AT_END)
    if found is None or len(found["images"]) > MOST_PHOTOS:
        return {}
    kinds: tuple[Literal["box", "mask"], ...] = ("box", "mask") if found["kind"] == "instances" else ("box",)
    try:
        return {name: ends for kind in kinds for name, ends in intervals(stored_draws(found, kind)).items()}
    except (KeyError, TypeError, ValueError, IndexError):
        # A user's own workload may have other fields: no reason to fail a run.
        return {}


def kind_of(metric: str) -> Literal["box", "mask"]:
    """Which draws have the metric; of classes either."""
    return "mask" if metric.startswith("mask_") else "box"


def stored_draws(found: Mapping[str, Any], kind: Literal["box", "mask"]) -> Draws:
    """The draws of a predictions file, in whose boxes a pixel has two decimals and an image the best 100 of all classes together.

    kind   which of a run with masks are drawn; none of both where classes alone were predicted
    """
    images = found["images"]
    if found["kind"] == "classification":
        best = [[answer["class"] for answer in image["top5"]] for image in images]
        labels = [image["label"] for image in images]
        return accuracy_draws(
            {f"top{k}": np.array([label in some[:k] for label, some in zip(labels, best)]) for k in (1, 5)}
        )
    truth, shown = _truth(found), _shown(found)
    if kind == "box":
        return box_draws(truth, shown)
    wanted, masks = (
        [mask or "" for image in images for mask in part(image)["masks"]] for part in (lambda i: i["truth"], lambda i: i)
    )
    known = np.array([bool(mask) for mask in wanted], bool)
    crowd = np.where(known, truth.crowd, 1).astype(np.uint8)
    strings = [RunLengths.of([mask.encode("ascii") for mask in some]) for some in (wanted, masks)]
    return mask_draws(GroundTruth(**{**vars(truth), "crowd": crowd}), strings[0], shown, strings[1])


def _truth(found: Mapping[str, Any]) -> GroundTruth:
    images = found["images"]
    boxes = np.array([box for image in images for box in image["truth"]["boxes"]], np.float64).reshape(-1, 4)
    flat = {name: [one for image in images for one in image["truth"][name]] for name in ("labels", "crowd")}
    return GroundTruth(
        image_ids=np.array([image["image_id"] for image in images], np.int64),
        heights=np.array([image["height"] for image in images], np.int64),
        widths=np.array([image["width"] for image in images], np.int64),
        starts=np.cumsum([0, *(len(image["truth"]["labels"]) for image in images)]),
        boxes=boxes,
        classes=np.array(flat["labels"], np.int64),
        crowd=np.array(flat["crowd"], np.uint8),
        areas=boxes[:, 2] * boxes[:, 3],  # sizes are not drawn for
        num_classes=len(found["classes"]),
    )


def _shown(found: Mapping[str, Any]) -> Detections:
    images = found["images"]
    return Detections(
        images=np.repeat(np.arange(len(images)), [len(image["scores"]) for image in images]),
        boxes=np.array([box for image in images for box in image["boxes"]], np.float64).reshape(-1, 4),
        classes=np.array([label for image in images for label in image["labels"]], np.int64),
        scores=np.array([score for image in images for score in image["scores"]], np.float64),
    )
