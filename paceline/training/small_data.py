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
    name: str, recipe: Recipe, plan: BatchPlan, controls: RunOptions, explicit: Collection[str], accelerator: str
) -> None:
    """Refuse a recipe of the menu that was made for far more photos than these, unless what decides it was set by hand.

    accelerator   the system's: on a CPU the recipe for CPUs is named
    Raises RecipeError with the command that fits.
    """
    own = find_finetune_recipe(name)
    if own not in RECIPES or (name not in RECIPES and "@" not in name):  # its author knows the photos
        return
    if controls.synthetic or controls.max_train_images or get_design_size(recipe) == plan.train_images:
        return
    photos, batch, steps = plan.train_images, plan.global_batch_size, plan.total_steps
    length = {"epochs", "max_images", "global_batch_size"}.intersection(explicit)
    length = length or controls.max_steps or controls.rescale_schedule
    times = get_design_size(recipe) / photos
    # demo: for trying out, on any photos
    if batch > photos and "global_batch_size" not in explicit and not name.endswith("-demo"):
        reason = f"a batch of {batch:,} is more than the {photos:,} training photos"
    elif steps < MIN_STEPS and not length:
        reason = (
            f"{photos:,} training photos make {steps:,} steps of {batch:,} in all, "
            f"and fewer than {MIN_STEPS} teach next to nothing"
        )
    elif times > MAX_TIMES and recipe.epochs and not length and not name.endswith(FOR_OWN):
        reason = f"its schedule was made for {get_design_size(recipe):,} photos, {times:,.0f} times the {photos:,} here"
    else:
        return
    fitting = own + ("-cpu" if accelerator == "cpu" else "")
    auto, about = (
        ((), "for photos of one's own there is")
        if name != fitting
        else (("--auto-config",), "--auto-config chooses what fits so few")
    )
    raise RecipeError(
        f"{name}: {reason}.\n{about}:  {format_command('train', fitting, '--data', controls.data or 'DIR', *auto)}\n"
        "What is set by hand is taken: --global-batch-size, --epochs, --max-images, --max-steps."
    )


def get_design_size(recipe: Recipe) -> int:
    """Training images of the data set that a recipe was written for; 0 = unknown."""
    return DATA_IMAGES.get(recipe.target_data, (0, 0))[0]


def check_auto(name: str, *, repeats: bool) -> None:
    """Raises RecipeError for --auto-config where a run is repeated, and with a recipe of the menu that was made for one data set."""
    if repeats:
        raise RecipeError(
            "--auto-config chooses before a run, and this run.json holds what that one trained: leave the flag away."
        )
    if (name in RECIPES and not name.endswith(FOR_OWN)) or "@" in name:
        own = find_finetune_recipe(name)
        raise RecipeError(
            f"--auto-config: {name} was made for one data set, and its numbers belong together. It chooses for the "
            f"recipes for photos of "
            f"one's own:  {format_command('train', own if own in RECIPES else 'classify-finetune', '--data', 'DIR', '--auto-config')}"
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
    said = f"{plan.train_images:,} photos make {steps:,} steps, "
    if steps < least / 2:
        said += f"and fewer than {least:,} are little"
    elif steps > most:
        said += f"and more than {most:,} are seldom needed"
    elif number > MANY_EVALUATIONS and "eval_every" not in explicit:
        said += f"with {number:,} evaluations between them"
    else:
        return
    reporter.line(f"{said}: --auto-config chooses length and evaluations by the photos")
