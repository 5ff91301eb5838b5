"""Prepare and open the data of a recipe. This file imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline._utils.errors import RecipeError
from paceline._utils.reporter import SILENT, Reporter
from paceline.config.recipe import Recipe
from paceline.config.run import RunOptions
from paceline.data.index.manifest import Kind, Manifest
from paceline.data.index.splits import format_fold, format_half
from paceline.training.request import check_recipe, resolve_data_folder

if TYPE_CHECKING:
    from paceline.distributed.comm.world import DistContext
    from paceline.models.task import Task


def prepare_data(recipe: Recipe, options: RunOptions, world: DistContext, reporter: Reporter = SILENT) -> Manifest:
    """The manifest of the data that `options` names, which the first rank of each node prepares where they are not prepared yet.

    Raises DataError for unusable data, RecipeError for a decoder that is not installed.
    """
    from paceline.data.prepare.auto_prepare import prepare_if_needed
    from paceline.data.transforms.decode import require_decoder

    workload = check_recipe(recipe)
    require_decoder(recipe.input.decoder)
    root = resolve_data_folder(options.data, workload) if options.data else render_built_in(workload.kind, reporter)
    return prepare_once(world, lambda: prepare_if_needed(root, kind=workload.kind, reporter=reporter))


def open_task(
    recipe: Recipe,
    options: RunOptions,
    world: DistContext,
    reporter: Reporter = SILENT,
    *,
    manifest: Manifest | None = None,
    scored: bool = False,
) -> Task:
    """The recipe's task on its data.

    manifest  of prepared data; None: those that `options` names, prepared here
    scored    whether the data are only scored on
    Raises RecipeError for an unknown task, an invalid recipe or a decoder that is not installed, DataError for unusable data.
    """
    workload = check_recipe(recipe)
    if options.synthetic:
        from paceline.models.dummy_data import make_synthetic_task

        reporter.line("synthetic batches: no data is read and no metric is computed. Only the speed is meaningful.")
        return make_synthetic_task(workload, recipe, limit_train=options.max_train_images)
    from paceline.data.transforms.decode import require_decoder

    require_decoder(recipe.input.decoder)
    manifest = manifest or prepare_data(recipe, options, world, reporter)
    if options.lint and world.is_main:
        from paceline.data.checks.lint import require_usable

        require_usable(manifest, reporter)
    if options.num_folds:
        from paceline.data.prepare.val_split import with_fold

        manifest = with_fold(manifest, options, reporter)
    if options.val_subset:
        manifest = replace(manifest, half=options.val_subset)
    task = workload.open(recipe, manifest, limit_train=options.max_train_images, limit_val=options.max_val_images)
    data = task.data
    if options.num_folds:
        reporter.line(
            f"{format_fold(task.facts['fold'])}: training on {data.train_images:,} images and evaluating on the other "
            f"{data.val_images:,} training images; the validation split is not used"
        )
    if options.val_subset:
        reporter.line(f"{format_half(options.val_subset)}: evaluating on {data.val_images:,} validation images")
    for text in task.facts.get("warnings", ()):
        reporter.warning(f"warning: {text}")
    if not scored and (weights := task.facts.get("class_weights")):
        reporter.line(f"class weights in the loss: {weights}")
    _check_sampler(task, SILENT if scored else reporter)
    return task


def reopen_task(task: Task, recipe: Recipe, options: RunOptions) -> Task:
    """The same images with a recipe that was chosen by looking at them. Raises RecipeError where it cannot be."""
    task.workload.network.check(recipe)
    limits = {"limit_train": options.max_train_images, "limit_val": options.max_val_images}
    return task.workload.open(recipe, task.data.manifest, **limits)


def _check_sampler(task: Task, reporter: Reporter) -> None:
    sampler = task.recipe.sampler
    if sampler == "random":
        return
    if "draws" not in task.facts:
        raise RecipeError(
            f"--sampler {sampler}: the custom task samples each image once per epoch. Set --sampler random, or pass the order "
            "that DataModule.sampled returns to the shapes of the data module."
        )
    reporter.line(f"sampler {sampler}: {task.facts['draws']}")


def prepare_once(world: DistContext, prepare: Callable[[], Path]) -> Manifest:
    """The manifest in the folder that `prepare` returns; each node's first rank prepares, the others wait for it."""
    if world.local_rank == 0:
        prepare()
    world.barrier()
    return Manifest.load(prepare())


def render_built_in(kind: Kind, reporter: Reporter) -> Path:
    """The folder of the built-in shapes, rendered into the cache on first use."""
    from paceline.data.shapes.render import shapes_folder

    started: list[int] = []

    def announce(done: int, total: int) -> None:
        if not started:
            reporter.line(f"rendering the built-in dataset ({total:,} images) into the cache, once")
            started.append(done)

    return shapes_folder("classes" if kind == "class-folder" else "boxes", progress=announce)
