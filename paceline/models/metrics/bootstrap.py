"""Where a score would lie on other photos of the same kind: 95 percent intervals by bootstrap over the photos.

A draw takes as many photos as were scored, each any number of times, and counts the matches that are known; the interval has 2.5
percent of the draws' scores on either side (Efron 1979). It knows nothing of another training run's luck, nor of photos unlike
these. Two models scored on the same photos get the same draws, so that their difference has an interval as well (`paired_difference`).
Equal scores within a photo that is drawn several times count as one step. hotcoco's own `compare` counts a photo once that was drawn
twice, which makes its intervals a fifth too narrow (1.3).

Letters: N photos   D detections of a class, best first   T = 10 IoU thresholds   K classes, 1..K   B draws   H hits
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from paceline._utils.safe_read import read_entry
from paceline.data.rle import RLE, gather_rows
from paceline.models.metrics.coco import (
    IOU_50,
    IOU_75,
    RECALL_POINTS,
    Detections,
    GroundTruth,
    match_with_hotcoco,
    rank_image_ids,
    select_images,
)

SHARE = 0.95
# Draws, and those of more detections than this.
DRAWS, FEWER, MANY = 1000, 200, 100_000
# Photos that are matched at once: a scorer's answers are Python lists, a kilobyte for each class of a photo.
CHUNK = 250
# Numbers of draws times detections in one array.
BLOCK = 1 << 22
POINTS = np.linspace(0, 1, RECALL_POINTS)  # of recall, as pycocotools has them
Draws = Mapping[str, np.ndarray]  # a metric's name -> (B,) its value in each draw; nan where a draw has no object
Interval = tuple[float, float]


class MatchedClass(NamedTuple):
    """One class of all photos, as far as scoring goes."""

    photos: np.ndarray  # (D,) int64, rows of the truth
    hit: np.ndarray  # (T, D) bool: has found an object
    counted: np.ndarray  # (T, D) bool: a hit, or wrong; else it lies on a crowd
    objects: np.ndarray  # (N,) to be found


def confidence_intervals(draws: Draws) -> dict[str, Interval]:
    """The ends that hold SHARE of the draws, for each metric that any draw has."""
    tails = (1 - SHARE) / 2, (1 + SHARE) / 2
    known = {name: values[~np.isnan(values)] for name, values in draws.items()}
    return {
        name: (float(low), float(high))
        for name, values in known.items()
        if len(values)
        for low, high in [np.quantile(values, tails)]
    }


def paired_difference(one: Draws, other: Draws) -> dict[str, Interval]:
    """Of `other` minus `one`, drawn with the same seed from the same photos in the same order."""
    return confidence_intervals({name: other[name] - one[name] for name in one if name in other})


def resample_accuracy(right: Mapping[str, np.ndarray], seed: int = 0) -> Draws:
    """Shares of photos: a metric's name -> (N,) bool, whether a photo is right by it. No photos, no draws."""
    count = min(map(len, right.values()), default=0)
    if not count:
        return {}
    weights = _weights(count, DRAWS, seed)
    return {name: weights @ photos.astype(np.float32) / count for name, photos in right.items()}


def resample_boxes(truth: GroundTruth, detections: Detections, seed: int = 0) -> Draws:
    """box_ap, box_ap50, box_ap75 and box_ar100 of each draw. Raises ValueError as `score_boxes` does."""
    return _draws("box", truth, _each_class(truth, detections), seed)


def resample_masks(truth: GroundTruth, wanted: RLE, detections: Detections, masks: RLE, seed: int = 0) -> Draws:
    """mask_ap, mask_ap50, mask_ap75 and mask_ar100 of each draw; arguments and errors are those of `score_masks`."""
    return _draws("mask", truth, _each_class(truth, detections, wanted, masks), seed)


