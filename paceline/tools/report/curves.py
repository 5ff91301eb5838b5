"""The curves of a run: of its training, from its events; and what was scored, as curves and by class: precision over recall, numbers
over the least score, calibration, the table of classes. The predictions file's part is described in prediction_section.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from paceline._utils.formatting import (
    format_duration,
    format_metric,
    format_metric_name,
    format_quantity,
    format_target,
    select_leading_metrics,
)
from paceline.models.metrics.coco import ABSENT
from paceline.models.metrics.detection_errors import ThresholdCounts
from paceline.tools.report.html import FULL, NARROW, WIDE, Chart, ChartAxes, ChartLine, draw_chart, smooth_values
from paceline.training.logging.console import SLOW_INPUT
from paceline.training.logging.events import get_metrics

Event = Mapping[str, Any]
# A loss curve is smoothed over about 1 / SMOOTH_PARTS of the run.
SMOOTH_PARTS = 40
# Parts of a network that one chart has colors for.
MAX_PARTS = 7


def select_events(events: Sequence[Event], kind: str) -> list[Event]:
    """The events of one kind."""
    return [event for event in events if event["event"] == kind]


def metric_names(evaluated: Sequence[Event]) -> list[str]:
    """All metrics, in the order in which they were first written."""
    return list(dict.fromkeys(name for event in evaluated for name in get_metrics(event)))


def targets_first(evaluated: Sequence[Event], targets: Mapping[str, float]) -> list[str]:
    """The targets that were scored, then the other metrics that one line has room for."""
    names = metric_names(evaluated)
    return [
        *(name for name in targets if name in names),
        *(name for name in select_leading_metrics(names) if name not in targets),
    ]


def event_line(
    events: Sequence[Event], name: str, x_label: str, color: int, style: Any = "solid", *, smooth: bool = False
) -> ChartLine:
    """A number of events of one kind over their "epoch" or "step"; smooth: as a moving average."""
    values = [float(event.get(name, "nan")) for event in events]
    # An evaluation's -1 is COCO's word for a number that does not exist.
    values = [math.nan if value == ABSENT and event["event"] == "eval" else value for value, event in zip(values, events)]
    if smooth:
        values = smooth_values(values, max(0.0, 1 - SMOOTH_PARTS / max(len(values), 1)))
    at = [f"step {event['step']:,}, epoch {event['epoch']:.2f}, {format_duration(event['seconds'])}" for event in events]
    return ChartLine(format_metric_name(name), [event[x_label] for event in events], values, at, color, style)


def training_charts(events: Sequence[Event], targets: Mapping[str, float]) -> list[Chart]:
    """Loss and quality, then what else was measured of training; targets: metric -> value."""
    trained, evaluated = select_events(events, "train"), select_events(events, "eval")
    by_epoch = bool(events) and max(event["epoch"] for event in events) >= 1
    x_label = "epoch" if by_epoch else "step"

    def line(name: str, source: Sequence[Event], color: int, style: Any = "solid", smooth: bool = False) -> ChartLine:
        return event_line(source, name, x_label, color, style, smooth=smooth)

    ratios = [{**event, **event.get("update_ratios", {})} for event in trained]
    parts = list(dict.fromkeys(name for event in trained for name in event.get("update_ratios", {})))[:MAX_PARTS]
    losses = ["loss", *sorted({name for event in trained for name in event if name.startswith("loss_")})]
    metrics = metric_names(evaluated)
    rates = [name for name in targets_first(evaluated, targets) if "loss" not in name][:4]
    full_names = {format_metric_name(name): name for name in reversed(rates)}
    scored_losses = [name for name in metrics if "loss" in name][:2]
    wanted = [name for name in rates if name in targets]
    which = {name: f"{format_metric_name(name)} " if len(wanted) > 1 else "" for name in wanted}
    levels = [(f"target {which[name]}{format_target(name, targets[name])}", targets[name]) for name in wanted]
    axes = partial(ChartAxes, x_label, max((event[x_label] for event in events), default=0))
    charts = [
        draw_chart(
            "Loss",
            [
                *(line(name, trained, index, "faint") for index, name in enumerate(losses[:1])),
                *(line(name, trained, index, smooth=True) for index, name in enumerate(losses)),
                *(line(name, evaluated, len(losses) + index, "dots") for index, name in enumerate(scored_losses)),
            ],
            axes(by_factor=True), width=WIDE if rates else FULL, value_text=lambda _, value: f"{value:.4g}",
        ),
        draw_chart(
            "Validation metrics", [line(name, evaluated, index, "dots") for index, name in enumerate(rates)], axes(percent=True),
            value_text=lambda label, value: format_metric(full_names[label], value), levels=levels,
        ),
        draw_chart(
            "Learning rate", [line("lr", trained, 3)], axes(from_zero_to=0.0), width=NARROW,
            value_text=lambda _, value: f"{value:.4g}",
        ),
        draw_chart(
            "Throughput (images/s)", [line("images_per_second", trained, 2)], axes(from_zero_to=0.0), width=NARROW,
            value_text=lambda _, value: f"{format_quantity(value)} images/s",
        ),
        draw_chart(
            "Time waiting for data", [line("data_wait", trained, 1)], axes(percent=True, from_zero_to=SLOW_INPUT),
            width=NARROW, value_text=lambda _, value: f"{100 * value:.1f}%",
        ),
        *(
            draw_chart(title, lines, axes(from_zero_to=0.0, by_factor=True), value_text=lambda _, value: f"{value:.3g}")
            for title, lines in (
                ("Gradient norm", [line("gradient_norm", trained, 4)]),
                ("Norm of the update / norm of the weights", [line(name, ratios, index) for index, name in enumerate(parts)]),
            )
        ),
    ]  # fmt: skip
    return [chart for chart in charts if chart is not None]


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


def read_curves(predictions: Mapping[str, Any], what: Literal["box", "mask"]) -> tuple[str, list[ChartLine]] | None:
    """Title and lines, at IoU 0.5: the mean, and classes; of many classes the best, the middle and the worst ones.

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
    return f"Precision-recall curve at IoU {float(curves['iou']):g}{compared}", mean + lines


