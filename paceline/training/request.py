"""A request to train, and every check of it that needs neither the data nor torch, in one list.

`validate` runs it before torch is imported, so a mistyped flag is answered at once. What only the data can decide is checked when
they are open (resolve.py, plan_run.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline._utils.commands import require
from paceline._utils.errors import PacelineError, RecipeError
from paceline.config.plan import count_training_ranks
from paceline.config.published import check_submission
from paceline.config.recipe import Recipe
from paceline.config.run import RunOptions, check_initial_weights, check_run_options, parse_profile_steps, run_file
from paceline.config.system import System
from paceline.distributed.comm.launcher import Launch
from paceline.models.registry import get_workload
from paceline.models.weights.download import pretrained_for
from paceline.training.logging.trackers import tracker_makers
from paceline.training.previous_run import load_previous_run
from paceline.training.small_data import check_auto

if TYPE_CHECKING:
    from paceline.models.workload import WorkloadSpec


@dataclass(frozen=True)
class Request:
    """What a user asks for; resolve.py returns it with more of it decided."""

    name: str  # the recipe's name
    recipe: Recipe
    system_name: str
    system: System
    options: RunOptions
    given: frozenset[str] = frozenset()  # dotted names of the recipe fields set by hand
    command: str = ""  # the command line, for run.json
    repeats: bool = False  # recipe and options come from a run.json: its target was already settled


def validate(request: Request, launch: Launch) -> None:
    """Run every check of `CHECKS` on this rank. Raises PacelineError for the first that fails, naming the flag and what to do.

    request  its system may be as the flags name it: the machine is not asked, which takes torch
    """
    for check in CHECKS:
        check(request, launch)


def _check_sinks(request: Request, launch: Launch) -> None:
    if launch.rank == 0:  # the others record nothing
        tracker_makers(request.options, request.given)


def _check_auto(request: Request, launch: Launch) -> None:
    if request.options.auto_config:
        check_auto(request.name, repeats=request.repeats)


def _check_target(request: Request, launch: Launch) -> None:
    """A target that other data may still take away is checked once the data are open (resolve.py)."""
    if keeps_default_target(request.options, request.given, repeats=request.repeats):
        check_metrics(request.recipe)


def check_not_finished(request: Request, launch: Launch) -> None:
    """A finished run of which no more is asked; with several ranks, and where its report is missing, the run itself answers."""
    named = request.options.output_dir
    path = Path(named).expanduser().absolute()
    if launch.world == 1 and named and all((path / name).exists() for name in ("run.json", "report.html")):
        load_previous_run(path, request.name, request.recipe, request.options, request.given, repeats=request.repeats)


def _check_data_folder(request: Request, launch: Launch) -> None:
    """With several ranks the run itself looks for it, so that all of them learn what one lacks."""
    if launch.world == 1 and request.options.data:
        resolve_data_folder(request.options.data, get_workload(request.recipe.task))


CHECKS: tuple[Callable[[Request, Launch], object], ...] = (
    lambda request, launch: check_run_options(request.options),
    lambda request, launch: check_submission(request.options.mlperf, request.recipe),
    lambda request, launch: count_training_ranks(launch.world, request.options.dedicated_eval_ranks),
    lambda request, launch: check_weights_named(request, request.options.output_dir),
    check_not_finished,
    lambda request, launch: check_recipe(request.recipe),
    _check_data_folder,
    _check_sinks,
    _check_auto,
    _check_target,
    lambda request, launch: refuse_inexact(request.system, request.options.deterministic),
)


def check_request(recipe: Recipe, data: str, *, scored: bool = False) -> None:
    """Validate recipe and data folder before anything is opened, for commands that do not train.

    data    as Controls.data
    scored  whether the data are only scored on
    Raises RecipeError for an unknown task or an invalid recipe, PacelineError for a data folder that is not there.
    """
    workload = check_recipe(recipe)
    if data:
        resolve_data_folder(data, workload, scored=scored)


def check_recipe(recipe: Recipe) -> WorkloadSpec:
    """The recipe's workload. Raises RecipeError for an invalid recipe, or one written for another workload."""
    workload = get_workload(recipe.task)
    for part, explicit, wanted in (("model", recipe.model, workload.model), ("input", recipe.input, workload.input)):
        if not isinstance(explicit, type(wanted)):
            raise RecipeError(
                f"--task {recipe.task}: expected {part} of type {type(wanted).__name__}, got {type(explicit).__name__}. "
                "Choose a recipe of this task:  paceline list recipes"
            )
    workload.network.check(recipe)
    if (backbone := getattr(recipe.model, "backbone", "")).startswith("timm/"):
        require("timm", f"--model.backbone {backbone}")
    return workload


def resolve_data_folder(data: str, workload: WorkloadSpec, *, scored: bool = False) -> Path:
    """The folder that --data names. Raises PacelineError, naming what the workload's data folder holds, where it is not there."""
    root = Path(data).expanduser()
    if not root.is_dir():
        from paceline.data.containers.label_exports import prepare_first

        if first := prepare_first(data, scored=scored):
            raise PacelineError(f"--data {data}: {first}")
        raise PacelineError(f"--data {data}: folder not found. Pass a folder that contains {workload.layout}.")
    return root


def check_weights_named(request: Request, *folders: str | Path) -> None:
    """Raises RecipeError for a run in any of the folders that would start from random values unasked; "" is none yet.

    One that is there has its own weights.
    """
    if folders and all(folder and run_file(Path(folder).expanduser()).is_file() for folder in folders):
        return
    check_initial_weights(request.name, request.recipe, request.options, request.command, pretrained_for(request.recipe))


def check_metrics(recipe: Recipe) -> None:
    """Raises RecipeError for a target on a metric that no evaluation computes."""
    workload = get_workload(recipe.task)
    known = workload.reporting.measured(recipe)
    metrics = [name for name in workload.reporting.metrics if name in known]
    for name, _ in recipe.target:
        if name not in metrics:
            raise RecipeError(f"--target {name}: metric not found. Choose one of {', '.join(metrics)}.")


def keeps_default_target(options: RunOptions, explicit: Collection[str], *, repeats: bool) -> bool:
    """Whether the target holds on any data: it was set by hand, or by the run that is repeated on its data."""
    return not options.synthetic and ("target" in explicit or (repeats and "data" not in explicit))


def check_profile(requested: str, system: System) -> None:
    """Raises RecipeError for a --profile of NVTX ranges where nothing can read them."""
    steps, nvtx = parse_profile_steps(requested)
    if nvtx and system.device != "cuda":
        raise RecipeError(
            f"--profile {requested}: NVTX ranges require a CUDA device, and this run uses {system.device}. "
            f"To write a trace, set --profile {steps.start}:{steps.stop}."
        )


def refuse_inexact(system: System, exact: bool) -> None:
    """Raise RecipeError for --deterministic with gradients that are rounded before they are summed over ranks, or with TF32."""
    if exact and system.precision == "tf32":
        raise RecipeError(
            "--deterministic: not supported with --system.precision tf32, which rounds the inputs of float32 convolutions "
            "differently per device. Set --system.precision fp32."
        )
    if exact and system.grad_compression != "none":
        raise RecipeError(
            f"--deterministic: not supported with --system.grad-compression {system.grad_compression}, because the rounded "
            "gradients depend on the number of ranks. Remove one of the two flags."
        )