def _each_class(truth: GroundTruth, detections: Detections, *masks: RLE) -> list[MatchedClass]:
    """-> K of them."""
    photos, thresholds = len(truth.image_ids), 10
    parts: defaultdict[int, list[tuple[np.ndarray, ...]]] = defaultdict(list)
    objects = np.zeros((truth.num_classes + 1, photos), np.int64)
    for row, entry in _entries(truth, detections, masks):
        k = entry["category_id"]
        objects[k, row] = sum(not ignored for ignored in entry["gtIgnore"])
        if entry["dtScores"]:
            scores = np.array(entry["dtScores"])
            hit, ignored = (np.array(entry[name], bool) for name in ("dtMatched", "dtIgnore"))
            parts[k].append((np.full(len(scores), row), scores, (hit & ~ignored).T, ~ignored.T))
    result, positions = [], rank_image_ids(truth)
    for k in range(1, truth.num_classes + 1):
        none = np.zeros(0, np.int64), np.zeros(0), *(np.zeros((0, thresholds), bool),) * 2
        rows, scores, hit, counted = (np.concatenate(column) for column in zip(none, *parts[k]))
        # Best first; of equal scores those of the photo with the lower id, as the scorer has them.
        order = np.lexsort((np.arange(len(rows)), positions[rows], -scores))
        result.append(MatchedClass(rows[order], hit[order].T, counted[order].T, objects[k]))
    return result


def _entries(truth: GroundTruth, detections: Detections, masks: Sequence[RLE]) -> Iterator[tuple[int, dict[str, Any]]]:
    """A row of the truth and what the scorer has matched of one class there, over all areas."""
    order = np.argsort(detections.images, kind="stable")
    starts = np.searchsorted(detections.images[order], np.arange(len(truth.image_ids) + 1))
    for first in range(0, len(truth.image_ids), CHUNK):
        numbers = np.arange(first, min(first + CHUNK, len(truth.image_ids)))
        rows = order[starts[numbers[0]] : starts[numbers[-1] + 1]]
        mine = Detections(
            detections.images[rows] - first, detections.boxes[rows], detections.classes[rows], detections.scores[rows]
        )
        part = select_images(truth, numbers)
        by_place = np.argsort(rank_image_ids(part))
        both = [of.take(some) for of, some in zip(masks, (gather_rows(truth.starts, numbers), rows))]
        for entry in match_with_hotcoco(part, mine, *both).eval_imgs:
            if entry and entry["aRng"][0] == 0 and entry["aRng"][1] > 1e9:
                yield first + int(by_place[entry["image_id"]]), entry


def _draws(kind: str, truth: GroundTruth, classes: list[MatchedClass], seed: int) -> Draws:
    if not len(truth.classes):
        return {}
    draws = DRAWS if sum(len(one.photos) for one in classes) <= MANY else FEWER
    weights = _weights(len(truth.image_ids), draws, seed)
    precision, recall = (np.stack(column) for column in zip(*(_drawn(one, weights) for one in classes)))  # (K, T, B)
    with np.errstate(invalid="ignore"):
        here = ~np.isnan(precision[:, 0])  # (K, B)
        total = np.maximum(here.sum(axis=0), 1)
        each = {name: np.nansum(values, axis=0) / total for name, values in (("ap", precision), ("ar", recall))}  # (T, B)
    result = {
        "ap": each["ap"].mean(axis=0),
        "ap50": each["ap"][IOU_50],
        "ap75": each["ap"][IOU_75],
        "ar100": each["ar"].mean(axis=0),
    }
    return {f"{kind}_{name}": np.where(here.any(axis=0), values, np.nan) for name, values in result.items()}


