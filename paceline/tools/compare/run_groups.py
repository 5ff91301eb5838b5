"""`paceline runs --folds`: runs that differ by their fold and their seed alone, in groups, with mean and standard deviation.

A run's numbers are those of its best evaluation, by the headline metric, which is that of `checkpoints/best`. As the best of several
is chosen on the photos that it is scored on, those of the last evaluation stand beside them.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from paceline._utils.formatting import format_metric, format_metric_name, select_leading_metrics
from paceline._utils.text import format_count
from paceline.config.run import RunOptions, RunRecord
from paceline.training.previous_run import ENDED

# What decides a run's result beside recipe, data and fold.
DECIDE = (
    "weights",
    "steps",
    "limit_train",
    "limit_val",
    "val_half",
    "fit_schedule",
    "patience",
    "eval_every",
    "time_budget",
    "exact",
)
# Of a run's evaluations.
WHICH = ("best", "last")


def group_runs(runs: Sequence[tuple[dict[str, Any], RunRecord, Sequence[Mapping[str, float]]]]) -> list[dict[str, Any]]:
    """Groups of two runs or more, and of folds even one, in JSON's types.

    runs   oldest first: what `paceline runs` prints of one, its run.json, and the metrics of its evaluations
    A run counts where it ended as it should, and of several of one fold and seed the newest.
    """
    result: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row, facts, evaluations in runs:
        fold = facts.data.get("fold")
        number, of = (_whole(fold.get(name)) for name in ("number", "of")) if isinstance(fold, Mapping) else (0, 0)
        headline = row["headline"]
        scored = [metrics for metrics in evaluations if math.isfinite(metrics.get(headline, math.nan))]
        kept = {name: row[name] for name in ("name", "recipe", "status", "headline")}
        kept |= {"fold": number, "of": of, "seed": _whole(facts.recipe.get("seed"))}
        kept["best"] = max(scored, key=lambda metrics: metrics[headline], default={})
        kept["last"] = scored[-1] if scored else {}
        kept["left_out"] = row["status"].replace("_", " ") if row["status"] not in ENDED else "" if scored else "no score"
        result[group_key(facts, fold or {})].append(kept)
    return [_group(rows) for rows in result.values() if len(rows) > 1 or rows[0]["of"]]


def _whole(value: Any) -> int:
    return value if type(value) is int else 0


def group_key(facts: RunRecord, fold: Mapping[str, Any]) -> str:
    """Equal exactly where nothing but fold and seed is another."""
    recipe = {name: value for name, value in facts.recipe.items() if name != "seed"}
    plain = asdict(RunOptions())
    controls = {name: facts.controls.get(name, plain[name]) for name in DECIDE}
    data = fold.get("data") or facts.data.get("hash")
    return json.dumps(
        [facts.name, recipe, controls, data, [fold.get(name) for name in ("of", "seed", "group")]], sort_keys=True
    )


def _group(rows: list[dict[str, Any]]) -> dict[str, Any]:
    newest = {(row["fold"], row["seed"]): row for row in rows if not row["left_out"]}
    for row in rows:
        if not row["left_out"] and newest[row["fold"], row["seed"]] is not row:
            row["left_out"] = "a newer run has its fold and seed"
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
    """metric -> mean and standard deviation (of a sample: n - 1; None of one run) over the runs that have it."""
    spread = {}
    for name in dict.fromkeys(name for metrics in result for name in metrics):
        # -1 is COCO's word for a number that does not exist, of a class or a size that has no object there.
        values = [metrics[name] for metrics in result if name in metrics and metrics[name] == metrics[name] != -1]
        if values:
            deviation = statistics.stdev(values) if len(values) > 1 else None
            spread[name] = {"mean": statistics.fmean(values), "deviation": deviation, "runs": len(values)}
    return spread


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
        best, last = (_plus_minus(name, group[which].get(name)) for which in WHICH)
        lines.append(
            f"  {format_metric_name(name)}: best {best}, last {last} ({format_count(group['best'][name]['runs'], 'run')})"
        )
    if group["missing"]:
        lines.append(f"  missing: {', '.join(f'fold {fold}' for fold in group['missing'])}")
    return lines


def _plus_minus(name: str, result: Mapping[str, Any] | None) -> str:
    if result is None:
        return "-"
    deviation = "" if result["deviation"] is None else f" +- {format_metric(name, result['deviation'])}"
    return f"{format_metric(name, result['mean'])}{deviation}"
