"""`paceline bench eval`: our box scores beside pycocotools and faster-coco-eval on the same synthetic data set, in one run.

Letters: N images   P detections of an image   K classes   M objects (7 an image on average, as in COCO)
Every contender starts from arrays in memory and ends with the twelve numbers. What a peer wants as a list of dicts (the ground truth,
as its JSON file gives it) is made outside the clock; its own loading, indexing and taking in of an (N*P, 7) result array is inside.
A round times every contender once, in turn. The numbers must be equal, to the last bit: each row says whether they are.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from paceline.metrics.coco import Detections, GroundTruth, score_boxes
from paceline.provenance import cpu_name

OBJECTS = 7  # of an image, on average
CROWDS = 0.012  # share of objects that are crowds, as in COCO
NEAR = 0.25  # share of detections that lie near an object, most of the right class; the others are anywhere
EMPTY = 0.01  # share of images without objects, as in COCO's val2017
JITTER = 0.08  # how far off these are, in sides of the object (standard deviation)
SIDE = 500  # pixels
JUDGE = "pycocotools"
PEERS = {JUDGE: ("pycocotools.coco", "pycocotools.cocoeval", "COCOeval"),
         "faster-coco-eval": ("faster_coco_eval", "faster_coco_eval", "COCOeval_faster")}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One contender in one round."""

    contender: str
    round: int
    load_seconds: float  # indexing the ground truth, taking in the detections; 0 where it is part of one call
    score_seconds: float
    seconds: float  # both
    cpu_seconds: float  # of all threads: what a busy machine does not change
    numbers: tuple[float, ...]  # the twelve, in the official order
    equal: bool | None  # to pycocotools' to the last bit; None where it is not installed


def run(images: int, detections_per_image: int, classes: int, repeats: int) -> list[Row]:
    """Time every installed contender `repeats` times, interleaved, after a small warm-up.

    images  N   detections_per_image  P   classes  K
    """
    contenders = installed()
    small = synthetic(20, 10, classes)
    for contender in contenders.values():
        contender(*small)()
    truth, detections = synthetic(images, detections_per_image, classes)
    timed = {name: contender(truth, detections) for name, contender in contenders.items()}
    rows: list[Row] = []
    judged: tuple[float, ...] | None = None
    for turn in range(repeats):
        for name, score in timed.items():
            began = time.process_time()
            load, scored, numbers = score()
            spent = time.process_time() - began
            if name == JUDGE and judged is None:
                judged = numbers
            rows.append(Row(name, turn, load, scored, load + scored, spent, numbers, None))
    return [replace(row, equal=row.numbers == judged) for row in rows] if judged is not None else rows


def facts(rows: Sequence[Row]) -> dict[str, Any]:
    """JSON facts: every row, medians, ratio of each peer's time to ours (median over rounds), machine, versions."""
    names = list(dict.fromkeys(row.contender for row in rows))
    seconds = {name: [row.seconds for row in rows if row.contender == name] for name in names}
    ours = seconds["paceline"]
    packages = ("numpy", "hotcoco", *PEERS)
    return {
        "cpu": cpu_name(),
        "python": platform.python_version(),
        "versions": {name: version for name in packages if (version := _version(name))},
        "median_seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "median_cpu_seconds": {
            name: statistics.median(row.cpu_seconds for row in rows if row.contender == name) for name in names
        },
        "times_faster": {
            name: statistics.median(theirs / own for theirs, own in zip(seconds[name], ours)) for name in names if name != "paceline"
        },
        "equal_to_pycocotools": {name: all(row.equal for row in rows if row.contender == name) for name in names}
        if JUDGE in names
        else None,
        "rows": [asdict(row) for row in rows],
    }  # fmt: skip


