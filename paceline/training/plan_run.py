"""Plan a run once its data are open: how a batch is cut, in which form a step computes, and how long the run is.

--rescale-schedule is carried out here: the recipe's schedule is shortened to a number of steps, which is found once and kept in
run.json. With --max-steps the number is named; with --max-time it is measured (memory_probe.py). Rank 0 decides, all ranks follow.
From then on the number counts and no clock: repeating or resuming the run takes the same one, and gives the same bits.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from paceline._utils.errors import CheckpointError, RecipeError
from paceline._utils.reporter import Reporter
from paceline.config.plan import MAX_FIRST_WEIGHTS, BatchPlan, ema_initial_share, limit_steps, make_plan
from paceline.config.recipe import Recipe
from paceline.config.run import RunSpec, parse_profile_steps, parse_time_budget
from paceline.config.run_length import count_steps_in_time, fit_schedule, format_schedule_milestones
from paceline.config.system import System
from paceline.distributed.comm.roles import RankRoles
from paceline.distributed.comm.world import DistContext, broadcast_from_main
from paceline.distributed.device.host_memory import explained_failures
from paceline.distributed.device.provenance import collect_provenance
from paceline.models.memory_estimate import MemoryEstimate, max_images_per_forward
from paceline.models.task import InputRank, Task
from paceline.training.factory import build_model, build_state
from paceline.training.memory_probe import Throughput, measure_throughput
from paceline.training.previous_run import SavedRun, restore_fitted_schedule
from paceline.training.request import Request
from paceline.training.small_data import check_image_count, report_length
from paceline.training.step_variants import choose_forms, choose_kernels

# A budget is a ceiling: checkpoints, scores and a neighbor on the machine take their part too.
USED = 0.95


def plan_run(
    request: Request, task: Task, roles: RankRoles, memory: MemoryEstimate, nodes: int, reporter: Reporter, *, new: bool
) -> RunSpec:
    """The run of a request on its open data.

    nodes  the number of machines
    new    whether its length is checked against the number of photos: nothing of it was decided by an earlier run or by --auto-config
    Raises RecipeError if no plan keeps to the recipe, and for a recipe that was made for far more photos.
    """
    recipe, options, system = request.recipe, request.options, request.system
    plan = plan_for(task, recipe, system, roles, memory, nodes)
    if new and not request.repeats:
        check_image_count(request.name, recipe, plan, options, request.given, system.device)
        if not (options.max_steps or options.rescale_schedule):
            report_length(request.name, recipe, plan, request.given, system.device == "cpu", reporter)
    return RunSpec(request.name, recipe, request.system_name, system, plan, options)


def plan_for(task: Task, recipe: Recipe, system: System, roles: RankRoles, memory: MemoryEstimate, nodes: int) -> BatchPlan:
    """The plan of `recipe` on the task's data and on `nodes` machines. Raises RecipeError if no plan keeps to the recipe."""
    plan = make_plan(
        recipe,
        system,
        world=roles.trainers,
        most=max_images_per_forward(memory, system),
        train_images=task.data.train_images,
        val_images=task.data.val_images,
        eval_ranks=roles.evaluators,
    )
    task.workload.network.check_plan(recipe, plan)
    return replace(plan, nodes=nodes)


def with_step_variants(
    run: RunSpec, task: Task, world: DistContext, saved: SavedRun, reporter: Reporter
) -> tuple[RunSpec, str | None]:
    """-> (the run with a form of the step for each `auto`, the reason); rank 0 chooses for all ranks, and prints it."""
    options = run.options
    plan = limit_steps(run.plan, steps=options.max_steps, eval_every=options.eval_every)
    seconds = parse_time_budget(options.max_time) if options.max_time else math.inf
    varied = task.data.shapes.vary
    result = choose_forms(
        *(run.recipe, run.system, plan, task.workload), exact=options.deterministic, varied=varied, seconds=seconds
    )
    chosen, reason = json.loads(broadcast_from_main(world, json.dumps(result), "step variants"))
    if reason:
        reporter.line(f"implementation of the step: {reason}")
    system = replace(run.system, **chosen)
    choose_kernels(system)
    return replace(run, system=system), reason or (saved.facts.step_variants if saved.facts is not None else None)


def with_length(
    run: RunSpec,
    task: Task,
    rank_info: InputRank,
    roles: RankRoles,
    memory: MemoryEstimate,
    saved: SavedRun,
    reporter: Reporter,
    began: float,
) -> tuple[RunSpec, dict[str, Any] | None]:
    """-> (the run as long as its options say, `rescaled_schedule` of run.json: None without --rescale-schedule). Every rank calls it.

    saved  of a resumed run, which was fitted to the same
    began  when the command did, by the monotonic clock
    Raises RecipeError where not one step fits, and for a --profile of steps that the run does not have, CheckpointError for a
    run.json that is none of ours.
    """
    fitted = None
    if run.options.rescale_schedule:
        measure = partial(_measured, run, task, rank_info, roles)
        recipe, fitted = fit(run, saved, roles.everyone, reporter, measure, began)
        plan = plan_for(task, recipe, run.system, roles, memory, run.plan.nodes)
        reporter.line(f"  {format_schedule_milestones(plan)}")
        budget = run.options.max_time if run.options.max_steps else ""
        options = replace(run.options, rescale_schedule=False, max_steps=0, max_time=budget)
        run = replace(run, recipe=recipe, plan=plan, options=options)
    plan = limit_steps(run.plan, steps=run.options.max_steps, eval_every=run.options.eval_every)
    refuse_profile(run.options.profile, plan)
    return replace(run, plan=plan), fitted


