"""A run under MLPerf's keys, in the order that the compliance checker and published logs have."""

from __future__ import annotations

from typing import Any

from paceline.config.run import Run
from paceline.log.mllog import optimiser_facts


def mllog_facts(run: Run) -> dict[str, Any]:
    """Everything between init_start and init_stop: batch, seed, optimiser and schedule."""
    recipe, plan = run.recipe, run.plan
    optim, schedule = recipe.optim, recipe.schedule
    poly = schedule.kind == "poly2"
    in_epochs = 1 / plan.steps_per_epoch
    return {
        "seed": recipe.seed,
        "model_bn_span": plan.bn_span,
        "global_batch_size": plan.global_batch,
        "gradient_accumulation_steps": plan.forwards,
        **optimiser_facts(
            optim.kind,
            base_lr=optim.lr,
            end_lr=schedule.end_lr,
            poly_power=2 if poly else None,
            decay_steps=round(plan.schedule_steps),
            warmup_epochs=_whole(plan.warmup_steps * in_epochs),
            momentum=optim.momentum,
            weight_decay=optim.weight_decay,
            lars_epsilon=optim.lars_eps,
            boundary_epochs=[_whole(boundary * in_epochs) for boundary in plan.boundaries],
        ),
    }


def _whole(epochs: float) -> float:
    """Three decimals, and none where it is a whole number, as published logs have it."""
    rounded = round(epochs, 3)
    return int(rounded) if rounded == int(rounded) else rounded
