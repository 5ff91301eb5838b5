"""`bench input RECIPE`: every stage is measured on the recipe's own samples, and the advice follows from what was found."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from messages import check_text, raises
from tiny_runs import NET, command, refused

from paceline._utils.errors import RecipeError
from paceline.config.plan import make_plan
from paceline.config.recipes import RECIPES
from paceline.config.system import System
from paceline.tools.bench import input_stages
from paceline.tools.bench.input_advice import RATES, describe_emulation, describe_gap, give_advice, parse_demand
from paceline.tools.bench.input_stages import bench_task_recipe, run_loader


class Clock:
    """Time that passes only where somebody sleeps or works."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    process_time = perf_counter

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_sleep_that_ends_late_is_not_the_inputs_fault(monkeypatch):
    clock = Clock()
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds + 0.004)  # type: ignore[method-assign]
    monkeypatch.setattr(input_stages, "time", clock)
    found = run_loader(iter(lambda: (0, [range(8)]), None), 1.0, 0.01, warm_up=1)
    assert found["busy"] == pytest.approx(1.0, abs=0.01) and found["images_per_second"] == pytest.approx(800, rel=0.01)
    # Nor is it computing: an input that takes 30 ms for a step of 10 ms lets nobody compute more than a quarter of the time.
    found = run_loader(iter(lambda: (clock.sleep(0.026), [range(8)]), None), 1.0, 0.01, warm_up=1)
    assert 0.2 < found["busy"] <= 0.25 and found["busy"] == pytest.approx(found["images_per_second"] * 0.01 / 8)


@pytest.mark.parametrize("input_seconds, utilisation, rate", [(0.03, 0.25, 200.0), (0.0, 1.0, 800.0)])
def test_utilisation_is_the_share_of_the_time_that_the_accelerator_computed(monkeypatch, input_seconds, utilisation, rate):
    clock = Clock()
    monkeypatch.setattr(input_stages, "time", clock)

    def steps():
        while True:
            clock.now += input_seconds
            yield 0, [range(5), range(3)]

    found = run_loader(steps(), 1.0, 0.01, warm_up=3)
    assert found["busy"] == pytest.approx(utilisation) and found["images_per_second"] == pytest.approx(rate)


def test_the_command_measures_every_stage_of_a_recipe(class_photos, tmp_path, capsys):
    file = tmp_path / "found" / "stages.json"
    words = ["bench", "input", "classify-demo", "--data", class_photos, *NET, "--seconds", 0.02, "--output", file]
    said = command(capsys, *words, "--emulate", "h200:8", "--system.num-workers", 2, "--system.ram-cache", "10MiB")
    assert said.code == 0, said.err
    found = json.loads(file.read_text())
    assert set(found["alone"]) == {"read", "draw", "decode", "decode and augment", "batch"}
    assert all(cost["cpu_microseconds"] > 0 for cost in found["alone"].values())
    assert found["together"]["images_per_second"] > 0 and found["transfer_microseconds"] is None
    assert found["input"] == [32, 32] and found["batch"] == 64 and found["limits"]["decoder"]["images_per_second"] > 0
    wanted = found["emulated"]
    assert wanted["images_per_second"] == 63_600 and 0 < wanted["utilisation"] < 1
    assert wanted["cores_needed"] == pytest.approx(63_600 * found["together"]["cpu_microseconds"] / 1e6)
    assert check_text(said.out, "18 of 27", "memory")
    assert found["advice"] in " ".join(said.out.split()) and "8 x h200 need 63,600 images/s" in said.out


def test_what_cannot_be_meant_is_refused(tmp_path, capsys):
    words = ["bench", "input", "classify-demo"]
    refused(command(capsys, *words, "--emulate", "h300:8"), "--emulate 'h300:8'", "h200", "--emulate 2500")
    refused(command(capsys, *words, "--data", tmp_path / "nothing"), "folder")
    refused(command(capsys, *words, "--seconds", "0"), "--seconds 0")


@pytest.mark.parametrize(
    "text, rate", [("h200:8", 63_600), ("A100", 3397), ("2500", 2500), ("0.5", 0.5), ("gaudi2:16", 94_000)]
)
def test_what_accelerators_ask_for(text, rate):
    assert parse_demand(text, "classification").rate == pytest.approx(rate)


