"""Twenty steps of MLPerf's ResNet beside a plain formulation: its forward, loss, schedule and LARS written from their formulas.

Letters: B = 16 images a step   K = 8 classes   T steps of the schedule   W warm-up steps   a = 0.1 smoothing
The recipe is resnet50-mlperf-3200 itself, its network and photos made small. Both sides compute in float64, ours through
TrainStep; the plain one has no module, no optimizer and no loss of torch's: convolutions, then sums and products. What is
compared is every step's loss and every weight at the end, to 1e-9; each planted error of ours is far beyond it.
Sources: the MXNet ResNet of MLPerf Training v3.0 (LARS with momentum correction, PolySchedule), MXNet's SoftmaxOutput.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from by_night import ONE_MORE
from torch import Tensor
from trajectories import SAME, apart, column, in_float64, take_steps

from paceline.config.recipe import Recipe, override
from paceline.config.recipes import RECIPES
from paceline.data.batch import Batch
from paceline.models.registry import WORKLOADS
from paceline.models.resnet.loss import ClassifierWithLoss

IMAGES, SIDE, CLASSES, STEPS = 16, 32, 8, 20
TRAIN = 33  # images: an epoch is 3 steps of 16, the last of them with images of the next
LR, WARMUP_EPOCHS, EPOCHS, END_LR = 4.0, 2, 37, 1e-4
MOMENTUM, DECAY, ETA, SMOOTHING = 0.9, 5e-5, 0.001, 0.1
W, T = 3 * WARMUP_EPOCHS, 3 * EPOCHS
BLOCKS = {"layer1.0": 1, "layer2.0": 2, "layer3.0": 2, "layer4.0": 2}  # of ten layers, with their strides
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BEYOND = 10  # times SAME; the smallest is an end at 0, 6e-8

# A rate for this batch: the published one is for 3200 images.
RECIPE = override(
    RECIPES["resnet50-mlperf-3200"](),
    {
        "model.depth": 10,
        "model.width": 8,
        "input.image_size": SIDE,
        "global_batch_size": IMAGES,
        "bn_batch_size": IMAGES,
        "optim.lr": LR,
    },
)


@pytest.fixture(scope="module", autouse=True)
def doubles() -> Iterator[None]:
    """Both sides compute in float64."""
    with in_float64():
        yield


def make_batches() -> list[Batch]:
    """Noise with a tint for each class."""
    random = np.random.default_rng(8)
    made = []
    for _ in range(STEPS):
        labels = random.integers(0, CLASSES, IMAGES)
        pixels = random.integers(0, 160, (IMAGES, 3, SIDE, SIDE))
        pixels += 60 * np.stack([labels >> bit & 1 for bit in range(3)], axis=1)[:, :, None, None]
        numbers = torch.from_numpy(labels)
        made.append(Batch(torch.from_numpy(pixels.astype(np.uint8)), numbers, numbers))
    return made


@pytest.fixture(scope="module")
def batches() -> list[Batch]:
    return make_batches()


def first_model(recipe: Recipe) -> ClassifierWithLoss:
    model = WORKLOADS["classification"].network.build(recipe, CLASSES)
    WORKLOADS["classification"].network.initialize(recipe, model, torch.Generator().manual_seed(3))
    return model


def ours(recipe: Recipe, batches: Sequence[Batch], *, late: int = 0) -> tuple[list[float], dict[str, Tensor]]:
    """Losses of our own step, and the weights after the last. late: plants an lr that is so many steps behind."""
    losses, state = take_steps(recipe, lambda device: first_model(recipe), batches, train_images=TRAIN, late=late)
    weights = {name.removeprefix("network."): weight.detach() for name, weight in state.model.named_parameters()}
    return column(losses), weights


def plain_logits(weights: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """(B, 3, S, S) uint8 -> (B, K)."""

    def conv(map: Tensor, name: str, stride: int = 1, padding: int = 0) -> Tensor:
        return F.conv2d(map, weights[f"{name}.weight"], None, stride, padding)

    def norm(map: Tensor, name: str) -> Tensor:
        centered = map - map.mean((0, 2, 3), keepdim=True)
        scaled = centered / (centered.square().mean((0, 2, 3), keepdim=True) + 1e-5).sqrt()
        return scaled * weights[f"{name}.weight"].view(1, -1, 1, 1) + weights[f"{name}.bias"].view(1, -1, 1, 1)

    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    pixels = (images / 255 - mean) / std
    dead = weights["conv1.weight"].shape[1] - 3  # the published stem has a fourth channel, of zeros
    map = norm(conv(torch.cat((pixels, pixels.new_zeros(IMAGES, dead, SIDE, SIDE)), 1), "conv1", 2, 3), "bn1").relu()
    map = F.max_pool2d(map, 3, 2, 1)
    for block, stride in BLOCKS.items():
        branch = norm(conv(map, f"{block}.conv1", stride, 1), f"{block}.bn1").relu()
        branch = norm(conv(branch, f"{block}.conv2", 1, 1), f"{block}.bn2")
        if f"{block}.downsample.0.weight" in weights:
            map = norm(conv(map, f"{block}.downsample.0", stride), f"{block}.downsample.1")
        map = (branch + map).relu()
    return map.mean((2, 3)) @ weights["fc.weight"].T + weights["fc.bias"]


def plain_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The true class has 1 - a, each of the K - 1 others a / (K - 1); mean over the images."""
    wanted = torch.full_like(logits, SMOOTHING / (CLASSES - 1))
    wanted[torch.arange(IMAGES), labels] = 1 - SMOOTHING
    log = logits - logits.exp().sum(1, keepdim=True).log()
    return -(wanted * log).sum(1).mean()


