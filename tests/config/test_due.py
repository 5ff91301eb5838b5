"""What is due after a step, where the command says nothing."""

from __future__ import annotations

import pytest

from paceline.config.plan import make_plan
from paceline.config.recipes import RECIPES
from paceline.config.run import RunOptions
from paceline.config.run_length import Cadence
from paceline.distributed.device.systems import h100x8


@pytest.mark.parametrize(("images", "steps"), [(2048 * 10, 10), (2048 * 10 + 1, 11), (2047, 1)])
def test_a_checkpoint_is_saved_with_the_step_that_ends_an_epoch(images: int, steps: int) -> None:
    plan = make_plan(RECIPES["resnet50"](), h100x8(), world=8, most=512, train_images=images, val_images=100)
    due = Cadence.of(plan, RunOptions())
    assert due.save_every == steps
    assert [step for step in range(1, 3 * steps + 1) if due.save(step)] == [steps, 2 * steps, 3 * steps]
