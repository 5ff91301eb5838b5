"""`paceline runs [FOLDER] [--folds] [--json] [--html FILE]`: the runs in a folder, a line each, or by fold and seed; imports no torch
but for a page."""

from __future__ import annotations

import json
import shutil
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from paceline._utils.atomic_write import check_user_file, write_user_file
from paceline._utils.errors import PacelineError
from paceline._utils.formatting import format_duration, format_metric, format_metric_name, select_leading_metrics
from paceline._utils.text import format_count, shorten
from paceline.cli.flags import parse
from paceline.cli.printing import Printer, print_error
from paceline.config.constraints import Help
from paceline.config.run import RunOptions, RunRecord
from paceline.tools.compare import RunSummary, summarize_run
from paceline.training.previous_run import ENDED

# Columns and their widths: 80 in all with a time of 6 and the spaces between them. Longer words get what others leave.
COLUMNS = {"name": 17, "recipe": 13, "status": 11, "step": 11, "best": 12}
NARROW, TIME = 80, 6


@dataclass(frozen=True)
class RunsFlags:
    """Which runs."""

    folder: Annotated[Path, tyro.conf.Positional, Help("folder of runs, or a run")] = Path("runs")
    folds: Annotated[bool, Help("group runs that differ by fold or seed: mean, standard deviation, missing folds")] = False
    json: Annotated[bool, Help("print one JSON list instead of text")] = False
    html: Annotated[str, Help("HTML file to write: the runs, best first, with an image and the report of each")] = ""


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Print the runs, newest last; those that cannot be read are named after them."""
    flags = parse(printer, arguments, RunsFlags(), "runs", "List the runs in a folder, one per line, newest last.")
    if not flags.folder.is_dir():
        raise PacelineError(f"{flags.folder}: folder not found. Use a folder of runs: paceline runs FOLDER")
    if flags.html:
        check_user_file(flags.html, "--html")
    alone = (flags.folder / "run.json").exists()
    folders = [flags.folder] if alone else sorted(path.parent for path in flags.folder.glob("*/run.json"))
    results, damaged = [], []
    for folder in folders:
        try:
            results.append(summarize_run(folder, damaged))
        except PacelineError as problem:
            damaged.append(str(problem))
    results.sort(key=lambda run: (run.row["started"], run.row["name"]))
    groups = group_runs(results) if flags.folds else []
    if flags.html:
        from paceline.tools.report.runs_page import runs_page

        write_user_file(flags.html, runs_page(results, Path(flags.html), compared=False), "--html")
        printer.say(flags.html)
    elif flags.json:
        print(json.dumps(groups if flags.folds else [one.row for one in results], indent=1))
    elif flags.folds:
        for line in [line for group in groups for line in format_group(group)]:
            printer.say(line)
        if not groups:
            printer.say(f"no runs in {flags.folder} differ only by fold or seed")
    elif results:
        rows = [{name: name for name in (*COLUMNS, "time")}, *(_format_row(one.row) for one in results)]
        widths = _widths(rows, shutil.get_terminal_size((NARROW, 24)).columns)
        for row in rows:
            cells = [f"{shorten(row[name], width):<{width}}" for name, width in widths.items()]
            printer.say("  ".join([*cells, row["time"]]).rstrip())
    elif not damaged:
        printer.say(f"no runs in {flags.folder}")
    for problem in damaged:
        print_error(f"damaged: {problem}")
    return 0


def _format_row(row: dict[str, Any]) -> dict[str, str]:
    steps = row["steps"] if isinstance(row["steps"], int) else "?"
    best = "synthetic" if row["synthetic"] else "-"
    if row["best"] is not None:
        best = f"{format_metric_name(row['headline'])} {format_metric(row['headline'], row['best'])}"
    return {
        "name": row["name"],
        "recipe": row["recipe"],
        "status": row["status"].removesuffix("_early").replace("_", " "),
        "step": f"{row['step']}/{steps}",
        "best": best,
        "time": format_duration(row["seconds"]).replace("min", "m").replace(" ", ""),  # 3m20s, 2h05m
    }


def _widths(rows: Sequence[Mapping[str, str]], columns: int) -> dict[str, int]:
    """Each column as wide as its words, where a terminal of so many columns has room for them; else the first ones first."""
    wanted = {name: max(len(row[name]) for row in rows) for name in COLUMNS}
    widths = {name: min(width, wanted[name]) for name, width in COLUMNS.items()}
    spare = max(columns, NARROW) - TIME - sum(width + 2 for width in widths.values())
    for name in COLUMNS:
        more = max(0, min(spare, wanted[name] - widths[name]))
        widths[name], spare = widths[name] + more, spare - more
    return widths


# What decides a run's result beside recipe, data and fold.
DECIDE = (
    *(
        "weights",
        "max_steps",
        "max_train_images",
        "max_val_images",
        "val_subset",
        "rescale_schedule",
        "patience",
        "eval_every",
        "max_time",
    ),
    "deterministic",
)
# Of a run's evaluations.
WHICH = ("best", "last")


def group_runs(runs: Sequence[RunSummary]) -> list[dict[str, Any]]:
    """Groups of two runs or more, and of folds even one, in JSON's types; runs: oldest first.

    A run counts where it ended as it should, and of several of one fold and seed the newest.
    """
    result: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        fold, status = run.facts.data.get("fold"), run.row["status"]
        number, of = (_whole(fold.get(name)) for name in ("number", "of")) if isinstance(fold, Mapping) else (0, 0)
        kept = {name: run.row[name] for name in ("name", "recipe", "status", "headline")}
        kept |= {"fold": number, "of": of, "seed": _whole(run.facts.recipe.get("seed"))}
        kept |= {"best": run.best, "last": run.scored[-1] if run.scored else {}}
        kept["left_out"] = status.replace("_", " ") if status not in ENDED else "" if run.scored else "no metric"
        result[group_key(run.facts, fold or {})].append(kept)
    return [_group(rows) for rows in result.values() if len(rows) > 1 or rows[0]["of"]]


def _whole(value: Any) -> int:
    return value if type(value) is int else 0


def group_key(facts: RunRecord, fold: Mapping[str, Any]) -> str:
    """Equal exactly where nothing but fold and seed is another."""
    recipe = {name: value for name, value in facts.recipe.items() if name != "seed"}
    plain = asdict(RunOptions())
    options = {name: facts.options.get(name, plain[name]) for name in DECIDE}
    data = fold.get("data") or facts.data.get("hash")
    return json.dumps(
        [facts.name, recipe, options, data, [fold.get(name) for name in ("of", "seed", "group")]], sort_keys=True
    )


def _group(rows: list[dict[str, Any]]) -> dict[str, Any]:
    newest = {(row["fold"], row["seed"]): row for row in rows if not row["left_out"]}
    for row in rows:
        if not row["left_out"] and newest[row["fold"], row["seed"]] is not row:
            row["left_out"] = "replaced by a newer run with the same fold and seed"
    counting = [row for row in rows if not row["left_out"]]
    of, have = rows[0]["of"], {row["fold"] for row in counting}
    shown = ("name", "fold", "seed", "status", *WHICH, "left_out")
    return {
        "recipe": rows[0]["recipe"],
        "headline": rows[0]["headline"],
        "folds": of,
        "missing": [fold for fold in range(1, of + 1) if fold not in have],
        "seeds": sorted({row["seed"] for row in rows}),
        "runs": [{name: row[name] for name in shown} for row in sorted(rows, key=lambda row: (row["fold"], row["seed"]))],
        **{which: _spread([row[which] for row in counting]) for which in WHICH},
    }


def _spread(result: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """metric -> mean and standard deviation over the runs that have it."""
    spread = {}
    for name in dict.fromkeys(name for metrics in result for name in metrics):
        # -1 is COCO's word for a number that does not exist, of a class or a size that has no object there.
        values = [metrics[name] for metrics in result if name in metrics and metrics[name] == metrics[name] != -1]
        if values:
            spread[name] = {**mean_and_deviation(values), "runs": len(values)}
    return spread


def mean_and_deviation(values: Sequence[float]) -> dict[str, float | None]:
    """Of a sample: the deviation divides by n - 1, and is None of one value; the mean is None of none."""
    return {
        "mean": statistics.fmean(values) if values else None,
        "deviation": statistics.stdev(values) if len(values) > 1 else None,
    }


def format_group(group: Mapping[str, Any]) -> list[str]:
    """A group for people."""
    folds, headline, rows = group["folds"], group["headline"], group["runs"]
    what = [
        *([f"{folds} folds"] if folds else []),
        format_count(len(group["seeds"]), "seed"),
        format_count(len(rows), "run"),
    ]
    lines = [f"{group['recipe']}: {', '.join(what)}; {format_metric_name(headline)}:"]

    def cell(metrics: Mapping[str, float]) -> str:
        return format_metric(headline, metrics[headline]) if headline in metrics else "-"

    width = max(len(row["name"]) for row in rows)
    for row in rows:
        fold = f"fold {row['fold']:<3} " if folds else ""
        left_out = f"  not counted: {row['left_out']}" if row["left_out"] else ""
        best, last = cell(row["best"]), cell(row["last"])
        lines.append(f"  {row['name']:<{width}}  {fold}seed {row['seed']:<5} best {best:>8}  last {last:>8}{left_out}")
    for name in select_leading_metrics(group["best"]):
        best, last = (format_spread(name, group[which].get(name)) for which in WHICH)
        lines.append(
            f"  {format_metric_name(name)}: best {best}, last {last} ({format_count(group['best'][name]['runs'], 'run')})"
        )
    if group["missing"]:
        lines.append(f"  missing: {', '.join(f'fold {fold}' for fold in group['missing'])}")
    return lines


def format_spread(name: str, result: Mapping[str, Any] | None) -> str:
    """A metric's mean and deviation as text; "-" where no run has it."""
    if result is None:
        return "-"
    deviation = "" if result["deviation"] is None else f" +- {format_metric(name, result['deviation'])}"
    return f"{format_metric(name, result['mean'])}{deviation}"
