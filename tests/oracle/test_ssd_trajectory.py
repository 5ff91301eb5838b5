"""Thirty steps of SSD training beside a plain formulation: a forward written out, loops for matching, torch.optim.SGD.

Letters: B = 4 images a step   T = 30 steps   W = 10 warm-up steps   A = 382 default boxes of 64 pixels   K = 2 classes
Same first weights, same batches, lr from a formula written out here; both sides in float64. What is compared is every step's
losses, to the last step.
The comparison with the MLPerf reference's own code is scripts/ssd_reference.py; it needs a checkout of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from trajectories import SAME, apart, in_float64, take_steps

from paceline.config.recipe import Optim, Recipe
from paceline.config.schedule import Schedule
from paceline.config.ssd import BoxInput, SSDModel, SSDParity, grid_sizes
from paceline.data.batch import DetectionBatch, Objects, detection_batch
from paceline.models.ops.anchors import default_boxes
from paceline.models.registry import WORKLOADS
from paceline.models.ssd.loss import SSDWithLoss
from paceline.models.ssd.model import init_ssd

IMAGES, SIDE, CLASSES, STEPS, WARMUP, DROP = 4, 64, 2, 30, 10, 25
PEAK, MOMENTUM, DECAY = 0.004, 0.9, 5e-3
SCALES = (0.18, 0.25, 0.47, 0.7, 0.95)
LOSSES = ("loss", "class", "box")
FEW, BEYOND = 12, 1000  # a twin is seen within so many steps, so many times SAME off

RECIPE = Recipe(
    task="detection",
    model=SSDModel(depth=10, width=4, extra_channels=8, scales=SCALES),
    input=BoxInput(image_size=SIDE),
    global_batch_size=IMAGES,
    max_images=IMAGES * STEPS,
    bn_batch_size=IMAGES,
    optim=Optim(lr=PEAK, momentum=MOMENTUM, weight_decay=DECAY),
    schedule=Schedule(name="multistep", unit="fraction", warmup=WARMUP / STEPS, milestones=(DROP / STEPS,)),
)
# Two objects that share their best default box; and one that is the lower half of the square default box of a cell, whose
# IoU with it is 0.5 to the last bit.
SHARED = [(0.30, 0.30, 0.72, 0.70), (0.31, 0.29, 0.73, 0.71)]
HALF = (0.25, 0.375, 0.5, 0.5)


@pytest.fixture(scope="module", autouse=True)
def doubles() -> Iterator[None]:
    """Both sides compute in float64; in one thread, as tensors are tiny and threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with in_float64():
        yield
    torch.set_num_threads(before)


def make_batches() -> list[DetectionBatch]:
    """T batches of noise with a bright rectangle for each object; the last image of a batch has none."""
    random = np.random.default_rng(5)
    made = []
    for _ in range(STEPS):
        images = random.integers(0, 120, (IMAGES, SIDE, SIDE, 3), dtype=np.uint8)
        low = random.uniform(0.02, 0.45, (IMAGES, 2, 2))
        drawn = np.concatenate((low, low + random.uniform(0.2, 0.5, low.shape)), axis=2)
        rows = [SHARED, [*drawn[1], HALF], list(drawn[2]), []]
        objects = [
            Objects(np.array(boxes, np.float32).reshape(-1, 4), 1 + np.arange(len(boxes)) % CLASSES) for boxes in rows
        ]
        for image, entry in zip(images, objects):
            for box, label in zip((entry.boxes * SIDE).round().astype(int), entry.classes):
                image[box[1] : box[3], box[0] : box[2], label] += 110
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
        made.append(detection_batch(pixels, objects, torch.arange(IMAGES)))
    return made


@pytest.fixture(scope="module")
def batches() -> list[DetectionBatch]:
    return make_batches()


def first_model(recipe: Recipe) -> SSDWithLoss:
    model = WORKLOADS["detection"].network.build(recipe, CLASSES)
    init_ssd(model.network, torch.Generator().manual_seed(3), zero_init_residual=True)
    return model


