"""`paceline compare RUN RUN [RUN ...]`: what differs between runs, what came of it, and whether the difference is more than chance.

Runs that differ by their seed alone are one side. Two kinds of chance are told apart: another seed (a permutation test over the runs
of two sides, with MIN_SEEDS or more each; with fewer no verdict is given), and other photos (a paired interval from the
predictions of both sides on the same photos, models/metrics/bootstrap.py).
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import tyro

from paceline._utils.errors import PacelineError
from paceline._utils.formatting import format_duration, format_metric, format_metric_name
from paceline._utils.text import join_names, shorten
from paceline.cli.commands.runs import format_spread, group_key, mean_and_deviation
from paceline.cli.flags import parse
from paceline.cli.printing import Printer
from paceline.config.constraints import Help
from paceline.config.run import RunRecord, run_folder
from paceline.models.metrics.bootstrap import metric_type, paired_difference, read_predictions, resample_stored
from paceline.tools.compare import RunSummary, summarize_run
from paceline.training.logging.events import get_metrics, read_events
from paceline.training.previous_run import ENDED

MIN_SEEDS = 3
MAX_ORDERS = 200_000  # divisions of the runs that are all counted


Words = tuple[str, ...]


@dataclass(frozen=True)
class CompareFlags:
    """Which runs."""

    runs: Annotated[
        Words, tyro.conf.Positional, Help("two or more run folders; runs that differ only by seed form one side")
    ] = ()
    metric: Annotated[str, Help("metric to compare; empty: the primary metric of the task")] = ""
    bisect: Annotated[bool, Help("find the first step and tensor at which two runs diverge, by repeating steps")] = False
    data: Annotated[str, Help("current folder of the dataset, for --bisect; empty: as in the runs")] = ""
    task_file: Annotated[str, Help("custom task of both runs, for --bisect: ./file.py:name")] = ""
    json: Annotated[bool, Help("print one JSON object instead of text")] = False


class ComparedRun(NamedTuple):
    """One run."""

    folder: Path
    name: str
    facts: RunRecord  # its run.json
    status: str
    seed: int
    steps: int
    seconds: float
    evaluations: Sequence[tuple[int, float, float]]  # step, seconds, value

    @property
    def best(self) -> float | None:
        """Of its evaluations."""
        return max((value for *_, value in self.evaluations), default=None)

    @property
    def last(self) -> float | None:
        """At its end: chosen by nothing."""
        return self.evaluations[-1][2] if self.evaluations else None

    @property
    def counts(self) -> bool:
        """Whether it ended as it should, with a score."""
        return self.status in ENDED and self.last is not None

    def reached(self, value: float) -> tuple[int, int, float] | None:
        """Steps, samples and seconds to an evaluation of that value or more."""
        batch = int(self.facts.recipe["global_batch_size"])
        return next(((step, step * batch, seconds) for step, seconds, result in self.evaluations if result >= value), None)


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Print differences, a line a run, and the verdict."""
    flags = parse(printer, arguments, CompareFlags(), "compare", "Compare the settings and results of runs.")
    if flags.bisect:
        from paceline.tools.compare.bisect import print_bisection

        return print_bisection(
            printer.say, printer.waiting, flags.runs, data=flags.data, workload=flags.task_file, in_json=flags.json
        )
    if len(flags.runs) < 2:
        raise PacelineError("at least two runs are required: paceline compare RUN RUN")
    described = [_described(name) for name in flags.runs]
    metric = _metric(flags, described)
    runs = [_compared(one, metric) for one in described]
    sides: dict[str, list[ComparedRun]] = {}
    for one in runs:
        sides.setdefault(group_key(one.facts, one.facts.data.get("fold") or {}), []).append(one)
    result = _record(list(sides.values()), metric)
    if flags.json:
        print(json.dumps(result, indent=1))
        return 0
    for line in format_comparison(result):
        printer.say(line)
    return 0


def _metric(flags: CompareFlags, described: Sequence[RunSummary]) -> str:
    """The asked one, else the first headline that all scored runs have. Raises PacelineError where they have none in common."""
    scored = [{name for result in one.evaluations for name in result} for one in described if one.evaluations]
    common = set.intersection(*scored) if scored else set()
    if not common:
        tasks = join_names(sorted({str(one.facts.recipe.get("task")) for one in described}))
        why = (
            f"runs of different tasks ({tasks}) have no metric in common"
            if scored
            else "none of these runs has a metric yet"
        )
        raise PacelineError(f"{join_names(list(flags.runs), 4)}: {why}.")
    if flags.metric and flags.metric not in common:
        raise PacelineError(f"--metric {flags.metric}: not all runs have it. Known: {join_names(sorted(common), 12)}.")
    headlines = [one.row["headline"] for one in described if one.row["headline"] in common]
    return flags.metric or next(iter(headlines), min(common))


