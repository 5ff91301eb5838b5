"""A network that runs out of memory above a number of images, and the task that trains it: for tests on machines that have enough."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from toy_loss_groups import IMAGES, Toy, ToySettings, toy_batch, toy_recipe

from paceline.config.plan import make_plan
from paceline.config.recipe import Recipe
from paceline.config.run import RunOptions, RunSpec
from paceline.config.system import System
from paceline.data.batch import Batch
from paceline.distributed.comm.world import DistContext
from paceline.models.dummy_data import make_synthetic_task
from paceline.models.resnet.task import ClassificationData
from paceline.models.resnet.workload import RESNET
from paceline.models.task import Task
from paceline.models.workload import NetworkFactory
from paceline.training.factory import build_model, build_state
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

    def passed(self, _, images, normalized):
        """A backward has the head's gradients by the time that it comes here."""
        self.tried.append(len(normalized))
        if len(normalized) <= self.holds:
            return None
        return Full.apply(normalized) if self.where == "backward" else out_of_memory()


def recipe_of(bn_batch_size: int, loss_normalizer_images: int) -> Recipe[ToySettings, None]:
    return replace(toy_recipe(loss_normalizer_images), bn_batch_size=bn_batch_size)


def run_of(recipe: Recipe, ranks: int, *, most: int = IMAGES) -> RunSpec:
    system = System(precision="fp32", micro_batch_size=most)
    plan = make_plan(recipe, system, world=ranks, most=most, train_images=80, val_images=8)
    return RunSpec("short", recipe, "cpu", system, plan, RunOptions())


class ToyNetwork(NetworkFactory):
    """A network that holds so many images and no more."""

    def __init__(self, holds: int, where: str) -> None:
        self.holds, self.where = holds, where

    def build(self, recipe: Recipe, classes: int) -> Short:
        return Short(self.holds, where=self.where)

    def initialize(self, recipe: Recipe, model: Short, generator: torch.Generator) -> None:
        """Its weights are given."""

    def largest(self, recipe: Recipe) -> tuple[int, int]:
        return (2, 2)


class ToyData(ClassificationData):
    """Eight images, some of them without objects."""

    @staticmethod
    def dummy_batch(recipe: Recipe, images: int, shape: tuple[int, int], slots: int) -> Batch:
        return toy_batch(OBJECTS, slice(images))


def short_task(recipe: Recipe, holds: int, where: str = "forward") -> Task:
    toy = replace(RESNET, network=ToyNetwork(holds, where), data=lambda: ToyData)
    return make_synthetic_task(toy, recipe, limit_train=80)


def state_of(run: RunSpec, task: Task, world: DistContext) -> State:
    return build_state(build_model(task, run, world), run, world)
