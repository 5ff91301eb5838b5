"""Validate a request against its workload and its data: system and metrics, then target and plan."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from paceline.config.errors import RecipeError
from paceline.config.length import FITTED
from paceline.config.plan import MOST_FIRST_WEIGHTS, Plan, first_weights_share, make_plan
from paceline.config.recipe import Recipe
from paceline.config.run import Controls, Run, profile_steps
from paceline.config.system import System
from paceline.ranks.roles import Roles
from paceline.tasks.memory import MemoryEstimate, images_that_fit
from paceline.tasks.metrics.target import in_words
from paceline.tasks.task import Task
from paceline.tasks.workloads import workload_of


def plan_for(task: Task, recipe: Recipe, system: System, roles: Roles, memory: MemoryEstimate) -> Plan:
    """The plan of `recipe` on the task's data. Raises RecipeError for one that cannot be carried out as the recipe says."""
    plan = make_plan(
        recipe,
        system,
        world=roles.trainers,
        most=images_that_fit(memory, system),
        train_images=task.train_images,
        val_images=task.val_images,
        eval_ranks=roles.evaluators,
    )
    task.workload.check_plan(recipe, plan)
    return plan


def settle_system(recipe: Recipe, system: System, exact: bool, say) -> System:
    """The system as the recipe's workload can use it: compilation is left out where it has no form of it, and that is said.

    Raises RecipeError for --exact on an accelerator where a kernel of the workload has no deterministic form, and with compressed
    gradients.
    """
    refuse_compressed(system, exact)
    workload = workload_of(recipe.task)
    if exact and system.accelerator != "cpu" and workload.no_exact:
        raise RecipeError(
            f"--exact: {recipe.task} has no deterministic form on an accelerator: {workload.no_exact}. "
            "Leave --exact away, or train with --system cpu."
        )
    if not system.compile or not workload.no_compile:
        return system
    say(f"compile off: {recipe.task}: {workload.no_compile}")
    return replace(system, compile=False)


def refuse_compressed(system: System, exact: bool) -> None:
    """Raises RecipeError for --exact where gradients are rounded on their way: their sum would depend on the number of ranks."""
    if exact and system.compress != "none":
        raise RecipeError(
            f"--exact: --system.compress {system.compress} rounds gradients on their way, so another number of ranks would give "
            "another result. Leave one of the two away."
        )


def refuse_ranges(asked: str, system: System) -> None:
    """Raises RecipeError for a --profile of NVTX ranges where nothing can read them."""
    steps, nvtx = profile_steps(asked)
    if nvtx and system.accelerator != "cuda":
        raise RecipeError(
            f"--profile {asked}: NVIDIA's Nsight Systems reads such ranges, and this run computes on {system.accelerator}. "
            f"--profile {steps.start}:{steps.stop} writes a trace."
        )


def refuse_profile(asked: str, plan: Plan) -> None:
    """Raises RecipeError for a --profile of steps that the run does not have."""
    steps, _ = profile_steps(asked)
    if steps.start >= plan.stop_after:
        raise RecipeError(
            f"--profile {asked}: the run ends before, with step {plan.stop_after - 1}; steps count from 0."
        )


def check_metrics(recipe: Recipe) -> None:
    """Refuse a target on a metric that no evaluation will give: it could never be met.

    Raises RecipeError naming it.
    """
    metrics = workload_of(recipe.task).metrics
    for name, _ in recipe.quality.targets:
        if name not in metrics:
            raise RecipeError(f"--quality.targets {name}: there is no such metric. Known: {', '.join(metrics)}.")


def tell_short_average(run: Run, say) -> None:
    """Say that the average of the weights is warmed up, in a run so short that the first weights would linger in it."""
    share, recipe = first_weights_share(run.recipe, run.plan), run.recipe
    if share > MOST_FIRST_WEIGHTS:
        say(
            f"the average of the weights (--ema {recipe.ema:g}) would still be {100 * share:.0f} % first weights after "
            f"{run.plan.stop_after:,} steps: its decay is warmed up, to at most (1 + t) / (10 + t) in step t"
        )


def keeps_target(controls: Controls, given: Collection[str], *, repeats: bool) -> bool:
    """Whether the target holds on whatever data there are: it was set by hand, or by the run that is repeated on its data."""
    return not controls.synthetic and ("quality.targets" in given or (repeats and "data" not in given))


def undecided(controls: Controls, kept: bool) -> tuple[str, ...]:
    """Dotted names of the recipe's fields whose values follow only from the open data; kept: as `keeps_target` says."""
    return (*(() if kept else ("quality.targets",)), *(FITTED if controls.fit_schedule else ()))


def settle_target(
    recipe: Recipe, controls: Controls, given: Collection[str], task: Task, say, *, repeats: bool
) -> Recipe:
    """A target holds for the data it was set for; with other data the run goes to its end, and that is said."""
    if controls.synthetic:  # opening.py has said so
        return replace(recipe, quality=replace(recipe.quality, targets=()))
    if not recipe.quality.targets or task.is_target_data or keeps_target(controls, given, repeats=repeats):
        return recipe
    say(
        f"the target {in_words(recipe.quality.targets)} {'was' if len(recipe.quality.targets) == 1 else 'were'} set for "
        f"{recipe.target_data}; on this data the run goes to its end (set one with --quality.targets)"
    )
    return replace(recipe, quality=replace(recipe.quality, targets=()))