def ours(recipe: Recipe, batches: Sequence[DetectionBatch], *, late: int = 0) -> list[list[float]]:
    """Losses of our own step. late: plants an lr that is so many steps behind."""
    losses, _ = take_steps(recipe, lambda device: first_model(recipe), batches, late=late)
    return [[row[name] for name in LOSSES] for row in losses]


def plain_lr(step: int) -> float:
    return PEAK * min(1, (step + 1) / WARMUP) * (0.1 if step >= DROP else 1)


def plain_forward(weights: Mapping[str, Tensor], images: Tensor) -> tuple[Tensor, Tensor]:
    """(B, 3, S, S) -> class logits (B, A, K + 1), deltas (B, A, 4)."""

    def conv(map: Tensor, name: str, stride: int = 1, padding: int = 0) -> Tensor:
        return F.conv2d(map, weights[f"{name}.weight"], weights.get(f"{name}.bias"), stride, padding)

    def norm(map: Tensor, name: str) -> Tensor:
        mean, var = map.mean((0, 2, 3), keepdim=True), map.var((0, 2, 3), keepdim=True, correction=0)
        scale, shift = (weights[f"{name}.{part}"].view(1, -1, 1, 1) for part in ("weight", "bias"))
        return (map - mean) / (var + 1e-5).sqrt() * scale + shift

    map = F.max_pool2d(norm(conv(images, "trunk.conv1", 2, 3), "trunk.bn1").relu(), 3, 2, 1)
    for stage, stride in (("layer1", 1), ("layer2", 2), ("layer3", 1)):
        block = f"trunk.{stage}.0"
        branch = norm(conv(map, f"{block}.conv1", stride, 1), f"{block}.bn1").relu()
        branch = norm(conv(branch, f"{block}.conv2", 1, 1), f"{block}.bn2")
        if f"{block}.downsample.0.weight" in weights:
            map = norm(conv(map, f"{block}.downsample.0", stride), f"{block}.downsample.1")
        map = (branch + map).relu()
    maps = [map]
    for number in range(3):
        map = conv(conv(map, f"extras.{number}.reduce").relu(), f"extras.{number}.conv", 2, 1).relu()
        maps.append(map)
    found: dict[str, list[Tensor]] = {"conf": [], "loc": []}
    for level, map in enumerate(maps):
        for kind, values in (("conf", CLASSES + 1), ("loc", 4)):
            channels = conv(map, f"heads.{level}.{kind}", 1, 1)
            found[kind].append(channels.permute(0, 2, 3, 1).reshape(len(images), -1, values))
    return torch.cat(found["conf"], 1), torch.cat(found["loc"], 1)


def overlap(one: Sequence[float], other: Sequence[float]) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return width * height / (sum(areas) - width * height)


def plain_match(boxes: list[list[float]], anchors: list[list[float]]) -> dict[int, int]:
    """{default box: object} by IoU above 0.5, then each object's best default box, later objects over earlier ones."""
    table = [[overlap(box, anchor) for anchor in anchors] for box in boxes]
    matched = {}
    for place in range(len(anchors)):
        column = [row[place] for row in table]
        if column and max(column) > 0.5:
            matched[place] = column.index(max(column))
    for number, row in enumerate(table):
        matched[row.index(max(row))] = number
    return matched


def plain_loss(
    logits: Tensor, deltas: Tensor, matched: dict[int, int], boxes: Tensor, labels: Tensor, anchors: Tensor
) -> tuple[Tensor, Tensor]:
    """Class and box loss of one image, summed over its default boxes. boxes (n, 4) ltrb, anchors (A, 4) cxcywh."""
    log = logits.log_softmax(1)
    places = list(matched)
    negatives = [place for place in range(len(anchors)) if place not in matched]
    background = log[:, 0].tolist()
    negatives.sort(key=lambda place: background[place])  # the least probable background first
    class_loss = -log[negatives[: 3 * len(places)], 0].sum()
    box_loss = logits.new_zeros(())
    for place in places:
        number, anchor = matched[place], anchors[place]
        class_loss = class_loss - log[place, labels[number]]
        low, high = boxes[number, :2], boxes[number, 2:]
        true = torch.cat((((low + high) / 2 - anchor[:2]) / anchor[2:] / 0.1, ((high - low) / anchor[2:]).log() / 0.2))
        box_loss = box_loss + F.smooth_l1_loss(deltas[place], true, reduction="sum")
    return class_loss, box_loss


