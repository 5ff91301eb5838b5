"""Asked to stop, by a signal, a file or a clock: saved at once, said how it ended, and gone on to the same bits."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from by_night import ONE_MORE
from slow_scorer import INTERRUPTED, RECIPE, begun_and_held, held
from small_run import Trainer, assert_same_end, assert_same_run, kinds, last_event, said, step_reached, wait_until

from paceline.training.logging.events import read_events

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("clock")]

SAVED = "--save-every 100 --log-every 2"
ENDLESS = "--max-images 1000000 --eval-every 100000"


@pytest.fixture(scope="module")
def unbroken(trainer: Trainer) -> Path:
    """The run on one rank that nobody asked to stop."""
    return trainer.finished(trainer.folder / "not-asked", SAVED, recipe=RECIPE)


def assert_goes_on_like(trainer: Trainer, run: Path, unbroken: Path, flags: str, *, ranks: int = 1) -> None:
    """The same command again ends the run as if it had never stopped; checkpoints that stopping made are extra."""
    trainer.finished(run, flags, ranks=ranks, recipe=RECIPE)
    assert_same_end(run, unbroken)


def test_sigterm_in_training_saves_at_once_and_exits_75(trainer, unbroken, tmp_path):
    run = tmp_path / "asked"
    job, orders = held(trainer, run, SAVED, "step 6")
    job.send(signal.SIGTERM)
    orders.unlink()
    (ended,) = job.wait()
    assert ended.code == INTERRUPTED, ended.text
    end = last_event(run)
    assert (end["event"], end["status"]) == ("end", "interrupted") and "signal" in end["reason"]
    assert kinds(run)[-3:] == [("train", 6), ("checkpoint", 7), ("end", 7)]
    assert (run / "checkpoints" / "last").resolve().name == "step-000007"
    assert_goes_on_like(trainer, run, unbroken, SAVED)


def test_sigterm_in_an_evaluation_saves_and_the_evaluation_is_repeated_first(trainer, unbroken, tmp_path):
    run = tmp_path / "asked"
    job, orders = held(trainer, run, SAVED, "look 13")
    job.send(signal.SIGTERM)
    orders.unlink()
    (ended,) = job.wait()
    assert ended.code == INTERRUPTED, ended.text
    end = last_event(run)
    assert (end["status"], end["step"]) == ("interrupted", 13) and "evaluation" in end["reason"]
    assert kinds(run)[-3:] == [("train", 12), ("checkpoint", 13), ("end", 13)]
    assert_goes_on_like(trainer, run, unbroken, SAVED)
    assert kinds(run)[kinds(run).index(("resume", 13)) + 1] == ("eval", 13)


def test_sigkill_in_an_evaluation_costs_that_evaluation_alone(trainer, unbroken, tmp_path):
    run = tmp_path / "killed"
    job, orders = begun_and_held(trainer, run, SAVED, "look 26", step=26)
    job.send(signal.SIGKILL)
    (ended,) = job.wait()
    orders.unlink()
    assert ended.code == -signal.SIGKILL and ("eval", 26) not in kinds(run)
    trainer.finished(run, SAVED, recipe=RECIPE)
    assert ("resume", 26) in kinds(run)
    assert_same_run(run, unbroken)


def test_a_stop_file_stops_once_and_the_same_command_goes_on(trainer, tmp_path):
    run, flags = tmp_path / "asked", f"{SAVED} {ENDLESS}"
    job = trainer.start(trainer.train(run, flags))
    wait_until(lambda: step_reached(run) >= 2, "step 2")
    (run / "STOP").touch()
    (ended,) = job.wait()
    assert ended.code == INTERRUPTED, ended.text
    end = last_event(run)
    assert end["status"] == "interrupted" and "STOP file" in end["reason"]
    assert not (run / "STOP").exists()
    (ended,) = trainer.run(trainer.train(run, f"{flags} --max-steps {end['step'] + 3}"))
    assert ended.code == 0, ended.text
    assert last_event(run)["status"] == "stopped_early" and last_event(run)["step"] == end["step"] + 3


@pytest.mark.parametrize("target", [pytest.param("", marks=ONE_MORE), "--target top1=1.1"])
def test_a_used_up_time_budget_ends_in_good_order_with_an_evaluation(trainer, tmp_path, monkeypatch, target):
    monkeypatch.delitem(trainer.environ, "WITHOUT_REPORT")
    run = tmp_path / "budget"
    flags = f"{ENDLESS} --log-every 2 --max-time 1s {target}"
    (ended,) = trainer.run(trainer.train(run, flags))
    assert ended.code == 0, ended.text
    end = last_event(run)
    assert (end["event"], end["status"]) == ("end", "stopped_early") and "--max-time 1s reached" in end["reason"]
    assert [kind for kind, _ in kinds(run)][-3:] == ["checkpoint", "eval", "end"]
    assert {step for _, step in kinds(run)[-3:]} == {end["step"]}
    assert (run / "report.html").exists()
    # The budget is asked after a step's events are written, so one step's events may lie past it, never two steps'.
    late = {event["step"] for event in read_events(run / "events.jsonl") if event["seconds"] >= 1}
    assert end["seconds"] >= 1 and len(late - {end["step"]}) <= 1


@pytest.mark.nightly("two more live ranks; by day one rank's budget, and a signal to one of two")
def test_on_two_ranks_a_time_budget_ends_after_the_same_step_with_an_evaluation(trainer, tmp_path):
    run = tmp_path / "budget"
    ended = trainer.run(trainer.train(run, f"{ENDLESS} --log-every 2 --max-time 1s"), ranks=2)
    assert [rank.code for rank in ended] == [0, 0], said(ended)
    assert [kind for kind, _ in kinds(run)][-3:] == ["checkpoint", "eval", "end"]


def test_two_ranks_fit_their_schedule_to_the_steps_that_rank_0_found(trainer, tmp_path):
    run = tmp_path / "fitted"
    flags = "--max-images 120000 --max-time 10s --rescale-schedule --eval-every 0 --save-every 1000"
    ended = trainer.run(trainer.train(run, flags, recipe="lagging"), ranks=2)  # few steps, for the time that they take
    assert [rank.code for rank in ended] == [0, 0], said(ended)
    fitted = json.loads((run / "run.json").read_text())["rescaled_schedule"]
    assert 1 <= fitted["steps"] < 100 and last_event(run)["step"] == fitted["steps"]
    assert last_event(run)["status"] == "success"


TWO = (
    f"{SAVED} --ema-decay 0.9 --bn-batch-size 3"  # running statistics, and averages of them, that differ from rank to rank
)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=ONE_MORE), 1])
def test_a_signal_to_one_of_two_ranks_stops_both_after_the_same_step(trainer, tmp_path, rank):
    run, unbroken = tmp_path / "asked", trainer.folder / "not-asked-2"
    if not unbroken.exists():
        trainer.finished(unbroken, TWO, ranks=2, recipe=RECIPE)
    job, orders = held(trainer, run, TWO, "step 6", ranks=2)
    job.send(signal.SIGTERM, rank=rank)
    orders.unlink()
    ended = job.wait()
    assert [one.code for one in ended] == [INTERRUPTED] * 2, said(ended)
    # The other rank hears it one step later.
    assert last_event(run)["status"] == "interrupted" and last_event(run)["step"] in (7, 8)
    assert_goes_on_like(trainer, run, unbroken, TWO, ranks=2)


def test_a_signal_to_one_of_two_ranks_ends_the_evaluation_of_both(trainer, tmp_path):
    run = tmp_path / "asked"
    job, orders = held(trainer, run, SAVED, "look 13", ranks=2)
    job.send(signal.SIGUSR1, rank=1)
    orders.unlink()
    ended = job.wait()
    assert [one.code for one in ended] == [INTERRUPTED] * 2, said(ended)
    assert kinds(run)[-3:] == [("train", 12), ("checkpoint", 13), ("end", 13)]
