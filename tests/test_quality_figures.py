"""results/seeds: each figure of quality has its seeds, and "better" is said of no two whose intervals overlap."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "results" / "seeds"
FOUND: dict[str, Any] = json.loads((FOLDER / "figures.json").read_text())
FIGURES: dict[str, dict[str, Any]] = FOUND["figures"]
LABELS = {"top1": "top-1", "box_ap50": "box AP50", "mask_ap50": "mask AP50"}
# Student's t at 97.5 percent, by the number of seeds.
T = {3: 4.3027, 4: 3.1824, 5: 2.7764}
SPREAD = re.compile(r"(?:top-1|box AP50|mask AP50) \**(\d\.\d{3}) (?:\+-|±) (\d\.\d{3})")
COMPARING = re.compile(r"\b(better|beats?|wins?|outperforms?|ahead of)\b", re.IGNORECASE)


def ends(figure: dict[str, Any]) -> tuple[float, float]:
    """Of the 95 percent interval of the mean over seeds."""
    values = figure["values"]
    half = T[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return statistics.fmean(values) - half, statistics.fmean(values) + half


def apart(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the first is better."""
    return ends(one)[0] > ends(other)[1]


def spread(figure: dict[str, Any]) -> tuple[str, str]:
    return f"{statistics.fmean(figure['values']):.3f}", f"{statistics.stdev(figure['values']):.3f}"


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_three_seeds_and_stands_in_its_row(name):
    figure = FIGURES[name]
    assert len(figure["values"]) >= 3
    mean, deviation = spread(figure)
    seeds = ", ".join(f"{value:.3f}" for value in figure["values"])
    row = f"| {LABELS[figure['metric']]} {mean} +- {deviation} | {seeds} |"
    text = (FOLDER / "README.md").read_text()
    assert row in text and figure["what"] in text and figure["command"] in text


@pytest.mark.parametrize("pair", FOUND["better"], ids="-".join)
def test_better_is_said_of_intervals_that_lie_apart(pair):
    one, other = (FIGURES[name] for name in pair)
    assert apart(one, other) and one["metric"] == other["metric"] and one["photos"] == other["photos"]
    # At the same cost, or a lower one.
    assert one["cpu_seconds"][0] <= other["cpu_seconds"][1] * 1.1


@pytest.mark.parametrize("page", ["README.md", "results/README.md"])
def test_claims_have_the_spread_of_their_seeds_and_no_verdict_of_their_own(page):
    known = {spread(figure) for figure in FIGURES.values()}
    claims = [line for line in (ROOT / page).read_text().splitlines() if "results/" in line or line.startswith("| ")]
    written = [found for line in claims for found in SPREAD.findall(line)]
    assert written and set(written) <= known
    assert not [line for line in claims if COMPARING.search(line)], "verdicts stand in results/seeds"


def test_overlapping_intervals_are_no_verdict():
    one = {"values": [0.60, 0.62, 0.61], "metric": "top1"}
    assert apart(one, {"values": [0.50, 0.51, 0.52]}) and not apart(one, {"values": [0.55, 0.60, 0.61]})
    assert not apart(one, one) and SPREAD.findall("top-1 0.857 +- 0.016 in") == [("0.857", "0.016")]
