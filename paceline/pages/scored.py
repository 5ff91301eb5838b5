"""What a detector's scores say: how good each class is, each size of object, and precision over recall.

Of a predictions file (see detected.py):
    {"per_class": [{"name", "ap", "ap50", "ar100", "objects"}, ...],
     "curves": {"iou": 0.5, "recall": [101 values], "classes": {name: [101 precisions]}, "mean": [101 precisions]}}
Of kind "instances" a class also has "mask_ap" and "mask_ap50", and "mask_curves" stands beside "curves".
-1 stands for a value that does not exist, as in COCO's own numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from paceline.log.prose import metric_text
from paceline.pages.curves import WIDE, Chart, Line, draw_chart

# Classes whose curves are told apart by colour, beside the mean.
MOST_CURVES = 5
# COCO's sizes of objects, by annotated area.
SIZES = (("small", "under 32 x 32"), ("medium", "up to 96 x 96"), ("large", "above"))


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

    @property
    def quality(self) -> float:
        """AP; with masks, the mean of both."""
        return self.ap if self.mask_ap is None or self.mask_ap < 0 else (self.ap + self.mask_ap) / 2


def class_table(predictions: Mapping[str, Any]) -> list[ClassRow]:
    """Every class that has objects, the worst first."""
    fractions = ("ap", "ap50", "ar100", *(("mask_ap", "mask_ap50") if predictions.get("kind") == "instances" else ()))
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
    told = f", {'boxes' if what == 'box' else 'masks'}" if "mask_curves" in predictions else ""

    def line(name: str, values: Sequence[float], colour: int, style: Literal["solid", "bold"] = "solid") -> Line:
        return Line(name, recall.tolist(), np.array(values, float).reshape(recall.shape).tolist(), at, colour, style)

    mean = [line("mean", curves["mean"], 0, "bold")] if len(names) > 1 else []
    lines = [line(name, curves["classes"][name], 1 + place) for place, name in enumerate(reversed(names))]
    return Curves(f"Precision over recall at IoU {float(curves['iou']):g}{told}", mean + lines)


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
