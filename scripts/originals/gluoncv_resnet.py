"""Training steps of GluonCV's ResNet v1b with MXNet's SGD or LARS, from weights and batches of ours.

    python scripts/originals/gluoncv_resnet.py START.npz END.npz

Runs where MXNet 1.9.1 and GluonCV are installed (tests/oracle/recorded/README.md), without paceline and without torch.
START has `settings` (JSON, the fields of Settings), `images` and `labels`, and each weight as `weight_NAME` by torchvision's name,
which is GluonCV's own but for BatchNorm's gamma and beta. END gets `losses`, `rates`, and the running statistics and weights' sums
of squares after the last step.
Letters: T steps   B images of a step   S pixels   K classes   C input channels, the fourth of zeros
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

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
AT_ONCE = 54  # tensors of a call: MXNET_OPTIMIZER_AGGREGATION_SIZE of the submission


@dataclass(frozen=True)
class Settings:
    """One run; see scripts/certificates/resnet50_systems.py, which writes it."""

    optimizer: str  # sgd or lars
    calls: (
        str  # lars: tensors of an optimizer's call: all in one, trainer (gluon.Trainer's fours) or updater (see `groups`)
    )
    submission: (
        str  # lars: common/fit.py of NVIDIA's submission, whose SGDwFASTLARS and PolySchedule are taken; empty: MXNet's own
    )
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
    min_lr: float
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
    if settings.optimizer == "lars":
        return mx.lr_scheduler.PolyScheduler(settings.horizon, pwr=2, final_lr=settings.min_lr, **ramp)
    return mx.lr_scheduler.MultiFactorScheduler(list(settings.boundaries), factor=settings.factor, **ramp)


def losses_of(settings: Settings, logits: mx.nd.NDArray, labels: mx.nd.NDArray) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    """-> what backward is called on, and (B,) losses.

    sgd: GluonCV's train_imagenet.py, whose smoothed label has a / K of each class; lars: SoftmaxOutput of the submission, whose
    other K - 1 classes have a / (K - 1) each, and which computes the gradient alone.
    """
    classes, a = settings.classes, settings.smoothing
    if settings.optimizer == "sgd":
        wanted = labels.one_hot(classes, on_value=1 - a + a / classes, off_value=a / classes, dtype=settings.dtype)
        losses = gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False)(logits, wanted)
        return losses, losses
    output = mx.nd.SoftmaxOutput(logits, labels, smooth_alpha=a)
    with autograd.pause():
        wanted = labels.one_hot(classes, on_value=1 - a, off_value=a / (classes - 1), dtype=settings.dtype)
        losses = -(wanted * mx.nd.log_softmax(logits)).sum(axis=1)
    return output, losses


def submission(path: str) -> ModuleType:
    """common/fit.py of NVIDIA's submission as a module.

    What it imports and these two classes do not need is a mock; operators of its MXNet have the names that MXNet 1.9 gave them.
    """
    absent = "horovod", "horovod.mxnet", "mlperf_log_utils", "common", "common.optimizer", "common.data", "cuda_graphs"
    for name in (*absent, "cuda_graphs.graph_wrapper", "scaleoutbridge"):
        sys.modules[name] = MagicMock()
    mx.cuda_utils = MagicMock()
    for part in ("sgd_update", "sgd_mom_update", "mp_sgd_update", "mp_sgd_mom_update"):
        setattr(mx.nd, f"lars_multi_{part}", getattr(mx.nd, f"preloaded_multi_{part}"))
    spec = importlib.util.spec_from_file_location("fit", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def groups(parameters: list[gluon.Parameter], calls: str) -> list[list[int]]:
    """Places of the tensors that the optimizer is called for at once.

    updater  as MXNet's Updater calls it in float16: 54 at a time of those in float16 (weights, then the bias), then of BatchNorm's
    """
    if calls == "one":
        return [list(range(len(parameters)))]
    norms = [place for place, one in enumerate(parameters) if one.name.endswith(("gamma", "beta"))]
    weights = [place for place, one in enumerate(parameters) if one.name.endswith("weight")]
    half = [*weights, *sorted({*range(len(parameters))} - {*norms, *weights})]
    return [of[start : start + AT_ONCE] for of in (half, norms) for start in range(0, len(of), AT_ONCE)]


class OwnCalls:
    """Calls a LARS for the tensors of a step in groups; its momentum correction is that of a call, not of a step."""

    def __init__(self, net: ResNetV1b, kind: type, calls: str, options: dict) -> None:
        self.parameters = [one for one in net.collect_params().values() if one.grad_req != "null"]
        names = {number: one.name for number, one in enumerate(self.parameters)}
        self._optimizer = kind(param_idx2name=names, **options)
        self._optimizer.set_wd_mult({one.name: one.wd_mult for one in self.parameters})
        self._optimizer.aggregate_num = AT_ONCE
        self.states = [self._optimizer.create_state(number, one.data()) for number, one in enumerate(self.parameters)]
        self.groups = groups(self.parameters, calls)

    def step(self, images: int) -> None:
        self._optimizer.rescale_grad = 1 / images
        for group in self.groups:
            weights, gradients = (
                [of(self.parameters[k]) for k in group] for of in (lambda p: p.data(), lambda p: p.grad())
            )
            self._optimizer.update(group, weights, gradients, [self.states[k] for k in group])


def trainer_of(settings: Settings, net: ResNetV1b) -> gluon.Trainer | OwnCalls:
    rates = scheduler(settings)
    options = {"learning_rate": settings.lr, "lr_scheduler": rates, "momentum": settings.momentum, "wd": settings.wd}
    if settings.optimizer == "sgd":
        return gluon.Trainer(net.collect_params(), "sgd", options, kvstore=None)
    if settings.submission:
        theirs = submission(settings.submission)
        options["lr_scheduler"] = theirs.PolySchedule(settings.lr, settings.horizon, settings.warmup)
        options.update(lars_trust_coefficient=settings.eta, lars_eps=settings.eps)
        return OwnCalls(net, theirs.SGDwFASTLARS, settings.calls, options)
    options.update(eta=settings.eta, eps=settings.eps)
    if settings.calls == "trainer":
        return gluon.Trainer(net.collect_params(), "lars", options, kvstore=None)
    return OwnCalls(net, mx.optimizer.LARS, settings.calls, options)


def train(settings: Settings, weights: dict, images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    net = network(settings, weights)
    trainer = trainer_of(settings, net)
    optimizer = trainer._optimizer
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
        used.append(optimizer.lr_scheduler(optimizer.num_update))
        print(f"original {settings.optimizer} {settings.dtype} {step} {used[-1]:.6g} {losses[-1]:.9g}", flush=True)
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
