"""Recipes and the number of photos: one that was made for far more is refused, and a length that looks wrong is said.

Standard library only: what is refused from the command alone must not wait for torch.
"""

from __future__ import annotations

from collections.abc import Collection

from paceline._utils.commands import format_command
from paceline._utils.errors import RecipeError
from paceline._utils.reporter import Reporter
from paceline.config.auto import count_evaluations, step_range
from paceline.config.plan import BatchPlan
from paceline.config.recipe import DATA_IMAGES, Recipe
from paceline.config.recipes import RECIPES, find_finetune_recipe
from paceline.config.run import RunOptions
from paceline.models.registry import get_workload

# Fewer steps than that teach next to nothing: the warm-up alone of most recipes is longer.
MIN_STEPS = 200
# A schedule of boundaries and horizons was made for a number of photos; for a hundredth of them it means nothing.
MAX_TIMES = 100
# Recipes for one's own photos, by the ends of their names.
FOR_OWN = ("-finetune", "-cpu", "-demo")


def check_image_count(
    name: str, recipe: Recipe, plan: BatchPlan, options: RunOptions, explicit: Collection[str], accelerator: str
) -> None:
    """Refuse a recipe of the menu that was made for far more photos than these, unless what decides it was set by hand.

    accelerator   the system's: on a CPU the recipe for CPUs is named
    Raises RecipeError with the command that fits.
    """
    own = find_finetune_recipe(name)
    if own not in RECIPES or (name not in RECIPES and "@" not in name):  # its author knows the photos
        return
    if options.synthetic or options.max_train_images or get_design_size(recipe) == plan.train_images:
        return
    photos, batch, steps = plan.train_images, plan.global_batch_size, plan.total_steps
    length = {"epochs", "max_images", "global_batch_size"}.intersection(explicit)
    length = length or options.max_steps or options.rescale_schedule
    times = get_design_size(recipe) / photos
    # demo: for trying out, on any photos
    if batch > photos and "global_batch_size" not in explicit and not name.endswith("-demo"):
        reason = f"the batch size of {batch:,} is greater than the {photos:,} training images"
    elif steps < MIN_STEPS and not length:
        reason = (
            f"{photos:,} training images give only {steps:,} steps with batch size {batch:,}; "
            f"at least {MIN_STEPS} are needed"
        )
    elif times > MAX_TIMES and recipe.epochs and not length and not name.endswith(FOR_OWN):
        reason = f"its schedule is made for {get_design_size(recipe):,} images, {times:,.0f} times the {photos:,} of this dataset"
    else:
        return
    fitting = own + ("-cpu" if accelerator == "cpu" else "")
    auto, about = ((), "Recommended") if name != fitting else (("--auto-config",), "To choose settings for a small dataset")
    raise RecipeError(
        f"{name} is not suitable for this dataset: {reason}.\n"
        f"  {about}:  {format_command('train', fitting, '--data', options.data or 'DIR', *auto)}\n"
        f"  To use {name} anyway, set --global-batch-size, --epochs, --max-images, or --max-steps."
    )


def get_design_size(recipe: Recipe) -> int:
    """Training images of the data set that a recipe was written for; 0 = unknown."""
    return DATA_IMAGES.get(recipe.target_data, (0, 0))[0]


def check_auto(name: str, *, repeats: bool) -> None:
    """Raises RecipeError for --auto-config where a run is repeated, and with a recipe of the menu that was made for one data set."""
    if repeats:
        raise RecipeError("--auto-config: not supported with run.json, which has the chosen settings. Remove the flag.")
    if (name in RECIPES and not name.endswith(FOR_OWN)) or "@" in name:
        own = find_finetune_recipe(name)
        raise RecipeError(
            f"--auto-config: not supported for {name}, whose settings are tuned for one dataset. Use a fine-tuning recipe:\n"
            f"  {format_command('train', own if own in RECIPES else 'classify-finetune', '--data', 'DIR', '--auto-config')}"
        )


# Evaluations beyond which a run spends much of its time on them.
MANY_EVALUATIONS = 25


def report_length(
    name: str, recipe: Recipe, plan: BatchPlan, explicit: Collection[str], cpu: bool, reporter: Reporter
) -> None:
    """A line where a recipe for one's own photos is short, long, or often evaluated on these, and its length is not set by hand."""
    if not name.endswith(("-finetune", "-finetune-cpu")):
        return
    if {"epochs", "max_images"} & set(explicit):
        return
    least, most = step_range(get_workload(recipe.task).kind == "boxes", cpu)
    steps, number = plan.total_steps, count_evaluations(recipe, plan.train_images)
    said = f"note: {plan.train_images:,} images give {steps:,} steps"
    if steps < least / 2:
        said += f", which is few (usual: {least:,} or more)"
    elif steps > most:
        said += f", and more than {most:,} are seldom needed"
    elif number > MANY_EVALUATIONS and "eval_every" not in explicit:
        said += f" with {number:,} evaluations"
    else:
        return
    reporter.line(f"{said}. --auto-config chooses the length and the evaluations for this dataset.")
