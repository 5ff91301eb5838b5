"""The SSD step benchmark, shrunken: contenders agree where their rules coincide, and the report says so."""

from __future__ import annotations

import json

import pytest
import torch

from paceline.bench import step_ssd, step_ssd_ops
from paceline.bench.step_ssd_ops import synthetic_scene
from paceline.bench.step_ssd_profile import gflop_of
from paceline.bench.timing import first_wait
from paceline.cli.bench import run as bench
from paceline.config.errors import UserError
from paceline.config.system import System

CPU = torch.device("cpu")
TINY = step_ssd.SSDBench(
    depth=18, batch=2, size=64, classes=3, rounds=1, seconds=0.0, compile=False, precisions=("fp32",), matrix=64,
    part="all", system=System("cpu"),
)  # fmt: skip


@pytest.fixture(scope="module")
def scene():
    return synthetic_scene(2, 3, 64, CPU)


@pytest.fixture(scope="module")
def facts():
    return step_ssd.run_ssd_bench(TINY, CPU, lambda known: None)


def test_every_operation_gives_what_its_peers_give(facts):
    rows = {row["operation"]: row for row in facts["operations"]["rows"]}
    assert list(rows) == ["matching", "loss", "detections", "detections of noise"]
    for row in rows.values():
        assert row["agrees"] == {"reference": True, "torchvision": True}, row
        assert set(row["seconds"]) == set(row["cpu_seconds"]) == {"paceline", "reference", "torchvision"}
    assert rows["matching"]["difference"] == {"reference": 0.0, "torchvision": 0.0}


def test_the_scene_has_objects_and_detections_to_find(scene):
    knobs = step_ssd_ops.RULES.detect
    for places, scores in (scene.trained, scene.noise):
        found = step_ssd_ops.reference_detections(places.transpose(1, 2), scores.transpose(1, 2), scene.anchors, knobs)
        assert all(len(rows) > 0 for rows in found)
    assert (scene.batch.labels > 0).sum() == sum(len(labels) for _, labels in scene.objects) > 2


def test_a_peer_with_other_results_is_called_different(scene):
    for name, contenders in step_ssd_ops.operations(scene).items():
        results = {who: work() for who, work in contenders.items()}
        if name == "matching":
            boxes, labels = results["reference"]
            results["reference"] = (boxes, (labels + (labels > 0)))
        elif name == "loss":
            results["reference"] = (1.01 * results["reference"][0], *results["reference"][1:])
        else:
            results["reference"] = [rows[1:] for rows in results["reference"]]
        limit = step_ssd_ops.RELATIVE if name == "loss" else step_ssd_ops.SHARE
        assert step_ssd_ops.difference(name, "reference", results, scene) > limit, name


def test_the_plain_step_follows_ours_over_updates(scene):
    ours = step_ssd.our_step(TINY, "fp32", scene, CPU)[1]
    plain = step_ssd.peer_step(TINY, "fp32", scene, CPU)
    for _ in range(2):
        assert float(ours()) == pytest.approx(float(plain()), rel=1e-4)


def test_an_accelerators_whole_step_reads_nothing_back():
    """The meta device has no data to look at: forward, matching, loss, backward and optimiser."""
    meta = torch.device("meta")
    step = step_ssd.our_step(TINY, "fp32", synthetic_scene(2, 3, 64, meta), meta)[1]
    assert step().shape == step().shape == ()
    with pytest.raises(RuntimeError):
        float(step())


# What torch 2.11 says of its own tracing of an autograd.Function.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_an_accelerators_forward_compiles_as_one_graph_with_its_backward():
    meta = torch.device("meta")
    scene = synthetic_scene(2, 3, 64, meta)
    model, _ = step_ssd.our_step(TINY, "fp32", scene, meta)
    torch.compile(model, backend="eager", fullgraph=True)(scene.batch)["loss"].backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_a_step_on_a_cpu_waits_for_nothing_and_is_taken(scene):
    taken = []
    assert first_wait(lambda: taken.append(1) or torch.zeros(()), CPU) == "" and taken == [1]


def test_the_report_has_every_part(facts):
    step = facts["step"]["fp32"]
    names = {"paceline", "paceline, fused heads", "plain eager", "plain eager channels_last"}
    assert (
        set(step["images_per_second"]) == set(step["seconds_per_step"]) == set(step["share_of_matrix_ceiling"]) == names
    )
    assert set(step["times_faster"]) == names - {"paceline"}
    assert step["first_losses"]["paceline"] == pytest.approx(step["first_losses"]["plain eager"], rel=1e-4)
    assert step["waits_for_the_device"] is None
    for spent in step["where_milliseconds"].values():
        assert set(spent) >= {
            "convolutions",
            "BatchNorm",
            "activations and shortcuts",
            "matching and loss",
            "optimiser",
        }
        assert spent["convolutions"] > 0 and spent["matching and loss"] > 0
    assert set(facts["evaluation"]["fp32"]["images_per_second"]) >= {"paceline"}
    json.dumps(facts)


def test_the_published_network_takes_its_published_work():
    with torch.device("meta"):
        network = step_ssd.build_detector(step_ssd.recipe_of(step_ssd.replace(TINY, depth=34, size=300)), 80).network
    assert gflop_of(network, 300) == pytest.approx(95, rel=0.02)


def test_the_results_known_so_far_are_told_after_each_part(monkeypatch):
    told = []
    monkeypatch.setattr(step_ssd, "run_ops", lambda *_: [])
    monkeypatch.setattr(step_ssd, "run_steps", lambda *_: [{"median": {}}])
    monkeypatch.setattr(step_ssd, "run_evaluation", lambda *_: {})
    step_ssd.run_ssd_bench(TINY, CPU, lambda known: told.append(set(known)))
    assert [("operations" in known, "step" in known, "evaluation" in known) for known in told] == [
        (False, False, False), (True, False, False), (True, True, False), (True, True, True),
    ]  # fmt: skip


def test_the_command_prints_tables_and_writes_json(tmp_path, capsys):
    out = tmp_path / "new" / "step.json"
    tiny = "--task ssd --depth 18 --batch 1 --size 64 --classes 2 --rounds 1 --seconds 0 --matrix 32 --precision fp32"
    assert bench(["step", *tiny.split(), "--system", "cpu", "--part", "step", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "SSD, ResNet-18, 1 x 64 px" in printed and "convolutions" in printed
    assert set(json.loads(out.read_text())["step"]) == {"fp32"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--depth 50", "--depth 50"),
        ("--size 32", "--size 32"),
        ("--rounds 0", "--rounds is 0"),
        ("--precision fp8", "fp8"),
    ],
)
def test_what_cannot_be_measured_is_refused(flags, message):
    with pytest.raises(UserError, match=message):
        bench(["step", "--task", "ssd", "--system", "cpu", *flags.split()])
