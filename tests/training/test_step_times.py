"""Where a step's time goes: parts by stamps, what of it is the rank's own, and on an accelerator one step of several alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.training import meters
from paceline.training.meters import SAMPLED, StepTimes

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(meters.time, "perf_counter", lambda: now[0])
    return now


def step(times: StepTimes, network: nn.Module, now: list[float], forwards: int, exchange: float) -> None:
    """Forwards of 2 s, backwards of 3 s, an exchange after the last, and an update of 1 s."""
    times.begins()
    for number in range(forwards):
        loss = network(torch.ones(1, 2)).sum()
        now[0] += 2.0
        times.reached("forward")
        now[0] += 3.0
        loss.backward()
        now[0] += exchange if number == forwards - 1 else 0.0
        times.reached("exchange" if number == forwards - 1 else "backward")
    now[0] += 1.0
    times.reached("update")


def test_each_part_is_the_mean_of_the_steps_since_the_last_look_and_a_rank_s_own_time_ends_with_its_last_gradient(clock):
    network = nn.Linear(2, 1)
    times = StepTimes(network, CPU)
    assert times.read() == ({}, 0.0)
    for exchange in (50.0, 10.0):
        step(times, network, clock, forwards=2, exchange=exchange)
    parts, own = times.read()
    assert parts == pytest.approx({"forward": 4.0, "backward": 6.0, "exchange": 30.0, "update": 1.0})
    assert own == pytest.approx(10.0) and times.read() == ({}, 0.0)


def test_a_backward_outside_a_step_is_not_stamped(clock):
    network = nn.Linear(2, 1)
    times = StepTimes(network, CPU)
    network(torch.ones(1, 2)).sum().backward()  # as that of a step which is taken back
    times.reached("forward")
    assert times.read() == ({}, 0.0)


def test_on_an_accelerator_the_first_of_several_steps_is_stamped_and_read_once_the_device_is_past_it(clock, monkeypatch):
    passed, made = [False], []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            made.append(self)

        def record(self) -> None:
            self.at = clock[0]

        def query(self) -> bool:
            return passed[0]

        def elapsed_time(self, other: Event) -> float:
            return 1000 * (other.at - self.at)

    monkeypatch.setattr(meters, "get_device_module", lambda kind: type("Module", (), {"Event": Event}))
    network = nn.Linear(2, 1)
    times = StepTimes(network, torch.device("cuda"))
    for _ in range(SAMPLED):
        step(times, network, clock, forwards=1, exchange=7.0)
    assert len(made) == 5  # begin, forward, last gradient, exchange, update of the first step
    assert times.read() == ({}, 0.0)
    passed[0] = True
    parts, own = times.read()
    assert parts == pytest.approx({"forward": 2.0, "backward": 3.0, "exchange": 7.0, "update": 1.0})
    assert own == pytest.approx(5.0)
