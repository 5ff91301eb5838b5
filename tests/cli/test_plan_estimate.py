"""`plan` says what a plan will take: from what was published, what a run measured, or what it is told."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from typing import Any

import pytest
from messages import check_text
from tiny_runs import command

from paceline._utils.text import format_definitions
from paceline.config.plan import make_plan
from paceline.config.published import RESULTS, system_for
from paceline.config.recipe import DATA_IMAGES
from paceline.config.recipes import RECIPES
from paceline.config.reference_rates import RATES
from paceline.config.run import RunRecord
from paceline.distributed.device.systems import SYSTEMS
from paceline.tools.estimate.summary import choose_speed, estimate_rows, measure_run_speed, unknown_rows
from paceline.training.logging.events import EventLog

EIGHT_NODES = ("resnet50-mlperf-3200-8x8", "dgx-h100", 8)  # published
SIXTEEN_NODES = ("resnet50-mlperf-3200-8x8", "dgx-h100", 16)  # not published
PARAMETERS = {"classification": 25_560_000, "detection": 20_020_000, "instance-segmentation": 44_180_000}


def told(
    name: str,
    system_name: str,
    nodes: int = 1,
    *,
    rate: float = 0.0,
    gbit: float = 0.0,
    evaluating: int = 0,
    changes: dict[str, Any] | None = None,
    **of_system,
) -> tuple[str, Any]:
    """What `plan NAME --system SYSTEM --nodes N` adds: its lines, and its JSON. Counting the network would take longer."""
    recipe, system = RECIPES[name](), system_for(name, system_name, SYSTEMS[system_name]())
    recipe, system = replace(recipe, **(changes or {})), replace(system, **of_system)
    train, val = DATA_IMAGES[recipe.target_data]
    plan = make_plan(
        recipe,
        system,
        world=nodes * system.ranks_per_node - evaluating,
        most=512,
        train_images=train,
        val_images=val,
        eval_ranks=evaluating,
    )
    speed = choose_speed(recipe, name, system_name, system, plan, rate=rate, run=None)
    parameters = PARAMETERS[recipe.task]
    lines, facts = estimate_rows(name, recipe.task, system_name, system, plan, parameters, speed, gbit)
    return "\n".join(format_definitions(lines, 400)), facts


def test_a_published_system_is_estimated_with_basis_and_known_error():
    first, second, third = told(*SIXTEEN_NODES)[0].splitlines()
    assert first.startswith("estimate ")
    assert check_text(first, "compute", "gradients", "16 nodes")
    assert "images/s" in second and "complete schedule" in second and "35 epochs" in second
    assert "MLPerf v3.0" in third and "not with" in third and "-12 to -5%" in third


@pytest.mark.parametrize(
    ("name", "system_name", "nodes", "within"),
    [(*EIGHT_NODES, 0.05), ("resnet50-mlperf-57344", "dgx-h100", 448, 0.15), ("ssd-mlperf-2048", "dgx-a100", 64, 0.7)],
)
def test_the_model_lies_as_near_the_published_run_as_it_can(name, system_name, nodes, within):
    # Another number format was not published exactly: the fit, which knows none.
    facts = told(name, system_name, nodes, precision="bf16", loss_scale=0.0)[1]
    assert "8 and 64" in facts["basis"]
    row = next(row for row in RESULTS if row.recipe == name and row.system == system_name)
    assert facts["images_per_second"] / row.accelerators == pytest.approx(row.rate, rel=within)
    assert facts["target_epochs"] == row.epochs and facts["target_minutes"] == pytest.approx(row.minutes, rel=0.5)
    assert facts["step_seconds"] == pytest.approx(facts["compute_seconds"] + facts["exposed_seconds"])
    assert facts["minutes"] > facts["target_minutes"] > 0


def test_a_rate_that_is_told_outweighs_the_published_one():
    facts = told(*EIGHT_NODES, rate=1000, gbit=10)[1]
    assert facts["compute_seconds"] == pytest.approx(0.05) and "--images-per-second 1000" in facts["basis"]
    assert facts["exposed_seconds"] > 0.1


@pytest.mark.parametrize(
    ("plan", "evaluating", "rate"),
    [(EIGHT_NODES, 0, 4606), (("maskrcnn-nvidia-256-48nodes", "dgx-h100", 48), 128, 94), (("ssd-mlperf-1024", "c4140", 2), 0, 552)],
    ids=("resnet50", "maskrcnn", "ssd"),
)  # fmt: skip
def test_what_was_published_for_exactly_this_goes_before_the_fit(plan, evaluating, rate):
    text, facts = told(*plan, evaluating=evaluating)
    assert f"{rate:,} per rank" in text and "exactly" in text
    assert "another program" in text and facts["exposed_seconds"] == 0 and facts["links_known"]
    # Another number format, and another number of nodes, are other plans.
    assert "exactly" not in told(*plan, evaluating=evaluating, precision="fp32", loss_scale=0.0)[0]
    assert "exactly" not in told(*plan[:2], 2 * plan[2] if plan[2] < 48 else 24, evaluating=evaluating // 2 and 64)[0]


@pytest.mark.parametrize(
    ("name", "batch", "form"),
    [
        ("resnet50", 256, ("on", "on", "torch")),
        ("ssd", 128, ("off", "on", "triton")),
        ("maskrcnn-nvidia-96", 12, ("off", "off", "triton")),  # its images have several shapes, so no graph
    ],
)
def test_a_step_that_was_measured_on_an_h200_is_estimated_by_the_table(name, batch, form):
    changes = {"global_batch_size": batch, "bn_batch_size": batch}
    text, facts = told(name, "h200x8", changes=changes, ranks_per_node=1)
    task = RECIPES[name]().task
    row = next(row for row in RATES if (row.task, row.compile, row.cuda_graph, row.kernels) == (task, *form))
    assert facts["images_per_second"] == pytest.approx(row.rate)
    assert f"{row.rate:g} images/s" in text and row.measured in text and f"kernels {form[2]}" in text
    # A form that is set by hand has its own row; what was not measured has another speed.
    plain = next(
        row for row in RATES if (row.task, row.compile, row.cuda_graph, row.kernels) == (task, "off", "off", "torch")
    )
    by_hand = told(name, "h200x8", changes=changes, ranks_per_node=1, compile="off", cuda_graph="off", kernels="torch")[1]
    assert by_hand["images_per_second"] == pytest.approx(plain.rate)
    for other in ({"precision": "fp16"}, {"channels_last": "off"}, {"device_name": "H100-SXM5-80GB"}):
        assert "results/gpu" not in told(name, "h200x8", changes=changes, ranks_per_node=1, **other)[0]
    few = {"global_batch_size": 4, "bn_batch_size": 4}
    assert task == "instance-segmentation" or "results/gpu" not in told(name, "h200x8", changes=few, ranks_per_node=1)[0]
    assert "results/gpu" not in told(name, "h200x8", changes=changes, ranks_per_node=1, rate=10)[0]


def test_unknown_links_are_said():
    text = told("ssd-mlperf-1024", "c4140", 4)[0]
    assert "--network-gbit N" in text and "at least" in text


def test_a_row_of_the_system_alone_stands_in_where_its_chip_has_no_fit():
    text = told("ssd-mlperf-512", "dss8440")[0]
    assert check_text(text, "494", "one published", "error")


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_published_speeds_are_those_of_half_precision(precision):
    assert told(*EIGHT_NODES)[1] and told(*EIGHT_NODES, precision=precision, loss_scale=0.0) == ("", None)
    assert check_text(format_definitions(unknown_rows("resnet50", precision), 400), "speed", precision)


def test_where_nothing_is_known_it_says_how_to_know():
    assert told("ssd-mlperf-1024", "mi300x8") == ("", None)
    text = "\n".join(format_definitions(unknown_rows("ssd-mlperf-1024", "bf16"), 400))
    assert "estimate   none" in text and "--images-per-second" in text
    assert (
        f"paceline train ssd-mlperf-1024 --synthetic --max-steps 100 --output-dir probe\n{'':11}paceline plan probe" in text
    )


def test_a_run_is_estimated_from_what_it_measured(capsys, ssd_run):
    found = json.loads(command(capsys, "plan", ssd_run.folder, "--json").out)
    events = [json.loads(line) for line in (ssd_run.folder / "events.jsonl").read_text().splitlines()]
    rates = [event["images_per_second"] for event in events if event["event"] == "train"]
    assert found["estimate"]["images_per_second"] == pytest.approx(statistics.median(rates[1:] or rates))
    assert "this run" in found["estimate"]["basis"]
    # Another machine is not what it measured.
    elsewhere = json.loads(command(capsys, "plan", ssd_run.folder, "--system", "p3dn", "--json").out)
    assert elsewhere["estimate"] is None


def test_a_probe_on_made_up_batches_says_so_and_its_first_interval_does_not_count(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    for step, rate in ((10, 5.0), (20, 800.0), (30, 1000.0), (40, 1600.0)):
        pace = {"loss": 1.0, "lr": 0.1, "images_per_second": rate, "data_wait": 0.0, "samples": 10}
        log.write("train", step=step, epoch=0.1, seconds=1.0, **pace)
    plan = {"world_size": 4, "nodes": 1, "images_per_rank": 25}
    facts = RunRecord(plan=plan, options={"synthetic": True})
    speed = measure_run_speed(tmp_path, facts, RECIPES["ssd-demo"](), "")
    assert speed is not None and 25 / speed.seconds(25) == pytest.approx(250)
    assert "3 intervals on 4 ranks" in speed.basis and "synthetic" in speed.basis
    (tmp_path / "events.jsonl").unlink()
    assert measure_run_speed(tmp_path, facts, RECIPES["ssd-demo"](), "") is None


@pytest.mark.nightly("full-sized recipes")
def test_show_adds_the_lines_and_the_json(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    words = ("plan", EIGHT_NODES[0], "--system", EIGHT_NODES[1], "--nodes", EIGHT_NODES[2])
    said = command(capsys, *words)
    assert said.code == 0 and told(*EIGHT_NODES)[0] in said.out
    facts = json.loads(command(capsys, *words, "--json").out)["estimate"]
    assert facts["step_seconds"] == pytest.approx(told(*EIGHT_NODES)[1]["step_seconds"], rel=1e-3)


@pytest.mark.parametrize(
    "words",
    [
        ("--images-per-second", "-1"),
        ("--images-per-second", "inf"),
        ("--network-gbit", "nan"),
        ("--images-per-second", "1e-300"),
    ],
)
def test_a_speed_that_cannot_be_is_refused_in_a_line(capsys, words):
    said = command(capsys, "plan", "ssd-demo", *words)
    assert said.code == 2 and said.err.count("\n") == 1 and words[0] in said.err
