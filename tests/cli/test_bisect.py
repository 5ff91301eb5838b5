"""`paceline compare A B --bisect` finds what was planted, a bit, a recipe, other samples, and nothing in equal runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_night import ONE_MORE
from messages import check_line
from shared_runs import MASKRCNN, SSD
from tiny_runs import TINY, command, forge, refused, without_report

from paceline.cli.main import main
from paceline.config.run import RunOptions
from paceline.tools.compare.bisect import format_recorded, format_replayed
from paceline.tools.compare.replay import Replay, flip_bit
from paceline.tools.compare.step_trace import compare_tensors
from paceline.training.checkpoint.layout import step_name
from paceline.training.checkpoint.read import load_checkpoint
from paceline.training.checkpoint.write import Snapshot, save_checkpoint
from paceline.training.step import TrainStep

KEPT = ("--save-every", 1, "--log-every", 1, "--keep-checkpoints", 9, "--system.intra-op-threads", 1)
# Workload -> recipe, flags, the fixture of its data, a weight.
RUNS = {
    "classification": ("classify-demo", TINY, "resnet_run", "network.layer1.0.conv1.weight"),
    "ssd": ("ssd-demo", SSD.split(), "ssd_run", "network.extras.0.conv.weight"),
    "maskrcnn": ("maskrcnn-demo", MASKRCNN.split(), "maskrcnn_run", "network.rpn.head.conv.0.0.weight"),
}
Train = Callable[..., Path]


@pytest.fixture(
    scope="module", params=["classification", *(pytest.param(name, marks=ONE_MORE) for name in ("ssd", "maskrcnn"))]
)
def workload(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def train(request, workload, tmp_path_factory) -> Train:
    """Train the workload's tiny run in this folder, which may hold one that goes on."""
    recipe, flags, fixture, _ = RUNS[workload]
    data, cache = request.getfixturevalue(fixture).data, str(tmp_path_factory.getbasetemp() / "cache")

    def train(out: Path, *more: object, steps: int = 3) -> Path:
        words = ("train", recipe, "--data", data, "--output-dir", out, *flags, *KEPT, "--max-steps", steps, *more)
        with pytest.MonkeyPatch.context() as patch:  # not for longer: other tests' runs have a report
            without_report(patch)
            patch.setenv("PACELINE_CACHE", cache)
            assert main([str(word) for word in words]) == 0
        return out

    return train


@pytest.fixture(scope="module")
def one(tmp_path_factory, train) -> Path:
    """What every other run is compared with."""
    return train(tmp_path_factory.mktemp("runs") / "one")


def bisected(capsys, one: Path, other: Path, *more: object) -> dict[str, Any]:
    said = command(capsys, "compare", one, other, "--bisect", "--json", *more)
    assert said.code == 0, said.err
    return json.loads(said.out)


def text_of(found: dict[str, Any]) -> str:
    lines = [*format_recorded(found), *(format_replayed(found) if "parted" in found else ())]
    assert all(len(line) <= 80 or "/" in line for line in lines), lines
    return " ".join(" ".join(lines).split())


def test_a_bit_that_was_changed_in_a_checkpoint_is_named(one, train, capsys, workload, tmp_path, nightly):
    other, name = train(tmp_path / "other", steps=2), RUNS[workload][3]
    saved = load_checkpoint(other / "checkpoints" / step_name(2))
    flip_bit(saved.tensors["model"][name], (0, 0, 0, 0), 0)
    save_checkpoint(other / "checkpoints", 2, Snapshot(saved.tensors, saved.facts))
    if nightly:
        train(other)  # it goes on from there
    found = bisected(capsys, one, other)
    assert found["differences"] == {} and found["checkpoints"]["equal"] == 1
    (differing,) = found["checkpoints"]["first"]["differing"]
    assert (differing["kind"], differing["name"], differing["differing"], differing["units"]) == ("weights", name, 1, 1)
    assert found["checkpoints"]["first"]["step"] == 2 and found["parted"] is None
    ours, theirs = found["replay"]["records"]
    assert not {"event", "checkpoint"} & ours.keys() and 2 in ours["fitted"]
    (own,) = theirs["checkpoint"]["differing"]
    assert theirs["checkpoint"]["step"] == 2 and (own["name"], own["at"]) == (name, differing["at"])
    text = text_of(found)
    check_line(text, "B", "step 2", name)
    forge(other, {"options.data": str(tmp_path / "gone")})
    refused(command(capsys, "compare", one, other, "--bisect"), "other ... data", "--data DIR")
    forge(other, {"world_size": 2})
    refused(command(capsys, "compare", one, other, "--bisect"), "2 processes")


@pytest.mark.nightly("seconds of training")
def test_a_bit_that_flips_in_memory_is_found_between_two_records(one, train, capsys, workload, monkeypatch, tmp_path):
    name, taken = RUNS[workload][3], []

    def faulty(self: TrainStep, *batches: Any, **more: Any) -> dict[str, torch.Tensor]:
        if self.state.step == 1 and not taken:
            taken.append(True)
            flip_bit(self.state.model.get_parameter(name).detach(), (0, 0, 0, 0), 22)
        return whole(self, *batches, **more)

    with monkeypatch.context() as patch:
        whole = TrainStep.__call__
        patch.setattr(TrainStep, "__call__", faulty)
        other = train(tmp_path / "other")
    found = bisected(capsys, one, other)
    assert found["events"]["first"]["step"] == found["checkpoints"]["first"]["step"] == 2 and found["parted"] is None
    ours, theirs = found["replay"]["records"]
    assert not {"event", "checkpoint"} & ours.keys()
    assert theirs["event"]["step"] == theirs["checkpoint"]["step"] == 2
    text = text_of(found)
    assert theirs["flip"] == {"step": 2, "name": name, "at": [0] * len(theirs["flip"]["at"]), "bit": 22}
    check_line(text, "bit 22", name, "[0, 0, 0, 0]", "step 2", "B")


