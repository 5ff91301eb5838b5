"""What resnet50.py changes in our step: errors that the comparison must notice, and the roundings of MXNet's CPU kernels.

Each planted error is one that a reader of the original could make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from resnet50_systems import Losses, Start, changed

from paceline.config.plan import lr_at
from paceline.config.recipe import Recipe
from paceline.training.optim.base import NamedParameter, list_named_parameters
from paceline.training.optim.sgd import update_lr_inside
from paceline.training.optim.step_scalars import get_momentum

# Errors that rounding hides in a run. An epsilon of 1e-8 changes a trust ratio by 1e-8; float32 hides more, which float64 shows.
HIDDEN = dict.fromkeys(("sgd64", "lars64", "nvidia64"), frozenset({"epsilon 1e-8 for 0"}))
HIDDEN["sgd"] = frozenset(
    {"decay on BatchNorm too", "no decay on the linear layer's bias", "BatchNorm epsilon 2e-5 for 1e-5"}
)
HIDDEN["lars"] = HIDDEN["sgd"] | {
    "epsilon 1e-5 for 0",
    "epsilon 1e-8 for 0",
    "BatchNorm epsilon 1e-3 for 1e-5",
    "stride in the 1x1",
    "smoothing over K classes",
}


def errors(kind: str, start: Start, recipe: Recipe, train: Callable[..., Losses]) -> dict[str, Callable[[], Losses]]:
    """The planted errors, by name: our step with one of them.

    train  (start, recipe, late=0) -> losses of our step
    """

    def field(**fields: Any) -> Callable[[], Losses]:
        return lambda: train(start, changed(recipe, **fields))

    def with_rule(adapts: Callable[[Any], bool]) -> Callable[[], Losses]:
        def run() -> Losses:
            with adapting(adapts):
                return train(start, recipe)

        return run

    both = {
        "class index one higher": lambda: train(with_labels_moved(start), recipe),
        "rates one step late": lambda: train(start, recipe, late=1),
        "BatchNorm epsilon 1e-3 for 1e-5": field(model__bn_eps=1e-3),
        "BatchNorm epsilon 2e-5 for 1e-5": field(model__bn_eps=2e-5),
        "stride in the 1x1": field(model__stride_in="1x1"),
        "decay on BatchNorm too": field(optim__no_decay="none"),
        "no decay on the linear layer's bias": field(optim__no_decay="norm-and-bias"),
    }
    if kind == "sgd":
        return both | {
            "lr outside the velocity": field(optim__momentum_style="torch"),
            "smoothing over K - 1 classes": field(model__label_smoothing_style="mxnet"),
        }
    return both | {
        "momentum without its correction": field(optim__momentum_style="mxnet"),
        "smoothing over K classes": field(model__label_smoothing_style="torch"),
        "eta 0.00101 for 0.001": field(optim__lars_trust_coefficient=0.00101),
        "epsilon 1e-5 for 0": field(optim__lars_eps=1e-5),
        "epsilon 1e-8 for 0": field(optim__lars_eps=1e-8),
        "no trust ratio for the linear layer": with_rule(lambda one: one.adapts and not one.name.endswith("fc.weight")),
        "trust ratio for the linear layer's bias": with_rule(lambda one: one.adapts or one.name.endswith("fc.bias")),
    }


@contextmanager
def adapting(rule: Callable[[NamedParameter], bool]) -> Iterator[None]:
    """Inside, LARS gives a trust ratio to other tensors than it should: an error to plant."""

    def changed(*given: Any, **named: Any) -> list[NamedParameter]:
        return [replace(one, adapts=rule(one)) for one in list_named_parameters(*given, **named)]

    with patch("paceline.training.factory.list_named_parameters", changed):
        yield


def with_labels_moved(start: Start, by: int = 1) -> Start:
    return replace(start, labels=(start.labels + by) % len(start.weights["fc.bias"]))


@contextmanager
def norms_summed_in_order() -> Iterator[None]:
    """Inside, LARS' norms are rounded as multi_sum_sq of MXNet's CPU kernels rounds them: float32 squares, added one by one."""

    def norm(tensor: torch.Tensor) -> np.float32:
        squares = np.square(tensor.detach().contiguous().numpy().ravel().astype(np.float32))
        return np.sqrt(np.add.accumulate(squares)[-1])

    def ratios(weights: list[torch.Tensor], gradients: list[torch.Tensor], *, weight_decay: float, eta: float, eps: float):
        one, found = np.float32, []
        for w, g in zip(map(norm, weights), map(norm, gradients)):
            found.append(one(eta) * w / (g + one(weight_decay) * w + one(eps)) if w > 0 and g > 0 else one(1))
        return torch.from_numpy(np.array(found)).to(weights[0].dtype)

    with patch("paceline.training.optim.sgd.trust_ratios", ratios):
        yield


@contextmanager
def rates_in_float32() -> Iterator[None]:
    """Inside, our step gets its learning rates and its corrected momentum as MXNet's kernels do."""
    rate, momentum = lr_at, get_momentum
    with (
        patch("trajectories.lr_at", lambda *given: float(np.float32(rate(*given)))),
        patch("paceline.training.optim.step_scalars.get_momentum", lambda *given: float(np.float32(momentum(*given)))),
    ):
        yield


def constants_in_float32(recipe: Recipe) -> Recipe:
    """The recipe with the numbers that MXNet's kernels keep in float32."""
    optim, model = recipe.optim, recipe.model
    numbers = {"optim__weight_decay": optim.weight_decay, "optim__lars_trust_coefficient": optim.lars_trust_coefficient}
    numbers["model__label_smoothing"] = model.label_smoothing
    return changed(recipe, **{name: float(np.float32(value)) for name, value in numbers.items()})


@contextmanager
def weights_alone_corrected(momentum: float) -> Iterator[None]:
    """Inside, the momentum of convolutions and of the linear layer follows the rates, that of biases and BatchNorm does not."""

    def update(
        weights: list, gradients: list, velocities: list, *, momentum: float, plain: float = momentum, **more: Any
    ) -> None:
        for corrected in (True, False):
            chosen = [place for place, weight in enumerate(weights) if (weight.ndim > 1) is corrected]
            lists = ([tensors[place] for place in chosen] for tensors in (weights, gradients, velocities))
            if chosen:
                update_lr_inside(*lists, momentum=momentum if corrected else plain, **more)

    with patch("paceline.training.optim.sgd.update_lr_inside", update):
        yield
