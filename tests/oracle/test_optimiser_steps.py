"""SGD against torch.optim.SGD, and LARS against its formulas in float64 numpy."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from step_rates import take
from torch import nn

from paceline._utils.errors import CheckpointError
from paceline.config.recipe import Optim, OptimizerName
from paceline.training.optim import OPTIMIZERS, make_optimizer
from paceline.training.optim.adamw import AdamW
from paceline.training.optim.base import NamedParameter, list_named_parameters
from paceline.training.optim.sgd import LARS, SGD
from paceline.training.optim.step_scalars import LossScaler

SHAPES = {"conv.weight": (4, 3, 2, 2), "bn.weight": (4,), "bn.bias": (4,), "fc.weight": (5, 6), "fc.bias": (5,)}


def parameters(decay_all: bool = False) -> list[NamedParameter]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for name, shape in SHAPES.items():
        weight = name in ("conv.weight", "fc.weight")
        tensor = nn.Parameter(torch.randn(shape, generator=generator))
        made.append(NamedParameter(name, tensor, decays=decay_all or weight or name == "fc.bias", adapts=weight))
    return made


def gradient(step: int, index: int, shape: torch.Size) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1000 * step + index))


def set_gradients(made: list[NamedParameter], step: int, scale: float = 1.0) -> None:
    for index, parameter in enumerate(made):
        parameter.tensor.grad = gradient(step, index, parameter.tensor.shape) * scale


def rate(step: int) -> float:
    return 0.1 * (step + 1) / 5 if step < 5 else 0.1 / (step - 3)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_the_torch_form_equals_torch_optim_sgd_bit_for_bit_over_20_steps(weight_decay, nesterov):
    ours, theirs = parameters(decay_all=True), parameters()
    optimizer = SGD(ours, Optim(momentum=0.9, weight_decay=weight_decay, nesterov=nesterov))
    oracle = torch.optim.SGD(
        [p.tensor for p in theirs], lr=1, momentum=0.9, weight_decay=weight_decay, nesterov=nesterov, foreach=True
    )
    for step in range(20):
        set_gradients(ours, step)
        set_gradients(theirs, step)
        take(optimizer, rate(step))
        oracle.param_groups[0]["lr"] = rate(step)
        oracle.step()
        for a, b in zip(ours, theirs):
            assert torch.equal(a.tensor, b.tensor), (step, a.name)
    assert all(torch.equal(v, oracle.state[p.tensor]["momentum_buffer"]) for v, p in zip(optimizer.own["velocity"], theirs))


def test_the_corrected_form_moves_like_the_torch_form_and_the_uncorrected_one_does_not():
    made = {form: parameters() for form in ("torch", "mxnet", "mxnet-corrected")}
    for form, own in made.items():
        optimizer = SGD(own, Optim(momentum=0.9, weight_decay=0.01, momentum_style=form))
        for step in range(12):
            set_gradients(own, step)
            take(optimizer, rate(step), previous_lr=rate(step - 1) if step else 0.0)
    for a, b, c in zip(made["torch"], made["mxnet-corrected"], made["mxnet"]):
        torch.testing.assert_close(b.tensor, a.tensor, rtol=1e-5, atol=1e-5)
        assert (c.tensor - a.tensor).abs().max() > 1e-3


def lars_in_numpy(made: list[NamedParameter], steps: int, zero: set[str], *, corrected: bool) -> list[np.ndarray]:
    """The fact sheet's formulas, one tensor at a time, in float64."""
    momentum, decay, eta, eps = 0.9, 5e-3, 0.01, 1e-6
    weights = [p.tensor.detach().double().numpy().copy() for p in made]
    velocities = [np.zeros_like(w) for w in weights]
    for step in range(steps):
        lr = rate(step)
        m = momentum * lr / rate(step - 1) if corrected and step else momentum
        for index, p in enumerate(made):
            w = weights[index]
            g = gradient(step, index, p.tensor.shape).double().numpy() * (0 if p.name in zero else 1)
            d = decay if p.decays else 0.0
            local = lr
            if p.adapts:
                wn, gn = np.sqrt((w**2).sum()), np.sqrt((g**2).sum())
                if wn > 0 and gn > 0:
                    local = lr * eta * wn / (gn + d * wn + eps)
            velocities[index] = m * velocities[index] - local * (g + d * w)
            weights[index] = w + velocities[index]
    return weights


@pytest.mark.parametrize("case", ["eligible and excluded", "zero gradient", "zero weight", "no momentum correction"])
def test_lars_follows_the_formulas_of_the_mxnet_kernel(case):
    made = parameters()
    zero = {"conv.weight"} if case == "zero gradient" else set()
    corrected = case != "no momentum correction"
    if case == "zero weight":
        with torch.no_grad():
            made[0].tensor.zero_()
    expected = lars_in_numpy(made, 8, zero, corrected=corrected)
    form = "mxnet-corrected" if corrected else "mxnet"
    optimizer = LARS(
        made, Optim(momentum=0.9, weight_decay=5e-3, lars_trust_coefficient=0.01, lars_eps=1e-6, momentum_style=form)
    )
    for step in range(8):
        set_gradients(made, step)
        for parameter in made:
            if parameter.name in zero:
                parameter.tensor.grad.zero_()
        take(optimizer, rate(step), previous_lr=rate(step - 1) if step else 0.0)
    for parameter, target in zip(made, expected):
        assert torch.isfinite(parameter.tensor).all()
        np.testing.assert_allclose(parameter.tensor.detach().double().numpy(), target, rtol=2e-5, atol=1e-6)


