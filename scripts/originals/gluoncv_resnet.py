"""Training steps of GluonCV's ResNet v1b with MXNet's SGD or LARS, from weights and batches of ours.

    python scripts/originals/gluoncv_resnet.py START.npz END.npz

Runs where MXNet 1.9.1 and GluonCV are installed (tests/oracle/recorded/README.md), without paceline and without torch.
START has `settings` (JSON, the fields of Settings), `images` and `labels`, and each weight as `weight_NAME` by torchvision's name,
which is GluonCV's own but for BatchNorm's gamma and beta. END gets `losses`, `rates`, and the running statistics and weights' sums
of squares after the last step.
Letters: T steps   B images of a step   S pixels   K classes   C input channels, the fourth of zeros
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("MXNET_ENGINE_TYPE", "NaiveEngine")  # one operator after another
# MXNet 1.9.1 and GluonCV use names that numpy has only announced to remove.
warnings.filterwarnings("ignore", category=DeprecationWarning)
warnings.filterwarnings("ignore", category=FutureWarning)

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402
from gluoncv.model_zoo.resnetv1b import BasicBlockV1b, BottleneckV1b, ResNetV1b  # noqa: E402
from mxnet import autograd, gluon  # noqa: E402

# As the network has them in paceline: units of the stages, and the unit.
DEPTHS = {10: ([1, 1, 1, 1], BasicBlockV1b), 50: ([3, 4, 6, 3], BottleneckV1b)}
LARS_TENSORS = 54  # of one fused kernel, MXNET_OPTIMIZER_AGGREGATION_SIZE of the submission


@dataclass(frozen=True)
class Settings:
    """One run; see scripts/certificates/resnet50_systems.py, which writes it."""

    optimiser: str  # sgd or lars
    whole: bool  # lars: one update call for all tensors of a step; False: as gluon.Trainer calls it, four at a time
    depth: int
    classes: int
    channels: int
    dtype: str
    smoothing: float
    lr: float
    momentum: float
    wd: float
    eta: float
    eps: float
    undecayed: str  # pattern of gluon's names that weight decay leaves out
    warmup: int  # steps
    boundaries: tuple[int, ...]  # sgd: steps at which lr falls
    factor: float  # to this part
    horizon: int  # lars: the step at which the polynomial ends
    end_lr: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


def gluon_name(name: str) -> str:
    """layer1.0.bn1.weight -> layer1.0.bn1.gamma."""
    owner, _, part = name.rpartition(".")
    norm = owner.rpartition(".")[2].startswith("bn") or owner.endswith("downsample.1")
    return f"{owner}.{({'weight': 'gamma', 'bias': 'beta'}.get(part, part)) if norm else part}"


def network(settings: Settings, weights: dict[str, np.ndarray]) -> ResNetV1b:
    units, block = DEPTHS[settings.depth]
    net = ResNetV1b(block, units, classes=settings.classes, name_prefix="resnetv1b_")
    net.initialize()
    net.cast(settings.dtype)
    net(mx.nd.zeros((1, settings.channels, 64, 64), dtype=settings.dtype))  # shapes become known
    parameters = net._collect_params_with_prefix()
    named = {gluon_name(name): values for name, values in weights.items()}
    left = {name for name in parameters if "running" not in name} ^ set(named)
    assert not left, left
    for name, values in named.items():
        parameters[name].set_data(mx.nd.array(values, dtype=settings.dtype))
    for parameter in net.collect_params(settings.undecayed).values():
        parameter.wd_mult = 0.0
    return net


def scheduler(settings: Settings) -> mx.lr_scheduler.LRScheduler:
    ramp = {"base_lr": settings.lr, "warmup_steps": settings.warmup}
    if settings.optimiser == "lars":
        return mx.lr_scheduler.PolyScheduler(settings.horizon, pwr=2, final_lr=settings.end_lr, **ramp)
    return mx.lr_scheduler.MultiFactorScheduler(list(settings.boundaries), factor=settings.factor, **ramp)


def losses_of(settings: Settings, logits: mx.nd.NDArray, labels: mx.nd.NDArray) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    """-> what backward is called on, and (B,) losses.

    sgd: GluonCV's train_imagenet.py, whose smoothed label has a / K of each class; lars: SoftmaxOutput of the submission, whose
    other K - 1 classes have a / (K - 1) each, and which computes the gradient alone.
    """
    classes, a = settings.classes, settings.smoothing
    if settings.optimiser == "sgd":
        wanted = labels.one_hot(classes, on_value=1 - a + a / classes, off_value=a / classes, dtype=settings.dtype)
        losses = gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False)(logits, wanted)
        return losses, losses
    output = mx.nd.SoftmaxOutput(logits, labels, smooth_alpha=a)
    with autograd.pause():
        wanted = labels.one_hot(classes, on_value=1 - a, off_value=a / (classes - 1), dtype=settings.dtype)
        losses = -(wanted * mx.nd.log_softmax(logits)).sum(axis=1)
    return output, losses


class WholeLARS:
    """MXNet's LARS with one update call for all tensors of a step, so that its momentum correction reaches all of them."""

    def __init__(self, net: ResNetV1b, options: dict) -> None:
        self.parameters = [one for one in net.collect_params().values() if one.grad_req != "null"]
        names = {number: one.name for number, one in enumerate(self.parameters)}
        self.optimiser = mx.optimizer.LARS(param_idx2name=names, **options)
        self.optimiser.set_wd_mult({one.name: one.wd_mult for one in self.parameters})
        self.optimiser.aggregate_num = LARS_TENSORS
        self.states = [self.optimiser.create_state(number, one.data()) for number, one in enumerate(self.parameters)]

    def step(self, images: int) -> None:
        self.optimiser.rescale_grad = 1 / images
        weights, gradients = ([of(one) for one in self.parameters] for of in (lambda p: p.data(), lambda p: p.grad()))
        self.optimiser.update(list(range(len(weights))), weights, gradients, self.states)


