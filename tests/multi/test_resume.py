"""Killed and resumed = never killed: the same tensors to the bit, the same events, the same MLPerf log."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from math import inf
from pathlib import Path
from random import Random

import pytest
from by_night import ONE_MORE
from messages import check_text
from small_recipe import STEPS
from small_run import Trainer, assert_same_run, copy_of, events, last_event, mllog, said, tensor_files

from paceline.training.logging.events import read_events

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("ranks")]

# Two ranks: two images a forward, statistics over both ranks, and a weight average. Three: each rank's statistics are its
# own, checkpoints cut the log's intervals, and the order of a sum depends on how data parallel groups the gradients.
FLAGS = {
    1: "--save-every 3 --log-every 2 --keep-checkpoints 99",
    2: "--save-every 3 --log-every 2 --keep-checkpoints 99 --ema-decay 0.9",
    3: "--save-every 3 --log-every 4 --keep-checkpoints 99 --ema-decay 0.9",
}


@pytest.fixture(scope="module")
def unbroken(trainer: Trainer) -> Callable[[int], Path]:
    """The run that nothing happened to, by number of ranks."""
    made: dict[int, Path] = {}

    def run(ranks: int) -> Path:
        if ranks not in made:
            made[ranks] = trainer.finished(trainer.folder / f"unbroken{ranks}", FLAGS[ranks], ranks=ranks)
        return made[ranks]

    return run


def saved_steps(run: Path) -> list[int]:
    """Steps whose checkpoints are whole on the disk."""
    return sorted(int(path.name[5:]) for path in (run / "checkpoints").glob("step-*"))


# Two ranks, killed and resumed to the same bits, are rows of the table of faults too (tests/faults).
@pytest.mark.parametrize("ranks", [1, *(pytest.param(n, marks=ONE_MORE) for n in (2, 3))])
def test_killed_twice_at_random_steps_it_goes_on_to_the_same_bits(trainer, unbroken, tmp_path, request, ranks):
    run = tmp_path / "killed"
    for step in sorted(Random(request.node.nodeid).sample(range(1, STEPS - 5), 2)):
        ended = trainer.signalled(run, FLAGS[ranks], signal.SIGKILL, step=step, ranks=ranks)
        assert [rank.code for rank in ended] == [-signal.SIGKILL] * ranks, said(ended)
        announced = [event["step"] for event in read_events(run / "events.jsonl") if event["event"] == "checkpoint"]
        assert set(saved_steps(run)) <= set(announced)
    trainer.finished(run, FLAGS[ranks], ranks=ranks)
    assert_same_run(run, unbroken(ranks))


def interrupted_copy(run: Path, name: str, step: int) -> Path:
    """A copy as a kill leaves it once the checkpoint of `step` is whole; the next line of each log is half written."""
    copy = copy_of(run, name)
    for saved in saved_steps(copy):
        if saved > step:
            shutil.rmtree(copy / "checkpoints" / f"step-{saved:06d}")
    for link in ("last", "best"):
        if not (copy / "checkpoints" / link).exists():
            (copy / "checkpoints" / link).unlink()

    def event_step(line: str) -> float:
        record = json.loads(line)
        return inf if record["event"] == "end" else record["step"]

    def mllog_step(line: str) -> float:
        record = json.loads(line.removeprefix(":::MLLOG "))
        return inf if record["key"] == "run_stop" else record["metadata"].get("step_num", -1)

    for file, step_of in (("events.jsonl", event_step), ("mllog.txt", mllog_step)):
        lines = (copy / file).read_text().splitlines(keepends=True)
        kept = [line for line in lines if step_of(line) <= step]
        (copy / file).write_text("".join(kept) + lines[len(kept)][:40])
    (copy / "report.html").unlink(missing_ok=True)
    return copy


# Where an epoch ended (9), where an evaluation fell on an epoch's end (13), and anywhere (27).
@pytest.mark.parametrize("step", [9, pytest.param(13, marks=ONE_MORE), 27])
def test_killed_right_after_a_checkpoint_it_repeats_nothing(trainer, unbroken, step):
    run = interrupted_copy(unbroken(1), f"after{step}", step)
    trainer.finished(run, FLAGS[1])
    assert_same_run(run, unbroken(1))


def test_killed_before_the_first_checkpoint_it_starts_over_and_logs_nothing_twice(trainer, unbroken):
    run = interrupted_copy(unbroken(1), "early", 2)
    trainer.finished(run, FLAGS[1])
    assert_same_run(run, unbroken(1))


def test_killed_while_it_was_set_up_the_same_command_is_not_refused(trainer, unbroken, tmp_path):
    run = tmp_path / "early"
    run.mkdir()
    (run / ".lock").touch()
    trainer.finished(run, FLAGS[1])
    assert_same_run(run, unbroken(1))


def test_killed_between_the_last_checkpoint_and_the_end_event_only_the_end_is_missing(trainer, unbroken):
    run = interrupted_copy(unbroken(1), "late", STEPS)
    trainer.finished(run, FLAGS[1])
    assert_same_run(run, unbroken(1))


def test_killed_between_the_checkpoint_that_met_the_target_and_the_end_event_it_trains_no_further(trainer):
    flags = "--target top1=0.4 --eval-every 5 --keep-checkpoints 99"
    run = trainer.finished(trainer.folder / "met", flags)
    met = last_event(run)
    assert met["status"] == "success" and met["step"] < STEPS
    assert mllog(run)[-1] == ("run_stop", None, {"status": "success", "step_num": met["step"]})
    copy = interrupted_copy(run, "met-and-killed", met["step"])
    trainer.finished(copy, flags)
    assert_same_run(copy, run)


@pytest.mark.nightly("tests/multi/test_own_detector.py does so with its own network")
def test_two_ranks_that_were_stopped_early_and_given_more_steps_end_like_those_that_had_them_at_once(
    trainer, unbroken, tmp_path
):
    run = tmp_path / "more"
    trainer.finished(run, f"{FLAGS[2]} --max-steps 12", ranks=2)
    assert last_event(run)["status"] == "stopped_early" and last_event(run)["step"] == 12
    ended = trainer.run(trainer.train(run, f"{FLAGS[2]} --max-steps 12"), ranks=2)
    assert [rank.code for rank in ended] == [2, 2] and "finished (stopped early" in said(ended), said(ended)
    trainer.finished(run, FLAGS[2], ranks=2)
    assert tensor_files(run) == tensor_files(unbroken(2))
    assert [line[0] for line in mllog(run)] == [line[0] for line in mllog(unbroken(2))]


def test_on_another_number_of_ranks_the_data_goes_on_where_it_stopped(trainer, unbroken):
    run = interrupted_copy(unbroken(2), "fewer", 12)
    trainer.finished(run, FLAGS[2], ranks=1)
    (resumed,) = [event for event in read_events(run / "events.jsonl") if event["event"] == "resume"]
    assert (resumed["step"], resumed["world_size"]) == (12, 1)
    for got, wanted in zip(events(run), events(unbroken(2)), strict=True):
        assert got.keys() == wanted.keys() and got["step"] == wanted["step"]
        if got["event"] == "train":  # float noise grows with every step; other photos would cost a tenth or more at once
            tolerance = 1e-4 if got["step"] <= 16 else 0.03
            assert got["samples"] == wanted["samples"] and got["loss"] == pytest.approx(wanted["loss"], abs=tolerance)


def test_it_does_not_go_on_with_other_photos(trainer, unbroken, tmp_path):
    run = interrupted_copy(unbroken(1), "other-photos", 12)
    other = Path(shutil.copytree(trainer.photos, tmp_path / "photos"))
    shutil.copy(other / "train" / "class0" / "000.jpg", other / "train" / "class0" / "another.jpg")
    command = trainer.train(run, FLAGS[1])
    command[command.index("--data") + 1] = str(other)
    for refused in (command, trainer.train(run, f"{FLAGS[1]} --max-train-images 50")):
        (ended,) = trainer.run(refused)
        assert ended.code == 2 and check_text(ended.text, "training images", "51"), ended.text
    trainer.finished(run, FLAGS[1])
    assert_same_run(run, unbroken(1))


def test_two_ranks_of_a_fold_learn_and_score_what_one_does(trainer, tmp_path):
    found = []
    for ranks in (1, 2):
        run = trainer.finished(tmp_path / f"fold{ranks}", "--num-folds 3 --fold 2 --max-steps 2 --log-every 1", ranks=ranks)
        facts = json.loads((run / "run.json").read_text())["data"]
        predictions = json.loads(next((run / "predictions").glob("step-*.json")).read_text())
        samples = [event["samples"] for event in events(run) if event["event"] == "train"]
        found.append((facts, samples, [image["file"] for image in predictions["images"]], predictions["fold"]))
    assert found[0] == found[1] and found[0][0]["fold"]["number"] == 2


def test_another_recipe_is_refused_on_rank_0_before_any_rank_opens_the_data(trainer, unbroken, tmp_path):
    run = interrupted_copy(unbroken(2), "other-recipe", 12)
    (tmp_path / "nothing").mkdir()
    for flags, wanted in (("--optim.lr 0.01", "  optim.lr: 0.05 in the checkpoint, 0.01 now"), ("", "nothing")):
        command = trainer.train(run, f"{FLAGS[2]} {flags}")
        command[command.index("--data") + 1] = str(tmp_path / "nothing")
        ended = trainer.run(command, ranks=2)
        assert [rank.code for rank in ended] == [2, 2] and "Traceback" not in said(ended), said(ended)
        assert wanted in ended[0].text and said(ended).count("failed:\n") == 1, said(ended)
        assert "rank 0 (of 2)" in ended[1].text, said(ended)
        assert (str(tmp_path / "nothing") in said(ended)) == (not flags), said(ended)


def test_a_log_has_its_blocks_and_epochs_in_mlperfs_order(unbroken):
    depth = {"block": 0, "epoch": 0}
    for key, _, facts in mllog(unbroken(1)):
        noun, _, verb = key.rpartition("_")
        if noun in depth:
            depth[noun] += 1 if verb == "start" else -1
            assert depth[noun] in (0, 1), facts
        if key == "epoch_start":
            assert depth["block"] == 1, f"an epoch begins outside a block: {facts}"
    assert depth["block"] == 0
