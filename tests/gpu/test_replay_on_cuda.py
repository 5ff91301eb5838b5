"""`--system.cuda-graph` on a GPU: steps that are replayed train as steps that are sent, and neither waits for the device.

The same steps are replayed on a CPU, bit for bit, by test_cuda_graphs.py. Run by scripts/gpu/campaign.py; CI has no GPU, so these
skip there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small_steps import batch_of, plan_of, small, state_of

from paceline.config.plan import BatchPlan, step_rates
from paceline.config.recipe import Recipe
from paceline.config.system import Precision, System
from paceline.data.batch import Batch
from paceline.distributed.device.timing import find_host_wait
from paceline.training.state import State
from paceline.training.step import TrainStep

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = torch.device("cuda", 0)
STEPS = 6
# Rates that differ in every step, and an average of the weights: a graph that kept its first ones trains something else.
CHANGING = {"schedule.name": "cosine", "schedule.warmup": 0.2, "ema_decay": 0.99}
CASES: dict[str, tuple[str, dict[str, Any], Precision]] = {
    "classification": ("classification", CHANGING, "fp32"),
    "classification, fp16": ("classification", CHANGING, "fp16"),
    "ssd": ("detection", {}, "fp32"),
    "maskrcnn": ("instance-segmentation", {}, "fp32"),
    "maskrcnn, bf16": ("instance-segmentation", {}, "bf16"),
}


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """fp32 stays fp32, and cuDNN's convolutions give the same bits again."""
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, cudnn.deterministic
    cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, cudnn.deterministic = False, False, True
    yield
    cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, cudnn.deterministic = before


def trainer(name: str, *, graph: bool) -> tuple[Recipe, BatchPlan, State, TrainStep]:
    task, changes, precision = CASES[name]
    recipe, system = small(task, changes), System("cuda", precision=precision, cuda_graph="on" if graph else "off")
    plan = plan_of(recipe, system, steps=STEPS)
    state = state_of(recipe, plan, system, CUDA)
    return recipe, plan, state, TrainStep(state, plan, system, CUDA)


def batches_of(recipe: Recipe, plan: BatchPlan, step: int) -> list[Batch]:
    images = plan.micro_batch_size
    return [batch_of(recipe, images, 100 * step + forward).to(CUDA) for forward in range(plan.micro_batches)]


def tensors_of(state: State) -> dict[str, torch.Tensor]:
    """Everything that a step changes."""
    found = {**state.model.state_dict(), **{f"optimizer {name}": one for name, one in state.optimizer.state().items()}}
    for name, part in (("average", state.average), ("scaler", state.scaler)):
        found |= {} if part is None else {f"{name} {key}": one for key, one in part.state().items()}
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_replayed_step_is_the_step_that_is_sent(name: str) -> None:
    """Each step starts from equal tensors. Sums by atomic operations have no order, and detectors have such sums in RoIAlign."""
    (recipe, plan, sent, send), (_, _, replayed, replay) = (trainer(name, graph=graph) for graph in (False, True))
    exact = not name.startswith("maskrcnn")
    for step in range(STEPS):
        with torch.no_grad():
            for mine, one in zip(tensors_of(replayed).values(), tensors_of(sent).values(), strict=True):
                mine.copy_(one)
        batches, rates = batches_of(recipe, plan, step), step_rates(recipe, plan, step)
        assert float(replay(batches, rates)["loss"]) == pytest.approx(
            float(send(batches, rates)["loss"]), rel=0 if exact else 1e-4
        )
        others = tensors_of(replayed)
        for tensor_name, wanted in tensors_of(sent).items():
            found = others[tensor_name]
            if exact:
                assert torch.equal(found, wanted), f"step {step}: {tensor_name}"
            else:
                apart = float((found - wanted).double().norm())
                assert apart <= 1e-3 * float(wanted.double().norm()) + 1e-6, f"step {step}: {tensor_name}: {apart:.2g}"
    assert (send.captures, replay.captures) == (0, 1)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_no_step_waits_for_the_device(name: str, graph: bool) -> None:
    recipe, plan, state, take = trainer(name, graph=graph)
    batches = [batches_of(recipe, plan, step) for step in range(4)]
    take(batches[0], step_rates(recipe, plan, 0))

    def more() -> None:
        for step in (1, 2, 3):
            state.meters.add(take(batches[step], step_rates(recipe, plan, step)), step)

    assert find_host_wait(more, CUDA) == ""


def test_preparing_changes_nothing_and_captures_once() -> None:
    recipe, plan, state, take = trainer("classification", graph=True)
    before = {name: tensor.clone() for name, tensor in state.model.state_dict().items()}
    batches = batches_of(recipe, plan, 0)
    take.prepare(batches)
    take.prepare(batches)
    assert (take.captures, take.late_captures) == (1, 0)
    for name, tensor in state.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
