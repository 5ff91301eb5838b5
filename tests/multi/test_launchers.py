"""Two ranks as a user starts them; and one rank's failure ends all, by name."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from small_run import (
    CLASSES,
    UNTIL_STOPPED,
    VAL_EACH,
    Trainer,
    assert_same_end,
    events,
    kinds,
    last_event,
    mpirun,
    said,
    step_reached,
    tensor_files,
    told,
    torchrun,
    wait_until,
)

from paceline.config.system import System
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.inference.trained_model import open_trained
from paceline.models.registry import WORKLOADS
from paceline.models.task import InputRank
from paceline.training.evaluate import inference_mode

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("clock")]

VAL_IMAGES = CLASSES * VAL_EACH


def stops_and_goes_on(
    trainer: Trainer, run: Path, undisturbed: Path, launcher: list[str], how: str, *, under_it: bool, **more
) -> str:
    """Train, ask the launcher to stop, go on to the end with the same command, under it or by hand; -> who the ranks say
    started them first.
    """
    command = trainer.train(run, UNTIL_STOPPED)
    process = trainer.launching(launcher, command, **more)
    wait_until(lambda: step_reached(run) >= 4 or process.poll() is not None, "step 4")
    process.send_signal(getattr(signal, how))
    text = told(process)
    assert last_event(run)["event"] == "end" and last_event(run)["status"] == "interrupted", text
    first = json.loads((run / "run.json").read_text())["launcher"]
    if under_it:
        done = trainer.launched(launcher, command, **more)
        assert done.returncode == 0, done.stdout
        assert json.loads((run / "run.json").read_text())["launcher"] == first
    else:
        trainer.finished(run, UNTIL_STOPPED, ranks=2)
    assert_same_end(run, undisturbed)
    assert len(kinds(run)) > len(events(run))  # there was a resume
    return first


def test_two_ranks_under_torchrun_train_evaluate_save_and_resume(trainer, undisturbed, tmp_path, nightly):
    """By night torchrun starts them a second time; by day the ranks that go on are forked with its variables."""
    run = tmp_path / "run"
    assert stops_and_goes_on(trainer, run, undisturbed, torchrun(2), "SIGTERM", under_it=nightly) == "torchrun"


@pytest.mark.nightly("ranks under mpirun train on two hosts in test_two_hosts.py by day")
def test_two_ranks_under_mpirun_train_evaluate_save_and_are_resumed(trainer, undisturbed, tmp_path, need_program):
    need_program("mpirun", "openmpi-bin")
    assert stops_and_goes_on(trainer, tmp_path / "run", undisturbed, mpirun(2), "SIGUSR1", under_it=False) == "openmpi"


def test_an_evaluation_scores_every_image_once_on_1_2_3_and_7_ranks(trainer, undisturbed, monkeypatch):
    asked = ("--checkpoint", "last", "--max-val-images", "0")
    found = [trainer.evaluated(undisturbed, *asked, ranks=ranks)[0] for ranks in (1, 2, 3)]
    monkeypatch.setenv("PACELINE_CACHE", trainer.environ["PACELINE_CACHE"])
    trained = open_trained(undisturbed, checkpoint="last", device=torch.device("cpu"))
    task = WORKLOADS["classification"].open(trained.recipe, Manifest.load(prepare_if_needed(trainer.photos)))
    packed = []
    for rank in range(7):
        score = task.evaluator.new_score()
        place = InputRank(rank, 7, torch.device("cpu"), 1)
        with inference_mode(trained.model), task.data.val_loader(6, System(), place) as loader:
            for _, (images,) in loader:
                score.add(images, trained.model.predict(images))  # type: ignore[operator]
        packed.append(score.pack())
    seven = task.evaluator.summarize(packed)
    assert [one["images"] for one in found] == [VAL_IMAGES] * 3
    assert seven.images == VAL_IMAGES
    assert [{name: one[name] for name in seven.metrics} for one in found] == [dict(seven.metrics)] * 3
    (trained_eval,) = [event for event in events(undisturbed) if event["event"] == "eval"][-1:]
    assert {name: trained_eval[name] for name in seven.metrics} == dict(seven.metrics)


def test_a_photo_that_only_one_rank_reads_ends_all_with_its_name(trainer, tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_CACHE", trainer.environ["PACELINE_CACHE"])
    photos = Path(shutil.copytree(trainer.photos, tmp_path / "photos"))
    prepare_if_needed(photos)
    spoiled = photos / "train" / "class1" / "004.jpg"
    spoiled.write_bytes(b"\xff\xd8" + b"\0" * (spoiled.stat().st_size - 2))  # the size that the manifest remembers
    command = trainer.train(tmp_path / "run")
    command[command.index("--data") + 1] = str(photos)
    ended = trainer.run(command, ranks=2)
    assert [rank.code for rank in ended] == [2, 2], said(ended)
    (who,) = [number for number, rank in enumerate(ended) if "class1/004.jpg" in rank.text and "failed:\n" in rank.text]
    assert f"rank {who} (of 2) failed:" in ended[who].text
    assert not any("Traceback" in rank.text for rank in ended)
    end = last_event(tmp_path / "run")
    assert end["status"] == "failed" and "class1/004.jpg" in end["reason"]


@pytest.mark.nightly("by day test_world.py has a killed rank named, and tests/faults a killed run that goes on")
@pytest.mark.parametrize("who", [0, 1])
def test_a_killed_rank_ends_the_training_by_name_and_the_run_can_go_on(trainer, undisturbed, tmp_path, who):
    run = tmp_path / "run"
    ended = trainer.signalled(run, UNTIL_STOPPED, signal.SIGKILL, ranks=2, rank=who)
    assert [rank.code for rank in ended] == [-9 if rank == who else 3 for rank in range(2)], said(ended)
    survivor = ended[1 - who]
    assert f"rank {who} (of 2) failed" in survivor.text and "Traceback" not in survivor.text
    if who == 1:  # rank 0 writes the events
        assert (last_event(run)["event"], last_event(run)["status"]) == ("end", "failed")
    trainer.finished(run, UNTIL_STOPPED, ranks=2)
    assert tensor_files(run) == tensor_files(undisturbed)