def _described(name: str) -> RunSummary:
    folder = run_folder(Path(name).expanduser())
    if not (folder / "run.json").is_file():
        raise PacelineError(f"{name}: is not a run folder (run.json not found).")
    return summarize_run(folder, [])


def _compared(summary: RunSummary, metric: str) -> ComparedRun:
    row, seed = summary.row, summary.facts.recipe.get("seed")
    scored = [
        (event["step"], float(event["seconds"]), get_metrics(event)[metric])
        for event in read_events(summary.folder / "events.jsonl")
        if event["event"] == "eval" and math.isfinite(get_metrics(event).get(metric, math.nan))
    ]
    return ComparedRun(
        *(summary.folder, row["name"], summary.facts, row["status"], seed if type(seed) is int else 0),
        *(row["step"], float(row["seconds"]), scored),
    )


def _differences(sides: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Dotted name -> its value on each side, as the page of several runs has them, but for the seed."""
    from paceline.tools.report.runs_page import find_differences

    result = ((part, *row) for part, rows in find_differences(sides) for row in rows)
    dotted = {f"{part}.{name}" if part != "run" else name: values for part, name, values in result}
    return {name: values for name, values in dotted.items() if name != "recipe.seed"}


def _record(sides: Sequence[Sequence[ComparedRun]], metric: str) -> dict[str, Any]:
    """What --json prints."""
    from paceline.tools.report.runs_page import run_letter

    every = [one for side in sides for one in side]
    bests = [one.best for one in every if one.best is not None]
    common = min(bests) if len(bests) == len(every) else None  # what all of them have reached
    rows = []
    for number, side in enumerate(sides):
        for one in side:
            reached = one.reached(common) if common is not None else None
            rows.append(
                {"side": run_letter(number), "name": one.name, "seed": one.seed, "status": one.status,
                 "steps": one.steps, "seconds": one.seconds, "best": one.best, "last": one.last, "reached": reached}
            )  # fmt: skip
    finished = [[one for one in side if one.counts] for side in sides]
    values = [[one.last for one in side if one.last is not None] for side in finished]
    folders = [[one.folder for one in side] for side in finished]
    verdicts = [
        {
            "sides": [first, second],
            "seeds": _seeds(values[first], values[second]),
            "photos": paired_interval(folders[first], folders[second], metric),
        }
        for first, second in combinations(range(len(sides)), 2)
    ]
    return {
        "metric": metric,
        "differences": _differences([side[0].facts.as_dict() for side in sides]),
        "common": common,
        "runs": rows,
        "sides": [{"runs": len(side), **mean_and_deviation(side)} for side in values],
        "verdicts": verdicts,
    }


def _seeds(one: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """The difference of the means (other minus one), and how often chance alone would make one as large: p."""
    if min(len(one), len(other)) < MIN_SEEDS:
        return {"p": None, "why": f"{len(one)} and {len(other)} finished runs; at least {MIN_SEEDS} per side are needed"}
    return {
        "difference": statistics.fmean(other) - statistics.fmean(one),
        "p": permutation_p_value(one, other),
        "apart": min(other) > max(one) or max(other) < min(one),
    }


def permutation_p_value(one: Sequence[float], other: Sequence[float]) -> float:
    """The share of all divisions of the values into two such sides whose means differ as much or more, both ways (Fisher 1935).

    Beyond MAX_ORDERS divisions so many are drawn, always the same.
    """
    values = np.array([*one, *other], np.float64)
    count = len(one)
    if math.comb(len(values), count) <= MAX_ORDERS:
        chosen = np.array(list(combinations(range(len(values)), count)))
    else:
        random = np.random.default_rng(0)
        chosen = np.stack([random.permutation(len(values))[:count] for _ in range(MAX_ORDERS)])
    sums = values[chosen].sum(axis=1)
    apart = np.abs(sums / count - (values.sum() - sums) / (len(values) - count))
    seen = abs(statistics.fmean(one) - statistics.fmean(other))
    return float((apart >= seen - 1e-12).mean())


# What `paceline compare` found, for people.

CHANCE = 0.05  # below, a difference is called more than chance


def format_comparison(result: Mapping[str, Any]) -> Iterator[str]:
    """The differences, a line a run, the way to a score that all have reached, and a verdict for every two sides."""
    metric, rows = result["metric"], result["runs"]
    label = format_metric_name(metric)
    letters = list(dict.fromkeys(row["side"] for row in rows))
    if result["differences"]:
        yield "differs:"
        width = max(map(len, result["differences"]))
        for name, values in result["differences"].items():
            yield f"  {name:<{width}}  " + "  |  ".join(
                f"{side} {shorten(value, 40)}" for side, value in zip(letters, values)
            )
    else:
        yield "only the seeds differ"
    yield ""
    width = max(len(row["name"]) for row in rows)
    yield f"  side {'run':<{width}} {'seed':>5} {'steps':>8} {'time':>10} {'last':>8} {'best':>8}  {label}"
    for row in rows:
        cells = [format_metric(metric, row[which]) if row[which] is not None else "-" for which in ("last", "best")]
        note = "" if row["status"] in ENDED else f"  {row['status'].replace('_', ' ')}"
        time = format_duration(row["seconds"])
        what = f"  {row['side']:<4} {row['name']:<{width}} {row['seed']:>5} {row['steps']:>8,}"
        yield f"{what} {time:>10} {cells[0]:>8} {cells[1]:>8}{note}"
    if result["common"] is not None and len(rows) > 1:
        yield ""
        yield f"steps and time to {label} {format_metric(metric, result['common'])}, which all runs reached:"
        for row in rows:
            steps, samples, seconds = row["reached"]
            yield f"  {row['side']:<4} {row['name']:<{width}} {steps:>8,} steps {samples:>12,} samples {format_duration(seconds):>10}"
    for side, spread in zip(letters, result["sides"]):
        if spread["runs"]:
            yield f"{side}: {format_spread(metric, spread)} at the end, {spread['runs']} finished"
    for verdict in result["verdicts"]:
        one, other = (letters[number] for number in verdict["sides"])
        yield _verdict(f"{other} - {one}", verdict, metric)


def _verdict(what: str, verdict: Mapping[str, Any], metric: str) -> str:
    seeds, photos = verdict["seeds"], verdict["photos"]
    if seeds["p"] is None:
        text = f"{what}: no significance test over seeds: {seeds['why']}"
    else:
        sure = "significant" if seeds["p"] <= CHANCE else "not significant"
        if seeds["apart"] and seeds["p"] > CHANCE:
            sure = "all runs of one side are better, but there are not enough seeds for significance"
        text = f"{what}: {_signed(metric, seeds['difference'])}, {sure} (permutation test, p {seeds['p']:.3g})"
    if "interval" in photos:
        low, high = photos["interval"]
        sure = "significant" if low > 0 or high < 0 else "not significant"
        text += f"; on the same {photos['photos']:,} images, from {_signed(metric, low)} to {_signed(metric, high)} (95%), {sure}"
    else:
        text += f"; no interval over images: {photos['why']}"
    return text


def _signed(metric: str, value: float) -> str:
    return ("+" if value >= 0 else "-") + format_metric(metric, abs(value))


# Runs paired by their photos: what they found in the same ones, drawn anew together.


def paired_interval(one: Sequence[Path], other: Sequence[Path], metric: str) -> dict[str, Any]:
    """The interval of the difference, other minus one, over photos, or "why" there is none. Runs of a side are averaged draw by draw.

    The newest predictions of each run count: boxes to 0.01 pixel, and of an image the best 100 of all classes together.
    """
    loaded = [[result for folder in side if (result := _newest(folder)) is not None] for side in (one, other)]
    flat = [results for side in loaded for results in side]
    if not one or not other or len(flat) < len(one) + len(other):
        return {"why": "not every run has readable predictions"}
    if len({_photo_count(results) for results in flat}) > 1:
        return {"why": "the runs were scored on different images or labels"}
    draws = [[resample_stored(results, metric_type(metric)) for results in side] for side in loaded]
    if not all(metric in drawn for side in draws for drawn in side):
        return {"why": f"resampling is not supported for {metric}"}
    means = [{metric: np.mean([drawn[metric] for drawn in side], axis=0)} for side in draws]
    result = paired_difference(*means)
    if metric not in result:
        return {"why": "no resample has a value"}
    return {"interval": list(result[metric]), "photos": len(flat[0]["images"])}


def _newest(folder: Path) -> dict[str, Any] | None:
    files = sorted((folder / "predictions").glob("step-*.json"))
    return read_predictions(files[-1]) if files else None


def _photo_count(result: Mapping[str, Any]) -> str:
    """Equal exactly where photos and labels are, in their order."""
    return json.dumps(
        [result["classes"], *([image["file"], image.get("label", image.get("truth"))] for image in result["images"])]
    )
