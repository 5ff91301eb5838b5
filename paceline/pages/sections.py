"""The part of the page that shows predictions: photos and tables of the newest predictions file, whatever the task."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.config.classification import Exif
from paceline.config.errors import DataError
from paceline.config.plain_file import parse, read_entry
from paceline.log.events import metrics_of
from paceline.pages.classified import (
    class_accuracies,
    confidently_wrong,
    confusions,
    read_answers,
    right_of_each_class,
    with_photos,
)
from paceline.pages.detected import confusion_matrix, count_confusions, mistakes, read_scenes, worst_and_best
from paceline.pages.scene_pictures import with_pictures
from paceline.pages.scored import class_table, draw_curves, read_curves, size_table
from paceline.pages.stored_photo import listed
from paceline.tasks.metrics.confusion import BACKGROUND
from paceline.tasks.workload import Workload
from paceline.tasks.workloads import WORKLOADS

# Of a predictions file: five thousand images with a hundred masks each have a tenth.
MOST_BYTES = 1 << 30
MOST_PHOTOS = 12  # of each kind: right and wrong, worst and best
MOST_ROWS = 15  # of a classifier's tables of classes and of confusions
MOST_BESIDE = 12  # of a detector's table of classes that leaves room for a chart below it
MOST_MISTAKES = 10  # of a detector's table of confusions
MOST_IN_MATRIX = 12  # classes of a confusion matrix that fits on the page
MOST_IN_HALF = 5  # and of one that fits beside another card


def predictions_section(
    run: Path,
    workload: Workload,
    data: Mapping[str, Any],
    evaluated: Sequence[Mapping[str, Any]],
    notes: list[str],
    *,
    exif: Exif,
) -> dict[str, Any] | None:
    """What the page's template draws of the newest predictions; None where there are none that can be shown.

    data       what run.json says of the data set
    evaluated  the run's eval events
    notes      where damage is named; the page goes without photos then
    exif       how the run took photos that lie turned
    """
    files = sorted((run / "predictions").glob("step-*.json"))
    if not files:
        return None
    try:
        with _damage():
            predictions = parse(read_entry(files[-1], MOST_BYTES))
            step = int(predictions["step"])
            hidden = _name_paths(predictions, run, data)
        if hidden:
            notes.append(
                f"predictions/{files[-1].name}: {hidden:,} of its photos are not shown: the data set's index does not list them, "
                "or is not where it was"
            )
        metrics = next((metrics_of(event) for event in reversed(evaluated) if event["step"] == step), {})
        heads, sizes = size_table(metrics)
        section = workload.section(predictions, Path(), exif)
        if section is None:
            section = (detected_section if workload.finds_objects else classified_section)(predictions, Path(), exif)
        return {"template": workload.template, "step": step, "size_heads": heads, "sizes": sizes, **section}
    except DataError as error:
        notes.append(f"predictions/{files[-1].name} cannot be read ({error}): no photos are shown.")
    except Exception as error:
        if workload in WORKLOADS.values():
            raise
        what = f"{type(error).__name__}: {error}"
        notes.append(f"predictions/{files[-1].name}: the workload's own section failed ({what}): no photos are shown.")
    return None


def _name_paths(predictions: dict[str, Any], run: Path, data: Mapping[str, Any]) -> int:
    """Give each photo that may be shown its absolute path, and any other a name alone; -> how many others there are."""
    images = predictions["images"]
    known = listed(
        {str(image["file"]) for image in images}, run, str(data.get("root", "")), str(data.get("manifest", ""))
    )
    for image in images:
        image["file"] = known.get(str(image["file"]), os.path.basename(str(image["file"])))
    return sum(not os.path.isabs(image["file"]) for image in images)


@contextmanager
def _damage() -> Iterator[None]:
    """Around the reading of a predictions file, and nothing else: what damaged JSON makes Python raise is a DataError."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(f"{type(error).__name__}: {error}") from error


def classified_section(predictions: Mapping[str, Any], data: Path, exif: Exif) -> dict[str, Any]:
    """Of a classifier. Raises DataError for damaged predictions."""
    with _damage():
        answers = read_answers(predictions, data)
    accuracies = class_accuracies(answers)
    return {
        "images": len(answers),
        "groups": [
            ("Confidently wrong", with_photos(confidently_wrong(answers, MOST_PHOTOS), exif)),
            ("Right", with_photos(right_of_each_class(answers, MOST_PHOTOS), exif)),
        ],
        "num_classes": len(accuracies),
        "classes": accuracies[:MOST_ROWS],
        "confusions": confusions(answers, MOST_ROWS),
        "charts": [],
    }


def detected_section(predictions: Mapping[str, Any], data: Path, exif: Exif) -> dict[str, Any]:
    """Of a detector, with masks where it found some. Raises DataError for damaged predictions."""
    with _damage():
        names = [str(name) for name in predictions["classes"]]
        masks = predictions["kind"] == "instances"
        scenes = read_scenes(predictions, data)
        rows = class_table(predictions)
        curves = [read_curves(predictions, "box"), read_curves(predictions, "mask")]
    worst, best = worst_and_best(scenes, MOST_PHOTOS)
    counts = count_confusions(scenes, len(names))
    objects, right, missed = int(counts[1:].sum()), int(counts.diagonal().sum()), int(counts[1:, BACKGROUND].sum())
    fates = [
        ("found and named right", right),
        ("taken for another class", objects - right - missed),
        ("missed", missed),
    ]
    return {
        "images": len(scenes),
        "masks": masks,
        "mask_iou": _mean([overlap for scene in scenes for overlap in scene.mask_overlaps.tolist()]),
        "groups": [("Worst", with_pictures(worst, names, exif)), ("Best", with_pictures(best, names, exif))],
        "classes": rows,
        "classes_long": len(rows) > MOST_BESIDE,
        "absent": len(names) - len(rows),
        "names": names,
        "objects": objects,
        "fates": fates if objects else [],
        "invented": int(counts[BACKGROUND].sum()),
        "mistakes": mistakes(counts, names, MOST_MISTAKES),
        "matrix": confusion_matrix(counts, names) if len(names) <= MOST_IN_MATRIX else [],
        "matrix_wide": len(names) > MOST_IN_HALF,
        "charts": [chart for curve in curves if (chart := draw_curves(curve)) is not None],
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
