"""What `paceline compare` found, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from paceline._utils.formatting import duration, metric_label, metric_text
from paceline.training.saved_run import ENDED

CHANCE = 0.05  # below, a difference is called more than chance


def in_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The differences, a line a run, the way to a score that all have reached, and a verdict for every two sides."""
    metric, rows = found["metric"], found["runs"]
    label = metric_label(metric)
    letters = list(dict.fromkeys(row["side"] for row in rows))
    if found["differences"]:
        yield "differs:"
        width = max(map(len, found["differences"]))
        for name, values in found["differences"].items():
            yield f"  {name:<{width}}  " + "  |  ".join(
                f"{side} {_short(value)}" for side, value in zip(letters, values)
            )
    else:
        yield "nothing differs but the seeds"
    yield ""
    width = max(len(row["name"]) for row in rows)
    yield f"  side {'run':<{width}} {'seed':>5} {'steps':>8} {'time':>10} {'last':>8} {'best':>8}  {label}"
    for row in rows:
        cells = [metric_text(metric, row[which]) if row[which] is not None else "-" for which in ("last", "best")]
        note = "" if row["status"] in ENDED else f"  {row['status'].replace('_', ' ')}"
        time = duration(row["seconds"])
        what = f"  {row['side']:<4} {row['name']:<{width}} {row['seed']:>5} {row['steps']:>8,}"
        yield f"{what} {time:>10} {cells[0]:>8} {cells[1]:>8}{note}"
    if found["common"] is not None and len(rows) > 1:
        yield ""
        yield f"to {label} {metric_text(metric, found['common'])}, which all have reached:"
        for row in rows:
            steps, samples, seconds = row["reached"]
            yield f"  {row['side']:<4} {row['name']:<{width}} {steps:>8,} steps {samples:>12,} samples {duration(seconds):>10}"
    for side, spread in zip(letters, found["sides"]):
        if spread["runs"]:
            more = f" +- {metric_text(metric, spread['deviation'])}" if spread["deviation"] is not None else ""
            yield f"{side}: {metric_text(metric, spread['mean'])}{more} at the end, {spread['runs']} finished"
    for verdict in found["verdicts"]:
        one, other = (letters[number] for number in verdict["sides"])
        yield _verdict(f"{other} - {one}", verdict, metric)


def _verdict(what: str, verdict: Mapping[str, Any], metric: str) -> str:
    seeds, photos = verdict["seeds"], verdict["photos"]
    if seeds["p"] is None:
        text = f"{what}: no verdict over seeds: {seeds['why']}"
    else:
        sure = "more than other seeds explain" if seeds["p"] <= CHANCE else "within what other seeds explain"
        if seeds["apart"] and seeds["p"] > CHANCE:
            sure = "each run of one side beyond each of the other, and so few seeds cannot show more"
        text = f"{what}: {_signed(metric, seeds['difference'])}, {sure} (permutation test, p {seeds['p']:.3g})"
    if "interval" in photos:
        low, high = photos["interval"]
        sure = "not by the photos' chance" if low > 0 or high < 0 else "which other photos may turn round"
        text += f"; on the same {photos['photos']:,} photos between {_signed(metric, low)} and {_signed(metric, high)}, {sure}"
    else:
        text += f"; no interval over photos: {photos['why']}"
    return text


def _signed(metric: str, value: float) -> str:
    return ("+" if value >= 0 else "-") + metric_text(metric, abs(value))


def _short(value: str) -> str:
    return value if len(value) <= 40 else f"{value[:37]}..."
