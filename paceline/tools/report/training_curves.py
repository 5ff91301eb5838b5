"""The curves of a run's training, from its events."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from paceline._utils.formatting import duration, leading_metrics, metric_label, metric_text, quantity, target_text
from paceline.models.metrics.coco import ABSENT
from paceline.tools.report.html import FULL, NARROW, WIDE, Chart, Line, draw_chart, smoothed
from paceline.training.logging.console import SLOW_INPUT
from paceline.training.logging.events import metrics_of

Event = Mapping[str, Any]
# A loss curve is smoothed over about 1 / SMOOTH_PARTS of the run.
SMOOTH_PARTS = 40
# Parts of a network that one chart has colours for.
MOST_PARTS = 7


def of_kind(events: Sequence[Event], kind: str) -> list[Event]:
    """The events of one kind."""
    return [event for event in events if event["event"] == kind]


def metric_names(evaluated: Sequence[Event]) -> list[str]:
    """All metrics, in the order in which they were first written."""
    return list(dict.fromkeys(name for event in evaluated for name in metrics_of(event)))


def targets_first(evaluated: Sequence[Event], targets: Mapping[str, float]) -> list[str]:
    """The targets that were scored, then the other metrics that one line has room for."""
    names = metric_names(evaluated)
    return [*(name for name in targets if name in names), *(name for name in leading_metrics(names) if name not in targets)]


def training_charts(events: Sequence[Event], targets: Mapping[str, float]) -> list[Chart]:
    """Loss and quality, then what else was measured of training; targets: metric -> value."""
    trained, evaluated = of_kind(events, "train"), of_kind(events, "eval")
    by_epoch = bool(events) and max(event["epoch"] for event in events) >= 1
    x_label = "epoch" if by_epoch else "step"
    x_end = max((event[x_label] for event in events), default=0)

    def line(name: str, source: Sequence[Event], colour: int, style: Any = "solid", smooth: bool = False) -> Line:
        values = [float(event.get(name, "nan")) for event in source]
        if name in metrics:  # -1: COCO's word for a number that does not exist
            values = [math.nan if value == ABSENT else value for value in values]
        if smooth:
            values = smoothed(values, max(0.0, 1 - SMOOTH_PARTS / max(len(values), 1)))
        at = [f"step {event['step']:,}, epoch {event['epoch']:.2f}, {duration(event['seconds'])}" for event in source]
        return Line(metric_label(name), [event[x_label] for event in source], values, at, colour, style)

    ratios = [{**event, **event.get("update_ratios", {})} for event in trained]
    parts = list(dict.fromkeys(name for event in trained for name in event.get("update_ratios", {})))[:MOST_PARTS]
    losses = ["loss", *sorted({name for event in trained for name in event if name.startswith("loss_")})]
    metrics = metric_names(evaluated)
    rates = [name for name in targets_first(evaluated, targets) if "loss" not in name][:4]
    full_names = {metric_label(name): name for name in reversed(rates)}
    scored_losses = [name for name in metrics if "loss" in name][:2]
    wanted = [name for name in rates if name in targets]
    which = {name: f"{metric_label(name)} " if len(wanted) > 1 else "" for name in wanted}
    levels = [(f"target {which[name]}{target_text(name, targets[name])}", targets[name]) for name in wanted]
    drawn = partial(draw_chart, x_label=x_label, x_end=x_end)
    narrow = partial(drawn, width=NARROW)
    charts = [
        drawn(
            "Loss",
            [
                *(line(name, trained, place, "faint") for place, name in enumerate(losses[:1])),
                *(line(name, trained, place, smooth=True) for place, name in enumerate(losses)),
                *(line(name, evaluated, len(losses) + place, "dots") for place, name in enumerate(scored_losses)),
            ],
            width=WIDE if rates else FULL, by_factor=True, value_text=lambda _, value: f"{value:.4g}",
        ),
        drawn(
            "Quality", [line(name, evaluated, place, "dots") for place, name in enumerate(rates)],
            value_text=lambda label, value: metric_text(full_names[label], value), percent=True, levels=levels,
        ),
        narrow(
            "Learning rate", [line("lr", trained, 3)], from_zero_to=0.0, value_text=lambda _, value: f"{value:.4g}"
        ),
        narrow(
            "Throughput, images/s", [line("images_per_second", trained, 2)], from_zero_to=0.0,
            value_text=lambda _, value: f"{quantity(value)} images/s",
        ),
        narrow(
            "Time waiting for data", [line("data_wait", trained, 1)], from_zero_to=SLOW_INPUT, percent=True,
            value_text=lambda _, value: f"{100 * value:.1f} %",
        ),
        drawn(
            "Norm of the gradient", [line("gradient_norm", trained, 4)], from_zero_to=0.0, by_factor=True, width=WIDE,
            value_text=lambda _, value: f"{value:.3g}",
        ),
        drawn(
            "Norm of an update over the weights'", [line(name, ratios, place) for place, name in enumerate(parts)],
            from_zero_to=0.0, by_factor=True, width=WIDE, value_text=lambda _, value: f"{value:.3g}",
        ),
    ]  # fmt: skip
    return [chart for chart in charts if chart is not None]
