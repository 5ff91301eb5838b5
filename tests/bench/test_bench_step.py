"""The classification step benchmark, shrunken, and what the step benchmarks share: contenders that fail alone."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
import torch

from paceline.bench import step as bench
from paceline.bench.timing import ready, seconds_of
from paceline.cli.bench import run as command
from paceline.config.errors import UserError
from paceline.config.system import System

CPU = torch.device("cpu")
TINY = bench.StepBench(
    depth=18, batch=2, size=32, rounds=2, seconds=0.0, compile=False, precisions=("fp32", "bf16"), system=System("cpu"),
    peers=("torchvision",),
)  # fmt: skip


@pytest.fixture(scope="module")
def told():
    known = []
    bench.run_step_bench(TINY, CPU, lambda facts: known.append(copy.deepcopy(facts)))
    return known


@pytest.mark.nightly
def test_every_number_format_is_measured_beside_the_peers(told):
    steps = told[-1]["step"]
    assert list(steps) == ["fp32", "bf16"]
    for step in steps.values():
        assert set(step["images_per_second"]) == set(step["median"]) == {"paceline", "torchvision"}
        assert all(len(rates) == 2 for rates in step["images_per_second"].values())
        assert set(step["ratio_to"]) == {"torchvision"} and step["absent"] == {}
        assert step["where_milliseconds"]["convolutions"] > 0
    json.dumps(told[-1])


def test_what_is_known_is_told_after_each_contender_and_each_round(told):
    first = [facts["step"]["fp32"] for facts in told if "bf16" not in facts["step"]]
    assert [len(step["before_the_rounds"]) for step in first] == [1, 2, 2, 2, 2]
    assert [len(step["images_per_second"]["paceline"]) for step in first[2:]] == [1, 2, 2]


def test_compiled_contenders_come_beside_the_eager_ones():
    images, labels = bench.synthetic_photos(TINY, CPU)
    names = list(bench.contenders(replace(TINY, compile=True), "fp32", images, labels, CPU))
    assert names == ["paceline", "torchvision", "paceline compiled", "torchvision compiled"]
    cuda = torch.device("cuda")
    last = list(bench.contenders(replace(TINY, compile=True), "fp32", images, labels, cuda))[len(names) :]
    assert last == ["paceline CUDA graph", "torchvision CUDA graph", "paceline compiled CUDA graph"]


def test_a_contender_that_fails_is_absent_with_its_reason_and_ours_is_not_excused():
    def fails():
        # What torch raises where a kernel has no form for a device.
        raise NotImplementedError("no such kernel\nmore of it")

    absent = {}
    makers = {"ours": lambda: lambda: torch.ones(()), "theirs": fails, "graph": lambda: fails}
    assert [(name, loss) for name, _, loss in ready(makers, "ours", absent)] == [("ours", 1.0)]
    assert absent == {name: "NotImplementedError: no such kernel" for name in ("theirs", "graph")}
    with pytest.raises(NotImplementedError):
        list(ready(makers, "theirs", absent))


def test_one_call_at_least_is_timed():
    calls = []
    wall, cpu = seconds_of(lambda: calls.append(1), 0.0, CPU)
    assert len(calls) == 1 and cpu >= 0 and 0 < wall < 1


def test_the_command_takes_several_number_formats(tmp_path, capsys, monkeypatch, told):
    asked = []
    monkeypatch.setattr(
        bench, "run_step_bench", lambda asks, device, tell: (asked.append(asks), tell(told[-1]), told[-1])[2]
    )
    out = tmp_path / "step.json"
    assert command(["step", "--precision", "fp32,bf16", "--system", "cpu", "--out", str(out)]) == 0
    assert asked[0].precisions == ("fp32", "bf16")
    assert json.loads(out.read_text()) == json.loads(json.dumps(told[-1])) and "torchvision" in capsys.readouterr().out
    with pytest.raises(UserError, match="fp32,half"):
        command(["step", "--precision", "fp32,half", "--system", "cpu"])
