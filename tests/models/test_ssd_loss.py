"""SSD's loss against the plain formulation (full cross-entropy, full sort), and at its borders."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paceline.config.ssd import SSDModel, grid_sizes
from paceline.models.ops.anchors import default_boxes
from paceline.models.ops.boxes import SSD_CODER, to_cxcywh, to_ltrb
from paceline.models.ops.dispatch import static_shapes
from paceline.models.ops.matching import match
from paceline.models.ssd import loss as module
from paceline.models.ssd.loss import SSDLosses, normalize_per_image, select_hardest, softmax_minus_one_hot, ssd_loss

ANCHORS = default_boxes(64, grid_sizes(64), (0.1, 0.3, 0.5, 0.8, 0.9))
RULES = SSDModel()
K = 5


def batch(images: int, objects: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, deltas, boxes, labels; the first image has no object and the last fills every slot."""
    random = torch.Generator().manual_seed(seed)
    count = torch.linspace(0, objects, images).round().to(torch.int64)
    filled = torch.arange(objects) < count[:, None]
    boxes = to_ltrb(0.1 + 0.6 * torch.rand(images, objects, 4, generator=random)) * filled[..., None]
    labels = torch.randint(1, K + 1, (images, objects), generator=random) * filled
    logits = torch.randn(images, len(ANCHORS), K + 1, generator=random)
    return logits, torch.randn(images, len(ANCHORS), 4, generator=random), boxes, labels


def plain_loss(
    logits: Tensor, deltas: Tensor, boxes: Tensor, labels: Tensor, negatives: float
) -> tuple[Tensor, Tensor, Tensor]:
    slots, positives = match(boxes, labels, to_ltrb(ANCHORS))
    classification, localisation = [], []
    for image in range(len(logits)):
        mask = positives[image]
        targets = torch.where(mask, labels[image][slots[image]], 0)
        losses = F.cross_entropy(logits[image], targets, reduction="none")
        wanted = int(mask.sum() * negatives)
        hard = losses[~mask].sort(descending=True).values[:wanted]
        classification.append(losses[mask].sum() + hard.sum())
        true = SSD_CODER.encode(to_cxcywh(boxes[image][slots[image]]), ANCHORS)
        localisation.append(F.smooth_l1_loss(deltas[image][mask], true[mask], reduction="sum"))
    return torch.stack(classification), torch.stack(localisation), positives.sum(dim=1)


@pytest.mark.parametrize("objects", [1, 7, 32])
@pytest.mark.parametrize("negatives", [0.0, 0.5, 3.0, 1000.0])
def test_losses_and_gradients_are_the_plain_ones(objects, negatives) -> None:
    logits, deltas, boxes, labels = batch(4, objects)
    weight = torch.tensor([1.0, 2.0, 0.5, 3.0])
    ours = [logits.clone().requires_grad_(), deltas.clone().requires_grad_()]
    losses = ssd_loss(*ours, boxes, labels, ANCHORS, replace(RULES, negative_ratio=negatives))
    ((losses.classification + losses.localisation) * weight).sum().backward()
    plain = [logits.clone().requires_grad_(), deltas.clone().requires_grad_()]
    classification, localisation, positives = plain_loss(*plain, boxes, labels, negatives)
    ((classification + localisation) * weight).sum().backward()
    assert torch.equal(losses.positives, positives)
    assert torch.allclose(losses.classification, classification, rtol=1e-5)
    assert torch.allclose(losses.localisation, localisation, rtol=1e-5)
    for here, there in zip(ours, plain):
        assert here.grad is not None and there.grad is not None
        assert torch.allclose(here.grad, there.grad, atol=1e-6)


def plain_focal(logits: Tensor, boxes: Tensor, labels: Tensor, gamma: float, weights: Tensor) -> Tensor:
    slots, positives = match(boxes, labels, to_ltrb(ANCHORS))
    losses = []
    for image, mask in enumerate(positives):
        targets = torch.where(mask, labels[image][slots[image]], 0)
        chances = logits[image].softmax(1)[range(len(targets)), targets]
        each = weights[targets] * (1 - chances) ** gamma * -chances.log()
        losses.append(each.sum() * bool(mask.any()))
    return torch.stack(losses)


