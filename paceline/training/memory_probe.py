"""Steps that are thrown away: to find forwards that fit into memory, to measure the speed, and to warm up before the clock starts.

Memory: the estimate counts what a network keeps; what kernels, libraries and the allocator take beside it shows in a real step. On
an accelerator each rank takes one alone, without any exchange, compiling or capturing: a rank that runs out of memory leaves no
other waiting. Then all agree, and continue with forwards that fit into every rank's memory.
Warm-up: where a step's first input of a new shape is compiled, captured or searched for, each shape of the run gets its own step,
the largest first, so that the most memory is allocated at once. Elsewhere one step does, where it has a use: it connects ranks,
settles the order in which data parallel adds gradients, and shows how much memory the run's largest shape takes.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from paceline._utils.errors import RecipeError, ResourceError
from paceline._utils.reporter import Reporter
from paceline._utils.text import format_count
from paceline.config.plan import BatchPlan, evaluation_batch, step_rates
from paceline.config.run import RunSpec, parse_time_budget
from paceline.config.run_length import Cadence
from paceline.distributed.comm.roles import RankRoles
from paceline.distributed.comm.world import DistContext, all_min
from paceline.distributed.device.accelerators import empty_cache, get_peak_memory, synchronize
from paceline.distributed.device.compiler import count_compilations, set_recompile_limit
from paceline.distributed.device.host_memory import explain_shortage, is_out_of_memory, plan_smaller_forwards
from paceline.models.datamodule import is_shape_costly
from paceline.models.layers.batch_norm import list_batch_norms
from paceline.models.memory_estimate import MemoryEstimate
from paceline.models.task import InputRank, Task
from paceline.training.evaluate import run_inference
from paceline.training.factory import configure_splitting
from paceline.training.logging.event_logger import EventLogger
from paceline.training.logging.events import WarmUpEvent
from paceline.training.logging.monitors import TrainTimer
from paceline.training.state import State
from paceline.training.step import TrainStep

# Measured are the steps after the first one, for so many seconds or steps, and at most this share of the time budget.
TRY_SECONDS, TRY_STEPS, TRY_SHARE = 10.0, 50, 0.05
# An evaluation is measured by its inference, on a model that detects hardly anything yet. With the detections of a trained one,
# and with its scoring, which takes the processor from the steps beside it, it takes about twice as long (ssd-demo on 67 photos:
# 0.8 s measured, 1.7 to 2.6 s later).
LATER_EVALUATION = 2.0


def can_probe_memory(device: torch.device) -> bool:
    """Whether a step is tried before a run: a CPU's memory is the machine's, and a shortage shows there in other ways."""
    return device.type != "cpu"


def find_fitting_run(run: RunSpec, task: Task, state: State, roles: RankRoles, reporter: Reporter) -> RunSpec:
    """The run with the largest cut of its batch, not above its plan's, of which a step fits into every rank's memory.

    state  its model is cut anew where the plan changes; nothing else of it changes
    All ranks call it, those that only evaluate too. Raises ResourceError on each rank that is short where no smaller cut keeps
    `bn_batch_size` and `loss_normalizer_images`; other ranks wait there, and are ended with it.
    """
    device = roles.everyone.device
    while True:
        short = None if roles.evaluates else catch_shortage(run, task, state, device)
        if all_min(roles.everyone, int(short is None)):
            return run
        smaller = _next_smaller(run, task)
        if smaller is None:
            if short is not None:
                raise short
            roles.everyone.barrier()
            raise AssertionError("a rank that is short of memory ends all of them")
        reporter.line(
            f"not enough memory for micro-batches of {format_count(run.plan.micro_batch_size, 'image')}; using "
            f"{smaller.micro_batches} micro-batches of {format_count(smaller.micro_batch_size, 'image')} per step (same result)"
        )
        # Written down so, a resumed run begins with this cut.
        system = replace(run.system, micro_batch_size=smaller.micro_batch_size)
        run = replace(run, plan=smaller, system=system)
        configure_splitting(state.model, smaller, roles.peers, trains=not roles.evaluates)


def catch_shortage(run: RunSpec, task: Task, state: State, device: torch.device) -> ResourceError | None:
    """The error if this rank has too little memory for a step of the run's largest shape; None if it has enough.

    Nothing is exchanged; weights, statistics and gradients are as before. A step that the run captures is captured here, too: a
    capture cannot free cached memory, so it may need more than the same step without one.
    """
    alone = replace(run.plan, world_size=1, bn_ranks=1, loss_ranks=1)
    short = None
    _free_memory(device)  # of a run that measured its speed and is thrown away
    with (
        _own_statistics(state.model),
        closing(TrainStep(state, alone, replace(run.system, compile="off"), device)) as step_once,
    ):
        try:
            step_once.warm_up(task.data.warm_up_step(run.plan, device))
            step_once.prepare(task.data.warm_up_step(run.plan, device))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            short = explain_shortage(error, run)  # its text alone: the error holds the tensors of the step
    del step_once
    _free_memory(device)
    return short


def _free_memory(device: torch.device) -> None:
    """Free cached memory, and reset the peak: that of a step which did not fit is not the run's."""
    gc.collect()
    empty_cache(device)


