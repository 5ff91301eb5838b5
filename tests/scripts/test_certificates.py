"""The rule that certificates judge by: what is within rounding noise passes, what is not is named, an error nobody sees is named."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
STEPS = 40


@pytest.fixture
def verdict(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "certificates"))
    return importlib.import_module("verdict")


def losses(off: float = 0.0, after: int = 0) -> list[dict[str, float]]:
    """Falling losses; from step `after` on they are `off` of themselves away, and ten times as far ten steps later."""
    return [
        {"loss": 7 * 0.99**step * (1 + (off * 10 ** ((step - after) / 10) if step >= after else 0))}
        for step in range(STEPS)
    ]


def agreeing(verdict):
    twins = {"original": [losses(2e-6)], "ours": [losses(4e-6)]}
    return verdict.Run(losses(), losses(5e-6), twins, {"class shifted": losses(1e-2), "decay": losses(1e-2, after=7)})


def test_a_difference_within_noise_passes_and_planted_errors_are_placed(verdict, tmp_path):
    assert verdict.write(tmp_path, {"sgd": agreeing(verdict)}, verdict.Rule(), {"images": 8}) == []
    summary = json.loads((tmp_path / "summary.json").read_text())
    found = summary["runs"]["sgd"]
    assert summary["images"] == 8 and found["steps"] == STEPS and len(found["noise"]) == 20
    assert found["ours"]["times_noise"] == pytest.approx(2.5)
    assert found["planted"]["class shifted"]["first_step_beyond"] == 0
    assert found["planted"]["decay"]["first_step_beyond"] == 7
    assert len((tmp_path / "losses.csv").read_text().splitlines()) == 1 + 6 * STEPS
    assert (tmp_path / "losses.png").read_bytes().startswith(b"\x89PNG")
    assert verdict.table(summary).count("\n") == 4
    assert verdict.load(tmp_path) == {"sgd": agreeing(verdict)}


def test_what_is_not_within_noise_is_named(verdict):
    run, rule = agreeing(verdict), verdict.Rule()

    def faults(**changes: object) -> str:
        changed = replace(run, **changes)
        return "; ".join(verdict.wrong("sgd", verdict.judge(changed, rule), rule))

    assert "step 9 is further" in faults(ours=losses(1e-3, after=9), noise={"original": [losses(2e-6)]})
    no_number = losses()
    no_number[3] = {"loss": float("nan")}
    assert "step 3 is further" in faults(ours=no_number, noise={"original": [losses(2e-6)]})
    assert "last steps differ" in faults(ours=losses(0.05, after=30), noise={"original": [losses(2e-6)]})
    assert faults(planted={"epsilon": losses(6e-6)}) == "sgd: epsilon is not noticed"
    assert faults(planted={"epsilon": losses(6e-6)}, faint=frozenset({"epsilon"})) == ""


def test_a_twin_starts_at_the_neighbours_of_each_number(verdict):
    weights = {"a": np.array([1.0, -2.0, 0.0] * 50, np.float32), "b": np.ones(20)}
    twin = verdict.one_ulp_away(weights, 3)
    assert {name: array.dtype for name, array in twin.items()} == {"a": np.float32, "b": np.float64}
    moved = (twin["a"] - weights["a"])[weights["a"] != 0]
    assert set(np.abs(moved / np.spacing(np.abs(weights["a"][weights["a"] != 0])))) <= {0.5, 1.0}  # below 1 they lie closer
    assert (moved > 0).any() and (moved < 0).any() and not twin["a"][weights["a"] == 0].any()


def test_a_certificate_s_page_has_the_table_of_its_summary_and_nothing_is_wrong(verdict):
    for folder in (ROOT / "results").glob("certificate-*"):
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["wrong"] == [], folder.name
        rule = verdict.Rule(**summary["rule"])
        again = {name: verdict.judge(run, rule) for name, run in verdict.load(folder).items()}
        assert json.loads(json.dumps(again)) == summary["runs"], f"{folder.name}: losses.csv gives another verdict"
        assert verdict.table(summary) in (folder / "README.md").read_text(), folder.name
