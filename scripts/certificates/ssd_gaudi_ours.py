"""Our side of ssd_gaudi.py: recipes of Habana's releases from its first weights, our own step, and errors to plant in it.

Letters: B images of a step   M photos   T steps   A default boxes   n values
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from paceline.config.plan import make_plan, step_rates
from paceline.config.recipes.ssd import SSDRecipe, gaudi, gaudi_cosine
from paceline.config.run import RunOptions, RunSpec
from paceline.config.system import System
from paceline.data.batch import DetectionBatch, Objects, detection_batch
from paceline.distributed.comm.launcher import read_launch
from paceline.distributed.comm.world import open_distributed
from paceline.models.ops.matching import match
from paceline.models.registry import WORKLOADS
from paceline.models.ssd.loss import SSDWithLoss
from paceline.models.task import Task
from paceline.models.weights.formats.tensorflow import from_tensorflow
from paceline.training.factory import build_model, build_state
from paceline.training.step import TrainStep

CLASSES = 80
WEIGHT_DECAY = 0.05  # a hundred times the recipes': few steps are to show which tensors decay
LOSSES = ("loss", "class", "box")
WORKLOAD = WORKLOADS["detection"]


@dataclass(frozen=True)
class Error:
    """What is wrong in a planted run: fields of the recipe's model, optim and schedule, and a number added to each class."""

    model: Mapping[str, Any] = field(default_factory=dict)
    parity: Mapping[str, Any] = field(default_factory=dict)  # of model.parity
    optim: Mapping[str, Any] = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=dict)
    shift: int = 0


NONE = Error()
# Where release 1.14.0 is right with the other.
BY_SHAPE, BY_CELL = "equal default boxes by shape", "equal default boxes by cell"
LAST_WINS = "last of two objects wins"
PLANTED = {
    "1.5.0": {
        "momentum with lr inside": Error(optim={"momentum_style": "mxnet"}),
        "warm-up off by one step": Error(schedule={"warmup_step_offset": 1}),
        "BatchNorm's epsilon 1e-3": Error(model={"bn_eps": 1e-3}),
        "class index off by one": Error(shift=1),
        LAST_WINS: Error(parity={"tie": "last"}),
        BY_CELL: Error(parity={"box_order": "cell"}),
        "even sides padded on both": Error(model={"padding": "symmetric"}),
        "two negatives for a positive": Error(model={"negative_ratio": 2.0}),
        "BatchNorm's momentum 0.01": Error(model={"bn_momentum": 0.01}),
        "no decay on BatchNorm": Error(optim={"no_decay": "norm"}),
        "no decay on BatchNorm and biases": Error(optim={"no_decay": "norm-and-bias"}),
    },
    "1.14.0": {
        "warm-up off by one step": Error(schedule={"warmup_step_offset": 1}),
        BY_SHAPE: Error(parity={"box_order": "anchor"}),
        "the stem trains": Error(model={"freeze_stages": 0}, parity={"freeze_first_conv": False}),
        "the first convolution trains": Error(parity={"freeze_first_conv": False}),
        "decay on BatchNorm": Error(optim={"no_decay": "none"}),
    },
}
RECIPES = {"1.5.0": gaudi, "1.14.0": gaudi_cosine}


def our_recipe(release: str, images: int, name: str = "") -> SSDRecipe:
    """`ssd-gaudi` or `ssd-gaudi-cosine` for B images, with the error of this name. An epoch of theirs will be one step."""
    recipe, error = RECIPES[release](images, per_card=images), PLANTED[release].get(name, NONE)
    return replace(
        recipe,
        model=replace(recipe.model, parity=replace(recipe.model.parity, **error.parity), **error.model),
        optim=replace(recipe.optim, weight_decay=WEIGHT_DECAY, **error.optim),
        schedule=replace(recipe.schedule, **error.schedule),
    )


class Places:
    """Where our tensors' values stand among the original's, in its order: trained vectors, running statistics, kernels.

    Found by our own reader of its checkpoints: it gets each value's number in place of the value.
    """

    def __init__(self, first: Mapping[str, np.ndarray]) -> None:
        numbers, start, self.ends = {}, 0, {"vectors": 0, "statistics": 0, "kernels": 0}
        for name, values in first.items():
            numbers[name] = torch.arange(start, start + values.size).reshape(values.shape)
            start += values.size
            kind = "kernels" if name.endswith("kernel") else "statistics" if "/moving_" in name else "vectors"
            self.ends[kind] = start
        self.of = {name: tensor.flatten() for name, tensor in from_tensorflow(numbers, {}).tensors.items()}

    def flat(self, state: Mapping[str, Tensor], kind: str) -> np.ndarray:
        """(n,) our values of a kind, where the original has them."""
        start = {"vectors": 0, "statistics": self.ends["vectors"], "kernels": self.ends["statistics"]}[kind]
        found = torch.full((self.ends[kind] - start,), float("nan"))
        for name, places in self.of.items():
            if start <= int(places[0]) < self.ends[kind]:
                found[places - start] = state[name].detach().flatten()
        return found.numpy()


