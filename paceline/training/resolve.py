"""Decide what a request leaves open, at two moments: once the run's folder is known, and once the data are open.

The only place where a run's settings change. A resumed run keeps its own system, decoder, pixels and choices of --auto-config.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from paceline._utils.errors import RecipeError
from paceline._utils.reporter import Reporter
from paceline.config.recipe import Recipe
from paceline.config.run import RunOptions
from paceline.config.run_length import FITTED
from paceline.config.system import System
from paceline.distributed.comm.roles import RankRoles
from paceline.distributed.comm.world import broadcast_from_main
from paceline.models.metrics import format_targets
from paceline.models.registry import get_workload
from paceline.models.task import InputRank, Task
from paceline.training.auto_config import apply_auto, command_without, restore_choices
from paceline.training.input_rate import InputRate, choose_decoder, describe_decoder, measure_input_rate, resolve_decoder
from paceline.training.input_stats import resolve_pixel_stats
from paceline.training.open_data import reopen_task
from paceline.training.previous_run import SavedRun
from paceline.training.rank_consistency import data_fingerprint
from paceline.training.request import Request, check_metrics, check_profile, keeps_default_target, refuse_inexact


def resolve_request(request: Request, saved: SavedRun, trainers: int, reporter: Reporter) -> Request:
    """The request with everything decided that needs no data; trainers: the number of ranks that train.

    Raises PacelineError where the resumed run and the command do not go together.
    """
    recipe, options, explicit = request.recipe, request.options, request.given
    system = saved.system(request.system, explicit=explicit, world=trainers)
    options = replace(options, mlperf=saved.submission(options.mlperf, reporter))
    if not request.repeats:
        recipe = resolve_pixel_stats(recipe, options.weights, explicit, reporter, saved=saved.facts)
    recipe = resolve_decoder(recipe, system, options.deterministic or options.synthetic, saved.facts)
    if options.auto_config and saved.facts is not None:
        own = restore_choices(saved.facts, recipe, options, explicit, saved.path)
        recipe, options = own.recipe, own.options
    system = resolve_system(recipe, system, options.deterministic, reporter)
    check_profile(options.profile, system)
    return replace(request, recipe=recipe, system=system, options=options)


def resolve_with_data(
    request: Request, task: Task, rank_info: InputRank, roles: RankRoles, saved: SavedRun, reporter: Reporter
) -> tuple[Request, Task, dict[str, Any] | None, InputRate | None]:
    """-> (the request with everything decided, its task on the same images, --auto-config's choices for run.json, how fast the input
    is).

    Every rank calls it. Raises RecipeError for a target on a metric that no evaluation computes.
    """
    options, auto = request.options, None if saved.facts is None else saved.facts.auto_config
    if options.auto_config:
        cpu = request.system.device == "cpu"
        result = apply_auto(
            *(task, request.recipe, options, request.given), cpu=cpu, ranks=roles.trainers, reporter=reporter
        )
        if request.command:
            reporter.line(f"the same settings without --auto-config:  {command_without(request.command, result.facts)}")
        options, auto = result.options, result.facts
        task = reopen_task(task, result.recipe, options)
    feeding = measure_input_rate(task, rank_info, roles.trainers)
    if getattr(task.recipe.input, "decoder", "") == "auto":
        decoder = broadcast_from_main(roles.everyone, choose_decoder(task.recipe, rank_info, feeding), "decoder")
        task = reopen_task(task, describe_decoder(task.recipe, decoder), options)
        reporter.line(f"--input.decoder auto: {decoder}")
    recipe = resolve_targets(task.recipe, options, request.given, task, reporter, repeats=request.repeats)
    check_metrics(recipe)
    roles.everyone.assert_equal(data_fingerprint(task), "data")
    if part_of := task.facts.get("part_of"):
        reporter.line(f"the dataset is a subset of {part_of}")
    return replace(request, recipe=recipe, options=options), task, auto, feeding


def resolve_system(recipe: Recipe, system: System, exact: bool, reporter: Reporter) -> System:
    """The system as the recipe's workload can use it: without compilation, and with a line, where the workload cannot be compiled.

    Raises RecipeError for --deterministic on an accelerator where a kernel of the workload has no deterministic form, and with
    compressed gradients.
    """
    refuse_inexact(system, exact)  # a resumed run's own number format, too
    network = get_workload(recipe.task).network
    if exact and system.device != "cpu" and network.no_exact:
        own = network.exact_in_triton(recipe)
        if not (own and system.device == "cuda" and system.kernels != "torch"):
            raise RecipeError(
                f"--deterministic: {recipe.task} has no deterministic implementation on an accelerator: {network.no_exact}. Remove "
                f"--deterministic, or add {'--system.kernels triton (CUDA) or ' * own}--system cpu."
            )
    if system.compile != "on" or not network.no_compile:
        return system
    reporter.line(f"compile is turned off for {recipe.task}: {network.no_compile}")
    return replace(system, compile="off")


def unresolved_flags(request: Request) -> tuple[str, ...]:
    """Dotted names of the recipe's fields whose values follow only from the open data."""
    kept = keeps_default_target(request.options, request.given, repeats=request.repeats)
    return (*(() if kept else ("target",)), *(FITTED if request.options.rescale_schedule else ()))


def resolve_targets(
    recipe: Recipe, options: RunOptions, explicit: Collection[str], task: Task, reporter: Reporter, *, repeats: bool
) -> Recipe:
    """The recipe without its target, and with a warning, on other data than the target was set for."""
    if options.synthetic:  # open_task has reported that
        return replace(recipe, target=())
    if not recipe.target or task.data.is_target_data or keeps_default_target(options, explicit, repeats=repeats):
        return recipe
    reporter.warning(
        f"warning: ignoring the target {format_targets(recipe.target)}, which is defined for {recipe.target_data}. Training runs to "
        "the end of the schedule. To set a target for this dataset, use --target."
    )
    return replace(recipe, target=())
