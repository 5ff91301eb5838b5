"""The form of a step that `auto` chooses: each row of the tables is a measurement, and the fastest that a run can use is taken."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from run_files import facts_of
from tiny_runs import train

from paceline.config.plan import make_plan
from paceline.config.recipes import RECIPES
from paceline.config.reference_rates import RATES
from paceline.config.system import FORMS, System
from paceline.models.registry import WORKLOADS
from paceline.training import plan_run, step_variants
from paceline.training.step_variants import LAYOUTS, StepSeconds, choose_forms

pytestmark = pytest.mark.usefixtures("no_charts")

ROOT = Path(__file__).parents[2]
GPU = System("cuda", precision="bf16", memory_gib=140)
NAMES = {"classification": "resnet50", "detection": "ssd", "instance-segmentation": "maskrcnn"}


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """With Triton and a C compiler, and 16 cores."""
    monkeypatch.setattr(step_variants, "can_build_kernels", lambda: True)
    monkeypatch.setattr(step_variants, "count_cpus", lambda: 16)


def chosen(task: str, system: System = GPU, *, images: int = 100_000_000, world: int = 1, changes=(), **more):
    """What `auto` becomes in a run of this number of images, and the reason."""
    recipe = RECIPES[NAMES[task]]()
    recipe = replace(recipe, model=replace(recipe.model, **dict(changes)), global_batch_size=256, bn_batch_size=256)
    plan = make_plan(recipe, system, world=1, most=256, train_images=100_000, val_images=10)
    plan = replace(plan, world_size=world, stop_after=images // plan.global_batch_size)
    return choose_forms(recipe, system, plan, WORKLOADS[task], **{"exact": False, "varied": False, **more})


def test_every_row_is_in_the_page_that_it_names() -> None:
    for row in RATES:
        page = (ROOT / row.measured / "README.md").read_text()
        assert re.search(rf"\b{row.rate:,g}\b".replace(r"\.", "."), page), f"{row}: {row.measured} does not have its rate"
    names = NAMES | {"classification": "classification"}
    for row in LAYOUTS:
        page = (ROOT / row.measured / "README.md").read_text()
        key = f"| {names[row.task]}, {row.instructions}, {row.precision} |"
        line = next((line for line in page.splitlines() if line.startswith(key)), "")
        assert f"| {row.channels_last:g} | {row.contiguous:g} |" in line, f"{row}: {row.measured} does not have it"


def test_no_form_has_two_rows_and_each_network_has_its_plain_form() -> None:
    keys = [(row.task, row.compile, row.cuda_graph, row.kernels) for row in RATES]
    assert len(set(keys)) == len(keys) and {key[0] for key in keys if key[1:] == ("off", "off", "torch")} == set(WORKLOADS)
    assert all(row.compile == "off" for row in RATES if WORKLOADS[row.task].network.no_compile)
    layouts = [(row.task, row.instructions, row.precision) for row in LAYOUTS]
    assert len(set(layouts)) == len(layouts)


@pytest.mark.parametrize(
    ("task", "wanted"),
    [
        ("classification", ("on", "on", "torch")),
        ("detection", ("off", "on", "triton")),
        ("instance-segmentation", ("off", "on", "triton")),
    ],
)
def test_the_fastest_measured_form_is_chosen(task, wanted) -> None:
    values, reason = chosen(task)
    assert (values["compile"], values["cuda_graph"], values["kernels"]) == wanted and values["channels_last"] == "on"
    assert f"{max(row.rate for row in RATES if row.task == task):g} images/s" in reason and "results/gpu" in reason


def test_a_short_run_does_not_pay_for_compilation() -> None:
    # 5,741 images/s without it, 6,827 with it: 120 s are won back after 4.3 million images.
    assert chosen("classification", images=4_200_000)[0]["compile"] == "off"
    assert chosen("classification", images=4_500_000)[0]["compile"] == "on"
    assert chosen("classification", seconds=300.0)[0]["compile"] == "off"
    assert chosen("classification", images=14_000_000, world=8)[0]["compile"] == "off"
    assert chosen("classification", images=16_000_000, world=8)[0]["compile"] == "on"  # of each GPU, two million


def test_graphs_are_chosen_for_one_gpu_and_one_shape_only() -> None:
    assert chosen("classification", world=8, images=10**9)[0]["cuda_graph"] == "off"
    assert chosen("instance-segmentation", varied=True)[0] == {
        "channels_last": "on",
        "compile": "off",
        "cuda_graph": "off",
        "kernels": "triton",
    }
    assert chosen("instance-segmentation", replace(GPU, cuda_graph="on"), varied=True)[1].startswith(
        "channels_last on, compile off, kernels triton"
    )


@pytest.mark.parametrize(
    ("system", "more"),
    [
        (replace(GPU, precision="fp32"), {}),
        (replace(GPU, precision="fp16"), {}),
        (System("hpu", precision="bf16"), {}),
        (GPU, {"changes": {"backbone": "timm/resnet18"}}),
        (GPU, {"exact": True}),
    ],
)
def test_what_was_not_measured_takes_the_plain_form(system, more) -> None:
    assert chosen("classification", system, **more)[0] == FORMS


def test_without_a_compiler_nothing_needs_one(monkeypatch) -> None:
    monkeypatch.setattr(step_variants, "can_build_kernels", lambda: False)
    for task in WORKLOADS:
        values, _ = chosen(task)
        assert (values["compile"], values["cuda_graph"], values["kernels"]) == ("off", "on", "torch")


def test_exact_takes_the_kernels_that_are_deterministic() -> None:
    assert chosen("instance-segmentation", exact=True)[0] == {**FORMS, "kernels": "triton"}
    assert chosen("instance-segmentation", System("cpu"), exact=True)[0] == FORMS


CHOICES = [("auto", "on", "off"), ("auto", "on", "off"), ("auto", "on", "off"), ("auto", "torch", "triton")]


@given(st.sampled_from(sorted(WORKLOADS)), st.sampled_from(list(product(*CHOICES))), st.integers(1, 10**9))
def test_what_is_set_by_hand_stays_and_every_auto_gets_a_value(task, values, images) -> None:
    system = replace(GPU, **dict(zip(FORMS, values)))
    found, reason = chosen(task, system, images=images)
    assert set(found) == {name for name, value in zip(FORMS, values) if value == "auto"}
    assert "auto" not in found.values() and bool(found) == bool(reason)


def test_a_cpu_s_layout_is_the_faster_one_of_its_instruction_set(monkeypatch) -> None:
    monkeypatch.setattr(
        step_variants,
        "LAYOUTS",
        (StepSeconds("detection", "AVX2", "fp32", 2.0, 1.0), StepSeconds("detection", "AVX512", "fp32", 1.0, 2.0)),
    )
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    values, reason = chosen("detection", System("cpu"))
    assert values == {**FORMS, "channels_last": "off"} and "AVX2" in reason and "results/layouts" in reason
    assert (
        chosen("detection", System("cpu", precision="bf16"))[0] == chosen("detection", System("cpu"), world=2)[0] == FORMS
    )
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert chosen("detection", System("cpu"))[0] == FORMS


def test_a_run_records_its_forms_and_keeps_them_when_resumed(capsys, class_photos, tmp_path, monkeypatch) -> None:
    layout = StepSeconds("classification", torch.backends.cpu.get_cpu_capability(), "fp32", 2.0, 1.0)
    monkeypatch.setattr(step_variants, "LAYOUTS", (layout,))
    run, more = tmp_path / "run", ("--system", "cpu", "--system.precision", "fp32")
    said = train(capsys, class_photos, run, *more, steps=2)
    assert said.code == 0 and "channels_last off" in said.out
    facts = facts_of(run)
    assert facts["system"]["channels_last"] == "off" and "results/layouts" in facts["step_variants"]
    monkeypatch.setattr(step_variants, "LAYOUTS", ())
    assert train(capsys, class_photos, run, *more, steps=3).code == 0
    assert facts_of(run)["system"]["channels_last"] == "off" and facts_of(run)["step_variants"] == facts["step_variants"]


def test_the_length_that_steps_asks_for_decides_and_not_the_recipes(capsys, class_photos, tmp_path, monkeypatch) -> None:
    lengths = []

    def spy(recipe, system, plan, *given, **named):
        lengths.append(plan.stop_after)
        return choose_forms(recipe, system, plan, *given, **named)

    monkeypatch.setattr(plan_run, "choose_forms", spy)
    assert train(capsys, class_photos, tmp_path / "run", steps=2).code == 0
    assert lengths == [2]
