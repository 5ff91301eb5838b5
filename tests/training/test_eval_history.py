"""What a run's evaluations have found: the same whether it was remembered as they came, or is read from the events."""

from __future__ import annotations

from math import isnan, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.training.eval_history import EvalHistory
from paceline.training.logging.events import EventLog, get_metrics, read_events

value = st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 1.0]) | st.floats(0, 1) | st.just(nan)
results = st.lists(st.fixed_dictionaries({"top1": value, "top5": value}), max_size=8)


def remembered(found: list[dict[str, float]]) -> EvalHistory:
    standing = EvalHistory("top1")
    for number, metrics in enumerate(found, start=1):
        standing.remember(5 * number, metrics)
    return standing


@settings(max_examples=15)
@given(found=results)
def test_what_is_read_from_the_events_is_what_was_remembered(tmp_path_factory, found):
    file = tmp_path_factory.mktemp("run") / "events.jsonl"
    log = EventLog(file)
    for number, metrics in enumerate(found, start=1):
        step = 5 * number
        log.write("checkpoint", step=step, epoch=1.0, seconds=1.0, name="x")
        log.write("eval", step=step, epoch=1.0, seconds=2.0, images=3, eval_seconds=1.0, **metrics)
    again = EvalHistory.of_events("top1", read_events(file))
    assert repr(again) == repr(remembered(found))  # NaN is not equal to itself


@settings(max_examples=40)
@given(found=results)
def test_best_patience_and_newest_agree_with_the_obvious_search(found):
    standing = remembered(found)
    scores = [metrics["top1"] for metrics in found]
    known = [score for score in scores if not isnan(score)]
    if known:
        place = scores.index(max(known))
        assert (standing.best_step, standing.since_best) == (5 * (place + 1), len(scores) - 1 - place)
        assert standing.best["top1"] == max(known)
    else:
        assert (standing.best_step, standing.since_best) == (-1, len(found))
    assert (standing.step, standing.metrics) == ((5 * len(found), found[-1]) if found else (-1, {}))


def test_a_result_says_whether_it_is_the_best_and_an_equal_one_is_not():
    standing = EvalHistory("top1")
    assert [standing.remember(step, {"top1": top1}) for step, top1 in ((1, 0.2), (2, 0.2), (3, 0.3))] == [True, False, True]


@pytest.mark.parametrize("metrics", [{"top1": nan}, {"other": 0.5}], ids=["nan", "another metric"])
def test_a_result_without_the_headline_is_never_the_best(metrics):
    standing = EvalHistory("top1")
    assert not standing.remember(1, metrics) and standing.best_step == -1 and standing.since_best == 1


def test_steps_discarded_at_an_end_are_the_newest_evaluation_s_and_no_metric():
    common = {"event": "eval", "epoch": 1.0, "seconds": 1.0, "images": 3, "eval_seconds": 1.0}
    events = [{**common, "step": 5, "top1": 0.5, "discarded_steps": 3}, {**common, "step": 9, "top1": 0.4}]
    assert get_metrics(events[0]) == {"top1": 0.5}
    assert EvalHistory.of_events("top1", events[:1]).discarded_steps == 3
    assert EvalHistory.of_events("top1", events).discarded_steps == 0