def draw_curves(curves: tuple[str, list[ChartLine]] | None) -> Chart | None:
    """None where there is nothing to draw."""
    axes = ChartAxes("recall", 1, from_zero_to=1.0)
    return draw_chart(*curves, axes, value_text=lambda _, value: f"{value:.3f}") if curves else None


def _spread(rows: Sequence[Mapping[str, Any]], ap: str) -> list[str]:
    """Names of at most MAX_CURVES classes from the worst to the best."""
    ranked = sorted(rows, key=lambda row: (row[ap], row["name"]))
    if len(ranked) > MAX_CURVES:
        ranked = [ranked[round(index * (len(ranked) - 1) / (MAX_CURVES - 1))] for index in range(MAX_CURVES)]
    return [row["name"] for row in ranked]


def threshold_chart(points: Sequence[ThresholdCounts], best: ThresholdCounts | None) -> Chart | None:
    """Precision, recall and F1 of all classes together, from each score on."""
    at = [f"score threshold {point.threshold:g}" for point in points]
    x = [point.threshold for point in points]
    named = (("F1", "f1", "bold"), ("precision", "precision", "solid"), ("recall", "recall", "solid"))
    return draw_chart(
        "Precision, recall, and F1 by score threshold",
        [
            ChartLine(name, x, [getattr(point, key) for point in points], at, index, style, dash=index)  # type: ignore[arg-type]
            for index, (name, key, style) in enumerate(named)
        ],
        ChartAxes("score threshold", 1, from_zero_to=1.0),
        value_text=lambda _, value: f"{value:.3f}",
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
        about += f"; {reliability(scores[sure], right[sure])[1]:.3f} for scores of {shown:g} or more ({int(sure.sum()):,} {what})"
    at = [f"score about {each.score:.2f}, {each.answers:,} {what}" for each in bins]
    return draw_chart(
        "Calibration",
        [
            ChartLine("perfect calibration", [0, 1], [0, 1], ["", ""], 6, "faint"),
            ChartLine("correct", [each.score for each in bins], [each.right for each in bins], at, 0, "dots"),
        ],
        ChartAxes("mean score", 1, percent=True, from_zero_to=1.0),
        value_text=lambda _, value: f"{100 * value:.1f}%",
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
