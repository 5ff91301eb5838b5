"""Our side of maskrcnn.py: recipes whose rules are the original's, our own step, and errors to plant in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from maskrcnn_start import CLASSES, WORKLOAD, drop_of, read_batches

from paceline.config.maskrcnn import InstanceInput, MaskRCNNModel
from paceline.config.plan import make_plan, step_rates
from paceline.config.recipe import Optim, Recipe
from paceline.config.recipes.maskrcnn import MaskRCNNRecipe, gluoncv, mlperf
from paceline.config.run import RunOptions, RunSpec
from paceline.config.schedule import Schedule
from paceline.config.system import System
from paceline.data.batch import InstanceBatch
from paceline.distributed.comm.launcher import read_launch
from paceline.distributed.comm.world import open_distributed
from paceline.models.maskrcnn.module import MaskRCNNWithLoss
from paceline.models.task import Task
from paceline.training.factory import build_model, build_state
from paceline.training.step import TrainStep

LOSSES = ("objectness", "rpn_box", "class", "box", "mask")
WARMUP = 20  # steps
PEAK, WARMUP_FROM = 0.0005, 1 / 3  # a fifth of the MLPerf reference's for two images: rounding grows slower
DECAY = 0.3  # 3,000 times the recipes': a few steps are to show which tensors decay
MIN_SIDE = 1.5  # pixels; beside the MLPerf reference, see maskrcnn_mlperf.py


def fitted(recipe: MaskRCNNRecipe, short: int, steps: int, *, images: int = 2, proposals: int = 128) -> MaskRCNNRecipe:
    """A recipe cut to the certificate's size; masks are stored at the input's resolution.

    Proposals and objects are fewer than the places for regions, and positives than theirs: so no region is drawn.
    """
    model = recipe.model
    return replace(
        recipe,
        model=replace(
            model,
            loss_normalizer_images=images,
            rpn=replace(model.rpn, post_nms_topk_train=proposals),
            mask=replace(model.mask, target_buffer_size=2 * short),
        ),
        input=replace(recipe.input, min_size=(short,), max_size=2 * short, padding_mode="multiple"),
        global_batch_size=images,
        epochs=0,
        max_images=images * steps,
        bn_batch_size=1,
        optim=replace(recipe.optim, lr=PEAK, weight_decay=DECAY),
        schedule=replace(
            recipe.schedule,
            name="steps",
            unit="steps",
            warmup=WARMUP,
            warmup_start_factor=WARMUP_FROM,
            milestones=(drop_of(steps),),
        ),
        seed=1,
    )


def beside_torchvision(short: int, steps: int) -> MaskRCNNRecipe:
    """The defaults of MaskRCNNModel, which are torchvision's; SGD as its training script has it: every tensor decays."""
    recipe = Recipe(
        task="instance-segmentation",
        model=MaskRCNNModel(),
        input=InstanceInput(),
        global_batch_size=2,
        epochs=1,
        bn_batch_size=1,
        optim=Optim(lr=PEAK, momentum=0.9, weight_decay=DECAY, no_decay="none"),
        schedule=Schedule(name="multistep", unit="steps", warmup=1, warmup_step_offset=0),
    )
    return fitted(recipe, short, steps)


def beside_mlperf(short: int, steps: int) -> MaskRCNNRecipe:
    """Recipe `maskrcnn`; the reference's frozen BatchNorm has no epsilon. Its trainer moves the schedule before each step."""
    recipe = fitted(replace(mlperf(), schedule=replace(mlperf().schedule, warmup_step_offset=1)), short, steps)
    return replace(
        recipe,
        model=replace(recipe.model, bn_eps=0.0, rpn=replace(recipe.model.rpn, min_box_side=MIN_SIDE)),
        schedule=replace(recipe.schedule, milestones=(drop_of(steps) - 1,)),
    )


