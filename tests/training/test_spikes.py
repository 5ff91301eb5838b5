"""A gradient far above those before it is noticed, in a run that goes on as in one that was never stopped."""

from __future__ import annotations

import math

from paceline.training.logging.monitors import MIN, READINGS, SPIKE, GradNormMonitor


def test_a_reading_so_many_times_the_median_is_a_spike_and_the_next_usual_one_is_none():
    spikes = GradNormMonitor()
    assert [spikes.observe(norm) for norm in (500.0, *[2.0] * (MIN - 1))] == [0.0] * MIN
    assert spikes.observe(2.0 * SPIKE * 0.99) == 0.0
    assert spikes.observe(2.0 * SPIKE) == SPIKE
    assert spikes.observe(2.0) == 0.0


def test_an_overflow_is_no_reading():
    spikes = GradNormMonitor()
    assert [spikes.observe(norm) for norm in (math.inf, math.nan, *[1.0] * (MIN - 1), 100.0)] == [0.0] * (MIN + 2)


def test_a_run_that_goes_on_compares_with_the_readings_in_its_events():
    events = [{"event": "train", "gradient_norm": float(number)} for number in range(1, READINGS + 4)]
    events += [{"event": "eval"}, {"event": "train"}]
    unbroken = GradNormMonitor()
    for event in events[: READINGS + 3]:
        unbroken.observe(event["gradient_norm"])
    resumed = GradNormMonitor(events)
    assert resumed.observe(1000.0) == unbroken.observe(1000.0) > SPIKE
