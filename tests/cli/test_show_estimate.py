"""`show` says what a plan will take: from what was published, what a run measured, or what it is told."""

from __future__ import annotations

import json
import statistics

import pytest
from tiny_runs import command

from paceline.systems.published_results import RESULTS

EIGHT_NODES = ("show", "resnet50-mlperf-3200-8x8", "--system", "dgx-h100", "--nodes", 8)


def test_a_published_system_is_estimated_with_basis_and_known_error(capsys):
    said = command(capsys, *EIGHT_NODES)
    assert said.code == 0
    first, second, third = said.out[said.out.index("estimate ") :].splitlines()
    assert "computing" in first and "waiting for gradients" in first and "between 8 nodes" in first
    assert "images/s" in second and "the recipe's end" in second and "the published 35 epochs" in second
    assert "MLPerf v3.0" in third and "paceline has not run there" in third and "-12 to -5 %" in third


def test_json_has_the_same_and_lies_near_the_published_run(capsys):
    found = json.loads(command(capsys, *EIGHT_NODES, "--json").out)["estimate"]
    row = next(row for row in RESULTS if row.recipe == "resnet50-mlperf-3200-8x8")
    assert found["images_per_second"] / 64 == pytest.approx(row.rate, rel=0.05)
    assert found["target_epochs"] == row.epochs and found["target_minutes"] == pytest.approx(row.minutes, rel=0.1)
    assert found["step_seconds"] == pytest.approx(found["compute_seconds"] + found["exposed_seconds"])
    assert found["minutes"] > found["target_minutes"] > 0


def test_a_rate_that_is_told_outweighs_the_published_one(capsys):
    found = json.loads(command(capsys, *EIGHT_NODES, "--rate", 1000, "--link-gbit", 10, "--json").out)["estimate"]
    assert found["compute_seconds"] == pytest.approx(0.05) and "--rate 1000" in found["basis"]
    assert found["exposed_seconds"] > 0.1


def test_unknown_links_are_said(capsys):
    said = command(capsys, "show", "ssd-mlperf-1024", "--system", "c4140", "--nodes", 2).out
    assert "--link-gbit N" in said and "after at least" in said


def test_a_row_of_the_system_alone_stands_in_where_its_chip_has_no_fit(capsys):
    said = command(capsys, "show", "ssd-mlperf-1024-dss8440", "--system", "dss8440").out
    assert "494 a rank" in said and "one published row" in said and "error is not known" in said


def test_where_nothing_is_known_it_says_how_to_know(capsys):
    said = command(capsys, "show", "ssd-mlperf-1024", "--system", "mi300x8")
    assert said.code == 0 and "estimate none" in said.out and "--rate IMG/S" in said.out
    assert (
        json.loads(command(capsys, "show", "ssd-mlperf-1024", "--system", "mi300x8", "--json").out)["estimate"] is None
    )


def test_a_run_is_estimated_from_what_it_measured(capsys, ssd_run):
    found = json.loads(command(capsys, "show", ssd_run.folder, "--json").out)
    events = [json.loads(line) for line in (ssd_run.folder / "events.jsonl").read_text().splitlines()]
    rates = [event["images_per_second"] for event in events if event["event"] == "train"]
    assert found["estimate"]["images_per_second"] == pytest.approx(statistics.median(rates[1:] or rates))
    assert "this run's own" in found["estimate"]["basis"]
    # Another machine is not what it measured.
    elsewhere = json.loads(command(capsys, "show", ssd_run.folder, "--system", "p3dn", "--json").out)
    assert elsewhere["estimate"] is None


@pytest.mark.parametrize("words", [("--rate", "-1"), ("--rate", "inf"), ("--link-gbit", "nan")])
def test_a_speed_that_cannot_be_is_refused_in_a_line(capsys, words):
    said = command(capsys, "show", "ssd-tiny", *words)
    assert said.code == 2 and said.err.count("\n") == 1 and words[0] in said.err
