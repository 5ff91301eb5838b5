"""One rank of the tests in test_trying_ranks.py: `FOLDER EVALUATORS HOLDS...` tries a step with room for so many images on each."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from short_of_memory import OBJECTS, recipe_of, run_of, short_task
from toy_loss_groups import toy_batch

from paceline._utils.reporter import Lines
from paceline.config.plan import StepRates
from paceline.data.loader.sampler import stream_positions
from paceline.distributed.comm.launcher import read_launch
from paceline.distributed.comm.roles import RankRoles, assign_roles
from paceline.distributed.comm.world import open_distributed
from paceline.models.layers.batch_norm import list_batch_norms
from paceline.training.factory import build_model, build_state
from paceline.training.memory_probe import find_fitting_run
from paceline.training.step import TrainStep


def smaller(roles: RankRoles, holds: int, span: int, group: int) -> dict[str, object] | None:
    """The cut that was found, what was said, and the weights after one step of it; None on a rank that only evaluates."""
    recipe, world = recipe_of(span, group), roles.peers
    run, task, said = run_of(recipe, roles.trainers), short_task(recipe, holds), []
    state = build_state(build_model(task, run, world, trains=not roles.evaluates), run, world)
    run = find_fitting_run(run, task, state, roles, Lines(said.append))
    plan = run.plan
    if roles.evaluates:
        return None
    places = stream_positions(
        step=0,
        rank=world.rank,
        world=plan.world_size,
        global_batch_size=plan.global_batch_size,
        forwards=plan.micro_batches,
        join=plan.bn_ranks,
    ).reshape(plan.micro_batches, -1)
    batches = [toy_batch(OBJECTS, slice(int(part[0]), int(part[-1]) + 1)) for part in places]
    TrainStep(state, plan, run.system, torch.device("cpu"), world.group)(batches, StepRates(0.1, 0.1))
    cut = [plan.micro_batch_size, plan.micro_batches, plan.bn_ranks, plan.loss_ranks]
    joined = {module.join for module in list_batch_norms(state.model)}
    return {"cut": cut, "joined": joined, "said": said, "weights": dict(state.model.named_parameters())}


def main() -> int:
    torch.set_num_threads(1)
    folder, evaluators, *holds = Path(sys.argv[1]), *map(int, sys.argv[2:])
    with open_distributed(read_launch(os.environ), device=torch.device("cpu"), collective_seconds=20) as world:
        roles, mine = assign_roles(world, evaluators), holds[world.rank]
        found = {f"{span} {group}": smaller(roles, mine, span, group) for span, group in ((1, 8), (4, 0))}
        torch.save(found, folder / f"{world.rank}.pt")
    return 0
