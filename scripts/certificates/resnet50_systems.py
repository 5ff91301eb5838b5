"""The two sides of resnet50.py: our own training step in this process, and GluonCV's network with MXNet's optimizers in another.

Letters: T steps   B images of a step   S pixels   K classes
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts" / "certificates")]

from original_runs import run_original  # noqa: E402
from trajectories import in_float64, take_steps  # noqa: E402

from paceline.config.recipe import Recipe, override  # noqa: E402
from paceline.config.recipes import RECIPES  # noqa: E402
from paceline.data.batch import Batch  # noqa: E402
from paceline.models.layers.batch_norm import BatchNorm  # noqa: E402
from paceline.models.registry import WORKLOADS  # noqa: E402
from paceline.models.resnet.loss import ClassifierWithLoss  # noqa: E402

PROGRAM = ROOT / "scripts" / "originals" / "gluoncv_resnet.py"
WARMUP = 8  # steps
DROP, FACTOR = 32, 0.125  # sgd: the step at which lr falls, and to what part
HORIZON = 60  # lars: the step at which the polynomial ends
CLASSES = 1000
LR = {"sgd": 2**-8, "lars": 2**-2}  # numbers that float32 holds too: MXNet's kernels keep rates in it
# Class indices of ImageNet, in the order of imagenette's sorted folders.
IMAGENETTE = (0, 217, 482, 491, 497, 566, 569, 571, 574, 701)
Losses = list[dict[str, float]]


@dataclass(frozen=True)
class Start:
    """What both sides begin with, and are fed."""

    weights: dict[str, np.ndarray]  # by torchvision's names, float32
    images: np.ndarray  # (T, B, S, S, 3) uint8
    labels: np.ndarray  # (T, B) int64, 0..K-1


def recipe_of(kind: str, steps: int, batch: int, size: int, lr: float, depth: int = 50) -> Recipe:
    """Our published recipe for B images of S pixels, its schedule in steps, in the original's momentum form and label smoothing.

    sgd   `resnet50`, whose rates end here as MXNet's MultiFactorScheduler has them and whose velocity is MXNet's
    lars  `resnet50-mlperf-3200`: LARS, poly-2, four channels, smoothing over the other classes
    """
    changes: dict[str, Any] = {
        "model.depth": depth,
        "global_batch_size": batch,
        "bn_batch_size": batch,
        "input.image_size": size,
        "epochs": 0.0,
        "max_images": batch * steps,
        "optim.lr": lr,
        "schedule.unit": "steps",
        "schedule.warmup": float(WARMUP),
    }
    if kind == "sgd":
        changes |= {"optim.momentum_style": "mxnet", "schedule.name": "multistep"}
        changes |= {"schedule.milestones": (float(DROP),), "schedule.gamma": FACTOR}
        return override(RECIPES["resnet50"](), changes)
    return override(RECIPES["resnet50-mlperf-3200"](), changes | {"schedule.decay_end": float(HORIZON)})


def first_weights(recipe: Recipe, classes: int = CLASSES) -> dict[str, np.ndarray]:
    """Drawn by numpy, whose stream is the same everywhere, in the recipe's distributions."""
    random, weights = np.random.RandomState(recipe.seed), {}
    for name, tensor in WORKLOADS["classification"].network.build(recipe, classes).network.named_parameters():
        shape = tuple(tensor.shape)
        if len(shape) > 1:
            deviation = 0.01 if name == "fc.weight" else (2 / np.prod(shape[1:])) ** 0.5
            weights[name] = (deviation * random.standard_normal(shape)).astype(np.float32)
        else:
            last = re.search(r"layer\d\.\d+\.bn" + ("3" if recipe.model.depth >= 50 else "2"), name)
            gamma = "weight" in name and not (last and recipe.model.zero_init_residual)
            weights[name] = np.full(shape, 1.0 if gamma else 0.0, np.float32)
    return weights


