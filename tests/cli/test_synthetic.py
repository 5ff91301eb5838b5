"""`train --synthetic`: every workload takes steps with no data set there and no byte of one read; nothing comes out as a result."""

from __future__ import annotations

import json
from dataclasses import replace
from math import isnan
from pathlib import Path

import pytest
import torch
from messages import check_line, check_text
from tiny_runs import TINY, command, forge, refused, without_report

from paceline.cli.flags import parse_run_args
from paceline.config.plan import make_plan
from paceline.config.recipes.ssd import demo
from paceline.config.run import RunOptions
from paceline.config.system import System
from paceline.data.index.manifest import Manifest
from paceline.data.loader.loader import Loader
from paceline.models.dummy_data import make_synthetic_task
from paceline.models.registry import WORKLOADS
from paceline.models.task import InputRank
from paceline.models.weights.classes import Labels
from paceline.tools.report.run_report import write_report
from paceline.training.logging.events import read_events

pytestmark = pytest.mark.usefixtures("no_charts")

SMALL = {
    "classify-demo": TINY,
    "ssd-demo": ["--global-batch-size", "2", "--optim.lr", "0.001"],
    "maskrcnn-demo": ["--global-batch-size", "1", "--optim.lr", "0.001"],
}


def train(capsys, recipe: str, out: Path, *more: object, steps: int = 2):
    return command(capsys, "train", recipe, "--synthetic", "--output-dir", out, *SMALL[recipe], "--max-steps", steps, *more)


@pytest.fixture(autouse=True)
def no_data(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("data were opened")

    monkeypatch.setattr(Manifest, "load", refuse)
    monkeypatch.setattr(Loader, "__init__", refuse)
    without_report(monkeypatch)


@pytest.mark.parametrize("recipe", SMALL)
def test_a_workload_trains_on_nothing_and_says_so(recipe, capsys, tmp_path):
    said = train(capsys, recipe, tmp_path / "run")
    assert said.code == 0 and check_text(said.out, "no data", "no metric")
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["options"]["synthetic"] and facts["data"]["hash"] == "synthetic"
    events = read_events(tmp_path / "run" / "events.jsonl")
    trained, scored = ([event for event in events if event["event"] == kind] for kind in ("train", "eval"))
    assert trained[-1]["step"] == 2 and trained[-1]["loss"] > 0
    assert [event["images"] for event in scored] == [0]
    assert all(map(isnan, events[-1]["best"].values()))
    assert "eval_accuracy" not in (tmp_path / "run" / "mllog.txt").read_text()
    assert "  synthetic  " in command(capsys, "runs", tmp_path).out
    row = json.loads(command(capsys, "runs", tmp_path, "--json").out)[0]
    assert row["synthetic"] is True and row["best"] is None
    assert ">synthetic</span>\n</header>" in write_report(tmp_path / "run").read_text()


def test_no_target_is_reached_and_no_checkpoint_is_the_best(capsys, tmp_path):
    said = train(capsys, "classify-demo", tmp_path / "run", "--target", "top1=0")
    assert said.code == 0 and "target top1" not in said.out
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert events[-1]["status"] == "stopped_early"
    assert isnan(next(event["top1"] for event in events if event["event"] == "eval"))
    assert not (tmp_path / "run" / "checkpoints" / "best").exists()


def test_it_goes_on_and_is_not_taken_for_a_run_on_data(capsys, tmp_path, class_photos):
    assert train(capsys, "classify-demo", tmp_path / "run").code == 0
    check_line(train(capsys, "classify-demo", tmp_path / "run", steps=3).out, "resumed", "step-000002")
    on_data = command(capsys, "train", "classify-demo", "--data", class_photos, "--output-dir", tmp_path / "run", *TINY)
    refused(on_data, f"{tmp_path / 'run'} ... synthetic ... --output-dir", lines=1)
    assert "verifying" not in on_data.out  # nor were data opened: see above
    forge(tmp_path / "run", {"options.synthetic": False})
    refused(train(capsys, "classify-demo", tmp_path / "run", steps=4), "on data ... --output-dir")
    forge(tmp_path / "run", {"options.synthetic": True})
    refused(command(capsys, "eval", tmp_path / "run"), "synthetic", "score")
    refused(command(capsys, "predict", tmp_path / "run", class_photos / "val"), "synthetic", "predict")
    for file in ("last", "last/model.safetensors"):
        weights = tmp_path / "run" / "checkpoints" / file
        refused(train(capsys, "classify-demo", tmp_path / "other", "--weights", weights), f"{weights}")
    assert not (tmp_path / "other").exists()
    both = train(capsys, "classify-demo", tmp_path / "other", "--data", class_photos)
    refused(both, "--synthetic", str(class_photos))


def test_batches_are_made_once_and_fill_every_forward():
    task = make_synthetic_task(WORKLOADS["detection"], replace(demo(), global_batch_size=6, bn_batch_size=3))
    images = task.data.train_images, task.data.val_images
    plan = make_plan(task.recipe, System(), world=1, most=3, train_images=images[0], val_images=images[1])
    plan = replace(plan, stop_after=4)
    place = InputRank(0, 1, torch.device("cpu"), 1)
    with task.data.train_loader(plan, System(), place, first=1, one_batch=False) as loader:
        steps = dict(loader)
        assert loader.wait_seconds == 0
    assert list(steps) == [1, 2, 3]
    assert [batch.images.data_ptr() for batch in steps[1]] == [batch.images.data_ptr() for batch in steps[3]]
    first, second = steps[1]
    assert len(first) == len(second) == 3 and not torch.equal(first.images, second.images)
    assert first.boxes.shape[1] == 32 and bool((first.labels > 0).all())
    left_upper, right_lower = first.boxes[..., :2], first.boxes[..., 2:]
    assert bool((left_upper < right_lower).all()) and float(first.boxes.min()) >= 0 and float(first.boxes.max()) <= 1


@pytest.mark.parametrize("recipe", SMALL)
def test_it_starts_from_a_file_s_weights_and_made_up_names_match_nobody_s(recipe, tmp_path):
    asked = parse_run_args([recipe, *SMALL[recipe]], RunOptions(), verb="train").recipe
    task, other = (make_synthetic_task(WORKLOADS[asked.task], replace(asked, seed=seed)) for seed in (1, 2))
    file, model = tmp_path / "first.pth", task.build(torch.device("cpu"))
    torch.save(other.build(torch.device("cpu")).state_dict(), file)
    said = task.load_weights(model, file).lines()
    saved = torch.load(file)
    assert all(torch.equal(tensor, saved[name]) for name, tensor in model.state_dict().items())
    assert task.data.labels() == Labels(()) and not any("by name" in line for line in said)
