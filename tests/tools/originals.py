"""What a training of one of the four systems comes to: slow, obvious functions of its program's own values.

Each takes the values that its program was given (names of its argparse entries), the number of devices, and nothing of
ours. Sources: ssd_main.py, lr_scheduler.py and input_pipeline.py (MLPerf v0.7, Dell and NVIDIA); train.py of the reference
and of NVIDIA's PyTorch submission; ssd.py and model.py (Habana 1.5.0); train_imagenet.py, common/fit.py and
run_and_time.sh (MLPerf v3.0, NVIDIA); train_mask_rcnn.py and data/sampler.py (GluonCV).
Steps of `decay_steps` are counted from 0: the first one that takes the lower rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

COCO = 117_266  # training photos with objects
IMAGENET = 1_281_167


@dataclass(frozen=True)
class Training:
    """In numbers."""

    global_batch_size: int
    batch_per_device: int
    steps_per_epoch: int
    epochs: float
    steps: int
    lr: float  # peak
    warmup_steps: float
    first_lr: float  # of the first step
    decay_steps: tuple[float, ...]  # where the rate falls; of polynomial where its fall ends
    weight_decay: float
    momentum: float
    optimizer: str  # sgd or lars; the rate inside or outside its velocity, corrected for the rate's changes
    weights: str  # started from
    target: str


def mxnet_ssd(given: dict, ranks: int) -> Training:
    """ssd_main.py: a rate in whole multiples of 2.5e-3, a warm-up in whole steps, epochs counted from 1."""
    images = given.get("dataset_size", COCO)
    local = given.get("batch_size", 32)
    batch = local * ranks
    shard = images // ranks
    steps = 0
    while steps * local < shard:
        steps += 1
    multiple = round(given.get("lr", 2.5e-3) / 2.5e-3 * batch / 32)
    lr = 2.5e-3 * max(1, multiple)
    warmup = int(given.get("lr_warmup_epochs", 0) * images / batch)
    ramp = lr / (warmup * 2 ** given.get("lr_warmup_factor", 0)) if warmup else 0.0
    epochs = given.get("epochs", 80)
    falls = []
    for finished in given.get("lr_decay_epochs", (44, 55)):
        first_epoch = finished + 1  # bisect(decay_epochs, epoch - 1), epochs from 1
        falls.append((first_epoch - 1) * steps)
    return Training(
        global_batch_size=batch,
        batch_per_device=local,
        steps_per_epoch=steps,
        epochs=epochs,
        steps=epochs * steps,
        lr=lr,
        warmup_steps=warmup,
        first_lr=lr - (warmup - 1) * ramp,  # its steps are counted from 1
        decay_steps=tuple(falls),
        weight_decay=given.get("weight_decay", 5e-4),
        momentum=given.get("momentum", 0.9),
        optimizer="sgd inside",
        weights="resnet34-mlperf" if given.get("pretrained_backbone") else "none",
        target=f"box_ap {given.get('target_map', 23) / 100:g}",
    )


def nvidia_pytorch_ssd(given: dict, ranks: int) -> Training:
    """train.py of NVIDIA's PyTorch submission: the same rate rule, a warm-up in steps counted from 0, falls at 44 and 55 epochs."""
    local = given.get("batch_size", 32)
    batch = local * ranks
    steps = ceil(COCO / batch)
    lr = 2.5e-3 * max(1, round(given.get("lr", 2.5e-3) / 2.5e-3 * batch / 32))
    warmup = given.get("warmup") or 0
    epochs = given.get("epochs", 80)
    return Training(
        global_batch_size=batch,
        batch_per_device=local,
        steps_per_epoch=steps,
        epochs=epochs,
        steps=epochs * steps,
        lr=lr,
        warmup_steps=warmup,
        first_lr=0.0 if warmup else lr,
        decay_steps=tuple(epoch * steps for epoch in given.get("lr_decay_epochs", (44, 55))),
        weight_decay=given.get("wd", 5e-4),
        momentum=0.9,
        optimizer="sgd outside",
        weights="resnet34-mlperf",
        target=f"box_ap {given.get('threshold', 0.23):g}",
    )


def reference_ssd(given: dict, ranks: int) -> Training:
    """train.py of the reference: lr times batch / 32, warm-up counted from 0, falls where an epoch (from 0) begins."""
    local = given.get("batch_size", 32)
    batch = local * ranks
    steps = ceil(COCO / batch)
    lr = given.get("lr", 2.5e-3) * batch / 32
    warmup = int(given.get("warmup", 0) * COCO / batch)
    epochs = given.get("epochs", 800)
    return Training(
        global_batch_size=batch,
        batch_per_device=local,
        steps_per_epoch=steps,
        epochs=epochs,
        steps=epochs * steps,
        lr=lr,
        warmup_steps=warmup,
        first_lr=0.0 if warmup else lr,
        decay_steps=tuple(epoch * steps for epoch in given.get("lr_decay_schedule", (40, 50))),
        weight_decay=given.get("weight_decay", 5e-4),
        momentum=0.9,
        optimizer="sgd outside",
        weights="resnet34-mlperf",
        target=f"box_ap {given.get('threshold', 0.23):g}",
    )


