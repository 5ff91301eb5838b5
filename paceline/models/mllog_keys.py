"""A run under MLPerf's keys, in the order of the compliance checker and published logs; and SSD's names of tensors.

What a workload's rules require beyond this is in the methods of its `Reporting`: `log_facts`, `log_accuracy`, `log_tensors`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from paceline.config.recipe import Optim
from paceline.config.run import RunSpec


def base_log_entries(run: RunSpec) -> dict[str, Any]:
    """Keys that every benchmark's rules require: seed and batch."""
    return {
        "seed": run.recipe.seed,
        "global_batch_size": run.plan.global_batch_size,
        "gradient_accumulation_steps": run.plan.micro_batches,
    }


def resnet_log_entries(run: RunSpec) -> dict[str, Any]:
    """All keys between init_start and init_stop by ResNet's rules: batch, seed, optimizer and schedule."""
    recipe, plan, schedule = run.recipe, run.plan, run.recipe.schedule
    return {
        **base_log_entries(run),
        "model_bn_span": plan.bn_batch_size,
        **optimizer_log_entries(
            recipe.optim,
            min_lr=schedule.min_lr,
            poly_power=2 if schedule.name == "polynomial" else None,
            decay_epochs=steps_to_epochs(plan.decay_end_step, run),
            warmup_epochs=steps_to_epochs(plan.warmup_steps, run),
            boundary_epochs=[steps_to_epochs(boundary, run) for boundary in plan.milestones],
        ),
    }


def optimizer_log_entries(
    optim: Optim,
    *,
    min_lr: float,
    poly_power: float | None,
    decay_epochs: float,
    warmup_epochs: float,
    boundary_epochs: Sequence[float] = (),
) -> dict[str, Any]:
    """An optimizer and its schedule under MLPerf's keys.

    poly_power       None where the decay is no polynomial: then that line, which the closed rules require, is missing
    decay_epochs     length of the decay in epochs, under a key called decay_steps: what NVIDIA's v3.0 submissions log there
    boundary_epochs  where a step schedule drops
    """
    prefix = f"{optim.name}_opt"
    facts: dict[str, Any] = {}
    if poly_power is not None:
        facts[f"{prefix}_learning_rate_decay_poly_power"] = poly_power
    facts[f"{prefix}_end_learning_rate"] = min_lr
    facts["opt_name"] = optim.name
    if optim.name == "lars":
        facts["lars_epsilon"] = optim.lars_eps
    facts[f"{prefix}_weight_decay"] = optim.weight_decay
    facts[f"{prefix}_momentum"] = optim.momentum
    facts[f"{prefix}_base_learning_rate"] = optim.lr
    # The rules name the warm-up of plain SGD without its optimizer.
    warmup_prefix = "lars_opt" if optim.name == "lars" else "opt"
    facts[f"{warmup_prefix}_learning_rate_warmup_epochs"] = warmup_epochs
    facts[f"{prefix}_learning_rate_decay_steps"] = decay_epochs
    if boundary_epochs:
        facts["opt_learning_rate_decay_boundary_epochs"] = list(boundary_epochs)
    return facts


def steps_to_epochs(steps: float, run: RunSpec) -> float:
    """Steps in epochs: three decimals, and none for a whole number, as in published logs."""
    return round_to_int(steps / run.plan.steps_per_epoch)


def round_to_int(number: float) -> float:
    """Three decimals, and an int for a whole number."""
    rounded = round(number, 3)
    return int(rounded) if rounded == int(rounded) else rounded


# Patterns of our parameters' names, which for the trunk are torchvision's.
STEM = re.compile(r"(?:conv|bn)1")
BLOCK = re.compile(r"layer(?P<stage>[1-3])\.(?P<unit>\d+)\.(?P<part>conv[12]|bn[12]|downsample\.[01])")
EXTRA = re.compile(r"extras\.(?P<level>[0-4])\.(?P<part>reduce|conv)")
HEAD = re.compile(r"heads\.(?P<level>[0-5])\.(?:fused|conf|loc)")


def ssd_tensor_names(parameters: Sequence[str]) -> list[str]:
    """The names that SSD's rules require, those of the MXNet submission's graph; a parameter that it lacks keeps its own.

    Gluon counts the convolutions of a stage from 0, a first unit's shortcut after its own two. Class and box convolutions of a
    level are one tensor there, which is named once for both of ours.
    """
    stages = {match["stage"] for name in parameters if (match := BLOCK.search(name)) and "downsample" in match["part"]}
    return list(dict.fromkeys(_theirs(name, stages) for name in parameters))


def _theirs(name: str, with_shortcut: set[str]) -> str:
    owner, _, last = name.removeprefix("network.").removeprefix("trunk.").rpartition(".")
    if STEM.fullmatch(owner):
        return f"ssd0_resnetmlperf0_{_layer(owner, 0, last)}"
    if block := BLOCK.fullmatch(owner):
        unit, part = int(block["unit"]), block["part"]
        count = 2 * unit + (2 if "downsample" in part else int(part[-1]) - 1)
        if block["stage"] in with_shortcut and unit:
            count += 1
        kind = {"downsample.0": "conv", "downsample.1": "bn"}.get(part, part)
        return f"ssd0_resnetmlperf0_stage{block['stage']}_{_layer(kind, count, last)}"
    if extra := EXTRA.fullmatch(owner):
        return f"ssd0_expand_{'trans_' if extra['part'] == 'reduce' else ''}conv{extra['level']}_{last}"
    if head := HEAD.fullmatch(owner):
        return f"ssd0_convpredictor{head['level']}_conv0_{last}"
    return name


def _layer(kind: str, count: int, last: str) -> str:
    """conv or batchnorm by its number, and its tensor's name in MXNet."""
    if kind.startswith("conv"):
        return f"conv{count}_{last}"
    return f"batchnorm{count}_{'gamma' if last == 'weight' else 'beta'}"
