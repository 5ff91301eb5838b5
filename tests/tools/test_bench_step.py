"""`bench step`, shrunken, of all workloads: the report has every part, and the command prints and writes it."""

from __future__ import annotations

import copy
import io
import json
from dataclasses import replace

import pytest
import torch
from messages import check_text
from rich.console import Console

import paceline.tools.bench as bench_package
from benchmarks import classification
from paceline._utils.errors import PacelineError
from paceline.cli.commands import bench as benches
from paceline.cli.printing import Printer
from paceline.config.system import System
from paceline.distributed.device.timing import CallSeconds
from paceline.tools.bench import roofline, step
from paceline.tools.bench.step import StepBench, make_step, run_step_bench
from paceline.tools.bench.step_resnet import ResNetBench
from paceline.tools.bench.tables import print_step

CPU, META = torch.device("cpu"), torch.device("meta")
TINY = ResNetBench(
    depth=18, batch=2, size=32, rounds=2, seconds=0.0, matrix=32, precisions=("fp32", "bf16"), system=System("cpu")
)

NAMES = {f"{one}{layout}" for one in ("paceline", "torchvision") for layout in ("", " contiguous")}


@pytest.fixture(scope="module")
def told(nightly):
    known, tiny = [], TINY if nightly else replace(TINY, precisions=("fp32",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classification, "LIBRARIES", ("torchvision",))
        run_step_bench(tiny, CPU, lambda facts: known.append(copy.deepcopy(facts)))
    return known


@pytest.mark.nightly("measures every number format beside the peers")
def test_every_number_format_is_measured_beside_the_peers(told):
    steps = told[-1]["step"]
    assert list(steps) == ["fp32", "bf16"]
    for found in steps.values():
        assert set(found["images_per_second"]) == set(found["share_of_ceiling"]) == NAMES
        assert all(len(seconds) == 2 for seconds in found["seconds"].values())
        assert set(found["times_faster"]) == NAMES - {"paceline"} and found["absent"] == {}
        assert found["where_milliseconds"]["paceline"]["convolutions"] > 0
    json.dumps(told[-1])


def test_what_is_known_is_told_on_the_way(told):
    first = [facts["step"]["fp32"] for facts in told if list(facts.get("step", ())) == ["fp32"]]
    assert [len(found["before_the_rounds"]) for found in first] == [1, 2, 3, 4, 4, 4, 4]
    assert [len(found["seconds"]["paceline"]) for found in first[4:]] == [1, 2, 2]


def test_without_a_checkout_ours_is_measured_alone_and_operations_are_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench_package, "CHECKOUT", tmp_path)
    alone = replace(TINY, precisions=("fp32",), rounds=1)
    facts = run_step_bench(alone, CPU, lambda _: None)
    assert list(facts["step"]["fp32"]["images_per_second"]) == ["paceline", "paceline contiguous"]
    assert "benchmarks/" in facts["peers"]
    with pytest.raises(PacelineError, match="--part ops"):
        benches.run(Printer(), ["step", "--task", "detection", "--part", "ops", "--system", "cpu"])


def test_the_command_takes_several_number_formats(tmp_path, capsys, monkeypatch, told):
    asked: list[StepBench] = []
    monkeypatch.setattr(step, "run_step_bench", lambda asks, _, tell: (asked.append(asks), tell(told[-1]), told[-1])[2])
    out = tmp_path / "new" / "step.json"
    assert benches.run(Printer(), ["step", "--precision", "fp32,bf16", "--system", "cpu", "--output", str(out)]) == 0
    assert asked[0].precisions == ("fp32", "bf16")
    assert json.loads(out.read_text()) == {"paceline": "answer"} | json.loads(json.dumps(told[-1]))
    printed = capsys.readouterr().out
    assert "ResNet-50, 32 x 224 px" in printed and "torchvision" in printed and "convolutions" in printed
    with pytest.raises(PacelineError, match="fp32,half"):
        benches.run(Printer(), ["step", "--precision", "fp32,half", "--system", "cpu"])


def test_a_ceiling_that_is_too_low_ends_the_command_with_1_naming_the_kernel(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(roofline, "measure_seconds", lambda *_: CallSeconds(1000.0, 0.0))
    tiny = "--depth 18 --batch-size 2 --image-size 32 --rounds 1 --seconds 0 --matmul-size 32 --precision fp32 --system cpu"
    monkeypatch.setattr(bench_package, "CHECKOUT", tmp_path)
    assert benches.run(Printer(), ["step", *tiny.split()]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    check_text(printed, "benchmarks/")
    assert "% of the ceiling" in printed and "ceiling is" in printed and "convolution" in printed


def test_an_accelerators_whole_step_reads_nothing_back():
    """The meta device has no data to look at."""
    *_, (_, scene) = TINY.scenes(META)
    taken = make_step(TINY, "fp32", scene, META).step
    assert taken().shape == taken().shape == ()
    with pytest.raises(RuntimeError):
        float(taken())


def test_no_number_of_the_table_is_cut_on_a_terminal_of_80_columns(told):
    known = next(iter(told[-1]["step"].values()))
    shown = io.StringIO()
    print_step("fp32", known, Console(file=shown, width=80))
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown.getvalue()
    for name, seconds in known["median_cpu_seconds"].items():
        assert f"{seconds:.3f}" in shown.getvalue(), name
