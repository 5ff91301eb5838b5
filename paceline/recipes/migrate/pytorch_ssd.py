"""SSD of the MLPerf reference and of NVIDIA's PyTorch submission (v0.7), the sisters of the MXNet system: two programs called train.py.

Source: github.com/mlcommons/training, retired_benchmarks/ssd-v1/ssd (train.py, run_and_time.sh, config_DGX1_*.sh);
github.com/mlcommons/training_results_v0.7, NVIDIA/benchmarks/ssd/implementations/pytorch (parse_config.py, train.py, run_and_time.sh,
config_*.sh), and the copies of it of Fujitsu and Inspur.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from paceline.config.recipe import Recipe
from paceline.recipes.migrate.mxnet_ssd import VARIABLES, WEIGHTS
from paceline.recipes.migrate.table import (
    Call,
    Facts,
    Line,
    Original,
    Page,
    Program,
    Script,
    Section,
    direct,
    gone,
    settled,
)
from paceline.recipes.ssd import TRAIN_IMAGES, mlperf, nvidia_pytorch

# Flags of both.
SAVE = gone("--no-save", bool, False, "none: a run always saves; `--keep 1` keeps the newest and the best")
RANK = gone("--local_rank", int, 0, "automatic: from the launcher's variables")
ITERATION = gone("--iteration", int, 0, "automatic: a resumed run knows its step")
CHECKPOINT = direct(
    "--checkpoint", str, None, "--weights iter_1000.pt", "its detection heads are turned into our order", by="weights"
)
DECODING = gone(
    "--num-workers", int, 4, "automatic: cores of a node / ranks on it", "said with `--system.loader-threads 4`"
)
WARMUP_FROM = "f there starts at 1 - 2^-f of the rate"

REFERENCE_FLAGS = (
    direct("--data -d", str, "/coco", "--data /data/coco", by="data"),
    direct("--pretrained-backbone", str, None, "--weights resnet34-mlperf", "torchvision's of 2017, which theirs brought unasked", by="weights"),
    settled("--epochs -e", int, 800, "epochs", "--epochs 800"),
    settled("--batch-size -b", int, 32, "global_batch optim.lr bn_span", "--global-batch 32", "of all GPUs together"),
    gone("--val-batch-size", int, None, "automatic: as in training", "`paceline eval RUN --batch 64`"),
    direct("--no-cuda", bool, False, "--system cpu", by="launch"),
    direct("--seed -s", int, None, "--seed {}", example="7"),
    settled("--threshold -t", float, 0.23, "quality.targets", "--quality.targets box_ap 0.23"),
    ITERATION,
    CHECKPOINT,
    SAVE,
    settled("--val-interval", int, 5, "quality.first quality.every quality.at", "--quality.every 5"),
    settled("--val-epochs", [int], (), "quality.at", "--quality.at 40 50 55"),
    direct("--batch-splits", int, 1, "--system.images-per-forward 8", "accumulates by itself where a batch does not fit", by="launch"),
    settled("--lr-decay-schedule", [int], (40, 50), "schedule.boundaries", "--schedule.boundaries 40 50"),
    settled("--warmup", float, None, "schedule.warmup schedule.warmup_first", "--schedule.warmup 2.619685", "their epochs, as whole steps: 299 / 115 of ours"),
    settled("--warmup-factor", int, 0, "schedule.warmup_from", "--schedule.warmup-from 0", WARMUP_FROM),
    settled("--lr", float, 2.5e-3, "optim.lr", "--optim.lr 2.5e-3", "theirs for 32 images, ours for the batch"),
    settled("--weight-decay", float, 5e-4, "optim.weight_decay", "--optim.weight-decay 5e-4"),
    direct("--num-cropping-iterations", int, 1, "--input.crop-attempts {}"),
    direct("--nms-valid-thresh", float, 0.05, "--model.detect.score-above {}"),
    direct("--log-interval", int, 100, "--log-every {}"),
    RANK,
)  # fmt: skip

NVIDIA_FLAGS = (
    direct("--eval-batch-size", int, 32, "automatic: as in training", "`paceline eval RUN --batch 64`"),
    gone("--dali", bool, False, "dead: no DALI"),
    gone("--no-dali", bool, False, "dead: no DALI"),
    direct("--fake-input", bool, False, "--synthetic"),
    gone("--input-batch-multiplier", int, 1, "dead: the loader renders photos one by one on threads"),
    gone("--dali-sync", bool, False, "dead: no DALI"),
    direct("--dali-cache", int, -1, "--system.cache {}GiB", "encoded photos, of a node", example="40"),
    gone("--use-nvjpeg", bool, False, "none: no decoder on the accelerator", "`--input.decoder nvimgcodec` decodes a crop alone, on the CPU"),
    gone("--use-roi-decode", bool, False, "dead: it did nothing"),
    gone("--meta_files_path", str, None, "dead: DALI's"),
    DECODING,
    direct("--use-fp16", bool, False, "--system.precision fp16", by="launch"),
    direct("--jit", bool, False, "--system.compile", "theirs traced; torch.compile fuses, and is not set for you", by="launch"),
    direct("--nhwc", bool, False, "--system.channels-last", "the default"),
    gone("--pad-input", bool, False, "none: SSD's photos have three channels"),
    gone("--allreduce-running-stats", bool, False, "fixed: running statistics are averaged exactly before each evaluation"),
    gone("--no-allreduce-running-stats", bool, False, "none: they are averaged always"),
    settled("--evaluation", [int], (40, 50, 55, 60, 65, 70, 75, 80, 85), "quality.at", "--quality.at 40 50 55 60"),
    settled("--warmup", int, None, "schedule.warmup", "--schedule.unit steps --schedule.warmup 650 --schedule.boundaries 5676 7095", "iterations there; boundaries are in the same unit"),
    settled("--lr-decay-epochs", [int], (44, 55), "schedule.boundaries", "--schedule.boundaries 44 55"),
    direct("--lr-decay-factor", float, 0.1, "--schedule.factor {}"),
    settled("--wd", float, 5e-4, "optim.weight_decay", "--optim.weight-decay 1.3e-4"),
    direct("--delay-allreduce", bool, False, "--system.bucket-mib 1024", "one bucket travels when the backward ends", by="launch"),
    gone("--opt-loss", bool, False, "dead: it did nothing"),
    settled("--bn-group", int, 1, "bn_span", "--bn-span 228", "images"),
    direct("--profile", int, None, "--profile 50:53 --steps 53", by="launch"),
    direct("--profile-start", int, None, "--profile 50:53", by="launch"),
    direct("--profile-nvtx", bool, False, "--profile nvtx:50:53", "inside `nsys profile --capture-range=cudaProfilerApi`; ranges: each step, its forward, backward and update, each operation", by="launch"),
    gone("--profile-gc-off", bool, False, "none: Python's collector stays on"),
    gone("--profile-cudnn-get", bool, False, "none: chosen algorithms are not printed"),
    gone("--profile-fake-optim", bool, False, "none: no step without its update"),
    direct("--print-interval", int, 20, "--log-every {}"),
    direct("--backbone", str, "resnet34", "--model.depth 34", values={"resnet18": "--model.depth 18", "resnet50": "--model.depth 50"}),
    gone("--model-path", str, "./vgg16n.pth", "dead: no VGG"),
    gone("--num-classes", int, 81, "automatic: the data know their classes"),
    direct("--input-size", int, 300, "--input.size {}"),
)  # fmt: skip

# Those that both have, with other defaults.
NVIDIA_SHARED = (
    *(one for one in REFERENCE_FLAGS if one.names[0] in ("--data", "--batch-size", "--seed")),
    settled("--epochs -e", int, 800, "epochs", "--epochs 80"),
    settled("--threshold -t", float, 0.212, "quality.targets", "--quality.targets box_ap 0.23"),
    settled("--warmup-factor", int, 1, "schedule.warmup_from", "--schedule.warmup-from 0.5", WARMUP_FROM),
    settled("--lr", float, 2.68e-3, "optim.lr", "--optim.lr 0.09", "theirs for 32 images, ours for the batch, after the rule of integer multiples"),
    gone("--save", bool, False, "fixed: a run always saves"),
    ITERATION, CHECKPOINT, SAVE, RANK,
)  # fmt: skip


def _facts(call: Call, *, steps: int, lr: float, warmup: int, decay: tuple[int, ...], weight_decay: float) -> Facts:
    return Facts(
        global_batch=call["--batch-size"] * call.devices,
        batch_per_device=call["--batch-size"],
        devices=call.devices,
        steps_per_epoch=steps,
        epochs=call["--epochs"],
        steps=call["--epochs"] * steps,
        lr=lr,
        warmup_steps=warmup,
        decay="steps",
        decay_steps=tuple(epoch * steps for epoch in decay),
        weight_decay=weight_decay,
        weights=weights(call),
        target=f"box_ap {call['--threshold']:g}",
    )


def reference_facts(call: Call) -> Facts:
    """By train.py: a sampler that fills the last rank's share, a loader that keeps the last, shorter batch."""
    batch = call["--batch-size"] * call.devices
    return _facts(
        call,
        steps=math.ceil(math.ceil(TRAIN_IMAGES / call.devices) / call["--batch-size"]),
        lr=call["--lr"] * batch / 32,
        warmup=int((call["--warmup"] or 0) * TRAIN_IMAGES / batch),
        decay=call["--lr-decay-schedule"],
        weight_decay=call["--weight-decay"],
    )


