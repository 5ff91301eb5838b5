"""Which system a resumed run goes on with."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from paceline.config.run import RunRecord
from paceline.config.system import System
from paceline.training.previous_run import SavedRun

OWN = System("cuda", memory_gib=70.0, micro_batch_size=32, prefetch_steps=5)
ASKED = System("cuda", memory_gib=70.0)
BF16 = replace(ASKED, precision="bf16")


@pytest.mark.parametrize(
    ("wanted", "given", "world", "expected"),
    [
        (ASKED, {"optim.lr"}, 2, OWN),
        (ASKED, {"system"}, 2, replace(ASKED, micro_batch_size=32)),  # what fitted is no part of what was named
        (replace(ASKED, prefetch_steps=1), {"system", "system.prefetch_steps"}, 2, replace(ASKED, prefetch_steps=1,
        micro_batch_size=32)),
        (ASKED, {"system", "system.micro_batch_size"}, 2, ASKED),
        (replace(ASKED, memory_gib=140.0), {"system"}, 2, replace(ASKED, memory_gib=140.0)),
        (ASKED, {"system"}, 4, ASKED),
        (System(), set(), 2, System()),
        (BF16, {"system"}, 2, replace(ASKED, micro_batch_size=32)),
        (BF16, {"optim.lr"}, 4, ASKED),
        (BF16, {"system", "system.precision"}, 4, BF16),
    ],
    ids=["own", "named", "a flag", "another cut", "more memory", "more ranks", "another machine", "own precision",
         "own precision, more ranks", "precision by flag"],
)  # fmt: skip
def test_a_resumed_run_keeps_its_system_and_what_fitted_into_its_memory(wanted, given, world, expected):
    saved = RunRecord(world_size=2, system=asdict(OWN))
    assert SavedRun(Path("run"), saved).system(wanted, explicit=given, world=world) == expected
    assert SavedRun(Path("run"), None).system(wanted, explicit=given, world=world) == wanted