@contextmanager
def _own_statistics(model: nn.Module) -> Iterator[None]:
    """Inside, statistics are of this rank's images alone: they keep as much memory, and need no other rank."""
    joined = [(module, module.join, module.join_group) for module in list_batch_norms(model)]
    for module, _, _ in joined:
        module.join, module.join_group = 1, None
    try:
        yield
    finally:
        for module, join, group in joined:
            module.join, module.join_group = join, group


def _next_smaller(run: RunSpec, task: Task) -> BatchPlan | None:
    smaller = plan_smaller_forwards(run, run.plan.micro_batch_size - 1)
    if smaller is None:
        return None
    try:
        task.workload.network.check_plan(run.recipe, smaller)
    except RecipeError:
        return None
    return smaller


@dataclass(frozen=True)
class Throughput:
    """Seconds that the parts of a run take."""

    step: float  # one optimizer step
    evaluation: float  # one evaluation
    first_step: float  # the first step, which compiles and allocates


def measure_throughput(run: RunSpec, state: State, task: Task, rank_info: InputRank, world: DistContext) -> Throughput:
    """Measure steps and part of an evaluation on `state`, which is of no use afterwards. Every rank that trains calls it.

    Where other ranks only evaluate, their share is measured: it counts in full, though training may continue beside it.
    """
    plan, recipe = run.plan, run.recipe
    most_seconds = min(TRY_SECONDS, TRY_SHARE * parse_time_budget(run.options.max_time))
    kind = rank_info.device.type
    devices = [] if kind == "cpu" else [rank_info.device.index or 0]
    forked = torch.random.fork_rng(devices, device_type="cuda" if kind == "cpu" else kind)
    with forked, ExitStack() as open_things:
        one = run.options.overfit_one_batch
        loader = open_things.enter_context(task.data.train_loader(plan, run.system, rank_info, first=0, one_batch=one))
        step_once = TrainStep(state, plan, run.system, rank_info.device, world.group)
        open_things.callback(step_once.close)
        began = time.monotonic()
        first, steps, losses = 0.0, 0, {}
        for step, batches in loader:
            losses = step_once(batches, step_rates(recipe, plan, step))
            if step == 0:
                losses["loss"].item()  # waits for the device
                first, began = time.monotonic() - began, time.monotonic()
                continue
            steps += 1
            enough = time.monotonic() - began >= most_seconds or steps >= TRY_STEPS
            if all_min(world, int(not enough)) == 0:
                break
        losses["loss"].item()  # every plan has a step
        each = (time.monotonic() - began) / steps if steps else first
    return Throughput(each, _evaluation_seconds(run, state, task, rank_info, most_seconds), first)


def _evaluation_seconds(run: RunSpec, state: State, task: Task, rank_info: InputRank, most_seconds: float) -> float:
    """Seconds that one evaluation will take, from this rank's inference of all its images, or of those of `most_seconds`."""
    plan = run.plan
    batch = evaluation_batch(plan.micro_batch_size, plan.val_images, plan.evaluators)
    seen: list[int] = []
    began = time.monotonic()
    enough = lambda: time.monotonic() - began >= most_seconds  # noqa: E731
    run_inference(state.model, task, batch=batch, system=run.system, rank_info=rank_info, passed=seen.append, stop=enough)
    mine = math.ceil(plan.val_images / plan.evaluators)
    return LATER_EVALUATION * (time.monotonic() - began) * mine / max(1, sum(seen))


def warm_up(
    run: RunSpec,
    task: Task,
    world: DistContext,
    step: int,
    step_once: TrainStep,
    due: Cadence,
    recorder: EventLogger,
    clock: TrainTimer,
) -> None:
    """Take the run's discarded steps before its `step`, and record the warm-up where there is one for each shape.

    All ranks that train call it.
    """
    device = world.device
    if step >= due.last_step:
        return
    if not is_shape_costly(run.system, device):
        if run.plan.world_size > 1 or task.data.shapes.vary:
            step_once.discard(task.data.warm_up_step(run.plan, device), update=False)
        return
    began, compiled = time.monotonic(), count_compilations()
    shapes = task.data.input_shapes(run.plan)
    if run.system.compile == "on":
        set_recompile_limit(len(shapes))
    steps = [partial(task.data.warm_up_step, run.plan, device, shape) for shape in shapes]
    for number, made_up in enumerate(steps, start=1):
        recorder.doing(f"warming up shape {number} of {len(shapes)}")
        step_once.warm_up(made_up())
    # A captured step keeps its memory, so none is captured before all are warmed up.
    for number, made_up in enumerate(steps if run.system.cuda_graph == "on" else (), start=1):
        recorder.doing(f"capturing shape {number} of {len(shapes)}")
        step_once.prepare(made_up())
    synchronize(device)
    event = WarmUpEvent(
        shapes=len(shapes),
        warm_up_seconds=time.monotonic() - began,
        compilations=count_compilations() - compiled,
        captures=step_once.captures,
        micro_batch_size=run.plan.micro_batch_size,
        memory_estimate=MemoryEstimate(**run.provenance["memory_estimate"]).total(run.plan.micro_batch_size),
        # Of a CPU only the process's peak is known, and a step is a part of it.
        peak_memory=-all_min(world, -get_peak_memory(device)) if device.type != "cpu" else None,
    )
    recorder.record(step, clock.seconds(), event)