def gaudi_ssd(given: dict, ranks: int) -> Training:
    """ssd.py of 1.5.0: an epoch rounded up to whole steps, everything else in these; its counter starts at 0."""
    local = given.get("batch_size", 128)
    batch = local * ranks
    steps = ceil(given.get("num_examples_per_epoch", COCO) / batch)
    lr = given.get("base_lr", 3e-3) * batch / 32
    warmup = int(given.get("lr_warmup_epoch", 5.0) * steps)
    total = given.get("steps", 0) or int(given.get("epochs", 50) * steps)
    shift = 1.0 + given.get("k", 0) * 0.1
    return Training(
        global_batch_size=batch,
        batch_per_device=local,
        steps_per_epoch=steps,
        epochs=total / steps,
        steps=total,
        lr=lr,
        warmup_steps=warmup,
        first_lr=0.0 if warmup else lr,
        decay_steps=(int(40.0 * shift * steps), int(50.0 * shift * steps)),
        weight_decay=given.get("weight_decay", 5e-4),
        momentum=0.9,
        optimizer="sgd outside",
        weights="ssd-resnet34-tensorflow" if given.get("resnet_checkpoint", True) else "none",
        target="none",
    )


# What run_and_time.sh sets where no configuration did, beside train_imagenet.py's own defaults.
LAUNCHER = {
    "optimizer": "sgd", "batch_size": 1664, "lr": 0.6, "mom": 0.9, "lr_step_epochs": "30,60,80", "warmup_epochs": 5, "wd": 1e-4,
    "label_smoothing": 0.0, "num_epochs": 90, "eval_offset": 2, "eval_period": 4, "bn_group": 1, "network": "resnet-v1b-fl",
}  # fmt: skip
PROGRAM = {
    "optimizer": "sgdwfastlars", "batch_size": 400, "lr": 11.0, "mom": 0.9, "lr_step_epochs": "pow2", "warmup_epochs": 2, "wd": 5e-5,
    "label_smoothing": 0.1, "num_epochs": 37, "eval_offset": 2, "eval_period": 4, "bn_group": 1, "network": "resnet-v1b-mainloop-fl",
}  # fmt: skip


def mxnet_resnet(given: dict, ranks: int, environment: bool = False) -> Training:
    """train_imagenet.py; `environment`: under run_and_time.sh, whose defaults are others. Steps are counted from 1."""
    value = (LAUNCHER if environment else PROGRAM) | given
    local = value["batch_size"]
    worker_images = int(value.get("num_examples", IMAGENET) / ranks)
    steps = ceil(worker_images / local)
    warmup, total = steps * value["warmup_epochs"], steps * value["num_epochs"]
    if "pow" in value["lr_step_epochs"]:
        falls: tuple[float, ...] = (total,)
    else:
        falls = tuple(steps * int(epoch) for epoch in value["lr_step_epochs"].split(","))
    return Training(
        global_batch_size=local * ranks,
        batch_per_device=local,
        steps_per_epoch=steps,
        epochs=value["num_epochs"],
        steps=total,
        lr=value["lr"],
        warmup_steps=warmup,
        first_lr=value["lr"] / warmup if warmup else value["lr"],
        decay_steps=falls,
        weight_decay=value["wd"],
        momentum=value["mom"],
        optimizer="sgd inside" if value["optimizer"] == "sgd" else "lars inside corrected",
        weights="none",
        target=f"top1 {value.get('accuracy_threshold', 0.759):g}",
    )


def polynomial(base: float, step: int, warmup: int, total: int) -> float:
    """PolySchedule's rate of step `step`, counted from 1."""
    if step <= warmup:
        return base * (step / warmup)
    return 0.0001 + (base - 0.0001) * (1 - (step - warmup) / (total - warmup)) ** 2


def gluoncv_maskrcnn(given: dict, ranks: int) -> Training:
    """train_mask_rcnn.py: --batch-size is of all devices; the rate moves until warm-up step lr_warmup, counted from 0."""
    batch = given.get("batch_size", 8)
    local = batch // ranks
    part = ceil(COCO / ranks)
    steps = ceil(part / local)
    lr = given.get("lr", 0.00125 * batch)
    warmup = given.get("lr_warmup", max(8000 / batch, 1000))
    factor = given.get("lr_warmup_factor", 1.0 / 3.0)
    epochs = given.get("epochs", 26)
    return Training(
        global_batch_size=batch,
        batch_per_device=local,
        steps_per_epoch=steps,
        epochs=epochs,
        steps=epochs * steps,
        lr=lr,
        warmup_steps=warmup,
        first_lr=lr * factor if warmup else lr,
        decay_steps=tuple(epoch * steps for epoch in given.get("lr_decay_epoch", (17, 23))),
        weight_decay=given.get("wd", 1e-4),
        momentum=given.get("momentum", 0.9),
        optimizer="sgd inside",
        weights=given.get("resume") or ("none" if given.get("no_pretrained_base") else "resnet50-v1b"),
        target="none",
    )


SYSTEMS: dict[str, Callable[..., Training]] = {
    "mxnet-ssd": mxnet_ssd,
    "nvidia-pytorch-ssd": nvidia_pytorch_ssd,
    "reference-ssd": reference_ssd,
    "gaudi-ssd": gaudi_ssd,
    "mxnet-resnet": mxnet_resnet,
    "gluoncv-maskrcnn": gluoncv_maskrcnn,
}
