"""Mask R-CNN of GluonCV: `train_mask_rcnn.py`, its benchmark on p3dn, and its evaluation and demo.

Source: github.com/dmlc/gluon-cv, scripts/instance/mask_rcnn (train_mask_rcnn.py, eval_mask_rcnn.py, demo_mask_rcnn.py, benchmark/README.md),
gluoncv/data/sampler.py, gluoncv/model_zoo/rcnn.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from paceline.config.recipe import Recipe, with_fields
from paceline.config.recipes.maskrcnn import TRAIN_IMAGES, gluoncv
from paceline.tools.migrate.table import Formulas, TrainingCall, TrainingSize, read_system

# Networks whose ImageNet weights theirs downloads unasked: their depth here.
DEPTHS = {"resnet18_v1b": 18, "resnet34_v1b": 34, "resnet50_v1b": 50, "resnet101_v1d": 101, "resnet101_v1b": 101}


def settle(call: TrainingCall) -> TrainingCall:
    """Without Horovod --gpus counts the devices; EFA over ens5 is a p3dn, whose benchmark this is.

    A flag of custom-model selects that network.
    """
    names = [entry.names[0] for entry in call.program.flags]
    if call.given.keys() & {*names[names.index("custom-model") :]} - {"--no-pretrained-base"}:
        call = replace(call, given={**call.given, "custom-model": True})
    if not call["--horovod"] and not call.start:
        call = replace(call, per_node=len([one for one in call["--gpus"].split(",") if one.strip()]) or 1)
    on_efa = "efa" in call.variables.get("FI_PROVIDER", "") and call.variables.get("NCCL_SOCKET_IFNAME") == "ens5"
    if on_efa and not call.machine and call.devices % 8 == 0:
        call = replace(call, machine="p3dn", nodes=call.devices // 8, per_node=8)
    return call


def _listed(text: str) -> tuple[float, ...]:
    return tuple(sorted(float(part) for part in text.split(",") if part.strip()))


def _epochs_of(call: TrainingCall) -> int:
    return 26 if call["--epochs"] is None else int(call["--epochs"])


def _decay(call: TrainingCall) -> float:
    return 1e-4 if call["--wd"] is None else call["--wd"]


def _rate(call: TrainingCall) -> float:
    return 0.00125 * call["--batch-size"] if call["--lr"] is None else call["--lr"]


def _warmup(call: TrainingCall) -> float:
    return max(8000 / call["--batch-size"], 1000.0) if call["--lr-warmup"] is None else call["--lr-warmup"]


def facts(call: TrainingCall) -> TrainingSize:
    """By train_mask_rcnn.py and SplitSortedBucketSampler: each rank has a part rounded up, its last batch is filled."""
    batch, ranks = call["--batch-size"], call.devices
    local = max(1, batch // ranks)
    steps = math.ceil(math.ceil(TRAIN_IMAGES / ranks) / local)
    return TrainingSize.in_epochs(
        *(local, ranks, steps, _epochs_of(call), _listed(call["--lr-decay-epoch"] or "17,23")),
        global_batch_size=batch,
        lr=_rate(call),
        warmup_steps=_warmup(call),
        weight_decay=_decay(call),
        weights=weights(call) or "none",
    )


def recipe(call: TrainingCall) -> Recipe:
    """The family's constructor with the line's numbers."""
    every, epochs, batch = call["--val-interval"], _epochs_of(call), call["--batch-size"]
    points = tuple(float(epoch) for epoch in range(every, epochs + 1, every)) if every > 1 else ()
    made = gluoncv(
        batch,
        lr=_rate(call),
        warmup=_warmup(call),  # type: ignore[arg-type]  # whole iterations in the published lines
        warmup_start_factor=call["--lr-warmup-factor"],
        boundaries=_listed(call["--lr-decay-epoch"] or "17,23"),  # type: ignore[arg-type]  # two in the published lines
        epochs=float(epochs),
        clip=max(0.0, call["--clip-gradient"]),
        per_gpu=max(1, batch // call.devices),
        at=points or ((float(epochs),) if every > 1 else ()),
    )
    rho = call["--rpn-smoothl1-rho"]
    changes: dict[str, Any] = {
        "model.depth": DEPTHS.get(call["--network"], made.model.depth),
        "model.rpn.smooth_l1_beta": made.model.rpn.smooth_l1_beta
        if abs(rho - made.model.rpn.smooth_l1_beta) < 1e-4
        else rho,  # 0.1111 is a ninth
        "model.roi.smooth_l1_beta": call["--rcnn-smoothl1-rho"],
        "optim.momentum": call["--momentum"],
        "optim.weight_decay": _decay(call),
        "schedule.gamma": call["--lr-decay"],
        "seed": call["--seed"],
    }
    # Theirs without a norm layer keeps BatchNorm's statistics and has none elsewhere.
    norm = call["--norm-layer"] or "frozen"
    if norm in ("gn", "group"):
        changes |= dict.fromkeys(("model.norm", "model.fpn_norm", "model.head_norm"), "group") | {"model.freeze_stages": 0}
    elif norm in ("bn", "batch", "syncbn"):
        changes |= {"model.norm": "batch", "model.fpn_norm": "batch", "model.head_norm": "group"}
    if call["custom-model"]:
        changes |= _custom(call, normed="model.norm" in changes)
    return with_fields(made, changes)


def _custom(call: TrainingCall, *, normed: bool) -> dict[str, Any]:
    """Fields of the subcommand custom-model, its own defaults included.

    normed  whether trunk and heads have a norm that learns; without one the box head has no convolutions
    """
    base = call["--anchor-base-size"]
    fields = {
        "model.fpn_channels": call["--num-fpn-filters"],
        "model.rpn.channels": call["--rpn-channel"],
        "model.rpn.anchor_sizes": tuple(base * scale for scale in _listed(call["--anchor-scales"])),
        "model.rpn.aspect_ratios": tuple(float(part) for part in call["--anchor-aspect-ratio"].split(",")),
        "model.rpn.nms_iou": call["--rpn-nms-thresh"],
        "model.rpn.pre_nms_topk_train": call["--rpn-train-pre-nms"],
        "model.rpn.post_nms_topk_train": call["--rpn-train-post-nms"],
        "model.rpn.pre_nms_topk_test": call["--rpn-test-pre-nms"],
        "model.rpn.post_nms_topk_test": call["--rpn-test-post-nms"],
        "model.rpn.min_box_side": max(0.0, float(call["--rpn-min-size"] - 1)),
        "model.rpn.max_log_scale": call["--clip"],
        "model.roi.num_convs": call["--num-box-head-conv"] if normed else 0,
        "model.roi.conv_channels": call["--num-box-head-conv-filters"] if normed else 0,
        "model.roi.fc_channels": call["--num_box_head_dense_filters"],
        "model.roi.pool_type": call["--roi-mode"],
        "model.roi.samples_per_image": call["--rcnn-num-samples"],
        "model.roi.fg_iou": call["--rcnn-pos-iou-thresh"],
        "model.roi.positive_fraction": call["--rcnn-pos-ratio"],
        "model.roi.max_log_scale": call["--clip"],
        "model.mask.num_convs": call["--num-mask-head-convs"],
        "model.detect.nms_iou": call["--nms-thresh"],
        "input.min_size": tuple(int(part) for part in call["--image-short"].strip("()").split(",") if part.strip()),
        "input.max_size": call["--image-max-size"],
    }
    most = {"model.detect.max_detections": call["--post-nms"], "model.detect.topk_candidates": call["--nms-topk"]}
    return fields | {name: value for name, value in most.items() if value > 0}


def system(call: TrainingCall) -> dict[str, Any]:
    """Number format: AMP is float16 under a dynamic scale."""
    return {"precision": "fp16" if call["--amp"] else "fp32", "loss_scale": 0.0}


def weights(call: TrainingCall) -> str:
    """A file to resume from, or the ImageNet weights that its model zoo brings: ours by name where there is one."""
    if call["--resume"]:
        return call["--resume"]
    if call["--no-pretrained-base"]:
        return ""
    return "resnet50-v1b" if call["--network"] == "resnet50_v1b" else f"{call['--network']}.params"


def also(call: TrainingCall) -> tuple[tuple[str, str], ...]:
    """What the absence of a flag makes different."""
    if call["--use-fpn"] or call["custom-model"]:
        return ()
    return (("without --use-fpn the original is a C4 network, and paceline has an FPN", "Networks without an FPN"),)


def _file(call: TrainingCall, name: str) -> str:
    """The file of weights that --pretrained names; True was that network of the model zoo, which has a pyramid here."""
    named = call["--pretrained"]
    name = name.removeprefix("mask_rcnn_").removeprefix("fpn_")
    return f"mask_rcnn_fpn_{name}.params" if named.lower() in ("true", "1", "yes", "t", "") else named


def _evaluated(call: TrainingCall) -> tuple[str, ...]:
    prefix, network = call["--save-prefix"], call["--network"].removeprefix("fpn_")
    if call["--eval-all"]:
        return "eval", prefix or "RUN", "--checkpoint", "all"
    depth = f" --model.depth {DEPTHS[network]}" if DEPTHS.get(network, 50) != 50 else ""
    words = ("eval", _file(call, f"{network}_coco"), "--recipe", f"maskrcnn-gluoncv{depth}", "--data", "DIR")
    return (*words, "--output", f"{prefix}predictions.json") if call["--save-json"] else words


def _predicted(call: TrainingCall) -> tuple[str, ...]:
    photos = [name.strip() for name in (call["--images"] or "photo.jpg").split(",") if name.strip()]
    return "predict", _file(call, call["--network"]), *photos


TRAIN = Formulas(facts, recipe, system=system, weights=weights, settle=settle, also=also)
SYSTEM = read_system(
    __file__,
    {
        "train": TRAIN,
        "evaluate": replace(TRAIN, instead=_evaluated, settle=lambda call: call),
        "demo": replace(TRAIN, instead=_predicted, settle=lambda call: call),
    },
)
