"""--fit-schedule: the recipe's schedule shortened to a number of steps, which is found once and kept in run.json.

With --steps the number is named. With --time-budget it is measured: some steps and part of an evaluation on a state that
is thrown away, so that nothing of it reaches the run. Rank 0 decides, all ranks follow. From then on the number counts and
no clock: repeating or resuming the run takes the same one, and gives the same bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch

from paceline.config.errors import CheckpointError
from paceline.config.length import fit_schedule, steps_in_time
from paceline.config.plan import Plan, evaluation_batch, rates_at
from paceline.config.recipe import Recipe
from paceline.config.run import Controls, Run, seconds_in
from paceline.ranks.exchange import from_main, smallest
from paceline.ranks.world import World
from paceline.tasks.task import InputRank, Task
from paceline.training.evaluate import run_inference
from paceline.training.going_on import fitted_to
from paceline.training.state import State
from paceline.training.step import TrainStep

# What is measured: steps after the first one, for so long or so many, and at most this share of the budget.
TRY_SECONDS, TRY_STEPS, TRY_SHARE = 10.0, 50, 0.05
# A budget is a ceiling: checkpoints, scores and a neighbour on the machine take their part too.
USED = 0.95
# An evaluation is measured by its inference, on a model that finds hardly anything yet. With what a trained one finds, and with
# its scoring, which takes the processor from the steps beside it, it takes about twice as long (ssd-tiny on 67 photos: 0.8 s
# measured, 1.7 to 2.6 s later).
LATER_EVALUATION = 2.0


@dataclass(frozen=True)
class Pace:
    """What a run's parts take, in seconds."""

    step: float  # one optimiser step
    evaluation: float  # one evaluation
    first_step: float  # the first step, which compiles and allocates


def fit(
    recipe: Recipe,
    controls: Controls,
    plan: Plan,
    *,
    saved: Mapping[str, Any] | None,
    measure: Callable[[], Pace | None],
    seconds: Callable[[], float],
    world: World,
    say: Callable[[str], None],
) -> tuple[Recipe, Controls, dict[str, Any]]:
    """-> (the recipe fitted to --steps or --time-budget, the controls that are left to obey, `fitted` of run.json).

    plan      of the recipe as it is
    saved     run.json of the run that goes on, which was fitted to the same; None for a fresh run
    measure   called on every rank where the number is not known yet; None on a rank that only evaluates
    seconds   since the command began
    Raises RecipeError where not one step fits, CheckpointError for a run.json that none of ours is.
    """
    asked = fitted_to(controls)
    facts: dict[str, Any] = {"asked": asked, "steps": min(controls.steps, plan.total_steps)}
    if saved is not None:
        facts = dict(saved["fitted"])
        if type(facts.get("steps")) is not int or facts["steps"] < 1:
            raise CheckpointError(f"run.json: fitted.steps is {str(facts.get('steps'))[:60]}, which no run has had.")
    elif not controls.steps:
        pace = measure()
        if pace is not None:
            facts |= {"step_seconds": pace.step, "eval_seconds": pace.evaluation}
        if world.is_main:
            assert pace is not None  # rank 0 trains
            left = USED * seconds_in(controls.time_budget) - seconds() - pace.first_step
            found = steps_in_time(
                left,
                step_seconds=pace.step,
                eval_seconds=pace.evaluation,
                evaluations=len(plan.eval_steps),
                eval_every=controls.eval_every,
            )
            facts["steps"] = min(found, plan.total_steps)
        facts["steps"] = int(from_main(world, str(facts["steps"]), "fit-schedule"))
    steps = facts["steps"]
    short = f"{steps:,} of the recipe's {plan.total_steps:,} steps"
    if steps == plan.total_steps:
        short = f"the recipe's own {steps:,} steps"
    if all(isinstance(facts.get(name), float) for name in ("step_seconds", "eval_seconds")):
        short += f" (a step takes {facts['step_seconds']:.2g} s, an evaluation {facts['eval_seconds']:.2g} s)"
    say(f"schedule fitted to {asked}: {short}")
    left_over = replace(
        controls, fit_schedule=False, steps=0, time_budget=controls.time_budget if controls.steps else ""
    )
    return fit_schedule(recipe, plan, steps), left_over, facts


def try_out(run: Run, state: State, task: Task, place: InputRank, world: World) -> Pace:
    """Measure steps and part of an evaluation on `state`, which is of no use afterwards. Every rank that trains calls it.

    Where other ranks only evaluate, their share is measured: it counts in full, though training may go on beside it.
    """
    plan, recipe = run.plan, run.recipe
    most_seconds = min(TRY_SECONDS, TRY_SHARE * seconds_in(run.controls.time_budget))
    kind = place.device.type
    devices = [] if kind == "cpu" else [place.device.index or 0]
    forked = torch.random.fork_rng(devices, device_type="cuda" if kind == "cpu" else kind)
    with forked, ExitStack() as open_things:
        one = run.controls.overfit_one_batch
        loader = open_things.enter_context(task.train_loader(plan, run.system, place, first=0, one_batch=one))
        step_once = TrainStep(state, plan, run.system, place.device, world.group)
        open_things.callback(step_once.close)
        began = time.monotonic()
        first, steps, losses = 0.0, 0, {}
        for step, batches in loader:
            losses = step_once(batches, rates_at(recipe, plan, step))
            if step == 0:
                losses["loss"].item()  # waits for the device
                first, began = time.monotonic() - began, time.monotonic()
                continue
            steps += 1
            enough = time.monotonic() - began >= most_seconds or steps >= TRY_STEPS
            if smallest(world, int(not enough)) == 0:
                break
        losses["loss"].item()  # every plan has a step
        each = (time.monotonic() - began) / steps if steps else first
    return Pace(each, _try_evaluation(run, state, task, place, most_seconds), first)


def _try_evaluation(run: Run, state: State, task: Task, place: InputRank, most_seconds: float) -> float:
    """Seconds that one evaluation will take: from this rank's inference of all its images, or of those of `most_seconds`."""
    batch = evaluation_batch(run.plan.images_per_forward, run.plan.val_images, run.plan.evaluators)
    seen: list[int] = []
    began = time.monotonic()
    run_inference(
        state.model,
        task,
        batch=batch,
        system=run.system,
        place=place,
        passed=seen.append,
        stop=lambda: time.monotonic() - began >= most_seconds,
    )
    mine = math.ceil(run.plan.val_images / run.plan.evaluators)
    return LATER_EVALUATION * (time.monotonic() - began) * mine / max(1, sum(seen))
