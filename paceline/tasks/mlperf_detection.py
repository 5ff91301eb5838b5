"""SSD and Mask R-CNN under MLPerf's keys: rules 1.1.0 of ssd, 3.1.0 of maskrcnn.

Sources: mlperf_logging/compliance_checker/training_1.1.0/closed_ssd.yaml and training_3.1.0/closed_maskrcnn.yaml; values as the
v0.7 SSD submissions (Dell, NVIDIA) and the v3.0 Mask R-CNN submissions (NVIDIA) log them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from paceline.config.run import Run
from paceline.tasks.mlperf import base_facts, in_epochs, whole

# A warm-up that starts below this share of the rate starts at 0 in all but rounding: the published ones start at 0, 0.0025, or at
# 0.03 and 1/3.
AT_REST = 0.01


def ssd_facts(run: Run) -> dict[str, Any]:
    """Everything between init_start and init_stop, as SSD's rules name it. max_samples: proposals for one drawn crop."""
    recipe, plan = run.recipe, run.plan
    facts = {
        **base_facts(run),
        "model_bn_span": plan.bn_span,
        "max_samples": recipe.input.crop_attempts,
        "opt_name": recipe.optim.kind,
        "opt_base_learning_rate": recipe.optim.lr,
        "opt_weight_decay": recipe.optim.weight_decay,
        "opt_learning_rate_warmup_factor": recipe.schedule.warmup_from,
        "opt_learning_rate_warmup_steps": whole(plan.warmup_steps),
    }
    if plan.boundaries:
        facts["opt_learning_rate_decay_boundary_epochs"] = [in_epochs(boundary, run) for boundary in plan.boundaries]
    return facts


def maskrcnn_facts(run: Run) -> dict[str, Any]:
    """Everything between init_start and init_stop, as Mask R-CNN's rules name it.

    num_image_candidates is what a device keeps of its images' proposals, as the submissions log it: of all images of a loss group
    where these share one limit, else of each image. opt_learning_rate_warmup_factor has two meanings in published logs: the
    reference's, the fraction of the rate that the warm-up starts at; and NVIDIA's, whose warm-ups start at about 0 and whose rules
    want a number above it: what the rate grows by in a step.
    """
    recipe, plan = run.recipe, run.plan
    optim, schedule, rpn = recipe.optim, recipe.schedule, recipe.model.rpn
    shared = rpn.post_of == "batch"
    factor = schedule.warmup_from
    if factor < AT_REST:
        factor = optim.lr * (1 - factor) / plan.warmup_steps if plan.warmup_steps else 1.0
    facts = {
        **base_facts(run),
        "num_image_candidates": rpn.post_group or rpn.post_train * (max(1, recipe.model.loss_group) if shared else 1),
        "opt_name": "sgd_with_momentum" if optim.kind == "sgd" else optim.kind,
        "opt_base_learning_rate": optim.lr,
        "opt_weight_decay": optim.weight_decay,
        "opt_learning_rate_warmup_steps": whole(plan.warmup_steps),
        "opt_learning_rate_warmup_factor": factor,
        "min_image_size": min(recipe.input.short),
        "max_image_size": recipe.input.long,
    }
    if plan.boundaries:
        facts["opt_learning_rate_decay_factor"] = schedule.factor
        facts["opt_learning_rate_decay_steps"] = [whole(boundary) for boundary in plan.boundaries]
    return facts


# Of our parameters' names, which torchvision's are for the trunk.
STEM = re.compile(r"(?:conv|bn)1")
BLOCK = re.compile(r"layer(?P<stage>[1-3])\.(?P<unit>\d+)\.(?P<part>conv[12]|bn[12]|downsample\.[01])")
EXTRA = re.compile(r"extras\.(?P<level>[0-4])\.(?P<part>reduce|conv)")
HEAD = re.compile(r"heads\.(?P<level>[0-5])\.(?:fused|conf|loc)")


def ssd_tensor_names(parameters: Sequence[str]) -> list[str]:
    """The names that SSD's rules ask for, those of the MXNet submission's graph; a parameter that it has not keeps its own.

    Gluon counts the convolutions of a stage from 0, a first unit's shortcut after its own two. Class and box convolutions of a
    level are one tensor there: both of ours stand for it, and it is named once.
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
