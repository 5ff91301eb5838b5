"""From a recipe and a data set to a task: what is refused before anything is opened, preparing and opening the data, and what
follows from the open data: target and plan.

This file imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline._utils.commands import require
from paceline._utils.errors import RecipeError, UserError
from paceline._utils.reporter import SILENT, Reporter
from paceline.config.length import FITTED
from paceline.config.plan import MOST_FIRST_WEIGHTS, Plan, first_weights_share, make_plan
from paceline.config.recipe import Recipe
from paceline.config.run import Controls, Run, profile_steps
from paceline.config.system import System
from paceline.store.containers.exports import prepare_first
from paceline.store.manifest import Kind, Manifest
from paceline.store.splits import fold_in_words, half_in_words
from paceline.tasks.metrics import in_words
from paceline.tasks.workloads import workload_of

if TYPE_CHECKING:
    from paceline.ranks.roles import Roles
    from paceline.ranks.world import World
    from paceline.tasks.memory import MemoryEstimate
    from paceline.tasks.task import Task
    from paceline.tasks.workload import Workload


def check_request(recipe: Recipe, data: str, *, scored: bool = False) -> None:
    """Validate recipe and data folder before anything is opened.

    data    as Controls.data
    scored  whether the data are only scored on
    Raises RecipeError for an unknown task or an invalid recipe, UserError for a data folder that is not there.
    """
    workload = _checked(recipe)
    if data:
        data_folder(data, workload, scored=scored)


def open_task(
    recipe: Recipe,
    controls: Controls,
    world: World,
    reporter: Reporter = SILENT,
    *,
    prepared: Callable[[], None] = lambda: None,
    manifest: Manifest | None = None,
) -> Task:
    """The recipe's task on its data, which the first rank of each node prepares where they are not prepared yet.

    prepared  called when that is done, before anything is opened or built
    manifest  of prepared data to score on; None: the training data that `controls` names
    Raises RecipeError for an unknown task, an invalid recipe or a decoder that is not installed, DataError for unusable data.
    """
    workload = _checked(recipe)
    if controls.synthetic:
        from paceline.tasks.synthetic import SyntheticTask

        reporter.line(
            "synthetic batches: no data is read, nothing is scored, no target can be reached; only the speed means anything"
        )
        prepared()
        return SyntheticTask(workload, recipe, limit_train=controls.limit_train)
    from paceline.input.decode import require_decoder

    require_decoder(recipe.input.decoder)
    scored = manifest is not None
    if manifest is None:
        from paceline.datasets.ensure import ensure_prepared

        root = data_folder(controls.data, workload) if controls.data else built_in(workload.kind, reporter)
        manifest = prepared_once(world, lambda: ensure_prepared(root, kind=workload.kind, reporter=reporter))
    prepared()
    if controls.lint and world.is_main:
        from paceline.datasets.lint import refuse_spoilt

        refuse_spoilt(manifest, reporter)
    if controls.folds:
        from paceline.datasets.folds import with_fold

        manifest = with_fold(manifest, controls, reporter)
    if controls.val_half:
        manifest = replace(manifest, half=controls.val_half)
    task = workload.open(recipe, manifest, limit_train=controls.limit_train, limit_val=controls.limit_val)
    if controls.folds:
        reporter.line(
            f"{fold_in_words(task.facts['fold'])}: {task.train_images:,} training images are learned and {task.val_images:,} "
            "others of them evaluated; the validation split is not read"
        )
    if controls.val_half:
        reporter.line(f"{half_in_words(controls.val_half)}: {task.val_images:,} of the validation images are evaluated")
    for text in task.facts.get("warnings", ()):
        reporter.warning(f"warning: {text}")
    if not scored and (weights := task.facts.get("class_weights")):
        reporter.line(f"class weights in the loss: {weights}")
    _check_sampler(task, SILENT if scored else reporter)
    return task


def opened_again(task: Task, recipe: Recipe, controls: Controls) -> Task:
    """The same images with a recipe that was chosen by looking at them. Raises RecipeError where it cannot be."""
    task.workload.check(recipe)
    limits = {"limit_train": controls.limit_train, "limit_val": controls.limit_val}
    return task.workload.open(recipe, task.manifest, **limits)


def _check_sampler(task: Task, reporter: Reporter) -> None:
    sampler = task.recipe.sampler
    if sampler == "shuffle":
        return
    if "draws" not in task.facts:
        raise RecipeError(
            f"--sampler {sampler}: this workload's own task draws each photo once an epoch. Leave it at shuffle, or give "
            "the task's shapes the order of Task.sampled."
        )
    reporter.line(f"sampler {sampler}: {task.facts['draws']}")


def _checked(recipe: Recipe) -> Workload:
    """The recipe's workload. Raises RecipeError for an invalid recipe, or one written for another workload."""
    workload = workload_of(recipe.task)
    for part, given, wanted in (("model", recipe.model, workload.model), ("input", recipe.input, workload.input)):
        if not isinstance(given, type(wanted)):
            raise RecipeError(
                f"--task {recipe.task}: its {part} is a {type(wanted).__name__}, this recipe's a {type(given).__name__}. "
                "Choose a recipe of that workload: paceline list recipes"
            )
    workload.check(recipe)
    if (trunk := getattr(recipe.model, "trunk", "")).startswith("timm/"):
        require("timm", f"--model.trunk {trunk}")
    return workload