@pytest.mark.parametrize("fixed_form", [False, True])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_losses_and_gradients_are_the_plain_ones_over_all_boxes(gamma, fixed_form, monkeypatch) -> None:
    monkeypatch.setattr(module, "uses_static_shapes", lambda _: fixed_form)
    logits, deltas, boxes, labels = batch(4, 7)
    weights, weight = torch.linspace(0.5, 3.0, K + 1), torch.tensor([1.0, 2.0, 0.5, 3.0])
    ours = logits.clone().requires_grad_()
    losses = ssd_loss(
        ours, deltas, boxes, labels, ANCHORS, replace(RULES, loss="focal", focal_gamma=gamma), weights=weights
    )
    (losses.classification * weight).sum().backward()
    theirs = logits.double().requires_grad_()
    expected = plain_focal(theirs, boxes, labels, gamma, weights.double())
    (expected * weight).sum().backward()
    torch.testing.assert_close(losses.classification.double(), expected, rtol=1e-5, atol=1e-5)
    assert ours.grad is not None and theirs.grad is not None
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-4, atol=1e-6)
    assert losses.classification[0] == 0 and not ours.grad[0].any()  # of the image without an object


def test_class_weights_multiply_each_chosen_box_s_loss_and_gradient() -> None:
    logits, deltas, boxes, labels = batch(4, 7)
    weights = torch.linspace(0.5, 3.0, K + 1)
    ours, theirs = logits.clone().requires_grad_(), logits.double().requires_grad_()
    losses = ssd_loss(ours, deltas, boxes, labels, ANCHORS, RULES, weights=weights)
    losses.classification.sum().backward()
    slots, positives = match(boxes, labels, to_ltrb(ANCHORS))
    targets = labels.gather(1, slots).masked_fill(~positives, 0)
    background = -logits.log_softmax(2)[..., 0]
    chosen = positives | select_hardest(background, ~positives, 3 * positives.sum(1))
    expected = F.cross_entropy(theirs[chosen], targets[chosen], weights.double(), reduction="sum")
    expected.backward()
    torch.testing.assert_close(losses.classification.sum().double(), expected, rtol=1e-5, atol=1e-5)
    assert ours.grad is not None and theirs.grad is not None
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-4, atol=1e-6)


def test_the_accelerators_forms_are_the_plain_ones() -> None:
    """Fixed shapes and the dense gradient, run here on the CPU."""
    logits, deltas, boxes, labels = batch(4, 7)
    slots, positives = match(boxes, labels, to_ltrb(ANCHORS))
    targets = labels.gather(1, slots).masked_fill(~positives, 0)
    logsumexp, weight = logits.logsumexp(dim=2), torch.rand(len(logits), len(ANCHORS))
    dense = softmax_minus_one_hot(logits, logsumexp, targets, weight)
    leaf = logits.clone().requires_grad_()
    (F.cross_entropy(leaf.flatten(0, 1), targets.flatten(), reduction="none") * weight.flatten()).sum().backward()
    assert leaf.grad is not None and torch.allclose(dense, leaf.grad, atol=1e-6)
    assert torch.allclose(module.background_loss(logits), -logits.log_softmax(dim=2)[..., 0], rtol=1e-6)
    expected = module.box_loss(deltas, boxes, slots, positives, ANCHORS)
    assert torch.allclose(module.box_loss_fixed(deltas, boxes, slots, positives, ANCHORS), expected, rtol=1e-6)


def test_shapes_do_not_depend_on_the_data() -> None:
    """The meta device has no data to look at; forward and backward."""
    logits, deltas, boxes, labels = (part.to("meta") for part in batch(3, 8))
    logits.requires_grad_()
    losses = ssd_loss(logits, deltas, boxes, labels, ANCHORS.to("meta"), RULES)
    losses.classification.sum().backward()
    assert logits.grad is not None and logits.grad.shape == logits.shape
    assert losses.localisation.shape == losses.positives.shape == (3,)


