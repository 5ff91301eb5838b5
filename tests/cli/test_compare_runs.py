"""`paceline compare`: differences, what came of them, and two kinds of chance; the permutation test beside counting by hand."""

from __future__ import annotations

import json
import math
import shutil
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import check_line, check_text
from tiny_runs import command, forge, refused, train

from paceline.cli.commands import compare
from paceline.cli.commands.compare import paired_interval
from paceline.models.metrics.bootstrap import paired_difference, resample_accuracy

pytestmark = pytest.mark.usefixtures("no_report")


@pytest.fixture
def runs(class_photos, tmp_path, capsys) -> tuple[Path, Path, Path]:
    """Two of one recipe with other seeds, and one with another rate."""
    for name, more in (("a1", ("--seed", 1)), ("a2", ("--seed", 2)), ("b1", ("--optim.lr", 0.5))):
        assert train(capsys, class_photos, tmp_path / name, *more, "--eval-every", 1, steps=2).code == 0
    return tmp_path / "a1", tmp_path / "a2", tmp_path / "b1"


def test_runs_of_other_seeds_are_a_side_and_what_differs_comes_first(runs, capsys):
    found = json.loads(command(capsys, "compare", *runs, "--json").out)
    assert list(found["differences"]) == ["recipe.optim.lr"] and found["differences"]["recipe.optim.lr"][1] == "0.5"
    assert [(row["side"], row["name"], row["seed"]) for row in found["runs"]] == [
        ("A", "a1", 1),
        ("A", "a2", 2),
        ("B", "b1", 1),
    ]
    assert found["metric"] == "top1" and [side["runs"] for side in found["sides"]] == [2, 1]
    assert all(row["reached"][1] == row["reached"][0] * 8 for row in found["runs"] if row["reached"])
    (verdict,) = found["verdicts"]
    assert verdict["seeds"]["p"] is None and verdict["photos"]["photos"] == 9
    said = command(capsys, "compare", *runs)
    assert said.out.startswith("differs:\n  recipe.optim.lr  A ") and check_line(said.out, "seeds", "2 and 1", "3 per side")
    assert check_text(command(capsys, "compare", *runs[:2]).out.splitlines()[0], "only", "seeds")


def test_an_unfinished_run_is_shown_and_does_not_count(runs, capsys, tmp_path):
    events = runs[1] / "events.jsonl"
    events.write_text("".join(line + "\n" for line in events.read_text().splitlines() if '"event": "end"' not in line))
    found = json.loads(command(capsys, "compare", *runs, "--json").out)
    assert [row["status"] for row in found["runs"]] == ["stopped_early", "unfinished", "stopped_early"]
    assert found["sides"][0]["runs"] == 1 and "unfinished" in command(capsys, "compare", *runs).out


def test_what_cannot_be_compared_is_refused(runs, ssd_run, capsys, tmp_path):
    refused(command(capsys, "compare", runs[0]), "two runs")
    refused(command(capsys, "compare", runs[0], tmp_path / "gone"), "run.json")
    refused(command(capsys, "compare", runs[0], ssd_run.folder), "tasks ... classification, detection")
    refused(command(capsys, "compare", *runs[:2], "--metric", "box_ap"), "top1, top5")
    forge(runs[0], {"recipe.task": "strange"})
    assert command(capsys, "compare", *runs[:2]).code == 0  # a workload of one's own with the same scores


values = st.lists(st.integers(0, 6).map(lambda n: n / 7), min_size=1, max_size=3)


@settings(deadline=None)
@given(values, values)
def test_the_permutation_test_counts_every_order(one, other):
    seen, count = abs(np.mean(one) - np.mean(other)), 0
    for order in permutations([*one, *other]):
        count += abs(np.mean(order[: len(one)]) - np.mean(order[len(one) :])) >= seen - 1e-12
    assert compare.permutation_p_value(one, other) == pytest.approx(count / math.factorial(len(one) + len(other)))


def test_many_runs_draw_orders_and_agree_with_counting_all(monkeypatch):
    random = np.random.default_rng(0)
    one, other = random.normal(0, 1, 8).tolist(), random.normal(0.9, 1, 8).tolist()
    whole = compare.permutation_p_value(one, other)
    monkeypatch.setattr(compare, "MAX_ORDERS", 5_000)
    assert compare.permutation_p_value(one, other) == pytest.approx(whole, abs=0.02) and 0.001 < whole < 0.5


def test_the_paired_interval_is_that_of_the_drawn_photos_and_other_photos_have_none(runs, tmp_path):
    right = []
    for run in (runs[0], runs[2]):
        images = json.loads(sorted((run / "predictions").glob("step-*.json"))[-1].read_text())["images"]
        right.append(np.array([image["top5"][0]["class"] == image["label"] for image in images]))
    wanted = paired_difference(*(resample_accuracy({"top1": some}) for some in right))["top1"]
    assert paired_interval([runs[0]], [runs[2]], "top1") == {"interval": list(wanted), "photos": 9}
    other = shutil.copytree(runs[2], tmp_path / "other", symlinks=True)
    file = sorted((other / "predictions").glob("step-*.json"))[-1]
    record = json.loads(file.read_text())
    record["images"][0]["label"] += 1
    file.write_text(json.dumps(record))
    assert paired_interval([runs[0]], [other], "top1") == {"why": "the runs were scored on different images or labels"}
    shutil.rmtree(other / "predictions")
    assert "why" in paired_interval([runs[0]], [other], "top1") and "why" in paired_interval([runs[0]], [], "top1")


@pytest.mark.parametrize("metric", ["box_ap50", "mask_ap"])
def test_a_detector_beside_itself_differs_by_nothing(maskrcnn_run, metric):
    found = paired_interval([maskrcnn_run.folder], [maskrcnn_run.folder], metric)
    assert found["interval"] == [0, 0]
    assert paired_interval([maskrcnn_run.folder], [maskrcnn_run.folder], "box_ap_small") == {
        "why": "resampling is not supported for box_ap_small"
    }
