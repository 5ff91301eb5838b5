"""How many operations a training step sends to a device, and what in it would stop a graph: counted, not timed, on no device.

    python scripts/step_calls.py                       # this tree
    python scripts/step_calls.py resnet50 ssd          # of these recipes

Each recipe's own network and input size, two images, on torch's meta device: everything takes the form that it takes on an
accelerator, and nothing is computed. A call that only gives another view of memory is not counted; any other is about one kernel
(torch's operations on lists of tensors are a few). `host reads` are calls after which the host knows a value, for which it would
wait. `host numbers` are calls that hold a number of the host's which was another one in the step before: a graph would go on with
the old one.
It runs in older trees too: PYTHONPATH=THAT_TREE python scripts/step_calls.py
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import torch
import torchvision  # noqa: F401  # its kernels' shapes for the meta device
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from paceline.config import plan as planning
from paceline.config.plan import make_plan
from paceline.config.run import Controls, Run
from paceline.config.system import System
from paceline.ranks.launcher import read_launch
from paceline.ranks.world import open_world
from paceline.recipes import RECIPES
from paceline.tasks.workloads import WORKLOADS
from paceline.training.building import build_model, build_state
from paceline.training.step import TrainStep

IMAGES = 2
# Momentum SGD, LARS with its corrected momentum, an average of the weights, AdamW, and Mask R-CNN by both its publishers.
DEFAULT = ("resnet50", "resnet50-mlperf-3200", "ssd", "ssd-custom", "ssd-tiny", "maskrcnn", "maskrcnn-gluoncv")
SEEN_BY_THE_HOST = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
PHASES = ("forward", "backward", "update")


class Calls(TorchDispatchMode):
    """Inside, calls are counted by the phase that they are in, and kept with the numbers that they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.phase, self.counts, self.reads = "forward", Counter[str](), 0
        self.held: list[tuple[str, tuple]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._overloadpacket.__name__
        if name == "_record_function_enter_new":
            self.phase = args[0] if args[0] in PHASES else self.phase
        leaves = tree_flatten((args, kwargs))[0]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if name.startswith("_record_function") or (not tensors and not func.tags and "profiler" in str(func)):
            return func(*args, **(kwargs or {}))
        by_mask = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1]
        )
        self.reads += by_mask or (name != "index" and bool(SEEN_BY_THE_HOST & set(func.tags)))
        views = [of.alias_info is not None and not of.alias_info.is_write for of in func._schema.returns]
        if not any(views):
            self.counts[self.phase] += 1
            on_host = any(tensor.device.type == "cpu" for tensor in tensors)
            values = [float(tensor) for tensor in tensors if tensor.device.type == "cpu" and tensor.numel() == 1]
            numbers = tuple(leaf for leaf in leaves if isinstance(leaf, float | int | bool))
            self.held.append((name, (*numbers, *(values if on_host else ()))))
        if name.startswith("_fused_"):  # torch has no form of these without values; they return nothing
            return None
        return func(*args, **(kwargs or {}))


def step_of(name: str) -> tuple[Any, list[Any]]:
    """-> (a callable that takes 0-based step n and gives its Calls, facts for the table)."""
    recipe = replace(RECIPES[name](), global_batch=IMAGES, bn_span=IMAGES)
    workload, system = WORKLOADS[recipe.task], System(channels_last=False)
    plan = make_plan(recipe, system, world=1, most=IMAGES, train_images=1000, val_images=1)
    run = Run("calls", recipe, "cpu", system, plan, Controls())

    def build(_: torch.device) -> torch.nn.Module:
        with torch.device("meta"):
            network = workload.build(recipe, workload.classes)
        return network.to("meta")  # some constants are made on the CPU

    with open_world(read_launch({}), device=torch.device("cpu")) as world:
        state = build_state(build_model(cast(Any, SimpleNamespace(build=build)), run, world), run, world)
    if hasattr(state.optimiser, "fused"):
        state.optimiser.fused = True  # as on CUDA
    step = TrainStep(state, plan, system, torch.device("meta"))
    shape = workload.largest(recipe)
    batch = workload.made_up(recipe, IMAGES, shape, 64).to("meta")

    def take(number: int) -> Calls:
        lr, before, ema = 0.1 / (1 + number), 0.1 / max(1, number), (1 + number) / (10 + number)
        counted = Calls()
        if hasattr(planning, "Rates"):
            step.numbers.write(planning.Rates(lr, before, ema))  # before the step, outside of what a graph would hold
            with counted:
                step.run_step([batch])
        else:
            with counted:
                step([batch], lr=lr, previous_lr=before, ema=ema)  # type: ignore[call-arg]
        return counted

    return take, [name, f"{shape[0]} x {shape[1]}"]


def row(name: str) -> str:
    """A line of the table."""
    take, facts = step_of(name)
    take(0)  # makes what is kept for an input shape
    first, second = take(1), take(2)
    assert first.counts == second.counts, "two steps of one shape send the same calls"
    changed = sum(one != other for one, other in zip(first.held, second.held))
    cells = [*facts, *(f"{second.counts[phase]:,}" for phase in PHASES), f"{second.counts.total():,}"]
    return f"| {' | '.join(cells)} | {second.reads} | {changed} |"


if __name__ == "__main__":
    columns = ["recipe", "input", *PHASES, "all", "host reads", "host numbers"]
    print(f"| {' | '.join(columns)} |\n| --- | --- |{' --: |' * (len(columns) - 2)}")
    for recipe in sys.argv[1:] or DEFAULT:
        print(row(recipe), flush=True)
