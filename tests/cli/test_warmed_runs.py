"""Before the first step: every shape is warmed and counted, what is compiled later is told, and a batch too large is cut smaller."""

from __future__ import annotations

import json

import pytest
from instance_sets import make_instances
from messages import check_lines, check_text
from run_files import events_of, tensor_files
from short_of_memory import out_of_memory
from tiny_runs import TINY, command, make_photos

import paceline.distributed.device.compiler as compiler
import paceline.training.memory_probe as trial_steps
import paceline.training.trainer as trainer
from paceline._utils.errors import RecipeError
from paceline.models.datamodule import DataModule
from paceline.models.resnet.loss import ClassifierWithLoss
from paceline.tools.report.run_report import write_report
from paceline.training.logging.event_logger import EventLogger
from paceline.training.logging.events import read_events
from paceline.training.logging.monitors import LogInterval
from paceline.training.step import TrainStep

pytestmark = pytest.mark.usefixtures("no_report")
SYNTHETIC = ["--synthetic", *TINY, "--bn-batch-size", "2"]


@pytest.fixture
def compiled(monkeypatch):
    """torch.compile with everything but the code that it would write, which needs a C++ compiler and minutes."""
    import torch._dynamo

    whole = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **how: whole(self, backend="eager", **how))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(recompile_limit=8, accumulated_recompile_limit=256, fail_on_recompile_limit_hit=False):
        yield
    torch._dynamo.reset()


def train(capsys, out, *more, steps=3):
    return command(capsys, "train", "classify-demo", *SYNTHETIC, "--output-dir", out, "--max-steps", steps, *more)


