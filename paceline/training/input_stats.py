"""The pixels that a pretrained trunk of timm's was trained on: a recipe that fine-tunes it starts with their mean and deviation.

Networks of timm's differ in them (ImageNet's, or a half), and a file of weights has no word about it. Decided once, before any data
are opened, and kept in run.json; a run that goes on keeps its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from paceline._utils.reporter import Reporter
from paceline.config.constraints import format_value
from paceline.config.recipe import Recipe, with_fields
from paceline.config.run import NONE, RunRecord, read_run
from paceline.models.registry import get_workload
from paceline.models.weights.download import HUB, is_published

# Fields of an input.
PIXELS = ("mean", "std")


def resolve_pixel_stats(
    recipe: Recipe, weights: str, explicit: Collection[str], reporter: Reporter, *, saved: RunRecord | None = None
) -> Recipe:
    """The recipe with mean and deviation as its trunk's weights want them, and a line where these are others than the recipe's.

    weights  as --weights names them; "" and "none": random values
    explicit  dotted names of the recipe's fields set by hand: mean or deviation among them, both stay
    saved    run.json of the run that goes on; None: a new one
    A recipe whose author has set them otherwise than the workload does is left as it is, and so are other trunks than timm's.
    Raises RecipeError where timm is missing or has no such network.
    """
    backbone, usual = getattr(recipe.model, "backbone", ""), get_workload(recipe.task).input
    own = any(getattr(recipe.input, name, None) != getattr(usual, name, None) for name in PIXELS)
    if not backbone.startswith(HUB) or own or {"input", "input.mean", "input.std"} & set(explicit):
        return recipe
    if saved is not None:
        return with_fields(recipe, _in_run(saved))
    if weights in ("", NONE):
        return recipe
    whose, result = _of_weights(backbone, weights)
    before, recipe = recipe, with_fields(recipe, result)
    if recipe == before:
        return recipe
    reporter.line(
        f"normalization for the weights of {whose}: mean {format_value(recipe.input.mean)}, std {format_value(recipe.input.std)} "
        "(change with --input.mean and --input.std)"
    )
    return recipe


def _of_weights(backbone: str, weights: str) -> tuple[str, dict[str, Any]]:
    """-> (whose they are, dotted fields): of a checkpoint its run's, else what timm says of the name."""
    if (run := _run_of(Path(weights).expanduser())) is not None:
        return str(run), _in_run(read_run(run))
    from paceline.models.backbones.timm_adapter import get_pretrained_pixels

    name = (weights if weights.startswith(HUB) and is_published(weights) else backbone).removeprefix(HUB)
    return name, {f"input.{field}": value for field, value in get_pretrained_pixels(name).items()}


def _in_run(facts: RunRecord) -> dict[str, Any]:
    photo = facts.recipe.get("input", {})
    return {f"input.{name}": photo[name] for name in PIXELS if isinstance(photo, Mapping) and name in photo}


def _run_of(path: Path) -> Path | None:
    """The folder of the run whose checkpoint, or file in it, `path` is."""
    parts = path.absolute(), *path.absolute().parents[:2]
    return next((at.parent for at in parts if at.name == "checkpoints" and (at.parent / "run.json").is_file()), None)
