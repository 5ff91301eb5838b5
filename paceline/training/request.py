"""What was asked of a training, with the ranks that are there: the first of the stages that setup.py goes through."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.config.plan import training_ranks
from paceline.config.recipe import Recipe
from paceline.config.run import Controls, check_controls
from paceline.config.submission import check_submission
from paceline.config.system import System
from paceline.log.console import Console
from paceline.log.trackers import makers
from paceline.ranks.launcher import Launch
from paceline.ranks.roles import Roles, assign
from paceline.ranks.world import World
from paceline.training.alike import request_facts


@dataclass(frozen=True)
class Request:
    """What a person asked for."""

    name: str  # the recipe's name
    recipe: Recipe
    system_name: str
    system: System
    controls: Controls
    given: frozenset[str] = frozenset()  # dotted names of the recipe fields set by hand
    command: str = ""  # the command line, for run.json
    repeats: bool = False  # recipe and controls come from a run.json: its target was already settled

    def facts(self) -> dict[str, Any]:
        """What must be alike in the requests of all ranks."""
        return request_facts(
            "train", self.recipe, self.system, self.controls, given=self.given, name=self.name, repeats=self.repeats
        )


@dataclass(frozen=True)
class Asked:
    """A request whose controls can be, and what each rank is there for."""

    request: Request
    launch: Launch
    world: World
    console: Console  # where rank 0 speaks
    roles: Roles
    sinks: Sequence[Any]  # what makes the trackers that follow the run, on rank 0
    began: float  # by the monotonic clock

    def say(self, text: str) -> None:
        """A line of the run's description, on rank 0."""
        if self.world.is_main:
            self.console.line(text)

    def warn(self, text: str) -> None:
        """A line that stays where only the important ones are printed, on rank 0."""
        if self.world.is_main:
            self.console.warning(text)


def ask(request: Request, launch: Launch, world: World, console: Console) -> Asked:
    """Raises UserError for controls that cannot be, alone or on so many ranks."""
    began = time.monotonic()
    check_controls(request.controls)
    check_submission(request.controls.mlperf, request.recipe)
    training_ranks(world.world, request.controls.eval_ranks)
    sinks = makers(request.controls) if world.is_main else ()
    return Asked(request, launch, world, console, assign(world, request.controls.eval_ranks), sinks, began)
