"""Twenty steps of our training step beside a plain torchvision model, torch.optim.SGD and F.cross_entropy in a plain loop.

Letters: B = 8 images a step   K = 8 classes   T = 20 steps   W = 4 warm-up steps
Same first weights, same batches, lr from a formula written out here; both sides in float64. What is compared is every step's
loss: to 1e-9 from the first to the last, while each planted twin of ours is a thousand times that off, or more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import torchvision
from by_night import ONE_MORE
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock
from trajectories import SAME, apart, column, in_float64, take_steps

from paceline.config.recipe import Optim, Recipe
from paceline.config.resnet import ImageInput, ResNetModel
from paceline.config.schedule import Schedule
from paceline.config.system import System
from paceline.data.batch import Batch
from paceline.models.backbones.base import init_weights
from paceline.models.registry import WORKLOADS
from paceline.models.resnet.loss import ClassifierWithLoss
from paceline.models.weights.formats.torchvision import to_plain_tensors

IMAGES, SIDE, CLASSES, STEPS, WARMUP = 8, 32, 8, 20, 4
PEAK, MOMENTUM, DECAY, SMOOTHING = 0.005, 0.9, 5e-3, 0.1
FEW, BEYOND = 4, 1000  # a twin is seen within so many steps, so many times SAME off

RECIPE = Recipe(
    task="classification",
    model=ResNetModel(depth=10, label_smoothing=SMOOTHING),
    input=ImageInput(image_size=SIDE),
    global_batch_size=IMAGES,
    max_images=IMAGES * STEPS,
    bn_batch_size=IMAGES,
    optim=Optim(lr=PEAK, momentum=MOMENTUM, weight_decay=DECAY, no_decay="norm"),
    schedule=Schedule(name="cosine", unit="fraction", warmup=WARMUP / STEPS),
)


@pytest.fixture(scope="module", autouse=True)
def doubles() -> Iterator[None]:
    """Both sides compute in float64."""
    with in_float64():
        yield


@pytest.fixture(scope="module")
def batches() -> list[tuple[Tensor, Tensor]]:
    """T times (B, 3, S, S) uint8 and (B,) labels; each class has a color, so that there is something to learn."""
    generator = torch.Generator().manual_seed(5)
    made = []
    for _ in range(STEPS):
        labels = torch.randint(0, CLASSES, (IMAGES,), generator=generator)
        noise = torch.randint(0, 160, (IMAGES, 3, SIDE, SIDE), generator=generator, dtype=torch.uint8)
        tint = torch.stack([(labels >> bit & 1) * 60 for bit in range(3)], dim=1).to(torch.uint8)
        made.append((noise + tint[:, :, None, None], labels))
    return made


def first_model(recipe: Recipe) -> ClassifierWithLoss:
    model = WORKLOADS["classification"].network.build(recipe, CLASSES)
    init_weights(model.network, "torchvision", torch.Generator().manual_seed(3), zero_init_residual=True)
    return model


def ours(
    recipe: Recipe, batches: Sequence[tuple[Tensor, Tensor]], *, late: int = 0, channels_last: bool = True
) -> list[float]:
    """Losses of our own step. late: plants an lr that is so many steps behind."""
    system = System(precision="fp32", channels_last="on" if channels_last else "off")
    rows = [Batch(images, labels, labels) for images, labels in batches]
    return column(take_steps(recipe, lambda device: first_model(recipe), rows, system=system, late=late)[0])


def plain_lr(step: int) -> float:
    if step < WARMUP:
        return PEAK * (step + 1) / WARMUP
    return PEAK * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) / 2


def plain(batches: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
    """The same as anybody would write it with torchvision and torch."""
    model = torchvision.models.ResNet(BasicBlock, [1, 1, 1, 1], num_classes=CLASSES)
    state = first_model(RECIPE).network.state_dict()
    assert to_plain_tensors(first_model(RECIPE).network.state_dict()).keys() == state.keys()
    model.load_state_dict(state)
    norms = {p for module in model.modules() if isinstance(module, nn.BatchNorm2d) for p in module.parameters()}
    groups = [
        {"params": [p for p in model.parameters() if p not in norms], "weight_decay": DECAY},
        {"params": [p for p in model.parameters() if p in norms], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=PEAK, momentum=MOMENTUM)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (ImageInput().mean, ImageInput().std))
    losses = []
    for step, (images, labels) in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = plain_lr(step)
        loss = F.cross_entropy(model((images / 255 - mean) / std), labels, label_smoothing=SMOOTHING)
        assert loss.dtype == torch.float64
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.fixture(scope="module")
def expected(batches) -> list[float]:
    return plain(batches)


def changed(part: str, **values) -> Recipe:
    return replace(RECIPE, **{part: replace(getattr(RECIPE, part), **values)})


@pytest.mark.parametrize("channels_last", [True, pytest.param(False, marks=ONE_MORE)])
def test_every_loss_is_torchvision_s_and_torch_s(batches, expected, channels_last):
    got = ours(RECIPE, batches, channels_last=channels_last)
    assert len(got) == STEPS and max(apart(got, expected)) < SAME, [f"{x:.1e}" for x in apart(got, expected)]
    assert sum(expected[-4:]) < sum(expected[:4]) - 1  # it learnt: equal losses say something about the updates


@pytest.mark.parametrize(
    ("recipe", "late"),
    [
        pytest.param(changed("optim", momentum_style="mxnet"), 0, id="lr inside the velocity, uncorrected"),
        pytest.param(RECIPE, 1, id="lr one step late"),
        pytest.param(changed("optim", no_decay="none"), 0, id="weight decay on BatchNorm"),
        pytest.param(changed("model", label_smoothing_style="mxnet"), 0, id="the other smoothing convention"),
        pytest.param(changed("schedule", warmup=(WARMUP + 1) / STEPS), 0, id="warm-up one step longer"),
    ],
)
def test_a_planted_difference_is_noticed(batches, expected, recipe, late):
    assert max(apart(ours(recipe, batches[:FEW], late=late), expected)) > BEYOND * SAME


def test_the_corrected_momentum_is_torchs_although_lr_stands_inside_the_velocity(batches, expected):
    got = ours(changed("optim", momentum_style="mxnet-corrected"), batches[:FEW])
    assert max(apart(got, expected)) < SAME
