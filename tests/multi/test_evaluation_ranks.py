"""Ranks that only evaluate: the run is that of the others alone, whatever the evaluation ranks do, and however many there are.

By default one case of many ranks and the one that takes most of what is new; the others are nightly.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from messages import check_text
from slow_scorer import FLAGS, INTERRUPTED, RECIPE, TARGET, begun_and_held, order, scored_late
from small_run import Trainer, events, kinds, last_event, mllog, said, tensor_files, wait_until

from paceline.training.logging.events import read_events

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("clock")]


def command(trainer: Trainer, run: Path, flags: str, evaluate: int) -> list[str]:
    return trainer.train(run, f"{flags} --dedicated-eval-ranks {evaluate}", recipe=RECIPE)


def finished(trainer: Trainer, run: Path, flags: str, *, train: int, evaluate: int) -> Path:
    return trainer.finished(run, f"{flags} --dedicated-eval-ranks {evaluate}", ranks=train + evaluate, recipe=RECIPE)


def of_the_run(run: Path) -> list:
    """mllog.txt without the line that says how many devices there were."""
    return [line for line in mllog(run) if line[0] != "submission_platform"]


def assert_same_result(run: Path, alone: Path) -> None:
    """As `assert_same_run`, but for the number of devices."""
    assert tensor_files(run) == tensor_files(alone)
    assert events(run) == events(alone)
    assert of_the_run(run) == of_the_run(alone)
    for link in ("last", "best"):
        assert os.readlink(run / "checkpoints" / link) == os.readlink(alone / "checkpoints" / link)
    for file in (alone / "predictions").iterdir():
        assert found_in(run / "predictions" / file.name) == found_in(file)


def found_in(predictions: Path) -> list[tuple[int, list[int]]]:
    """Each photo's classes, the likeliest first; scores round in another way where others are in a forward with it."""
    images = json.loads(predictions.read_text())["images"]
    return [(image["index"], [guess["class"] for guess in image["top5"]]) for image in images]


@pytest.fixture(scope="module")
def alone(trainer: Trainer) -> Callable[[int], Path]:
    """The run without such ranks, by number of ranks."""

    def run(ranks: int) -> Path:
        folder = trainer.folder / f"alone-{ranks}"
        return folder if folder.exists() else trainer.finished(folder, FLAGS, ranks=ranks, recipe=RECIPE)

    return run


def test_training_goes_on_while_another_rank_looks_at_the_photos_and_the_run_is_the_same(trainer, alone):
    run = trainer.folder / "two-and-one"
    ended = scored_late(trainer, run, f"{FLAGS} --dedicated-eval-ranks 1", ranks=3)
    assert check_text(ended[0].text, "2 ranks", "1 rank") and not ended[2].text
    assert_same_result(run, alone(2))
    took = [event["eval_seconds"] for event in read_events(run / "events.jsonl") if event["event"] == "eval"]
    assert took and all(0 < seconds < 100 for seconds in took)
    facts = json.loads((run / "run.json").read_text())
    assert (facts["world_size"], facts["plan"]["world_size"], facts["plan"]["eval_ranks"]) == (2, 2, 1)
    assert facts["plan"]["nodes"] == 1 and "2 ranks on 1 node" in ended[0].text
    assert [value for key, value, _ in mllog(run) if key == "submission_platform"] == ["3xCPU"]


@pytest.mark.nightly("three live ranks for half a minute")
def test_one_rank_trains_two_evaluate_and_a_target_makes_its_own_step_the_result(trainer):
    wanted = trainer.finished(trainer.folder / "met-alone", TARGET, recipe=RECIPE)
    run = finished(trainer, trainer.folder / "met", TARGET, train=1, evaluate=2)
    assert last_event(run)["status"] == "success" and last_event(run)["discarded_steps"] in (1, 2)
    assert_same_result(run, wanted)


@pytest.mark.nightly("three live ranks for half a minute")
def test_killed_while_an_evaluation_is_under_way_it_goes_on_with_any_number_of_evaluation_ranks(trainer, alone):
    run = trainer.folder / "killed"
    job, orders = begun_and_held(trainer, run, f"{FLAGS} --dedicated-eval-ranks 1", "hold 10", step=10, ranks=3)
    job.send(signal.SIGKILL)
    job.wait()
    orders.unlink()
    assert ("checkpoint", 10) in kinds(run) and ("eval", 10) not in kinds(run)
    finished(trainer, run, FLAGS, train=2, evaluate=2)
    assert ("resume", 10) in kinds(run)
    assert_same_result(run, alone(2))


