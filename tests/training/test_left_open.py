"""What an accelerator leaves open in a step or an evaluation: every number in the events, one line for people."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from paceline.distributed.comm.world import DistContext
from paceline.training.logging import event_logger
from paceline.training.logging.console import Console
from paceline.training.logging.events import EvalEvent, get_metrics, read_events
from paceline.training.loop import report_interval
from paceline.training.meters import Meters

PACE = {"images_per_second": 2.0, "data_wait": 0.0}


@pytest.fixture
def tells(tmp_path, monkeypatch):
    out = io.StringIO()
    who = {"benchmark": "maskrcnn", "org": "", "division": "open", "status": "onprem", "platform": ""}
    facts = event_logger.RunInfo(
        target="", eval_steps=(), train_images=8, val_images=4, total_steps=4, global_batch_size=8, steps_per_epoch=4,
        submission=who, cache_cleared=False, mllog={}, weights=(), accuracy=lambda metrics: metrics["box_ap"],
    )  # fmt: skip
    told = event_logger.EventLogger(tmp_path, facts, Console(4, out=out), resumed_at=None)
    told.start(0, 0.0)
    return told, out, tmp_path / "events.jsonl"


def after_steps(tells, counts: list[int | None]) -> None:
    """One interval whose steps left so many boxes open; None: a network that counts none."""
    world = cast(DistContext, SimpleNamespace(sum_=lambda tensor: tensor, control=None))
    meters = Meters(torch.device("cpu"))
    for step, count in enumerate(counts):
        beside = {} if count is None else {"unsettled": torch.tensor(count) / 8}  # as a step divides by the global batch
        meters.add({"loss": torch.tensor(1.0), **beside}, step)
    state = SimpleNamespace(meters=meters, scaler=None, step=len(counts))
    monitors = SimpleNamespace(
        plan=SimpleNamespace(global_batch_size=8), recorder=tells,
        interval=SimpleNamespace(close=lambda *_: PACE), clock=SimpleNamespace(seconds=lambda: 1.0), seconds_left=lambda *_: 1.0,
        own_numbers=lambda *_: [0, 0], facts_of_ranks=lambda _: {}, facts_of_step=lambda _, sizes: sizes,
    )  # fmt: skip
    step = SimpleNamespace(times=None, sizes=SimpleNamespace(read=dict), late_captures=0)
    parts: list[Any] = [state, world, step, 0.1, 0.0, monitors, lambda *_: ""]
    assert report_interval(*parts) is None


def test_the_train_event_has_the_interval_s_sum_and_people_are_told_once(tells) -> None:
    told, out, events = tells
    for counts in ([0, 0, 0], [3, 0, 7], [1]):
        after_steps(told, counts)
    numbers = [event["approximated"]["unsettled_boxes"] for event in read_events(events)]
    assert numbers == [0, 10, 1]
    assert out.getvalue().count("warning") == 1 and "10 boxes" in out.getvalue()
    assert "loss_unsettled" not in read_events(events)[1]


def scored(told: event_logger.EventLogger, approximated: dict[str, int] | None) -> None:
    event = EvalEvent(images=4, eval_seconds=1.0, metrics={"box_ap": 0.25}, eval_parts={}, approximated=approximated)
    told.evaluation(2, 2.0, event, headline="box_ap", best=True, went_on=2.0, ends=True)


def test_a_cpu_writes_nothing_of_it(tells) -> None:
    told, out, events = tells
    after_steps(told, [None, None])
    scored(told, None)
    assert not any("approximated" in event for event in read_events(events)) and "warning" not in out.getvalue()


def test_an_evaluation_s_numbers_are_no_metrics(tells) -> None:
    told, out, events = tells
    left_open = {"unsettled_boxes": 0, "candidates_left_out": 12_345}
    scored(told, left_open)
    (event,) = read_events(events)
    assert event["approximated"] == left_open and get_metrics(event) == {"box_ap": 0.25}
    assert out.getvalue().count("warning") == 1 and "12,345 detections" in out.getvalue()