def beside_gluoncv(short: int, steps: int) -> MaskRCNNRecipe:
    """Recipe `maskrcnn-gluoncv` with one image a step and 128 places for regions, 48 of them for positives.

    GluonCV pools and masks all places, also empty ones: with its 512 a step would take a minute.
    """
    recipe = fitted(gluoncv(), short, steps, images=1, proposals=112)
    return replace(
        recipe, model=replace(recipe.model, roi=replace(recipe.model.roi, samples_per_image=128, positive_fraction=0.375))
    )


RECIPES: dict[str, Callable[[int, int], MaskRCNNRecipe]] = {
    "torchvision": beside_torchvision,
    "mlperf": beside_mlperf,
    "gluoncv": beside_gluoncv,
}


def _shifted(batch: InstanceBatch) -> InstanceBatch:
    """Each class named as the next one."""
    return replace(batch, labels=torch.where(batch.labels > 0, batch.labels % CLASSES + 1, 0))


def planted(recipe: MaskRCNNRecipe) -> dict[str, MaskRCNNRecipe]:
    """The recipe with one error each; "class index" is planted in the batches, see `ours`."""
    model, optim, schedule = recipe.model, recipe.optim, recipe.schedule
    other = "torch" if optim.momentum_style != "torch" else "mxnet"
    biases = "norm" if optim.no_decay == "norm-and-bias" else "norm-and-bias"
    first = 0 if schedule.warmup_step_offset else 1
    return {
        "momentum's form": replace(recipe, optim=replace(optim, momentum_style=other)),
        "warm-up one step off": replace(recipe, schedule=replace(schedule, warmup_step_offset=first)),
        "class index shifted": recipe,
        "decay of biases": replace(recipe, optim=replace(optim, no_decay=biases)),
        "RoIAlign's half pixel": replace(recipe, model=replace(model, roi=replace(model.roi, aligned=True))),
        "box coder's weights": replace(
            recipe, model=replace(model, roi=replace(model.roi, box_reg_weights=(10, 10, 10, 10)))
        ),
        "BatchNorm's epsilon": replace(recipe, model=replace(model, bn_eps=1e-5 if model.bn_eps == 0 else 0.0)),
    }


def ours(dump: Path, recipe: MaskRCNNRecipe, steps: int, twin: str = "") -> list[dict[str, float]]:
    """Losses of our own training step; twin: the name of a planted error, "" for none."""
    torch.set_num_threads(1)
    recipe = planted(recipe)[twin] if twin else recipe
    model = WORKLOAD.network.build(recipe, CLASSES)
    assert isinstance(model, MaskRCNNWithLoss)
    model.network.load_state_dict(torch.load(dump / "first.pth"))
    sample_regions, roi = model._sample_regions, recipe.model.roi

    def none_drawn(batch: InstanceBatch, proposed: Any) -> Any:
        rows = sample_regions(batch, proposed)
        candidates = int(proposed.valid.sum() + (batch.labels > 0).sum())
        assert (
            int(rows.weight.sum()) == candidates
            and int(rows.positive.sum()) <= len(batch) * roi.samples_per_image * roi.positive_fraction
        )
        return rows

    model._sample_regions = none_drawn  # type: ignore[method-assign]
    plan = make_plan(recipe, System(), world=1, most=recipe.global_batch_size, train_images=1000, val_images=1)
    run = RunSpec("certificate", recipe, "cpu", System(), plan, RunOptions())
    with open_distributed(read_launch({}), device=torch.device("cpu")) as world:
        task = cast(Task, SimpleNamespace(build=lambda device: model))
        state = build_state(build_model(task, run, world), run, world)
        step_once = TrainStep(state, plan, System(), torch.device("cpu"))
        losses = []
        for step, (batch, _) in enumerate(read_batches(dump, steps)):
            batch = _shifted(batch) if twin == "class index shifted" else batch
            found = step_once([batch], step_rates(recipe, plan, step))
            losses.append({name: float(found[name]) for name in LOSSES})
            print(f"ours {twin} {step} {losses[-1]}", flush=True)
    return losses
