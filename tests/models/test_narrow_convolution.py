"""A strided 1 x 1 convolution of few channels, which one release of oneDNN computes wrongly on CPUs with AVX2 alone."""

from __future__ import annotations

import pytest
import torch

from paceline.models.layers import common


@pytest.mark.parametrize(("channels", "stride"), [(4, 2), (1, 3), (8, 2)])
def test_values_and_gradients_are_those_of_float64(monkeypatch, channels, stride):
    monkeypatch.setattr(common, "STRIDED_1X1_IS_BROKEN", True)  # as on a CPU with AVX2 alone
    torch.manual_seed(0)
    ours = common.Conv2d(channels, 8, 1, stride, bias=False)
    torch.nn.init.normal_(ours.weight)
    ours.to(memory_format=torch.channels_last)
    images = torch.randn(4, channels, 24, 24).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = ours.weight.detach().double().requires_grad_()
    exact = images.detach().double().requires_grad_()
    expected = torch.einsum("oc,bchw->bohw", weight[:, :, 0, 0], exact[:, :, ::stride, ::stride])
    found = ours(images)
    upstream = torch.randn_like(found)
    found.backward(upstream)
    expected.backward(upstream.double())
    for mine, theirs in ((found, expected), (ours.weight.grad, weight.grad), (images.grad, exact.grad)):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5)
