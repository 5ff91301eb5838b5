"""One page on several runs: their scores, best first, with a picture each; compared, also their curves and what differs between them.

A run has one colour, one pattern of dashes and one letter. Only what is not the same in all of them is named as a difference.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from paceline._utils.formatting import duration, leading_metrics, metric_label, metric_text
from paceline._utils.reporter import Lines
from paceline._utils.text import counted
from paceline.config.run import Controls, RunRecord
from paceline.models.metrics.coco import ABSENT
from paceline.models.registry import WORKLOADS
from paceline.tools.report.html import WIDE, Chart, Line, draw_chart, smoothed, templates
from paceline.tools.report.prediction_section import one_picture
from paceline.tools.report.run_report import STATUS, fact_rows
from paceline.tools.report.training_curves import SMOOTH_PARTS, of_kind
from paceline.training.logging.events import read_events

# Of run.json, what may explain a difference of results; the rest follows from these, or names the run.
PARTS = ("recipe", "controls", "data", "system", "versions", "host")
ALONE = ("world", "git_commit")
NAMING = ("controls.out", "controls.quiet", "controls.json", "controls.sink", "controls.tensorboard", "host.name")
MOST_METRICS = 6
# A folder of hundreds of runs would be a page of many megabytes.
MOST_PICTURES = 60


@dataclass(frozen=True)
class Described:
    """One run: its folder, what `paceline runs` prints of it, its run.json, and the metrics of its evaluations."""

    folder: Path
    row: Mapping[str, Any]
    facts: RunRecord
    evaluations: Sequence[Mapping[str, float]]

    @property
    def best(self) -> Mapping[str, float]:
        """The metrics of the best evaluation by the headline; {} without any."""
        scored = [one for one in self.evaluations if math.isfinite(one.get(self.row["headline"], math.nan))]
        return max(scored, key=lambda one: one[self.row["headline"]], default={})


class Shown(NamedTuple):
    """A run as the page shows it."""

    place: int  # of its colour and dashes
    letter: str
    name: str
    link: str  # of its report, from the page; "" where it has none
    recipe: str
    status: tuple[str, str]  # colour, words
    picture: str
    words: str
    scores: list[tuple[str, float | None]]  # text and number, one a metric
    step: int
    steps: str
    seconds: float
    time: str
    started: str


def runs_page(runs: Sequence[Described], out: Path, *, compared: bool) -> str:
    """The page of runs, in any order; links lead from `out`. compared: with curves and differences, for runs of one task."""
    headlines = list(dict.fromkeys(run.row["headline"] for run in runs))
    tests = sorted(set(map(_test, runs)))
    ranked = sorted(
        runs, key=lambda run: (tests.index(_test(run)), headlines.index(run.row["headline"]), -_number(run.row["best"]))
    )
    seen: dict[str, str] = {}  # of each data set the photo that the best run shows, for the others too
    tables, shown = [], []  # one table per task and data set: scores on different photos have no order
    for test in tests:
        mine = [run for run in ranked if _test(run) == test]
        metrics = list(dict.fromkeys(name for run in mine for name in leading_metrics(run.best)))[:MOST_METRICS]
        rows = [_shown(run, len(shown) + place, metrics, out, seen) for place, run in enumerate(mine)]
        label = f"{test[0]} on {mine[0].facts.data.get('root') or 'synthetic'} ({' '.join(test[1:])})"
        tables.append((label if len(tests) > 1 else "", [metric_label(name) for name in metrics], rows))
        shown += rows
    notes = [f"only the first {MOST_PICTURES} runs have a picture"] if len(ranked) > MOST_PICTURES else []
    content: dict[str, Any] = {
        "name": "Comparison" if compared else "Runs",
        "verdict": ("other", counted(len(runs), "run")),
        "cards": [],
        "runs": shown,
        "tables": tables,
        "drawn": _curves(ranked, notes) if compared else [],
        "differences": differences([run.facts.as_dict() for run in ranked]) if compared else [],
        "compared": compared,
        "notes": notes,
    }
    return templates(Path(__file__).parent).get_template("runs.html.jinja").render(**content)


def _test(run: Described) -> tuple[str, ...]:
    """Equal if two runs have the same task and data set, or folds of one data set: task, checksum, half of the validation."""
    data = run.facts.data
    checksum = (data.get("fold") or {}).get("data") or data.get("hash")
    return (str(run.facts.recipe.get("task")), str(checksum)[:8], *([str(data["half"])] if data.get("half") else []))


def _number(value: float | None) -> float:
    return -math.inf if value is None else value


def letter_of(place: int) -> str:
    """A, B, ..., Z, AA, AB, ..."""
    return (letter_of(place // 26 - 1) if place >= 26 else "") + chr(65 + place % 26)


def _shown(run: Described, place: int, metrics: Sequence[str], out: Path, seen: dict[str, str]) -> Shown:
    row, facts = run.row, run.facts
    report = run.folder / "report.html"
    workload, data = WORKLOADS.get(str(facts.recipe.get("task"))), str(facts.data.get("hash"))
    picture = words = ""
    if workload is not None and place < MOST_PICTURES:
        file, picture, words = one_picture(run.folder, workload, facts, list(seen.values()))
        seen.setdefault(data, file)
    colour, _ = STATUS.get(row["status"], STATUS[None])
    status = "unfinished: still running, or killed" if row["status"] == "unfinished" else row["status"].replace("_", " ")
    best = run.best
    return Shown(
        *(place, letter_of(place), row["name"]),
        quote(os.path.relpath(report, out.resolve().parent)) if report.is_file() else "",
        *(row["recipe"], (colour, status), picture, words),
        [(metric_text(name, best[name]), best[name]) if name in best else ("", None) for name in metrics],
        *(row["step"], f"{row['step']:,} of {row['steps']:,}" if isinstance(row["steps"], int) else f"{row['step']:,}"),
        *(row["seconds"], duration(row["seconds"]), str(row["started"])[:16].replace("T", " ")),
    )


def _curves(runs: Sequence[Described], notes: list[str]) -> list[Chart]:
    """Loss and the headline, a line a run."""
    events = [read_events(run.folder / "events.jsonl", Lines(notes.append)) for run in runs]
    ends = [max((event["epoch"] for event in found), default=0) for found in events]
    x_label = "epoch" if ends and min(end for end in ends) >= 1 else "step"
    headline = runs[0].row["headline"] if runs else ""
    charts = []
    for title, kind, name, style in (
        ("Loss", "train", "loss", "solid"),
        (metric_label(headline), "eval", headline, "dots"),
        ("Loss on validation", "eval", "eval_loss", "dots"),
    ):
        lines = []
        for place, (run, found) in enumerate(zip(runs, events)):
            mine = [event for event in of_kind(found, kind) if name in event]
            values = [math.nan if event[name] == ABSENT else float(event[name]) for event in mine]
            if kind == "train":
                values = smoothed(values, max(0.0, 1 - SMOOTH_PARTS / max(len(values), 1)))
            at = [f"step {event['step']:,}, epoch {event['epoch']:.2f}" for event in mine]
            label, x = f"{letter_of(place)} {run.row['name']}", [event[x_label] for event in mine]
            lines.append(Line(label, x, values, at, place, style, dash=place + place // 7))  # type: ignore[arg-type]
        charts.append(
            draw_chart(
                title, lines, x_label=x_label, x_end=max((x for line in lines for x in line.x), default=0),
                value_text=lambda _, value, name=name: metric_text(name, value) if name == headline else f"{value:.4g}",
                percent=name == headline and "loss" not in name, by_factor="loss" in name, width=WIDE,
            )
        )  # fmt: skip
    return [chart for chart in charts if chart is not None]


def differences(facts: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """(part of run.json, [(key, each run's value)]) of what is not the same in all; parts without any are left out.

    A control that an older version did not have is at its usual value.
    """
    usual = asdict(Controls())
    known = [{**one, "controls": {**usual, **one.get("controls", {})}} for one in facts]
    each = [dict(fact_rows({name: one[name] for name in (*PARTS, *ALONE) if name in one})) for one in known]
    keys = [key for key in dict.fromkeys(key for one in each for key in one) if key not in NAMING]
    differing = [key for key in keys if len({one.get(key) for one in each}) > 1]
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for key in differing:
        part, _, name = key.partition(".")
        found.setdefault(part if name else "run", []).append((name or key, [one.get(key, "-") for one in each]))
    return list(found.items())
