"""The part of the report that shows predictions: photos, tables and charts of the newest predictions file, whatever the task.

A detector's file (see detected.py) also has scores; -1 stands for a value that does not exist, as in COCO's own numbers:
    {"per_class": [{"name", "ap", "ap50", "ar100", "objects"}, ...],
     "curves": {"iou": 0.5, "recall": [101 values], "classes": {name: [101 precisions]}, "mean": [101 precisions]}}
Of kind "instances" a class also has "mask_ap" and "mask_ap50", and "mask_curves" stands beside "curves".
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from paceline.config.classification import Exif
from paceline.config.errors import DataError
from paceline.config.plain_file import parse, read_entry
from paceline.log.events import metrics_of
from paceline.log.prose import metric_text
from paceline.pages.classified import (
    class_accuracies,
    confidently_wrong,
    confusions,
    read_answers,
    right_of_each_class,
    with_photos,
)
from paceline.pages.detected import (
    best_f1_of,
    confusion_matrix,
    count_confusions,
    mistakes,
    read_scenes,
    with_pictures,
    worst_and_best,
)
from paceline.pages.html import WIDE, Chart, Line, draw_chart
from paceline.pages.stored_photo import listed
from paceline.store.fold import fold_in_words
from paceline.tasks.metrics.confusion import BACKGROUND, SHOWN_SCORE
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
MOST_CURVES = 5  # classes with a curve of their own, beside the mean
# COCO's sizes of objects, by annotated area.
SIZES = (("small", "under 32 x 32"), ("medium", "up to 96 x 96"), ("large", "above"))


def predictions_section(
    run: Path,
    workload: Workload,
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
        fold = fold_in_words(predictions.get("fold"))
        photos = f"training photos, {fold}," if fold else "validation photos"
        return {
            "template": workload.template,
            "step": step,
            "photos": photos,
            "size_heads": heads,
            "sizes": sizes,
            **section,
        }
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
    """Turn what damaged JSON makes Python raise into a DataError; for the reading of a predictions file alone."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(f"{type(error).__name__}: {error}") from error


def classified_section(predictions: Mapping[str, Any], data: Path, exif: Exif) -> dict[str, Any]:
    """The section of a classifier. Raises DataError for damaged predictions."""
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
    """The section of a detector, with masks where it found some. Raises DataError for damaged predictions."""
    with _damage():
        names = [str(name) for name in predictions["classes"]]
        masks = predictions["kind"] == "instances"
        scenes, best = read_scenes(predictions, data), best_f1_of(predictions)
        rows = class_table(predictions)
        curves = [read_curves(predictions, "box"), read_curves(predictions, "mask")]
    worst, good = worst_and_best(scenes, MOST_PHOTOS)
    counts = count_confusions(scenes, len(names))
    mask_overlaps = [overlap for scene in scenes for overlap in scene.mask_overlaps.tolist()]
    objects, right, missed = int(counts[1:].sum()), int(counts.diagonal().sum()), int(counts[1:, BACKGROUND].sum())
    fates = [
        ("found and named right", right),
        ("taken for another class", objects - right - missed),
        ("missed", missed),
    ]
    return {
        "images": len(scenes),
        "shown": best.get("threshold", SHOWN_SCORE),
        "best": best,
        "masks": masks,
        "mask_iou": sum(mask_overlaps) / len(mask_overlaps) if mask_overlaps else None,
        "groups": [("Worst", with_pictures(worst, names, exif)), ("Best", with_pictures(good, names, exif))],
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


@dataclass(frozen=True)
class ClassRow:
    """One class that has objects; fractions, 0..1, or -1 where none of its masks is known."""

    name: str
    ap: float
    ap50: float
    ar100: float
    objects: int
    mask_ap: float | None = None  # None: boxes alone were scored
    mask_ap50: float | None = None
    f1: float | None = None  # at the report's threshold; None: no threshold was chosen

    @property
    def quality(self) -> float:
        """AP; with masks, the mean of both."""
        return self.ap if self.mask_ap is None or self.mask_ap < 0 else (self.ap + self.mask_ap) / 2


def class_table(predictions: Mapping[str, Any]) -> list[ClassRow]:
    """Every class that has objects, the worst first."""
    fractions = ("ap", "ap50", "ar100", *(("mask_ap", "mask_ap50") if predictions.get("kind") == "instances" else ()))
    fractions += ("f1",) if "best_f1" in predictions else ()
    rows = [
        ClassRow(str(row["name"]), objects=int(row["objects"]), **{key: float(row[key]) for key in fractions})
        for row in predictions["per_class"]
    ]
    return sorted((row for row in rows if row.ap >= 0), key=lambda row: (row.quality, row.name))


def size_table(metrics: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, str, list[str]]]]:
    """Heads, and for each size of object (size, area in pixels, values), of one evaluation's metrics; no rows without any."""
    kinds = [
        (f"{what} {kind.upper()}", f"{what}_{kind}")
        for kind in ("ap", "ar")
        for what in ("box", "mask")
        if f"{what}_{kind}_small" in metrics
    ]
    rows = [
        (size, area, [metric_text(f"{name}_{size}", metrics[f"{name}_{size}"]) for _, name in kinds])
        for size, area in SIZES
    ]
    return [head for head, _ in kinds], rows if kinds else []


class Curves(NamedTuple):
    """Precision over recall, of nothing where no class has an object."""

    title: str
    lines: list[Line]


def read_curves(predictions: Mapping[str, Any], what: Literal["box", "mask"]) -> Curves | None:
    """At IoU 0.5: the mean, and classes; of many classes the best, the middle and the worst ones.

    what  whether boxes or masks were compared
    None where no masks were scored.
    """
    if what == "mask" and "mask_curves" not in predictions:
        return None
    curves = predictions["curves" if what == "box" else "mask_curves"]
    names = _spread([row for row in class_table(predictions) if what == "box" or (row.mask_ap or 0.0) >= 0], what)
    recall = np.array(curves["recall"], float)
    at = [f"recall {value:.2f}" for value in recall]
    compared = f", {'boxes' if what == 'box' else 'masks'}" if "mask_curves" in predictions else ""

    def line(name: str, values: Sequence[float], colour: int, style: Literal["solid", "bold"] = "solid") -> Line:
        return Line(name, recall.tolist(), np.array(values, float).reshape(recall.shape).tolist(), at, colour, style)

    mean = [line("mean", curves["mean"], 0, "bold")] if len(names) > 1 else []
    lines = [line(name, curves["classes"][name], 1 + place) for place, name in enumerate(reversed(names))]
    return Curves(f"Precision over recall at IoU {float(curves['iou']):g}{compared}", mean + lines)


def draw_curves(curves: Curves | None) -> Chart | None:
    """None where there is nothing to draw."""
    if curves is None:
        return None
    return draw_chart(
        curves.title,
        curves.lines,
        x_label="recall",
        x_end=1,
        value_text=lambda _, value: f"{value:.3f}",
        from_zero_to=1.0,
        width=WIDE,
    )


def _spread(rows: Sequence[ClassRow], what: str) -> list[str]:
    """Names of at most MOST_CURVES classes from the worst to the best."""
    ranked = sorted(rows, key=lambda row: ((row.ap if what == "box" else row.mask_ap) or 0.0, row.name))
    if len(ranked) > MOST_CURVES:
        ranked = [ranked[round(place * (len(ranked) - 1) / (MOST_CURVES - 1))] for place in range(MOST_CURVES)]
    return [row.name for row in ranked]