def test_lars_with_eps_0_survives_a_tensor_of_zeros_with_a_zero_gradient():
    made = [NamedParameter("weight", nn.Parameter(torch.zeros(3)), decays=True, adapts=True)]
    made[0].tensor.grad = torch.zeros(3)
    take(LARS(made, Optim(weight_decay=5e-5, momentum_style="mxnet-corrected")), 0.1)
    assert torch.equal(made[0].tensor, torch.zeros(3))


@pytest.mark.parametrize("kind", ["torch", "nesterov", "mxnet-corrected", "lars"])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_an_overflowed_step_changes_nothing_and_is_counted_and_the_next_one_goes_on(kind, bad):
    def run(overflows: bool) -> tuple[list[NamedParameter], LossScaler]:
        made = parameters()
        form = {"nesterov": "torch", "lars": "mxnet-corrected"}.get(kind, kind)
        if kind == "lars":
            optimizer = LARS(made, Optim(momentum=0.9, weight_decay=0.01, momentum_style=form))
        else:
            optimizer = SGD(made, Optim(momentum=0.9, weight_decay=0.01, momentum_style=form, nesterov=kind == "nesterov"))
        scaler = LossScaler("dynamic", 1024.0)
        for step in range(6):
            if overflows:
                # A step in between whose gradients overflowed in one tensor.
                set_gradients(made, step)
                made[1].tensor.grad[2] = bad
                before = [p.tensor.detach().clone() for p in made], [v.clone() for v in optimizer.own["velocity"]]
                take(optimizer, rate(step), previous_lr=rate(step - 1) if step else 0.0, scaler=scaler)
                after = [p.tensor.detach() for p in made], optimizer.own["velocity"]
                assert all(torch.equal(a, b) for left, right in zip(before, after) for a, b in zip(left, right))
            set_gradients(made, step, scale=float(scaler.current))
            take(optimizer, rate(step), previous_lr=rate(step - 1) if step else 0.0, scaler=scaler)
        return made, scaler

    smooth, scaler = run(False)
    assert scaler.skipped == 0
    rough, scaler = run(True)
    assert scaler.skipped == 6
    assert scaler.current == 1024.0 / 2**6
    for a, b in zip(smooth, rough):
        torch.testing.assert_close(a.tensor, b.tensor, rtol=1e-5, atol=1e-6)


def test_scaled_gradients_take_the_unscaled_step():
    plain, scaled = parameters(), parameters()
    first, second = (SGD(made, Optim(momentum=0.9, weight_decay=0.01)) for made in (plain, scaled))
    scaler = LossScaler("static", 128.0)
    for step in range(5):
        set_gradients(plain, step)
        set_gradients(scaled, step, scale=128.0)
        take(first, rate(step))
        take(second, rate(step), scaler=scaler)
    for a, b in zip(plain, scaled):
        torch.testing.assert_close(a.tensor, b.tensor, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["sgd", "lars"])
def test_saved_and_loaded_goes_on_bit_for_bit_and_another_models_state_is_refused(kind):
    straight, resumed = parameters(), parameters()
    optim = Optim(kind, weight_decay=0.01, momentum_style="mxnet-corrected")
    first = make_optimizer(straight, optim)
    for step in range(6):
        set_gradients(straight, step)
        take(first, rate(step), previous_lr=rate(step - 1) if step else 0.0)
        if step == 2:
            saved = {name: value.clone() for name, value in first.state().items()}
            weights = [p.tensor.detach().clone() for p in straight]
    second = make_optimizer(resumed, optim)
    held = second.state()["velocity.fc.weight"]
    second.load_state(saved)
    assert second.state()["velocity.fc.weight"] is held
    for parameter, weight in zip(resumed, weights):
        parameter.tensor.data.copy_(weight)
    for step in range(3, 6):
        set_gradients(resumed, step)
        take(second, rate(step), previous_lr=rate(step - 1))
    assert all(torch.equal(a.tensor, b.tensor) for a, b in zip(straight, resumed))
    with pytest.raises(CheckpointError, match="1 tensors missing"):
        second.load_state({name: value for name, value in saved.items() if name != "velocity.fc.bias"})
    with pytest.raises(CheckpointError, match=r"velocity.fc.bias .*\(5,\).*\(2,\)"):
        second.load_state({**saved, "velocity.fc.bias": torch.zeros(2)})


