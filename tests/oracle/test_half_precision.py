"""Twenty steps of each tiny recipe under fp16 autocast on a CPU, loss scale static and dynamic, beside the same in float32.

Photos are rendered shapes, the networks narrow. In planted steps one gradient is infinite, as an overflow leaves it; float32
then skips the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from by_night import ONE_MORE
from shared_runs import class_photos, rendered_boxes
from torch import Tensor
from trajectories import apart, column, take_steps

from paceline.config.plan import make_plan
from paceline.config.recipe import Recipe, override
from paceline.config.recipes import RECIPES
from paceline.config.system import System
from paceline.data.batch import Batch
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.models.registry import WORKLOADS
from paceline.models.task import InputRank
from paceline.training.factory import FIRST_LOSS_SCALE
from paceline.training.optim.step_scalars import LossScaler
from paceline.training.state import State

CPU = torch.device("cpu")
IMAGES, STEPS, GROWS_AFTER = 4, 20, 5
PLANTED = (0, 11)  # 0-based steps
STATIC = 128.0  # what the published V100 runs of SSD took
FOLLOWS, FIRST_FIVE = (
    0.05,
    0.005,
)  # relative, of each loss; a region that is sampled or not moves one of Mask R-CNN's by 0.03

FEW = {"global_batch_size": IMAGES, "bn_batch_size": IMAGES, "optim.lr": 0.001, "ema_decay": 0.0}
SMALL = {
    "classify-demo": {"model.depth": 10, "model.width": 8, "input.image_size": 32, **FEW},
    "ssd-demo": {"model.depth": 10, "model.width": 4, "model.extra_channels": 8, "input.image_size": 64, **FEW},
    "maskrcnn-demo": {
        "model.depth": 10, "model.width": 4, "model.fpn_channels": 8, "model.roi.fc_channels": 16, "model.mask.num_convs": 1,
        "model.rpn.pre_nms_topk_train": 40, "model.rpn.post_nms_topk_train": 16, "model.rpn.anchor_sizes": (8.0, 12.0,
        16.0, 24.0, 32.0),
        "model.roi.samples_per_image": 16, "input.min_size": (48,), "input.max_size": 64, **FEW,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Training:
    """A recipe, what makes its model, and its first batches."""

    recipe: Recipe
    build: Callable[[torch.device], torch.nn.Module]
    batches: list[Batch]

    def take(
        self, precision: str, scale: float = 0.0, *, overflows: Collection[int] = (), scaler: LossScaler | None = None
    ) -> Watched:
        """20 steps. scale: of the loss, 0 = dynamic. overflows: 0-based steps. scaler: in place of the system's."""
        system = System(precision=precision, loss_scale=scale)  # type: ignore[arg-type]
        watch = Watch(overflows, scaler)
        losses, state = take_steps(self.recipe, self.build, self.batches, system=system, before_step=watch)
        watch.passed(state)
        return Watched(column(losses), state.scaler, watch.scales, watch.still)

    def skipping(self, overflows: Collection[int]) -> list[float]:
        """Losses in float32 where these steps change nothing."""
        return self.take("fp32", overflows=overflows, scaler=LossScaler("static", 1.0)).losses


@dataclass(frozen=True)
class Watched:
    """What a training did."""

    losses: list[float]
    scaler: LossScaler | None
    scales: list[float]  # before each step
    still: list[int]  # steps that changed neither a weight nor what the optimizer keeps


class Watch:
    """Told of each step before it is taken: plants overflows, and looks what the step before has changed."""

    def __init__(self, overflows: Collection[int], scaler: LossScaler | None) -> None:
        self.overflows, self.scaler = overflows, scaler
        self.scales: list[float] = []
        self.still: list[int] = []
        self.before: list[Tensor] = []

    def __call__(self, step: int, state: State) -> None:
        if step == 0:
            state.scaler = self.scaler or state.scaler
            weight = next(weight for weight in state.model.parameters() if weight.requires_grad)
            weight.register_hook(lambda gradient: gradient * math.inf if len(self.scales) - 1 in self.overflows else None)
        else:
            self.passed(state)
        if state.scaler is not None:
            state.scaler.growth_interval = GROWS_AFTER
        self.scales.append(1.0 if state.scaler is None else float(state.scaler.current))
        self.before = kept(state)

    def passed(self, state: State) -> None:
        """The last step is done."""
        if all(torch.equal(a, b) for a, b in zip(self.before, kept(state))):
            self.still.append(len(self.scales) - 1)


def kept(state: State) -> list[Tensor]:
    """Copies of the weights and of what the optimizer keeps of past gradients."""
    tensors = [*state.model.parameters(), *state.optimizer.state().values()]
    return [tensor.detach().clone() for tensor in tensors]


# Mask R-CNN takes as long as the other two together.
BY_NIGHT = "maskrcnn-demo"
PARAMS = [name if name != BY_NIGHT else pytest.param(name, marks=ONE_MORE) for name in SMALL]


@pytest.fixture(scope="module", params=PARAMS)
def training(request, tmp_path_factory) -> Training:
    recipe = replace(override(RECIPES[request.param](), SMALL[request.param]), max_images=IMAGES * STEPS)
    if recipe.task == "classification":
        folder = class_photos(tmp_path_factory)
    else:
        folder = rendered_boxes(tmp_path_factory)
    workload = WORKLOADS[recipe.task]
    task = workload.open(recipe, Manifest.load(prepare_if_needed(folder, kind=workload.kind)))
    plan = make_plan(recipe, System(), world=1, most=IMAGES, train_images=task.data.train_images, val_images=1)
    with task.data.train_loader(plan, System(), InputRank(0, 1, CPU, 1), first=0, one_batch=False) as loader:
        batches = [batch.to("cpu", copy=True) for _, (batch,) in loader]
    return Training(recipe, task.build, batches)


def assert_follows(losses: list[float], wanted: list[float]) -> None:
    """They are near float32's, and not the same: fp16 was computed in."""
    off = apart(losses, wanted)
    assert len(off) == STEPS and 0 < max(off) < FOLLOWS and max(off[:5]) < FIRST_FIVE, off


def test_under_a_static_scale_losses_follow_float32_and_a_step_that_overflowed_changes_nothing(training):
    found = training.take("fp16", STATIC, overflows=PLANTED)
    assert found.scaler is not None and found.scaler.kind == "static" and set(found.scales) == {STATIC}
    assert found.still == list(PLANTED) and found.scaler.skipped == len(PLANTED)
    wanted = training.skipping(PLANTED)
    assert_follows(found.losses, wanted)


def test_a_dynamic_scale_grows_and_halves_and_a_step_that_overflowed_changes_nothing_else(training):
    found = training.take("fp16", overflows=PLANTED)
    assert found.scaler is not None and found.scales[0] == FIRST_LOSS_SCALE
    # The scale is high enough at first for gradients of some recipes to overflow unplanted.
    assert set(found.still) >= set(PLANTED) and found.scaler.skipped == len(found.still)
    good = 0
    for step, (scale, following) in enumerate(pairwise(found.scales)):
        good = 0 if step in found.still else good + 1
        factor = 0.5 if step in found.still else 2.0 if good == GROWS_AFTER else 1.0
        assert following == scale * factor, step
        good %= GROWS_AFTER
    assert max(found.scales) > min(found.scales) and any(a < b for a, b in pairwise(found.scales))
    wanted = training.skipping(found.still)
    assert_follows(found.losses, wanted)
