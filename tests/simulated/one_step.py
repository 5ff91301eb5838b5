"""One training step of a recipe, counted on the simulated device: kernels, bytes, waits, memory, graph, collectives; JSON on stdout.

    device.run(["tests/simulated/one_step.py", RECIPE, IMAGES, ...])       scripts/simulated.py prints it for people

A modelled time is no measurement. It is the larger of bytes over the rate that elementwise kernels reach on an H200 and of arithmetic
over what convolutions reach, with a floor for each kernel; it serves to compare two forms of one step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import device
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import flop_registry

from paceline.config.plan import make_plan, step_rates
from paceline.config.recipes import RECIPES
from paceline.config.run import RunOptions, RunSpec
from paceline.config.system import System
from paceline.distributed.comm.launcher import read_launch
from paceline.distributed.comm.world import open_distributed
from paceline.distributed.device.setup import make_exact
from paceline.models.memory_estimate import estimate_recipe_memory
from paceline.models.registry import WORKLOADS
from paceline.training.factory import build_model, build_state
from paceline.training.step import TrainStep
from paceline.training.step_variants import choose_kernels

BYTES_A_SECOND, FLOP_A_SECOND, SECONDS_A_KERNEL = 4.0e12, 0.55e15, 2.2e-6
PHASES = ("forward", "backward", "update")
NORMS = {"native_batch_norm": 2, "cudnn_batch_norm": 2, "native_batch_norm_backward": 4, "cudnn_batch_norm_backward": 4}
# Our own: how often they read or write as much as all images beside each input and output once.
AGAIN = {"batch_norm_forward": 1, "batch_norm_backward": 2}


class Operations(TorchDispatchMode):
    """Inside, each operation's launches, bytes and arithmetic are added up by its phase and name."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = PHASES[0]
        # (phase, name): calls, launches, bytes, flop, modelled seconds
        self.rows: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0, 0, 0, 0.0])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func._overloadpacket
        name = packet.__name__
        if name == "_record_function_enter_new":
            self.phase = args[0] if args[0] in PHASES else self.phase
        before = device.library().simulated_launches()
        out = func(*args, **kwargs)
        launches = device.library().simulated_launches() - before
        if launches or name == "copy_":
            inputs = {id(x): x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor) and x.is_cuda}
            outputs = [x for x in tree_flatten(out)[0] if isinstance(x, Tensor) and x.is_cuda]
            moved = bytes_of(name, args, list(inputs.values()), outputs)
            flop = flop_registry[packet](*args, **kwargs, out_val=out) if packet in flop_registry else 0
            seconds = max(moved / BYTES_A_SECOND, flop / FLOP_A_SECOND, launches * SECONDS_A_KERNEL)
            row = self.rows[self.phase, name]
            for place, value in enumerate((1, launches, moved, flop, seconds)):
                row[place] += value
        return out


