"""SSD-ResNet34 in MXNet, MLPerf v0.7: `ssd_main.py`, the programs of Dell's and NVIDIA's submissions.

Source: github.com/mlcommons/training_results_v0.7, DellEMC/benchmarks/ssd/implementation/mxnet (ssd_main.py, run_and_time.sh, run.slurm,
config_*.sh, scripts/train/dgx1) and NVIDIA/benchmarks/ssd/implementations/mxnet (run.sub, config_*_multi_*.sh).
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.config.plan import steps_in_epoch
from paceline.config.recipe import Recipe
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
from paceline.recipes.ssd import TRAIN_IMAGES, mxnet

WEIGHTS = "resnet34-mlperf"
# What each config_*.sh of Dell and NVIDIA exports, and the scripts of scripts/train/dgx1, as shell text.
CONFIGS, DGX1 = json.loads(Path(__file__).with_name("mxnet_ssd_configs.json").read_text("utf-8")).values()
# In every training; rows of docs/deviations.md.
DIFFERS = (
    ("JPEGs are decoded on the CPU, at 1/2 to 1/8 where the crop stays large enough", "decoding"),
    ("evaluation in float32, theirs in float16", "16 bits in evaluation"),
    ("crops of whole pixels; a crop's overlap above its threshold", "crop's corners"),
    ("an object on no default box is left out", "objects on no default box"),
)

FLAGS = (
    gone("--mode", str, "train_val", "paceline eval RUN --checkpoint all", "only train_val worked there; `train` is that"),
    direct("--backbone", str, "resnet34_mlperf", "--model.depth 34", "one choice there; here ResNets of nine depths and `--model.trunk timm/NAME`", values={}),
    settled("--bn-group", int, 1, "bn_span", "--bn-span 256", "images, not ranks: batch of a GPU times their group"),
    gone("--bn-fp16", bool, False, "none: statistics, gamma and beta stay float32"),
    direct("--no-fuse-bn-add-relu", bool, False, "--system.no-compile", "torch.compile fuses; without it kernels are apart"),
    direct("--no-fuse-bn-relu", bool, False, "--system.no-compile"),
    direct("--precision", str, "fp16", "--system.precision fp16", "fp32 likewise; their amp is fp16 with `--system.loss-scale 0`, which is dynamic", by="system"),
    direct("--fp16-loss-scale", float, 128.0, "--system.precision fp16 --system.loss-scale 128", by="system"),
    gone("--dataset", str, "coco2017", "--data /data/coco", "any prepared set", values={}),
    direct("--synthetic", bool, False, "--synthetic", "batches are made up: no data are read"),
    gone("--use-tfrecord", bool, False, "automatic: data are read as they were prepared", "`paceline prepare tfrecord`"),
    settled("--coco-root", str, "/datasets/coco2017", "", "--data /data/coco", by="data"),
    settled("--tfrecord-root", str, "/datasets/coco2017/tfrecord/", "", "--data /data/coco-tfrecord", by="data"),
    gone("--dataset-size", int, None, "automatic: the index knows, 117,266", "fewer: `--limit-train 10000`"),
    gone("--eval-dataset-size", int, None, "automatic: 5,000, each scored once", "fewer: `--limit-val 500`"),
    direct("--input-jpg-decode", str, "gpu", "--input.decoder nvimgcodec", "decoding runs on the CPU: cpu is theirs that comes nearest; nvimgcodec decodes a crop alone. cache: `--system.cache 40GiB`, of encoded photos", values={"cache": "--system.cache 40GiB"}),
    gone("--hw-decoder-load", float, 0.0, "none: no decoder on the accelerator"),
    settled("--batch-size", int, 32, "global_batch optim.lr", "--global-batch 1024 --optim.lr 0.1875", "of all GPUs together"),
    gone("--eval-batch-size", int, None, "automatic: as in training, at most a rank's share", "`paceline eval RUN --batch 64`"),
    direct("--data-shape", int, 300, "--input.size {}", "others work too"),
    direct("--data-layout", str, "NHWC", "--system.channels-last", "NCHW: `--system.no-channels-last`", by="system"),
    gone("--input-batch-multiplier", int, 1, "dead: the loader renders photos one by one on threads, whatever the batch"),
    gone("--dali-workers -j", int, 6, "automatic: cores of a node / ranks on it", "theirs fed a decoder on the GPU, ours decode; said with `--system.loader-threads 6`"),
    direct("--seed", int, None, "--seed {}", "1 if unsaid, never random", example="7"),
    settled("--pretrained-backbone", str, None, "", "--weights resnet34-mlperf", "brought, checked and cached; of their pickle: `paceline weights convert resnet34-333f7ec4.pickle --to ours --out resnet34-333f7ec4.safetensors`", by="weights"),
    settled("--epochs", int, 80, "epochs", "--epochs 80"),
    gone("--gradient-predivide-factor", float, 1.0, "dead: gradients are averaged in float32 unless `--system.compress bf16`"),
    gone("--horovod-num-groups", int, 1, "dead: gradients travel in buckets of `--system.bucket-mib 25`, whatever their number"),
    gone("--resume-from", str, "", "none: `.params` of this network are refused by name, because none was published to compare a reading with", "a run of ours goes on by naming its `--out runs/ssd` again"),
    gone("--start-epoch", int, 1, "automatic: a resumed run knows its step"),
    settled("--lr", float, None, "optim.lr", "--optim.lr 0.1875", "of the whole batch, after their rule of integer multiples"),
    direct("--lr-decay-factor", float, 0.1, "--schedule.factor {}"),
    settled("--lr-decay-epochs", [int], (44, 55), "schedule.boundaries", "--schedule.boundaries 44 55"),
    settled("--lr-warmup-epochs", float, None, "schedule.warmup", "--schedule.warmup 5.25"),
    settled("--lr-warmup-factor", float, 0.0, "schedule.warmup_from", "--schedule.warmup-from 0", "their factor 0 is a ramp from 0; other factors f start at 1 - 2^-f of the rate"),
    direct("--momentum", float, 0.9, "--optim.momentum {}", "MXNet's form: `--optim.momentum-form lr_inside`, in the recipe"),
    settled("--weight-decay", float, 5e-4, "optim.weight_decay", "--optim.weight-decay 1.6e-4"),
    direct("--save-interval", int, None, "--save-every 115", "steps", by="launch"),
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
    direct("--profile-start", int, None, "--profile 50:53", "first step and end in one; the run goes on", by="launch"),
    direct("--profile-stop", int, None, "--profile 50:53 --steps 53", "theirs ended the run, which `--steps 53` does", by="launch"),
    gone("--test-initialization", bool, False, "none: no print of parameters' statistics", "`paceline weights check resnet34.pth` compares a file with the network"),
    gone("--test-anchors", bool, False, "none: no print of default boxes", "a test holds them to the reference's"),
)  # fmt: skip


def settle(call: Call) -> Call:
    """Flags of two of theirs, or in epochs, as one of ours or in steps."""
    more = []
    if call["--dataset-size"] not in (None, TRAIN_IMAGES):
        more += ["--limit-train", str(call["--dataset-size"])]
    if call["--save-interval"]:
        more += ["--save-every", str(call["--save-interval"] * _steps(call))]
    first, last = call["--profile-start"], call["--profile-stop"]
    if first is not None:
        more += ["--profile", f"{first}:{last or first + 3}"]
    if last is not None:
        more += ["--steps", str(last)]
    return replace(call, more=tuple(more))


def _steps(call: Call) -> int:
    """Of an epoch: a rank's shard is the whole part of its share, its last batch is kept."""
    return math.ceil((call["--dataset-size"] or TRAIN_IMAGES) // call.devices / call["--batch-size"])


def facts(call: Call) -> Facts:
    """By ssd_main.py, input_pipeline.py and lr_scheduler.py."""
    images = call["--dataset-size"] or TRAIN_IMAGES
    local, ranks = call["--batch-size"], call.devices
    batch = local * ranks
    steps = _steps(call)
    lr = 2.5e-3 * max(1, round((call["--lr"] or 2.5e-3) / 2.5e-3 * batch / 32))
    return Facts(
        global_batch=batch,
        batch_per_device=local,
        devices=ranks,
        steps_per_epoch=steps,
        epochs=(call["--profile-stop"] or call["--epochs"] * steps) / steps,
        steps=call["--profile-stop"] or call["--epochs"] * steps,
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
        warmup=0.0,  # in whole steps, below
        decay=call["--weight-decay"],
        bn_span=call["--bn-group"] * call["--batch-size"],
        epochs=float(call["--epochs"]),
    )
    every = call["--val-interval"]
    at = {*call["--val-epochs"], *(range(every, call["--epochs"] + 1, every) if every else ())}
    images = call["--dataset-size"] or TRAIN_IMAGES
    warmup = int((call["--lr-warmup-epochs"] or 0.0) * images / made.global_batch)
    start = 1 - 2.0 ** -call["--lr-warmup-factor"] if call["--lr-warmup-epochs"] else 0.0
    return replace(
        made,
        schedule=replace(
            made.schedule,
            warmup=warmup / steps_in_epoch(images, made.global_batch, "up"),
            warmup_from=start,
            boundaries=tuple(map(float, call["--lr-decay-epochs"])),
        ),
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
    outside = call.variables.get("DATADIR", "")  # their containers have it as /data
    return f"{outside.rstrip('/')}/coco2017" if outside else call.given.get("--coco-root", "")


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
    settle=settle,
    differs=DIFFERS,
    explains=dict.fromkeys(("steps_per_epoch", "steps", "decay_steps"), "steps of an epoch over many ranks"),
    source="ssd_main.py",
)  # fmt: skip

VARIABLES = (
    gone("EXTRA_PARAMS", str, None, "fixed: flags follow the recipe"),
    direct("NNODES DGXNNODES", str, None, "--nodes 2 --through slurm", by="launch"),
    direct("NGPU DGXNGPU", str, None, "--system.per-node 4", "the system knows", by="launch"),
    gone("SOCKETCORES DGXSOCKETCORES", str, None, "automatic: read from the machine", "said with `--system.cores-per-socket 20`"),
    gone("NSOCKET DGXNSOCKET", str, None, "automatic: read from the machine", "`--system.sockets 2`"),
    gone("HT DGXHT", str, None, "automatic: read from the machine", "`--system.threads-per-core 2`"),
    direct("DGXSYSTEM SYSTEM", str, None, "--system dgx-a100", by="launch"),
    direct("TOBIND", str, None, "--system.bind exclusive", "0 is off", values={"0": "--system.bind off", "1": "--system.bind exclusive"}),
    direct("NCCL_SOCKET_IFNAME", str, "", "--system.interface {}", "for NCCL and gloo alike", example="ib0"),
    direct("WALLTIME", str, None, "--walltime {}", "or auto", example="30m", slurm=True),
    gone("WALLTIME_MINUTES", str, None, "automatic: `WALLTIME` is made of it"),
    direct("NEXP", str, "1", "--trials {}", "their scripts make five, with a seed each", example="5"),
    direct("CLEAR_CACHES", str, None, '--trials 5 --between "sync; sysctl vm.drop_caches=3"', "their scripts do it where nothing is said; the nodes must allow it", values={"1": '--between "sync; sysctl vm.drop_caches=3"'}),
    direct("NUMEPOCHS", str, None, "--epochs 80", by="launch"),
    direct("DATASET_DIR DATADIR", str, None, "--data /data/coco", by="data"),
    direct("PRETRAINED_DIR", str, None, "--weights resnet34-mlperf", "brought, checked and cached by its name, no folder to name", by="weights"),
    direct("LOGDIR", str, None, "--out {}", example="runs/ssd"),
    direct("CONT", str, None, "--container docker --image paceline:mine", "an image of paceline: `paceline image build`", by="launch"),
    direct("CREATE_TMP_FILE_FROM", str, None, "--stage /raid/scratch", "data are unpacked to a local disk first"),
    gone("DATESTAMP", str, None, "automatic: runs and their starts carry the time"),
    direct("SEED", str, None, "--seed {}", example="7"),
    gone("MLPERF_HOST_OS", str, None, "automatic: written into `run.json`"),
    gone("SLURM_LOCALID", str, None, "automatic: one launcher's variables are read, all of them"),
)  # fmt: skip

IMAGE = (
    gone("HOROVOD_CYCLE_TIME=0.1", str, None, "dead: no Horovod; gradients are ready when their bucket is full"),
    gone("HOROVOD_BATCH_D2D_MEMCOPIES=1", str, None, "dead: no Horovod"),
    gone("HOROVOD_NUM_NCCL_STREAMS=1", str, None, "dead: no Horovod; DDP has one stream"),
    gone("MXNET_CUDNN_AUTOTUNE_DEFAULT=0", str, None, "dead: no MXNet; cuDNN searches once a shape"),
    gone("MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD=999", str, None, "dead: MXNet's engine"),
    gone("MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD=999", str, None, "dead: MXNet's engine"),
    gone("MXNET_GPU_WORKER_NTHREADS=1", str, None, "dead: MXNet's engine"),
    gone("MXNET_CPU_PRIORITY_NTHREADS=1", str, None, "dead: MXNet's engine"),
    direct("MXNET_EXPERIMENTAL_ENABLE_CUDA_GRAPH=1", str, None, "--system.graph", "a whole step as one CUDA graph; no GPU has run it yet, so it is not set for you", by="launch"),
    gone("MXNET_SAFE_ACCUMULATION=1", str, None, "fixed: sums of losses and norms are float32"),
    direct("OMP_NUM_THREADS=1", str, "1", "--system.intra-op-threads {}", "the variable itself counts too", example="1"),
    gone("OMPI_MCA_btl=^openib", str, None, "dead: Open MPI starts ranks alone and carries no tensors", "mpirun takes it as ever"),
    gone("OPENCV_FOR_THREADS_NUM=1", str, None, "dead: no OpenCV"),
)  # fmt: skip

# Words before the program: of bind.sh and of mpirun.
LAUNCHER = (
    direct("--cpu=exclusive", bool, False, "--system.bind exclusive"),
    direct("--cpu=exclusive,nosmt", bool, False, "--system.bind no-smt"),
    direct("--cpu=node", bool, False, "--system.bind node"),
    gone("--cpu=FILE.sh", bool, False, "none: no list of cores from a file", "`--system.bind off` under numactl or taskset: ranks keep to what they are given"),
    direct("--cpu=off", bool, False, "--system.bind off"),
    gone("--mem=node", bool, False, "automatic: with bound cores memory is first touched on their node"),
    gone("--mem=FILE.sh", bool, False, "none: no list of memory nodes"),
    gone("--mem=off", bool, False, "automatic"),
    direct("--ib=single", bool, False, "--system.fabric ib --system.bind exclusive", "the adapter nearest to the device"),
    direct("--ib=off", bool, False, "--system.bind off"),
    gone("--cluster=", bool, False, "automatic: adapters are read from the machine", "theirs knew circe and selene by name"),
)  # fmt: skip

TOOLS = (
    Line("`build_container.sh`, `build_ssd.sh`", "`paceline image build --engine apptainer`", "Singularity is Apptainer now", files=("build_container.sh", "build_ssd.sh")),
    Line("`scripts/docker/build.sh`, `docker build`", "`paceline image build`", files=("build.sh",)),
    Line("`scripts/docker/config.sh`", "`paceline image build --tag paceline:mine --base IMAGE`", "names of the image that is made and of the one that it begins from", files=("config.sh",)),
    Line("`scripts/docker/launch.sh DATA RESULTS`, `launch_local.sh`", "`paceline image shell --mount DATA:/datasets RESULTS:/results:rw`", "nothing is pulled: no image is published", files=("launch.sh", "launch_local.sh")),
    Line("Open MPI 3.1.6 built with CUDA on the host", "`paceline launch ssd-mlperf-512 --system c4140 --start torchrun --data /data/coco --weights resnet34-mlperf`", "not needed: NCCL carries the tensors, and any mpirun of the host starts the ranks (--start mpirun)"),
    Line("`scripts/datasets/download_coco2017.sh`", "`paceline download coco2017 /data/coco`", "checked and prepared; its VOC is `paceline download voc2012 /data/voc`", files=("download_coco2017.sh",)),
    Line("`prepare-json.py` (slim annotations)", "`paceline prepare coco /data/coco`", "areas are kept, so scores by size are right", files=("prepare-json.py",)),
    Line("`create_tfrecord.py -i -a -n -o --ltrb --ratio --skip-empty --size-threshold -s`", "`paceline pack /data/coco --to webdataset --shards 16 --out /data/packed`", "read theirs: `paceline prepare tfrecord train-*.tfrecord --val val-*.tfrecord`", files=("create_tfrecord.py", "create_tfrecord.sh")),
    Line("`get_resnet34_backbone.sh`, `torch_to_numpy.py`", "`paceline weights get resnet34-mlperf`", "of their pickle: `paceline weights convert resnet34-333f7ec4.pickle --to ours --out resnet34-333f7ec4.safetensors`", files=("get_resnet34_backbone.sh", "torch_to_numpy.py")),
    Line("`mll-status`", "`paceline mlperf analyse LOGS`", "of our runs: `paceline runs runs`", files=("mll-status",)),
    Line("`tests/generate_report.py`, `generate_reports.sh`, `srun_report.sh`", "`paceline runs runs`", "a table of many runs; one page over many: none, `paceline report runs/a runs/b` writes a page each", files=("generate_report.py", "generate_reports.sh", "srun_report.sh")),
    Line("`tests/run_config.sh`, `srun_test_suite.sh`", "`paceline launch ssd-mlperf-896 --system dgx2 --trials 10 --data /data/coco --weights resnet34-mlperf`", files=("run_config.sh", "srun_test_suite.sh")),
    Line("`all_reduce_perf`, `horovod_mpi_test`", "`paceline bench comm`", files=("all_reduce_perf", "all_reduce_perf_mpi", "horovod_mpi_test")),
)  # fmt: skip

DELL_DOCKER = (
    "CONT=mlperf-nvidia:ssd DATADIR=/data LOGDIR=runs/ssd PRETRAINED_DIR=/pretrained SYSTEM={} ./run_with_docker.sh"
)
PYXIS = "source config_{}.sh; CONT=ssd-mxnet DATADIR=/data LOGDIR=runs/ssd sbatch -N $DGXNNODES -t $WALLTIME run.sub"

ORIGINAL = Original(
    name="mxnet-ssd",
    programs=(SSD_MAIN,),
    scripts=(
        Script(("run.slurm",), defaults=": ${NEXP:=5}", through="slurm", start="mpirun", container="apptainer"),
        Script(("run.sub",), defaults=": ${NEXP:=5}", through="slurm", start="srun", container="pyxis"),
        Script(("run_with_docker.sh",), defaults=": ${NEXP:=5}", container="docker"),
        Script(("run_and_time.sh", "run_and_time_multi.sh")),
        *(Script((name,), text) for name, text in DGX1.items()),
    ),
    configs=CONFIGS,
    variables=(*VARIABLES, *IMAGE),
    launcher=LAUNCHER,
    tools=TOOLS,
    call="ssd_main_async.py --log-interval=100 --coco-root=/data/coco2017 --pretrained-backbone=/pretrained/mxnet/resnet34-333f7ec4.pickle"
    " --data-layout=NHWC --epochs ${NUMEPOCHS:-80} --async-val --dataset-size 117266 --eval-dataset-size 5000 ${EXTRA_PARAMS}",
    config="config_${SYSTEM:-$DGXSYSTEM}.sh",
    machines={
        "4xC4140": "c4140", "2xC4140": "c4140", "C4140": "c4140", "DSS8440": "dss8440", "DGX1": "dgx1", "DGX2": "dgx2",
        "DGXA100": "dgx-a100",
    },
    started_on={"2xC4140": 2},  # its file says NNODES=1; the README starts it with -N 2
    marks=frozenset({"EXTRA_PARAMS"}),
    nodes=("DGXNNODES", "NNODES"),
    per_node=("DGXNGPU", "NGPU"),
)  # fmt: skip

PAGE = Page(
    name="ssd-mxnet",
    title="SSD-ResNet34 in MXNet (MLPerf v0.7: Dell, NVIDIA)",
    text="""`ssd_main.py` and its scripts. Recipes: `ssd-mlperf-448` to `ssd-mlperf-2048`, one a configuration file. What theirs did otherwise than the
reference (heads, candidates, hue of half a degree, clipped boxes) is part of these recipes.""",
    sections=(
        Section(
            "Commands",
            (
                Line("`sbatch -N 1 -n 4 run.slurm` with SYSTEM=C4140", run="SYSTEM=C4140 sbatch -N 1 -n 4 run.slurm", remark="Singularity is Apptainer now; five trials, as theirs"),
                Line("`sbatch -N 2 -n 8 run.slurm` with SYSTEM=2xC4140", run="SYSTEM=2xC4140 sbatch -N 2 -n 8 run.slurm"),
                Line("`sbatch -N 4 -n 16 run.slurm` with SYSTEM=4xC4140", run="SYSTEM=4xC4140 sbatch -N 4 -n 16 run.slurm"),
                Line("`run_with_docker.sh` with SYSTEM=DSS8440", run=DELL_DOCKER.format("DSS8440")),
                Line("`run_with_docker.sh` with SYSTEM=DGXA100_1x8x114", run=DELL_DOCKER.format("DGXA100_1x8x114")),
                Line("`sbatch -N $DGXNNODES -t $WALLTIME run.sub`, 8 DGX A100", run=PYXIS.format("DGXA100_multi_8x8x24")),
                Line("the same, 64 DGX A100", run=PYXIS.format("DGXA100_multi_64x8x4x4"), remark="statistics over 4 GPUs: in the recipe"),
                *TOOLS,
            ),
        ),
        Section("Flags of ssd_main.py", FLAGS, follows="train ssd-mlperf-1024 --data /data/coco --weights resnet34-mlperf"),
        Section(
            "Configuration files",
            tuple(
                Line(f"`{name}`", run=f"source {name}", remark="it says NNODES=1; its README starts two nodes" if "2xC4140" in name else "")
                for name in CONFIGS
            ),
        ),
        Section(
            "Scripts of scripts/train/dgx1",
            tuple(Line(f"`{name}`", run=f"bash {name}") for name in DGX1),
            text="They tried sizes, layouts and number formats on one DGX-1, and name no machine: add `--system dgx1` there.",
        ),
        Section(
            "Variables of configurations and scripts", VARIABLES,
            follows="launch ssd-mlperf-1024 --system c4140 --data /data/coco --weights resnet34-mlperf",
        ),
        Section("Environment of the image", IMAGE, follows="train ssd-mlperf-1024 --data /data/coco --weights resnet34-mlperf"),
        Section("bind.sh", LAUNCHER, follows="train ssd-mlperf-1024 --system c4140 --data /data/coco --weights resnet34-mlperf"),
    ),
)  # fmt: skip
