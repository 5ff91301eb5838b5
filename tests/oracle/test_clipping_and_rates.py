"""Gradient clipping and the biases' own learning rate against torch and MXNet's formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from step_rates import take
from torch import nn

from paceline.config.recipe import Optim
from paceline.training.optim.adamw import AdamW
from paceline.training.optim.base import clip_gradients, list_named_parameters, param_groups
from paceline.training.optim.sgd import LARS, SGD
from paceline.training.optim.step_scalars import LossScaler


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 3, 2), nn.Flatten(), nn.Linear(12, 5))


def set_gradients(model: nn.Module, step: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator) * scale


def torch_groups(model: nn.Module, *, lr: float, bias_lr_factor: float, decay: float) -> list[dict]:
    """The MLPerf reference's groups: biases have their own rate and no decay."""
    named = list(model.named_parameters())
    return [
        {"params": [p for name, p in named if "bias" not in name], "lr": lr, "weight_decay": decay},
        {"params": [p for name, p in named if "bias" in name], "lr": lr * bias_lr_factor, "weight_decay": 0.0},
    ]


def ours_of(model: nn.Module, bias_lr_factor: float):
    # The reference's rule is about names: in a trunk with frozen norms it is norm-and-bias.
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.requires_grad_(False)
    return list_named_parameters(model, "norm-and-bias", bias_lr_factor=bias_lr_factor)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("clip_norm", [0.0, 2.0, 1e6])
def test_sgd_with_a_rate_for_biases_and_a_clipped_norm_equals_torch(clip_norm, nesterov):
    mine, theirs = network(), network()
    optimizer = SGD(ours_of(mine, 2.0), Optim(weight_decay=0.01, nesterov=nesterov, clip_norm=clip_norm))
    ours_of(theirs, 2.0)
    groups = torch_groups(theirs, lr=1.0, bias_lr_factor=2.0, decay=0.01)
    oracle = torch.optim.SGD(groups, lr=1.0, momentum=0.9, nesterov=nesterov, foreach=True)
    for step in range(8):
        lr = 0.1 / (step + 1)
        set_gradients(mine, step)
        set_gradients(theirs, step)
        mine[1].weight.grad = theirs[1].weight.grad = None
        take(optimizer, lr)
        oracle.param_groups[0]["lr"], oracle.param_groups[1]["lr"] = lr, 2 * lr
        if clip_norm:
            before = torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm)
            assert (before > clip_norm) == (clip_norm < 100)
        oracle.step()
    for (name, a), b in zip(mine.named_parameters(), theirs.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("clip_norm", [0.0, 2.0])
def test_adamw_with_a_rate_for_biases_and_a_clipped_norm_equals_torch(clip_norm):
    mine, theirs = network(), network()
    optimizer = AdamW(ours_of(mine, 0.5), Optim(weight_decay=0.1, clip_norm=clip_norm))
    ours_of(theirs, 0.5)
    oracle = torch.optim.AdamW(torch_groups(theirs, lr=0.01, bias_lr_factor=0.5, decay=0.1), foreach=True)
    for step in range(8):
        set_gradients(mine, step)
        set_gradients(theirs, step)
        mine[1].weight.grad = theirs[1].weight.grad = None
        take(optimizer, 0.01)
        if clip_norm:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm)
        oracle.step()
    for (name, a), b in zip(mine.named_parameters(), theirs.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("form", ["mxnet", "mxnet-corrected"])
def test_clipped_elements_in_mxnet_s_form_follow_its_formula(form):
    """clip(g) before the decay: v <- m v - lr (clip(g) + d w); w <- w + v, with twice the rate for biases."""
    model = network()
    parameters = list_named_parameters(model, "norm-and-bias", bias_lr_factor=2.0)
    optimizer = SGD(parameters, Optim(weight_decay=0.1, momentum_style=form, clip_value=0.5))
    weights = {p.name: p.tensor.detach().double().numpy().copy() for p in parameters}
    velocities = {name: np.zeros_like(value) for name, value in weights.items()}
    rates = [0.1, 0.2, 0.05]
    for step, lr in enumerate(rates):
        set_gradients(model, step)
        assert max(float(parameter.tensor.grad.abs().max()) for parameter in parameters) > 1
        previous = rates[max(0, step - 1)]
        for parameter in parameters:
            name = parameter.name
            gradient = parameter.tensor.grad.double().numpy()
            decay = 0.1 if parameter.decays else 0.0
            rate = 2 * lr if name.endswith("bias") else lr
            momentum = 0.9 * lr / previous if form == "mxnet-corrected" else 0.9
            clipped = np.clip(gradient, -0.5, 0.5) + decay * weights[name]
            velocities[name] = momentum * velocities[name] - rate * clipped
            weights[name] = weights[name] + velocities[name]
        take(optimizer, lr, previous_lr=previous)
    for parameter in parameters:
        np.testing.assert_allclose(parameter.tensor.detach().numpy(), weights[parameter.name], rtol=1e-5, atol=1e-6)


def test_gradients_are_clipped_after_the_loss_scale_is_divided_out():
    plain, scaled = network(), network()
    first, second = (
        SGD(list_named_parameters(model, "none"), Optim(weight_decay=0.1, clip_value=0.5)) for model in (plain, scaled)
    )
    scaler = LossScaler("static", 128.0)
    set_gradients(plain, 0)
    set_gradients(scaled, 0, scale=128.0)
    take(first, 0.1)
    take(second, 0.1, scaler=scaler)
    for a, b in zip(plain.parameters(), scaled.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("value", "norm"), [(0.5, 0.0), (0.0, 0.5)])
def test_a_step_that_overflowed_changes_nothing_clipped_or_not(value, norm):
    model = network()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    parameters = list_named_parameters(model, "none", bias_lr_factor=2.0)
    optimizer = SGD(parameters, Optim(weight_decay=0.1, clip_value=value, clip_norm=norm))
    scaler = LossScaler("dynamic", 128.0)
    set_gradients(model, 0)
    model[0].weight.grad[0] = torch.inf
    take(optimizer, 0.1, scaler=scaler)
    assert int(scaler.skipped) == 1
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before))


def test_lars_gives_biases_their_rate_too():
    moved = []
    for rate in (1.0, 3.0):
        model = network()
        before = model[4].bias.detach().clone()
        optimizer = LARS(
            list_named_parameters(model, "norm-and-bias", bias_lr_factor=rate), Optim(momentum=0.0, weight_decay=0.1)
        )
        set_gradients(model, 0)
        take(optimizer, 0.1)
        moved.append(model[4].bias.detach() - before)
    torch.testing.assert_close(moved[1], 3 * moved[0], rtol=1e-4, atol=1e-7)


def test_zeros_small_gradients_and_no_gradients_stay():
    zeros, small = torch.zeros(3), torch.full((4,), 1e-3)
    for value, norm in ((0.5, 0.0), (0.0, 0.5)):
        clip_gradients([], value=value, norm=norm)
        clip_gradients([zeros, small], value=value, norm=norm)
        assert torch.equal(zeros, torch.zeros(3)) and torch.equal(small, torch.full((4,), 1e-3))


def test_every_bias_has_the_rate_and_nothing_else():
    parameters = list_named_parameters(network(), "none", bias_lr_factor=2.0)
    assert {p.name for p in parameters if p.rate == 2.0} == {"0.bias", "1.bias", "2.bias", "4.bias"}
    assert {p.rate for p in parameters if not p.name.endswith("bias")} == {1.0}
    assert param_groups(parameters) == {(1.0, True): [0, 2, 4, 6], (2.0, True): [1, 3, 5, 7]}
