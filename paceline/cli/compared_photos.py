"""Runs paired by their photos: what they found in the same ones, drawn anew together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.boxes.run_lengths import RunLengths
from paceline.config.plain_file import read_entry
from paceline.tasks.metrics.coco import Detections, GroundTruth
from paceline.tasks.metrics.interval import Draws, accuracy_draws, box_draws, difference, mask_draws

MOST_BYTES = 1 << 30  # of a predictions file


def paired(one: Sequence[Path], other: Sequence[Path], metric: str) -> dict[str, Any]:
    """The interval of the difference, other minus one, over photos, or "why" there is none. Runs of a side are averaged draw by draw.

    The newest predictions of each run count: boxes to 0.01 pixel, and of an image the best 100 of all classes together.
    """
    loaded = [[found for folder in side if (found := _newest(folder)) is not None] for side in (one, other)]
    flat = [found for side in loaded for found in side]
    if not one or not other or len(flat) < len(one) + len(other):
        return {"why": "not every run has predictions that can be read"}
    if len({_photos(found) for found in flat}) > 1:
        return {"why": "they were scored on different photos or labels"}
    draws = [[_draws(found, metric) for found in side] for side in loaded]
    if not all(metric in drawn for side in draws for drawn in side):
        return {"why": f"photos are drawn for other metrics than {metric}"}
    means = [{metric: np.mean([drawn[metric] for drawn in side], axis=0)} for side in draws]
    found = difference(*means)
    if metric not in found:
        return {"why": "no draw has a value"}
    return {"interval": list(found[metric]), "photos": len(flat[0]["images"])}


def _newest(folder: Path) -> dict[str, Any] | None:
    files = sorted((folder / "predictions").glob("step-*.json"))
    try:
        found = json.loads(read_entry(files[-1], MOST_BYTES)) if files else None
        return found if found and found["kind"] in ("classification", "boxes", "instances") else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _photos(found: Mapping[str, Any]) -> str:
    """Equal exactly where photos and labels are, in their order."""
    return json.dumps(
        [found["classes"], *([image["file"], image.get("label", image.get("truth"))] for image in found["images"])]
    )


def _draws(found: Mapping[str, Any], metric: str) -> Draws:
    images = found["images"]
    if found["kind"] == "classification":
        best = [[answer["class"] for answer in image["top5"]] for image in images]
        labels = [image["label"] for image in images]
        return accuracy_draws(
            {f"top{k}": np.array([label in some[:k] for label, some in zip(labels, best)]) for k in (1, 5)}
        )
    truth, shown = _truth(found), _shown(found)
    if not metric.startswith("mask_"):
        return box_draws(truth, shown)
    wanted, masks = (
        [mask or "" for image in images for mask in part(image)["masks"]]
        for part in (lambda i: i["truth"], lambda i: i)
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
