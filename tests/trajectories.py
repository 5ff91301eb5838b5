"""Steps of a recipe as training takes them, on batches that a test made; and float64 wherever training has float32.

In float32 two right formulations part: they add in another order, are 1e-7 of a loss apart, and once a unit that stands at zero
within that noise lands on the other side of its ReLU, 1e-3 thirty steps later. In float64 they stay below 1e-12, so a bound of
1e-9 can be held to the last step, and whatever is beyond it is an error of the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from given_model import state_around
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from paceline.config.plan import StepRates, lr_at, make_plan
from paceline.config.recipe import Recipe
from paceline.config.run import RunOptions, RunSpec
from paceline.config.system import System
from paceline.data.batch import Batch
from paceline.distributed.comm.launcher import read_launch
from paceline.distributed.comm.world import open_distributed
from paceline.training.state import State
from paceline.training.step import TrainStep

# Relative, of a loss: what two float64 formulations may differ by. Planted twins are 1e-5 and more off.
SAME = 1e-9
Losses = list[dict[str, float]]


class Double(TorchFunctionMode):
    """Wherever float32 is named, float64 is meant."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        swapped = [torch.float64 if value is torch.float32 else value for value in args]
        return func(*swapped, **{name: torch.float64 if v is torch.float32 else v for name, v in kwargs.items()})


@contextmanager
def in_float64() -> Iterator[None]:
    """Inside, everything that is built or computed has float64 where it would have float32."""
    single, default = Tensor.float, torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    Tensor.float = Tensor.double  # type: ignore[method-assign]  in a backward too, where no mode is heard
    try:
        with Double():
            yield
    finally:
        Tensor.float = single  # type: ignore[method-assign]
        torch.set_default_dtype(default)


def take_steps(
    recipe: Recipe,
    build: Callable[[torch.device], nn.Module],
    batches: Sequence[Batch],
    *,
    system: System | None = None,
    device: torch.device | None = None,
    train_images: int = 1000,
    late: int = 0,
    before_step: Callable[[int, State], None] = lambda step, state: None,
) -> tuple[Losses, State]:
    """One step of `TrainStep` for each batch; -> each step's losses, and the state after the last.

    build        makes the model, with its first weights, on a device
    late         plants learning rates that are so many steps behind
    before_step  told of each 0-based step before it is taken
    """
    system, device = system or System(precision="fp32"), device or torch.device("cpu")
    plan = make_plan(recipe, system, world=1, most=recipe.global_batch_size, train_images=train_images, val_images=1)
    run = RunSpec("trajectory", recipe, "cpu", system, plan, RunOptions())
    with open_distributed(read_launch({}), device=device) as world:
        state = state_around(build, run, world)
        step_once = TrainStep(state, plan, system, device)
        losses = []
        for step, batch in enumerate(batches):
            before_step(step, state)
            rates = StepRates(*(lr_at(recipe, plan, max(0, at - late)) for at in (step, max(0, step - 1))))
            found = step_once([batch.to(device)], rates)
            losses.append({name: float(value) for name, value in found.items()})
    return losses, state


def apart(left: Sequence[float], right: Sequence[float]) -> list[float]:
    """Relative differences of two trajectories, step by step, as far as both go."""
    return [abs(a - b) / max(abs(b), 1e-12) for a, b in zip(left, right)]


def column(losses: Losses, name: str = "loss") -> list[float]:
    """One of the losses of each step."""
    return [row[name] for row in losses]
