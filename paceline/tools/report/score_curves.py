"""What was scored, as curves and by class: precision over recall, numbers over the least score, calibration, the table of classes.

The predictions file's part is described in prediction_section.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from paceline.models.metrics.detection_errors import ThresholdCounts
from paceline.tools.report.html import WIDE, Chart, ChartLine, draw_chart

MAX_CURVES = 5  # classes with a curve of their own, beside the mean
# Of a detector's table of classes: what is scored, head, and the name in the file.
COLUMNS = (
    *(("box", "AP", "ap"), ("box", "AP50", "ap50"), ("box", "AR100", "ar100")),
    *(("box", "small", "ap_small"), ("box", "medium", "ap_medium"), ("box", "large", "ap_large")),
    *(("mask", "AP", "mask_ap"), ("mask", "AP50", "mask_ap50")),
    *(("mask", "small", "mask_ap_small"), ("mask", "medium", "mask_ap_medium"), ("mask", "large", "mask_ap_large")),
    *(("best F1", "F1", "f1"), ("best F1", "precision", "precision"), ("best F1", "recall", "recall")),
)


def class_table(predictions: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every class that has objects, the worst first: its name, the number of objects, and the numbers of COLUMNS that the file has.

    Numbers are fractions, 0..1, or -1 for what does not exist. "quality" is AP; with masks, the mean of both.
    """
    rows, masks = [], predictions.get("kind") == "instances"
    for row in predictions["per_class"]:
        numbers = {key: float(row[key]) for what, _, key in COLUMNS if key in row and (masks or what != "mask")}
        if numbers["ap"] < 0:
            continue
        both = [numbers["ap"], numbers.get("mask_ap", -1.0)]
        quality = sum(both) / 2 if both[1] >= 0 else both[0]
        rows.append({"name": str(row["name"]), "objects": int(row["objects"]), "quality": quality, **numbers})
    return sorted(rows, key=lambda row: (row["quality"], row["name"]))


class PrecisionRecallCurves(NamedTuple):
    """Precision over recall, of nothing where no class has an object."""

    title: str
    lines: list[ChartLine]


def read_curves(predictions: Mapping[str, Any], what: Literal["box", "mask"]) -> PrecisionRecallCurves | None:
    """At IoU 0.5: the mean, and classes; of many classes the best, the middle and the worst ones.

    what  whether boxes or masks were compared
    None where no masks were scored.
    """
    if what == "mask" and "mask_curves" not in predictions:
        return None
    curves = predictions["curves" if what == "box" else "mask_curves"]
    ap = "ap" if what == "box" else "mask_ap"
    names = _spread([row for row in class_table(predictions) if row[ap] >= 0], ap)
    recall = np.array(curves["recall"], float)
    at = [f"recall {value:.2f}" for value in recall]
    compared = f", {'boxes' if what == 'box' else 'masks'}" if "mask_curves" in predictions else ""

    def line(name: str, values: Sequence[float], color: int, style: Literal["solid", "bold"] = "solid") -> ChartLine:
        return ChartLine(name, recall.tolist(), np.array(values, float).reshape(recall.shape).tolist(), at, color, style)

    mean = [line("mean", curves["mean"], 0, "bold")] if len(names) > 1 else []
    lines = [line(name, curves["classes"][name], 1 + index) for index, name in enumerate(reversed(names))]
    return PrecisionRecallCurves(f"Precision over recall at IoU {float(curves['iou']):g}{compared}", mean + lines)


def draw_curves(curves: PrecisionRecallCurves | None) -> Chart | None:
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


def _spread(rows: Sequence[Mapping[str, Any]], ap: str) -> list[str]:
    """Names of at most MAX_CURVES classes from the worst to the best."""
    ranked = sorted(rows, key=lambda row: (row[ap], row["name"]))
    if len(ranked) > MAX_CURVES:
        ranked = [ranked[round(index * (len(ranked) - 1) / (MAX_CURVES - 1))] for index in range(MAX_CURVES)]
    return [row["name"] for row in ranked]


def threshold_chart(points: Sequence[ThresholdCounts], best: ThresholdCounts | None) -> Chart | None:
    """Precision, recall and F1 of all classes together, from each score on."""
    at = [f"score {point.threshold:g} or more" for point in points]
    x = [point.threshold for point in points]
    named = (("F1", "f1", "bold"), ("precision", "precision", "solid"), ("recall", "recall", "solid"))
    return draw_chart(
        "Precision, recall and F1 over the score",
        [
            ChartLine(name, x, [getattr(point, key) for point in points], at, index, style, dash=index)  # type: ignore[arg-type]
            for index, (name, key, style) in enumerate(named)
        ],
        x_label="least score",
        x_end=1,
        value_text=lambda _, value: f"{value:.3f}",
        from_zero_to=1.0,
        mark=(best.threshold, f"best F1 {best.f1:.3f}") if best else None,
    )


def reliability_chart(scores: np.ndarray, right: np.ndarray, what: str, shown: float = 0.0) -> Chart | None:
    """How many answers of about a score are right, beside the line on which scores are shares; None without answers.

    shown  where the report begins to count, 0 for everywhere: the error is given from there on, too
    """
    bins, error = reliability(scores, right)
    if error is None:
        return None
    about = f"ECE {error:.3f}, {len(scores):,} {what}"
    sure = scores >= shown
    if shown and sure.any():
        about += f"; {reliability(scores[sure], right[sure])[1]:.3f} from score {shown:g} on, {int(sure.sum()):,} {what}"
    at = [f"score about {each.score:.2f}, {each.answers:,} {what}" for each in bins]
    return draw_chart(
        "Calibration",
        [
            ChartLine("as its score says", [0, 1], [0, 1], ["", ""], 6, "faint"),
            ChartLine("right", [each.score for each in bins], [each.right for each in bins], at, 0, "dots"),
        ],
        x_label="mean score of the answers",
        x_end=1,
        value_text=lambda _, value: f"{100 * value:.1f} %",
        from_zero_to=1.0,
        percent=True,
        about=about,
    )


# Whether scores mean what they say: of the answers with a score of 0.8, is four fifths right?
#
# Source: Guo et al. 2017 (expected calibration error); of detections, Kueppers et al. 2020.

BINS = 10  # of equal width


class ScoreBin(NamedTuple):
    """Answers of similar score."""

    score: float  # mean
    right: float  # share, 0..1
    answers: int


def reliability(scores: np.ndarray, right: np.ndarray) -> tuple[list[ScoreBin], float | None]:
    """-> the bins that have answers, and the expected calibration error: the mean distance of score and share, by answers.

    scores, right   (n,) in 0..1, and bool; the error is None where n is 0
    """
    locations = np.clip((scores * BINS).astype(int), 0, BINS - 1)
    bins = [
        ScoreBin(float(scores[mine].mean()), float(right[mine].mean()), int(mine.sum()))
        for index in range(BINS)
        if (mine := locations == index).any()
    ]
    return bins, sum(each.answers * abs(each.score - each.right) for each in bins) / len(scores) if bins else None
