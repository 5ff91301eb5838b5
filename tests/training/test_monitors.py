"""An interval's work and each rank's own time: counted by hand; which rank is told of, and when."""

from __future__ import annotations

import time

import pytest
import torch
from messages import check_lines, check_text

from paceline._utils.formatting import format_flop_rate
from paceline.distributed.comm.launcher import SINGLE
from paceline.distributed.comm.world import all_min_and_gather, open_distributed
from paceline.distributed.device.accelerators import get_peak_memory
from paceline.training.logging import monitors
from paceline.training.logging.monitors import (
    SLOW_INTERVALS,
    WATCHED_SECONDS,
    ContentionMonitor,
    LogInterval,
    StragglerMonitor,
    read_machine_seconds,
)

CPU = torch.device("cpu")


def test_the_work_of_an_interval_is_that_of_its_images_and_of_their_pixels(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    interval = LogInterval(8, ranks=2, flop=lambda images, pixels: 1000 * images + pixels)
    interval.begin(10, 0.5)
    interval.took([(2, 3, 10, 20), (2, 3, 10, 20)])  # one step of two forwards
    interval.took([(4, 3, 5, 5)])
    clock[0] += 4.0
    with interval.paused():
        clock[0] += 100.0
    pace = interval.close(12, 1.5)
    assert pace == {"images_per_second": 4.0, "data_wait": 0.25, "flop_per_second": 2 * (8 * 1000 + 4 * 200 + 4 * 25) / 4}
    clock[0] += 1.0
    assert interval.close(13, 1.5) == {"images_per_second": 8.0, "data_wait": 0.0}  # a new interval, nothing taken


def test_a_rank_is_told_of_once_when_it_has_been_slow_for_some_intervals_running():
    look = StragglerMonitor(["a", "b", "c", "d"]).observe
    even, slow = [1.0, 1.0, 1.1, 1.2], [1.0, 1.0, 1.3, 1.0]
    assert [look(slow) for _ in range(SLOW_INTERVALS - 1)] == [""] * (SLOW_INTERVALS - 1)
    assert look(even) == ""  # it starts anew
    said = [look(slow) for _ in range(SLOW_INTERVALS + 3)]
    assert [bool(text) for text in said] == [number == SLOW_INTERVALS - 1 for number in range(SLOW_INTERVALS + 3)]
    assert check_text(said[SLOW_INTERVALS - 1], "rank 2 on c", "1.3 s", "1.3 times", "1 s")
    another = [look([9.0, 1.0, 1.3, 1.0]) for _ in range(SLOW_INTERVALS)]
    assert another[:-1] == [""] * (SLOW_INTERVALS - 1) and "rank 0 on a" in another[-1]
    assert StragglerMonitor().observe([1.0]) == StragglerMonitor().observe([0.0, 5.0]) == ""  # nothing to compare with


def test_of_two_ranks_the_slower_one_is_told_of():
    stragglers = StragglerMonitor()
    said = [stragglers.observe([2.0, 1.0]) for _ in range(SLOW_INTERVALS)]
    assert check_text(said[-1], "rank 0", "2 s", "2 times", "1 s")


def test_one_rank_s_exchange_is_its_own_numbers():
    with open_distributed(SINGLE, device=CPU) as world:
        assert all_min_and_gather(world, 7, (3, 4)) == (7, [[3, 4]])


def test_peak_memory_grows_with_what_is_held():
    before = get_peak_memory(CPU)
    held = torch.ones(2**27)
    assert get_peak_memory(CPU) >= before and get_peak_memory(CPU) >= held.nbytes


@pytest.mark.parametrize(
    ("value", "text"), [(85.0, "85 FLOP/s"), (28.8e9, "28.8 GFLOP/s"), (1.0234e15, "1.02 PFLOP/s"), (5e20, "5e+05 PFLOP/s")]
)
def test_work_a_second_in_words(value, text):
    assert format_flop_rate(value) == text


def test_other_processes_on_the_cores_are_told_of_once(monkeypatch):
    now = {"monotonic": 0.0, "process_time": 0.0, "whole": 500.0}
    monkeypatch.setattr(time, "monotonic", lambda: now["monotonic"])
    monkeypatch.setattr(time, "process_time", lambda: now["process_time"])

    def passes(own: float, others: float) -> None:
        now["monotonic"] += WATCHED_SECONDS
        now["process_time"] += own * WATCHED_SECONDS
        now["whole"] += (own + others) * WATCHED_SECONDS

    def of(threads: int, cores: int) -> ContentionMonitor:
        return ContentionMonitor(threads, lambda: (cores, now["whole"]))

    two, one, wide = of(2, 2), of(1, 2), of(2, 64)
    assert two.observe() == ""  # no time has passed
    passes(own=1.9, others=0.1)
    assert two.observe() == one.observe() == wide.observe() == ""
    passes(own=1.0, others=1.0)
    assert one.observe() == wide.observe() == ""  # one thread waits for no other; 62 cores are left
    assert check_lines([two.observe()], ("1.0", "2 cores", "2 compute threads", "--system.intra-op-threads 1"))
    passes(own=0.5, others=1.5)
    assert two.observe() == ""
    crowded, too_many = of(8, 8), of(4, 2)
    passes(own=1.0, others=8.0)
    assert "--system.intra-op-threads 1 " in crowded.observe()
    assert "8.0 of the" in too_many.observe()
    alone = of(4, 2)
    passes(own=2.0, others=0.1)
    assert alone.observe() == ""  # more threads than cores, and nobody else
    elsewhere = ContentionMonitor(2, lambda: None)
    passes(own=1.0, others=1.0)
    assert elsewhere.observe() == ""


def test_the_machines_seconds_hold_this_processs():
    before = read_machine_seconds()
    if before is None:
        pytest.skip("no /proc/stat here")
    own = time.process_time()
    while time.process_time() - own < 0.3:
        pass
    cores, seconds = read_machine_seconds() or (0, 0.0)
    assert cores == before[0] >= 1 and seconds - before[1] >= 0.25


@pytest.mark.parametrize("content", [None, "", "cpu\n", "cpu a b c\n", "intr 0\n"])
def test_a_machine_whose_seconds_cannot_be_read_says_nothing(content, tmp_path, monkeypatch):
    if content is not None:
        (tmp_path / "stat").write_text(content)
    monkeypatch.setattr(monitors, "Path", lambda _: tmp_path / "stat")
    assert read_machine_seconds() is None and ContentionMonitor(2).observe() == ""
