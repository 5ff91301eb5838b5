"""report.html: one self-contained page on a run, from the files in its folder alone; it needs no network.

It is made for finished, interrupted, failed and still running runs alike, and shows the photos that are still where they were.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline._utils.atomic_write import atomic_write
from paceline._utils.errors import PacelineError
from paceline._utils.formatting import (
    format_bytes,
    format_duration,
    format_flop_rate,
    format_metric,
    format_metric_name,
    format_quantity,
    format_step_times,
    format_target,
    split_run_time,
)
from paceline._utils.names import flatten
from paceline._utils.reporter import Lines
from paceline._utils.text import format_count
from paceline.config.run import RunRecord, read_run
from paceline.data.index.splits import format_fold
from paceline.models.metrics.coco import ABSENT
from paceline.models.registry import WORKLOADS
from paceline.models.workload import WorkloadSpec
from paceline.tools.report.curves import Event, metric_names, select_events, targets_first, training_charts
from paceline.tools.report.html import render_page
from paceline.tools.report.prediction_section import predictions_section
from paceline.training.logging.events import COMMON, read_events

# Charts at the top of the page.
FIRST = ("Loss", "Validation metrics")

# Of COCO's twelve numbers the table leaves out those that hardly anyone compares; events.jsonl has them.
LESS_READ = ("_ar1", "_ar10", "_ar_small", "_ar_medium", "_ar_large")

# The part of a head that goes into its group: "box AP50" stands as AP50 under box, "box AP small" as small.
_BOX_OR_MASK = re.compile("(box|mask) (AP (?=[sml]))?")

STATUS = {  # end event's status -> (color, words)
    "success": ("good", "Target reached"),
    "ran_out": ("fair", "Target not reached"),
    "stopped_early": ("fair", "Stopped early"),
    "interrupted": ("fair", "Interrupted (resumable)"),
    "failed": ("bad", "Failed"),
    None: ("fair", "Running or killed"),
}


def write_report(run: Path, workload: WorkloadSpec | None = None) -> Path:
    """Write RUN/report.html from run.json, events.jsonl and the newest predictions, and return its path.

    workload  the run's; None: ours of that name. One of one's own that is not given leaves its predictions undrawn
    What was damaged or edited is named in the page. Raises PacelineError where `run` is no run folder, holds values that no
    run of ours has, or the page cannot be written.
    """
    notes: list[str] = []
    facts = read_run(run, changed=notes.append)
    events = read_events(run / "events.jsonl", Lines(notes.append))
    workload = workload or WORKLOADS.get(facts.recipe.get("task", ""))
    try:
        content = _content(run, facts, events)
        data, exif = facts.data, facts.recipe.get("input", {}).get("exif", "ignore")
        evaluated = select_events(events, "eval")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
        raise PacelineError(
            f"{run}: run.json or events.jsonl is not valid ({type(error).__name__}: {error}). "
            "Pass a run that paceline wrote."
        ) from None
    notes += map(str, data.get("warnings", ()))
    pictures, own = None, {}
    if content["synthetic"]:
        notes.append("trained on synthetic batches: no metric was computed, and only the speed is meaningful")
    if workload is not None:
        pictures = predictions_section(run, workload, data, evaluated, notes, exif=exif)
        if Path(workload.reporting.template).is_absolute():
            own[workload.reporting.template] = Path(workload.reporting.template).read_text(encoding="utf-8")
    elif any((run / "predictions").glob("step-*.json")):
        notes.append("custom task: to include images, run  paceline report RUN --task-file ./file.py:name")
    try:
        text = render_page("report.html.jinja", {**content, "pictures": pictures, "notes": notes}, own)
    except Exception as error:
        if not own:
            raise
        raise PacelineError(
            f"{run}: rendering the report template {', '.join(own)} failed ({type(error).__name__}: {error})."
        ) from None
    path = run / "report.html"
    try:
        # A folder's name may be no text: its odd bytes are shown as "?".
        atomic_write(path, text.encode("utf-8", "replace"))
    except OSError as error:
        raise PacelineError(f"{path}: cannot be written ({error.strerror}). Make the folder writable.") from error
    return path


def _content(run: Path, facts: RunRecord, events: Sequence[Event]) -> dict[str, Any]:
    """The template's values from run.json and the events."""
    charts = training_charts(events, get_targets(facts))
    return {
        "name": facts.name,
        "synthetic": bool(facts.options.get("synthetic")),
        "folder": run.resolve().name,
        "fold": format_fold(facts.data.get("fold")),
        **_headline(facts, events),
        "started": _began(run, facts),
        "charts": [chart for chart in charts if chart.title in FIRST],
        "more_charts": [chart for chart in charts if chart.title not in FIRST],
        "time": split_run_time(events),
        "duration": format_duration,
        "typical": [f"{name} takes {total} ({shares})" for name, (total, shares) in format_step_times(events).items()],
        "evaluations": _evaluation_table(events),
        "sections": _provenance(facts.as_dict(), select_events(events, "warm_up")),
    }


def get_targets(facts: RunRecord) -> dict[str, float]:
    """The quality targets of a run.json, metric -> value; {} where there is none."""
    return {name: float(value) for name, value in facts.recipe.get("target", ())}


def _began(run: Path, facts: RunRecord) -> str:
    """When the run's first command began: run.json of a resumed run is the newest command's, the first one lies beside it."""
    first = run / "run-first.json"
    with suppress(PacelineError):
        if first.is_file():
            return str(read_run(first, changed=lambda _: None).started)
    return str(facts.started)


