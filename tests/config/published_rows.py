"""Every field of every published row: its family's table, and what the row itself states, from its log or from its files.

A row with a log has that log's numbers (logged.json) and those that no log has, typed; a row without one is typed from the files
that its source names. Which system a row is and on how many accelerators it ran is held by
docs/reference/generated/recipes/published-variants.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import published_maskrcnn as maskrcnn
import published_resnet50 as resnet50
import published_ssd as ssd
from published_cells import Table, joined, ours, sheet

from paceline.config.recipes.published_rows import ROWS, PublishedRecipe

LOGGED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("logged.json").read_text())
BENCHMARKS = {"resnet50": "resnet", "ssd": "ssd", "maskrcnn": "maskrcnn"}
# The log of each row that has one: the keys of a row's source are files there, or another system's.
LOGS = {
    name: LOGGED[key]
    for name, row in ROWS.items()
    if (key := f"{row.source} {BENCHMARKS[name.partition('@')[0]]}") in LOGGED
}
GOOGLE = "network, data processing, momentum, and length, from Habana's code, which is based on Google's code"


def steps_of(images: int, batch: int) -> int:
    """An epoch's steps, the last one filled."""
    return -(-images // batch)


def of_lars(log: dict[str, Any]) -> Table:
    """NVIDIA's MXNet ResNet-50: lars_opt_* and model_bn_span; the schedule's length is logged in epochs or in steps."""
    batch, length = log["global_batch_size"], log["lars_opt_learning_rate_decay_steps"]
    epochs = length if length < 1000 else length / steps_of(1_281_167, batch)
    return joined(
        resnet50.config(
            batch,
            log["model_bn_span"],
            log["lars_opt_base_learning_rate"],
            log["lars_opt_learning_rate_warmup_epochs"],
            epochs,
            log["lars_opt_weight_decay"],
            log["lars_opt_momentum"],
            log["evaluated"][0],
        ),
        sheet("its log", eval__every=log["evaluated"][1] - log["evaluated"][0]),
    )


def of_mxnet(log: dict[str, Any]) -> Table:
    """NVIDIA's and Dell's MXNet SSD, and what their PyTorch one shares with it: opt_* and model_bn_span."""
    batch = log["global_batch_size"]
    return ssd.mxnet(
        batch,
        log["model_bn_span"],
        log["opt_base_learning_rate"],
        log["opt_learning_rate_warmup_steps"],
        steps_of(117_266, batch),
        log["opt_weight_decay"],
        falls=tuple(log["opt_learning_rate_decay_boundary_epochs"]),
    )


def of_later_mxnet(log: dict[str, Any], epochs: int) -> Table:
    """The MXNet SSD of v1.1."""
    return joined(
        of_mxnet(log),
        sheet("v1.1 config_DGXA100_*.sh NUMEPOCHS", epochs=epochs),
        sheet("ssd_main.py --val-interval, --val-epochs; its log", eval__start=5, eval__every=5, eval__at=()),
    )


def of_pytorch(log: dict[str, Any]) -> Table:
    """NVIDIA's PyTorch SSD of v0.7: the MXNet one's rates and colors, the reference's network and decoding."""
    reference = {name: cell for name, cell in ssd.REFERENCE.items() if name.startswith("model.")}
    return joined(
        of_mxnet(log),
        reference,
        sheet("v0.7 NVIDIA pytorch ssd300.py: one convolution a level", model__heads="fused"),
        sheet(
            "build_pipeline.py: the reference's default boxes, DALI's BoxEncoder", model__parity__box_order="anchor-last"
        ),
        sheet("dali_pipeline.py: ColorTwist, one matrix", input__color_jitter="matrix"),
        sheet(
            "train.py: torch's SGD, its warm-up's steps from 0",
            optim__momentum_style="torch",
            schedule__warmup_step_offset=0,
        ),
        sheet("parse_config.py --evaluation", eval__at=(40, 50, 55, 60, 65, 70, 75, 80)),
    )


def of_tpu(log: dict[str, Any], epochs: int) -> Table:
    """Google's TensorFlow SSD of v0.7: rates are logged for 32 images, with the batch's multiple of these as the warm-up's factor."""
    batch = log["global_batch_size"]
    return joined(
        ssd.gaudi(batch),
        ours(GOOGLE, epochs=epochs),
        sheet(
            "its log",
            bn_batch_size=log["model_bn_span"],
            optim__lr=log["opt_learning_rate_warmup_factor"] * log["opt_base_learning_rate"],
            optim__weight_decay=log["opt_weight_decay"],
            schedule__warmup=log["opt_learning_rate_warmup_steps"] / steps_of(117_266, batch),
            schedule__milestones=tuple(log["opt_learning_rate_decay_boundary_epochs"]),
            input__crop_trials=log["max_samples"],
            eval__start=log["evaluated"][0],
            eval__every=log["evaluated"][1] - log["evaluated"][0],
        ),
    )


def of_nvidia(log: dict[str, Any], accelerators: int, steps: int) -> Table:
    """NVIDIA's PyTorch Mask R-CNN; steps: SOLVER_MAX_ITER of the submission's configuration file."""
    batch, lr, warmup = log["global_batch_size"], log["opt_base_learning_rate"], log["opt_learning_rate_warmup_steps"]
    each = batch // accelerators
    return joined(
        maskrcnn.nvidia(
            batch,
            each,
            lr,
            warmup,
            max(0.0, 1 - warmup * log["opt_learning_rate_warmup_factor"] / lr),
            tuple(log["opt_learning_rate_decay_steps"]),
            steps,
            per_batch=True,
        ),
        sheet(
            "its log's num_image_candidates, whole ones for each image",
            model__rpn__post_nms_topk_train=round(log["num_image_candidates"] / each),
            model__parity__post_nms_batch=log["num_image_candidates"] if log["num_image_candidates"] % each else 0,
        ),
    )


# Lengths, which no log has: SOLVER_MAX_ITER where it is not 40,000, NUMEPOCHS where it is not 80; TPU rows' are ours.
STEPS = {"maskrcnn@dell-4xa100-40gb-48": 80_000}  # config_1xXE8545x4A100-SXM4-40GB.sh
EPOCHS = {
    "ssd@nvidia-dgx-a100-v1.1-912": 65,  # config_DGXA100_1x8x114.sh
    "ssd@nvidia-8xdgx-a100-v1.1-1536": 70,  # config_DGXA100_multi_8x8x24x2.sh
    "ssd@nvidia-128xdgx-a100-3072": 90,  # config_DGXA100_multi_128x8x3x8.sh
    "ssd@google-tpu-v3-4096": 100,
}


def logged(name: str, row: PublishedRecipe) -> Table:
    """The table of a row with a log."""
    log, workload = LOGS[name], name.partition("@")[0]
    if workload == "resnet50":
        return of_lars(log)
    if workload == "maskrcnn":
        return of_nvidia(log, row.nodes * row.per_node, STEPS.get(name, 40_000))
    if row.source.startswith("v1.1"):
        return of_later_mxnet(log, EPOCHS.get(name, 80))
    return of_tpu(log, EPOCHS.get(name, 80)) if "Google" in row.source else of_pytorch(log)


# Rows without a log: steps of an epoch, of the warm-up, the rate, decay, span, falls (or the schedule's length in epochs), from the
# files that their sources name.
FROM_FILES = {
    "resnet50@nvidia-316x8xh100-40448": (32, 24 * 32, 19.4, 1e-4, 32, 70),
    "resnet50@nvidia-527x8xa100-67456": (19, 31 * 19, 24.699, 1e-4, 32, 90),
    "ssd@dell-dgx-a100-1x8x2x1-16": (7330, 190_557, 2.5e-3, 4e-5, 2, (61, 76)),
    "ssd@dell-dgx-a100-1x8x2x8-16": (7330, 190_557, 2.5e-3, 4e-5, 16, (61, 76)),
    "ssd@dell-dgx1-1024": (115, 299, 0.08, 5e-4, 128, (44, 55)),
    "ssd@dell-dgx1-gbn2-512": (230, 299, 0.04, 5e-4, 128, (44, 55)),
    "ssd@dell-dgx1-gbn4-256": (459, 299, 0.02, 5e-4, 128, (44, 55)),
    "ssd@reference-1x8-1024": (115, 299, 0.08, 5e-4, 128, (40, 50)),
    "ssd@reference-2x8-1024": (115, 299, 0.08, 5e-4, 64, (40, 50)),
    "ssd@habana-gaudi-50-epochs-128": (917, 4585, 0.012, 5e-4, 128, (40, 50)),
    "ssd@habana-8xgaudi-cosine-1024": (115, 805, 1.01 * 0.096, 5e-4, 128, 55),
    "ssd@habana-gaudi2-240": (489, 3423, 1.01 * 0.0225, 5e-4, 240, 55),
    "ssd@habana-8xgaudi2-1920": (62, 434, 1.01 * 0.18, 5e-4, 240, 55),
    "maskrcnn@dell-32x4xa100-40gb-256": (459, 1800, 0.24, 1e-4, 1, (5627 / 459, 7501 / 459)),
    "maskrcnn@gluoncv-26-epochs-8": (14_659, 1000, 0.01, 1e-4, 1, (17, 23)),
}


def from_mxnet_files(name: str, batch: int) -> Table:
    """A configuration or a script of Dell's."""
    per_epoch, warmup, lr, decay, span, falls = FROM_FILES[name]
    return ssd.mxnet(batch, span, lr, warmup, per_epoch, decay, falls=falls)


def from_reference_files(name: str, batch: int) -> Table:
    """A configuration of the reference: steps of the warm-up from 0."""
    per_epoch, warmup, lr, _, span, _ = FROM_FILES[name]
    return joined(
        ssd.REFERENCE,
        sheet("config_DGX1_*node.sh", global_batch_size=batch, bn_batch_size=span, optim__lr=lr),
        sheet("train.py: 2.619685 epochs in whole steps, from 0", schedule__warmup=warmup / per_epoch, schedule__warmup_step_offset=0),
    )  # fmt: skip


def from_cosine(name: str, batch: int) -> Table:
    """Habana's cosine for another batch or card: the rate in proportion."""
    _, _, lr, _, span, _ = FROM_FILES[name]
    return joined(
        ssd.TABLES["ssd-gaudi-cosine"],
        sheet(
            "SSD 6 B (>=1.7.0), -b", global_batch_size=batch, bn_batch_size=span, optim__lr=lr, schedule__min_lr=lr / 101
        ),
    )


SCALE_OUT = sheet("SSD 14.1 D:config_DGXA100_1x8x2x*.sh NUMEPOCHS", epochs=10)
TYPED: dict[str, Table] = {
    "resnet50@nvidia-316x8xh100-40448": resnet50.config(40_448, 16, 19.4, 24, 70, 1e-4, 0.95, 2, group=2),
    "resnet50@nvidia-527x8xa100-67456": joined(
        resnet50.config(67_456, 16, 24.699, 31, 90, 1e-4, 0.951807, 2, group=2),
        sheet("A 4.1 sgdwfastlarsv2: its decay vector is one constant", optim__no_decay="none"),
    ),
    "ssd@dell-dgx-a100-1x8x2x1-16": joined(from_mxnet_files("ssd@dell-dgx-a100-1x8x2x1-16", 16), SCALE_OUT),
    "ssd@dell-dgx-a100-1x8x2x8-16": joined(from_mxnet_files("ssd@dell-dgx-a100-1x8x2x8-16", 16), SCALE_OUT),
    "ssd@dell-dgx1-1024": from_mxnet_files("ssd@dell-dgx1-1024", 1024),
    "ssd@dell-dgx1-gbn2-512": from_mxnet_files("ssd@dell-dgx1-gbn2-512", 512),
    "ssd@dell-dgx1-gbn4-256": from_mxnet_files("ssd@dell-dgx1-gbn4-256", 256),
    "ssd@reference-1x8-1024": from_reference_files("ssd@reference-1x8-1024", 1024),
    "ssd@reference-2x8-1024": from_reference_files("ssd@reference-2x8-1024", 1024),
    "ssd@habana-gaudi-50-epochs-128": joined(ssd.gaudi(128), sheet("Habana 1.5.0: default length", epochs=50)),
    "ssd@habana-8xgaudi-cosine-1024": from_cosine("ssd@habana-8xgaudi-cosine-1024", 1024),
    "ssd@habana-gaudi2-240": from_cosine("ssd@habana-gaudi2-240", 240),
    "ssd@habana-8xgaudi2-1920": from_cosine("ssd@habana-8xgaudi2-1920", 1920),
    "maskrcnn@dell-32x4xa100-40gb-256": maskrcnn.nvidia(256, 2, 0.24, 1800, 0.0025, (5_625, 7_500), 40_000, per_batch=True),
    "maskrcnn@gluoncv-26-epochs-8": joined(
        maskrcnn.gluoncv(8, 8, 0.01, 1000 / 14_659, 1 / 3, (17, 23), ()),
        sheet("train_mask_rcnn.py --epochs, --clip-gradient -1", epochs=26, optim__clip_value=0.0),
    ),
}  # fmt: skip
TABLES: dict[str, Table] = {name: logged(name, row) if name in LOGS else TYPED[name] for name, row in ROWS.items()}