def synthetic(images: int, detections_per_image: int, classes: int) -> tuple[GroundTruth, Detections]:
    """A data set like COCO in its counts, the same on every call: objects of all sizes, crowds, empty images."""
    draw = np.random.default_rng(0)
    counts = draw.poisson(OBJECTS, images) * (draw.random(images) >= EMPTY)
    objects = int(counts.sum())
    boxes = _boxes(draw, objects)
    truth = GroundTruth(
        image_ids=draw.permutation(600_000)[:images] if images <= 600_000 else np.arange(images),
        heights=np.full(images, SIDE),
        widths=np.full(images, SIDE),
        starts=np.concatenate([[0], np.cumsum(counts)]),
        boxes=boxes,
        classes=draw.integers(1, classes + 1, objects).astype(np.int32),
        crowd=(draw.random(objects) < CROWDS).astype(np.uint8),
        areas=boxes[:, 2] * boxes[:, 3] * draw.uniform(0.5, 1, objects),
        num_classes=classes,
    )
    total = images * detections_per_image
    owner = np.repeat(np.arange(images), detections_per_image)
    guesses, named = _boxes(draw, total), draw.integers(1, classes + 1, total)
    near = np.flatnonzero((draw.random(total) < NEAR) & (counts[owner] > 0))
    target = truth.starts[owner[near]] + draw.integers(0, counts[owner[near]])
    sides = boxes[target, 2:]
    guesses[near, :2] = boxes[target, :2] + sides * draw.normal(0, JITTER, (len(near), 2))
    guesses[near, 2:] = sides * np.exp(draw.normal(0, JITTER, (len(near), 2)))
    named[near] = np.where(draw.random(len(near)) < 0.9, truth.classes[target], named[near])
    scores = draw.random(total)
    far = np.ones(total, bool)
    far[near] = False
    scores[far] **= 8  # most of what a detector reports is unsure
    return truth, Detections(owner, guesses, named, scores.astype(np.float32))


Score = Callable[[], tuple[float, float, tuple[float, ...]]]  # -> seconds of loading, of scoring, the twelve numbers


def installed() -> dict[str, Callable[[GroundTruth, Detections], Score]]:
    """Ours, and the peers that are installed."""
    found: dict[str, Callable[[GroundTruth, Detections], Score]] = {"paceline": _ours}
    for name in PEERS:
        if importlib.util.find_spec(PEERS[name][0].split(".")[0]):
            found[name] = lambda truth, detections, name=name: _peer(name, truth, detections)
    return found


def _ours(truth: GroundTruth, detections: Detections) -> Score:
    def score() -> tuple[float, float, tuple[float, ...]]:
        began = time.perf_counter()
        numbers = tuple(score_boxes(truth, detections).metrics.values())
        return 0.0, time.perf_counter() - began, numbers

    return score


def _peer(name: str, truth: GroundTruth, detections: Detections) -> Score:
    """What users of pycocotools write; modules are looked up by name, so that none is needed to import or type-check this."""
    index, scorer, kind = PEERS[name]
    coco_class = importlib.import_module(index).COCO
    eval_class = getattr(importlib.import_module(scorer), kind)
    owner = truth.image_ids[np.repeat(np.arange(len(truth.image_ids)), np.diff(truth.starts))].tolist()
    columns = zip(owner, truth.classes.tolist(), truth.boxes.tolist(), truth.areas.tolist(), truth.crowd.tolist())
    dataset = {
        "info": {},
        "images": [{"id": number, "height": SIDE, "width": SIDE} for number in truth.image_ids.tolist()],
        "categories": [{"id": k, "name": str(k)} for k in range(1, truth.num_classes + 1)],
        "annotations": [
            {"id": row + 1, "image_id": image, "category_id": k, "bbox": box, "area": area, "iscrowd": crowd}
            for row, (image, k, box, area, crowd) in enumerate(columns)
        ],
    }
    places = truth.image_ids[detections.images]
    results = np.column_stack([places, detections.boxes, detections.scores, detections.classes])

    def score() -> tuple[float, float, tuple[float, ...]]:
        with contextlib.redirect_stdout(io.StringIO()):
            began = time.perf_counter()
            wanted = coco_class()
            wanted.dataset = dataset
            wanted.createIndex()
            found = wanted.loadRes(results)
            loaded = time.perf_counter()
            scorer = eval_class(wanted, found, "bbox")
            scorer.evaluate()
            scorer.accumulate()
            scorer.summarize()
            ended = time.perf_counter()
        return loaded - began, ended - loaded, tuple(float(number) for number in scorer.stats[:12])

    return score


def _boxes(draw: np.random.Generator, count: int) -> np.ndarray:
    """(count, 4) x, y, width, height: as many small ones as large ones, some beyond the border."""
    sides = np.exp(draw.uniform(np.log(8), np.log(400), (count, 2)))
    return np.concatenate([draw.random((count, 2)) * SIDE * 0.8, sides], axis=1)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