@examples(150)
@given(
    rows=st.lists(
        st.tuples(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=9, max_size=9), st.integers(0, 30)),
        max_size=3,
    )
)
def test_mining_is_the_head_of_a_full_sort_and_the_first_of_equals_wins(rows) -> None:
    losses = torch.tensor([[value for value, _ in row] for row, _ in rows]).reshape(-1, 9).float() / 4
    candidates = torch.tensor([[flag for _, flag in row] for row, _ in rows], dtype=torch.bool).reshape(-1, 9)
    wanted = torch.tensor([count for _, count in rows], dtype=torch.int64)
    chosen = select_hardest(losses, candidates, wanted)
    with static_shapes():
        assert torch.equal(select_hardest(losses, candidates, wanted), chosen)
    for image in range(len(rows)):
        places = candidates[image].nonzero().squeeze(1).tolist()
        expected = sorted(places, key=lambda place: (-float(losses[image, place]), place))[: int(wanted[image])]
        assert chosen[image].nonzero().squeeze(1).tolist() == sorted(expected)


@pytest.mark.parametrize("objects", [0, 8])
def test_images_without_objects_give_zero_loss_and_a_gradient(objects) -> None:
    logits, deltas, _, _ = batch(2, 1)
    logits.requires_grad_()
    deltas.requires_grad_()
    boxes, labels = torch.zeros(2, objects, 4), torch.zeros(2, objects, dtype=torch.int64)
    losses = ssd_loss(logits, deltas, boxes, labels, ANCHORS, RULES)
    classification, localisation = normalize_per_image(losses)
    assert classification.tolist() == localisation.tolist() == [0.0, 0.0]
    (classification + localisation).mean().backward()
    for leaf in (logits, deltas):
        assert leaf.grad is not None and not leaf.grad.any()


def test_an_image_is_divided_by_its_own_positives() -> None:
    losses = SSDLosses(torch.tensor([6.0, 0.0]), torch.tensor([3.0, 0.0]), torch.tensor([3, 0]))
    assert [part.tolist() for part in normalize_per_image(losses)] == [[2.0, 0.0], [1.0, 0.0]]


def test_a_box_without_area_does_not_spoil_the_loss() -> None:
    logits, deltas, boxes, labels = batch(2, 4)
    logits.requires_grad_()
    deltas.requires_grad_()
    boxes[1, 0, 2] = boxes[1, 0, 0]
    losses = ssd_loss(logits, deltas, boxes, labels, ANCHORS, RULES)
    (losses.classification + losses.localisation).sum().backward()
    for tensor in (losses.classification, losses.localisation, logits.grad, deltas.grad):
        assert tensor is not None and bool(tensor.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_outputs_are_scored_in_float32(dtype) -> None:
    logits, deltas, boxes, labels = batch(3, 4)
    half = [logits.to(dtype).requires_grad_(), deltas.to(dtype).requires_grad_()]
    full = [part.detach().float().requires_grad_() for part in half]
    losses, expected = (ssd_loss(*pair, boxes, labels, ANCHORS, RULES) for pair in (half, full))
    assert losses.classification.dtype == losses.localisation.dtype == torch.float32
    assert torch.allclose(losses.classification, expected.classification, rtol=1e-6)
    assert torch.equal(losses.localisation, expected.localisation)
    for one in (losses, expected):
        (one.classification + one.localisation).sum().backward()
    for here, there in zip(half, full):
        assert here.grad is not None and there.grad is not None and here.grad.dtype == dtype
        assert torch.allclose(here.grad.float(), there.grad, rtol=1e-2, atol=1e-3)


def test_huge_logits_stay_finite() -> None:
    logits, deltas, boxes, labels = batch(2, 4)
    leaf = (1e4 * logits).requires_grad_()
    losses = ssd_loss(leaf, deltas, boxes, labels, ANCHORS, RULES)
    losses.classification.sum().backward()
    assert bool(losses.classification.isfinite().all())
    assert leaf.grad is not None and bool(leaf.grad.isfinite().all())
