"""Intervals of a run's own evaluations, from what it wrote of them: RUN/predictions/step-N.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paceline._utils.safe_read import read_entry
from paceline.data.rle import RLE
from paceline.models.metrics.bootstrap import (
    Draws,
    Interval,
    confidence_intervals,
    resample_accuracy,
    resample_boxes,
    resample_masks,
)
from paceline.models.metrics.coco import Detections, GroundTruth

MAX_BYTES = 1 << 30  # of a predictions file
# At the end of a run, which should not last: about five seconds with 100 detections a photo.
MAX_PHOTOS, MAX_BYTES_AT_END = 1000, 64 << 20


def read_predictions(file: Path, most_bytes: int = MAX_BYTES) -> dict[str, Any] | None:
    """A predictions file of one of paceline's kinds; None where it is not there, damaged, too large, or of another kind."""
    try:
        result = json.loads(read_entry(file, most_bytes))
        return result if result and result["kind"] in ("classification", "boxes", "instances") else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def final_intervals(file: Path) -> dict[str, Interval]:
    """Of the metrics of boxes, or the share of right photos, and of masks; {} where photos are many or the file cannot be read."""
    try:
        if file.stat().st_size > MAX_BYTES_AT_END:
            return {}
    except OSError:
        return {}
    result = read_predictions(file, MAX_BYTES_AT_END)
    if result is None or len(result["images"]) > MAX_PHOTOS:
        return {}
    kinds: tuple[Literal["box", "mask"], ...] = ("box", "mask") if result["kind"] == "instances" else ("box",)
    try:
        return {name: ends for kind in kinds for name, ends in confidence_intervals(resample_stored(result, kind)).items()}
    except (KeyError, TypeError, ValueError, IndexError):
        # A user's own workload may have other fields: no reason to fail a run.
        return {}


def metric_type(metric: str) -> Literal["box", "mask"]:
    """Which draws have the metric; of classes either."""
    return "mask" if metric.startswith("mask_") else "box"


def resample_stored(result: Mapping[str, Any], kind: Literal["box", "mask"]) -> Draws:
    """The draws of a predictions file, in whose boxes a pixel has two decimals and an image the best 100 of all classes together.

    kind   which of a run with masks are drawn; none of both where classes alone were predicted
    """
    images = result["images"]
    if result["kind"] == "classification":
        best = [[answer["class"] for answer in image["top5"]] for image in images]
        labels = [image["label"] for image in images]
        return resample_accuracy(
            {f"top{k}": np.array([label in some[:k] for label, some in zip(labels, best)]) for k in (1, 5)}
        )
    truth, shown = stored_objects(result)
    if kind == "box":
        return resample_boxes(truth, shown)
    wanted, masks = (
        [mask or "" for image in images for mask in part(image)["masks"]] for part in (lambda i: i["truth"], lambda i: i)
    )
    known = np.array([bool(mask) for mask in wanted], bool)
    crowd = np.where(known, truth.crowd, 1).astype(np.uint8)
    strings = [RLE.of([mask.encode("ascii") for mask in some]) for some in (wanted, masks)]
    return resample_masks(GroundTruth(**{**vars(truth), "crowd": crowd}), strings[0], shown, strings[1])


def stored_objects(result: Mapping[str, Any]) -> tuple[GroundTruth, Detections]:
    """The objects and the detections of a detector's predictions file, photo by photo."""
    images = result["images"]
    boxes = np.array([box for image in images for box in image["truth"]["boxes"]], np.float64).reshape(-1, 4)
    flat = {name: [one for image in images for one in image["truth"][name]] for name in ("labels", "crowd")}
    truth = GroundTruth(
        image_ids=np.array([image["image_id"] for image in images], np.int64),
        heights=np.array([image["height"] for image in images], np.int64),
        widths=np.array([image["width"] for image in images], np.int64),
        starts=np.cumsum([0, *(len(image["truth"]["labels"]) for image in images)]),
        boxes=boxes,
        classes=np.array(flat["labels"], np.int64),
        crowd=np.array(flat["crowd"], np.uint8),
        areas=boxes[:, 2] * boxes[:, 3],  # sizes are not drawn for
        num_classes=len(result["classes"]),
    )
    detections = Detections(
        images=np.repeat(np.arange(len(images)), [len(image["scores"]) for image in images]),
        boxes=np.array([box for image in images for box in image["boxes"]], np.float64).reshape(-1, 4),
        classes=np.array([label for image in images for label in image["labels"]], np.int64),
        scores=np.array([score for image in images for score in image["scores"]], np.float64),
    )
    return truth, detections
