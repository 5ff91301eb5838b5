"""ResNet-50 in MXNet, MLPerf v3.0: `train_imagenet.py` of NVIDIA's submission and its partners'.

Source: github.com/mlcommons/training_results_v3.0, NVIDIA/benchmarks/resnet/implementations/mxnet (train_imagenet.py, common/fit.py,
common/dali.py, run_and_time.sh, run.sub, config_DGXH100*.sh) and ASUSTeK/benchmarks/resnet/implementations/mxnet (config_DGXA100*.sh).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

from paceline.config.errors import UserError
from paceline.config.recipe import Recipe
from paceline.config.trunk import Depth
from paceline.recipes.migrate.mxnet_resnet_flags import FLAGS
from paceline.recipes.migrate.mxnet_resnet_page import TOOLS
from paceline.recipes.migrate.mxnet_resnet_variables import CALL, CONFIGS, ENVIRONMENT, VARIABLES
from paceline.recipes.migrate.table import Call, Facts, Original, Program, Script
from paceline.recipes.resnet50 import lars
from paceline.recipes.rows import ROWS

LARS = ("sgdwlars", "sgdwfastlars", "sgdwfastlarsv2")


def settle(call: Call) -> Call:
    """What run_and_time.sh decides by variables: timing and profiling end after 4 epochs; without --use-dali batches are made up."""
    given, more = dict(call.given), call.more
    if any(_above_zero(call, name) for name in ("NVTX_FLAG", "TIME_TAGS")):
        given |= {"--num-epochs": 4, "--warmup-epochs": 2}
    if "--use-dali" not in given or _above_zero(call, "SYNTH_DATA"):
        more = (*more, "--synthetic")
    gpus = len((call["--gpus"] or "").split(","))
    if gpus > 1 and not call.start and call.devices == 1 and call["--kv-store"] != "horovod":
        call = replace(call, per_node=gpus)  # one process cuts its batch over its devices
        given["--batch-size"] = call["--batch-size"] // gpus
    if _above_zero(call, "DISABLE_CG"):
        given.pop("--e2e-cuda-graphs", None)
    return replace(call, given=given, more=more)


def _above_zero(call: Call, name: str) -> bool:
    return call.variables.get(name, "0").strip().lstrip("0") not in ("",)


def facts(call: Call) -> Facts:
    """By common/fit.py: get_epoch_size, _get_lr_scheduler and PolySchedule."""
    local, ranks = call["--batch-size"], call.devices
    steps = math.ceil(call["--num-examples"] // ranks / local)
    kind = _kind(call)
    falls = (call["--num-epochs"],) if kind == "poly2" else _boundaries(call) if kind == "steps" else ()
    return Facts(
        global_batch=local * ranks,
        batch_per_device=local,
        devices=ranks,
        steps_per_epoch=steps,
        epochs=call["--num-epochs"],
        steps=call["--num-epochs"] * steps,
        lr=call["--lr"],
        warmup_steps=0 if kind == "constant" else call["--warmup-epochs"] * steps,
        decay=kind,
        decay_steps=tuple(epoch * steps for epoch in falls),
        weight_decay=call["--wd"],
        weights="none",
        target=f"top1 {call['--accuracy-threshold']:g}",
    )


def _kind(call: Call) -> str:
    if call["--lr-factor"] >= 1 or not ("pow" in call["--lr-step-epochs"] or _boundaries(call)):
        return "constant"
    return "poly2" if "pow" in call["--lr-step-epochs"] else "steps"


def _boundaries(call: Call) -> tuple[float, ...]:
    text = call["--lr-step-epochs"]
    return () if "pow" in text else tuple(float(epoch) for epoch in text.split(",") if float(epoch) > 0)


def recipe(call: Call) -> Recipe:
    """The family's constructor with the line's numbers."""
    made = lars(
        call["--batch-size"] * call.devices,
        lr=call["--lr"],
        warmup=float(call["--warmup-epochs"]),
        epochs=float(call["--num-epochs"]),
        decay=call["--wd"],
        first=call["--eval-offset"] + 1,
        bn_span=call["--bn-group"] * call["--batch-size"],
        momentum=call["--mom"],
        decay_on="all" if call["--optimizer"] == "sgdwfastlarsv2" else "no_norm",
    )
    if call["--num-layers"] not in get_args(Depth):
        raise UserError(f"--num-layers {call['--num-layers']}: is none of {', '.join(map(str, get_args(Depth)))}.")
    channels, side, *_ = (int(part) for part in call["--image-shape"].split(","))
    optim = replace(made.optim, lars_eta=call["--lars-eta"], lars_eps=call["--lars-eps"])
    if call["--optimizer"] == "sgd":
        optim = replace(made.optim, kind="sgd", momentum_form="lr_inside")
    elif call["--optimizer"] not in LARS:
        raise UserError(f"--optimizer {call['--optimizer']}: is none of sgd, {', '.join(LARS)}, which have one here.")
    schedule, kind = made.schedule, _kind(call)
    if kind != "poly2":
        warmup = schedule.warmup if kind == "steps" else 0.0
        schedule = replace(
            schedule, kind=kind, boundaries=_boundaries(call), factor=call["--lr-factor"], end_lr=0.0, warmup=warmup
        )
    return replace(
        made,
        seed=call["--seed"] or 1,
        model=replace(
            made.model,
            depth=call["--num-layers"],
            stem_channels=4 if channels == 4 else 3,
            label_smoothing=call["--label-smoothing"],
            zero_init_last_gamma=call["--bn-gamma-init0"],
            bn_eps=call["--batchnorm-eps"],
            bn_momentum=round(1 - call["--batchnorm-mom"], 9),
        ),
        input=replace(
            made.input,
            size=side,
            area=(call["--min-random-area"], call["--max-random-area"]),
            aspect=(call["--min-random-aspect-ratio"], call["--max-random-aspect-ratio"]),
        ),
        optim=optim,
        schedule=schedule,
        quality=replace(
            made.quality, every=float(call["--eval-period"]), targets=(("top1", call["--accuracy-threshold"]),)
        ),
    )


def system(call: Call) -> dict[str, Any]:
    """Number format and layout."""
    half = call["--dtype"] == "float16"
    mixed = [name for name in ("--input-layout", "--conv-layout", "--batchnorm-layout") if call[name] != "NHWC"]
    return {
        "precision": "fp16" if half else "fp32",
        "loss_scale": float(call["--batch-size"]) if half else 0.0,
        **({"channels_last": False} if mixed else {}),
    }


def data(call: Call) -> str:
    """The folder outside the container where the line names it."""
    return call.variables.get("DATADIR") or call["--data-root"]


TRAIN_IMAGENET = Program(
    of="mxnet-resnet",
    files=("train_imagenet.py",),
    flags=FLAGS,
    facts=facts,
    recipe=recipe,
    candidates=(
        "resnet50-mlperf-3200", "resnet50-mlperf-3200-4x8", "resnet50-mlperf-3200-8x8", "resnet50-mlperf-20480", "resnet50-mlperf-32256",
        "resnet50-mlperf-57344", "resnet50-a100-3264", "resnet50-a100-3264-8x8",
        *(name for name in ROWS if name.startswith("resnet50@")),
    ),
    system=system,
    data=data,
    settle=settle,
    differs=(
        ("JPEGs are decoded at 1/2 to 1/8 where the crop stays large enough", "decoding"),
        ("an accuracy of just the target ends a run", "target"),
        ("training begins at the schedule's step 1, theirs at 2", "First step of the MXNet ResNets"),
    ),
    source="NVIDIA train_imagenet.py, common/fit.py",
)  # fmt: skip

ORIGINAL = Original(
    name="mxnet-resnet",
    programs=(TRAIN_IMAGENET,),
    scripts=(
        Script(("run.sub",), defaults=": ${NEXP:=5}", through="slurm", start="srun", container="pyxis"),
        Script(("run_with_docker.sh",), defaults=": ${NEXP:=5}", container="docker"),
        Script(("a30.sub",), container="docker"),
        Script(("run_and_time.sh", "run_and_time_local.sh", "a30-run_and_time.sh")),
    ),
    configs=CONFIGS,
    variables=(*VARIABLES, *ENVIRONMENT),
    tools=TOOLS,
    call=CALL,
    config="config_${DGXSYSTEM}.sh",
    machines={"DGXH100": "dgx-h100", "DGXA100": "dgx-a100", "ESC4000": "a100x8", "ESC8000A": "h100x8"},
    marks=frozenset({"BATCHSIZE", "OPTIMIZER", "LRSCHED", "LARSETA", "EVAL_OFFSET", "LABELSMOOTHING"}),
    nodes=("DGXNNODES",),
    per_node=("DGXNGPU",),
)
