"""`--system.graph` on a GPU: steps that are replayed train as steps that are sent, and neither waits for the device.

The same steps are replayed on a CPU, bit for bit, by test_replay.py. Run by scripts/gpu/campaign.py; CI has no GPU, so these
skip there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small_steps import batch_of, plan_of, small, state_of

from paceline.batch import Batch
from paceline.bench.timing import first_wait
from paceline.config.plan import Plan, rates_at
from paceline.config.recipe import Recipe
from paceline.config.system import Precision, System
from paceline.training.state import State
from paceline.training.step import TrainStep

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = torch.device("cuda", 0)
STEPS = 20
# Rates that differ in every step, and an average of the weights: a graph that kept its first ones trains something else.
CHANGING = {"schedule.kind": "cosine", "schedule.warmup": 0.2, "ema": 0.99}
CASES: dict[str, tuple[str, dict[str, Any], Precision]] = {
    "classification": ("classification", CHANGING, "fp32"),
    "classification, fp16": ("classification", CHANGING, "fp16"),
    "ssd": ("ssd", {}, "fp32"),
    "maskrcnn": ("maskrcnn", {}, "fp32"),
    "maskrcnn, bf16": ("maskrcnn", {}, "bf16"),
}


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """fp32 stays fp32: two runs of a TF32 convolution may choose different kernels."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def trainer(name: str, *, graph: bool) -> tuple[Recipe, Plan, State, TrainStep]:
    task, changes, precision = CASES[name]
    recipe, system = small(task, changes), System("cuda", precision=precision, graph=graph)
    plan = plan_of(recipe, system, steps=STEPS)
    state = state_of(recipe, plan, system, CUDA)
    return recipe, plan, state, TrainStep(state, plan, system, CUDA)


def batches_of(recipe: Recipe, plan: Plan, step: int) -> list[Batch]:
    images = plan.images_per_forward
    return [batch_of(recipe, images, 100 * step + forward).to(CUDA) for forward in range(plan.forwards)]


@pytest.mark.parametrize("name", CASES)
def test_a_replayed_run_is_the_run_that_is_sent(name: str) -> None:
    runs = []
    for graph in (False, True):
        recipe, plan, state, take = trainer(name, graph=graph)
        losses = [
            float(take(batches_of(recipe, plan, step), rates_at(recipe, plan, step))["loss"]) for step in range(STEPS)
        ]
        runs.append((losses, state.model.state_dict()))
        assert take.captures == int(graph)
    (sent, weights), (replayed, others) = runs
    # Sums by atomic operations have no order, and small differences grow over the steps.
    assert replayed == pytest.approx(sent, rel=2e-2)
    for tensor_name, tensor in weights.items():
        apart = (others[tensor_name] - tensor).double().norm()
        assert float(apart) <= 2e-2 * float(tensor.double().norm()) + 1e-4, tensor_name


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_no_step_waits_for_the_device(name: str, graph: bool) -> None:
    recipe, plan, state, take = trainer(name, graph=graph)
    batches = [batches_of(recipe, plan, step) for step in range(4)]
    take(batches[0], rates_at(recipe, plan, 0))

    def more() -> None:
        for step in (1, 2, 3):
            state.meters.add(take(batches[step], rates_at(recipe, plan, step)), step)

    assert first_wait(more, CUDA) == ""


def test_preparing_changes_nothing_and_captures_once() -> None:
    recipe, plan, state, take = trainer("classification", graph=True)
    before = {name: tensor.clone() for name, tensor in state.model.state_dict().items()}
    batches = batches_of(recipe, plan, 0)
    take.prepare(batches)
    take.prepare(batches)
    assert (take.captures, take.late_captures) == (1, 0)
    for name, tensor in state.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
