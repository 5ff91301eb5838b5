"""A run's length beside its recipe's (longer on resuming, shorter with --rescale-schedule), and what is due after which step.

Letters: r the share of the recipe's steps that a fitted run takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from paceline._utils.errors import RecipeError
from paceline._utils.text import join_names
from paceline.config.plan import BatchPlan, is_epoch_end, lr_at, whole_steps
from paceline.config.recipe import Recipe
from paceline.config.run import RunOptions

# A recipe has its length in one of these; on going on they may grow.
LENGTH = ("epochs", "max_images")
# What --rescale-schedule changes of a recipe: to which values, the number of training images decides.
FITTED = (
    *LENGTH,
    *("schedule.warmup", "schedule.decay_start", "schedule.decay_end", "schedule.milestones"),
    *("eval.start", "eval.every", "eval.at"),
)
# A warm-up counted in steps keeps so many steps of a fitted run: scaled down in proportion, hundreds would become none.
MAX_WARMUP = 0.1
# With fewer steps between two evaluations than this, how to make fewer is said.
FEW_STEPS = 20


def count_recipe_steps(recipe: Mapping[str, Any], plan: Mapping[str, Any]) -> int:
    """Steps of a recipe (as in run.json) on the data and batch of a plan (likewise).

    Raises KeyError, TypeError or ValueError for what no recipe or plan of ours holds.
    """
    epochs, images = float(recipe["epochs"]), int(recipe["max_images"])
    steps = epochs * float(plan["steps_per_epoch"]) if epochs else images / int(plan["global_batch_size"])
    return max(1, whole_steps(steps))


def fit_schedule(recipe: Recipe, plan: BatchPlan, steps: int) -> Recipe:
    """`recipe` with its whole schedule shortened to `steps` steps: length, warm-up, hold, horizon, boundaries, evaluations.

    plan   of the recipe as it is
    What is counted in epochs or steps shrinks in proportion, fractions of the run stay as they are. A warm-up counted in
    steps keeps its length, up to MAX_WARMUP of the run, where proportion would leave less of it.
    A recipe that is no longer than `steps` stays as it is.
    """
    if steps >= plan.total_steps:
        return recipe
    r = steps / plan.total_steps
    schedule, quality = recipe.schedule, recipe.eval
    if schedule.unit != "fraction":
        warmup = schedule.warmup * r
        if schedule.unit == "steps":
            warmup = min(schedule.warmup, max(warmup, MAX_WARMUP * steps))
        schedule = replace(
            schedule,
            warmup=warmup,
            decay_start=schedule.decay_start * r,
            decay_end=schedule.decay_end * r,
            milestones=tuple(boundary * r for boundary in schedule.milestones),
        )
    if quality.unit != "fraction":
        at = tuple(point * r for point in quality.at)
        quality = replace(quality, start=quality.start * r, every=quality.every * r, at=at)
    if recipe.epochs:
        recipe = replace(recipe, epochs=steps / plan.steps_per_epoch)
    else:
        recipe = replace(recipe, max_images=steps * plan.global_batch_size)
    return replace(recipe, schedule=schedule, eval=quality)


def count_steps_in_time(
    seconds: float, *, step_seconds: float, eval_seconds: float, evaluations: int, eval_every: int = 0
) -> int:
    """How many steps fit into `seconds` together with their evaluations.

    evaluations   how many the whole run has, however short it is; the last one included
    eval_every    steps between evaluations where they are counted so; 0 = they are not
    Raises RecipeError where not a single step fits.
    """
    if eval_every:
        steps = (seconds - eval_seconds) / (step_seconds + eval_seconds / eval_every)
    else:
        steps = (seconds - evaluations * eval_seconds) / step_seconds
    if steps < 1:
        raise RecipeError(
            f"--rescale-schedule: --max-time is too short for one step. A step takes {step_seconds:.2g} s, each of {evaluations} "
            f"evaluations about {eval_seconds:.2g} s, and {max(0.0, seconds):.2g} s are left after the start.\n"
            "Increase --max-time, or reduce the evaluations with --eval-every or --max-val-images."
        )
    return int(steps)


def format_schedule_milestones(plan: BatchPlan) -> str:
    """Where a plan's learning rate and evaluations turn, in a line."""
    evaluations = join_names((f"{step:,}" for step in plan.eval_steps), 3)
    falls = f", lr drops at steps {', '.join(f'{step:,.4g}' for step in plan.milestones)}" if plan.milestones else ""
    fewer = "; for fewer, use --eval-every N" if len(plan.eval_steps) > plan.total_steps / FEW_STEPS else ""
    return f"warm-up {plan.warmup_steps:,.4g} steps{falls}, {plan.total_steps:,} in total; evaluations at steps {evaluations}{fewer}"


def format_schedule_progress(recipe: Recipe, plan: BatchPlan, step: int) -> str:
    """How far the learning rate had come in the last of `step` steps; empty where it never changes."""
    if step < plan.warmup_steps:
        return "the learning rate was still warming up"
    if recipe.schedule.name == "constant":
        return ""
    share = lr_at(recipe, plan, max(0, step - 1)) / recipe.optim.lr
    if share >= 1:
        return "the learning rate had not begun to fall"
    # Two digits; of a fall that has just begun three, for two would round it to 1e+02.
    percent = f"{100 * share:.2g}" if share < 0.95 else f"{min(100 * share, 99.9):.3g}"
    return f"the learning rate had fallen to {percent}% of its peak"


# A run prints about this many train events, and one at least every LOG_AT_MOST steps.
EVENTS_IN_A_RUN, LOG_AT_MOST = 200, 100


@dataclass
class Cadence:
    """Asked after `step` steps are done; the same on every rank."""

    log_every: int  # steps between train events
    save_every: int  # steps between checkpoints
    eval_steps: frozenset[int]  # those that an evaluation follows
    steps_per_epoch: float  # need not be whole
    last_step: int  # of this command
    why_last: str = ""  # where something else than the command's length made it the last

    @classmethod
    def of(cls, plan: BatchPlan, options: RunOptions) -> Cadence:
        """As the command says, else about 200 train events a run and a checkpoint an epoch."""
        return cls(
            log_every=options.log_every or min(LOG_AT_MOST, max(1, plan.total_steps // EVENTS_IN_A_RUN)),
            save_every=options.save_every or max(1, math.ceil(plan.steps_per_epoch - 1e-6)),
            eval_steps=frozenset(plan.eval_steps),
            steps_per_epoch=plan.steps_per_epoch,
            last_step=plan.stop_after,
        )

    def end(self, step: int, why: str) -> None:
        """Make this step the run's last: it is evaluated and saved as the last step always is."""
        self.last_step, self.why_last = step, why

    def log(self, step: int) -> bool:
        """Whether a train event follows."""
        return step % self.log_every == 0 or step >= self.last_step

    def evaluation(self, step: int) -> bool:
        """Whether an evaluation follows."""
        return step in self.eval_steps or step >= self.last_step

    def save(self, step: int) -> bool:
        """Whether a checkpoint follows (an evaluation saves one anyway)."""
        return step % self.save_every == 0

    def result(self, step: int) -> bool:
        """Whether a result still pending is taken first: before anything of a later step than its own is written down."""
        return self.log(step) or self.evaluation(step) or self.save(step) or is_epoch_end(step, self.steps_per_epoch)
