"""One page on several runs: their scores, best first, with a picture each; compared, also their curves and what differs between them.

A run has one color, one pattern of dashes and one letter. Only what is not the same in all of them is named as a difference.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from paceline._utils.formatting import format_duration, format_metric, format_metric_name, select_leading_metrics
from paceline._utils.reporter import Lines
from paceline._utils.text import format_count
from paceline.config.run import RunOptions
from paceline.models.registry import WORKLOADS
from paceline.tools.compare import RunSummary
from paceline.tools.report.curves import event_line, select_events
from paceline.tools.report.html import Chart, ChartAxes, draw_chart, render_page
from paceline.tools.report.prediction_section import pick_one_image
from paceline.tools.report.run_report import STATUS, fact_rows
from paceline.training.logging.events import read_events

# Of run.json, what may explain a difference of results; the rest follows from these, or names the run.
PARTS = ("recipe", "options", "data", "system", "versions", "host")
ALONE = ("world_size", "git_commit")
NAMING = ("options.output_dir", "options.quiet", "options.json", "options.logger", "options.tensorboard", "host.name")
MAX_METRICS = 6
# A folder of hundreds of runs would be a page of many megabytes.
MAX_PICTURES = 60


class RunView(NamedTuple):
    """A run as the page shows it."""

    place: int  # of its color and dashes
    letter: str
    name: str
    link: str  # of its report, from the page; "" where it has none
    recipe: str
    status: tuple[str, str]  # color, words
    picture: str
    words: str
    scores: list[tuple[str, float | None]]  # text and number, one a metric
    step: int
    steps: str
    seconds: float
    time: str
    started: str


def runs_page(runs: Sequence[RunSummary], out: Path, *, compared: bool) -> str:
    """The page of runs, in any order; links lead from `out`. compared: with curves and differences, for runs of one task."""
    headlines = list(dict.fromkeys(run.row["headline"] for run in runs))
    tests = sorted(set(map(_test, runs)))
    # A run without a score is the last of its kind.
    scores = {id(run): math.inf if run.row["best"] is None else -run.row["best"] for run in runs}
    ranked = sorted(runs, key=lambda run: (tests.index(_test(run)), headlines.index(run.row["headline"]), scores[id(run)]))
    seen: dict[str, str] = {}  # of each data set the photo that the best run shows, for the others too
    tables, shown = [], []  # one table per task and data set: scores on different photos have no order
    for test in tests:
        mine = [run for run in ranked if _test(run) == test]
        metrics = list(dict.fromkeys(name for run in mine for name in select_leading_metrics(run.best)))[:MAX_METRICS]
        rows = [_shown(run, len(shown) + index, metrics, out, seen) for index, run in enumerate(mine)]
        label = f"{test[0]} on {mine[0].facts.data.get('root') or 'synthetic'} ({' '.join(test[1:])})"
        tables.append((label if len(tests) > 1 else "", [format_metric_name(name) for name in metrics], rows))
        shown += rows
    notes = [f"only the first {MAX_PICTURES} runs have an image"] if len(ranked) > MAX_PICTURES else []
    content: dict[str, Any] = {
        "name": "Comparison" if compared else "Runs",
        "verdict": ("other", format_count(len(runs), "run")),
        "cards": [],
        "runs": shown,
        "tables": tables,
        "drawn": _curves(ranked, notes) if compared else [],
        "differences": find_differences([run.facts.as_dict() for run in ranked]) if compared else [],
        "compared": compared,
        "notes": notes,
    }
    return render_page("runs.html.jinja", content)


def _test(run: RunSummary) -> tuple[str, ...]:
    """Equal if two runs have the same task and data set, or folds of one data set: task, checksum, half of the validation."""
    data = run.facts.data
    checksum = (data.get("fold") or {}).get("data") or data.get("hash")
    return (str(run.facts.recipe.get("task")), str(checksum)[:8], *([str(data["half"])] if data.get("half") else []))


def run_letter(index: int) -> str:
    """A, B, ..., Z, AA, AB, ..."""
    return (run_letter(index // 26 - 1) if index >= 26 else "") + chr(65 + index % 26)


def _shown(run: RunSummary, index: int, metrics: Sequence[str], out: Path, seen: dict[str, str]) -> RunView:
    row, facts = run.row, run.facts
    report = run.folder / "report.html"
    workload, data = WORKLOADS.get(str(facts.recipe.get("task"))), str(facts.data.get("hash"))
    picture = words = ""
    if workload is not None and index < MAX_PICTURES:
        file, picture, words = pick_one_image(run.folder, workload, facts, list(seen.values()))
        seen.setdefault(data, file)
    color, _ = STATUS.get(row["status"], STATUS[None])
    status = "running or killed" if row["status"] == "unfinished" else row["status"].replace("_", " ")
    best = run.best
    return RunView(
        *(index, run_letter(index), row["name"]),
        quote(os.path.relpath(report, out.resolve().parent)) if report.is_file() else "",
        *(row["recipe"], (color, status), picture, words),
        [(format_metric(name, best[name]), best[name]) if name in best else ("", None) for name in metrics],
        *(row["step"], f"{row['step']:,} of {row['steps']:,}" if isinstance(row["steps"], int) else f"{row['step']:,}"),
        *(row["seconds"], format_duration(row["seconds"]), str(row["started"])[:16].replace("T", " ")),
    )


def _curves(runs: Sequence[RunSummary], notes: list[str]) -> list[Chart]:
    """Loss and the headline, a line a run."""
    events = [read_events(run.folder / "events.jsonl", Lines(notes.append)) for run in runs]
    ends = [max((event["epoch"] for event in results), default=0) for results in events]
    x_label = "epoch" if ends and min(end for end in ends) >= 1 else "step"
    headline = runs[0].row["headline"] if runs else ""
    charts = []
    for title, kind, name, style in (
        ("Loss", "train", "loss", "solid"),
        (format_metric_name(headline), "eval", headline, "dots"),
        ("Validation loss", "eval", "eval_loss", "dots"),
    ):
        lines = []
        for index, (run, results) in enumerate(zip(runs, events)):
            mine = [event for event in select_events(results, kind) if name in event]
            line = event_line(mine, name, x_label, index, style, smooth=kind == "train")
            lines.append(replace(line, name=f"{run_letter(index)} {run.row['name']}", dash=index + index // 7))
        x_end = max((x for line in lines for x in line.x), default=0)
        axes = ChartAxes(x_label, x_end, percent=name == headline and "loss" not in name, by_factor="loss" in name)
        text = partial(format_metric, name) if name == headline else "{:.4g}".format
        charts.append(draw_chart(title, lines, axes, value_text=lambda _, value, text=text: text(value)))
    return [chart for chart in charts if chart is not None]


def find_differences(facts: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """(part of run.json, [(key, each run's value)]) of what is not the same in all; parts without any are left out.

    A control that an older version did not have is at its usual value.
    """
    usual = asdict(RunOptions())
    known = [{**one, "options": {**usual, **one.get("options", {})}} for one in facts]
    each = [dict(fact_rows({name: one[name] for name in (*PARTS, *ALONE) if name in one})) for one in known]
    keys = [key for key in dict.fromkeys(key for one in each for key in one) if key not in NAMING]
    differing = [key for key in keys if len({one.get(key) for one in each}) > 1]
    result: dict[str, list[tuple[str, list[str]]]] = {}
    for key in differing:
        part, _, name = key.partition(".")
        result.setdefault(part if name else "run", []).append((name or key, [one.get(key, "-") for one in each]))
    return list(result.items())
