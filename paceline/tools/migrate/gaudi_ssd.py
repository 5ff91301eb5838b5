"""SSD-ResNet34 in TensorFlow on Gaudi: `ssd.py` of Habana's release 1.5.0, and what releases around it had.

Source: github.com/HabanaAI/Model-References, TensorFlow/computer_vision/SSD_ResNet34 (argparser.py, ssd.py, model.py, demo_ssd.py,
generate_static_dataset.py, README.md) at 1.5.0; flags of 0.14 to 1.4 from those branches.
"""

from __future__ import annotations

import math
from dataclasses import replace

from paceline.config.recipe import Recipe, with_fields
from paceline.config.recipes.ssd import GAUDI_BACKBONE, gaudi
from paceline.tools.migrate.table import Formulas, TrainingCall, TrainingSize, read_system


def settle(call: TrainingCall) -> TrainingCall:
    """Without --use_horovod every process trains alone; demo_ssd.py starts as many as --hvd_workers says."""
    if "--hvd_workers" in call.given and not call.start:
        whole = min(call["--hvd_workers"], call["--num_workers_per_hls"])
        nodes = -(-call["--hvd_workers"] // whole)
        call = replace(call, nodes=nodes, per_node=whole, start="mpirun" if whole > 1 else "")
    elif "--use_horovod" not in call.given:
        call = replace(call, nodes=1, per_node=1, start="")
    first, _, last = call["--profile"].partition(",")
    more = []
    if int(last or 0) > 0:
        more += ["--profile", f"{first}:{int(last) + 1}"]
    if "--save_checkpoints_epochs" in call.given:
        more += ["--save-every", str(max(1, int(call["--save_checkpoints_epochs"] * _steps(call))))]
    if call["--steps"]:
        more += ["--max-steps", str(call["--steps"])]
    return replace(call, more=tuple(more), machine="" if "--no_hpu" in call.given else call.machine)


def _steps(call: TrainingCall) -> int:
    return math.ceil(call["--num_examples_per_epoch"] / (call["--batch_size"] * call.devices))


def facts(call: TrainingCall) -> TrainingSize:
    """By ssd.py and model.py."""
    batch, steps = call["--batch_size"], _steps(call)
    whole = call["--steps"] or int(call["--epochs"] * steps)
    falls = [epoch * (1 + call["--k"] / 10) for epoch in (40, 50)]
    return TrainingSize.in_epochs(
        *(batch, call.devices, steps, whole / steps, falls),
        lr=call["--base_lr"] * (batch * call.devices) / 32,
        warmup_steps=call["--lr_warmup_epoch"] * steps,
        weight_decay=call["--weight_decay"],
        weights=weights(call),
    )


def recipe(call: TrainingCall) -> Recipe:
    """The family's constructor with the line's numbers."""
    batch = call["--batch_size"] * call.devices
    # A part of a step is not made; --steps may be more than --epochs.
    epochs = max(int(call["--epochs"] * _steps(call)), call["--steps"]) / _steps(call)
    made = gaudi(batch, per_card=call["--batch_size"], epochs=epochs, shift=call["--k"])
    changes = {
        "bn_batch_size": batch if "--distributed_bn" in call.given else call["--batch_size"],
        "optim.lr": call["--base_lr"] * batch / 32,
        "optim.weight_decay": call["--weight_decay"],
        "schedule.warmup": call["--lr_warmup_epoch"],
    }
    return with_fields(made, changes)


def weights(call: TrainingCall) -> str:
    """The one checkpoint of its README by our name of it, whatever its folder; another as it is."""
    path = call["--resnet_checkpoint"]
    published = ("ssd_r34-mlperf", "mlperf_artifact", "model.ckpt-28152")
    return GAUDI_BACKBONE if any(word in path for word in published) else path or "none"


def instead(call: TrainingCall) -> tuple[str, ...]:
    """Its other modes are commands of ours."""
    run = call.given.get("--model_dir", "RUN")
    if call["--inference"]:
        return "predict", run, call["--inference"]
    return ("eval", run, "--checkpoint", "all") if call["--mode"] == "eval" else ()


FORMULAS = Formulas(
    facts,
    recipe,
    system=lambda call: {"precision": call["--dtype"], "loss_scale": 0.0},  # neither bf16 nor fp32 has a loss scale
    data=lambda call: call.given.get("--data_dir", ""),
    weights=weights,
    instead=instead,
    settle=settle,
)
SYSTEM = read_system(__file__, {"ssd": FORMULAS})