@pytest.mark.nightly("trains with warm-up or compiled")
def test_a_plain_run_on_a_cpu_has_no_warm_up(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(TrainStep, "discard", lambda *_: pytest.fail("a step was thrown away"))
    assert train(capsys, tmp_path / "run").code == 0
    assert {event["event"] for event in read_events(tmp_path / "run" / "events.jsonl")} == {
        *("train", "eval", "checkpoint", "end")
    }


@pytest.mark.nightly("trains with warm-up or compiled")
def test_a_compiled_run_has_compiled_all_before_its_first_step(capsys, tmp_path, compiled):
    run = tmp_path / "run"
    said = train(capsys, run, "--system.compile", "on", "--log-every", "1")
    assert said.code == 0 and "warmed up 1 shape in" in said.out and "1 graph compiled" in said.out
    first = read_events(run / "events.jsonl")[0]
    assert (first["event"], first["step"], first["shapes"], first["captures"]) == ("warm_up", 0, 1, 0)
    assert first["compilations"] == 1 and first["memory_estimate"] > 0 and "peak_memory" not in first
    assert first["micro_batch_size"] == json.loads((run / "run.json").read_text())["plan"]["micro_batch_size"]
    assert not any("recompilations" in event for event in events_of(run, "train")) and "warning" not in said.out


@pytest.mark.nightly("trains with warm-up or compiled")
def test_a_run_that_goes_on_has_a_warm_up_of_its_own_and_the_report_shows_the_last(capsys, tmp_path, compiled):
    run = tmp_path / "run"
    for steps in (3, 4):
        assert train(capsys, run, "--system.compile", "on", steps=steps).code == 0
    assert ">warm-up</" in write_report(run).read_text()
    assert [event["step"] for event in events_of(run, "warm_up")] == [0, 3]


@pytest.mark.nightly("trains with warm-up or compiled")
def test_a_shape_that_the_warm_up_did_not_have_is_told_and_counted(capsys, tmp_path, compiled, monkeypatch):
    monkeypatch.setattr(DataModule, "input_shapes", lambda self, plan: [(40, 40)])
    run = tmp_path / "run"
    said = train(capsys, run, "--system.compile", "on", "--log-every", "1")
    assert said.code == 0 and said.out.count("warning: 1 graph ") == 1
    assert [event.get("recompilations", 0) for event in events_of(run, "train")] == [1, 0, 0]


MASKRCNN = (
    "--model.width 8 --model.fpn-channels 16 --model.roi.fc-channels 32 --model.rpn.pre-nms-topk-train 100 "
    "--model.rpn.post-nms-topk-train 32 "
    "--model.rpn.pre-nms-topk-test 100 --model.rpn.post-nms-topk-test 32 --model.detect.max-detections 20 "
    "--input.min-size 48 64 --input.max-size 96 "
    "--model.rpn.anchor-sizes 12 24 36 48 64 --optim.lr 0.002 --bn-batch-size 1 --global-batch-size 2 --system.precision fp32"
)


@pytest.mark.nightly("trains with warm-up or compiled")
def test_each_shape_of_a_run_has_its_own_discarded_step_and_none_leaves_a_trace(capsys, tmp_path, monkeypatch):
    """The way of an accelerator, on a CPU: whole runs with and without it have the same bits."""
    data = make_instances(tmp_path / "photos", train=9, val=2)
    words = ["train", "maskrcnn-demo", "--data", data, *MASKRCNN.split(), "--max-steps", "12"]
    assert command(capsys, *words, "--output-dir", tmp_path / "plain").code == 0
    prepared, brought, said = [], set(), []
    alone, took, doing = TrainStep.warm_up, LogInterval.took, EventLogger.doing

    def spy_warm_up(self, batches):
        prepared.append(tuple(batches[0].images.shape[2:]))
        alone(self, batches)

    def spy_took(self, shapes):
        shapes = list(shapes)
        brought.update(tuple(shape[2:]) for shape in shapes)
        took(self, shapes)

    def spy_doing(self, what, of=0):
        said.append(what)
        doing(self, what, of)

    monkeypatch.setattr(TrainStep, "warm_up", spy_warm_up)
    monkeypatch.setattr(LogInterval, "took", spy_took)
    monkeypatch.setattr(EventLogger, "doing", spy_doing)
    monkeypatch.setattr(trial_steps, "is_shape_costly", lambda *_: True)
    assert command(capsys, *words, "--output-dir", tmp_path / "warmed").code == 0
    assert set(prepared) == brought and len(prepared) == len(brought) > 2
    areas = [height * width for height, width in prepared]
    assert areas == sorted(areas, reverse=True)
    count = len(prepared)
    assert [what for what in said if what.startswith("warming")] == [
        f"warming up shape {number} of {count}" for number in range(1, count + 1)
    ]
    (event,) = events_of(tmp_path / "warmed", "warm_up")
    assert event["shapes"] == count
    assert tensor_files(tmp_path / "warmed") == tensor_files(tmp_path / "plain")


@pytest.mark.nightly("trains with warm-up or compiled")
@pytest.mark.parametrize("recipe", ["classify-demo", "ssd-demo"])
def test_what_the_loader_brings_is_what_was_warmed(recipe, capsys, tmp_path, compiled):
    """Also of a CPU, whose own forms of SSD's loss follow from values: compiled, it takes those of accelerators."""
    make = make_photos if recipe == "classify-demo" else make_instances
    data = make(tmp_path / "photos", train=8, val=2)
    small = ["--data", data, "--global-batch-size", "4", "--optim.lr", "0.001", "--bn-batch-size", "2"]
    small += TINY[:4] if recipe == "classify-demo" else ["--input.image-size", "96"]
    words = ["--max-steps", "6", "--log-every", "1", "--system.micro-batch-size", "2", "--system.compile", "on"]
    said = command(capsys, "train", recipe, "--output-dir", tmp_path / "run", *small, *words)
    assert said.code == 0, said
    assert [event["compilations"] for event in events_of(tmp_path / "run", "warm_up")] == [1]
    assert not any("recompilations" in event for event in events_of(tmp_path / "run", "train"))


@pytest.mark.nightly("trains with warm-up or compiled")
def test_past_the_limit_nothing_goes_on_uncompiled(capsys, tmp_path, compiled, monkeypatch):
    monkeypatch.setattr(DataModule, "input_shapes", lambda self, plan: [(side, side) for side in range(33, 42)])
    monkeypatch.setattr(compiler, "SPARE_FORMS", 0)
    said = train(capsys, tmp_path / "run", "--system.compile", "on")
    assert said.code == 2 and len(events_of(tmp_path / "run", "warm_up")) == 1
    # torch's own log says above it which input was the last.
    last = said.err.splitlines()[-1]
    assert last.startswith("paceline: --system.compile: ") and check_text(last, "9 compiled")
    assert "--system.compile off" in last and "Traceback" not in said.err
    (end,) = events_of(tmp_path / "run", "end")
    assert end["status"] == "failed" and "--system.compile" in end["reason"]


def room_for(monkeypatch, images):
    """As if this were an accelerator with memory for so many images."""
    whole = ClassifierWithLoss.forward

    def forward(self, batch):
        if len(batch) > images and batch.images.device.type != "meta":
            out_of_memory()
        return whole(self, batch)

    monkeypatch.setattr(ClassifierWithLoss, "forward", forward)
    monkeypatch.setattr(trainer, "can_probe_memory", lambda device: True)


def test_a_run_whose_forward_does_not_fit_is_written_down_with_one_that_does(capsys, tmp_path, monkeypatch):
    run = tmp_path / "run"
    room_for(monkeypatch, 3)
    said = train(capsys, run)
    assert said.code == 0, said
    lines = [line for line in said.out.splitlines() if "enough memory" in line]
    assert check_lines(lines, ("2 micro-batches", "4 images"), ("4 micro-batches", "2 images"))
    facts = json.loads((run / "run.json").read_text())
    assert facts["system"]["micro_batch_size"] == 2
    assert (facts["plan"]["micro_batch_size"], facts["plan"]["micro_batches"]) == (2, 4)
    again = train(capsys, run, "--system.prefetch-steps", "2", steps=4)  # it begins with what was found
    assert again.code == 0 and "enough memory" not in again.out
    assert json.loads((run / "run.json").read_text())["plan"]["micro_batches"] == 4


@pytest.mark.nightly("trains with warm-up or compiled")
def test_a_run_of_which_nothing_fits_leaves_nothing(capsys, tmp_path, monkeypatch):
    room_for(monkeypatch, 1)
    said = train(capsys, tmp_path / "run")
    assert said.code == 3 and not (tmp_path / "run").exists()
    assert said.err.startswith("paceline: not enough memory") and check_text(said.err, "2 images")
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize(("recipe", "varied"), [("maskrcnn-demo", True), ("ssd-demo", False)])
def test_convolutions_are_searched_only_for_images_of_one_shape(capsys, recipe, varied, tmp_path, monkeypatch):
    asked = []

    def stop(exact, **facts):
        asked.append((exact, facts))
        raise RecipeError("enough")

    monkeypatch.setattr(trainer, "make_exact", stop)
    data = str(make_instances(tmp_path / "instances", train=8, val=2))
    assert command(capsys, "train", recipe, "--data", data, "--output-dir", tmp_path / "run").code == 2
    assert asked == [(False, {"varied": varied})]
