"""Steps replayed on two processes, exchanges among their operations, train as steps that are sent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from replay_rank import CASES, STEPS
from small_run import Trainer

pytestmark = [pytest.mark.multi, pytest.mark.nightly("two live ranks record their steps")]


def test_two_ranks_replay_the_steps_that_they_send(zygote, tmp_path: Path) -> None:
    ranks = Trainer(zygote, tmp_path, "replay_rank").found()
    for case in CASES:
        for found in (rank[case] for rank in ranks):
            assert found["played"] == STEPS and "c10d.allreduce_.default" in found["exchanges"], case
            assert found["replayed"]["losses"] == found["sent"]["losses"], case
            for name, weight in found["sent"]["weights"].items():
                assert torch.equal(found["replayed"]["weights"][name], weight), (case, name)
        first, second = (rank[case]["replayed"]["weights"] for rank in ranks)
        assert all(torch.equal(first[name], second[name]) for name in first if not name.endswith(("mean", "var"))), case
        assert ranks[0][case]["sent"]["losses"] != ranks[1][case]["sent"]["losses"], case
