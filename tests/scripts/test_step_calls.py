"""scripts/step_calls.py counts, and finds what would stop a graph."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.nightly("counts the operations of full-sized steps")
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "step_calls.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("step_calls", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("recipe", ["resnet50-tiny", "ssd-tiny", "maskrcnn-tiny"])
def test_a_step_has_calls_in_each_phase_and_nothing_of_the_host_s(script, recipe):
    name, _, *counts, reads, numbers = (cell.strip() for cell in script.row(recipe).strip("| ").split("|"))
    *phases, whole = (int(count.replace(",", "")) for count in counts)
    assert name == recipe and all(phases) and sum(phases) == whole
    assert (reads, numbers) == ("0", "0")


def test_reads_and_numbers_of_the_host_s_are_counted(script):
    x, held = torch.ones(3, device="meta"), []
    for number in (0.1, 0.2):
        with script.Calls() as calls:
            x.mul_(number).add_(torch.tensor(number))
            torch.ones(3).sum().item()
            torch.ones(3)[torch.ones(3) > 0]
        held.append(calls.held)
        assert calls.reads == 2
    assert sum(one != other for one, other in zip(*held)) >= 2