def _measured(run: RunSpec, task: Task, rank_info: InputRank, roles: RankRoles) -> Throughput | None:
    """The pace of a run that is thrown away; None on a rank that only evaluates, which only helps to found groups."""
    model = build_model(task, run, roles.peers, trains=not roles.evaluates)
    if roles.evaluates:
        return None
    with explained_failures(run):
        return measure_throughput(run, build_state(model, run, roles.peers), task, rank_info, roles.peers)


def fit(
    run: RunSpec,
    saved: SavedRun,
    world: DistContext,
    reporter: Reporter,
    measure: Callable[[], Throughput | None],
    began: float,
) -> tuple[Recipe, dict[str, Any]]:
    """-> (the recipe fitted to --max-steps or --max-time, `rescaled_schedule` of run.json).

    measure   called on every rank where the number of steps is not known yet; None on a rank that only evaluates
    """
    requested, options, plan = restore_fitted_schedule(run.options), run.options, run.plan
    facts: dict[str, Any] = {"requested": requested, "steps": min(options.max_steps, plan.total_steps)}
    if saved.facts is not None:
        facts = dict(saved.facts.rescaled_schedule)
        if type(facts.get("steps")) is not int or facts["steps"] < 1:
            raise CheckpointError(
                f"run.json: rescaled_schedule.steps must be an integer above 0, got {str(facts.get('steps'))[:60]}."
            )
    elif not options.max_steps:
        reporter.doing("measuring the speed")
        pace = measure()
        if pace is not None:
            facts |= {"step_seconds": pace.step, "eval_seconds": pace.evaluation}
        if world.is_main:
            assert pace is not None  # rank 0 trains
            result = count_steps_in_time(
                USED * parse_time_budget(options.max_time) - (time.monotonic() - began) - pace.first_step,
                step_seconds=pace.step,
                eval_seconds=pace.evaluation,
                evaluations=len(plan.eval_steps),
                eval_every=options.eval_every,
            )
            facts["steps"] = min(result, plan.total_steps)
        facts["steps"] = int(broadcast_from_main(world, str(facts["steps"]), "fit-schedule"))
    steps = facts["steps"]
    short = f"{steps:,} steps instead of the {plan.total_steps:,} of the recipe"
    if steps == plan.total_steps:
        short = f"{steps:,} steps, as in the recipe"
    if all(isinstance(facts.get(name), float) for name in ("step_seconds", "eval_seconds")):
        short += f" (step: {facts['step_seconds']:.2g} s, evaluation: {facts['eval_seconds']:.2g} s)"
    reporter.line(f"schedule scaled to {requested}: {short}")
    return fit_schedule(run.recipe, plan, steps), facts


def refuse_profile(requested: str, plan: BatchPlan) -> None:
    """Raises RecipeError for a --profile of steps that the run does not have."""
    steps, _ = parse_profile_steps(requested)
    if steps.start >= plan.stop_after:
        raise RecipeError(f"--profile {requested}: FIRST must be less than {plan.stop_after:,}, the last step of the run.")


def with_provenance(
    run: RunSpec,
    command: str,
    launcher: str,
    threads: Mapping[str, int],
    task: Task,
    memory: MemoryEstimate,
    more: Mapping[str, Any],
) -> RunSpec:
    """The run with what run.json says of its origin; more: entries of it, None where there is none."""
    classes, need = task.data.classes, asdict(memory)
    facts = collect_provenance(command, launcher, threads=threads, data=task.facts, classes=classes, memory=need)
    return replace(run, provenance=facts | {name: value for name, value in more.items() if value is not None})


def report_short_average(run: RunSpec, step: int, reporter: Reporter) -> None:
    """Report that the average of the weights is warmed up, in a run so short that the first weights would stay in it."""
    if step >= run.plan.stop_after:  # the run is further than this command asks, and only ends
        return
    share, recipe = ema_initial_share(run.recipe, run.plan), run.recipe
    if share > MAX_FIRST_WEIGHTS:
        reporter.line(
            f"--ema-decay {recipe.ema_decay:g}: the initial weights would still be {100 * share:.0f}% of the average after "
            f"{run.plan.stop_after:,} steps. The decay is therefore warmed up: at most (1 + t) / (10 + t) after t steps."
        )