@pytest.mark.nightly("three live ranks for half a minute")
@pytest.mark.parametrize("rank", [0, 1])
def test_asked_to_stop_while_photos_are_looked_at_it_goes_back_to_that_evaluation(trainer, alone, rank):
    run = trainer.folder / f"asked-{rank}"
    job, orders = begun_and_held(trainer, run, f"{FLAGS} --dedicated-eval-ranks 1", "look 5", step=5, ranks=2)
    wait_until(lambda: Path(f"{run}.begun").read_text() == "8", "steps beside the evaluation")
    job.send(signal.SIGTERM, rank=rank)
    if rank == 0:
        time.sleep(3)  # training waits for the result; the word has to reach the other rank before it looks on
    orders.unlink()
    ended = job.wait()
    assert [one.code for one in ended] == [INTERRUPTED] * 2, said(ended)
    end = last_event(run)
    assert (end["status"], end["step"]) == ("interrupted", 5) and end["discarded_steps"] > 0
    assert kinds(run)[-2:] == [("checkpoint", 5), ("end", 5)]
    trainer.finished(run, FLAGS, recipe=RECIPE)  # without evaluation ranks
    assert_same_result(run, alone(1))


@pytest.mark.nightly("three live ranks for half a minute")
def test_a_signal_to_an_evaluation_rank_at_rest_stops_training_after_the_same_step(trainer):
    run = trainer.folder / "rests"
    flags = FLAGS.replace("--eval-every 5", "--eval-every 100000 --max-images 1000000")
    job = trainer.start(command(trainer, run, flags, 1), ranks=3)
    wait_until(lambda: ("train", 8) in (kinds(run) if run.exists() else []), "step 8")
    job.send(signal.SIGTERM, rank=2)
    ended = job.wait()
    assert [one.code for one in ended] == [INTERRUPTED] * 3, said(ended)
    step = last_event(run)["step"]
    assert kinds(run)[-2:] == [("checkpoint", step), ("end", step)] and "signal" in last_event(run)["reason"]


@pytest.mark.nightly("three live ranks for half a minute")
def test_what_goes_wrong_on_an_evaluation_rank_ends_the_run_by_name(trainer, alone):
    run = trainer.folder / "failed"
    orders = order(run, "fail")
    ended = trainer.run(command(trainer, run, FLAGS, 1), ranks=2)
    assert [one.code for one in ended] == [3, 3], said(ended)
    assert "the scorer fails" in ended[1].text and "rank 1 (of 2) failed" in ended[0].text
    assert last_event(run)["status"] == "failed" and "the scorer fails" in last_event(run)["reason"]
    orders.unlink()
    finished(trainer, run, FLAGS, train=1, evaluate=1)
    assert_same_result(run, alone(1))


@pytest.mark.nightly("three live ranks for half a minute")
def test_a_used_up_time_budget_ends_with_an_evaluation_of_the_last_step(trainer):
    run = trainer.folder / "budget"
    flags = "--max-images 1000000 --eval-every 100000 --log-every 2 --max-time 1s"
    ended = trainer.run(command(trainer, run, flags, 1), ranks=2)
    assert [one.code for one in ended] == [0, 0], said(ended)
    assert [kind for kind, _ in kinds(run)][-3:] == ["checkpoint", "eval", "end"]
    assert last_event(run)["status"] == "stopped_early" and "--max-time" in last_event(run)["reason"]


@pytest.mark.nightly("three live ranks for half a minute")
def test_a_schedule_is_fitted_by_the_ranks_that_train(trainer):
    run = trainer.folder / "fitted"
    flags = "--max-images 120000 --max-time 4s --rescale-schedule --eval-every 0 --save-every 1000"
    finished(trainer, run, flags, train=2, evaluate=1)
    fitted = json.loads((run / "run.json").read_text())["rescaled_schedule"]
    assert 1 <= fitted["steps"] < 10_000 and last_event(run)["step"] == fitted["steps"]


@pytest.mark.nightly("three live ranks for half a minute")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_is_named_whatever_it_did(trainer, rank):
    run = trainer.folder / f"lost-{rank}"
    job, _ = begun_and_held(trainer, run, f"{FLAGS} --dedicated-eval-ranks 1", "hold 5", step=5, ranks=2)
    job.send(signal.SIGKILL, rank=rank)
    ended = job.wait()
    assert ended[rank].code == -signal.SIGKILL and ended[1 - rank].code == 3, said(ended)
    assert f"rank {rank} (of 2) failed" in ended[1 - rank].text


def test_as_many_evaluation_ranks_as_ranks_are_refused(trainer, tmp_path):
    ended = trainer.refused(tmp_path / "none", f"{FLAGS} --dedicated-eval-ranks 2")
    check_text(said(ended), "--dedicated-eval-ranks 2", "2 ranks")