def bytes_of(name: str, args: Any, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """Read once and written once; BatchNorm reads twice, since its statistics come first, and both ways."""
    if name in NORMS:
        return NORMS[name] * size(args[0]) + size(outputs[0])
    written = sum(map(size, outputs))
    if name.startswith("_foreach") and name.endswith("_"):
        written = sum(map(size, args[0]))
    if name.startswith("_fused_"):
        written = sum(size(x) for group in (args[0], args[2]) for x in group)
    again = AGAIN[name] * size(inputs[0]) if name in AGAIN else 0
    return sum(map(size, inputs)) + written + again


def size(x: Tensor) -> int:
    return x.untyped_storage().nbytes() if 0 in x.stride() and x.numel() > 1 else x.numel() * x.element_size()


def build(options: argparse.Namespace, world: Any) -> tuple[Any, ...]:
    """-> recipe, system, plan, state, step, batches. Weights are whatever memory held: nothing depends on values."""
    recipe = replace(RECIPES[options.recipe](), global_batch_size=options.images * options.forwards * world.world)
    span = options.bn_batch_size or recipe.bn_batch_size
    recipe = replace(
        recipe, bn_batch_size=span if max(span, options.images) % min(span, options.images) == 0 else options.images
    )
    workload = WORKLOADS[recipe.task]
    system = System(
        "cuda",
        precision=options.precision,
        cuda_graph="on" if options.graph else "off",
        micro_batch_size=options.images,
        kernels=options.kernels,
    )
    plan = make_plan(recipe, system, world=world.world, most=options.images, train_images=100_000, val_images=1)
    run = RunSpec("simulated", recipe, "gpu", system, plan, RunOptions())
    make_exact(options.deterministic)
    choose_kernels(system)
    made = SimpleNamespace(build=lambda where: workload.network.build(recipe, workload.classes).to(where))
    state = build_state(build_model(made, run, world), run, world)
    step = TrainStep(state, plan, system, world.device)
    shape = workload.network.largest(recipe)
    batches = [
        workload.data().dummy_batch(recipe, options.images, shape, options.slots).to(world.device)
        for _ in range(plan.micro_batches)
    ]
    return recipe, system, plan, state, step, batches


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """What one step does once it has been taken before, on this rank."""
    launch = read_launch(os.environ)
    with open_distributed(launch, device=torch.device("cuda", launch.local_rank)) as world:
        recipe, system, plan, state, step, batches = build(options, world)
        warm_up = device.Watch()
        if options.graph:
            step.prepare(batches)
        for number in range(options.before):
            state.meters.add(step(batches, step_rates(recipe, plan, number)), number)
        torch.cuda.synchronize()
        found: dict[str, Any] = {
            "graphs": [what for what in warm_up.counts if what.startswith("graph of")],
            "broken rules": warm_up.broken_rules(),
            "groups of BatchNorm": plan.bn_groups,
        }
        torch.cuda.reset_peak_memory_stats()
        taken = torch.cuda.memory_stats()["allocation.all.allocated"]
        watch = device.Watch()
        state.meters.add(step(batches, step_rates(recipe, plan, options.before)), options.before)
        stats = torch.cuda.memory_stats()
        found |= {
            "kernels": watch.launches,
            "by kernel": short(watch.kernels),
            "counts": watch.counts,
            "waits": watch.waits(),
            "broken rules": found["broken rules"] + watch.broken_rules(),
            "blocks taken": stats["allocation.all.allocated"] - taken,
            "peak": stats["allocated_bytes.all.peak"],
        }
        watch.close()
        found["estimated"] = estimate_recipe_memory(WORKLOADS[recipe.task], recipe, system).total(options.images)
        if options.operations:
            operations = Operations()
            with operations:
                step.run_step(batches)
            found["operations"] = [[*key, *row] for key, row in operations.rows.items()]
    return found


def short(kernels: dict[str, int]) -> dict[str, int]:
    """By names that fit a line: a template's own, and what it was made for."""
    names, added = device.readable(kernels), defaultdict(int)
    for name, launches in kernels.items():
        added[brief(names[name])] += launches
    return dict(sorted(added.items(), key=lambda row: -row[1]))


def brief(name: str) -> str:
    if name.startswith(("cudnn", "cublas", "nccl", "compiled")):
        return name
    words = [
        word.rpartition("::")[2]
        for word in name.replace("(anonymous namespace)", "").replace("<", " ").replace(",", " ").split()
    ]
    telling = [word for word in words[1:] if any(part in word.lower() for part in ("functor", "kernel", "op"))]
    return " ".join(dict.fromkeys([words[1] if words[0] == "void" and len(words) > 1 else words[0], *telling[:2]]))


def parser() -> argparse.ArgumentParser:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("recipe", choices=RECIPES)
    words.add_argument("images", type=int, help="of one forward")
    words.add_argument("--precision", default="bf16", choices=("fp32", "bf16", "fp16"))
    words.add_argument("--graph", action="store_true", help="a captured step, replayed")
    words.add_argument("--deterministic", action="store_true")
    words.add_argument("--kernels", default="torch", choices=("torch", "triton"))
    words.add_argument("--before", type=int, default=2, help="steps that are taken before the counted one")
    words.add_argument("--forwards", type=int, default=1, help="of a step")
    words.add_argument("--slots", type=int, default=64, help="of objects in an image")
    words.add_argument("--bn-batch-size", type=int, default=0, help="images that share statistics; 0: as the recipe has it")
    words.add_argument(
        "--operations", action="store_true", help="bytes, arithmetic and modelled time of each operation too"
    )
    return words


if __name__ == "__main__":
    found = measure(parser().parse_args())
    if os.environ.get("RANK", "0") == "0":
        json.dump(found, sys.stdout)
