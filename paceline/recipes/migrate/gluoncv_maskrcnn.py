"""Mask R-CNN of GluonCV: `train_mask_rcnn.py`, its benchmark on p3dn, and its evaluation and demo.

Source: github.com/dmlc/gluon-cv, scripts/instance/mask_rcnn (train_mask_rcnn.py, eval_mask_rcnn.py, demo_mask_rcnn.py, benchmark/README.md),
gluoncv/data/sampler.py, gluoncv/model_zoo/rcnn.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from paceline.config.instances import MaskRCNNModel
from paceline.config.recipe import Recipe
from paceline.recipes.maskrcnn import TRAIN_IMAGES, gluoncv
from paceline.recipes.migrate.gluoncv_flags import CUSTOM, FLAGS, WORD
from paceline.recipes.migrate.gluoncv_page import TOOLS
from paceline.recipes.migrate.gluoncv_variables import LAUNCHER, VARIABLES
from paceline.recipes.migrate.table import Call, Entry, Facts, Original, Program, direct, gone, settled

# Networks whose ImageNet weights theirs brings unasked: their depth here.
DEPTHS = {"resnet18_v1b": 18, "resnet34_v1b": 34, "resnet50_v1b": 50, "resnet101_v1d": 101, "resnet101_v1b": 101}


def settle(call: Call) -> Call:
    """Without Horovod --gpus counts the devices; EFA over ens5 is a p3dn, whose benchmark this is."""
    if not call["--horovod"] and not call.start:
        call = replace(call, per_node=len([one for one in call["--gpus"].split(",") if one.strip()]) or 1)
    on_efa = "efa" in call.variables.get("FI_PROVIDER", "") and call.variables.get("NCCL_SOCKET_IFNAME") == "ens5"
    if on_efa and not call.machine and call.devices % 8 == 0:
        call = replace(call, machine="p3dn", nodes=call.devices // 8, per_node=8)
    return call


def _listed(text: str) -> tuple[float, ...]:
    return tuple(sorted(float(part) for part in text.split(",") if part.strip()))


def _epochs_of(call: Call) -> int:
    return 26 if call["--epochs"] is None else int(call["--epochs"])


def _decay(call: Call) -> float:
    return 1e-4 if call["--wd"] is None else call["--wd"]


def _rate(call: Call) -> float:
    return 0.00125 * call["--batch-size"] if call["--lr"] is None else call["--lr"]


def _warmup(call: Call) -> float:
    return max(8000 / call["--batch-size"], 1000.0) if call["--lr-warmup"] is None else call["--lr-warmup"]


def facts(call: Call) -> Facts:
    """By train_mask_rcnn.py and SplitSortedBucketSampler: each rank has a part rounded up, its last batch is filled."""
    batch, ranks = call["--batch-size"], call.devices
    local = max(1, batch // ranks)
    steps = math.ceil(math.ceil(TRAIN_IMAGES / ranks) / local)
    return Facts(
        global_batch=batch,
        batch_per_device=local,
        devices=ranks,
        steps_per_epoch=steps,
        epochs=_epochs_of(call),
        steps=_epochs_of(call) * steps,
        lr=_rate(call),
        warmup_steps=_warmup(call),
        decay="steps",
        decay_steps=tuple(epoch * steps for epoch in _listed(call["--lr-decay-epoch"] or "17,23")),
        weight_decay=_decay(call),
        weights=weights(call) or "none",
        target="none",
    )


def recipe(call: Call) -> Recipe:
    """The family's constructor with the line's numbers."""
    every, epochs, batch = call["--val-interval"], _epochs_of(call), call["--batch-size"]
    points = tuple(float(epoch) for epoch in range(every, epochs + 1, every)) if every > 1 else ()
    made = gluoncv(
        batch,
        lr=_rate(call),
        warmup=_warmup(call),  # type: ignore[arg-type]  # whole iterations in the published lines
        warmup_from=call["--lr-warmup-factor"],
        boundaries=_listed(call["--lr-decay-epoch"] or "17,23"),  # type: ignore[arg-type]  # two in the published lines
        epochs=float(epochs),
        clip=max(0.0, call["--clip-gradient"]),
        per_gpu=max(1, batch // call.devices),
        at=points or ((float(epochs),) if every > 1 else ()),
    )
    model = replace(
        made.model,
        depth=DEPTHS.get(call["--network"], made.model.depth),
        rpn=replace(made.model.rpn, beta=_near(call["--rpn-smoothl1-rho"], made.model.rpn.beta)),
        roi=replace(made.model.roi, beta=call["--rcnn-smoothl1-rho"]),
    )
    model = _normed(model, call["--norm-layer"] or "frozen")
    inputs = made.input
    if call["custom-model"]:
        model = _custom(model, call)
        inputs = replace(made.input, short=_whole(call["--image-short"]), long=call["--image-max-size"])
    return replace(
        made,
        model=model,
        input=inputs,
        optim=replace(made.optim, momentum=call["--momentum"], weight_decay=_decay(call)),
        schedule=replace(made.schedule, factor=call["--lr-decay"]),
        seed=call["--seed"],
    )


def _near(value: float, ours: float) -> float:
    """0.1111 on a line is a ninth."""
    return ours if abs(value - ours) < 1e-4 else value


def _whole(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.strip("()").split(",") if part.strip())


def _normed(model: MaskRCNNModel, norm: str) -> MaskRCNNModel:
    """Theirs without a norm layer keeps BatchNorm's statistics and has none elsewhere."""
    if norm in ("gn", "group"):
        return replace(model, norm="group", fpn_norm="group", head_norm="group", frozen="none")
    if norm in ("bn", "batch", "syncbn"):
        return replace(model, norm="batch", fpn_norm="batch", head_norm="group")
    return model


