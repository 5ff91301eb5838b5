"""One rank of test_replayed_ranks.py: `steps FOLDER` trains every case twice on this rank's part, sent and replayed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from small_steps import batch_of, plan_of, small, state_of
from tape import Recorder

from paceline.config.plan import step_rates
from paceline.config.system import System
from paceline.distributed.comm.launcher import read_launch
from paceline.distributed.comm.world import DistContext, open_distributed
from paceline.models.ops import dispatch
from paceline.training.optim.step_scalars import StepScalars
from paceline.training.step import TrainStep

CPU, STEPS = torch.device("cpu"), 6
# Statistics joined over ranks, positives and loss groups counted over them, gradients added up over forwards.
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "joined": ("classification", {"bn_batch_size": 4, "ema_decay": 0.9}, 2),
    "two forwards": ("classification", {"global_batch_size": 8}, 2),
    "positives": ("detection", {"model.loss_normalizer": "batch"}, 2),
    "loss groups": ("instance-segmentation", {}, 2),
}


def trained(world: DistContext, case: str, capture: Recorder | None) -> dict[str, Any]:
    """Losses of the steps, and the weights after them."""
    task, changes, most = CASES[case]
    recipe, system = small(task, changes), System(micro_batch_size=most)
    plan = plan_of(recipe, system, steps=STEPS, world=world.world)
    state = state_of(recipe, plan, system, CPU, world=world)
    numbers = StepScalars(recipe.optim, CPU, tensors=True)
    take = TrainStep(state, plan, system, CPU, world.group, numbers=numbers, capture=capture)
    losses = []
    for step in range(-1, STEPS):
        seeds = [1000 * step + 10 * world.rank + forward for forward in range(plan.micro_batches)]
        batches = [batch_of(recipe, plan.micro_batch_size, abs(seed)) for seed in seeds]
        if step < 0:
            take.warm_up(batches)  # settles data parallel's buckets
            take.prepare(batches)
            continue
        losses.append(float(take(batches, step_rates(recipe, plan, step))["loss"]))
    return {"losses": losses, "weights": {name: tensor.clone() for name, tensor in state.model.state_dict().items()}}


def main() -> int:
    torch.set_num_threads(1)
    with dispatch.static_shapes(), open_distributed(read_launch(os.environ), device=CPU, collective_seconds=60) as world:
        found = {}
        for case in CASES:
            recorder = Recorder()
            found[case] = {"sent": trained(world, case, None), "replayed": trained(world, case, recorder)}
            exchanges = {str(func) for tape in recorder.tapes for func, *_ in tape.calls if func.namespace == "c10d"}
            found[case] |= {"played": recorder.played, "exchanges": sorted(exchanges)}
        torch.save(found, Path(sys.argv[2]) / f"{world.rank}.pt")
    return 0
