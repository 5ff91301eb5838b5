"""Label smoothing in both conventions, against the target distribution written out."""

from __future__ import annotations

import math

import pytest
import torch
from torchvision.ops import sigmoid_focal_loss

from paceline.models.resnet.loss import smoothed_cross_entropy

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


def slow_loss(smoothing: float, convention: str, gamma: float, weights: torch.Tensor) -> torch.Tensor:
    losses = []
    for row, wanted in zip(LOGITS.double(), targets(smoothing, convention)):
        scores = (row.exp() / row.exp().sum()).tolist()
        parts = zip(wanted.tolist(), weights.tolist(), scores)
        losses.append(sum(q * w * (1 - p) ** gamma * -math.log(p) for q, w, p in parts))
    return torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("convention", ["torch", "mxnet"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_focal_loss_and_class_weights_are_those_of_a_loop_over_classes(smoothing, convention, gamma, weighted):
    weights = torch.tensor([0.5, 1.0, 2.5, 4.0]) if weighted else None
    losses = smoothed_cross_entropy(LOGITS, LABELS, smoothing, convention, gamma=gamma, weights=weights)
    expected = slow_loss(smoothing, convention, gamma, torch.ones(4) if weights is None else weights)
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=1e-6)
    if weighted and not gamma and convention == "torch":
        theirs = torch.nn.functional.cross_entropy(LOGITS, LABELS, weights, label_smoothing=smoothing, reduction="sum")
        torch.testing.assert_close(losses.sum(), theirs)


def test_of_two_classes_the_softmax_s_focal_loss_is_torchvision_s_of_a_sigmoid():
    logits, labels = torch.linspace(-4, 4, 9, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1, 0, 1, 0, 1])
    theirs = sigmoid_focal_loss(logits, labels.double(), alpha=0.3, gamma=2.0)
    pairs = torch.stack((torch.zeros(9, dtype=torch.float64), logits), 1)
    ours = smoothed_cross_entropy(pairs, labels, 0.0, "torch", gamma=2.0, weights=torch.tensor([0.7, 0.3]))
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_a_sure_answer_has_a_finite_gradient(gamma):
    logits = torch.tensor([[200.0, 0.0], [0.0, 200.0]], requires_grad=True)
    smoothed_cross_entropy(logits, torch.tensor([0, 0]), 0.1, "torch", gamma=gamma).sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    assert smoothed_cross_entropy(logits[:0], torch.zeros(0, dtype=torch.int64), 0.1, "torch", gamma=gamma).shape == (0,)
