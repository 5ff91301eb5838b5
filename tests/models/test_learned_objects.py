"""Which training objects are learned: small ones left out, and no more than so many of a photo, against an obvious loop."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

from paceline._utils.errors import RecipeError
from paceline.config.recipe import override
from paceline.config.recipes import RECIPES
from paceline.models.object_task import select_trained_objects
from paceline.models.registry import get_workload

WIDTH, HEIGHT = 20, 10
objects = st.tuples(  # x, y, width, height, annotated area, usable
    st.integers(-5, 20), st.integers(-5, 10), st.integers(0, 12), st.integers(0, 12), st.integers(0, 6), st.booleans()
)


@examples(150)
@given(
    st.lists(st.lists(objects, max_size=6), max_size=4),
    st.sampled_from([0.0, 1.0, 3.5]),
    st.sampled_from([0.0, 4.0, 30.0]),
    st.integers(0, 3),
)
def test_learned_objects_are_those_of_an_obvious_loop(photos, min_object_area, min_box_area, max_objects):
    rows = np.array([row for photo in photos for row in photo], np.float64).reshape(-1, 6)
    counts = [len(photo) for photo in photos]
    split = SimpleNamespace(
        boxes=rows[:, :4], areas=rows[:, 4], object_starts=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        widths=np.full(len(photos), WIDTH), heights=np.full(len(photos), HEIGHT), __len__=None,
    )  # fmt: skip
    settings = SimpleNamespace(min_object_area=min_object_area, min_box_area=min_box_area, max_objects=max_objects)
    found = select_trained_objects(Split(split), rows[:, 5] > 0, settings)  # type: ignore[arg-type]
    wanted, first = [], 0
    for photo in photos:
        left = []
        for place, (x, y, width, height, area, usable) in enumerate(photo):
            inside = max(0, min(x + width, WIDTH) - max(x, 0)) * max(0, min(y + height, HEIGHT) - max(y, 0))
            if usable and area >= min_object_area and inside >= min_box_area:
                left.append((-area, first + place))
        wanted += [row for _, row in sorted(left)][: max_objects or None]
        first += len(photo)
    assert np.flatnonzero(found).tolist() == sorted(wanted)


class Split:
    """A split of boxes, as far as it is looked at."""

    def __init__(self, arrays: SimpleNamespace) -> None:
        self.__dict__.update(arrays.__dict__)

    def __len__(self) -> int:
        return len(self.widths)


@pytest.mark.parametrize("name", ["ssd-demo", "maskrcnn-demo"])
def test_these_settings_are_checked_and_leave_everything_where_they_are_not_asked_for(name):
    recipe = RECIPES[name]()
    assert (recipe.input.min_object_area, recipe.input.min_box_area, recipe.input.max_objects) == (0, 0, 0)
    for flag, value in (("min_object_area", -1.0), ("min_box_area", -2.0), ("max_objects", -1)):
        with pytest.raises(RecipeError, match=f"--input.{flag.replace('_', '-')} -.*must be 0 or more"):
            get_workload(recipe.task).network.check(override(recipe, {f"input.{flag}": value}))
