"""A run under MLPerf's keys, in the order that the compliance checker and published logs have.

What a workload's rules want beyond this is in its own file: mlperf_detection.py for SSD and Mask R-CNN; a workload of one's own
has methods of its own for it (`Workload.log_facts`, `log_accuracy`, `log_tensors`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.config.recipe import OptimiserKind
from paceline.config.run import Run


def base_facts(run: Run) -> dict[str, Any]:
    """What every benchmark's rules want: seed and batch."""
    return {
        "seed": run.recipe.seed,
        "global_batch_size": run.plan.global_batch,
        "gradient_accumulation_steps": run.plan.forwards,
    }


def mllog_facts(run: Run) -> dict[str, Any]:
    """Everything between init_start and init_stop, as ResNet's rules name it: batch, seed, optimiser and schedule."""
    recipe, plan = run.recipe, run.plan
    optim, schedule = recipe.optim, recipe.schedule
    return {
        **base_facts(run),
        "model_bn_span": plan.bn_span,
        **optimiser_facts(
            optim.kind,
            base_lr=optim.lr,
            end_lr=schedule.end_lr,
            poly_power=2 if schedule.kind == "poly2" else None,
            decay_epochs=in_epochs(plan.schedule_steps, run),
            warmup_epochs=in_epochs(plan.warmup_steps, run),
            momentum=optim.momentum,
            weight_decay=optim.weight_decay,
            lars_epsilon=optim.lars_eps,
            boundary_epochs=[in_epochs(boundary, run) for boundary in plan.boundaries],
        ),
    }


def optimiser_facts(
    kind: OptimiserKind,
    *,
    base_lr: float,
    end_lr: float,
    poly_power: float | None,
    decay_epochs: float,
    warmup_epochs: float,
    momentum: float,
    weight_decay: float,
    lars_epsilon: float = 0.0,
    boundary_epochs: Sequence[float] = (),
) -> dict[str, Any]:
    """An optimiser and its schedule under MLPerf's keys.

    base_lr          peak, for the whole global batch
    poly_power       None where the decay is no polynomial: no such line is written, and the closed rules want one
    decay_epochs     length of the decay in epochs, under a key called decay_steps: what NVIDIA's v3.0 submissions log there
    lars_epsilon     only LARS has it
    boundary_epochs  where a step schedule drops
    """
    prefix = f"{kind}_opt"
    facts: dict[str, Any] = {}
    if poly_power is not None:
        facts[f"{prefix}_learning_rate_decay_poly_power"] = poly_power
    facts[f"{prefix}_end_learning_rate"] = end_lr
    facts["opt_name"] = kind
    if kind == "lars":
        facts["lars_epsilon"] = lars_epsilon
    facts[f"{prefix}_weight_decay"] = weight_decay
    facts[f"{prefix}_momentum"] = momentum
    facts[f"{prefix}_base_learning_rate"] = base_lr
    # The rules name the warm-up of plain SGD without its optimiser.
    warmup_prefix = "lars_opt" if kind == "lars" else "opt"
    facts[f"{warmup_prefix}_learning_rate_warmup_epochs"] = warmup_epochs
    facts[f"{prefix}_learning_rate_decay_steps"] = decay_epochs
    if boundary_epochs:
        facts["opt_learning_rate_decay_boundary_epochs"] = list(boundary_epochs)
    return facts


def in_epochs(steps: float, run: Run) -> float:
    """Steps in epochs: three decimals, and none where it is a whole number, as published logs have it."""
    return whole(steps / run.plan.steps_per_epoch)


def whole(number: float) -> float:
    """Three decimals, and an int where it is a whole number."""
    rounded = round(number, 3)
    return int(rounded) if rounded == int(rounded) else rounded
