"""Spot machines: a run killed at random goes on in an empty folder from the bucket, each time, and ends as if undisturbed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import servers
from messages import check_line, check_text
from run_files import tensor_files
from tiny_runs import TINY

from paceline.training.checkpoint.layout import link_step
from paceline.training.logging.events import read_events

pytestmark = [pytest.mark.multi, pytest.mark.nightly("kills trainings beside a bucket for minutes")]
ROOT = Path(__file__).resolve().parents[2]
# More than ten kills leave: each comes at most eight checkpoints of two steps later, and somewhat more on a busy machine.
STEPS = ("--max-steps", "240", "--save-every", "2", "--eval-every", "10", "--log-every", "10")


def start(data: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    words = ["train", "classify-demo", "--data", str(data), "--output-dir", str(out), *TINY, *STEPS, *more]
    return subprocess.Popen(
        [sys.executable, "-m", "paceline", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def kill_after(process: subprocess.Popen[str], out: Path, checkpoints: int, seconds: float) -> str:
    """SIGKILL so long after so many checkpoints of this process, or let it end; -> what it said."""
    seen: set[str] = set()
    while process.poll() is None and len(seen) < checkpoints:
        seen |= {path.name for path in (out / "checkpoints").glob("step-*")}
        time.sleep(0.002)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    return process.communicate(timeout=120)[0]


@pytest.mark.parametrize("number", [0, 1])
def test_killed_at_random_it_goes_on_from_the_bucket_to_the_same_bytes(tmp_path, class_photos, s3_bucket, seed, number):
    whole = start(class_photos, tmp_path / "whole")
    assert whole.communicate(timeout=300)[0] and whole.returncode == 0
    draw, mirror = random.Random(1000 * seed + number), ("--sync-to", s3_bucket.url(f"spot-{number}"))
    brought = []
    for turn in range(10):
        out = tmp_path / f"machine-{turn}"
        said = kill_after(start(class_photos, out, *mirror), out, draw.randint(1, 8), draw.uniform(0, 0.06))
        assert "skipping" not in said and "damaged" not in said, said
        brought += [line for line in said.splitlines() if line.startswith("downloaded from")]
    last = start(class_photos, tmp_path / "last", *mirror)
    said = last.communicate(timeout=300)[0]
    assert last.returncode == 0 and len(set(brought)) >= 4, (said, brought)
    assert tensor_files(tmp_path / "last") == tensor_files(tmp_path / "whole"), (said, brought)
    best = [link_step(tmp_path / run / "checkpoints", "best") for run in ("last", "whole")]
    assert best[0] == best[1] is not None
    for kind, field in (("eval", "top1"), ("train", "loss")):
        found = [
            [
                (event["step"], event[field])
                for event in read_events(tmp_path / run / "events.jsonl")
                if event["event"] == kind
            ]
            for run in ("last", "whole")
        ]
        assert found[0] == found[1], kind
    (tmp_path / "seen.txt").write_text("\n".join(brought))


def test_a_signal_waits_for_the_upload_and_the_same_command_goes_on_elsewhere(tmp_path, class_photos, s3_bucket):
    out, mirror = tmp_path / "first", ("--sync-to", s3_bucket.url("stopped"))
    process = start(class_photos, out, *mirror)
    while not (out / "checkpoints/last").exists():
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 75 and "not uploaded" not in said, said
    other = start(class_photos, tmp_path / "second", *mirror)
    then = other.communicate(timeout=300)[0]
    newest = (out / "checkpoints/last").readlink()
    assert other.returncode == 0 and f"downloaded from {mirror[1]}: {newest}" in then, then


def test_a_store_that_is_killed_stops_no_training_and_its_end_says_so(tmp_path, class_photos, monkeypatch):
    monkeypatch.setenv("PACELINE_STORE_PATIENCE", "2")
    with servers.s3_server() as endpoint:
        bucket = servers.new_bucket(endpoint)
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        process = start(class_photos, tmp_path / "run", "--sync-to", bucket.url("gone"))
        while not (tmp_path / "run/checkpoints/last").exists():
            time.sleep(0.002)
    said = process.communicate(timeout=300)[0]
    end = read_events(tmp_path / "run/events.jsonl")[-1]
    assert process.returncode == 0 and end["event"] == "end" and end["step"] == 240, said
    assert check_text(end["mirror"]["missing"], "step-000240", "(connection refused"), end
    assert check_line(said, "training") and "not uploaded: step-000240" in said, said