def plain(batches: Sequence[DetectionBatch], over: str) -> list[list[float]]:
    """The same as the paper says it."""
    network = first_model(RECIPE).network
    weights = {name: p.detach().double().requires_grad_() for name, p in network.named_parameters()}
    optimizer = torch.optim.SGD(weights.values(), lr=PEAK, momentum=MOMENTUM, weight_decay=DECAY)
    anchors = default_boxes(SIDE, grid_sizes(SIDE), SCALES)
    corners = torch.cat((anchors[:, :2] - anchors[:, 2:] / 2, anchors[:, :2] + anchors[:, 2:] / 2), 1).tolist()
    mean, std = (torch.tensor(v, dtype=torch.float64).view(1, 3, 1, 1) for v in (BoxInput().mean, BoxInput().std))
    losses = []
    for step, batch in enumerate(batches):
        logits, deltas = plain_forward(weights, (batch.images.double() / 255 - mean) / std)
        parts, positives = [], []
        for image in range(IMAGES):
            used = batch.labels[image] > 0
            boxes, labels = batch.boxes[image][used].double(), batch.labels[image][used]
            matched = plain_match(boxes.tolist(), corners)
            parts.append(plain_loss(logits[image], deltas[image], matched, boxes, labels, anchors))
            positives.append(len(matched))
        by = [IMAGES * max(1, count) for count in positives] if over == "image" else [sum(positives)] * IMAGES
        class_loss, box_loss = (sum(part[k] / n for part, n in zip(parts, by)) for k in (0, 1))
        for group in optimizer.param_groups:
            group["lr"] = plain_lr(step)
        optimizer.zero_grad()
        (class_loss + box_loss).backward()
        optimizer.step()
        losses.append([float((class_loss + box_loss).detach()), float(class_loss.detach()), float(box_loss.detach())])
    return losses


def furthest(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> float:
    """The largest relative difference of any loss of any step that both have."""
    return max(max(apart(*rows)) for rows in zip(left, right))


@pytest.fixture(scope="module")
def expected(batches) -> dict[str, list[list[float]]]:
    return {over: plain(batches, over) for over in ("image", "batch")}


def changed(part: str, **values) -> Recipe:
    return replace(RECIPE, **{part: replace(getattr(RECIPE, part), **values)})


@pytest.mark.parametrize("over", ["image", "batch"])
def test_thirty_steps_give_the_losses_of_the_plain_formulation(batches, expected, over):
    got, wanted = ours(changed("model", loss_normalizer=over), batches), expected[over]
    assert len(got) == STEPS
    assert furthest(got, wanted) < SAME, [f"{max(apart(*rows)):.1e}" for rows in zip(got, wanted)]
    assert wanted[-1][0] < 0.7 * wanted[0][0]  # it learnt: equal losses say something about the updates


@pytest.mark.parametrize(
    ("recipe", "late"),
    [
        pytest.param(changed("model", parity=SSDParity(tie="first")), 0, id="the first of two objects wins"),
        pytest.param(changed("model", match_rule="ge"), 0, id="IoU of at least 0.5"),
        pytest.param(changed("model", negative_ratio=2.0), 0, id="two negatives for each positive"),
        pytest.param(changed("model", loss_normalizer="batch"), 0, id="divided by the batch's positives"),
        pytest.param(changed("optim", momentum_style="mxnet"), 0, id="lr inside the velocity, uncorrected"),
        pytest.param(changed("optim", no_decay="norm-and-bias"), 0, id="weight decay on filters only"),
        pytest.param(RECIPE, 1, id="lr one step late"),
    ],
)
def test_a_planted_difference_is_noticed(batches, expected, recipe, late):
    assert furthest(ours(recipe, batches[:FEW], late=late), expected["image"]) > BEYOND * SAME