def load_first(weights: Path, model: SSDWithLoss) -> Places:
    """The original's first weights, into our network."""
    with np.load(weights) as file:
        first = dict(file)
    tensors = from_tensorflow({name: torch.from_numpy(values) for name, values in first.items()}, {}).tensors
    missing, unexpected = model.network.load_state_dict(tensors, strict=False)
    assert not unexpected and all(name.endswith("num_batches_tracked") for name in missing), (missing, unexpected)
    return Places(first)


def build(recipe: SSDRecipe) -> SSDWithLoss:
    return cast(SSDWithLoss, WORKLOAD.network.build(recipe, CLASSES))


def ours(release: str, samples: Path, weights: Path, images: int, steps: int, name: str = "") -> dict[str, np.ndarray]:
    """T of our own steps: loss, class, box, rate (T,), vectors and statistics (T, n) after each, kernels (n,) after the last.

    name  of an error in PLANTED; "" for none
    """
    torch.set_num_threads(1)
    recipe, shift = our_recipe(release, images, name), PLANTED[release].get(name, NONE).shift
    model = build(recipe)
    places = load_first(weights, model)
    plan = make_plan(recipe, System(), world=1, most=images, train_images=images, val_images=1)
    run = RunSpec("certificate", recipe, "cpu", System(), plan, RunOptions())
    rows: list[dict[str, Any]] = []
    with open_distributed(read_launch({}), device=torch.device("cpu")) as world:
        task = cast(Task, SimpleNamespace(build=lambda device: model))
        state = build_state(build_model(task, run, world), run, world)
        step_once = TrainStep(state, plan, System(), torch.device("cpu"))
        for step, batch in zip(range(steps), batches(samples, images, shift)):
            rates = step_rates(recipe, plan, step)
            found = step_once([batch], rates)
            values = model.network.state_dict()
            rows.append({loss: float(found[loss]) for loss in LOSSES} | {"rate": rates.lr})
            print("ours", release, name, step, rows[-1], flush=True)
            rows[-1].update({kind: places.flat(values, kind) for kind in ("vectors", "statistics")})
    made = {part: np.stack([row[part] for row in rows]) for part in rows[0]}
    return made | {"kernels": places.flat(model.network.state_dict(), "kernels")}


def batches(samples: Path, images: int, shift: int = 0) -> Iterator[DetectionBatch]:
    """The photos, B by B; shift: added to each class."""
    with np.load(samples) as file:
        pixels, starts, boxes, classes = (file[name] for name in ("pixels", "starts", "boxes", "classes"))
    boxes = boxes[:, [1, 0, 3, 2]]
    for first in range(0, len(pixels) - images + 1, images):
        parts = [slice(starts[k], starts[k + 1]) for k in range(first, first + images)]
        objects = [Objects(boxes[part], (classes[part] - 1 + shift) % CLASSES + 1) for part in parts]
        photos = torch.from_numpy(pixels[first : first + images]).permute(0, 3, 1, 2)
        yield detection_batch(photos, objects, torch.arange(images))


def matched(batch: DetectionBatch, recipe: SSDRecipe, detector: SSDWithLoss) -> tuple[Tensor, Tensor]:
    """Object (B, A) and whether it has one (B, A) of each default box, as our training step matches; in cell-major order."""
    corners, rules = detector.corners, recipe.model
    assert corners is not None
    return match(
        batch.boxes,
        batch.labels,
        corners,
        iou=rules.match_iou,
        match_rule=rules.match_rule,
        tie=rules.parity.tie,
        order=detector.order,
    )


def targets(release: str, samples: Path) -> np.ndarray:
    """(M, A) the class of each default box, 0 of a negative."""
    recipe = our_recipe(release, 1)
    detector, found = build(recipe), []
    for batch in batches(samples, 1):
        slots, positives = matched(batch, recipe, detector)
        found.append(batch.labels.gather(1, slots) * positives)
    return torch.cat(found).numpy()