def reference_recipe(call: Call) -> Recipe:
    """The family's constructor with the line's numbers."""
    batch = call["--batch-size"] * call.devices
    made = mlperf(batch, warmup=call["--warmup"] or 0.0, bn_span=call["--batch-size"])
    every, epochs = call["--val-interval"], float(call["--epochs"])
    at = (
        tuple(map(float, sorted({*call["--val-epochs"], *range(every, int(epochs) + 1, every)})))
        if call["--val-epochs"]
        else ()
    )
    return replace(
        made,
        epochs=epochs,
        optim=replace(made.optim, lr=call["--lr"] * batch / 32, weight_decay=call["--weight-decay"]),
        schedule=replace(
            made.schedule,
            boundaries=tuple(map(float, call["--lr-decay-schedule"])),
            warmup_from=1 - 2.0 ** -call["--warmup-factor"] if call["--warmup"] else 0.0,
        ),
        quality=replace(made.quality, first=every, every=every, at=at, targets=(("box_ap", call["--threshold"]),)),
    )


def nvidia_facts(call: Call) -> Facts:
    """By train.py and data/dali_pipeline.py: a rank's shard is the whole part of its share, its last batch is kept."""
    batch = call["--batch-size"] * call.devices
    return _facts(
        call,
        steps=math.ceil(TRAIN_IMAGES // call.devices / call["--batch-size"]),
        lr=2.5e-3 * max(1, round(call["--lr"] / 2.5e-3 * batch / 32)),
        warmup=call["--warmup"] or 0,
        decay=call["--lr-decay-epochs"],
        weight_decay=call["--wd"],
    )


def nvidia_recipe(call: Call) -> Recipe:
    """The family's constructor with the line's numbers."""
    batch = call["--batch-size"] * call.devices
    span = call["--bn-group"] * call["--batch-size"]
    made = nvidia_pytorch(batch, lr=call["--lr"], warmup=call["--warmup"] or 0, decay=call["--wd"], bn_span=span)
    # Evaluations come before an epoch, so the last one of the list is made by no run that ends there; ours evaluates every end.
    at = tuple(float(epoch) for epoch in call["--evaluation"] if epoch <= call["--epochs"])
    return replace(
        made,
        epochs=float(call["--epochs"]),
        schedule=replace(
            made.schedule,
            boundaries=tuple(map(float, call["--lr-decay-epochs"])),
            warmup_from=1 - 2.0 ** -call["--warmup-factor"] if call["--warmup"] else 0.0,
        ),
        quality=replace(made.quality, at=at or made.quality.at, targets=(("box_ap", call["--threshold"]),)),
    )


def nvidia_system(call: Call) -> dict[str, Any]:
    """fp16 has a static scale of 128 there, whether asked for or not: apex O2 is always on."""
    return {"precision": "fp16", "loss_scale": 128.0}


def data(call: Call) -> str:
    """The folder of the data: outside the container where the line names it."""
    outside = call.variables.get("DATADIR", "")
    return f"{outside.rstrip('/')}/coco2017" if outside else call.given.get("--data", "")


def weights(call: Call) -> str:
    """What is named, else torchvision's of 2017, which both bring unasked."""
    named = call.given.get("--checkpoint") or call.given.get("--pretrained-backbone") or WEIGHTS
    return WEIGHTS if "resnet34-333f7ec4" in named else named


REFERENCE = Program(
    of="mxnet-ssd",
    files=("train.py",),
    flags=REFERENCE_FLAGS,
    facts=reference_facts,
    recipe=reference_recipe,
    candidates=("ssd", "ssd@reference-1x8-1024", "ssd@reference-2x8-1024"),
    system=lambda call: {"precision": "fp32", "loss_scale": 0.0},
    data=data,
    weights=weights,
    settle=lambda call: replace(call, machine="cpu") if "--no-cuda" in call.given else call,
    differs=(
        ("an epoch's last, shorter batch is filled from the next epoch", "Short last batch of `ssd`"),
        (
            "an object on no default box is left out, and what a crop leaves of it when that is thinner than a thousandth",
            "thin objects",
        ),
        ("all 5,000 photos are scored", "last batch of an evaluation, SSD"),
    ),
    source="train.py",
)

NVIDIA = Program(
    of="mxnet-ssd",
    files=("train.py",),
    flags=(*NVIDIA_SHARED, *NVIDIA_FLAGS),
    facts=nvidia_facts,
    recipe=nvidia_recipe,
    candidates=(
        "ssd@nvidia-dgx-a100-pytorch-912", "ssd@nvidia-2xdgx-a100-pytorch-896", "ssd@nvidia-dgx1-pytorch-960",
        "ssd@nvidia-dgx2-pytorch-896", "ssd@nvidia-4xdgx2-pytorch-1536", "ssd@fujitsu-8xv100-960", "ssd@inspur-8xa100-912",
    ),
    system=nvidia_system,
    data=data,
    weights=weights,
    differs=(
        ("colours are changed by one matrix", "colours of the PyTorch rows (`ssd@*-pytorch-*`)"),
        ("all 5,000 photos are scored", "last batch of an evaluation, SSD"),
    ),
    explains=dict.fromkeys(("steps_per_epoch", "steps", "decay_steps"), "steps of an epoch over many ranks"),
    source="parse_config.py",
)  # fmt: skip


def _config(nodes: int, gpus: int, flags: str, prefix: str = "DGX") -> str:
    return f"export {prefix}NNODES={nodes} {prefix}NGPU={gpus}; export EXTRA_PARAMS='{flags}'"


WARM = "--warmup 2.619685"
REFERENCE_CONFIGS = {
    "config_DGX1_32.sh": f"{_config(1, 1, '--batch-size 32')} WALLTIME=12:00:00",
    "config_DGX1_singlenode.sh": f"{_config(1, 8, f'--batch-size 128 {WARM}')} WALLTIME=12:00:00",
    "config_DGX1_multinode.sh": f"{_config(2, 8, f'--batch-size 64 {WARM}')} WALLTIME=12:00:00",
}
LARGE = "--warmup=650 --lr=3.2e-3 --wd=1.3e-4"
NVIDIA_CONFIGS = {
    "config_DGX1.sh": _config(1, 8, "--batch-size=120 --eval-batch-size=160 --warmup=650 --lr=2.92e-3 --wd=1.6e-4 --use-nvjpeg"),
    "config_DGX2.sh": _config(1, 16, f"--batch-size=56 --eval-batch-size=160 {LARGE} --num-workers=3"),
    "config_DGX2_multi_4x16x24.sh": _config(
        4, 16, "--batch-size=24 --eval-batch-size=40 --warmup=850 --num-workers=3 --lr=2.9e-3 --wd=1.7e-4 --use-nvjpeg"
    ),
    "config_DGXA100.sh": _config(1, 8, f"--batch-size=114 {LARGE}"),
    "config_DGXA100_multi_2x8x56.sh": _config(2, 8, f"--batch-size=56 --eval-batch-size=160 {LARGE}"),
    "config_PG.sh": _config(1, 8, "--batch-size 120 --eval-batch-size 160 --warmup 650 --lr 2.92e-3 --wd 1.6e-4 --use-nvjpeg", "PG"),
    "config_NF5488.sh": _config(1, 8, f"--batch-size=114 {LARGE} --num-workers=8", "NF"),
}  # fmt: skip

SCRIPTS = (
    Script(("run.sub",), defaults=": ${NEXP:=5}", through="slurm", start="srun", container="pyxis"),
    Script(("run_with_docker.sh",), defaults=": ${NEXP:=5}", container="docker"),
    Script(("run_and_time.sh",)),
)
TOOLS = (
    Line("`bind_launch`", "`torchrun --nproc-per-node 8 -m paceline train ssd-mlperf-1024 --system dgx1 --system.bind exclusive --weights resnet34-mlperf`", files=("bind_launch", "bind_launch.py")),
    Line("`download_dataset.sh`", "`paceline download coco2017 /data/coco`", files=("download_dataset.sh",)),
)  # fmt: skip
SAME = {"name": "mxnet-ssd", "scripts": SCRIPTS, "variables": VARIABLES, "marks": frozenset({"EXTRA_PARAMS"})}

REFERENCE_ORIGINAL = Original(
    **SAME,
    programs=(REFERENCE,),
    configs=REFERENCE_CONFIGS,
    tools=TOOLS,
    call="train.py --epochs ${NUMEPOCHS:-70} --warmup-factor 0 --lr 2.5e-3 --no-save --threshold=0.23 --data ${DATASET_DIR:-/data/coco2017}"
    " ${EXTRA_PARAMS}",
    config="config_${DGXSYSTEM}.sh",
    machines={"DGX1": "dgx1"},
    nodes=("DGXNNODES",),
    per_node=("DGXNGPU",),
)
NVIDIA_ORIGINAL = Original(
    **SAME,
    programs=(NVIDIA,),
    configs=NVIDIA_CONFIGS,
    call="train.py --use-fp16 --nhwc --pad-input --jit --delay-allreduce --opt-loss --epochs ${NUMEPOCHS:-80} --warmup-factor 0 --no-save"
    " --threshold=0.23 --data ${DATASET_DIR:-/data/coco2017} ${EXTRA_PARAMS}",
    config="config_${DGXSYSTEM:-${NFSYSTEM:-$PGSYSTEM}}.sh",
    machines={"DGX1": "dgx1-16gb", "DGX2": "dgx2", "DGXA100": "dgx-a100", "PG": "v100x8", "NF5488": "a100x8"},
    nodes=("DGXNNODES", "PGNNODES", "NFNNODES"),
    per_node=("DGXNGPU", "PGNGPU", "NFNGPU"),
)

PAGE = Page(
    name="ssd-reference",
    title="SSD of the MLPerf reference, and NVIDIA's PyTorch submission (v0.7)",
    text="""The reference's recipe is `ssd`; NVIDIA's PyTorch submission is the rows
`ssd@nvidia-*-pytorch-*` (`paceline list rows`), Fujitsu's and Inspur's `ssd@fujitsu-8xv100-960` and `ssd@inspur-8xa100-912`.""",
    sections=(
        Section(
            "Commands",
            (
                Line("`run_and_time.sh` with `config_DGX1_32.sh` (1 GPU)", run="source config_DGX1_32.sh; bash run_and_time.sh"),
                Line("`config_DGX1_singlenode.sh` (8 x 128)", run="source config_DGX1_singlenode.sh; bash run_and_time.sh", remark="warm-up 2.619685 epochs: 299 steps"),
                Line("`config_DGX1_multinode.sh` (2 x 8 x 64)", run="source config_DGX1_multinode.sh; sbatch -N $DGXNNODES run.sub"),
                *(Line(f"`{name}` of {'Fujitsu' if 'PG' in name else 'Inspur' if 'NF' in name else 'NVIDIA, PyTorch'}", run=f"source {name}; sbatch -N {nodes} run.sub" if nodes > 1 else f"source {name}; bash run_and_time.sh", of="mxnet-ssd")
                  for name, nodes in zip(NVIDIA_CONFIGS, (1, 1, 4, 1, 2, 1, 1), strict=True)),
                *TOOLS,
            ),
        ),
        Section("Flags of the reference's train.py", REFERENCE_FLAGS, follows="train ssd --data /data/coco --weights resnet34-mlperf"),
        Section(
            "Further flags of NVIDIA's PyTorch submission", NVIDIA_FLAGS,
            follows="train ssd-mlperf-912 --system dgx-a100 --data /data/coco --weights resnet34-mlperf",
            text="Where both have a flag, NVIDIA's defaults are lr 2.68e-3, threshold 0.212 and warm-up factor 1.",
        ),
    ),
)  # fmt: skip
