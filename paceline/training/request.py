"""The first two stages of a run: a request whose controls are valid, then everything that needs no data.

`ask` knows each rank's role. `settle` holds the run's folder and the machine, and finds where the run starts. Preparing or
verifying data may take minutes; nobody should wait that long to learn of a typing error.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline._utils.commands import shown
from paceline._utils.reporter import SILENT, Reporter
from paceline.config.plan import training_ranks
from paceline.config.recipe import Recipe
from paceline.config.run import NONE, Controls, check_controls, check_first_weights, named_weights
from paceline.config.submission import check_submission
from paceline.config.system import System
from paceline.log.console import Console
from paceline.log.trackers import Maker, makers
from paceline.machine.machine import choose_kernels, set_threads
from paceline.machine.placing import Placed, bound
from paceline.ranks.launcher import Launch
from paceline.ranks.roles import Roles, assign
from paceline.ranks.world import World
from paceline.training.alike import request_facts
from paceline.training.building import first_weights
from paceline.training.feeding import settle_decoder
from paceline.training.few_photos import refuse_auto
from paceline.training.look import chosen_before
from paceline.training.opening import (
    check_metrics,
    check_request,
    keeps_target,
    refuse_ranges,
    settle_system,
    undecided,
)
from paceline.training.pixels import settle_pixels
from paceline.training.run_folder import RunFolder, open_run_folder
from paceline.training.start import Start, find_start
from paceline.weights.forms.bring import fitting


@dataclass(frozen=True)
class Request:
    """What a person asks for."""

    name: str  # the recipe's name
    recipe: Recipe
    system_name: str
    system: System
    controls: Controls
    given: frozenset[str] = frozenset()  # dotted names of the recipe fields set by hand
    command: str = ""  # the command line, for run.json
    repeats: bool = False  # recipe and controls come from a run.json: its target was already settled

    def facts(self) -> dict[str, Any]:
        """Everything that must be alike in the requests of all ranks."""
        return request_facts(
            "train", self.recipe, self.system, self.controls, given=self.given, name=self.name, repeats=self.repeats
        )


@dataclass(frozen=True)
class Asked:
    """A request with valid controls, and the role of each rank."""

    request: Request
    launch: Launch
    world: World
    console: Console
    reporter: Reporter  # the console on rank 0, silent elsewhere
    roles: Roles
    sinks: Sequence[Maker]  # make the sinks that follow the run, on rank 0
    began: float  # by the monotonic clock


def ask(request: Request, launch: Launch, world: World, console: Console) -> Asked:
    """Raises UserError for invalid controls, alone or on this number of ranks."""
    began, eval_ranks = time.monotonic(), request.controls.eval_ranks
    check_controls(request.controls)
    check_submission(request.controls.mlperf, request.recipe)
    training_ranks(world.world, eval_ranks)
    sinks = makers(request.controls) if world.is_main else ()
    reporter = console if world.is_main else SILENT
    return Asked(request, launch, world, console, reporter, assign(world, eval_ranks), sinks, began)


@dataclass(frozen=True)
class Settled:
    """A request on this machine, in its folder: where it starts and with what. Nothing of the data is opened."""

    asked: Asked
    folder: RunFolder
    recipe: Recipe
    system: System
    controls: Controls
    placed: Placed
    threads: dict[str, int]  # intra_op, loader
    start: Start
    weights: Path | None  # the file of first weights; None where a checkpoint has them, or where they are drawn


def settle(asked: Asked, held: ExitStack) -> Settled:
    """Hold the folder and this rank's cores until `held` closes. Raises UserError for all that is invalid without the data."""
    request, world, reporter = asked.request, asked.world, asked.reporter
    recipe, controls, given = request.recipe, request.controls, request.given
    folder = held.enter_context(
        open_run_folder(request.name, recipe, controls, given, world, reporter, repeats=request.repeats)
    )
    saved, trainers = folder.saved, asked.roles.trainers
    system = saved.system(request.system, given=given, world=trainers)
    reporter.line(f"run: {shown(folder.path)}")
    placed = held.enter_context(bound(system, world, reporter))
    wanted = saved.with_threads(system, given="system.intra_op_threads" in given, world=trainers)
    threads = set_threads(wanted, world, reporter, placed.share)
    saved.report_threads(threads["intra_op"], reporter)
    controls = replace(controls, mlperf=saved.submission(controls.mlperf, reporter))
    check_request(recipe, controls.data)
    if not request.repeats:
        recipe = settle_pixels(recipe, controls.weights, given, reporter, saved=saved.facts)
    recipe = settle_decoder(recipe, system, controls.exact or controls.synthetic, saved.facts)
    if controls.auto:
        refuse_auto(request.name, repeats=request.repeats)
        if saved.facts is not None:
            own = chosen_before(saved.facts, recipe, controls, given, folder.path)
            recipe, controls = own.recipe, own.controls
    kept = keeps_target(controls, given, repeats=request.repeats)
    if kept:
        check_metrics(recipe)
    system = settle_system(recipe, system, controls.exact, reporter)
    choose_kernels(system)
    refuse_ranges(controls.profile, system)
    start = find_start(saved, request.name, recipe, given, world, reporter, undecided=undecided(controls, kept))
    if start.snapshot is not None:
        controls, weights = replace(controls, weights=saved.weights()), None
    else:
        check_first_weights(request.name, recipe, controls, request.command, fitting(recipe))
        weights = first_weights(named_weights(controls), world, reporter)
        if controls.weights == NONE:
            reporter.line(f"--weights {NONE}: training starts from random values")
    return Settled(asked, folder, recipe, system, controls, placed, threads, start, weights)