def _drawn(one: MatchedClass, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """-> average precision and last recall, (T, B) each; nan where a draw has no object of the class."""
    block = max(1, BLOCK // max(1, len(one.photos)))
    parts = [_block(one, weights[first : first + block]) for first in range(0, len(weights), block)]
    precision, recall = (np.concatenate(column, axis=1) for column in zip(*parts))
    return precision, recall


def _block(one: MatchedClass, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    objects = weights @ one.objects.astype(np.float32)  # (B,)
    drawn = weights[:, one.photos]  # (B, D)
    results = np.zeros((2, len(one.hit), len(weights)))
    shown = np.cumsum(drawn, axis=1) if one.counted.all() else None
    for index, (hit, counted) in enumerate(zip(one.hit, one.counted)):
        if not hit.any():
            continue
        # Precision is highest right after a hit, so that the H hits are enough.
        upto = (np.cumsum(drawn * counted, axis=1) if shown is None else shown)[:, hit]
        hits = np.cumsum(drawn[:, hit], axis=1)
        precision = np.maximum.accumulate((hits / np.maximum(upto, 1))[:, ::-1], axis=1)[:, ::-1]
        recall = hits / np.maximum(objects, 1)[:, None].astype(np.float64)
        # Each recall point takes the precision of the first hit that reaches it: how many are reached with each hit.
        new = np.diff(np.searchsorted(POINTS, recall, side="right"), axis=1, prepend=0)
        results[0, index] = (precision * new).sum(axis=1) / RECALL_POINTS
        results[1, index] = recall[:, -1]
    results[:, :, objects == 0] = np.nan
    return results[0], results[1]


def _weights(photos: int, draws: int, seed: int) -> np.ndarray:
    """(B, N) float32, how often each photo is drawn; a row sums to N."""
    random = np.random.default_rng(seed)
    return np.stack([np.bincount(random.integers(0, photos, photos), minlength=photos) for _ in range(draws)]).astype(
        np.float32
    )


# Intervals of a run's own evaluations, from what it wrote of them: RUN/predictions/step-N.json.

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
    ids = [image["image_id"] for image in images]
    truth, shown = stored_truth(images, ids, len(result["classes"])), stored_detections(images)
    if kind == "box":
        return resample_boxes(truth, shown)
    wanted, masks = (
        [mask or "" for image in images for mask in part(image)["masks"]] for part in (lambda i: i["truth"], lambda i: i)
    )
    known = np.array([bool(mask) for mask in wanted], bool)
    crowd = np.where(known, truth.crowd, 1).astype(np.uint8)
    strings = [RLE.of([mask.encode("ascii") for mask in some]) for some in (wanted, masks)]
    return resample_masks(replace(truth, crowd=crowd), strings[0], shown, strings[1])


def stored_truth(images: Sequence[Mapping[str, Any]], ids: Sequence[int], classes: int) -> GroundTruth:
    """The objects of a predictions file's images. ids: of the images; classes: K."""
    boxes = np.array([box for image in images for box in image["truth"]["boxes"]], np.float64).reshape(-1, 4)
    flat = {name: [one for image in images for one in image["truth"][name]] for name in ("labels", "crowd")}
    return GroundTruth(
        image_ids=np.array(ids, np.int64),
        heights=np.array([image["height"] for image in images], np.int64),
        widths=np.array([image["width"] for image in images], np.int64),
        starts=np.cumsum([0, *(len(image["truth"]["labels"]) for image in images)]),
        boxes=boxes,
        classes=np.array(flat["labels"], np.int64),
        crowd=np.array(flat["crowd"], np.uint8),
        areas=boxes[:, 2] * boxes[:, 3],  # sizes are not drawn for
        num_classes=classes,
    )


def stored_detections(images: Sequence[Mapping[str, Any]]) -> Detections:
    """The detections of a predictions file's images, best first in each."""
    return Detections(
        images=np.repeat(np.arange(len(images)), [len(image["scores"]) for image in images]),
        boxes=np.array([box for image in images for box in image["boxes"]], np.float64).reshape(-1, 4),
        classes=np.array([label for image in images for label in image["labels"]], np.int64),
        scores=np.array([score for image in images for score in image["scores"]], np.float64),
    )
