"""Runs of detectors as training leaves them, made up: a few photos, boxes alone or masks too, an evaluation every 20 steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from html_pages import Page, read_page
from listed_photos import list_photos
from PIL import Image
from pycocotools import mask as coco_mask

from paceline.models.metrics.detection_errors import SHOWN_SCORE
from paceline.tools.report.detection_results import ImageComparison, find_best_threshold, read_detections
from paceline.tools.report.run_report import write_report
from paceline.training.logging.events import EventLog

NAMES = ["cat", "dog", "<script>alert('class')</script>"]
TWELVE = (
    *("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large"),
    *("ar1", "ar10", "ar100", "ar_small", "ar_medium", "ar_large"),
)
WIDTH, HEIGHT = 100, 80
HERE, THERE = (10, 10, 20, 20), (60, 10, 20, 20)


def counts(box: tuple[int, int, int, int], share: float = 1.0) -> str:
    """Run lengths of the left `share` of a box."""
    left, top, width, height = box
    mask = np.zeros((HEIGHT, WIDTH), np.uint8, order="F")
    mask[top : top + height, left : left + round(share * width)] = 1
    return coco_mask.encode(mask)["counts"].decode()


def image_of(index: int, found: Sequence[tuple], truth: Sequence[tuple], *, masks: bool = False) -> dict[str, Any]:
    """One image of a predictions file.

    found  (box, label, score, share of the box that its mask covers), best first
    truth  (box, label, crowd); masks cover the boxes
    """
    image = {
        **{"index": index, "image_id": 10 + index, "file": f"val/{index}.jpg", "width": WIDTH, "height": HEIGHT},
        **{name: [one[place] for one in found] for place, name in enumerate(("boxes", "labels", "scores"))},
        "truth": {name: [one[place] for one in truth] for place, name in enumerate(("boxes", "labels", "crowd"))},
    }
    if masks:
        image["masks"] = [counts(one[0], one[3]) for one in found]
        image["truth"]["masks"] = [counts(one[0]) for one in truth]
    return image


def predictions_of(images: Sequence[Mapping[str, Any]], *, masks: bool = False) -> dict[str, Any]:
    """A predictions file in which no dog is annotated."""
    curve = [1 - place / 200 for place in range(101)]
    curves = {
        **{"iou": 0.5, "recall": [place / 100 for place in range(101)], "mean": curve},
        "classes": {"cat": curve, "dog": [-1.0] * 101, NAMES[2]: curve},
    }
    rows = [
        {"name": "cat", "ap": 0.5, "ap50": 0.75, "ar100": 0.6, "objects": 6},
        {"name": "dog", "ap": -1.0, "ap50": -1.0, "ar100": -1.0, "objects": 0},
        {"name": NAMES[2], "ap": 0.25, "ap50": 0.5, "ar100": 0.3, "objects": 2},
    ]
    content = {
        **{"step": 60, "kind": "instances" if masks else "boxes", "classes": NAMES, "images": images},
        **{"category_ids": [1, 5, 9], "per_class": rows, "curves": curves},
    }
    if masks:
        for row, values in zip(rows, ((0.125, 0.25), (-1.0, -1.0), (0.5, 0.875))):
            row["mask_ap"], row["mask_ap50"] = values
        content["mask_curves"] = curves
    return content


def write_predictions(run: Path, content: Mapping[str, Any]) -> None:
    """RUN/predictions/step-N.json."""
    (run / "predictions").mkdir(exist_ok=True)
    (run / "predictions" / f"step-{content.get('step') or 60:06d}.json").write_text(json.dumps(content))


def make_run(
    folder: Path,
    task: str,
    targets: Mapping[str, float],
    values: Callable[[int], Mapping[str, float]],
    images: Sequence[Mapping[str, Any]],
) -> Path:
    """FOLDER/run, which reached its targets at step 60 at the latest, and photos in FOLDER/data.

    values  of a step's evaluation
    images  of its predictions, as of `image_of`
    """
    run, data = folder / "run", folder / "data"
    run.mkdir()
    (data / "val").mkdir(parents=True)
    names = {"ssd": "detection", "maskrcnn": "instance-segmentation"}
    recipe = {"task": names.get(task, task), "global_batch_size": 8, "target": list(targets.items())}
    parts = {"system": {"device": "cpu"}, "plan": {"total_steps": 60}, "options": {}, "data": {"root": str(data)}}
    (run / "run.json").write_text(
        json.dumps({"format": 1, "name": f"{task}-demo", "world_size": 1, "recipe": recipe, **parts})
    )
    log = EventLog(run / "events.jsonl")
    for step in (20, 40, 60):
        when = {"step": step, "epoch": step / 20, "seconds": float(step)}
        log.write("train", **when, loss=4 / step, lr=0.1, images_per_second=5.0, data_wait=0.0, samples=step)
        log.write("eval", **when, images=len(images), eval_seconds=0.5, **values(step))
    log.write("end", step=60, epoch=3.0, seconds=60.0, status="success", best={})
    for image in images:
        Image.new("RGB", (WIDTH, HEIGHT), (60 * image["index"], 90, 90)).save(data / image["file"])
    list_photos(data, [image["file"] for image in images])
    write_predictions(run, predictions_of(images, masks="masks" in images[0]))
    return run


def scenes_of(content: Mapping[str, Any], root: Path) -> list[ImageComparison]:
    """The scenes of a predictions file, from the score on that the report chooses, or 0.3."""
    found = read_detections(content, root)
    best = find_best_threshold(content, found)
    return found.scenes(best.threshold if best else SHOWN_SCORE)


def report_of(run: Path) -> Page:
    """RUN/report.html, written and read."""
    path = write_report(run)
    assert path == run / "report.html"
    return read_page(path.read_text(encoding="utf-8"))
