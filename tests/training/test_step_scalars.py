"""One trajectory from every form of a step: floats, scalars on the device, a recorded step that is replayed, torch's fused kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from tape import Tape
from torch import Tensor, nn

from paceline.config.plan import StepRates
from paceline.config.recipe import Optim, OptimizerName
from paceline.training.optim import OPTIMIZERS, make_optimizer
from paceline.training.optim.base import NamedParameter, list_named_parameters
from paceline.training.optim.ema import EMA
from paceline.training.optim.step_scalars import LossScaler, StepScalars, get_momentum

STEPS = 20
OVERFLOWS = (0, 1, 7, 13)
INSIDE, CORRECTED = "mxnet", "mxnet-corrected"
CASES = {
    "sgd": Optim(weight_decay=0.02),
    "sgd, no momentum": Optim(momentum=0.0, weight_decay=0.02),
    "sgd, look-ahead, biases, clipped norm": Optim(
        nesterov=True, weight_decay=0.02, no_decay="norm-and-bias", bias_lr_factor=2.0, clip_norm=1.5
    ),
    "sgd, lr inside": Optim(momentum_style=INSIDE, weight_decay=0.02, clip_value=0.7),
    "sgd, lr inside, corrected": Optim(momentum_style=CORRECTED, weight_decay=0.02, no_decay="norm", bias_lr_factor=0.5),
    "lars": Optim(
        "lars", momentum_style=CORRECTED, weight_decay=0.02, no_decay="norm", lars_trust_coefficient=0.05, lars_eps=1e-6
    ),
    "lars, lr outside": Optim("lars", weight_decay=0.02, lars_trust_coefficient=0.05, bias_lr_factor=2.0),
    "adamw": Optim("adamw", weight_decay=0.1),
    "adamw, biases, clipped": Optim(
        "adamw", weight_decay=0.1, no_decay="norm-and-bias", bias_lr_factor=0.5, clip_value=0.7, clip_norm=1.5
    ),
}
FUSED = [name for name, optim in CASES.items() if optim.name != "lars" and optim.momentum_style == "torch"]


def network(device: str = "cpu") -> nn.Module:
    """With a tensor that never has a gradient, and one whose strides are not those of a row."""
    torch.manual_seed(3)
    layers = nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 1), nn.Flatten(), nn.Linear(5, 3), nn.Linear(2, 2)
    return nn.Sequential(*layers).to(memory_format=torch.channels_last).to(device)


def rates(step: int) -> StepRates:
    lr = [0.0 if step == 0 else 0.02 * step if step < 6 else 0.3 / (step - 3) for step in (step, max(0, step - 1))]
    return StepRates(*lr, ema=min(0.9, (1 + step) / (10 + step)))


def gradient(step: int, index: int, shape: Sequence[int]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 * step + index))


@dataclass
class Training:
    """A network in training under one case; its gradients are scaled where `fp16`, and overflow in some steps."""

    optim: Optim
    fp16: bool
    form: str
    model: nn.Module = field(default_factory=network)

    def __post_init__(self) -> None:
        self.optimizer = make_optimizer(
            list_named_parameters(self.model, self.optim.no_decay, bias_lr_factor=self.optim.bias_lr_factor), self.optim
        )
        self.optimizer.fused = self.form == "fused"
        self.numbers = StepScalars(self.optim, "cpu", tensors=self.form != "floats")
        self.scaler = LossScaler("dynamic", 64.0) if self.fp16 else None
        self.average = EMA(self.model)
        self.gradients = {
            parameter.name: torch.zeros_like(parameter.tensor)
            for parameter in self.optimizer.parameters
            if not parameter.name.startswith("5.")
        }

    def set_gradients(self, step: int) -> None:
        scale = 1.0 if self.scaler is None else float(self.scaler.current)
        for index, parameter in enumerate(self.optimizer.parameters):
            if (held := self.gradients.get(parameter.name)) is not None:
                held.copy_(gradient(step, index, held.shape) * scale)
                if self.fp16 and step in OVERFLOWS and index == 2:
                    held[1] = (torch.inf, torch.nan)[step % 2]
                parameter.tensor.grad = held

    def take(self) -> None:
        """What is recorded: everything behind the backward."""
        self.optimizer.step(self.numbers, scaler=self.scaler)
        self.average.update(self.numbers.fresh)

    def run(self) -> dict[str, Tensor]:
        tape: Tape | None = None
        for step in range(STEPS):
            self.set_gradients(step)
            self.numbers.write(rates(step))
            if tape is not None:
                tape.play()
            elif self.form == "recorded":
                with Tape() as tape:
                    self.take()
            else:
                self.take()
        return {**self.model.state_dict(), **{f"average.{name}": value for name, value in self.average.state().items()}}


def slow_loop(optim: Optim, fp16: bool) -> dict[str, np.ndarray]:
    """The formulas, tensor by tensor in float64: weights, and their average as "average.<name>"."""
    parameters = list_named_parameters(network(), optim.no_decay, bias_lr_factor=optim.bias_lr_factor)
    weights = {p.name: p.tensor.detach().double().numpy().copy() for p in parameters}
    velocities, squares = ({name: np.zeros_like(value) for name, value in weights.items()} for _ in range(2))
    average, taken = {name: value.copy() for name, value in weights.items()}, 0
    for step in range(STEPS):
        now = rates(step)
        named = {p.name: gradient(step, i, p.tensor.shape).double().numpy() for i, p in enumerate(parameters)}
        gradients = {name: value for name, value in named.items() if not name.startswith("5.")}
        if optim.clip_value:
            gradients = {n: np.clip(g, -optim.clip_value, optim.clip_value) for n, g in gradients.items()}
        if optim.clip_norm:
            norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
            gradients = {n: g * min(1.0, optim.clip_norm / (norm + 1e-6)) for n, g in gradients.items()}
        if not (fp16 and step in OVERFLOWS):
            taken += 1
            for p in parameters:
                if p.name in gradients:
                    held = weights[p.name], velocities[p.name], squares[p.name]
                    move(optim, p, *held, gradients[p.name], now, taken)
        average = {name: now.ema * average[name] + (1 - now.ema) * weights[name] for name in weights}
    return weights | {f"average.{name}": value for name, value in average.items()}


def move(optim: Optim, p: NamedParameter, w: Any, v: Any, square: Any, g: Any, now: StepRates, taken: int) -> None:
    """One tensor's step, in place; the letters are those of paceline/training/optim."""
    lr, m, d = now.lr * p.rate, optim.momentum, optim.weight_decay if p.decays else 0.0
    if optim.name == "adamw":
        w *= 1 - lr * d
        v[:] = m * v + (1 - m) * g
        square[:] = 0.999 * square + 0.001 * g**2
        w -= lr * (v / (1 - m**taken)) / (np.sqrt(square / (1 - 0.999**taken)) + 1e-8)
        return
    trust = 1.0
    if optim.name == "lars" and p.adapts:
        norms = np.sqrt((w**2).sum()), np.sqrt((g**2).sum())
        trust = optim.lars_trust_coefficient * norms[0] / (norms[1] + d * norms[0] + optim.lars_eps)
    g = trust * (g + d * w)
    if optim.momentum_style == "torch":
        v[:] = m * v + g
        w -= lr * (g + m * v if optim.nesterov else v)
    else:
        if optim.momentum_style == CORRECTED and now.previous_lr:
            m *= now.lr / now.previous_lr
        v[:] = m * v - lr * g
        w += v


