"""SSD-ResNet34 of MLPerf v0.7 in MXNet (ssd_main.py of Dell and NVIDIA), and its sisters in PyTorch: the reference's and NVIDIA's train.py.

Source: github.com/mlcommons/training_results_v0.7, DellEMC/benchmarks/ssd/implementation/mxnet (ssd_main.py, run_and_time.sh, run.slurm,
config_*.sh, scripts/train/dgx1) and NVIDIA/benchmarks/ssd/implementations/mxnet (run.sub, config_*_multi_*.sh); pytorch beside it
(parse_config.py, train.py, run_and_time.sh, config_*.sh), and the copies of that of Fujitsu and Inspur; github.com/mlcommons/training,
retired_benchmarks/ssd-v1/ssd (train.py, run_and_time.sh, config_DGX1_*.sh).
config_2xC4140.sh says NNODES=1; its README starts it with -N 2 (`started_on`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from paceline.config.plan import steps_in_epoch
from paceline.config.recipe import Recipe, with_fields
from paceline.config.recipes.ssd import BACKBONE, TRAIN_IMAGES, mlperf, mxnet, nvidia_pytorch
from paceline.tools.migrate.table import Formulas, TrainingCall, TrainingSize, read_system


def settle(call: TrainingCall) -> TrainingCall:
    """Two of their flags as one of ours; epochs as steps."""
    more = []
    if call["--dataset-size"] not in (None, TRAIN_IMAGES):
        more += ["--max-train-images", str(call["--dataset-size"])]
    if call["--save-interval"]:
        more += ["--save-every", str(call["--save-interval"] * _shard_steps(call, _images(call)))]
    first, last = call["--profile-start"], call["--profile-stop"]
    if first is not None:
        more += ["--profile", f"{first}:{last or first + 3}"]
    if last is not None:
        more += ["--max-steps", str(last)]
    return replace(call, more=tuple(more))


def _images(call: TrainingCall) -> int:
    return call["--dataset-size"] or TRAIN_IMAGES


def _batch(call: TrainingCall) -> int:
    return call["--batch-size"] * call.devices


def _shard_steps(call: TrainingCall, images: int) -> int:
    """Steps of an epoch: a rank's shard is the whole part of its share, its last batch is kept."""
    return math.ceil(images // call.devices / call["--batch-size"])


def _integer_rate(lr: float, batch: int) -> float:
    return 2.5e-3 * max(1, round(lr / 2.5e-3 * batch / 32))


def _warmup_from(warmup: float | None, factor: float) -> float:
    """Share of the rate that the warm-up starts from: 1 - 2^-factor."""
    return 1 - 2.0**-factor if warmup else 0.0


def _epochs(numbers: Any) -> tuple[float, ...]:
    return tuple(map(float, sorted(numbers)))


def facts(call: TrainingCall) -> TrainingSize:
    """By ssd_main.py, input_pipeline.py and lr_scheduler.py."""
    images, batch = _images(call), _batch(call)
    steps = _shard_steps(call, images)
    epochs = (call["--profile-stop"] or call["--epochs"] * steps) / steps
    return TrainingSize.in_epochs(
        *(call["--batch-size"], call.devices, steps, epochs, call["--lr-decay-epochs"]),
        lr=_integer_rate(call["--lr"] or 2.5e-3, batch),
        warmup_steps=int((call["--lr-warmup-epochs"] or 0) * images / batch),
        weight_decay=call["--weight-decay"],
        weights=weights(call) or "none",
        target=f"box_ap {call['--target-map'] / 100:g}",
    )


def recipe(call: TrainingCall) -> Recipe:
    """The family's constructor with the line's numbers."""
    warmup = call["--lr-warmup-epochs"]
    made = mxnet(
        _batch(call),
        lr=call["--lr"] or 2.5e-3,
        warmup=0.0,  # in whole steps, below
        decay=call["--weight-decay"],
        bn_batch_size=call["--bn-group"] * call["--batch-size"],
        epochs=float(call["--epochs"]),
    )
    every = call["--val-interval"]
    points = {*call["--val-epochs"], *(range(every, call["--epochs"] + 1, every) if every else ())}
    steps = int((warmup or 0.0) * _images(call) / made.global_batch_size)
    changes = {
        "schedule.warmup": steps / steps_in_epoch(_images(call), made.global_batch_size, "up"),
        "schedule.warmup_start_factor": _warmup_from(warmup, call["--lr-warmup-factor"]),
        "schedule.milestones": tuple(map(float, call["--lr-decay-epochs"])),
        "eval.at": _epochs(points),
        "target": (("box_ap", call["--target-map"] / 100),),
    }
    return with_fields(made, changes)


def system(call: TrainingCall) -> dict[str, Any]:
    """Number format and layout."""
    form = call["--precision"].lower()
    scale = call["--fp16-loss-scale"] if form == "fp16" else 0.0
    layout = {} if call["--data-layout"].upper() == "NHWC" else {"channels_last": "off"}
    return {"precision": "fp32" if form == "fp32" else "fp16", "loss_scale": scale, **layout}


def _data(call: TrainingCall, flag: str) -> str:
    """The folder of the data: outside the container, which has it as /data, where the line names it."""
    outside = call.variables.get("DATADIR", "")
    return f"{outside.rstrip('/')}/coco2017" if outside else call.given.get(flag, "")


def weights(call: TrainingCall) -> str:
    """Their one pickle by our name of it; another file as it is."""
    path = call["--resume-from"] or call["--pretrained-backbone"] or ""
    return BACKBONE if "resnet34-333f7ec4" in path else path


def reference_facts(call: TrainingCall) -> TrainingSize:
    """By train.py: a sampler that fills the last rank's share, a loader that keeps the last, shorter batch."""
    steps = math.ceil(math.ceil(TRAIN_IMAGES / call.devices) / call["--batch-size"])
    return TrainingSize.in_epochs(
        *(call["--batch-size"], call.devices, steps, call["--epochs"], call["--lr-decay-schedule"]),
        lr=call["--lr"] * _batch(call) / 32,
        warmup_steps=int((call["--warmup"] or 0) * TRAIN_IMAGES / _batch(call)),
        weight_decay=call["--weight-decay"],
        weights=pytorch_weights(call),
        target=f"box_ap {call['--threshold']:g}",
    )


def reference_recipe(call: TrainingCall) -> Recipe:
    """The family's constructor with the line's numbers."""
    every, named = call["--val-interval"], call["--val-epochs"]
    changes = {
        "epochs": float(call["--epochs"]),
        "optim.lr": call["--lr"] * _batch(call) / 32,
        "optim.weight_decay": call["--weight-decay"],
        "schedule.milestones": tuple(map(float, call["--lr-decay-schedule"])),
        "schedule.warmup_start_factor": _warmup_from(call["--warmup"], call["--warmup-factor"]),
        "eval.start": every,
        "eval.every": every,
        "eval.at": _epochs({*named, *range(every, call["--epochs"] + 1, every)}) if named else (),
        "target": (("box_ap", call["--threshold"]),),
    }
    return with_fields(mlperf(_batch(call), warmup=call["--warmup"] or 0.0, bn_batch_size=call["--batch-size"]), changes)


def reference_system(call: TrainingCall) -> dict[str, Any]:
    """Number format, and images of a forward if a batch is split."""
    splits = call["--batch-splits"]
    split = {"micro_batch_size": max(1, call["--batch-size"] // splits)} if splits > 1 else {}
    return {"precision": "fp32", "loss_scale": 0.0, **split}


def nvidia_facts(call: TrainingCall) -> TrainingSize:
    """By train.py and data/dali_pipeline.py."""
    return TrainingSize.in_epochs(
        *(
            call["--batch-size"],
            call.devices,
            _shard_steps(call, TRAIN_IMAGES),
            call["--epochs"],
            call["--lr-decay-epochs"],
        ),
        lr=_integer_rate(call["--lr"], _batch(call)),
        warmup_steps=call["--warmup"] or 0,
        weight_decay=call["--wd"],
        weights=pytorch_weights(call),
        target=f"box_ap {call['--threshold']:g}",
    )


def nvidia_recipe(call: TrainingCall) -> Recipe:
    """The family's constructor with the line's numbers."""
    span = call["--bn-group"] * call["--batch-size"]
    warmup = call["--warmup"]
    made = nvidia_pytorch(_batch(call), lr=call["--lr"], warmup=warmup or 0, decay=call["--wd"], bn_batch_size=span)
    # Theirs evaluates before an epoch, so a run that ends there never makes the list's last one; ours evaluates every end.
    points = tuple(float(epoch) for epoch in call["--evaluation"] if epoch <= call["--epochs"])
    changes = {
        "epochs": float(call["--epochs"]),
        "schedule.milestones": tuple(map(float, call["--lr-decay-epochs"])),
        "schedule.warmup_start_factor": _warmup_from(warmup, call["--warmup-factor"]),
        "eval.at": points or made.eval.at,
        "target": (("box_ap", call["--threshold"]),),
    }
    return with_fields(made, changes)


def pytorch_weights(call: TrainingCall) -> str:
    """What is named, else torchvision's of 2017, which both load unasked."""
    named = call.given.get("--checkpoint") or call.given.get("--pretrained-backbone") or BACKBONE
    return BACKBONE if "resnet34-333f7ec4" in named else named


SYSTEM = read_system(
    __file__,
    {
        "ssd_main": Formulas(
            facts,
            recipe,
            system,
            data=lambda call: _data(call, "--tfrecord-root" if call["--use-tfrecord"] else "--coco-root"),
            weights=weights,
            instead=lambda call: ("eval", "RUN", "--checkpoint", "all") if call["--mode"] == "val" else (),
            settle=settle,
        ),
        "reference": Formulas(
            reference_facts,
            reference_recipe,
            system=reference_system,
            data=lambda call: _data(call, "--data"),
            weights=pytorch_weights,
            settle=lambda call: replace(call, machine="cpu") if "--no-cuda" in call.given else call,
        ),
        "nvidia": Formulas(
            nvidia_facts,
            nvidia_recipe,
            # apex O2 is always on, with a static scale of 128.
            system=lambda call: {"precision": "fp16", "loss_scale": 128.0},
            data=lambda call: _data(call, "--data"),
            weights=pytorch_weights,
        ),
    },
)
