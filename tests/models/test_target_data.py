"""The tiny recipes' targets are set for the built-in sets as they are rendered, and hold for them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.config.recipe import DATA_IMAGES
from paceline.config.recipes import RECIPES
from paceline.data.shapes.render import DEFAULTS
from paceline.models.datamodule import is_target_data


@pytest.mark.parametrize(("name", "kind"), [("classify-demo", "classes"), ("ssd-demo", "boxes")])
def test_the_built_in_set_is_the_tiny_recipe_s_target_data(name, kind):
    recipe, images = RECIPES[name](), DEFAULTS[kind][:2]
    assert DATA_IMAGES[recipe.target_data] == images
    rendered = SimpleNamespace(root_path=Path(f"cache/shapes-{kind}-v2-seed0-1-2-3px"))
    mine = SimpleNamespace(root_path=Path("photos/mine"))
    assert is_target_data(recipe, rendered, images)  # type: ignore[arg-type]
    assert not is_target_data(recipe, mine, images)  # type: ignore[arg-type]
    assert not is_target_data(recipe, rendered, (images[0] - 1, images[1]))  # type: ignore[arg-type]


def test_every_picture_of_the_built_in_boxes_is_trained_on_also_those_without_objects():
    assert not RECIPES["ssd-demo"]().input.skip_empty
