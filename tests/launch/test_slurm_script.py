"""What the sbatch script does when its time is up: carried out by bash, with srun, scontrol and readlink's link played."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from messages import check_line, check_text, raises

from paceline._utils.errors import PacelineError
from paceline.launch.job import BatchOptions, LaunchJob
from paceline.launch.runner import launch_job, make_files, write_files

# Ends when the STOP file is there, as ranks do; saves a checkpoint first where SAVES says so.
SRUN = """#!/usr/bin/env bash
while [ $# -gt 0 ]; do [ "$1" = -c ] && [ -n "${BETWEEN:-}" ] && { touch "$RUN/started"; exec sh -c "$2"; }; shift; done
touch "$RUN/started"
until [ -e "$RUN/STOP" ]; do [ -n "${ENDS:-}" ] && break; sleep 0.02; done
[ -n "${SAVES:-}" ] && ln -sfn step-000009 "$RUN/checkpoints/last"
[ -n "${CODE:-}" ] && echo "$CODE" > "$PACELINE_EXIT_CODE_FILE"
exit 1
"""
SCONTROL = """#!/usr/bin/env bash
echo "$@" > "$RUN/asked"
"""


def carried_out(
    tmp_path: Path, how: signal.Signals | None, *, requeue: bool = True, between: str = "", **environ: str
) -> tuple[int, str, Path]:
    """-> the script's exit code, what it printed, the run's folder."""
    run, programs = tmp_path / "a run", tmp_path / "bin"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "last").symlink_to("step-000005")
    programs.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    job = LaunchJob(
        ("train", "x"),
        run,
        "x",
        nodes=2,
        through="slurm",
        start="srun",
        walltime_minutes=9,
        batch=BatchOptions(requeue=requeue),
        between=between,
    )
    (path,) = write_files(job, make_files(job))
    process = subprocess.Popen(
        ["bash", str(path)],
        env={"PATH": f"{programs}:{os.environ['PATH']}", "RUN": str(run), "SLURM_JOB_ID": "12", **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    until = time.monotonic() + 20
    while not (run / "started").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    if how is not None:
        process.send_signal(how)
    text, _ = process.communicate(timeout=20)
    assert not (run / "STOP").exists()
    return process.returncode, text, run


def test_its_walltime_up_a_saved_job_is_queued_again(tmp_path):
    code, text, run = carried_out(tmp_path, signal.SIGUSR1, SAVES="1", CODE="75")
    assert (code, (run / "asked").read_text().strip()) == (75, "requeue 12")
    assert "job 12" in text


def test_a_job_that_saved_nothing_is_not_queued_for_ever(tmp_path):
    code, text, run = carried_out(tmp_path, signal.SIGUSR1, CODE="75")
    assert code == 75 and not (run / "asked").exists()
    check_text(text, "checkpoint", "--walltime")


def test_without_requeue_the_same_command_goes_on(tmp_path):
    code, text, run = carried_out(tmp_path, signal.SIGUSR1, requeue=False, SAVES="1", CODE="75")
    assert code == 75 and not (run / "asked").exists() and "same command" in text


def test_a_run_that_is_asked_to_stop_is_not_queued_again(tmp_path):
    code, _, run = carried_out(tmp_path, signal.SIGTERM, SAVES="1", CODE="75")
    assert code == 75 and not (run / "asked").exists()


@pytest.mark.parametrize(("left", "code"), [("0", 0), ("1", 1), ("2", 2), ("", 3)])
def test_the_script_ends_with_what_rank_0_left_whatever_srun_says(tmp_path, left, code):
    assert carried_out(tmp_path, None, ENDS="1", CODE=left)[0] == code


def test_a_command_between_that_fails_is_said_and_leaves_a_code(tmp_path):
    left = tmp_path / "a run" / "launch" / "exit-code"
    left.parent.mkdir(parents=True)
    left.write_text("0\n")  # of an earlier start
    code, text, _ = carried_out(tmp_path, None, between="cd /no/'such folder'", BETWEEN="1")
    assert code == 3 and left.read_text() == "3\n"
    assert check_text(text.splitlines()[-1], "--pre-run-command", "cd /no/'such folder'")


@pytest.fixture
def queue(tmp_path, monkeypatch) -> Path:
    """A cluster in which job 12 runs for as long as the file is there; sbatch submits it."""
    programs, running = tmp_path / "bin", tmp_path / "running"
    programs.mkdir()
    texts = {
        "squeue": f"[ -e {running} ] && echo RUNNING",
        "sbatch": f"touch {running}; echo 12; echo submitted >> {tmp_path}/submitted",
        "scontrol": "echo JobId=12 JobState=COMPLETED ExitCode=0:0",
    }
    for name, text in texts.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr("paceline.launch.schedulers.slurm.ASK_SECONDS", 0.0)
    return running


def test_a_job_that_is_still_there_is_followed_by_the_same_command_alone(tmp_path, queue):
    job = LaunchJob(("train", "x"), tmp_path / "run", "x", through="slurm", start="srun", walltime_minutes=9)
    assert launch_job(job, say=lambda text: None) == 3  # nobody left a code
    job.exit_code_file.write_text("1\n")
    said: list[str] = []
    assert launch_job(replace(job, walltime_minutes=10), say=said.append) == 1  # what the job left meanwhile stays
    check_line(said, "job 12", "submitted before")
    script = (job.launch_folder / "job.sbatch").read_text()
    for dry in (False, True):
        with raises(PacelineError, "job 12", "job.sbatch", "scancel 12"):
            launch_job(replace(job, words=("train", "y")), dry=dry, say=lambda text: None)
        assert (job.launch_folder / "job.sbatch").read_text() == script
    assert (tmp_path / "submitted").read_text().count("\n") == 1
    queue.unlink()
    assert launch_job(replace(job, words=("train", "y")), say=lambda text: None) == 3
    assert (tmp_path / "submitted").read_text().count("\n") == 2
