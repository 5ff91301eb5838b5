"""Nothing in a step tells the host a value, and nothing in it asks the host for one: on a GPU it would wait, a graph could not be.

Forward, losses, backward, update and average; on a CPU in the accelerators' forms, on torch's meta device, which has no values to
look at, and with fake tensors on "cuda", where a copy between host and device shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from by_night import ONE_MORE
from small_steps import batch_of, plan_of, small, state_of
from tape import HostReadError, NoHostReads
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from paceline.config.plan import step_rates
from paceline.config.recipe import Recipe
from paceline.config.system import System
from paceline.data.batch import Batch
from paceline.models.layers.batch_norm import update_running_statistics
from paceline.models.ops import dispatch
from paceline.training.optim.step_scalars import LossScaler, StepScalars
from paceline.training.state import State
from paceline.training.step import TrainStep

CPU, HALVES = torch.device("cpu"), System(micro_batch_size=2)
NIGHTLY = ONE_MORE
BY_DAY = [pytest.param("classification", marks=NIGHTLY), "detection", pytest.param("instance-segmentation", marks=NIGHTLY)]


def stepped(task: str, device: str) -> tuple[TrainStep, list[Batch]]:
    """A step of two forwards that has been taken once: anchors of an input shape are made at its first sight."""
    recipe = small(task, {"ema_decay": 0.9})
    plan = plan_of(recipe, HALVES)
    numbers = StepScalars(recipe.optim, device, tensors=True)
    state = state_of(recipe, plan, HALVES, CPU, lambda model: model.to(device))
    take = TrainStep(state, plan, HALVES, torch.device(device), numbers=numbers)
    batches = [batch_of(recipe, 2, forward).to(device) for forward in range(2)]
    take(batches, step_rates(recipe, plan, 0))
    take.numbers.write(step_rates(recipe, plan, 1))
    return take, batches


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=NIGHTLY), "meta"])
@pytest.mark.parametrize("task", BY_DAY)
def test_no_step_lets_the_host_learn_a_value(task: str, device: str) -> None:
    import torchvision  # noqa: F401  # its kernels' shapes for the meta device

    with dispatch.static_shapes():
        take, batches = stepped(task, device)
        with NoHostReads() as counted:
            losses = take.run_step(batches)
    assert counted.calls > 100 and losses["loss"].device.type == device


def test_a_loss_that_reads_a_value_is_noticed() -> None:
    take, batches = stepped("classification", "cpu")
    forward = take.state.model.forward

    def reading(batch: Batch) -> dict[str, Tensor]:
        found = forward(batch)
        return found if found["loss"].item() > 0 else {}

    take.state.model.forward = reading
    with pytest.raises(HostReadError, match="_local_scalar_dense"), NoHostReads():
        take.run_step(batches)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(), lambda x: bool((x > 0).any()), lambda x: x[x > 0], lambda x: x.nonzero(),
        lambda x: x.masked_select(x > 0), lambda x: x.unique(), lambda x: torch.equal(x, x),
        lambda x: x.__setitem__(x > 0, torch.ones(3)), lambda x: x.repeat_interleave(x.long()), lambda x: x.to("meta"),
        lambda x: x.to("meta").mul_(x[0]),
    ],
    ids=[
        "item", "bool", "mask", "nonzero", "masked_select", "unique", "equal", "index_put", "repeat_interleave", "copy",
        "number",
    ],
)  # fmt: skip
def test_every_way_to_learn_a_value_is_noticed(read: Callable[[Tensor], Any]) -> None:
    with pytest.raises(HostReadError), NoHostReads():
        read(torch.ones(3))


fakes_cuda = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11),
    reason="fake tensors of torch 2.9 keep the values of small constants, and take these to a true CUDA device",
)


@contextmanager
def faked(task: str, **changes: Any) -> Iterator[tuple[State, Recipe, Batch]]:
    """A state and a batch of fake tensors on "cuda": torch knows their shapes and devices, nobody has their values."""
    import torchvision  # noqa: F401  # its kernels' shapes for fake tensors

    recipe = small(task, {"ema_decay": 0.9, **changes})
    with FakeTensorMode():
        state = state_of(recipe, plan_of(recipe, System()), System(channels_last="off"), CPU, to_cuda)
        yield state, recipe, batch_of(recipe, 4, 0).to("cuda")


def to_cuda(model: nn.Module) -> nn.Module:
    """`model.to("cuda")`, which fake tensors refuse."""
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = nn.Parameter(weight.detach().to("cuda"), weight.requires_grad)
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to("cuda")
    return model


@fakes_cuda
@pytest.mark.parametrize("task", BY_DAY)
def test_no_forward_on_cuda_has_anything_from_the_host(task: str) -> None:
    with faked(task) as (state, _, batch):
        state.model(batch)
        with NoHostReads():
            losses = state.model(batch)
    assert all(value.device.type == "cuda" for value in losses.values() if isinstance(value, Tensor))


@fakes_cuda
@pytest.mark.parametrize("kind", ["sgd", "corrected", *(pytest.param(kind, marks=NIGHTLY) for kind in ("lars", "adamw"))])
@pytest.mark.parametrize("scaled", [pytest.param(False, marks=NIGHTLY), True], ids=["", "scaled"])
def test_no_update_on_cuda_has_anything_from_the_host(kind: str, scaled: bool) -> None:
    changes: dict[str, Any] = {"optim.nesterov": False, "optim.clip_norm": 0.0 if kind == "lars" else 1.0}
    if kind in ("corrected", "lars"):
        changes["optim.momentum_style"] = "mxnet-corrected"
    changes["optim.name"] = "sgd" if kind == "corrected" else kind
    with faked("classification", **changes) as (state, recipe, batch):
        numbers = StepScalars(recipe.optim, "cuda")
        scaler = LossScaler("dynamic", 128.0, device="cuda") if scaled else None
        state.model(batch)
        for weight in state.model.parameters():
            weight.grad = torch.empty_like(weight)
        with NoHostReads() as counted:
            state.optimizer.step(numbers, scaler=scaler)
            state.optimizer.zero_grad()
            update_running_statistics(state.model)
            assert state.average is not None
            state.average.update(numbers.fresh)
    assert counted.calls > 10


@pytest.mark.nightly("compiles whole networks")
@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # torch 2.11's compiler does it itself
@pytest.mark.parametrize("task", ["classification", "detection", "instance-segmentation"])
def test_forward_and_losses_on_cuda_are_one_graph_of_the_compiler(task: str) -> None:
    graphs = []

    def kept(graph: torch.fx.GraphModule, _: Any) -> Callable:
        graphs.append(graph)
        return graph.forward

    with faked(task) as (state, _, batch):
        state.model(batch)
        torch.compile(state.model, fullgraph=True, backend=kept)(batch)  # raises where it would break in two
    assert len(graphs) == 1
