"""The time that a rank itself takes for a step: the mean of the steps since it was last asked for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.engine import own_time
from paceline.engine.own_time import OwnTime


def test_it_is_the_mean_from_the_first_forward_to_the_last_gradient_of_the_steps_since_the_last_look(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(own_time.time, "perf_counter", lambda: now[0])
    network = nn.Linear(2, 1)
    taken = OwnTime(network, torch.device("cpu"))
    assert taken.seconds() == 0.0
    for seconds in (2.0, 3.0, 7.0):
        taken.begins()
        now[0] += seconds
        network(torch.ones(1, 2)).sum().backward()
        now[0] += 50.0  # waiting for others, which is no time of its own
    assert taken.seconds() == pytest.approx(4.0) and taken.seconds() == 0.0
