"""The part of the report that shows predictions: photos, tables and charts of the newest predictions file, whatever the task.

A detector's file (see detection_results.py) also has scores; -1 stands for a value that does not exist, as in COCO's own numbers:
    {"per_class": [{"name", "ap", "ap50", "ar100", "objects"}, ...],
     "curves": {"iou": 0.5, "recall": [101 values], "classes": {name: [101 precisions]}, "mean": [101 precisions]}}
Of kind "instances" a class also has "mask_ap" and "mask_ap50", and "mask_curves" stands beside "curves".
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.formatting import format_metric
from paceline._utils.safe_read import parse_json, read_entry
from paceline.config.resnet import Exif
from paceline.config.run import RunRecord
from paceline.data.index.splits import format_fold, format_half
from paceline.inference.drawing.rendering import find_listed_images
from paceline.models.metrics.coco import Detections
from paceline.models.metrics.detection_errors import (
    RIGHT,
    SHOWN_SCORE,
    UNCOUNTED,
    ErrorKinds,
    classify_errors,
    confusion_matrix,
    counts_at_thresholds,
    error_costs,
)
from paceline.models.registry import WORKLOADS
from paceline.models.workload import WorkloadSpec
from paceline.tools.report.classification_results import (
    ImageClassification,
    add_images,
    class_accuracies,
    count_classes,
    read_answers,
    select_right,
    select_wrong,
)
from paceline.tools.report.curves import COLUMNS, class_table, draw_curves, read_curves, reliability_chart, threshold_chart
from paceline.tools.report.detection_results import (
    ImageComparison,
    ScoredPredictions,
    add_rendered_images,
    find_best_threshold,
    read_detections,
    render_comparison,
    select_worst_and_best,
)
from paceline.tools.report.gallery import MAX_OF_A_KIND, WORDS, error_tiles, format_confusion_matrix, list_mistakes
from paceline.training.logging.events import get_metrics

# Of a predictions file: five thousand images with a hundred masks each have a tenth.
MAX_BYTES = 1 << 30
MAX_WORST, MAX_BEST = 8, 4  # whole photos
MAX_RIGHT = 12  # a classifier's tiles
MAX_WRONG = 48
MAX_MISTAKES = 12  # rows of a table of confusions
MAX_IN_MATRIX = 16  # classes of a confusion matrix that fits on the page
MAX_IN_HALF = 5  # and of one that fits beside another card
T = TypeVar("T", ImageClassification, ImageComparison)
# COCO's sizes of objects, by annotated area.
SIZES = (("small", "under 32 x 32"), ("medium", "32 x 32 to 96 x 96"), ("large", "over 96 x 96"))


def predictions_section(
    run: Path,
    workload: WorkloadSpec,
    data: Mapping[str, Any],
    evaluated: Sequence[Mapping[str, Any]],
    notes: list[str],
    *,
    exif: Exif,
) -> dict[str, Any] | None:
    """The template's values for the newest predictions; None where there are none that can be shown.

    data       run.json's part on the data set
    evaluated  the run's eval events
    notes      where damage is named; the page goes without photos then
    exif       how the run took photos that lie turned
    """
    files = sorted((run / "predictions").glob("step-*.json"))
    if not files:
        return None
    try:
        with _damage():
            predictions, hidden = _read(files[-1], run, data)
            step = int(predictions["step"])
        if hidden:
            notes.append(
                f"predictions/{files[-1].name}: {hidden:,} of its images are not shown, because the dataset index does not list them "
                "or was moved"
            )
        metrics = next((get_metrics(event) for event in reversed(evaluated) if event["step"] == step), {})
        heads, sizes = size_table(metrics)
        section = workload.reporting.section(predictions, Path(), exif)
        if section is None:
            section = (detection_section if workload.finds_objects else classification_section)(predictions, Path(), exif)
        fold, half = format_fold(predictions.get("fold")), format_half(predictions.get("half"))
        photos = f"training images, {fold}," if fold else f"validation images, {half}," if half else "validation images"
        return {
            "template": workload.reporting.template,
            "step": step,
            "photos": photos,
            "size_heads": heads,
            "sizes": sizes,
            **section,
        }
    except DataError as error:
        notes.append(f"predictions/{files[-1].name}: cannot be read ({error}). No images are shown.")
    except Exception as error:
        if workload in WORKLOADS.values():
            raise
        what = f"{type(error).__name__}: {error}"
        notes.append(f"predictions/{files[-1].name}: the report section of the task failed ({what}). No images are shown.")
    return None


def pick_one_image(run: Path, workload: WorkloadSpec, facts: RunRecord, wanted: Collection[str]) -> tuple[str, str, str]:
    """-> a photo of the newest predictions (file, a small picture, words): one of `wanted`, else of middling quality; "" for none."""
    try:
        with _damage():
            predictions, _ = _read(sorted((run / "predictions").glob("step-*.json"))[-1], run, facts.data)
            exif: Exif = facts.recipe.get("input", {}).get("exif", "ignore")
            if not workload.finds_objects:
                answers = sorted(read_answers(predictions, Path()), key=lambda answer: answer.answers[0][1])
                answer = _middle(answers, wanted)
                words = f"{answer.truth}, predicted {answer.best}" if not answer.right else answer.truth
                return answer.file, add_images([answer], exif)[0][1], words
            result = read_detections(predictions, Path())
            best = find_best_threshold(predictions, result)
            scenes = [one for one in result.scenes(best.threshold if best else SHOWN_SCORE) if one.quality is not None]
            scene = _middle(sorted(scenes, key=lambda one: one.quality or 0.0), wanted)
            names = [str(name) for name in predictions["classes"]]
            words = "{} of {} objects found, {} false positives".format(*scene.counts)
            return scene.file, render_comparison(scene, names, exif, small=True), words
    except DataError:  # the run's own report names what is wrong with its predictions
        return "", "", ""


def _middle(photos: Sequence[T], wanted: Collection[str]) -> T:
    """Raises IndexError where there is none."""
    return next((one for one in photos if one.file in wanted), photos[len(photos) // 2])


def _read(file: Path, run: Path, data: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """A predictions file, in which each photo that may be shown has its absolute path, and any other its name; -> how many others."""
    predictions = parse_json(read_entry(file, MAX_BYTES))
    images = predictions["images"]
    known = find_listed_images(
        {str(image["file"]) for image in images}, run, str(data.get("root", "")), str(data.get("manifest", ""))
    )
    for image in images:
        image["file"] = known.get(str(image["file"]), os.path.basename(str(image["file"])))
    return predictions, sum(not os.path.isabs(image["file"]) for image in images)


@contextmanager
def _damage() -> Iterator[None]:
    """Turn what damaged JSON makes Python raise into a DataError; for the reading of a predictions file alone."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(f"{type(error).__name__}: {error}") from error


