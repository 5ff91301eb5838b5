"""A run that ended goes on when its folder is given more, by rules that a test holds each; and what it says where it does not."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from messages import check_line, check_text, raises
from mllog_order import by_step
from run_files import events_of, facts_of, tensor_files, unfinished
from tiny_runs import TINY, command, of_its_own, refused

import paceline
from paceline._utils.errors import PacelineError
from paceline.cli.main import main
from paceline.config.plan import lr_at, make_plan
from paceline.config.published import Submission
from paceline.config.recipe import override
from paceline.config.recipes import RECIPES
from paceline.config.run import RunOptions, RunRecord
from paceline.config.system import System
from paceline.training.logging.events import read_events
from paceline.training.logging.mllog import PREFIX
from paceline.training.previous_run import SavedRun, _format_extend_options

pytestmark = pytest.mark.usefixtures("no_report", "no_charts")


@pytest.fixture(scope="module")
def ended(photos, tmp_path_factory) -> Path:
    """A run that was ended at step 5 of 20, in the middle of an epoch of 2.25 steps."""
    run = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        of_its_own(patch, tmp_path_factory)
        assert main([str(word) for word in words_for(photos, run, "--max-steps", 5)]) == 0
    return run


@pytest.fixture
def run(ended, tmp_path) -> Path:
    return shutil.copytree(ended, tmp_path / "run", symlinks=True)


def words_for(photos: Path, run: Path, *more: object) -> list[object]:
    length = ["--max-images", 160, "--log-every", 2, "--eval-every", 4, "--keep-checkpoints", 99]
    return ["train", "classify-demo", "--data", photos, "--output-dir", run, *TINY, *length, *more]


def end_of(run: Path) -> dict:
    last = read_events(run / "events.jsonl")[-1]
    assert last["event"] == "end"
    return last


def kinds(run: Path) -> list[str]:
    return [event["event"] for event in read_events(run / "events.jsonl")]


def mllog(run: Path) -> list[tuple]:
    lines = [json.loads(line.removeprefix(PREFIX)) for line in (run / "mllog.txt").read_text().splitlines()]
    told = [(line["key"], line["metadata"].get("step_num"), line["metadata"].get("status")) for line in lines]
    return by_step(told, lambda line: line[:2])


def test_more_steps_give_bit_for_bit_the_run_that_had_them_at_once(photos, run, tmp_path, capsys):
    assert end_of(run)["status"] == "stopped_early"
    said = command(capsys, *words_for(photos, run, "--max-steps", 11))
    assert said.code == 0 and check_line(said.out, "stopped early", "new limits"), said
    whole = tmp_path / "whole"
    assert command(capsys, *words_for(photos, whole, "--max-steps", 11)).code == 0
    assert tensor_files(run) == tensor_files(whole)
    # One end, and before it the word that another stood there; MLPerf's log is that of one run, without the stop between.
    assert kinds(run).count("end") == 1 and end_of(run)["step"] == 11
    (resumed,) = events_of(run, "resume")
    assert (resumed["step"], resumed["after"]) == (5, "stopped_early")
    assert mllog(run) == mllog(whole) and mllog(run)[-1] == ("run_stop", 11, "aborted")


def test_its_log_and_its_run_json_keep_the_submission_that_it_was_begun_with(photos, run, capsys):
    before = (run / "mllog.txt").read_text().splitlines()[:8]
    asked = ["--mlperf.submitter", "B", "--mlperf.cache-cleared"]
    said = command(capsys, *words_for(photos, run, "--max-steps", 6, *asked))
    told = "--mlperf.submitter, --mlperf.cache-cleared: ignored, because the log of this run was started with submitter reference_imp"
    assert said.code == 0 and told in said.out + said.err, said
    saved = facts_of(run)["options"]["mlperf"]
    assert (saved["submitter"], saved["cache_cleared"]) == ("reference_implementation", False)
    assert (run / "mllog.txt").read_text().splitlines()[:8] == before
    folder = SavedRun(run, RunRecord(options={"mlperf": {"submitter": "A", "cache_cleared": True}}))
    lines: list[str] = []
    for again in (Submission("A"), Submission("A", cache_cleared=True), Submission()):  # nothing new, and nothing to say
        assert folder.submission(again, lines.append) == Submission("A", cache_cleared=True) and not lines
    assert SavedRun(run, None).submission(Submission("B"), lines.append) == Submission("B") and not lines


def test_without_steps_it_goes_on_to_the_recipes_end(photos, run, capsys):
    assert command(capsys, *words_for(photos, run)).code == 0
    assert (end_of(run)["status"], end_of(run)["step"]) == ("success", 20)
    refused(command(capsys, *words_for(photos, run)), "finished (success", "--max-images above 160")


def test_its_own_run_json_goes_on_with_more(run, capsys):
    words = ["train", run / "run.json", "--output-dir", run]
    refused(command(capsys, *words), "finished (stopped early", "step 5 of 20", "--max-steps", "20")
    assert command(capsys, *words, "--max-steps", 7).code == 0 and end_of(run)["step"] == 7


def test_a_greater_length_brings_its_own_schedule_from_the_step_where_the_run_stands(photos, run, capsys):
    for length in (160, 320):
        assert command(capsys, *words_for(photos, run, "--max-images", length, "--log-every", 1)).code == 0
    rates = {event["step"]: event["lr"] for event in events_of(run, "train")}
    changes = {"optim.lr": 0.01, "global_batch_size": 8, "bn_batch_size": 8}
    for length, steps in ((160, range(6, 21)), (320, range(21, 41))):
        recipe = override(RECIPES["classify-demo"](), {**changes, "max_images": length})
        plan = make_plan(recipe, System(), world=1, most=8, train_images=18, val_images=9)
        assert [rates[step] for step in steps] == [pytest.approx(lr_at(recipe, plan, step - 1)) for step in steps]
    assert (end_of(run)["status"], end_of(run)["step"]) == ("success", 40)
    first, now = (json.loads((run / name).read_text()) for name in ("run-first.json", "run.json"))
    assert (first["recipe"]["max_images"], now["recipe"]["max_images"]) == (160, 320)


def test_a_length_goes_on_only_where_it_is_greater_and_named(photos, run, capsys):
    words = words_for(photos, run, "--max-steps", 7)
    refused(command(capsys, *words, "--max-images", 80), "started with 20 steps", "--max-steps 10")
    at = words.index("--max-images")
    refused(command(capsys, *words[:at], *words[at + 2 :]), "max_images: 160", "run.json", lines=6)
    assert end_of(run)["step"] == 5


def test_a_run_that_reached_its_target_goes_on_with_another_or_none(photos, tmp_path, capsys):
    run = tmp_path / "run"
    words = words_for(photos, run, "--max-steps", 6)
    assert command(capsys, *words, "--target", "top1=0.0").code == 0
    assert (end_of(run)["status"], end_of(run)["step"]) == ("success", 4)
    refused(command(capsys, *words, "--target", "top1=0.0"), "target top1 0 reached", "--target with another")
    # Forgetting the flag is no change of it.
    refused(command(capsys, *words), "--target with another")
    shutil.copytree(run, tmp_path / "copy", symlinks=True)
    assert command(capsys, *words, "--target", "top1=1.5").code == 0
    assert (end_of(run)["status"], end_of(run)["step"]) == ("stopped_early", 6)
    said = command(capsys, "train", tmp_path / "copy" / "run.json", "--output-dir", tmp_path / "copy", "--target")
    assert said.code == 0 and end_of(tmp_path / "copy")["step"] == 6, said


def test_flags_of_quality_that_were_forgotten_are_named_with_the_command_that_has_them(photos, tmp_path, capsys):
    run = tmp_path / "run"
    assert command(capsys, *words_for(photos, run, "--max-steps", 3, "--target", "top1=1.5")).code == 0
    said = command(capsys, *words_for(photos, run, "--max-steps", 5))
    refused(said, 'target: [["top1", 1.5]]', f"paceline train {run}/run.json --output-dir {run}", lines=6)


def test_time_and_patience_that_are_used_up_end_it_again_unless_there_is_more_of_them(photos, tmp_path, capsys):
    run = tmp_path / "run"
    hasty = ["--max-time", "0.001s"]
    assert command(capsys, *words_for(photos, run, *hasty)).code == 0
    end = end_of(run)
    assert end["status"] == "stopped_early" and check_text(end["reason"], "--max-time 0.001s", "step 1 of 20")
    refused(command(capsys, *words_for(photos, run, *hasty)), "--max-time above 0.001s")
    patient = ["--eval-every", 1, "--optim.lr", 0.01, "--target", "top1=1.5"]
    assert command(capsys, *words_for(photos, run, "--max-time", "1h", "--patience", 1, *patient)).code in (0, 1)
    if end_of(run)["step"] < 20:  # it was not better each time
        refused(command(capsys, *words_for(photos, run, "--patience", 1, *patient)), "--patience above 1")


@pytest.mark.parametrize(
    "asked, more, wanted",
    [
        ({}, {}, ["--max-images above 160"]),
        ({"max_steps": 20}, {}, ["--max-images above 160"]),
        ({}, {"max_images": 320}, []),
        ({"max_steps": 20}, {"max_images": 320}, ["--max-steps above 20 (or 0 for all 40 steps)"]),
        ({"max_steps": 14}, {"max_images": 320}, ["--max-steps above 20 (or 0 for all 40 steps)"]),
        ({"max_steps": 14}, {}, ["--max-images above 160", "--max-steps above 20 (or 0 for no limit)"]),
        ({"max_time": "90s"}, {"max_images": 320}, ["--max-time above 90s"]),
        ({"max_time": "101s"}, {"max_images": 320}, []),
        ({"patience": 2}, {"max_images": 320}, ["--patience above 2"]),
        ({"patience": 3}, {"max_images": 320}, []),
        (
            {"patience": 1, "max_time": "1s", "max_steps": 9},
            {},
            ["--max-images", "--max-steps", "--max-time", "--patience"],
        ),
    ],
)
def test_every_limit_that_would_end_it_at_once_is_named(asked, more, wanted):
    recipe = replace(RECIPES["classify-demo"](), global_batch_size=8, epochs=0.0, max_images=160)
    end = {"step": 20, "seconds": 100.0, "evaluations_since_best": 2}
    saved = RunRecord(
        recipe={"epochs": 0.0, "max_images": 160, "target": []},
        plan={"steps_per_epoch": 2.25, "global_batch_size": 8, "total_steps": 20},
    )
    ways = _format_extend_options(end, {"top1": 0.5}, saved, replace(recipe, **more), RunOptions(**asked), {"max_images"})
    assert len(ways) == len(wanted) and all(text in way for way, text in zip(ways, wanted)), ways


def test_a_run_that_stands_further_than_is_asked_says_nothing_of_the_average_at_the_step_asked(photos, run, capsys):
    unfinished(run)
    said = command(capsys, *words_for(photos, run, "--max-steps", 3))
    assert said.code == 0 and end_of(run)["step"] == 5, said
    assert "initial weights" not in said.out + said.err


def test_another_recipes_folder_is_named_in_a_line_with_the_command_that_goes_on(photos, run, capsys):
    go_on = f"paceline train {run}/run.json --output-dir {run}"
    said = command(capsys, "train", "ssd-demo", "--output-dir", run)
    refused(said, f"{run} ... classification ... classify-demo ... ssd-demo", go_on, lines=2)
    said = command(capsys, "train", "resnet50", "--data", photos, "--output-dir", run, "--system", "cpu")
    refused(said, "(recipe classify-demo), not resnet50.", go_on, lines=2)


def test_what_is_refused_leaves_no_folder_behind(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for more in ([], ["--output-dir", "a/b/c"]):
        refused(command(capsys, "train", "classify-demo", "--data", tmp_path / "none", *more), "folder")
        assert os.listdir(tmp_path) == []
    with raises(PacelineError, "folder"):
        paceline.train("classify-demo", data=str(tmp_path / "none"))
    assert os.listdir(tmp_path) == []
    (tmp_path / "runs").mkdir()
    refused(command(capsys, "train", "classify-demo", "--data", tmp_path / "none"), "folder")
    assert os.listdir(tmp_path) == ["runs"]  # it was there before


def test_weights_out_of_a_run_are_reported_without_counters(photos, run, tmp_path, capsys):
    words = words_for(photos, tmp_path / "new", "--max-steps", 1, "--weights", run / "checkpoints" / "last")
    said = command(capsys, *words)
    assert said.code == 0 and "tensors used" in said.out and "num_batches_tracked" not in said.out, said