def _headline(facts: RunRecord, events: Sequence[Event]) -> dict[str, Any]:
    """How it ended, why, and the row of numbers at the top."""
    targets = get_targets(facts)
    trained, evaluated = select_events(events, "train"), select_events(events, "eval")
    end = events[-1] if events and events[-1]["event"] == "end" else {}
    color, words = STATUS.get(end.get("status"), STATUS[None])
    last = events[-1] if events else {"step": 0, "epoch": 0.0, "seconds": 0.0}
    reaching = (each for each in evaluated if all(each.get(name, -math.inf) >= targets[name] for name in targets))
    reached = next(reaching, None) if targets else None
    if end.get("status") == "success" and reached is None:  # no target was set
        words = "Finished"
    cards = []
    for name in targets_first(evaluated, targets)[:2]:
        best = _best(evaluated, name)
        if best is not None:
            wanted = f"target {format_target(name, targets[name])}, " if name in targets else ""
            value = format_metric(name, best[name])
            ends = end.get("intervals", {}).get(name)
            if ends and best["step"] == end["intervals_step"]:
                wanted += f"95% CI {format_metric(name, ends[0])} to {format_metric(name, ends[1])}, "
            cards.append((f"best {format_metric_name(name)}", value, f"{wanted}epoch {best['epoch']:.4g}"))
    if reached is not None:
        cards.append(("time to target", format_duration(reached["seconds"]), f"epoch {reached['epoch']:.4g}"))
    else:
        cards.append(("time", format_duration(last["seconds"]), "total"))
    cards.append(("trained", f"{last['epoch']:.3g} epochs", f"{last['step']:,} steps"))
    if trained:
        rate = statistics.median(event["images_per_second"] for event in trained)
        wait = statistics.median(event["data_wait"] for event in trained)
        ranks = facts.world_size
        on = format_count(ranks, "rank")
        evaluating = facts.plan.get("eval_ranks", 0)
        on += f" and {evaluating} for evaluation" if evaluating else ""
        cards.append(("images per second", format_quantity(rate), f"median, {on}"))
        if flop := [event["flop_per_second"] for event in trained if "flop_per_second" in event]:
            cards.append(("compute", format_flop_rate(statistics.median(flop)), "median, forward and backward"))
        if peak := max((event.get("peak_memory", 0) for event in trained), default=0):
            cards.append(("peak memory", format_bytes(peak), "maximum over ranks"))
        cards.append(("waiting for data", f"{100 * wait:.1f}%", "of the time, median"))
    if "joules" in end:
        cards.append(("energy", f"{end['joules'] / 3.6e6:.3g} kWh", f"from {end['joules_by']}, since the last start"))
    resumes = [
        f"step {event['step']:,} on {event['world_size']} rank(s)" + (", with new limits" if event.get("after") else "")
        for event in select_events(events, "resume")
    ]
    return {"verdict": (color, words), "reason": end.get("reason", ""), "cards": cards, "resumes": resumes}


def _evaluation_table(events: Sequence[Event]) -> dict[str, Any]:
    """`groups` is a line above the heads, (text, columns), where numbers of boxes and of masks stand side by side."""
    evaluated = select_events(events, "eval")
    names = [name for name in metric_names(evaluated) if not name.endswith(LESS_READ)]
    both = any(name.startswith("mask_") for name in names)
    if both:
        names = [name for name in names if not name.endswith("_ar100")]
    rows = [
        [f"{event['epoch']:.4g}", f"{event['step']:,}"]
        + [format_metric(name, event[name]) if name in event else "" for name in names]
        + [format_duration(event["seconds"]), format_duration(event.get("eval_seconds"))]
        for event in evaluated
    ]
    heads = ["epoch", "step", *map(format_metric_name, names), "time", "duration"]
    if not both:
        return {"groups": [], "head": heads, "rows": rows}
    parts = [_BOX_OR_MASK.match(head) for head in heads]
    groups = [(text, len(list(same))) for text, same in itertools.groupby(part[1] if part else "" for part in parts)]
    return {"groups": groups, "head": [_BOX_OR_MASK.sub("", head) for head in heads], "rows": rows}


def _provenance(facts: Mapping[str, Any], warmed: Sequence[Event]) -> list[tuple[str, list[tuple[str, str]]]]:
    """run.json as tables: its top level first, then one table a part; beside the plan the values of its warm-up."""
    top = [(key, _text(value)) for key, value in facts.items() if not isinstance(value, Mapping) and key != "format"]
    parts = [(key, fact_rows(value)) for key, value in facts.items() if isinstance(value, Mapping)]
    last = ("recipe", "system", "plan", "options")
    parts.sort(key=lambda part: last.index(part[0]) if part[0] in last else -1)
    shown = warmed[-1] if warmed else {}
    rows = [(key, _text(value)) for key, value in shown.items() if key not in (*COMMON, "crc")]
    beside = next((index for index, part in enumerate(parts) if part[0] == "plan"), len(parts)) + 1
    return [("run", top), *parts[:beside], *([("warm-up", rows)] if rows else []), *parts[beside:]]


def fact_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows of a nested mapping: dotted key, and the value as text."""
    return [(name, _text(value)) for name, value in flatten(facts).items()]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _best(evaluated: Sequence[Event], name: str) -> Event | None:
    """The evaluation with the best value: the lowest of a loss, the highest of everything else."""
    having = [event for event in evaluated if name in event and event[name] == event[name] != ABSENT]
    sign = -1 if "loss" in name else 1
    return max(having, key=lambda event: sign * event[name], default=None)
