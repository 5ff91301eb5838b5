"""What a run starts from: weights that --weights names, or random values; a recipe of pretrained weights takes those on purpose alone.

Standard library only: the refusal waits for nothing.
"""

from __future__ import annotations

import shlex

from paceline.config.errors import RecipeError
from paceline.config.recipe import Recipe
from paceline.config.run import Controls

# --weights none: random values, meant.
NONE = "none"


def named_weights(controls: Controls) -> str:
    """What --weights names; "" where a run starts from random values."""
    return "" if controls.weights == NONE else controls.weights


def check_first_weights(name: str, recipe: Recipe, controls: Controls, asked: str = "") -> None:
    """Refuse to begin a recipe of pretrained weights from random values that nobody asked for.

    name   the recipe's name
    asked  the command that asks; "" = Python
    Made-up batches teach nothing, and need no weights. Raises RecipeError, in a line with both ways out.
    """
    if controls.weights or controls.synthetic or not recipe.pretrained:
        return
    data = "" if controls.data else " --data DIR"
    ways = f"{asked}{data} --weights {shlex.quote(recipe.pretrained)}", f"--weights {NONE}"
    if not asked:
        data = controls.data or "DIR"
        ways = f'paceline.train("{name}", data="{data}", weights="{recipe.pretrained}")', f'weights="{NONE}"'
    raise RecipeError(
        f"{name} starts from pretrained weights, and none are named:  {ways[0]}  (random values on purpose:  {ways[1]})"
    )
