"""SSD-ResNet34 in TensorFlow on Gaudi: `ssd.py` of Habana's release 1.5.0, and what releases around it had.

Source: github.com/HabanaAI/Model-References, TensorFlow/computer_vision/SSD_ResNet34 (argparser.py, ssd.py, model.py, demo_ssd.py,
generate_static_dataset.py, README.md) at 1.5.0; flags of 0.14 to 1.4 from those branches.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from paceline.config.recipe import Recipe
from paceline.recipes.migrate.table import Call, Facts, Line, Original, Page, Program, Section, direct, gone, settled
from paceline.recipes.ssd import gaudi

WEIGHTS = "ssd-resnet34-tensorflow"
PATTERN = 'paceline prepare tfrecord "/data/coco2017/train-*" --val "/data/coco2017/val-*"'

FLAGS = (
    direct("--dtype -d", str, "bf16", "--system.precision bf16", "or fp32", by="launch"),
    settled("--batch_size -b", int, 128, "global_batch optim.lr bn_span", "--global-batch 1024 --optim.lr 0.096", "of all cards together"),
    settled("--epochs -e", float, 50.0, "epochs", "--epochs 64"),
    direct("--mode", str, "train", "paceline eval RUN --checkpoint all", "training also evaluates, every 5 epochs"),
    direct("--max_cpus", int, 16, "--system.bind exclusive", "a rank's own cores; outside limits (taskset, cgroups) are kept", by="launch"),
    direct("--num_parallel_calls", int, 64, "--system.loader-threads {}", example="16"),
    direct("--threadpool_size", int, 0, "--system.loader-threads {}", example="16"),
    direct("--hvd_workers", int, 1, "--system.per-node 8", "of demo_ssd.py alone there", by="launch"),
    direct("--num_workers_per_hls", int, 8, "--system.per-node 8", "likewise", by="launch"),
    gone("--kubernetes_run", str, None, "none: no switch; `docs/kubernetes.md` has an example", "likewise"),
    gone("--use_horovod", bool, False, "automatic: as many ranks as a launcher starts"),
    direct("--inference", str, None, "paceline predict RUN photo.jpg"),
    direct("--no_hpu", bool, False, "paceline train ssd-gaudi --system cpu --data /data/coco --weights ssd-resnet34-tensorflow", "or gpu", by="launch"),
    settled("--distributed_bn", bool, False, "bn_span", "--bn-span 1024", "statistics over all images of a step"),
    direct("--vis_dataloader", bool, False, "paceline preview ssd-gaudi --data /data/coco --out preview.png"),
    direct("--profile", str, "0,0", "--profile 50:54", "their 50,53 includes its end, ours does not", by="launch"),
    direct("--profiling", bool, False, "--profile 20:25", "of releases before 1.5"),
    gone("--use_cocoeval_cc", bool, False, "fixed: scores come from compiled code, equal to pycocotools'"),
    direct("--use_fake_data -f", bool, False, "--synthetic"),
    settled("--lr_warmup_epoch", float, 5.0, "schedule.warmup", "--schedule.warmup 5", "7 in `ssd-gaudi-cosine`"),
    settled("--base_lr", float, 3e-3, "optim.lr", "--optim.lr 0.096", "theirs for 32 images, ours for the batch"),
    settled("--weight_decay", float, 5e-4, "optim.weight_decay", "--optim.weight-decay 5e-4"),
    settled("--k", int, 0, "schedule.boundaries", "--schedule.boundaries 44 55", "theirs multiplied both points by 1 + k/10; here k = 1"),
    direct("--model_dir", str, None, "--out {}", example="runs/ssd"),
    direct("--resnet_checkpoint", str, "/data/ssd_r34-mlperf", "--weights ssd-resnet34-tensorflow", "brought, checked and cached; a checkpoint of your own: `--weights model.ckpt-28152.index`", by="weights"),
    direct("--data_dir", str, "/data/coco2017/ssd_tf_records", "--data /data/coco", by="data"),
    direct("--eval_samples", int, 5000, "--limit-val {}", "all if unsaid"),
    direct("--num_examples_per_epoch", int, 117266, "--limit-train {}", "all if unsaid"),
    direct("--steps -s", int, 0, "--steps 100", "so many, of a schedule that stays as it is", by="launch"),
    direct("--log_step_count_steps -v", int, 1, "--log-every {}", example="10"),
    direct("--save_checkpoints_epochs -c", float, 5.0, "--save-every 575", "steps", by="launch"),
    direct("--keep_ckpt_max", int, 20, "--keep {}"),
    direct("--save_summary_steps", int, 1, "--log-every {}", "TensorBoard's curves have the same points as the log", example="10"),
    direct("--static", bool, False, "--overfit-one-batch", "the first batch again and again; stored batches of a whole epoch: none", by="launch"),
    gone("--recipe_cache", str, None, "dead: no graph recipes", "torch.compile keeps its own cache (TORCHINDUCTOR_CACHE_DIR)"),
    direct("--multinode", int, None, "paceline launch ssd-gaudi-1024 --system gaudi8 --nodes 2 --through hostfile --hostfile hosts --weights ssd-resnet34-tensorflow", "of 0.14"),
    gone("--calculate_loss", str, None, "fixed: the loss is computed and logged", "of 0.14"),
    direct("--val_json_file", str, None, "paceline eval RUN --images val2017 --annotations instances_val2017.json", "of 0.14"),
    direct("--training_file_pattern", str, None, PATTERN, "of 0.14"),
    direct("--val_file_pattern", str, None, PATTERN, "of 0.14"),
)  # fmt: skip


def settle(call: Call) -> Call:
    """Without --use_horovod every process trains alone; demo_ssd.py starts as many as --hvd_workers says."""
    if "--hvd_workers" in call.given and not call.start:
        whole = min(call["--hvd_workers"], call["--num_workers_per_hls"])
        call = replace(
            call, nodes=-(-call["--hvd_workers"] // whole), per_node=whole, start="mpirun" if whole > 1 else ""
        )
    elif "--use_horovod" not in call.given:
        call = replace(call, nodes=1, per_node=1, start="")
    first, _, last = call["--profile"].partition(",")
    more = []
    if int(last or 0) > 0:
        more += ["--profile", f"{first}:{int(last) + 1}"]
    if "--save_checkpoints_epochs" in call.given:
        more += ["--save-every", str(max(1, int(call["--save_checkpoints_epochs"] * _steps(call))))]
    if call["--steps"]:
        more += ["--steps", str(call["--steps"])]
    return replace(call, more=tuple(more), machine="" if "--no_hpu" in call.given else call.machine)


def _steps(call: Call) -> int:
    return math.ceil(call["--num_examples_per_epoch"] / (call["--batch_size"] * call.devices))


def facts(call: Call) -> Facts:
    """By ssd.py and model.py."""
    batch, steps = call["--batch_size"] * call.devices, _steps(call)
    whole = call["--steps"] or int(call["--epochs"] * steps)
    return Facts(
        global_batch=batch,
        batch_per_device=call["--batch_size"],
        devices=call.devices,
        steps_per_epoch=steps,
        epochs=whole / steps,
        steps=whole,
        lr=call["--base_lr"] * batch / 32,
        warmup_steps=call["--lr_warmup_epoch"] * steps,
        decay="steps",
        decay_steps=tuple(epoch * (1 + call["--k"] / 10) * steps for epoch in (40, 50)),
        weight_decay=call["--weight_decay"],
        weights=weights(call),
        target="none",
    )


def recipe(call: Call) -> Recipe:
    """The family's constructor with the line's numbers."""
    batch = call["--batch_size"] * call.devices
    # A part of a step is not made; --steps may be more than --epochs.
    epochs = max(int(call["--epochs"] * _steps(call)), call["--steps"]) / _steps(call)
    made = gaudi(batch, per_card=call["--batch_size"], epochs=epochs, shift=call["--k"])
    span = batch if "--distributed_bn" in call.given else call["--batch_size"]
    return replace(
        made,
        bn_span=span,
        optim=replace(made.optim, lr=call["--base_lr"] * batch / 32, weight_decay=call["--weight_decay"]),
        schedule=replace(made.schedule, warmup=call["--lr_warmup_epoch"]),
    )


def system(call: Call) -> dict[str, Any]:
    """bf16 has no loss scale, nor has fp32."""
    return {"precision": call["--dtype"], "loss_scale": 0.0}


def weights(call: Call) -> str:
    """The one checkpoint of its README by our name of it, whatever its folder; another as it is."""
    path = call["--resnet_checkpoint"]
    published = ("ssd_r34-mlperf", "mlperf_artifact", "model.ckpt-28152")
    return WEIGHTS if any(word in path for word in published) else path or "none"


def instead(call: Call) -> str:
    """Its other modes are verbs."""
    if call["--inference"]:
        return f"paceline predict RUN {call['--inference']}"
    return "paceline eval RUN --checkpoint all" if call["--mode"] == "eval" else ""


SSD = Program(
    of="gaudi-ssd",
    files=("ssd.py", "demo_ssd.py", "demo_ssd"),
    flags=FLAGS,
    facts=facts,
    recipe=recipe,
    candidates=("ssd-gaudi", "ssd-gaudi-1024", "ssd@habana-gaudi-50-epochs-128"),
    system=system,
    data=lambda call: call.given.get("--data_dir", ""),
    weights=weights,
    instead=instead,
    settle=settle,
    differs=(
        (
            "releases 1.7 and later fall by a cosine after 7 warm-up epochs: recipe ssd-gaudi-cosine",
            "evaluations of `ssd-gaudi*`",
        ),
        ("pixels are bytes after the crop and the colours", "bytes"),
        ("the first of 50 proposals for a crop is taken, theirs the last", "crop of which 50 proposals fail, SSD"),
        ("all 5,000 photos are scored, theirs drop what fills no batch", "last batch of an evaluation, SSD"),
    ),
    explains={"target": "evaluations of `ssd-gaudi*`"},
    source="argparser.py",
)

STATIC = (
    gone("--input_pattern -i", str, None, "none: no stored batches after augmentation", "photos decoded smaller and stored: `paceline pack /data/coco --short 352 --out /data/packed`"),
    gone("--output_dir -o", str, None, "none: likewise"),
    gone("--batch_size -b", int, None, "none: likewise"),
    gone("--steps -s", int, None, "none: likewise"),
    gone("--workers -w", int, 1, "none: likewise"),
)  # fmt: skip
ENVIRONMENT = (
    gone("PYTHONPATH=Model-References", str, None, "fixed: the package is installed"),
    direct("TF_BF16_CONVERSION=0", str, None, "--system.precision bf16", by="launch"),
    gone("TF_DISABLE_MKL=1", str, None, "dead: TensorFlow's"),
    gone("TF_RECIPE_CACHE_PATH", str, None, "dead: Habana's graphs for TensorFlow"),
    gone("TF_DONT_CLUSTER=add_1", str, None, "dead: TensorFlow's bridge"),
    gone("TF_CLUSTER_VARIABLES=1", str, None, "dead: TensorFlow's bridge", "of 1.14"),
    gone("LD_PRELOAD=libjemalloc", str, None, "dead: batches lie in one ring that is allocated once, and on a CPU freed tensors stay with the process (`docs/inside/step.md`)", "of demo_ssd"),
    gone("HCL_CONFIG_PATH", str, None, "dead: `--system.interface ens5` names the network", "of demo_ssd"),
    gone("CUDA_VISIBLE_DEVICES", str, None, "automatic: a rank takes the device of its local number"),
)  # fmt: skip
TOOLS = (
    Line("`coco-tf-records.patch`, `create_coco_tf_record`", "`paceline prepare tfrecord /data/coco2017/train-*.tfrecord --val /data/coco2017/val-*.tfrecord --classes /data/coco2017/raw-data/annotations/instances_val2017.json`", "the annotations have the 80 names; or from the photos: `paceline prepare coco /data/coco`", files=("coco-tf-records.patch", "create_coco_tf_record.py", "download_and_preprocess_coco.sh")),
    Line("`wget .../ssd-backbone/model.ckpt-28152.*`", "`paceline weights get ssd-resnet34-tensorflow`", "one that lies there: `paceline weights check model.ckpt-28152.index`; is read by recipes that pad at the end alone, as these"),
)  # fmt: skip

ORIGINAL = Original(
    name="gaudi-ssd",
    programs=(SSD,),
    variables=ENVIRONMENT,
    launcher=(
        gone("--bind-to", str, None, "fixed: mpirun binds nothing, each rank binds itself"),
        gone("--map-by", str, None, "automatic: PE is computed from the sockets and cores of `--system.sockets`, `--system.cores-per-socket`"),
    ),
    tools=TOOLS,
    machines={"": "gaudi8"},
)  # fmt: skip

PLACES = "--data_dir /data/coco2017/ssd_tf_records --resnet_checkpoint /data/ssd_r34-mlperf/mlperf_artifact"
PAGE = Page(
    name="ssd-gaudi",
    title="SSD-ResNet34 in TensorFlow on Gaudi (Habana, releases 1.5.0 and later)",
    text="""`ssd.py`. Recipes: `ssd-gaudi` (one card), `ssd-gaudi-1024` (eight), `ssd-gaudi-cosine` (1.7 and later). paceline has never run on a Gaudi: the system
