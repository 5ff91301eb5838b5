"""Scoring beside training: whenever a score arrives, the run, its result and what it leaves behind are the same."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from by_night import ONE_MORE
from slow_scorer import FLAGS, INTERRUPTED, RECIPE, TARGET, begun_and_held, order, scored_late
from small_run import (
    Trainer,
    assert_same_end,
    assert_same_run,
    copy_of,
    events,
    kinds,
    last_event,
    mllog,
    said,
    tensor_files,
)

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("clock")]


def started_and_held(trainer: Trainer, run: Path, flags: str, *, step: int, ranks: int = 1):
    """A run whose evaluation of `step` is being scored, and its scorer's orders; its checkpoint is on the disk."""
    return begun_and_held(trainer, run, flags, f"hold {step}", step=step, ranks=ranks)


def without_discards(run: Path) -> list[dict]:
    return [{name: value for name, value in event.items() if name != "discarded_steps"} for event in events(run)]


# Two ranks train, evaluate and are killed in test_launchers.py and test_evaluation_ranks.py by day.
@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=ONE_MORE)])
def ranks(request) -> int:
    return request.param


@pytest.fixture(scope="module")
def unbroken(trainer: Trainer, ranks: int) -> Path:
    return trainer.finished(trainer.folder / f"beside-{ranks}", FLAGS, ranks=ranks, recipe=RECIPE)


@pytest.fixture(scope="module")
def met(trainer: Trainer, ranks: int) -> Path:
    """A run that ends at its target."""
    return trainer.finished(trainer.folder / f"beside-met-{ranks}", TARGET, ranks=ranks, recipe=RECIPE)


def test_training_goes_on_while_an_evaluation_is_being_scored(trainer, unbroken, ranks):
    run = trainer.folder / f"beside-late-{ranks}"
    scored_late(trainer, run, FLAGS, ranks=ranks)
    assert Path(f"{run}.scoring").exists()
    assert_same_run(run, unbroken)


def test_events_stand_in_the_order_of_their_steps(unbroken):
    steps = [step for _, step in kinds(unbroken)]
    assert steps == sorted(steps)
    assert kinds(unbroken)[:3] == [("checkpoint", 5), ("eval", 5), ("train", 8)]


def test_a_target_makes_its_own_step_the_result_and_later_steps_are_discarded_and_counted(trainer, met, ranks):
    waited = trainer.finished(
        trainer.folder / f"waited-{ranks}", f"{TARGET} --system.no-async-metrics", ranks=ranks, recipe=RECIPE
    )
    end, wanted = last_event(met), last_event(waited)
    assert end["status"] == wanted["status"] == "success" and end["step"] == wanted["step"] < 30
    assert end["discarded_steps"] in (1, 2) and wanted["discarded_steps"] == 0
    assert without_discards(met) == without_discards(waited) and mllog(met) == mllog(waited)
    name = f"step-{end['step']:06d}"
    for link in ("last", "best"):
        assert (met / "checkpoints" / link).resolve().name == name
        assert tensor_files(met, link) == tensor_files(waited, name)
    assert max(path.name for path in (met / "checkpoints").glob("step-*")) == name
    predictions = [(run / "predictions" / f"{name}.json").read_text() for run in (met, waited)]
    assert predictions[0] == predictions[1]


def test_killed_while_a_score_is_pending_the_evaluation_is_repeated_and_nothing_differs(trainer, unbroken, ranks):
    run = trainer.folder / f"beside-killed-{ranks}"
    job, orders = started_and_held(trainer, run, FLAGS, step=10, ranks=ranks)
    job.send(signal.SIGKILL)
    job.wait()
    orders.unlink()
    assert ("checkpoint", 10) in kinds(run) and ("eval", 10) not in kinds(run)
    trainer.finished(run, FLAGS, ranks=ranks, recipe=RECIPE)
    assert ("resume", 10) in kinds(run)
    assert_same_run(run, unbroken)


def test_killed_while_the_score_that_meets_the_target_is_pending_it_ends_alike(trainer, met, ranks):
    run = trainer.folder / f"beside-met-killed-{ranks}"
    job, orders = started_and_held(trainer, run, TARGET, step=last_event(met)["step"], ranks=ranks)
    job.send(signal.SIGKILL)
    job.wait()
    orders.unlink()
    trainer.finished(run, TARGET, ranks=ranks, recipe=RECIPE)
    assert_same_run(run, met)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=ONE_MORE)], indirect=True)
def test_killed_between_the_result_that_met_the_target_and_the_end_event_only_the_end_is_missing(trainer, met, ranks):
    run = copy_of(met, f"beside-met-without-end-{ranks}")
    for name, word in (("events.jsonl", '"end"'), ("mllog.txt", '"run_stop"')):
        *lines, last = (run / name).read_text().splitlines(keepends=True)
        assert word in last
        (run / name).write_text("".join(lines))
    trainer.finished(run, TARGET, ranks=ranks, recipe=RECIPE)
    assert_same_run(run, met)  # with the steps that were discarded then


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=ONE_MORE)], indirect=True)
def test_a_signal_while_a_score_is_pending_takes_it_then_saves(trainer, unbroken, ranks):
    run = trainer.folder / f"beside-asked-{ranks}"
    job, orders = started_and_held(trainer, run, FLAGS, step=10, ranks=ranks)
    job.send(signal.SIGTERM)
    orders.unlink()
    ended = job.wait()
    assert [rank.code for rank in ended] == [INTERRUPTED] * ranks, said(ended)
    step = last_event(run)["step"]
    assert 10 < step <= 15
    assert ("eval", 10) in kinds(run) and kinds(run)[-2:] == [("checkpoint", step), ("end", step)]
    trainer.finished(run, FLAGS, ranks=ranks, recipe=RECIPE)
    assert_same_end(run, unbroken)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=ONE_MORE)], indirect=True)
def test_what_goes_wrong_in_a_score_ends_the_run_and_the_same_command_repeats_it(trainer, unbroken, ranks):
    run = trainer.folder / f"beside-failed-{ranks}"
    orders = order(run, "fail")
    ended = trainer.run(trainer.train(run, FLAGS, recipe=RECIPE), ranks=ranks)
    assert all(rank.code not in (0, 2) for rank in ended), said(ended)
    assert "the scorer fails" in ended[0].text and "the scorer fails" in last_event(run)["reason"]
    assert last_event(run)["status"] == "failed" and (run / "checkpoints" / "step-000005").exists()
    orders.unlink()
    trainer.finished(run, FLAGS, ranks=ranks, recipe=RECIPE)
    assert_same_run(run, unbroken)
