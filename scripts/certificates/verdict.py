"""Whether our training steps are the original's: losses of both beside the noise of rounding, in a table, a CSV and a picture.

A certificate holds runs by name. In each the original and ours take T steps from the same weights on the same batches. Twins of
either side start with every weight off by one unit in the last place (`one_ulp_away`): what they differ by is what rounding does
to this training. In each planted run ours has one error; a certificate that does not notice it is none.

    run = Run(original, ours, noise={"original": [twin, twin], "ours": [twin, twin]}, planted={"warm-up a step late": losses})
    wrong = write(out, {"sgd": run}, Rule(), {"images": 8})      # summary.json, losses.csv, losses.png; [] if all is well
    print(table(json.loads((out / "summary.json").read_text())))  # for the README
    load(out)  # the runs again, so that a script can add one

A trajectory is a list with one dict of losses for each step; twins and planted runs may be shorter than the original's.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

Losses = Sequence[Mapping[str, float]]
LITTLE = 0.01  # relative: a step whose noise is below it tells more than that both train


@dataclass(frozen=True)
class Rule:
    """When two trajectories are one training. Differences are relative, of the step's loss that differs most."""

    early: int = 20  # steps that are judged one by one
    within: float = 10.0  # times the noise so far: ours is never further from the original in these steps
    beyond: float = 100.0  # times the noise so far: a planted error is further than this at one of them
    floor: float = 1e-6  # noise is at least this: what a float32 loss can say
    tail: int = 20  # last steps, whose mean losses are compared
    tail_most: float = 0.03  # relative difference of these means


@dataclass(frozen=True)
class Run:
    """One setting: what both sides lost, and what their twins did."""

    original: Losses
    ours: Losses
    noise: Mapping[str, Sequence[Losses]]  # twins of "original" and of "ours"
    planted: Mapping[str, Losses]  # ours with an error, by the error's name
    # Planted errors that may pass unnoticed here: they are reported alone.
    faint: frozenset[str] = field(default_factory=frozenset)
    floor: float | None = None  # in place of the rule's, where losses are not float32


