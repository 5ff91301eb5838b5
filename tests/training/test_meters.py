"""The sums between two train events survive a checkpoint to the last bit."""

from __future__ import annotations

import json

import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.distributed.comm.launcher import SINGLE
from paceline.distributed.comm.world import open_distributed
from paceline.training.meters import Meters

CPU = torch.device("cpu")
losses = st.lists(st.floats(2**-10, 100, width=32), min_size=2, max_size=9)


@given(losses, st.integers(1, 8))
def test_an_interval_cut_by_a_checkpoint_logs_the_same_mean(values, cut):
    cut = min(cut, len(values) - 1)
    with open_distributed(SINGLE, device=CPU) as world:
        whole, before, after = Meters(CPU), Meters(CPU), Meters(CPU)
        for step, value in enumerate(values):
            whole.add({"loss": torch.tensor(value)}, step)
            (before if step < cut else after).add({"loss": torch.tensor(value)}, step)
            if step == cut - 1:
                after.restore(json.loads(json.dumps(before.facts(world))), world)
        assert after.read(world) == whole.read(world)


def test_the_first_step_that_is_not_finite_is_named():
    with open_distributed(SINGLE, device=CPU) as world:
        meters = Meters(CPU)
        for step, value in enumerate([1.0, float("inf"), float("nan"), 2.0], start=7):
            meters.add({"loss": torch.tensor(value)}, step)
        assert meters.read(world)[1] == 8
        meters.clear()
        meters.add({"loss": torch.tensor(3.0)}, 11)
        assert meters.read(world) == ({"loss": 3.0}, None, [[]])


def test_the_first_interval_s_mean_is_over_its_own_steps():
    with open_distributed(SINGLE, device=CPU) as world:
        meters = Meters(CPU)
        assert meters.facts(world)["steps"] == 0
        for step, value in enumerate((2.0, 4.0)):
            meters.add({"loss": torch.tensor(value)}, step)
        assert meters.read(world)[0] == {"loss": 3.0}