def test_every_kind_that_a_recipe_can_name_is_made():
    assert set(OPTIMIZERS) == set(get_args(OptimizerName))
    for kind in OPTIMIZERS:
        made = parameters()
        set_gradients(made, 0)
        before = [parameter.tensor.detach().clone() for parameter in made]
        take(make_optimizer(made, Optim(kind)), 0.1)
        assert not any(torch.equal(parameter.tensor, old) for parameter, old in zip(made, before)), kind


def test_parameters_without_a_gradient_stay_and_zero_grad_drops_all():
    made = parameters()
    optimizer = SGD(made, Optim(momentum=0.9, weight_decay=0.1))
    before = [p.tensor.detach().clone() for p in made]
    take(optimizer, 0.1)
    set_gradients(made, 0)
    made[3].tensor.grad = None
    take(optimizer, 0.1)
    assert [torch.equal(p.tensor, b) for p, b in zip(made, before)] == [False, False, False, True, False]
    optimizer.zero_grad()
    assert all(p.tensor.grad is None for p in made)


def test_the_optimizer_takes_a_models_named_parameters():
    model = nn.Sequential(nn.Linear(3, 2))
    optimizer = SGD(list_named_parameters(model, "none"), Optim())
    assert list(optimizer.state()) == ["velocity.0.weight", "velocity.0.bias"]


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_adamw_equals_torch_optim_adamw_to_rounding_over_40_steps(weight_decay):
    ours, theirs = parameters(decay_all=True), parameters()
    optimizer = AdamW(ours, Optim(momentum=0.9, weight_decay=weight_decay))
    oracle = torch.optim.AdamW([p.tensor for p in theirs], lr=1, betas=(0.9, 0.999), weight_decay=weight_decay)
    for step in range(40):
        set_gradients(ours, step)
        set_gradients(theirs, step)
        take(optimizer, rate(step))
        oracle.param_groups[0]["lr"] = rate(step)
        oracle.step()
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.tensor, b.tensor, rtol=1e-5, atol=1e-5)


def test_adamw_decays_only_what_decays_and_an_overflowed_step_changes_nothing_but_the_scale():
    ours = parameters()
    optimizer = AdamW(ours, Optim(momentum=0.9, weight_decay=0.5))
    for parameter in ours:
        parameter.tensor.grad = torch.zeros_like(parameter.tensor)
    before = {p.name: p.tensor.detach().clone() for p in ours}
    take(optimizer, 0.1)
    for parameter in ours:
        kept = 0.95 if parameter.decays else 1.0
        torch.testing.assert_close(parameter.tensor.detach(), kept * before[parameter.name])
    scaler = LossScaler("dynamic", 8.0, device=torch.device("cpu"))
    saved = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    before = {p.name: p.tensor.detach().clone() for p in ours}
    set_gradients(ours, 0)
    ours[0].tensor.grad[0] = torch.inf
    take(optimizer, 0.1, scaler=scaler)
    assert all(torch.equal(p.tensor, before[p.name]) for p in ours)
    assert all(torch.equal(tensor, saved[name]) for name, tensor in optimizer.state().items())
    set_gradients(ours, 1, scale=4.0)
    take(optimizer, 0.1, scaler=scaler)
    assert not torch.equal(ours[0].tensor, before[ours[0].name])


def test_adamw_survives_an_overflow_in_its_very_first_step():
    """A dynamic scale starts so high that this is where overflows are met; no step is counted yet."""
    ours, smooth = parameters(), parameters()
    first, second = (AdamW(made, Optim(momentum=0.9, weight_decay=0.1)) for made in (ours, smooth))
    scaler = LossScaler("dynamic", 8.0)
    before = [p.tensor.detach().clone() for p in ours]
    set_gradients(ours, 0)
    ours[0].tensor.grad[0] = torch.inf
    take(first, 0.1, scaler=scaler)
    assert all(torch.equal(p.tensor, b) for p, b in zip(ours, before)) and scaler.current == 4
    set_gradients(ours, 1, scale=4.0)
    set_gradients(smooth, 1)
    take(first, 0.1, scaler=scaler)
    take(second, 0.1)
    for a, b in zip(ours, smooth):
        torch.testing.assert_close(a.tensor, b.tensor, rtol=1e-5, atol=1e-6)


def test_adamw_decays_by_each_tensor_s_own_rate():
    ours = [replace(one, rate=number + 0.5, decays=number != 1) for number, one in enumerate(parameters())]
    theirs = parameters()
    optimizer = AdamW(ours, Optim(momentum=0.9, weight_decay=0.3))
    groups = [{"params": [b.tensor], "lr": a.rate * 0.1, "weight_decay": 0.3 * a.decays} for a, b in zip(ours, theirs)]
    oracle = torch.optim.AdamW(groups, betas=(0.9, 0.999))
    for step in range(3):
        set_gradients(ours, step)
        set_gradients(theirs, step)
        take(optimizer, 0.1)
        oracle.step()
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.tensor, b.tensor, rtol=1e-5, atol=1e-5)
