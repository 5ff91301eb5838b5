"""SSD's step beside the plain formulation: contenders agree where their rules coincide, and the report says so."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import ssd, ssd_operations
from benchmarks.ssd_operations import guesses
from benchmarks.ssd_plain import reference_detections
from paceline._utils.errors import PacelineError
from paceline.cli.commands import bench as benches
from paceline.cli.printing import Printer
from paceline.config.system import System
from paceline.tools.bench import harness
from paceline.tools.bench.roofline import ConvFlops
from paceline.tools.bench.step import make_step, run_step_bench
from paceline.tools.bench.step_ssd import SSDBench, make_ssd_inputs

CPU, META = torch.device("cpu"), torch.device("meta")
TINY = SSDBench(
    depth=18, batch=2, size=64, classes=3, rounds=1, seconds=0.0, precisions=("fp32",), matrix=64, system=System("cpu"),
)  # fmt: skip


@pytest.fixture(scope="module")
def scene():
    return make_ssd_inputs(2, 3, 64, CPU)


@pytest.fixture(scope="module")
def facts():
    return run_step_bench(TINY, CPU, lambda known: None)


def test_every_operation_gives_what_its_peers_give(facts):
    rows = {row["operation"]: row for row in facts["operations"]}
    assert list(rows) == ["matching", "loss", "detections", "detections of noise"]
    for row in rows.values():
        assert row["agrees"] == {"reference": True, "torchvision": True}, row
        assert set(row["seconds"]) == set(row["cpu_seconds"]) == {"paceline", "reference", "torchvision"}
    assert rows["matching"]["difference"] == {"reference": 0.0, "torchvision": 0.0}


def test_the_scene_has_objects_and_detections_to_find(scene):
    for places, scores in guesses(scene, 3):
        knobs = ssd_operations.RULES.detect
        found = reference_detections(places.transpose(1, 2), scores.transpose(1, 2), scene.anchors, knobs)
        assert all(len(rows) > 0 for rows in found)
    assert (scene.batch.labels > 0).sum() == sum(len(labels) for _, labels in scene.objects) > 2


def test_a_peer_with_other_results_is_called_different():
    for operation in ssd_operations.operations(TINY, CPU):
        mine, theirs = operation.works["paceline"](), operation.works["reference"]()
        if operation.name == "matching":
            boxes, labels = theirs
            theirs = (boxes, (labels + (labels > 0)))
        elif operation.name == "loss":
            theirs = (1.01 * theirs[0], *theirs[1:])
        else:
            theirs = [rows[1:] for rows in theirs]
        assert operation.differences["reference"](mine, theirs) > operation.limit, operation.name


def test_the_plain_step_follows_ours_over_updates(scene):
    ours = make_step(TINY, "fp32", scene, CPU).step
    plain = ssd.peer_step(TINY, "fp32", scene, CPU).step
    for _ in range(2):
        assert float(ours()) == pytest.approx(float(plain()), rel=1e-4)


def test_an_accelerators_whole_step_reads_nothing_back():
    """The meta device has no data to look at: forward, matching, loss, backward and optimizer."""
    step = make_step(TINY, "fp32", make_ssd_inputs(2, 3, 64, META), META).step
    assert step().shape == step().shape == ()
    with pytest.raises(RuntimeError):
        float(step())


@pytest.mark.nightly("compiles a whole forward and backward")
# What torch 2.11 says of its own tracing of an autograd.Function.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_an_accelerators_forward_compiles_as_one_graph_with_its_backward():
    there = make_ssd_inputs(2, 3, 64, META)
    model = TINY.trained(there, META)
    torch.compile(model, backend="eager", fullgraph=True)(there.batch)["loss"].backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_the_report_has_every_part(facts):
    found = facts["step"]["fp32"]
    names = {"paceline", "paceline contiguous", "paceline, fused heads", "plain eager", "plain eager channels_last"}
    assert set(found["images_per_second"]) == set(found["seconds"]) == set(found["share_of_ceiling"]) == names
    assert set(found["times_faster"]) == names - {"paceline"}
    assert found["first_losses"]["paceline"] == pytest.approx(found["first_losses"]["plain eager"], rel=1e-4)
    assert found["waits_for_the_device"] is None
    kinds = {"convolutions", "BatchNorm", "activations and shortcuts", "matching and loss", "optimizer"}
    for spent in found["where_milliseconds"].values():
        assert set(spent) >= kinds and spent["convolutions"] > 0 and spent["matching and loss"] > 0
    assert set(facts["predict"]["fp32"]["median_seconds"]) >= {"paceline"}
    json.dumps(facts)


def test_the_published_network_takes_its_published_work():
    full = SSDBench(depth=34, batch=1, size=300, classes=80, rounds=1, seconds=0.0, precisions=(), system=System())
    *_, (_, there) = full.scenes(META)
    with ConvFlops() as work:
        make_step(full, "fp32", there, META).step()
    assert work.gflop == pytest.approx(95, rel=0.02)


def test_the_results_known_so_far_are_told_after_each_part(monkeypatch):
    told = []
    monkeypatch.setattr(harness, "compare_operation", lambda *_: ({}, {}))
    monkeypatch.setattr(harness, "run_steps", lambda *_, **__: [{}])
    run_step_bench(TINY, CPU, lambda known: told.append((*(part in known for part in ("operations", "step", "predict")),)))
    assert list(dict.fromkeys(told)) == [
        (False, False, False), (True, False, False), (True, True, False), (True, True, True),
    ]  # fmt: skip


def test_the_command_prints_tables_and_writes_json(tmp_path, capsys):
    out = tmp_path / "new" / "step.json"
    tiny = (
        "--task detection --depth 18 --batch-size 1 --image-size 64 --num-classes 2 --rounds 1 --seconds 0 --matmul-size 32"
    )
    tiny += " --precision fp32"
    assert benches.run(Printer(), ["step", *tiny.split(), "--system", "cpu", "--part", "eval", "--output", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "SSD, ResNet-18, 1 x 64 px" in printed and "predict, fp32, paceline" in printed
    assert set(json.loads(out.read_text())["predict"]) == {"fp32"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--depth 50", "--depth 50"),
        ("--image-size 32", "--image-size 32"),
        ("--rounds 0", "--rounds 0"),
        ("--precision fp8", "fp8"),
    ],
)
def test_what_cannot_be_measured_is_refused(flags, message):
    with pytest.raises(PacelineError, match=message):
        benches.run(Printer(), ["step", "--task", "detection", "--system", "cpu", *flags.split()])
