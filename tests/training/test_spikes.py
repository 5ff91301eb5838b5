"""A gradient far above those before it is noticed, in a run that goes on as in one that was never stopped."""

from __future__ import annotations

import math

from paceline.training.logging.monitors import FEWEST, READINGS, SPIKE, Spikes


def test_a_reading_so_many_times_the_median_is_a_spike_and_the_next_usual_one_is_none():
    spikes = Spikes()
    assert [spikes.look(norm) for norm in (500.0, *[2.0] * (FEWEST - 1))] == [0.0] * FEWEST
    assert spikes.look(2.0 * SPIKE * 0.99) == 0.0
    assert spikes.look(2.0 * SPIKE) == SPIKE
    assert spikes.look(2.0) == 0.0


def test_an_overflow_is_no_reading():
    spikes = Spikes()
    assert [spikes.look(norm) for norm in (math.inf, math.nan, *[1.0] * (FEWEST - 1), 100.0)] == [0.0] * (FEWEST + 2)


def test_a_run_that_goes_on_compares_with_the_readings_in_its_events():
    events = [{"event": "train", "gradient_norm": float(number)} for number in range(1, READINGS + 4)]
    events += [{"event": "eval"}, {"event": "train"}]
    unbroken = Spikes()
    for event in events[: READINGS + 3]:
        unbroken.look(event["gradient_norm"])
    resumed = Spikes(events)
    assert resumed.look(1000.0) == unbroken.look(1000.0) > SPIKE