@pytest.mark.parametrize("text", ["h200:0", "h200:x", "h200:", "2500:8", "-3", "nan", "inf", "1e30", "", "h100:99999"])
def test_no_other_demand_is_taken(text):
    with pytest.raises(RecipeError, match="--emulate"):
        parse_demand(text, "classification")


def test_rates_are_of_workloads_that_there_are_and_a_workload_of_ones_own_has_none():
    from paceline.models.registry import WORKLOADS

    assert set(RATES) == set(WORKLOADS)
    with raises(RecipeError, "images", "second"):
        parse_demand("h100", "./mine.py:net")


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_s_input_can_be_measured(name):
    recipe = bench_task_recipe(RECIPES[name]())
    assert recipe.input == RECIPES[name]().input
    plan = make_plan(recipe, System(), world=1, most=recipe.global_batch_size, train_images=100, val_images=10)
    assert plan.micro_batches == 1 and plan.micro_batch_size == recipe.global_batch_size <= 64


def report(**changes: Any) -> dict[str, Any]:
    """Two cores that compute all the time, mostly decoding."""

    def cost(microseconds: float, waits: float = 0.0) -> dict[str, float]:
        whole = microseconds + waits
        times = {"alone_microseconds": whole, "alone_cpu_microseconds": microseconds, "cpu_microseconds": microseconds}
        return {**times, "images_per_second": 2e6 / whole}

    facts = SimpleNamespace(**{"read": 20, "waits": 0, "decode": 1500, "augment": 300, "busy": 1.0, "rest": 100, **changes})
    work = facts.read + 50 + facts.decode + facts.augment + facts.rest
    rate = 2e6 / work * facts.busy
    return {
        "alone": {
            "read": cost(facts.read, facts.waits),
            "draw": cost(50),
            "decode": cost(facts.decode) | changes.get("decoding", {}),
            "decode and augment": cost(facts.decode + facts.augment),
            "batch": {"cpu_microseconds": 0},
        },
        "transfer_microseconds": None,
        "together": {"images_per_second": rate, "cpu_microseconds": work, "busy": 0.0},
        "limits": {"decoder": cost(2000), "disk": {"images_per_second": 300.0, "mib_per_second": 30.0}},
        "num_workers": changes.get("threads", 2),
        "io_threads": 0,
        "cores": 2,
        "decoder": changes.get("decoder", "simplejpeg"),
        "emulated": changes.get("emulated"),
    }


WANTED = {"accelerators": "1 x v100", "images_per_second": 1200, "delivered_images_per_second": 1190, "cores_needed": 2.3}


@pytest.mark.parametrize(
    "changes, flag",
    [
        ({}, "--input.decoder nvimgcodec"),
        ({"decoder": "nvimgcodec"}, "more cores"),
        ({"augment": 4000}, "resizing"),
        ({"read": 9000}, "page cache"),
        ({"waits": 20_000, "busy": 0.2}, "--system.io-threads 8"),
        ({"threads": 1, "busy": 0.5}, "--system.num-workers 2"),
        ({"busy": 0.4}, "other processes"),
        ({"emulated": {**WANTED, "utilisation": 0.97}}, "300 images/s"),
        ({"emulated": {**WANTED, "images_per_second": 250, "utilisation": 0.97}}, "no change"),
        ({"emulated": {**WANTED, "utilisation": 0.5}}, "--input.decoder nvimgcodec"),
    ],
)
def test_advice_names_the_limit_and_the_flag(changes, flag):
    found = report(**changes)
    assert check_text(give_advice(found), flag) and "\n" not in give_advice(found)


def test_the_gap_to_bare_decoding_is_made_of_its_parts():
    found = report()
    line = describe_gap(found)
    check_text(line, "1,970", "1.02")
    parts = "decoding -500, reading +20, header and sampling +50, resize, flip, colors +300, batch +0, threads +100"
    assert parts in line
    assert describe_gap({**found, "limits": {"decoder": None, "disk": None}}) == ""
    assert "3 cores" in describe_emulation(report(emulated={**WANTED, "utilisation": 0.5}))