def plain_lr(t: int) -> float:
    """Of update t, counted from 1."""
    if t <= W:
        return LR * t / W
    return END_LR + (LR - END_LR) * (1 - (t - W) / (T - W)) ** 2


def plain(batches: Sequence[Batch]) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and last weights by the formulas."""
    network = first_model(RECIPE).network
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in network.named_parameters()}
    moved = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    losses = []
    for t, batch in enumerate(batches, 1):
        loss = plain_loss(plain_logits(weights, batch.images), batch.labels)
        gradients = dict(zip(weights, torch.autograd.grad(loss, list(weights.values()))))
        momentum = MOMENTUM * (plain_lr(t) / plain_lr(t - 1) if t > 1 else 1)
        for name, gradient in gradients.items():
            weight, rate = weights[name].data, plain_lr(t)
            decay = DECAY if weight.ndim > 1 or name == "fc.bias" else 0.0
            if weight.ndim > 1 and weight.norm() > 0 and gradient.norm() > 0:
                rate *= ETA * weight.norm() / (gradient.norm() + decay * weight.norm())
            moved[name] = momentum * moved[name] - rate * (gradient + decay * weight)
            weight += moved[name]
        losses.append(float(loss.detach()))
    return losses, {name: weight.detach() for name, weight in weights.items()}


@pytest.fixture(scope="module")
def expected(batches) -> tuple[list[float], dict[str, Tensor]]:
    return plain(batches)


def test_every_loss_and_the_last_weights_are_those_of_the_formulas(batches, expected):
    losses, weights = ours(RECIPE, batches)
    wanted, last = expected
    assert len(losses) == STEPS and max(apart(losses, wanted)) < SAME, [f"{x:.1e}" for x in apart(losses, wanted)]
    assert weights.keys() == last.keys()
    for name, weight in weights.items():
        assert weight.dtype == torch.float64
        assert float((weight - last[name]).abs().max()) <= SAME * float(last[name].abs().max()), name
    assert sum(wanted[-4:]) < sum(wanted[:4]) - 0.5  # it learnt: equal losses say something about the updates


def changed(part: str, **values) -> Recipe:
    return replace(RECIPE, **{part: replace(getattr(RECIPE, part), **values)})


@pytest.mark.parametrize(
    ("recipe", "late"),
    [
        pytest.param(changed("optim", momentum_style="mxnet"), 0, id="momentum without its correction"),
        pytest.param(changed("optim", no_decay="none"), 0, id="weight decay on BatchNorm"),
        pytest.param(changed("optim", no_decay="norm-and-bias"), 0, id="no weight decay on the classifier's bias"),
        pytest.param(changed("optim", lars_trust_coefficient=0.002), 0, id="twice the trust", marks=ONE_MORE),
        pytest.param(changed("optim", lars_eps=1e-3), 0, id="an epsilon in the trust ratio", marks=ONE_MORE),
        pytest.param(changed("optim", name="sgd"), 0, id="no LARS", marks=ONE_MORE),
        pytest.param(RECIPE, 1, id="lr one step late"),
        pytest.param(changed("schedule", warmup=WARMUP_EPOCHS + 1 / 3), 0, id="warm-up one step longer"),
        pytest.param(changed("schedule", name="cosine"), 0, id="another schedule", marks=ONE_MORE),
        pytest.param(changed("schedule", decay_end=EPOCHS - 1), 0, id="decay over one epoch less", marks=ONE_MORE),
        pytest.param(changed("schedule", min_lr=0.0), 0, id="an end at 0", marks=ONE_MORE),
        pytest.param(replace(RECIPE, epoch_rounding="exact"), 0, id="epochs of a fraction of steps", marks=ONE_MORE),
        pytest.param(changed("model", label_smoothing_style="torch"), 0, id="the other smoothing convention"),
    ],
)
def test_a_planted_error_is_noticed(batches, expected, recipe, late):
    losses, _ = ours(recipe, batches[: W + 4], late=late)
    assert max(apart(losses, expected[0])) > BEYOND * SAME
