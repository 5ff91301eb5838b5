"""The second stage: the run's folder is held, and all is refused that can be refused with no data opened.

Preparing or verifying data may take minutes; nobody shall wait for them to hear of a slip of the keyboard.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.config.commands import shown
from paceline.config.first_weights import NONE, check_first_weights, named_weights
from paceline.config.recipe import Recipe
from paceline.config.run import Controls
from paceline.config.system import System
from paceline.machine.machine import set_threads
from paceline.machine.placing import Placed, bound
from paceline.training.building import first_weights
from paceline.training.opening import check_request
from paceline.training.request import Asked
from paceline.training.run_folder import RunFolder, open_run_folder
from paceline.training.settling import check_metrics, keeps_target, refuse_ranges, settle_system, undecided
from paceline.training.start import Start, find_start


@dataclass(frozen=True)
class Settled:
    """A request on this machine, in its folder: where it starts and with what."""

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
    """Hold the folder and this rank's cores until `held` closes. Raises UserError for whatever cannot be."""
    request, world, warn = asked.request, asked.world, asked.warn
    recipe, controls = request.recipe, request.controls
    folder = held.enter_context(
        open_run_folder(
            request.name, recipe, controls, request.given, world, repeats=request.repeats, say=asked.console.warning
        )
    )
    saved = folder.saved
    system = saved.system(request.system, given=request.given, world=asked.roles.trainers)
    asked.say(f"run: {shown(folder.path)}")
    placed = held.enter_context(bound(system, world, warn))
    named = "system.intra_op_threads" in request.given
    threads = set_threads(
        saved.with_threads(system, given=named, world=asked.roles.trainers), world, warn, placed.share
    )
    saved.say_threads(threads["intra_op"], warn)
    controls = replace(controls, mlperf=saved.submission(controls.mlperf, warn))
    check_request(recipe, controls.data)
    kept = keeps_target(controls, request.given, repeats=request.repeats)
    if kept:
        check_metrics(recipe)
    system = settle_system(recipe, system, controls.exact, asked.say)
    refuse_ranges(controls.profile, system)
    start = find_start(saved, request.name, recipe, request.given, world, warn, undecided=undecided(controls, kept))
    if start.snapshot is not None:
        controls, weights = replace(controls, weights=saved.weights()), None
    else:
        check_first_weights(request.name, recipe, controls, request.command)
        weights = first_weights(named_weights(controls), world, asked.say)
        if controls.weights == NONE:
            asked.say(f"--weights {NONE}: training starts from random values")
    return Settled(asked, folder, recipe, system, controls, placed, threads, start, weights)
