"""The curves of a run's training, from its events."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from paceline._utils.formatting import (
    format_duration,
    format_metric,
    format_metric_name,
    format_quantity,
    format_target,
    select_leading_metrics,
)
from paceline.models.metrics.coco import ABSENT
from paceline.tools.report.html import FULL, NARROW, WIDE, Chart, ChartLine, draw_chart, smooth_values
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


def training_charts(events: Sequence[Event], targets: Mapping[str, float]) -> list[Chart]:
    """Loss and quality, then what else was measured of training; targets: metric -> value."""
    trained, evaluated = select_events(events, "train"), select_events(events, "eval")
    by_epoch = bool(events) and max(event["epoch"] for event in events) >= 1
    x_label = "epoch" if by_epoch else "step"
    x_end = max((event[x_label] for event in events), default=0)

    def line(name: str, source: Sequence[Event], color: int, style: Any = "solid", smooth: bool = False) -> ChartLine:
        values = [float(event.get(name, "nan")) for event in source]
        if name in metrics:  # -1: COCO's word for a number that does not exist
            values = [math.nan if value == ABSENT else value for value in values]
        if smooth:
            values = smooth_values(values, max(0.0, 1 - SMOOTH_PARTS / max(len(values), 1)))
        at = [
            f"step {event['step']:,}, epoch {event['epoch']:.2f}, {format_duration(event['seconds'])}" for event in source
        ]
        return ChartLine(format_metric_name(name), [event[x_label] for event in source], values, at, color, style)

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
    drawn = partial(draw_chart, x_label=x_label, x_end=x_end)
    narrow = partial(drawn, width=NARROW)
    charts = [
        drawn(
            "Loss",
            [
                *(line(name, trained, index, "faint") for index, name in enumerate(losses[:1])),
                *(line(name, trained, index, smooth=True) for index, name in enumerate(losses)),
                *(line(name, evaluated, len(losses) + index, "dots") for index, name in enumerate(scored_losses)),
            ],
            width=WIDE if rates else FULL, by_factor=True, value_text=lambda _, value: f"{value:.4g}",
        ),
        drawn(
            "Quality", [line(name, evaluated, index, "dots") for index, name in enumerate(rates)],
            value_text=lambda label, value: format_metric(full_names[label], value), percent=True, levels=levels,
        ),
        narrow(
            "Learning rate", [line("lr", trained, 3)], from_zero_to=0.0, value_text=lambda _, value: f"{value:.4g}"
        ),
        narrow(
            "Throughput, images/s", [line("images_per_second", trained, 2)], from_zero_to=0.0,
            value_text=lambda _, value: f"{format_quantity(value)} images/s",
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
            "Norm of an update over the weights'", [line(name, ratios, index) for index, name in enumerate(parts)],
            from_zero_to=0.0, by_factor=True, width=WIDE, value_text=lambda _, value: f"{value:.3g}",
        ),
    ]  # fmt: skip
    return [chart for chart in charts if chart is not None]
