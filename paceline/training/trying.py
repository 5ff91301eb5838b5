"""Does a step of the plan fit into memory? On an accelerator one is tried before anything is written down, and the next smaller
cut of the batch is taken where it does not.

The memory estimate counts what a network keeps; what kernels, libraries and the allocator take beside it shows in the doing.
Each rank takes a step alone, without any exchange and without compiling or capturing it, and throws it away: a rank that runs
out of memory leaves no other waiting. Then all agree, and go on with forwards that fit into every rank's memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from paceline.accelerators import release
from paceline.config.errors import RecipeError, Shortage
from paceline.config.plan import Plan
from paceline.config.run import Run
from paceline.machine.shortage import in_images, lacks_memory, shortage, smaller_cut
from paceline.models.batch_norm import batch_norms
from paceline.ranks.exchange import smallest
from paceline.ranks.roles import Roles
from paceline.tasks.task import Task
from paceline.training.building import cut_model
from paceline.training.state import State
from paceline.training.step import TrainStep


def worth_trying(device: torch.device) -> bool:
    """Whether a step is tried before a run: a CPU's memory is the machine's, and what is short there shows in other ways."""
    return device.type != "cpu"


def run_that_fits(
    run: Run, task: Task, state: State, roles: Roles, device: torch.device, say: Callable[[str], None]
) -> Run:
    """The run with the largest cut of its batch, not above its plan's, of which a step fits into every rank's memory.

    state  its model is cut anew where the plan changes; nothing else of it does
    All ranks call it, those that only evaluate too. Raises Shortage on each rank that is short where no smaller cut keeps
    `bn_span` and `loss_group`; other ranks wait there, and are ended with it.
    """
    while True:
        short = None if roles.evaluates else shortage_alone(run, task, state, device)
        if smallest(roles.everyone, int(short is None)):
            return run
        smaller = _next_smaller(run, task)
        if smaller is None:
            if short is not None:
                raise short
            roles.everyone.barrier()
            raise AssertionError("a rank that is short of memory ends all of them")
        say(
            f"not enough memory for forwards of {in_images(run.plan.images_per_forward)}: {smaller.images_per_forward} at a time, in "
            f"{smaller.forwards} forwards a step (the result is the same)"
        )
        # So written down, a resumed run begins with this cut.
        system = replace(run.system, images_per_forward=smaller.images_per_forward)
        run = replace(run, plan=smaller, system=system)
        cut_model(state.model, smaller, roles.peers, trains=not roles.evaluates)


def shortage_alone(run: Run, task: Task, state: State, device: torch.device) -> Shortage | None:
    """What to say where this rank has too little memory for a step of the run's largest shape; None where it has enough.

    Nothing is exchanged; weights, statistics and gradients are as before.
    """
    alone = replace(run.plan, world=1, bn_join=1, loss_join=1)
    step_once = TrainStep(state, alone, replace(run.system, compile=False, graph=False), device)
    short = None
    _let_go(device)  # of a run that measured its speed and is thrown away
    with _alone(state.model):
        try:
            step_once.discard(task.warm_up_step(run.plan, device))
        except Exception as error:
            if not lacks_memory(error):
                raise
            short = shortage(error, run)  # its words alone: the error holds the tensors of the step
    _let_go(device)
    return short


def _let_go(device: torch.device) -> None:
    """Free cached memory, and reset the peak: that of a step which did not fit is not the run's."""
    gc.collect()
    release(device)


@contextmanager
def _alone(model: nn.Module) -> Iterator[None]:
    """Statistics are of this rank's images alone inside: they keep as much memory, and no other rank is asked."""
    joined = [(module, module.join, module.join_group) for module in batch_norms(model)]
    for module, _, _ in joined:
        module.join, module.join_group = 1, None
    try:
        yield
    finally:
        for module, join, group in joined:
            module.join, module.join_group = join, group


def _next_smaller(run: Run, task: Task) -> Plan | None:
    smaller = smaller_cut(run, run.plan.images_per_forward - 1)
    if smaller is None:
        return None
    try:
        task.workload.check_plan(run.recipe, smaller)
    except RecipeError:
        return None
    return smaller