def prepared_once(world: World, prepare: Callable[[], Path]) -> Manifest:
    """The manifest in the folder that `prepare` returns; each node's first rank prepares, the others wait for it."""
    if world.local_rank == 0:
        prepare()
    world.barrier()
    return Manifest.load(prepare())


def data_folder(data: str, workload: Workload, *, scored: bool = False) -> Path:
    """The folder that --data names. Raises UserError, naming what the workload's data folder holds, where it is not there."""
    root = Path(data).expanduser()
    if not root.is_dir():
        if first := prepare_first(data, scored=scored):
            raise UserError(f"--data {data}: {first}")
        raise UserError(f"--data {data}: there is no such folder. Name one that holds {workload.data}.")
    return root


def built_in(kind: Kind, reporter: Reporter) -> Path:
    """The folder of the built-in shapes, rendered into the cache on first use."""
    from paceline.datasets.shapes.render import shapes_folder

    started: list[int] = []

    def announce(done: int, total: int) -> None:
        if not started:
            reporter.line(f"rendering the built-in shapes ({total:,} pictures, once) into the cache")
            started.append(done)

    return shapes_folder("classes" if kind == "class-folder" else "boxes", progress=announce)


def plan_for(task: Task, recipe: Recipe, system: System, roles: Roles, memory: MemoryEstimate, nodes: int) -> Plan:
    """The plan of `recipe` on the task's data and on `nodes` machines. Raises RecipeError if no plan keeps to the recipe."""
    from paceline.tasks.memory import images_that_fit

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
    return replace(plan, nodes=nodes)


def settle_system(recipe: Recipe, system: System, exact: bool, reporter: Reporter) -> System:
    """The system as the recipe's workload can use it: without compilation, and with a line, where the workload cannot be compiled.

    Raises RecipeError for --exact on an accelerator where a kernel of the workload has no deterministic form, and with compressed
    gradients.
    """
    refuse_inexact(system, exact)
    workload = workload_of(recipe.task)
    if exact and system.accelerator != "cpu" and workload.no_exact:
        own = workload.exact_in_triton(recipe)
        if not (own and system.accelerator == "cuda" and system.kernels != "torch"):
            raise RecipeError(
                f"--exact: {recipe.task} has no deterministic form on an accelerator: {workload.no_exact}. Leave --exact away, "
                f"or train with {'--system.kernels triton (CUDA), or with ' * own}--system cpu."
            )
    if system.compile != "on" or not workload.no_compile:
        return system
    reporter.line(f"compile off: {recipe.task}: {workload.no_compile}")
    return replace(system, compile="off")


def refuse_inexact(system: System, exact: bool) -> None:
    """Raise RecipeError for --exact with gradients that are rounded before they are summed over ranks, or with TF32."""
    if exact and system.precision == "tf32":
        raise RecipeError(
            "--exact: --system.precision tf32 rounds the inputs of float32 convolutions, so no other device gives the same "
            "result. Use --system.precision fp32."
        )
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
            f"--profile {asked}: the run ends with step {plan.stop_after:,}. Set FIRST of FIRST:END to a smaller number."
        )


def check_metrics(recipe: Recipe) -> None:
    """Raises RecipeError for a target on a metric that no evaluation computes."""
    workload = workload_of(recipe.task)
    known = workload.measured(recipe)
    metrics = [name for name in workload.metrics if name in known]
    for name, _ in recipe.quality.targets:
        if name not in metrics:
            raise RecipeError(f"--quality.targets {name}: there is no such metric. Known: {', '.join(metrics)}.")


def report_short_average(run: Run, reporter: Reporter) -> None:
    """Report that the average of the weights is warmed up, in a run so short that the first weights would stay in it."""
    share, recipe = first_weights_share(run.recipe, run.plan), run.recipe
    if share > MOST_FIRST_WEIGHTS:
        reporter.line(
            f"the average of the weights (--ema {recipe.ema:g}) would still be {100 * share:.0f} % first weights after "
            f"{run.plan.stop_after:,} steps: its decay is warmed up, to at most (1 + t) / (10 + t) after t steps"
        )


def keeps_target(controls: Controls, given: Collection[str], *, repeats: bool) -> bool:
    """Whether the target holds on any data: it was set by hand, or by the run that is repeated on its data."""
    return not controls.synthetic and ("quality.targets" in given or (repeats and "data" not in given))


def undecided(controls: Controls, kept: bool) -> tuple[str, ...]:
    """Dotted names of the recipe's fields whose values follow only from the open data; kept: of `keeps_target`."""
    return (*(() if kept else ("quality.targets",)), *(FITTED if controls.fit_schedule else ()))


def settle_target(
    recipe: Recipe, controls: Controls, given: Collection[str], task: Task, reporter: Reporter, *, repeats: bool
) -> Recipe:
    """The recipe without its target, and with a warning, on other data than the target was set for."""
    if controls.synthetic:  # open_task has reported that
        return replace(recipe, quality=replace(recipe.quality, targets=()))
    if not recipe.quality.targets or task.is_target_data or keeps_target(controls, given, repeats=repeats):
        return recipe
    reporter.warning(
        f"the target {in_words(recipe.quality.targets)} {'was' if len(recipe.quality.targets) == 1 else 'were'} set for "
        f"{recipe.target_data}; on this data the run goes to its end (set one with --quality.targets)"
    )
    return replace(recipe, quality=replace(recipe.quality, targets=()))