def test_other_arithmetic_is_named_by_its_tensor(one, train, capsys, tmp_path, workload):
    other = train(tmp_path / "other", "--optim.momentum", 0.8, steps=1)
    found = bisected(capsys, one, other)
    assert list(found["differences"]) == ["recipe.optim.momentum"] and found["replay"]["from"] is None
    parted = found["parted"]
    first = (
        "weights" if workload == "classification" else "optimizer state"
    )  # AdamW's averages; Nesterov's step from no velocity
    assert (parted["kind"], parted["step"], parted["rounding"]["could"]) == (first, 1, False)
    assert all(record["fitted"] and not {"event", "checkpoint"} & record.keys() for record in found["replay"]["records"])
    assert "Rounding does not" in text_of(found)


@pytest.mark.nightly("seconds of training")
def test_another_order_of_sums_is_rounding(train, capsys, tmp_path):
    cut = ("--bn-batch-size", 2, "--system.micro-batch-size", 2)
    one, other = train(tmp_path / "one", *cut[:2]), train(tmp_path / "other", *cut)
    parted = bisected(capsys, one, other)["parted"]
    assert (parted["kind"], parted["step"], parted["rounding"]["could"]) == ("optimizer state", 1, True)


@pytest.mark.nightly("seconds of training")
def test_other_threads_are_rounding(one, train, capsys, tmp_path, workload):
    other = train(tmp_path / "other", "--system.intra-op-threads", 2)
    found = bisected(capsys, one, other)
    if workload == "classification" and "parted" not in found:
        return  # bf16 hides it
    assert found["parted"]["rounding"]["could"]
    assert all(record["fitted"] and "left" not in record for record in found["replay"]["records"])


@pytest.mark.nightly("seconds of training")
def test_another_seed_begins_with_other_weights_and_other_photos(one, train, capsys, tmp_path):
    other = train(tmp_path / "other", "--seed", 5)
    found = bisected(capsys, one, other)
    parted = found["parted"]
    assert (parted["kind"], parted["step"]) == ("start", 0) and parted["samples"][0] != parted["samples"][1]
    text = text_of(found)
    assert "step 1: " in text and "different images" in text and parted["samples"][1][0] in text


def test_a_repeated_batch_has_the_photos_of_the_first_step():
    data = SimpleNamespace(images_of_step=lambda step: [f"set/{step}.jpg"])
    task = SimpleNamespace(facts={"root": "set"}, data=data)
    for repeats, photo in ((False, "3.jpg"), (True, "0.jpg")):
        side: Any = SimpleNamespace(task=task, options=RunOptions(overfit_one_batch=repeats))
        assert Replay.photos(side, 3) == [photo]


def test_equal_runs_differ_by_nothing(one, train, capsys, tmp_path):
    other = train(tmp_path / "other", steps=2)
    found = bisected(capsys, one, other)
    assert found["events"] == found["checkpoints"] == {"compared": 2, "equal": 2, "first": None} and "parted" not in found
    said = command(capsys, "compare", one, other, "--bisect")
    assert said.code == 0 and " ".join(said.out.split()) == text_of(found) and "No difference" in said.out


def test_what_cannot_be_bisected_is_refused(resnet_run, ssd_run, capsys, tmp_path):
    one = shutil.copytree(resnet_run.folder, tmp_path / "one", symlinks=True)
    refused(command(capsys, "compare", one, "--bisect"), "two runs ... 1")
    refused(command(capsys, "compare", one, ssd_run.folder, "--bisect"), "tensors")
    refused(command(capsys, "compare", one, tmp_path, "--bisect"), "run.json not found")
    other = shutil.copytree(one, tmp_path / "other", symlinks=True)
    (other / "events.jsonl").write_bytes((other / "events.jsonl").read_bytes().splitlines(keepends=True)[0])
    refused(command(capsys, "compare", one, other, "--bisect"), "other ... ended")
    shutil.rmtree(one / "checkpoints")
    refused(command(capsys, "compare", one, one, "--bisect"), "checkpoint")


def test_the_difference_of_two_tensors_by_hand():
    one = torch.tensor([[1.0, -2.0], [0.0, 4.0]])
    assert compare_tensors(one, one.clone()) == {}
    other = one.clone()
    other[0, 1], other[1, 1] = -2.0000002, 4.5
    found = compare_tensors(one, other)
    assert (found["elements"], found["differing"], found["at"], found["values"]) == (4, 2, [1, 1], [4.0, 4.5])
    assert (found["largest"], found["relative"]) == (0.5, 0.125)
    assert (found["units"], found["most_units"]) == (2**20, 2**20)
    assert compare_tensors(torch.tensor([4.0, 0.0]), torch.tensor([4.5, 1e-30]))["most_units"] > 2**27
    assert compare_tensors(torch.tensor([0.0]), torch.tensor([-0.0]))["units"] == 0
    assert compare_tensors(torch.tensor([-1e-45]), torch.tensor([1e-45]))["units"] == 2
    assert compare_tensors(one, one[0])["shapes"] == [[2, 2], [2]] and compare_tensors(None, one)["shapes"][0] is None
    assert compare_tensors(torch.tensor([1.0]), torch.tensor([float("nan")]))["largest"] is None
    assert compare_tensors(torch.tensor([1]), torch.tensor([3]))["units"] is None