def classification_section(predictions: Mapping[str, Any], data: Path, exif: Exif) -> dict[str, Any]:
    """The section of a classifier. Raises DataError for damaged predictions."""
    with _damage():
        names = [str(name) for name in predictions["classes"]]
        answers = read_answers(predictions, data)
        counts = count_classes(answers, len(names))
    scores = np.array([answer.answers[0][1] for answer in answers])
    right = np.array([answer.right for answer in answers], bool)
    tiles = [*select_wrong(answers, MAX_WRONG), *select_right(answers, MAX_RIGHT)]
    calibration = reliability_chart(scores, right, "images")
    return {
        "images": len(answers),
        "names": names,
        "tiles": add_images(tiles, exif),
        "wrong": int((~right).sum()),
        "classes": class_accuracies(answers),
        "mistakes": list_mistakes(counts, names, MAX_MISTAKES),
        "matrix": format_confusion_matrix(counts, names, background=False) if len(names) <= MAX_IN_MATRIX else [],
        "charts": [calibration] if calibration else [],
    }


def detection_section(predictions: Mapping[str, Any], data: Path, exif: Exif) -> dict[str, Any]:
    """The section of a detector, with masks where it found some. Raises DataError for damaged predictions."""
    with _damage():
        names = [str(name) for name in predictions["classes"]]
        masks = predictions["kind"] == "instances"
        result = read_detections(predictions, data)
        best = find_best_threshold(predictions, result)
        rows = class_table(predictions)
        curves = [read_curves(predictions, "box"), read_curves(predictions, "mask")]
        pairs = result.mask_pairs() if masks else None
    columns = [column for column in COLUMNS if any(column[2] in row for row in rows)]
    shown = best.threshold if best else SHOWN_SCORE
    scenes = result.scenes(shown)
    worst, good = select_worst_and_best(scenes, MAX_WORST, MAX_BEST)
    counts = confusion_matrix(result.truth, result.boxes, score=shown)
    mask_overlaps = [overlap for scene in scenes for overlap in scene.mask_overlaps.tolist()]
    errors = classify_errors(result.truth, result.boxes)
    sure = replace(
        result, boxes=Detections(*(column[result.boxes.scores >= shown] for column in vars(result.boxes).values()))
    )
    at_score = classify_errors(sure.truth, sure.boxes)
    objects = int((result.truth.crowd == 0).sum())
    counted = errors.kinds != UNCOUNTED
    scores, right = result.boxes.scores[counted], errors.kinds[counted] == RIGHT
    drawn = [
        threshold_chart(counts_at_thresholds(scores, right, objects), best),
        *map(draw_curves, curves),
        reliability_chart(scores, right, "boxes", shown),
    ]
    return {
        "images": len(scenes),
        "shown": shown,
        "best": best,
        "masks": masks,
        "mask_iou": sum(mask_overlaps) / len(mask_overlaps) if mask_overlaps else None,
        "groups": [("Worst", add_rendered_images(worst, names, exif)), ("Best", add_rendered_images(good, names, exif))],
        "classes": rows,
        "columns": columns,
        "column_groups": [(group, len(list(same))) for group, same in groupby(column[0] for column in columns)],
        "absent": len(names) - len(rows),
        "names": names,
        "objects": objects,
        "right": int((at_score.kinds == RIGHT).sum()),
        "errors": error_table(result, errors, at_score, pairs),
        "tiles": error_tiles(sure, at_score, names, exif),
        "kinds": list(WORDS.items()),
        "most_of_a_kind": MAX_OF_A_KIND,
        "mistakes": list_mistakes(counts, names, MAX_MISTAKES),
        "matrix": format_confusion_matrix(counts, names) if len(names) <= MAX_IN_MATRIX else [],
        "matrix_wide": len(names) > MAX_IN_HALF,
        "charts": [chart for chart in drawn if chart is not None],
    }


