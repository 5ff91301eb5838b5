"""Label smoothing in both conventions, against the target distribution written out."""

from __future__ import annotations

import pytest
import torch

from paceline.models.classification_loss import smoothed_cross_entropy

LOGITS = torch.tensor([[0.3, -1.0, 2.0, 0.1], [5.0, 0.0, 0.0, -5.0], [0.0, 0.0, 0.0, 0.0]])
LABELS = torch.tensor([2, 3, 0])


def targets(smoothing: float, convention: str, classes: int = 4) -> torch.Tensor:
    if convention == "torch":
        rows = torch.full((3, classes), smoothing / classes)
        rows[range(3), LABELS] += 1 - smoothing
    else:
        rows = torch.full((3, classes), smoothing / (classes - 1))
        rows[range(3), LABELS] = 1 - smoothing
    return rows.double()


@pytest.mark.parametrize("convention", ["torch", "mxnet"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_each_image_loses_the_cross_entropy_to_its_smoothed_target(smoothing, convention):
    losses = smoothed_cross_entropy(LOGITS, LABELS, smoothing, convention)
    expected = -(targets(smoothing, convention) * LOGITS.double().log_softmax(1)).sum(1)
    assert losses.shape == (3,)
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=1e-6)


def test_mxnet_gradient_is_p_minus_1_plus_alpha_and_p_minus_alpha_over_the_others():
    logits = LOGITS.clone().requires_grad_()
    smoothed_cross_entropy(logits, LABELS, 0.1, "mxnet").sum().backward()
    expected = LOGITS.softmax(1) - 0.1 / 3
    expected[range(3), LABELS] = LOGITS.softmax(1)[range(3), LABELS] - 1 + 0.1
    torch.testing.assert_close(logits.grad, expected, rtol=1e-5, atol=1e-6)


def test_half_precision_logits_lose_in_float32():
    losses = smoothed_cross_entropy(LOGITS.bfloat16(), LABELS, 0.1, "torch")
    assert losses.dtype == torch.float32
    assert torch.equal(losses, smoothed_cross_entropy(LOGITS.bfloat16().float(), LABELS, 0.1, "torch"))


def test_no_images_lose_nothing():
    assert smoothed_cross_entropy(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), 0.1, "mxnet").shape == (0,)
