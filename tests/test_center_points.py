"""The detector of tests/center_points.py against obvious loops: its targets, its loss, its detections."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from center_points import PEAK, PRIOR, CenterPoints, at, check, focal_loss, initialize, recipe, targets

from paceline._utils.errors import RecipeError
from paceline.data.batch import DetectionBatch

SMALL = replace(recipe(), model=replace(recipe().model, width=4, channels=8), input=replace(recipe().input, image_size=64))


def scene() -> DetectionBatch:
    """Three images: of three objects, two of them in one cell and of one class; of one at the very corner; of none."""
    boxes, labels = torch.zeros(3, 4, 4), torch.zeros(3, 4, dtype=torch.int64)
    boxes[0, :3] = torch.tensor([[0.1, 0.2, 0.5, 0.9], [0.2, 0.5, 0.42, 0.62], [0.5, 0.0, 0.9, 0.3]])
    labels[0, :3] = torch.tensor([2, 2, 1])
    boxes[1, 0], labels[1, 0] = torch.tensor([0.99, 0.99, 1.0, 1.0]), 3
    images = torch.randint(0, 256, (3, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return DetectionBatch(images, labels, torch.arange(3), boxes)


def model() -> CenterPoints:
    made = CenterPoints(SMALL, 3)
    initialize(made, torch.Generator().manual_seed(0))
    return made


def test_targets_agree_with_the_obvious_loop():
    batch, height, width = scene(), 8, 6
    maps, cells, boxes = targets(batch.boxes, batch.labels, 3, torch.Size((height, width)))
    expected = torch.zeros(3, 3, height, width)
    for image, slot in (batch.labels > 0).nonzero().tolist():
        left, top, right, bottom = batch.boxes[image, slot].tolist()
        x, y, wide, high = (
            (left + right) / 2 * width,
            (top + bottom) / 2 * height,
            (right - left) * width,
            (bottom - top) * height,
        )
        column, row = int(x), int(y)
        assert cells[image, slot] == row * width + column
        wanted = torch.tensor([x - column, y - row, math.log(wide), math.log(high)])
        torch.testing.assert_close(boxes[image, :, slot], wanted, rtol=1e-4, atol=1e-4)
        for i in range(height):
            for j in range(width):
                away = ((j - column) / max(wide * PEAK, 0.4)) ** 2 + ((i - row) / max(high * PEAK, 0.4)) ** 2
                place = expected[image, batch.labels[image, slot] - 1, i]
                place[j] = max(float(place[j]), math.exp(-away / 2))
    torch.testing.assert_close(maps, expected, rtol=1e-4, atol=1e-6)
    assert (maps == 1).sum() == 3  # two objects share their center cell


def focal_term(logit: float, target: float) -> float:
    p = 1 / (1 + math.exp(-logit))
    return (1 - p) ** 2 * -math.log(p) if target == 1 else (1 - target) ** 4 * p**2 * -math.log(1 - p)


def test_the_focal_loss_is_its_formula_for_all_sizes_of_logits_and_targets():
    logits, targets = torch.linspace(-9, 9, 7), torch.tensor([0.0, 0.3, 0.8, 1.0])
    expected = [[focal_term(logit, target) for target in targets.tolist()] for logit in logits.tolist()]
    torch.testing.assert_close(focal_loss(logits[:, None], targets), torch.tensor(expected), rtol=1e-4, atol=1e-6)


def test_the_losses_are_the_formulas_summed_object_by_object():
    batch, made = scene(), model().eval().requires_grad_(False)
    losses = made(batch)
    logits, found = made.maps(batch.images)
    maps, cells, boxes = targets(batch.boxes, batch.labels, 3, logits.shape[2:])
    expected = dict.fromkeys(("peak", "class", "box"), 0.0)
    for image in range(3):
        objects = int((batch.labels[image] > 0).sum())
        for place, target in zip(logits[image].flatten().tolist(), maps[image].flatten().tolist()):
            p = 1 / (1 + math.exp(-place))
            term = (1 - p) ** 2 * -math.log(p) if target == 1 else (1 - target) ** 4 * p**2 * -math.log(1 - p)
            expected["peak"] += term / max(objects, 1)
        for slot in range(objects):
            row, column = divmod(int(cells[image, slot]), logits.shape[3])
            probs = logits[image, :, row, column].softmax(0)
            expected["class"] -= math.log(probs[batch.labels[image, slot] - 1]) / objects
            expected["box"] += float((found[image, :, row, column] - boxes[image, :, slot]).abs().sum()) / objects
    for name, value in expected.items():
        assert float(losses[name]) == pytest.approx(value, rel=1e-4)
    assert float(losses["loss"]) == pytest.approx(sum(expected.values()), rel=1e-4)


def test_an_image_without_objects_has_a_finite_loss_and_a_gradient_everywhere():
    batch, made = scene(), model()
    empty = replace(batch, labels=torch.zeros_like(batch.labels), boxes=torch.zeros_like(batch.boxes))
    losses = made(empty)
    losses["loss"].backward()
    assert losses["class"] == losses["box"] == 0 and 0 < losses["peak"] < math.inf
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in made.parameters())


def test_what_the_targets_say_is_detected_best_first_and_empty_places_are_zeros(monkeypatch):
    batch, made = scene(), model()
    maps, cells, boxes = targets(batch.boxes, batch.labels, 3, torch.Size((16, 16)))
    found = torch.zeros(3, 4, 256).scatter(2, cells[:, None].expand(-1, 4, -1)[..., :3], boxes[..., :3])
    monkeypatch.setattr(made, "maps", lambda images: (20 * maps - 10, found.view(3, 4, 16, 16)))
    rows = made.predict(batch)
    assert rows.shape == (3, SMALL.model.detect.max_detections, 6)
    assert (rows[:, 1:, 4] <= rows[:, :-1, 4]).all() and not rows[..., 4].eq(0).logical_xor(rows[..., 5].eq(0)).any()
    # Of objects 0 and 1 only one has the cell that they share.
    best = {int(row[5]): row[:4] for row in rows[0, :2]}
    torch.testing.assert_close(best[1], batch.boxes[0, 2])
    assert any(torch.allclose(best[2], batch.boxes[0, slot], atol=1e-5) for slot in (0, 1))
    torch.testing.assert_close(rows[1, 0, :4], batch.boxes[1, 0])
    assert not rows[2].any() and not rows[0, 2:].any()


def test_first_weights_say_what_they_should_and_the_same_step_twice_has_equal_bits():
    batch, steps = scene(), []
    for _ in range(2):
        made = model()
        assert float(made.eval().maps(batch.images)[0].detach().sigmoid().mean()) == pytest.approx(PRIOR, rel=0.2)
        made.train()(batch)["loss"].backward()
        steps.append([parameter.grad for parameter in made.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*steps))
    assert torch.equal(
        at(torch.arange(24.0).view(1, 2, 3, 4), torch.tensor([[5, 5]])), torch.tensor([[[5.0, 5], [17, 17]]])
    )


def test_a_model_that_cannot_be_is_refused():
    with pytest.raises(RecipeError, match=r"--model\.width 0: must be 1 or more"):
        check(replace(SMALL, model=replace(SMALL.model, width=0)))
    with pytest.raises(RecipeError, match=r"--input\.image-size 32"):
        check(replace(SMALL, input=replace(SMALL.input, image_size=32)))
