"""Out of memory in the step that is tried first: the next smaller cut of the batch is taken, or one sentence says what helps."""

from __future__ import annotations

import gc
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from by_night import ONE_MORE
from messages import check_text
from short_of_memory import OBJECTS, Short, out_of_memory, recipe_of, run_of, short_task, state_of
from toy_loss_groups import IMAGES, toy_batch

from paceline._utils.errors import RecipeError, ResourceError
from paceline._utils.reporter import Lines
from paceline.config.plan import StepRates, resplit
from paceline.distributed.comm.launcher import read_launch
from paceline.distributed.comm.roles import RankRoles
from paceline.distributed.comm.world import open_distributed
from paceline.distributed.device import accelerators
from paceline.models.layers.batch_norm import list_batch_norms
from paceline.training.memory_probe import can_probe_memory, find_fitting_run
from paceline.training.step import TrainStep

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_collection(monkeypatch):
    """Of a test process, which holds much, it takes half a second."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


@pytest.fixture
def alone():
    with open_distributed(read_launch({}), device=CPU) as world:
        yield world


def tried(run, task, state, world):
    said = []
    return find_fitting_run(run, task, state, RankRoles(world, world), Lines(said.append)), said


def largest_that_keeps_the_recipe(plan, holds):
    """By trying every number; None where no cut does."""
    for most in range(holds, 0, -1):
        try:
            return resplit(plan, most)
        except RecipeError:
            continue
    return None


@pytest.mark.parametrize("span, group", [(1, 8), (2, 2), (4, 4), (2, 0)])
@pytest.mark.parametrize(
    "holds, where", [(8, "forward"), (5, "backward"), pytest.param(3, "forward", marks=ONE_MORE), (1, "forward")]
)
def test_the_largest_cut_that_fits_and_keeps_every_span_is_taken(alone, span, group, holds, where):
    recipe = recipe_of(span, group)
    run, task = run_of(recipe, 1), short_task(recipe, holds, where)
    state = state_of(run, task, alone)
    model = state.model
    assert isinstance(model, Short)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    wanted = largest_that_keeps_the_recipe(run.plan, holds)
    if wanted is None:
        with pytest.raises(ResourceError, match=r"\Anot enough memory .* \d images? "):
            tried(run, task, state, alone)
        return
    fits, said = tried(run, task, state, alone)
    assert fits.plan == wanted and fits.recipe == recipe and len(said) == len(set(model.tried)) - 1
    kept = fits.system.micro_batch_size
    assert kept == (wanted.micro_batch_size if said else IMAGES)
    if said:
        assert check_text(said[-1], wanted.micro_batch_size, f"{wanted.micro_batches} micro-batches")
    # No trace is left of what was tried...
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert {(norm.groups, norm.forwards, norm.join) for norm in list_batch_norms(model)} == {
        (wanted.bn_groups, wanted.micro_batches, wanted.bn_ranks)
    }
    # ... and the step that follows is that of a run which began with this cut.
    small = run_of(recipe, 1, most=wanted.micro_batch_size)
    assert small.plan == wanted
    begun_so = state_of(small, short_task(recipe, IMAGES), alone)
    for one in (state, begun_so):
        take_a_step(one, fits)
    for name, value in model.state_dict().items():
        assert torch.equal(value, begun_so.model.state_dict()[name]), name


def take_a_step(state, run):
    each = run.plan.micro_batch_size
    batches = [toy_batch(OBJECTS, slice(at, at + each)) for at in range(0, IMAGES, each)]
    TrainStep(state, run.plan, run.system, CPU)(batches, StepRates(0.1, 0.1))


def test_a_plan_that_the_workload_refuses_is_no_way_out(alone, monkeypatch):
    recipe = recipe_of(1, 2)
    run, task = run_of(recipe, 1), short_task(recipe, 1)

    def refuse(_, plan):
        if plan.micro_batch_size < 4:
            raise RecipeError("its best proposals would be chosen from a part")

    monkeypatch.setattr(task.workload.network, "check_plan", refuse)
    with pytest.raises(ResourceError, match="micro-batches of 4 images"):
        tried(run, task, state_of(run, task, alone), alone)


def test_what_a_step_held_that_did_not_fit_is_no_peak_of_the_run(alone, monkeypatch):
    """And what a measured run has left is gone before a step is tried: captured steps are in a cycle with their graph's memory."""
    recipe, order = recipe_of(1, 0), []
    run, task = run_of(recipe, 1), short_task(recipe, 4)
    run = replace(run, system=replace(run.system, compile="on"))  # no part of a step that is tried
    device = SimpleNamespace(
        empty_cache=lambda: order.append("empty"), reset_peak_memory_stats=lambda: order.append("forget")
    )
    monkeypatch.setattr(accelerators, "get_device_module", lambda kind: device)
    whole = Short.forward
    monkeypatch.setattr(Short, "forward", lambda self, batch: order.append(len(batch)) or whole(self, batch))
    tried(run, task, state_of(run, task, alone), alone)
    let_go = ["empty", "forget"]
    assert order == [*let_go, 8, *let_go, *let_go, 4, 4, *let_go]


def test_another_error_is_that_error(alone):
    recipe = recipe_of(1, 0)
    run, task = run_of(recipe, 1), short_task(recipe, 8)
    state = state_of(run, task, alone)

    def broken(*_):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    state.model.forward = broken
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        tried(run, task, state, alone)


def test_a_cpu_is_not_tried():
    assert not can_probe_memory(CPU) and can_probe_memory(torch.device("cuda", 0))


def test_a_capture_that_needs_more_memory_than_the_step_takes_the_next_smaller_cut(alone, monkeypatch):
    """A step of 8 images fits; its capture holds 4."""

    def captured(self, batches):
        if len(batches[0].images) > 4:
            out_of_memory()

    monkeypatch.setattr(TrainStep, "prepare", captured)
    recipe = recipe_of(1, 0)
    run, task = run_of(recipe, 1), short_task(recipe, 8)
    fits, said = tried(run, task, state_of(run, task, alone), alone)
    assert (fits.plan.micro_batch_size, len(said)) == (4, 1)
