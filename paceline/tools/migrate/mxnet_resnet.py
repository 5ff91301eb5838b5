"""ResNet-50 in MXNet, MLPerf v3.0: `train_imagenet.py` of NVIDIA's submission and its partners'.

Source: github.com/mlcommons/training_results_v3.0, NVIDIA/benchmarks/resnet/implementations/mxnet (train_imagenet.py, common/fit.py,
common/dali.py, run_and_time.sh, run.sub, config_DGXH100*.sh) and ASUSTeK/benchmarks/resnet/implementations/mxnet (config_DGXA100*.sh).
The usual call passes run_and_time.sh's own defaults on, not the program's; what it passes besides is the program's own default, but for
the pooling's layout.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

from paceline._utils.errors import PacelineError
from paceline.config.recipe import Recipe, with_fields
from paceline.config.recipes.resnet50 import lars
from paceline.config.resnet import Depth
from paceline.tools.migrate.table import Formulas, TrainingCall, TrainingSize, read_system

LARS = ("sgdwlars", "sgdwfastlars", "sgdwfastlarsv2")


def settle(call: TrainingCall) -> TrainingCall:
    """What run_and_time.sh decides by variables: timing and profiling end after 4 epochs; data are read only with --use-dali."""
    overrides, more = dict(call.given), call.more
    if any(_above_zero(call, name) for name in ("NVTX_FLAG", "TIME_TAGS")):
        overrides |= {"--num-epochs": 4, "--warmup-epochs": 2}
    if "--use-dali" not in overrides:
        overrides["without --use-dali"] = True
    elif _above_zero(call, "SYNTH_DATA"):
        more = (*more, "--synthetic")
    gpus = len((call["--gpus"] or "").split(","))
    if gpus > 1 and not call.start and call.devices == 1 and call["--kv-store"] != "horovod":
        call = replace(call, per_node=gpus)  # one process cuts its batch over its devices
        overrides["--batch-size"] = call["--batch-size"] // gpus
    if _above_zero(call, "DISABLE_CG"):
        overrides.pop("--e2e-cuda-graphs", None)
    return replace(call, given=overrides, more=more)


def _above_zero(call: TrainingCall, name: str) -> bool:
    return call.variables.get(name, "0").strip().lstrip("0") not in ("",)


def facts(call: TrainingCall) -> TrainingSize:
    """By common/fit.py: get_epoch_size, _get_lr_scheduler and PolySchedule."""
    local, ranks = call["--batch-size"], call.devices
    steps = math.ceil(call["--num-examples"] // ranks / local)
    kind = _kind(call)
    falls = (call["--num-epochs"],) if kind == "polynomial" else _boundaries(call) if kind == "multistep" else ()
    return TrainingSize.in_epochs(
        *(local, ranks, steps, call["--num-epochs"], falls),
        lr=call["--lr"],
        warmup_steps=0 if kind == "constant" else call["--warmup-epochs"] * steps,
        decay=kind,
        weight_decay=call["--wd"],
        target=f"top1 {call['--accuracy-threshold']:g}",
    )


def _kind(call: TrainingCall) -> str:
    if call["--lr-factor"] >= 1 or not ("pow" in call["--lr-step-epochs"] or _boundaries(call)):
        return "constant"
    return "polynomial" if "pow" in call["--lr-step-epochs"] else "multistep"


def _boundaries(call: TrainingCall) -> tuple[float, ...]:
    text = call["--lr-step-epochs"]
    return () if "pow" in text else tuple(float(epoch) for epoch in text.split(",") if float(epoch) > 0)


def recipe(call: TrainingCall) -> Recipe:
    """The family's constructor with the line's numbers."""
    made = lars(
        call["--batch-size"] * call.devices,
        lr=call["--lr"],
        warmup=float(call["--warmup-epochs"]),
        epochs=float(call["--num-epochs"]),
        decay=call["--wd"],
        first=call["--eval-offset"] + 1,
        bn_batch_size=call["--bn-group"] * call["--batch-size"],
        momentum=call["--mom"],
        no_decay="none" if call["--optimizer"] == "sgdwfastlarsv2" else "norm",
    )
    if call["--num-layers"] not in get_args(Depth):
        raise PacelineError(f"--num-layers {call['--num-layers']}: must be one of {', '.join(map(str, get_args(Depth)))}.")
    channels, side, *_ = (int(part) for part in call["--image-shape"].split(","))
    changes = {
        "seed": call["--seed"] or 1,
        "model.depth": call["--num-layers"],
        "model.input_channels": 4 if channels == 4 else 3,
        "model.label_smoothing": call["--label-smoothing"],
        "model.zero_init_residual": call["--bn-gamma-init0"],
        "model.bn_eps": call["--batchnorm-eps"],
        "model.bn_momentum": round(1 - call["--batchnorm-mom"], 9),
        "input.image_size": side,
        "input.crop_scale": (call["--min-random-area"], call["--max-random-area"]),
        "input.crop_ratio": (call["--min-random-aspect-ratio"], call["--max-random-aspect-ratio"]),
        "eval.every": float(call["--eval-period"]),
        "target": (("top1", call["--accuracy-threshold"]),),
    }
    if call["--optimizer"] == "sgd":
        changes |= {"optim.name": "sgd", "optim.momentum_style": "mxnet"}
    elif call["--optimizer"] in LARS:
        changes |= {"optim.lars_trust_coefficient": call["--lars-eta"], "optim.lars_eps": call["--lars-eps"]}
    else:
        raise PacelineError(f"--optimizer {call['--optimizer']}: must be one of sgd, {', '.join(LARS)}.")
    kind = _kind(call)
    if kind != "polynomial":
        changes |= {"schedule.name": kind, "schedule.milestones": _boundaries(call), "schedule.gamma": call["--lr-factor"]}
        changes |= {"schedule.min_lr": 0.0, "schedule.warmup": made.schedule.warmup if kind == "multistep" else 0.0}
    return with_fields(made, changes)


def system(call: TrainingCall) -> dict[str, Any]:
    """Number format and layout."""
    half = call["--dtype"] == "float16"
    mixed = [name for name in ("--input-layout", "--conv-layout", "--batchnorm-layout") if call[name] != "NHWC"]
    return {
        "precision": "fp16" if half else "fp32",
        "loss_scale": float(call["--batch-size"]) if half else 0.0,
        **({"channels_last": "off"} if mixed else {}),
    }


def data(call: TrainingCall) -> str:
    """The folder outside the container where the line names it."""
    return call.variables.get("DATADIR") or call["--data-root"]


FORMULAS = Formulas(facts, recipe, system=system, data=data, settle=settle)
SYSTEM = read_system(__file__, {"train_imagenet": FORMULAS})
