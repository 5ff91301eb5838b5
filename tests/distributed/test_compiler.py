"""The compiler: as many forms as a run has shapes, each counted, and an error past them. Real torch.compile, cheap backend."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import paceline.distributed.device.compiler as compiler
from paceline._utils.errors import RecipeError
from paceline.distributed.device.compiler import count_compilations, explain_recompile_limit, set_recompile_limit
from paceline.distributed.device.host_memory import explained_failures
from paceline.training.logging.monitors import LogInterval


class Sum(nn.Module):
    def forward(self, images):
        return (images * 2).sum()


@pytest.fixture
def network():
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    kept = {"recompile_limit": 2, "accumulated_recompile_limit": 256, "fail_on_recompile_limit_hit": False}
    with torch._dynamo.config.patch(kept):
        found = Sum()
        found.compile(dynamic=False, backend="eager")
        yield found
    torch._dynamo.reset()


def test_each_shape_is_compiled_once_and_counted_and_one_too_many_is_an_error(network, monkeypatch):
    monkeypatch.setattr(compiler, "SPARE_FORMS", 1)
    set_recompile_limit(3)
    before = count_compilations()
    for side in (4, 3, 2, 4, 3, 2):
        network(torch.zeros(side, side))
    assert count_compilations() - before == 3
    interval = LogInterval(8, compiled=count_compilations)
    with interval.paused():  # an evaluation may compile what it likes
        network(torch.zeros(5, 5))
    assert "recompilations" not in interval.close(1, 0.0)
    set_recompile_limit(0)  # another run of this process has none of its own
    with pytest.raises(RecipeError, match=r"limit of 5 compiled.*--system.compile off") as caught, explained_failures():
        for side in (6, 7):
            network(torch.zeros(side, side))
    assert "\n" not in str(caught.value)


def test_an_interval_tells_what_was_compiled_in_it(network):
    set_recompile_limit(1)
    network(torch.zeros(4, 4))
    interval = LogInterval(8, compiled=count_compilations)
    interval.begin(0, 0.0)
    network(torch.zeros(3, 3))
    assert interval.close(1, 0.0)["recompilations"] == 1
    network(torch.zeros(3, 3))
    assert "recompilations" not in interval.close(2, 0.0)
    assert "recompilations" not in LogInterval(8).close(1, 0.0)


def test_other_errors_are_not_the_compiler_s():
    assert explain_recompile_limit(RuntimeError("FailOnRecompileLimitHit")) is None
