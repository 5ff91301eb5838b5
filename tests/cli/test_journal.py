"""events.jsonl is the journal: what was found up to a checkpoint stands there, and a run that goes on reads it from there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from messages import check_line
from run_files import cut_after, events_of, tensor_files
from tiny_runs import TINY, Said, command, of_its_own, without_report

from paceline._utils.journal import LineWriter
from paceline.cli.main import main
from paceline.training.checkpoint.read import load_checkpoint
from paceline.training.logging.events import MEASURED, read_events
from paceline.training.logging.mllog import PREFIX

STEPS = 6


def words_for(photos: Path, run: Path) -> list[object]:
    every = ["--eval-every", 2, "--save-every", 1, "--keep-checkpoints", 99, "--log-every", 2]
    return ["train", "classify-demo", "--data", photos, "--output-dir", run, *TINY, *every, "--max-steps", STEPS]


# Lines of logs in the order in which the run below wrote them: file, kind of event or key of MLPerf's log, step.
Written = list[tuple[str, str, int | None]]


@pytest.fixture(scope="module")
def written() -> Written:
    return []


@pytest.fixture(scope="module")
def whole(class_photos, tmp_path_factory, written) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    append = LineWriter.append

    def noted(self, line, **how):
        facts = json.loads(line.removeprefix(PREFIX))
        step = facts.get("step", facts.get("metadata", {}).get("step_num"))
        written.append((self.path.name, facts.get("event") or facts["key"], step))
        append(self, line, **how)

    with pytest.MonkeyPatch.context() as patch:
        of_its_own(patch, tmp_path_factory)
        patch.setattr(LineWriter, "append", noted)
        assert main([str(word) for word in words_for(class_photos, run)]) == 0
    return run


@pytest.fixture
def killed(whole, tmp_path, monkeypatch) -> Callable[..., Path]:
    """A copy as a kill leaves it when all of `step` is written, but for the kinds of events named."""
    without_report(monkeypatch)

    def copy(step: int, *, but: tuple[str, ...] = ()) -> Path:
        run = cut_after(shutil.copytree(whole, tmp_path / "run", symlinks=True), step, but=but)
        point(run, best_of(run))
        return run

    return copy


def best_of(run: Path) -> int:
    """The obvious search."""
    scores = {event["step"]: event["top1"] for event in events_of(run, "eval")}
    return max(scores, key=lambda step: (scores[step], -step), default=-1)


def point(run: Path, step: int) -> None:
    (run / "checkpoints" / "best").unlink(missing_ok=True)
    if step >= 0:
        (run / "checkpoints" / "best").symlink_to(f"step-{step:06d}")


def events(run: Path) -> list[dict]:
    return [
        {name: value for name, value in event.items() if name not in MEASURED}
        for event in read_events(run / "events.jsonl")
        if event["event"] != "resume"
    ]


def went_on(said: Said, run: Path, whole: Path, step: int) -> None:
    """The run ended as the one that was never killed."""
    assert said.code == 0 and check_line(said.out, "resumed", f"step-{step:06d}"), said
    assert tensor_files(run) == tensor_files(whole)
    assert events(run) == events(whole)
    for link in ("last", "best"):
        assert os.readlink(run / "checkpoints" / link) == os.readlink(whole / "checkpoints" / link)


def test_a_checkpoint_holds_nothing_that_is_found_later(whole):
    for folder in sorted((whole / "checkpoints").glob("step-*")):
        facts = load_checkpoint(folder).facts
        assert facts.keys() == {
            "step", "world_size", "meters", "seconds", "evaluates", "recipe", "data_hash", "train_images",
        }  # fmt: skip
        assert facts["evaluates"] == (facts["step"] % 2 == 0)


def test_an_evaluation_s_event_is_the_last_thing_written_of_it(whole, written):
    for step in (2, 4, 6):
        event = written.index(("events.jsonl", "eval", step))
        for key in ("eval_start", "eval_stop", "eval_accuracy"):
            assert written.index(("mllog.txt", key, step)) < event, (key, step)
        assert written[event + 1][1] not in ("block_stop", "block_start", "epoch_start")


def test_killed_between_a_result_s_event_and_its_link_the_link_comes(class_photos, killed, whole, capsys):
    run = killed(4)
    point(run, 4 if best_of(run) == 2 else 2)
    said = command(capsys, *words_for(class_photos, run))
    went_on(said, run, whole, 4)
    assert "best" not in said.err


def test_without_its_events_a_run_goes_on_with_the_best_as_it_is_and_says_so(class_photos, killed, whole, capsys):
    run = killed(4)
    (run / "events.jsonl").unlink()
    point(run, 2)
    said = command(capsys, *words_for(class_photos, run))
    assert said.code == 0 and said.out.count("events.jsonl not found") == 1, said
    # The evaluation of the checkpoint comes again, and is the first that is known.
    assert [event["step"] for event in events_of(run, "eval")] == [4, 6]
    assert os.readlink(run / "checkpoints" / "best") == f"step-{best_of(run):06d}"
    assert tensor_files(run) == tensor_files(whole)


def test_where_what_was_found_of_the_best_is_damaged_it_stays_the_best_and_that_is_said(class_photos, killed, capsys):
    run = killed(5)
    file, scores = run / "events.jsonl", {}
    for line in file.read_text().splitlines():
        if (event := json.loads(line))["event"] == "eval":
            scores[event["step"]] = event["top1"]
            if event["step"] == 2:
                file.write_text(file.read_text().replace(line, line.replace('"images": ', '"images": 1')))
    point(run, 2)
    said = command(capsys, *words_for(class_photos, run))
    assert said.code == 0 and check_line(said.out, "no results", "step-000002", "best"), said
    assert "events.jsonl not found" not in said.out
    (newest,) = [event["top1"] for event in events_of(run, "eval") if event["step"] == 6]
    assert os.readlink(run / "checkpoints" / "best") == ("step-000006" if newest > scores[4] else "step-000002")


def test_ended_by_a_command_where_no_evaluation_was_due_mlperf_s_log_has_no_block_left_open(class_photos, killed, capsys):
    run = killed(3)
    words = [3 if word == STEPS else word for word in words_for(class_photos, run)]
    assert command(capsys, *words).code == 0
    assert [event["step"] for event in events_of(run, "eval")] == [2, 3]
    keys = [json.loads(line.removeprefix(":::MLLOG "))["key"] for line in (run / "mllog.txt").read_text().splitlines()]
    assert [key for key in keys if key.startswith("block")] == ["block_start", "block_stop"] * 2


def test_a_link_to_a_checkpoint_that_was_never_evaluated_is_put_right(class_photos, killed, whole, capsys):
    run = killed(5)
    point(run, 3)
    said = command(capsys, *words_for(class_photos, run))
    went_on(said, run, whole, 5)
    assert "are lost" not in said.out


def test_a_best_checkpoint_that_was_deleted_is_said(class_photos, killed, capsys):
    run = killed(5)
    best = best_of(run)
    shutil.rmtree(run / "checkpoints" / f"step-{best:06d}")
    said = command(capsys, *words_for(class_photos, run))
    assert said.code == 0 and check_line(said.out, f"step-{best:06d}", "best", "not found"), said


def test_the_run_s_seconds_go_on_from_its_newest_event(class_photos, killed, capsys):
    run = killed(4)
    before = max(event["seconds"] for event in read_events(run / "events.jsonl"))
    assert before > load_checkpoint(run / "checkpoints" / "step-000004").facts["seconds"]
    assert command(capsys, *words_for(class_photos, run)).code == 0
    (resumed,) = events_of(run, "resume")
    assert resumed["seconds"] == before
