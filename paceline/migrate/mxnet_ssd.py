"""SSD-ResNet34 in MXNet, MLPerf v0.7: `ssd_main.py`, the programs of Dell's and NVIDIA's submissions.

Source: github.com/mlcommons/training_results_v0.7, DellEMC/benchmarks/ssd/implementation/mxnet (ssd_main.py, run_and_time.sh, run.slurm,
config_*.sh, scripts/train/dgx1) and NVIDIA/benchmarks/ssd/implementations/mxnet (run.sub, config_*_multi_*.sh).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from paceline.config.recipe import Recipe
from paceline.migrate.table import Call, Facts, Original, Program, Script, direct, gone, settled
from paceline.recipes.ssd import TRAIN_IMAGES, mxnet

WEIGHTS = "resnet34-mlperf"

FLAGS = (
    gone("--mode", str, "train_val", "paceline eval RUN --checkpoint all", "only train_val worked there; `train` is that"),
    direct("--backbone", str, "resnet34_mlperf", "--model.depth 34", "one choice there; here ResNets of nine depths and `--model.trunk timm/NAME`", values={}),
    settled("--bn-group", int, 1, "bn_span", "--bn-span 256", "images, not ranks: batch of a GPU times their group"),
    gone("--bn-fp16", bool, False, "none: statistics, gamma and beta stay float32"),
    direct("--no-fuse-bn-add-relu", bool, False, "--system.no-compile", "torch.compile fuses; without it kernels are apart"),
    direct("--no-fuse-bn-relu", bool, False, "--system.no-compile"),
    direct("--precision", str, "fp16", "--system.precision fp16", "fp32 likewise; their amp is fp16 with `--system.loss-scale 0`, which is dynamic", values={}),
    direct("--fp16-loss-scale", float, 128.0, "--system.precision fp16 --system.loss-scale 128", values={}),
    gone("--dataset", str, "coco2017", "--data /data/coco", "any prepared set", values={}),
    direct("--synthetic", bool, False, "--synthetic", "batches are made up: no data are read"),
    gone("--use-tfrecord", bool, False, "automatic: data are read as they were prepared", "`paceline prepare tfrecord`"),
    settled("--coco-root", str, "/datasets/coco2017", "", "--data /data/coco", by="data"),
    settled("--tfrecord-root", str, "/datasets/coco2017/tfrecord/", "", "--data /data/coco-tfrecord", by="data"),
    gone("--dataset-size", int, None, "automatic: the index knows, 117,266", "fewer: `--limit-train 10000`"),
    gone("--eval-dataset-size", int, None, "automatic: 5,000, each scored once", "fewer: `--limit-val 500`"),
    direct("--input-jpg-decode", str, "gpu", "--input.decoder nvimgcodec", "decoding runs on the CPU: cpu is theirs that comes nearest; nvimgcodec decodes a crop alone. cache: `--system.cache 40GiB`, of encoded photos", values={}),
    gone("--hw-decoder-load", float, 0.0, "none: no decoder on the accelerator"),
    settled("--batch-size", int, 32, "global_batch optim.lr", "--global-batch 1024 --optim.lr 0.1875", "of all GPUs together"),
    gone("--eval-batch-size", int, None, "automatic: as in training, at most a rank's share", "`paceline eval RUN --batch 64`"),
    direct("--data-shape", int, 300, "--input.size {}", "others work too"),
    direct("--data-layout", str, "NHWC", "--system.channels-last", "NCHW: `--system.no-channels-last`", values={}),
    gone("--input-batch-multiplier", int, 1, "dead: the loader renders photos one by one on threads, whatever the batch"),
    direct("--dali-workers -j", int, 6, "--system.loader-threads {}", "0 is automatic"),
    direct("--seed", int, None, "--seed {}", "1 if unsaid, never random", example="7"),
    settled("--pretrained-backbone", str, None, "", "--weights resnet34-mlperf", "brought, checked and cached; of their pickle: `paceline weights convert resnet34-333f7ec4.pickle --to ours --out resnet34-333f7ec4.safetensors`", by="weights"),
    settled("--epochs", int, 80, "epochs", "--epochs 80"),
    gone("--gradient-predivide-factor", float, 1.0, "dead: gradients are averaged in float32 unless `--system.compress bf16`"),
    gone("--horovod-num-groups", int, 1, "dead: gradients travel in buckets of `--system.bucket-mib 25`, whatever their number"),
    settled("--resume-from", str, "", "", "--weights model.params", "weights alone, as theirs; a run goes on by naming its `--out runs/ssd` again", by="weights"),
    gone("--start-epoch", int, 1, "automatic: a resumed run knows its step"),
    settled("--lr", float, None, "optim.lr", "--optim.lr 0.1875", "of the whole batch, after their rule of integer multiples"),
    direct("--lr-decay-factor", float, 0.1, "--schedule.factor {}"),
    settled("--lr-decay-epochs", [int], (44, 55), "schedule.boundaries", "--schedule.boundaries 44 55"),
    settled("--lr-warmup-epochs", float, None, "schedule.warmup", "--schedule.warmup 5.25"),
    direct("--lr-warmup-factor", float, 0.0, "--schedule.warmup-from 0", "their factor 0 is a ramp from 0; other factors f start at 1 - 2^-f of the rate", values={}),
    direct("--momentum", float, 0.9, "--optim.momentum {}", "MXNet's form: `--optim.momentum-form lr_inside`, in the recipe"),
    settled("--weight-decay", float, 5e-4, "optim.weight_decay", "--optim.weight-decay 1.6e-4"),
    direct("--save-interval", int, None, "--save-every 115", "steps", values={}),
    direct("--async-val", bool, False, "--system.score-beside", "the default", values={}),
    settled("--val-interval", int, None, "quality.at quality.first quality.every", "--quality.at --quality.first 5 --quality.every 5", "epochs; the first flag empties the list of exact points"),
    settled("--val-epochs", [int], (40, 50, 55, 60, 65, 70, 75, 80), "quality.at", "--quality.at 40 50 55 60 65 70 75 80"),
    settled("--target-map -t", float, 23.0, "quality.targets", "--quality.targets box_ap 0.23", "a fraction, not percent"),
    gone("--cocoapi-threads", int, 1, "automatic: scoring has a thread of its own"),
    direct("--nms-valid-thresh", float, 0.0, "--model.detect.score-above {}", example="0"),
    direct("--nms-overlap-thresh", float, 0.5, "--model.detect.iou {}", "1 keeps all"),
    direct("--nms-topk", int, 200, "--model.detect.candidates {} --model.detect.candidates-of image"),
    direct("--post-nms", int, 200, "--model.detect.keep {}"),
    gone("--bulk-last-wgrad", bool, False, "dead: a trick of MXNet's engine"),
    direct("--results", str, None, "--out {}", "always written", example="runs/ssd"),
    direct("--log-interval", int, 100, "--log-every {}", "steps"),
    gone("--log-level", str, "INFO", "--quiet", values={"CRITICAL": "--quiet", "ERROR": "--quiet", "WARNING": "--quiet"}),
    gone("--log-local-ranks", [int], (0,), "fixed: rank 0 speaks; what other ranks warn of is said with their number"),
    gone("--profile-no-horovod", bool, False, "automatic: one rank alone exchanges nothing"),
    direct("--profile-start", int, None, "--profile 50:53", "first step and end in one; the run goes on", values={}),
    direct("--profile-stop", int, None, "--profile 50:53 --steps 53", "theirs ended the run, which `--steps 53` does", values={}),
    gone("--test-initialization", bool, False, "none: no print of parameters' statistics", "`paceline weights check resnet34.pth` compares a file with the network"),
    gone("--test-anchors", bool, False, "none: no print of default boxes", "a test holds them to the reference's"),
)  # fmt: skip


def facts(call: Call) -> Facts:
    """By ssd_main.py, input_pipeline.py and lr_scheduler.py."""
    images = call["--dataset-size"] or TRAIN_IMAGES
    local, ranks = call["--batch-size"], call.devices
    batch = local * ranks
    steps = -(-(images // ranks) // local)  # a rank's shard is the whole part, its last batch is kept
    lr = 2.5e-3 * max(1, round((call["--lr"] or 2.5e-3) / 2.5e-3 * batch / 32))
    return Facts(
        global_batch=batch,
        batch_per_device=local,
        devices=ranks,
        steps_per_epoch=steps,
        epochs=call["--epochs"],
        steps=call["--epochs"] * steps,
        lr=lr,
        warmup_steps=int((call["--lr-warmup-epochs"] or 0) * images / batch),
        decay="steps",
        decay_steps=tuple(epoch * steps for epoch in call["--lr-decay-epochs"]),
        weight_decay=call["--weight-decay"],
        weights=weights(call) or "none",
        target=f"box_ap {call['--target-map'] / 100:g}",
    )


def recipe(call: Call) -> Recipe:
    """The family's constructor with the line's numbers."""
    made = mxnet(
        call["--batch-size"] * call.devices,
        lr=call["--lr"] or 2.5e-3,
        warmup=call["--lr-warmup-epochs"] or 0.0,
        decay=call["--weight-decay"],
        bn_span=call["--bn-group"] * call["--batch-size"],
        boundaries=tuple(map(float, call["--lr-decay-epochs"])),
        epochs=float(call["--epochs"]),
    )
    every = call["--val-interval"]
    at = {*call["--val-epochs"], *(range(every, call["--epochs"] + 1, every) if every else ())}
    return replace(
        made,
        quality=replace(
            made.quality, at=tuple(map(float, sorted(at))), targets=(("box_ap", call["--target-map"] / 100),)
        ),
    )


def system(call: Call) -> dict[str, Any]:
    """Number format and layout."""
    form = call["--precision"].lower()
    scale = call["--fp16-loss-scale"] if form == "fp16" else 0.0
    layout = {} if call["--data-layout"].upper() == "NHWC" else {"channels_last": False}
    return {"precision": "fp32" if form == "fp32" else "fp16", "loss_scale": scale, **layout}


def data(call: Call) -> str:
    """The folder of the data: outside the container where the line names it."""
    return call.variables.get("DATADIR") or call.variables.get("DATASET_DIR") or call.given.get("--coco-root", "")


def weights(call: Call) -> str:
    """Their one pickle by our name of it; another file as it is."""
    path = call["--resume-from"] or call["--pretrained-backbone"] or ""
    return WEIGHTS if "resnet34-333f7ec4" in path else path


SSD_MAIN = Program(
    of="mxnet-ssd",
    files=("ssd_main.py", "ssd_main_async.py"),
    flags=FLAGS,
    facts=facts,
    recipe=recipe,
    candidates=(
        "ssd-mlperf-512", "ssd-mlperf-1024", "ssd-mlperf-1024-dss8440", "ssd-mlperf-896", "ssd-mlperf-912", "ssd-mlperf-448",
        "ssd-mlperf-1536", "ssd-mlperf-2048", "ssd@dell-dgx1-1024", "ssd@dell-dgx1-gbn2-512", "ssd@dell-dgx1-gbn4-256",
        "ssd@dell-dgx-a100-1x8x2x1-16", "ssd@dell-dgx-a100-1x8x2x8-16",
    ),
    system=system,
    data=data,
    weights=weights,
    source="DellEMC ssd_main.py",
)  # fmt: skip


def _config(nodes: int, gpus: int, flags: str, more: str = "") -> str:
    return f"export NNODES={nodes} NGPU={gpus} {more}; export EXTRA_PARAMS='{flags}'"


SMALL = "--lr-warmup-epoch=5.25 --lr=2.92e-3 --weight-decay=1.6e-4"
CONFIGS = {
    "config_C4140.sh": _config(1, 4, f"--batch-size=128 {SMALL}", "TOBIND=0 WALLTIME=00:30:00"),
    # It says NNODES=1; the README starts it with -N 2.
    "config_2xC4140.sh": _config(
        2, 4, "--batch-size=128 --lr-warmup-epoch=5.25 --lr=5.84e-3 --weight-decay=1.6e-4", "TOBIND=0 WALLTIME=00:30:00"
    ),
}

ORIGINAL = Original(
    name="mxnet-ssd",
    programs=(SSD_MAIN,),
    scripts=(
        Script(("run.slurm",), through="slurm", start="mpirun", container="apptainer"),
        Script(("run.sub",), through="slurm", start="srun", container="pyxis"),
        Script(("run_with_docker.sh",), container="docker"),
        Script(("run_and_time.sh", "run_and_time_multi.sh")),
    ),
    configs=CONFIGS,
    call="ssd_main_async.py --log-interval=100 --coco-root=${DATASET_DIR:-/data/coco2017}"
    " --pretrained-backbone=${PRETRAINED_DIR:-/pretrained/mxnet}/resnet34-333f7ec4.pickle --data-layout=NHWC"
    " --epochs ${NUMEPOCHS:-80} --async-val --dataset-size 117266 --eval-dataset-size 5000 ${EXTRA_PARAMS}",
    config="config_${SYSTEM:-$DGXSYSTEM}.sh",
    machines={"4xC4140": "c4140", "2xC4140": "c4140", "C4140": "c4140", "DSS8440": "dss8440", "DGX1": "dgx1", "DGX2": "dgx2", "DGXA100": "dgx-a100"},
    nodes=("DGXNNODES", "NNODES"),
    per_node=("DGXNGPU", "NGPU"),
)  # fmt: skip
