"""tests/gpu on the simulated CUDA device: a few by day, all of them by night, on copies that are done at once, late or at random."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DAY = "never_waits and fp32 and not maskrcnn"


def gpu_tests(mode: str, *words: str, **settings: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--simulated",
        mode,
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *words,
    ]
    # There, tests skip that need what no simulation has.
    plain = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST_XDIST")}
    done = subprocess.run(command, cwd=ROOT, env={**plain, **settings}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_steps_never_wait_for_the_device(simulated) -> None:
    gpu_tests("values", "tests/gpu", "-k", DAY)


@pytest.mark.nightly("100 tests, whose values a CPU computes")
def test_all_of_them_pass_with_values(simulated) -> None:
    gpu_tests("values", "tests/gpu")


@pytest.mark.nightly("ResNet-50 on a device that is full")
def test_a_full_device_is_met_without_values(simulated) -> None:
    gpu_tests("counts", "tests/gpu/test_memory_on_cuda.py")


@pytest.mark.nightly("20 s each")
@pytest.mark.parametrize("copies", ["late", "random"])
def test_loader_and_replays_pass_whenever_copies_are_done(simulated, copies: str) -> None:
    words = [
        "tests/gpu/test_loader_on_cuda.py",
        "tests/gpu/test_replay_on_cuda.py",
        "-k",
        "not captured_while and not fp16",
    ]
    gpu_tests("values", *words, SIMULATED_COPIES=copies)
