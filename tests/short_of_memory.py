"""A network that runs out of memory above a number of images, and the task that trains it: for tests on machines that have enough."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from toy_loss_groups import IMAGES, Toy, ToySettings, toy_batch, toy_recipe

from paceline.config.plan import make_plan
from paceline.config.recipe import Recipe
from paceline.config.run import Controls, Run
from paceline.config.system import System
from paceline.ranks.world import World
from paceline.tasks.synthetic import SyntheticTask
from paceline.tasks.workloads.classification import ResNet
from paceline.training.building import build_model, build_state
from paceline.training.state import State

# Objects of the eight images.
OBJECTS = [3, 0, 1, 4, 2, 2, 0, 5]


class Full(torch.autograd.Function):
    """Runs out of memory in the backward."""

    @staticmethod
    def forward(ctx, images: Tensor) -> Tensor:  # type: ignore[override]
        return images.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor):  # type: ignore[override]
        out_of_memory()


def out_of_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of ...")


class Short(Toy):
    """Toy, with room for `holds` images in a forward."""

    def __init__(self, holds: int, *, where: str = "forward") -> None:
        super().__init__()
        self.holds, self.where, self.tried = holds, where, []
        self.norm.register_forward_hook(self.passed)

    def passed(self, _, images, normalised):
        """A backward has the head's gradients by the time that it comes here."""
        self.tried.append(len(normalised))
        if len(normalised) <= self.holds:
            return None
        return Full.apply(normalised) if self.where == "backward" else out_of_memory()


def recipe_of(bn_span: int, loss_group: int) -> Recipe[ToySettings, None]:
    return replace(toy_recipe(loss_group), bn_span=bn_span)


def run_of(recipe: Recipe, ranks: int, *, most: int = IMAGES) -> Run:
    system = System(precision="fp32", images_per_forward=most)
    plan = make_plan(recipe, system, world=ranks, most=most, train_images=80, val_images=8)
    return Run("short", recipe, "cpu", system, plan, Controls())


class Toy(ResNet):
    """Classification with a network that holds so many images and no more."""

    def check_plan(self, recipe, plan):
        """Its recipe has no input that could mix photos."""

    def __init__(self, holds: int, where: str) -> None:
        super().__init__()
        self.holds, self.where = holds, where

    def build(self, recipe, classes):
        return Short(self.holds, where=self.where)

    def initialise(self, recipe, model, generator):
        """Its weights are given."""

    def largest(self, recipe):
        return (2, 2)

    def made_up(self, recipe, images, shape, slots):
        return toy_batch(OBJECTS, slice(images))


class ShortTask(SyntheticTask):
    """Eight images, some of them without objects."""

    def __init__(self, recipe: Recipe, holds: int, where: str = "forward") -> None:
        super().__init__(Toy(holds, where), recipe, limit_train=80)


def state_of(run: Run, task: ShortTask, world: World) -> State:
    return build_state(build_model(task, run, world), run, world)
