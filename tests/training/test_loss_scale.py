"""Loss scale: overflow is found, the scale moves as torch's GradScaler's does, state comes back."""

from __future__ import annotations

import pytest
import torch

from paceline._utils.errors import CheckpointError
from paceline.training.optim.step_scalars import LossScaler


@pytest.mark.parametrize("bad", [None, float("inf"), float("-inf"), float("nan")])
def test_unscale_divides_and_finds_what_is_not_finite(bad):
    scaler = LossScaler("static", 128.0)
    gradients = [torch.full((2, 3), 256.0), torch.tensor([128.0, -64.0 if bad is None else bad])]
    found = scaler.unscale(gradients)
    assert found == (bad is not None)
    assert torch.equal(gradients[0], torch.full((2, 3), 2.0))
    assert gradients[1][0] == 1
    assert scaler.scale(torch.tensor(0.5)) == 64


def test_dynamic_scale_moves_as_torchs_grad_scaler():
    ours = LossScaler("dynamic", 2.0**10, growth_interval=3)
    theirs, tracker = torch.tensor(2.0**10), torch.zeros((), dtype=torch.int32)
    for overflow in [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0]:
        found = torch.tensor(float(overflow))
        ours.update(found)
        torch._amp_update_scale_(theirs, tracker, found, 2.0, 0.5, 3)
        assert ours.current == theirs
        assert ours.good_steps == tracker
    assert ours.skipped == 3


def test_static_scale_counts_and_stays():
    scaler = LossScaler("static", 128.0)
    for overflow in (1.0, 0.0, 1.0):
        scaler.update(torch.tensor(overflow))
    assert scaler.current == 128.0
    assert scaler.skipped == 2


def test_growth_stops_before_the_scale_itself_overflows():
    scaler = LossScaler("dynamic", 2.0**127, growth_interval=1)
    scaler.update(torch.tensor(0.0))
    assert scaler.current == 2.0**127


def test_state_comes_back_and_another_is_refused():
    first, second = LossScaler("dynamic", 8.0), LossScaler("dynamic", 1.0)
    first.update(torch.tensor(1.0))
    first.update(torch.tensor(0.0))
    second.load_state({name: value.clone() for name, value in first.state().items()})
    assert second.state() == first.state()
    assert (second.current, second.good_steps, second.skipped) == (4.0, 1, 1)
    with pytest.raises(CheckpointError, match="skipped"):
        second.load_state({"scale": torch.tensor(1.0), "good_steps": torch.tensor(0)})
