"""The GPU campaign rehearsed: tiny sizes with values, through the GPU's own lines; ended in the middle, and called again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import device
import pytest

GPU = device.ROOT / "scripts" / "gpu"
# One of each kind; the others differ from these by a network. tests/gpu: test_gpu_tests.py. Not "decode": nvJPEG is a library of
# NVIDIA's that finds no GPU here.
SHORT = (
    "ceilings", "against-cpu", "all-maskrcnn", "gate-resnet", "gate-maskrcnn", "throughput-ssd", "syncs", "resume", "target-ssd-demo",
    "oracle-maskrcnn", "conv-relu", "input", "convolutions", "profiles",
)  # fmt: skip
# Those whose files come back, packed.
KEEPS = ("gate-resnet", "gate-maskrcnn", "throughput-ssd", "syncs", "target-ssd-demo", "profiles")
# Without values, these are really compiled, and Triton kernels are launched. "fill" compiles for the two items that follow it.
COMPILED = (("fill", "all-resnet", "all-ssd"), ("all-maskrcnn",), ("autotune",), ("search",))
# The Python of another environment, with another torch (results/gpu).
PYTHONS = (sys.executable, *filter(None, [os.environ.get("REHEARSE_WITH", "")]))
with_each_python = pytest.mark.parametrize("python", PYTHONS, ids=("this", "other")[: len(PYTHONS)])


def started(tmp_path: Path, *words: object, python: str = sys.executable, values: bool = True) -> subprocess.Popen[str]:
    own = ["--out", tmp_path / "out", "--scratch", tmp_path / "scratch", "--tiny", *words]
    command = [python, device.__file__, *(["--values"] if values else []), str(GPU / "campaign.py"), *map(str, own)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def photos_of(shared_data: Path, tmp_path: Path) -> Path:
    photos = tmp_path / "photos"
    words = [sys.executable, str(GPU / "photos.py"), str(shared_data), str(photos), "--mb", "3"]
    subprocess.run(words, check=True, capture_output=True)
    return photos


def lines_of(tmp_path: Path) -> list[dict[str, Any]]:
    file = tmp_path / "out" / "results.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def ends_of(tmp_path: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for line in lines_of(tmp_path):
        if "exit" in line:
            found.setdefault(line["item"], []).append(line["exit"])
    return found


@pytest.mark.nightly("an item of each kind, whose values a CPU computes")
@with_each_python
@pytest.mark.parametrize("item", SHORT)
def test_an_item_of_each_kind_ends_well_and_fills_its_tables(
    simulated, shared_data, tmp_path: Path, python: str, item: str
) -> None:
    campaign = started(
        tmp_path, "all", "--photos", photos_of(shared_data, tmp_path), "--limit", 6000, "--only", item, python=python
    )
    said, _ = campaign.communicate()
    assert campaign.returncode == 0, said[-4000:] + (tmp_path / "out" / "log.txt").read_text()[-4000:]
    assert ends_of(tmp_path) == {item: [[0]]}
    for facts in lines_of(tmp_path):
        assert "refused" not in facts and facts.get("agrees", True), facts
    kept = {"kept.tar.gz"} if item in KEEPS else set()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"log.txt", "results.jsonl", "tables.md", *kept}
    tables = (tmp_path / "out" / "tables.md").read_text()
    assert "not readable" not in tables
    assert ("the same / the same" in tables) == (item == "resume") and "| 0.00 / 0.00 |" not in tables


@pytest.mark.nightly("all forms of the networks, compiled")
@with_each_python
@pytest.mark.parametrize("items", COMPILED, ids="-and-".join)
def test_every_form_compiles_and_is_captured(simulated, tmp_path: Path, python: str, items: tuple[str, ...]) -> None:
    campaign = started(tmp_path, "all", "--limit", 12000, "--only", *items, python=python, values=False)
    said, _ = campaign.communicate()
    assert campaign.returncode == 0, said[-4000:] + (tmp_path / "out" / "log.txt").read_text()[-4000:]
    scenes = [scene for facts in lines_of(tmp_path) for scene in facts.get("step", {}).values()]
    assert scenes and ends_of(tmp_path).keys() == set(items)
    # The speed of a form means nothing on this device: a form that is much slower than the first is measured in fewer rounds.
    absent = [reason for scene in scenes for reason in scene["absent"].values() if "times slower than" not in reason]
    assert not absent, absent


@pytest.mark.nightly("compilations and a step of each form, the first of them twice")
def test_a_campaign_that_is_ended_goes_on_with_the_next_item(simulated, shared_data, tmp_path: Path) -> None:
    # Without photos the second item would end at once, before it can be interrupted.
    words = ["second", "--photos", photos_of(shared_data, tmp_path), "--limit", 3000]
    first = started(tmp_path, *words)
    while first.poll() is None and not ends_of(tmp_path):
        time.sleep(0.1)
    first.send_signal(signal.SIGTERM)
    first.communicate()
    assert first.returncode == 128 + signal.SIGTERM and len(ends_of(tmp_path)) == 1
    again = started(tmp_path, *words)
    said, _ = again.communicate()
    assert again.returncode == 0 and "== all-maskrcnn: done before" in said, said
    assert ends_of(tmp_path) == {"all-maskrcnn": [[0]], "input": [[0]]}
    assert (tmp_path / "out" / "env.txt").read_text().startswith("python ")