def one_ulp_away(weights: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """The same arrays with each number moved to a neighbor that its type has, up or down by the seed's coin. 0 stays."""
    random = np.random.default_rng(seed)
    moved = {}
    for name, array in weights.items():
        away = np.where(random.random(array.shape) < 0.5, -np.inf, np.inf).astype(array.dtype)
        moved[name] = np.where(array == 0, array, np.nextafter(array, away))
    return moved


def differences(left: Losses, right: Losses) -> list[float]:
    """Of each step that both have: the largest relative difference of any loss; infinite where one is no number."""
    apart = []
    for a, b in zip(left, right):
        assert a.keys() == b.keys(), (a, b)
        relative = [abs(a[name] - b[name]) / max(abs(b[name]), 1e-3) for name in b]
        apart.append(max(value if math.isfinite(value) else math.inf for value in relative))
    return apart


def noise_of(run: Run, rule: Rule) -> list[float]:
    """(early,) the largest difference of any twin from its own side up to each step: single ones pass through 0 by chance."""
    sides = {"original": run.original, "ours": run.ours}
    twins = [differences(twin, sides[side]) for side, all_of in run.noise.items() for twin in all_of]
    steps = min(rule.early, *map(len, twins))
    floor = rule.floor if run.floor is None else run.floor
    return [max(floor, *(max(twin[: step + 1]) for twin in twins)) for step in range(steps)]


def beside_noise(apart: Sequence[float], noise: Sequence[float], within: float) -> dict[str, Any]:
    """The largest ratio to the noise, and the first step beyond `within` of it with its ratio; None where there is none."""
    ratios = [value / most for value, most in zip(apart, noise)]
    first = next((step for step, ratio in enumerate(ratios) if ratio > within), None)
    return {
        "times_noise": max(ratios),
        "first_step_beyond": first,
        "times_noise_there": None if first is None else ratios[first],
        "largest_difference": max(apart),
    }


def tail_noise(run: Run, rule: Rule) -> float | None:
    """The largest difference of a twin's mean losses of the last steps from its own side's; None where no twin goes so far."""
    sides = {"original": run.original, "ours": run.ours}
    found = [
        differences([tail_means(twin, rule)], [tail_means(sides[side], rule)])[0]
        for side, all_of in run.noise.items()
        for twin in all_of
        if len(twin) == len(sides[side])
    ]
    return max(found, default=None)


def tail_means(losses: Losses, rule: Rule) -> dict[str, float]:
    return {name: float(np.mean([row[name] for row in losses[-rule.tail :]])) for name in losses[0]}


def judge(run: Run, rule: Rule) -> dict[str, Any]:
    """A run in numbers, for summary.json."""
    noise, apart = noise_of(run, rule), differences(run.ours, run.original)
    means = [tail_means(losses, rule) for losses in (run.ours, run.original)]
    return {
        "steps": len(apart),
        "floor": run.floor,
        "steps_of_little_noise": sum(value < LITTLE for value in noise),
        "noise": [float(f"{value:.3g}") for value in noise],
        "differences": [float(f"{value:.3g}") for value in apart],
        "ours": beside_noise(apart[: len(noise)], noise, rule.within),
        "tail_means": dict(zip(("ours", "original"), means)),
        "tail_difference": differences(means[:1], means[1:])[0],
        "tail_noise": tail_noise(run, rule),
        "planted": {
            name: {**beside_noise(differences(losses, run.original), noise, rule.within), "faint": name in run.faint}
            for name, losses in run.planted.items()
        },
    }


def wrong(name: str, found: Mapping[str, Any], rule: Rule) -> list[str]:
    """What in one run is not as it should be."""
    faults = []
    if found["ours"]["first_step_beyond"] is not None:
        faults.append(f"{name}: step {found['ours']['first_step_beyond']} is further from the original than noise")
    if not found["tail_difference"] <= rule.tail_most:
        faults.append(f"{name}: mean losses of the last steps differ by {found['tail_difference']:.1%}")
    for error, its in found["planted"].items():
        if its["times_noise"] < rule.beyond and not its["faint"]:
            faults.append(f"{name}: {error} is not noticed")
    return faults


def write(out: Path, runs: Mapping[str, Run], rule: Rule, facts: Mapping[str, Any]) -> list[str]:
    """summary.json (facts, rule, each run), losses.csv and losses.png in `out`; -> what is wrong, also in the summary."""
    out.mkdir(parents=True, exist_ok=True)
    found = {name: judge(run, rule) for name, run in runs.items()}
    faults = [fault for name, of in found.items() for fault in wrong(name, of, rule)]
    summary = {**facts, "rule": asdict(rule), "runs": found, "wrong": faults}
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    _write_csv(out / "losses.csv", runs)
    _draw(out / "losses.png", runs, rule)
    return faults


def load(out: Path) -> dict[str, Run]:
    """The runs that `write` left in a folder, from summary.json and losses.csv; {} where there is none."""
    if not (out / "summary.json").is_file():
        return {}
    found = json.loads((out / "summary.json").read_text())["runs"]
    rows: dict[str, dict[str, list[dict[str, float]]]] = {}
    with (out / "losses.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            name, who = row.pop("run"), row.pop("who")
            del row["step"], row["difference"]
            losses = {loss: float(value) for loss, value in row.items() if value}
            rows.setdefault(name, {}).setdefault(who, []).append(losses)
    runs = {}
    for name, by in rows.items():
        twins = {side: [by[who] for who in by if who.startswith(f"noise: {side} ")] for side in ("original", "ours")}
        planted = {who.removeprefix("planted: "): losses for who, losses in by.items() if who.startswith("planted: ")}
        faint = frozenset(error for error, its in found[name]["planted"].items() if its["faint"])
        runs[name] = Run(by["original"], by["ours"], twins, planted, faint, found[name]["floor"])
    return runs


def table(summary: Mapping[str, Any]) -> str:
    """The verdicts of a summary.json as Markdown."""
    lines = [
        "| run | ours beside noise, largest | last means apart | planted error | seen at step | times noise then, most |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, of in summary["runs"].items():
        lines.append(f"| {name} | {of['ours']['times_noise']:.1f} | {of['tail_difference']:.2%} | | | |")
        for error, its in of["planted"].items():
            if (step := its["first_step_beyond"]) is None:
                seen = f"not seen | {its['times_noise']:.2g}"
            else:
                seen = f"{step} | {its['times_noise_there']:,.0f}, {its['times_noise']:,.0f}"
            lines.append(f"| {name} | | | {error} | {seen} |")
    return "\n".join(lines)


def _who(run: Run) -> dict[str, tuple[Losses, Losses]]:
    """Name -> (a trajectory, what it is compared with)."""
    twins = {
        f"noise: {side} {number}": (twin, run.original if side == "original" else run.ours)
        for side, all_of in run.noise.items()
        for number, twin in enumerate(all_of, 1)
    }
    planted = {f"planted: {name}": (losses, run.original) for name, losses in run.planted.items()}
    return {"ours": (run.ours, run.original), **twins, **planted}


def _write_csv(path: Path, runs: Mapping[str, Run]) -> None:
    """A row for each step of each trajectory."""
    names = list(dict.fromkeys(name for run in runs.values() for name in run.original[0]))
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["run", "who", "step", *names, "difference"])
        for name, run in runs.items():
            for who, (losses, other) in {"original": (run.original, run.original), **_who(run)}.items():
                for step, (row, apart) in enumerate(zip(losses, differences(losses, other))):
                    values = [f"{row[loss]:.17g}" if loss in row else "" for loss in names]
                    rows.writerow([name, who, step, *values, "" if who == "original" else f"{apart:.3g}"])


def _draw(path: Path, runs: Mapping[str, Run], rule: Rule) -> None:
    """A row for each run: its losses, and the differences on a log scale."""
    figure = Figure(figsize=(14, 4.5 * len(runs)), layout="constrained")
    for (name, run), (left, right) in zip(runs.items(), figure.subplots(len(runs), 2, squeeze=False)):
        for number, loss in enumerate(run.original[0]):
            left.plot(
                [row[loss] for row in run.original], color=f"C{number}", alpha=0.3, linewidth=5, label=f"{loss}, original"
            )
            left.plot([row[loss] for row in run.ours], color=f"C{number}", linewidth=1, label=f"{loss}, ours")
        left.set(title=name, xlabel="step", ylabel="loss", ylim=(0, None))
        left.legend(fontsize="small")
        noise = np.array(noise_of(run, rule))
        least = noise[0] / 100
        right.fill_between(
            range(len(noise)), least, rule.within * noise, color="grey", alpha=0.2, label=f"{rule.within:g} x noise"
        )
        for who, (losses, other) in _who(run).items():
            style = "-" if who == "ours" else ":" if who.startswith("noise") else "--"
            apart = np.clip(differences(losses, other), least, 10)
            right.semilogy(
                apart, style, color="black" if who == "ours" else None, linewidth=2 if who == "ours" else 1, label=who
            )
        right.set(title=f"{name}: relative differences", xlabel="step", ylim=(least, 10))
        right.legend(fontsize="x-small", ncols=2)
    figure.savefig(path, dpi=90)