is planned for, and refused where no such device is.""",
    sections=(
        Section(
            "Commands",
            (
                Line("`ssd.py -e 64 -b 128 -d bf16` on one card", run=f"python ssd.py -e 64 -b 128 -d bf16 --model_dir runs/ssd --save_summary_steps 10 {PLACES}", remark="917 steps an epoch"),
                Line("`mpirun --allow-run-as-root --bind-to core --map-by socket:PE=7 -np 8 ssd.py --use_horovod`", run=f"mpirun --allow-run-as-root --bind-to core --map-by socket:PE=7 -np 8 python ssd.py --use_horovod --epochs 64 --batch_size 128 --dtype bf16 --model_dir runs/ssd --save_checkpoints_epochs 64 {PLACES}", remark="115 steps an epoch; PE is computed from the sockets and cores"),
                Line("`demo_ssd`, `demo_ssd.py` (0.14 to 1.4)", run=f"python demo_ssd.py -e 50 -b 128 -d bf16 --model_dir runs/ssd --hvd_workers 8 {PLACES}"),
                Line("`ssd.py --mode eval`", run="python ssd.py --mode eval --model_dir runs/ssd", remark="all 5,000 images; theirs dropped the last 8"),
                Line("`ssd.py --inference IMAGE`", run="python ssd.py --inference photo.jpg", remark="RGB and normalised; theirs fed BGR without it"),
                *TOOLS,
            ),
        ),
        Section("Flags of ssd.py", FLAGS, follows="train ssd-gaudi-1024 --system gaudi8 --data /data/coco --weights ssd-resnet34-tensorflow"),
        Section("generate_static_dataset.py", STATIC),
        Section(
            "Environment",
            (
                *ENVIRONMENT,
                Line("`vm.nr_hugepages=153600`", "none: huge pages are neither needed nor set", "`paceline doctor`"),
                Line("`hb_configs/*.yaml`", "`paceline show ssd-gaudi-1024 --system gaudi8`", "dtype, batch, epochs, lr, wd, k, workers: recipe, system, flags"),
            ),
            follows="train ssd-gaudi-1024 --system gaudi8 --data /data/coco --weights ssd-resnet34-tensorflow",
        ),
    ),
)  # fmt: skip
