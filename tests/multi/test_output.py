"""Training whose output goes away: it goes on, says so once where it can, and leaves what it always leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from by_night import ONE_MORE
from messages import check_lines, check_text
from small_run import ROOT, assert_same_run, said

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("ranks")]

FLAGS = "--max-steps 6 --log-every 1"


@pytest.fixture(scope="module")
def heard(trainer) -> Path:
    """The run that somebody listened to."""
    return trainer.finished(trainer.folder / "heard", FLAGS)


@pytest.fixture
def streams(trainer):
    """trainer.environ, for STDOUT and STDERR; as it was afterwards."""
    before = dict(trainer.environ)
    yield trainer.environ
    trainer.environ.clear()
    trainer.environ.update(before)


def test_a_reader_that_leaves_does_not_end_training(trainer, streams, heard, tmp_path):
    pipe = streams["STDOUT"] = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    job = trainer.start(trainer.train(tmp_path / "run", FLAGS))
    with open(pipe) as reader:
        assert any(line.startswith("step 1/6") for line in iter(reader.readline, ""))  # the plan comes before it
    (ended,) = job.wait()
    assert ended.code == 0, said([ended])
    # One line: the loss of the output, and where to look instead.
    (line,) = ended.text.splitlines()
    assert check_text(line, "stdout", "Broken pipe", f"{tmp_path}/run/events.jsonl")
    assert_same_run(tmp_path / "run", heard)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=ONE_MORE)])
def test_a_full_disk_under_stdout_and_stderr_does_not_end_training(trainer, streams, heard, tmp_path, ranks):
    streams.update(STDOUT="/dev/full", STDERR="/dev/full")
    ended = trainer.run(trainer.train(tmp_path / "run", FLAGS), ranks=ranks)
    assert [rank.code for rank in ended] == [0] * ranks
    if ranks == 1:
        assert_same_run(tmp_path / "run", heard)


def paceline(redirections: str, *words: str) -> tuple[int, str]:
    """The command line as a shell starts it -> exit code, stderr."""
    command = f'exec "{sys.executable}" -m paceline {" ".join(words)} {redirections}'
    done = subprocess.run(
        ["bash", "-c", command], stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    return done.returncode, done.stderr


def test_a_command_that_only_prints_fails_where_it_cannot_and_a_closed_descriptor_stays_unused():
    code, said = paceline(">/dev/full", "--help")
    assert code == 3 and check_lines(said.splitlines(), ("output", "No space left on device"))
    code, said = paceline(">&-", "--version")
    assert code == 3 and "(Bad file descriptor)" in said
    assert paceline(">&- 2>&-", "nonsense") == (2, "")
    assert paceline("2>/dev/full", "nonsense") == (2, "")
    code, said = paceline("<&- >&-", "nonsense")
    assert code == 2 and check_text(said, "command", "'nonsense'")