def _custom(model: MaskRCNNModel, call: Call) -> MaskRCNNModel:
    """The subcommand's numbers, its own defaults included."""
    base = call["--anchor-base-size"]
    normed = model.norm != "frozen"
    keep, most = call["--post-nms"], call["--nms-topk"]
    return replace(
        model,
        channels=call["--num-fpn-filters"],
        rpn=replace(
            model.rpn,
            channels=call["--rpn-channel"],
            sizes=tuple(base * scale for scale in _listed(call["--anchor-scales"])),
            ratios=tuple(float(part) for part in call["--anchor-aspect-ratio"].split(",")),
            iou=call["--rpn-nms-thresh"],
            pre_train=call["--rpn-train-pre-nms"],
            post_train=call["--rpn-train-post-nms"],
            pre_test=call["--rpn-test-pre-nms"],
            post_test=call["--rpn-test-post-nms"],
            least_side=max(0.0, float(call["--rpn-min-size"] - 1)),
            limit=call["--clip"],
        ),
        roi=replace(
            model.roi,
            convs=call["--num-box-head-conv"] if normed else 0,
            conv_channels=call["--num-box-head-conv-filters"] if normed else 0,
            channels=call["--num_box_head_dense_filters"],
            mode=call["--roi-mode"],
            samples=call["--rcnn-num-samples"],
            iou=call["--rcnn-pos-iou-thresh"],
            positive_share=call["--rcnn-pos-ratio"],
            limit=call["--clip"],
        ),
        mask=replace(model.mask, convs=call["--num-mask-head-convs"]),
        detect=replace(
            model.detect,
            iou=call["--nms-thresh"],
            keep=keep if keep > 0 else model.detect.keep,
            candidates=most if most > 0 else model.detect.candidates,
        ),
    )


def system(call: Call) -> dict[str, Any]:
    """Number format: AMP is float16 under a dynamic scale."""
    return {"precision": "fp16" if call["--amp"] else "fp32", "loss_scale": 0.0}