def photos(data: Path, steps: int, batch: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(T, B, S, S, 3) uint8 and (T, B): training photos of imagenette in an order drawn once, each resized whole."""
    folders = sorted(folder for folder in (data / "train").iterdir() if folder.is_dir())
    files = [(path, IMAGENETTE[place]) for place, folder in enumerate(folders) for path in sorted(folder.glob("*.jpg"))]
    chosen = np.random.RandomState(5).permutation(len(files))[: steps * batch]
    assert len(chosen) == steps * batch, f"{data}: {len(files)} photos are too few for {steps} steps of {batch}"
    pixels = [np.asarray(Image.open(files[k][0]).convert("RGB").resize((size, size))) for k in chosen]
    labels = np.array([files[k][1] for k in chosen], np.int64)
    return np.stack(pixels).reshape(steps, batch, size, size, 3), labels.reshape(steps, batch)


def original(
    start: Start, recipe: Recipe, python: Path, folder: Path, dtype: str = "float32", *, onednn: bool = True, **more: Any
) -> dict[str, np.ndarray]:
    """What scripts/originals/gluoncv_resnet.py writes: losses, rates, and the end of running statistics and weights.

    onednn  False: MXNet's own kernels, which add up in another order (float64 has no others)
    more    fields of its Settings in place of the recipe's
    """
    optim, model = recipe.optim, recipe.model
    settings = {
        "optimizer": optim.name,
        "calls": "one",
        "submission": "",
        "depth": model.depth,
        "classes": len(start.weights["fc.bias"]),
        "channels": model.input_channels,
        "dtype": dtype,
        "smoothing": model.label_smoothing,
        "lr": optim.lr,
        "momentum": optim.momentum,
        "wd": optim.weight_decay,
        "eta": optim.lars_trust_coefficient,
        "eps": optim.lars_eps,
        "undecayed": ".*gamma|.*beta",
        "warmup": WARMUP,
        "boundaries": [DROP],
        "factor": FACTOR,
        "horizon": HORIZON,
        "min_lr": recipe.schedule.min_lr,
        "mean": recipe.input.mean,
        "std": recipe.input.std,
        **more,
    }
    weights = {f"weight_{name}": values for name, values in start.weights.items()}
    np.savez(folder / "start.npz", settings=json.dumps(settings), images=start.images, labels=start.labels, **weights)
    words = str(folder / "start.npz"), str(folder / "end.npz")
    run_original(python, PROGRAM, *words, MXNET_MKLDNN_ENABLED=str(int(onednn)), MXNET_STORAGE_FALLBACK_LOG_VERBOSE="0")
    with np.load(folder / "end.npz") as file:
        return dict(file)


def ours(start: Start, recipe: Recipe, dtype: str = "float32", *, late: int = 0) -> tuple[Losses, ClassifierWithLoss]:
    """Losses of our own step (`TrainStep`), and the trained model. late: plants rates that are so many steps behind."""
    torch.set_num_threads(1)

    def build(device: torch.device) -> ClassifierWithLoss:
        model = WORKLOADS["classification"].network.build(recipe, len(start.weights["fc.bias"]))
        for name, parameter in model.network.named_parameters():
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(start.weights[name]))
        return model

    with in_float64() if dtype == "float64" else nullcontext():
        batches = [
            Batch(torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.from_numpy(labels), torch.from_numpy(labels))
            for pixels, labels in zip(start.images, start.labels)
        ]
        losses, state = take_steps(recipe, build, batches, late=late)
    return losses, state.model


def changed(recipe: Recipe, **fields: Any) -> Recipe:
    """The recipe with dotted fields in other values; `__` stands for the dot."""
    return override(recipe, {name.replace("__", "."): value for name, value in fields.items()})


def column(losses: np.ndarray) -> Losses:
    return [{"loss": float(value)} for value in losses]


def end_differences(model: ClassifierWithLoss, found: Mapping[str, np.ndarray], start: Start) -> dict[str, float]:
    """The largest relative difference of running means, running variances and weights' norms after the last step.

    MXNet's running variance is the step's own, ours that of the population (torch's): n / (n - 1) times as large for n values of a
    channel. `running_var` is compared as it is, `running_var of a step` without that factor.
    """
    network, momentum = model.network, 0.9 ** len(start.images)
    largest = dict.fromkeys(("running_mean", "running_var", "running_var of a step", "norm"), 0.0)
    counts = values_of_a_channel(model, start)
    for name, tensor in network.state_dict().items():
        owner, _, part = name.rpartition(".")
        if part == "num_batches_tracked":
            continue
        values = tensor.double().numpy()
        other = found.get(f"end_{name}")
        if other is None:
            other = found[f"end_{owner}.{({'weight': 'gamma', 'bias': 'beta'})[part]}"]
        pairs = {part: (values, other)}
        if part == "running_var":
            n = counts[owner]
            pairs["running_var of a step"] = ((values - momentum) * (n - 1) / n + momentum, other)
        elif part != "running_mean":
            pairs = {"norm": (np.linalg.norm(values), np.sqrt(other))}
        for key, (left, right) in pairs.items():
            largest[key] = max(largest[key], float(np.abs(left - right).max() / max(np.abs(right).max(), 1e-12)))
    return largest


def values_of_a_channel(model: ClassifierWithLoss, start: Start) -> dict[str, int]:
    """Name of each BatchNorm of the network -> images times places that its statistics are of."""
    counts, images = {}, start.images.shape[1]
    hooks = [
        module.register_forward_hook(
            lambda module, given, output, name=name: counts.update({name: images * output.shape[2] * output.shape[3]})
        )
        for name, module in model.network.named_modules()
        if isinstance(module, BatchNorm)
    ]
    size, channels = start.images.shape[2], model.normalize.channels
    with torch.no_grad():
        weight = next(model.network.parameters())
        model.network.eval()(torch.zeros(1, channels, size, size, dtype=weight.dtype))
    for hook in hooks:
        hook.remove()
    return counts


def tiny(kind: str) -> tuple[Start, Recipe]:
    """A start that is drawn again anywhere: ten layers, three steps of four drawn pictures of 32 pixels, ten classes."""
    recipe = recipe_of(kind, 3, 4, 32, LR[kind], depth=10)
    random = np.random.RandomState(11)
    labels = random.randint(0, 10, (3, 4))
    images = random.randint(0, 200, (3, 4, 32, 32, 3)) + 5 * labels[:, :, None, None, None]
    return Start(first_weights(recipe, 10), images.astype(np.uint8), labels.astype(np.int64)), recipe


def record(python: Path, path: Path) -> None:
    """Write what the original makes of `tiny`, in float64: tests/oracle/test_gluoncv_resnet.py compares our step with it."""
    arrays = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in LR:
            start, recipe = tiny(kind)
            found = original(start, recipe, python, Path(folder), "float64")
            arrays["versions"] = found.pop("versions")
            arrays |= {
                f"{kind}_{name}": values.astype(np.float32 if "end" in name else values.dtype)
                for name, values in found.items()
            }
    np.savez_compressed(path, **arrays)
