"""A training's state around a model that a test has, in place of one that a task builds."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import torch
from torch import nn

from paceline.config.run import RunSpec
from paceline.distributed.comm.world import DistContext
from paceline.models.task import Task
from paceline.training.factory import build_model, build_state
from paceline.training.state import State


def state_around(build: Callable[[torch.device], nn.Module], run: RunSpec, world: DistContext) -> State:
    """As `build_state` makes it; `build` makes the model, with its first weights, on a device."""
    return build_state(build_model(cast(Task, SimpleNamespace(build=build)), run, world), run, world)