FORMS = [(name, form) for form in ("floats", "tensors", "recorded") for name in CASES]
FORMS += [(name, "fused") for name in FUSED]


@pytest.mark.parametrize("fp16", [False, True], ids=["", "fp16"])
@pytest.mark.parametrize(("name", "form"), FORMS, ids=[f"{form}: {name}" for name, form in FORMS])
def test_every_form_takes_the_steps_of_the_slow_loop(name: str, form: str, fp16: bool) -> None:
    training = Training(CASES[name], fp16, form)
    found, expected = training.run(), slow_loop(CASES[name], fp16)
    if training.scaler is not None:
        assert int(training.scaler.skipped) == len(OVERFLOWS)
    # 1 - 0.999^t in float32 has few digits in the first steps, as torch's own on a device has.
    most = 1e-5 if CASES[name].name == "adamw" else 2e-6
    for key, value in expected.items():
        np.testing.assert_allclose(found[key].double().numpy(), value, rtol=2e-5, atol=most, err_msg=key)


def test_a_planted_float_is_seen() -> None:
    training = Training(CASES["lars"], False, "recorded")
    training.numbers._tensors.pop("lr")
    expected = slow_loop(CASES["lars"], False)
    assert not np.allclose(training.run()["0.weight"].numpy(), expected["0.weight"], rtol=1e-2)


@pytest.mark.parametrize("fp16", [False, True], ids=["", "fp16"])
@pytest.mark.parametrize("name", CASES)
def test_no_number_of_the_device_is_read_on_the_host(name: str, fp16: bool) -> None:
    """A tensor without data raises where it is asked for its value."""
    optim, model = CASES[name], network("meta")
    optimizer = make_optimizer(list_named_parameters(model, optim.no_decay, bias_lr_factor=optim.bias_lr_factor), optim)
    numbers, average = StepScalars(optim, "meta"), EMA(model)
    scaler = LossScaler("dynamic", 64.0, device="meta") if fp16 else None
    for step in range(2):
        for parameter in optimizer.parameters:
            parameter.tensor.grad = torch.zeros_like(parameter.tensor)
        numbers.write(rates(step))
        optimizer.step(numbers, scaler=scaler)
        average.update(numbers.fresh)
    with pytest.raises(RuntimeError, match="meta"):
        float(numbers.lr)


def test_numbers_are_rounded_once_and_stay_where_they_are() -> None:
    optim = CASES["lars"]
    numbers = StepScalars(optim, "cpu", tensors=True)
    held = numbers.lr, numbers.momentum, numbers.fresh
    for step in (5, 6, 6, 0, 19):
        now = rates(step)
        numbers.write(now)
        expected = now.lr, get_momentum(optim, now), 1 - now.ema
        assert all(a is b for a, b in zip((numbers.lr, numbers.momentum, numbers.fresh), held))
        assert [float(number) for number in held] == [float(np.float32(number)) for number in expected]
    assert get_momentum(optim, StepRates(0.3, 0.1)) == optim.momentum * (0.3 / 0.1)
    assert get_momentum(optim, StepRates(0.3, 0.0)) == optim.momentum
    assert StepScalars(CASES["sgd"], "cpu", tensors=True).momentum == 0.9  # the same in every step
    assert (StepScalars(optim, "cpu").lr, type(StepScalars(optim, "meta").lr)) == (0.0, Tensor)


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_nothing_to_train_is_a_step_too(kind: OptimizerName, tensors: bool) -> None:
    optimizer = make_optimizer([], Optim(kind))
    numbers = StepScalars(optimizer.optim, "cpu", tensors=tensors)
    numbers.write(rates(3))
    optimizer.step(numbers, scaler=LossScaler("dynamic", 64.0))
    assert list(optimizer.state()) == (["steps"] if kind == "adamw" else [])
