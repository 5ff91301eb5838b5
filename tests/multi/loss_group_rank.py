"""One rank of the tests in test_loss_groups.py: `steps FOLDER` takes one step for every case on this rank's part of the batch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from given_model import state_around
from torch import Tensor
from toy_loss_groups import IMAGES, Toy, toy_batch, toy_recipe

from paceline.config.plan import StepRates, make_plan
from paceline.config.recipe import Optim
from paceline.config.run import RunOptions, RunSpec
from paceline.config.system import System
from paceline.distributed.comm.launcher import read_launch
from paceline.distributed.comm.world import DistContext, open_distributed
from paceline.training.step import TrainStep

# Objects of the eight images: everywhere, none in the second half (a rank without any), nowhere.
OBJECTS = {"all": [3, 0, 1, 4, 2, 2, 0, 5], "half": [3, 0, 1, 4, 0, 0, 0, 0], "none": [0] * IMAGES}
# (loss group, images at most in a forward)
CUTS = [(2, 4), (4, 2), (8, 4), (8, 2), (0, 1)]


def step(world: DistContext, case: str, group: int, most: int) -> dict[str, Tensor]:
    """Losses of one step and what it did to weights and statistics."""
    recipe = toy_recipe(group)
    plan = make_plan(recipe, System(), world=world.world, most=most, train_images=80, val_images=8)
    run = RunSpec("steps", recipe, "cpu", System(precision="fp32"), plan, RunOptions())
    assert recipe.optim == Optim()
    state = state_around(lambda device: Toy(), run, world)
    first = world.rank * plan.images_per_rank
    starts = range(first, first + plan.images_per_rank, plan.micro_batch_size)
    batches = [toy_batch(OBJECTS[case], slice(start, start + plan.micro_batch_size)) for start in starts]
    take = TrainStep(state, plan, run.system, torch.device("cpu"))
    take.discard(batches)  # a warm-up step leaves no trace
    losses = take(batches, StepRates(0.1, 0.1))
    assert isinstance(state.model, Toy)
    found = {f"loss.{name}": value for name, value in losses.items()}
    found.update({f"weight.{name}": value.detach() for name, value in state.model.named_parameters()})
    return {name: value.clone() for name, value in {**found, "passes": torch.tensor(state.model.passes)}.items()}


def main() -> int:
    torch.set_num_threads(1)
    with open_distributed(read_launch(os.environ), device=torch.device("cpu"), collective_seconds=20) as world:
        found = {f"{case} {group} {most}": step(world, case, group, most) for case in OBJECTS for group, most in CUTS}
        torch.save(found, Path(sys.argv[2]) / f"{world.rank}.pt")
    return 0