def weights(call: Call) -> str:
    """A file to resume from, or the ImageNet weights that its model zoo brings: ours by name where there is one."""
    if call["--resume"]:
        return call["--resume"]
    if call["--no-pretrained-base"]:
        return ""
    return "resnet50-v1b" if call["--network"] == "resnet50_v1b" else f"{call['--network']}.params"


def also(call: Call) -> tuple[tuple[str, str], ...]:
    """What the absence of a flag makes different."""
    if call["--use-fpn"] or call["custom-model"]:
        return ()
    return (("without --use-fpn theirs is a C4 network, ours has the pyramid", "networks without a pyramid"),)


TRAIN = Program(
    of="gluoncv-maskrcnn",
    files=("train_mask_rcnn.py",),
    flags=(*FLAGS, WORD, *CUSTOM),
    facts=facts,
    recipe=recipe,
    candidates=("maskrcnn-gluoncv", "maskrcnn-gluoncv-192", "maskrcnn@gluoncv-26-epochs-8"),
    system=system,
    weights=weights,
    settle=settle,
    also=also,
    differs=(
        ("photos are padded to one of ten shapes, all of a step alike", "padding"),
        ("order of photos", "order of photos"),
        ("objects above 112 pixels are stored coarser", "masks larger than the canvas"),
    ),
    source="GluonCV train_mask_rcnn.py",
)

# eval_mask_rcnn.py and demo_mask_rcnn.py.
EVAL_FLAGS: tuple[Entry, ...] = (
    gone("--network", str, "resnet50_v1b", "automatic: the run knows"),
    gone("--dataset", str, "coco", "automatic: the run knows"),
    gone("--num-workers -j", int, 4, "automatic: threads"),
    gone("--gpus", str, "0", "automatic: one rank, one device"),
    settled("--pretrained", str, "True", "", "paceline eval model.params --recipe maskrcnn-gluoncv --data /data/coco", by="weights"),
    direct("--save-prefix", str, "", "--out predictions.json", values={}),
    direct("--save-json", bool, False, "--out predictions.json"),
    direct("--eval-all", bool, False, "--checkpoint all"),
    gone("--use-fpn", bool, False, "fixed: the pyramid is always there"),
)  # fmt: skip
DEMO_FLAGS: tuple[Entry, ...] = (
    gone("--network", str, "mask_rcnn_resnet50_v1b_coco", "automatic: the file's own rows tell it"),
    settled("--images", str, "", "", "paceline predict model.params photo.jpg", by="data"),
    gone("--gpus", str, "0", "automatic: one rank, one device"),
    settled("--pretrained", str, "True", "", "paceline predict model.params photo.jpg", by="weights"),
)


def _file(call: Call) -> str:
    """The file of weights that --pretrained names; True was theirs from the model zoo."""
    named = call["--pretrained"]
    return "mask_rcnn_fpn_resnet50_v1b_coco.params" if named.lower() in ("true", "1", "yes", "t", "") else named


def _evaluated(call: Call) -> str:
    if call["--eval-all"]:
        return "paceline eval RUN --checkpoint all"
    written = " --out predictions.json" if call["--save-json"] else ""
    return f"paceline eval {_file(call)} --recipe maskrcnn-gluoncv --data DIR{written}"


def _predicted(call: Call) -> str:
    photos = call["--images"].replace(",", " ") or "photo.jpg"
    return f"paceline predict {_file(call)} {photos}"


def _program(file: str, flags: tuple[Entry, ...], instead: Any) -> Program:
    return replace(TRAIN, files=(file,), flags=flags, instead=instead, settle=lambda call: call)


EVALUATE = _program("eval_mask_rcnn.py", EVAL_FLAGS, _evaluated)
DEMO = _program("demo_mask_rcnn.py", DEMO_FLAGS, _predicted)

ORIGINAL = Original(
    name="gluoncv-maskrcnn",
    programs=(TRAIN, EVALUATE, DEMO),
    variables=VARIABLES,
    launcher=LAUNCHER,
    tools=TOOLS,
)