def train(settings: Settings, weights: dict, images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    net = network(settings, weights)
    options = {
        "learning_rate": settings.lr,
        "lr_scheduler": (rates := scheduler(settings)),
        "momentum": settings.momentum,
        "wd": settings.wd,
    }
    if settings.optimiser == "lars":
        options.update(eta=settings.eta, eps=settings.eps)
    if settings.optimiser == "lars" and settings.whole:
        trainer = WholeLARS(net, options)
    else:
        trainer = gluon.Trainer(net.collect_params(), settings.optimiser, options, kvstore=None)
    optimiser = trainer.optimiser if isinstance(trainer, WholeLARS) else trainer._optimizer
    mean, std = (np.array(values, np.float64).reshape(1, 3, 1, 1) for values in (settings.mean, settings.std))
    losses, used = [], []
    for step, (pixels, classes) in enumerate(zip(images, labels)):
        inputs = (pixels.transpose(0, 3, 1, 2) / 255 - mean) / std
        inputs = np.concatenate((inputs, np.zeros_like(inputs[:, : settings.channels - 3])), axis=1)
        with autograd.record():
            logits = net(mx.nd.array(inputs, dtype=settings.dtype))
            head, each = losses_of(settings, logits, mx.nd.array(classes, dtype=settings.dtype))
        head.backward()
        trainer.step(len(pixels))
        losses.append(float(each.mean().asscalar()))
        used.append(rates(optimiser.num_update))
        print(f"original {settings.optimiser} {settings.dtype} {step} {used[-1]:.6g} {losses[-1]:.9g}", flush=True)
    return {"losses": np.array(losses), "rates": np.array(used), **last(net)}


def last(net: ResNetV1b) -> dict[str, np.ndarray]:
    """Running statistics, and each weight's sum of squares."""
    found = {}
    for name, parameter in net._collect_params_with_prefix().items():
        values = parameter.data().asnumpy().astype(np.float64)
        found[f"end_{name}"] = values if "running" in name else np.square(values).sum()
    return found


def main() -> int:
    start, end = map(Path, sys.argv[1:])
    with np.load(start) as file:
        settings = Settings(**json.loads(str(file["settings"])))
        weights = {name.removeprefix("weight_"): file[name] for name in file.files if name.startswith("weight_")}
        found = train(settings, weights, file["images"], file["labels"])
    np.savez(end, versions=np.array(json.dumps({"mxnet": mx.__version__, "numpy": np.__version__})), **found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
