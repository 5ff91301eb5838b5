"""How long a job may take; what several seeded runs come to."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import check_text, raises

from paceline._utils.errors import PacelineError
from paceline.cli.commands.launch import LaunchTrial, format_trials, read_trial
from paceline.launch.config import check_walltime, parse_walltime
from paceline.launch.job import BatchOptions
from paceline.tools.mlperf.logs import olympic_mean
from paceline.training.logging.events import EventLog


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("", 0), ("90s", 2), ("30m", 30), ("2h", 120), ("1.5h", 90), ("1d", 1440), ("2:00:00", 120), ("20:30", 21)],
)
def test_a_walltime_in_minutes(text, minutes):
    assert parse_walltime(text) == minutes


@pytest.mark.parametrize("text", ["2", "0m", "-2h", "2 hours", "400d", "nan", "inf", "1e3m", "1:2:3"])
def test_what_is_no_walltime(text):
    with raises(PacelineError, "auto", "90m"):
        parse_walltime(text)


def test_a_walltime_without_room_for_one_checkpoint():
    check_walltime(0, BatchOptions())
    check_walltime(4, BatchOptions(grace_seconds=120))
    with raises(PacelineError, "checkpoint", "--walltime 4m"):
        check_walltime(3, BatchOptions(grace_seconds=120))
    with pytest.raises(PacelineError, match=r"--slurm\.grace-seconds 0"):
        check_walltime(60, BatchOptions(grace_seconds=0))


def test_five_runs_are_scored_without_the_fastest_and_the_slowest():
    assert olympic_mean([5.0, 1.0, 4.0, 100.0, 3.0]) == 4.0
    assert olympic_mean([5.0, 1.0, 4.0, math.inf, 3.0]) == 4.0  # a failed run is the slowest
    assert olympic_mean([5.0, math.inf, 4.0, math.inf, 3.0]) == math.inf


@given(st.lists(st.floats(1, 1e6), min_size=3))
def test_a_score_lies_between_the_runs(seconds):
    assert min(seconds) * (1 - 1e-9) <= olympic_mean(seconds) <= max(seconds) * (1 + 1e-9)


def test_a_line_for_scripts_and_a_summary(tmp_path):
    trials = [LaunchTrial(number, 7 + number, seconds, "success") for number, seconds in enumerate((61.5, 60.0, 90.0))]
    assert trials[1].line("ssd-demo") == "RESULT,ssd-demo,1,8,60.000,success,unchecked"
    assert check_text(format_trials(trials), "3 of 3", "median 1 min 02 s", "slowest 1 min 02 s")
    failed = [*trials[:2], read_trial(2, 9, tmp_path)]
    assert failed[-1].line("x") == "RESULT,x,2,9,inf,not finished,unchecked"
    judged = [replace(trials[0], checked=True), replace(trials[1], checked=False), trials[2]]
    assert [trial.line("x").rpartition(",")[2] for trial in judged] == ["passed", "failed", "unchecked"]
    assert check_text(format_trials(judged), "MLPerf's checker", "1 of 2")
    assert check_text(format_trials(failed[1:]), "1 of 2", "median none")


def test_a_trial_is_read_from_its_end(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    log.write("end", step=3, epoch=1.0, seconds=12.5, status="success", best={})
    assert read_trial(0, 1, tmp_path) == LaunchTrial(0, 1, 12.5, "success")
    log.write("end", step=3, epoch=1.0, seconds=12.5, status="ran_out", best={})
    assert read_trial(0, 1, tmp_path) == LaunchTrial(0, 1, math.inf, "ran_out")