def error_table(
    result: ScoredPredictions, errors: ErrorKinds, at_score: ErrorKinds, pairs: Any
) -> list[tuple[str, str, int, list[float]]]:
    """(kind, its words, how many of them at the report's score, the AP50 that they cost: of boxes, and with pairs of masks)."""
    gains = [error_costs(result.truth, result.boxes, errors)[1]]
    if pairs is not None:
        truth = result.truth
        known = np.array([mask is not None for mask in result.truth_masks], bool)
        truth = replace(truth, crowd=np.where(known, truth.crowd, 1).astype(np.uint8))
        gains.append(error_costs(truth, result.boxes, classify_errors(truth, result.boxes, pairs))[1])
    counts = at_score.counts()
    rows = [(kind, words, counts[kind], [gain[kind] for gain in gains]) for kind, words in WORDS.items()]
    return sorted(rows, key=lambda row: -row[3][-1])


def size_table(metrics: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, str, list[str]]]]:
    """Heads, and for each size of object (size, area in pixels, values), of one evaluation's metrics; no rows without any."""
    kinds = [
        (f"{what} {kind.upper()}", f"{what}_{kind}")
        for kind in ("ap", "ar")
        for what in ("box", "mask")
        if f"{what}_{kind}_small" in metrics
    ]
    rows = [
        (size, area, [format_metric(f"{name}_{size}", metrics[f"{name}_{size}"]) for _, name in kinds])
        for size, area in SIZES
    ]
    return [head for head, _ in kinds], rows if kinds else []
