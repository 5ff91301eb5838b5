"""Matching, loss and detections on one synthetic batch: ours, the MLPerf reference's formulation, torchvision's parts.

Letters: B images   A default boxes   K classes   C = K + 1   G object slots   n objects of an image   D detections
Every contender gets the same numbers in the memory layout that it wants, made outside the clock. Loss means matching, both
losses and their gradient with respect to the network's outputs, because our loss matches inside.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.batch.detection import DetectionBatch, Objects, detection_batch
from paceline.bench.step_ssd_peers import (
    SHIFT,
    reference_detections,
    reference_loss,
    reference_matching,
    torchvision_parts,
)
from paceline.bench.timing import seconds_of
from paceline.boxes.anchors import default_boxes
from paceline.boxes.coding import encode
from paceline.boxes.detections import detections
from paceline.boxes.geometry import to_cxcywh, to_ltrb
from paceline.boxes.matching import Positive, match
from paceline.config.detection import SSDModel, grids
from paceline.models.ssd_loss import per_image, ssd_loss

OBJECTS = 7  # of an image, on average, as in COCO
RULES = SSDModel()
# What still counts as agreement: overlaps within rounding of a threshold may fall on either side.
SHARE, RELATIVE = 2e-3, 1e-4
# Two detections are one where class, score and edges are.
SCORE, EDGE = 1e-5, 1e-4


@dataclass(frozen=True)
class Scene:
    """Objects, and what a network might say of them.

    deltas (B, A, 4), logits (B, A, C): of a trained network (`trained`), or noise, where thousands of boxes pass the threshold
    """

    batch: DetectionBatch
    objects: list[tuple[Tensor, Tensor]]  # of each image: boxes (n, 4) ltrb fractions, labels (n,), not padded
    anchors: Tensor  # (A, 4) cxcywh
    trained: tuple[Tensor, Tensor]
    noise: tuple[Tensor, Tensor]


def synthetic_scene(images: int, classes: int, size: int, device: torch.device) -> Scene:
    """The same on every call: B images of `size` pixels, K classes."""
    draw = np.random.default_rng(0)
    rows = []
    for count in draw.poisson(OBJECTS, images):
        sides = np.exp(draw.uniform(np.log(0.03), np.log(0.8), (count, 2)))
        low = draw.random((count, 2)) * (1 - sides)
        boxes = np.concatenate([low, low + sides], axis=1).astype(np.float32)
        rows.append(Objects(boxes, draw.integers(1, classes + 1, count)))
    pixels = torch.from_numpy(draw.integers(0, 256, (images, 3, size, size), dtype=np.uint8))
    batch = detection_batch(pixels, rows, torch.arange(images))
    cells = grids(size)
    anchors = default_boxes(size, cells, RULES.scales[: len(cells) + 1])
    random = torch.Generator().manual_seed(0)
    shape = (images, len(anchors))
    logits = torch.randn(*shape, classes + 1, generator=random)
    deltas = torch.randn(*shape, 4, generator=random)
    slots, positives = match(batch.boxes, batch.labels, to_ltrb(anchors))
    sure = logits.clone()
    sure[..., 0] += 9.0
    image, anchor = positives.nonzero(as_tuple=True)
    sure[image, anchor, 0] -= 9.0
    sure[image, anchor, batch.labels[image, slots[image, anchor]]] += 7.0
    near = deltas.clone()
    near[image, anchor] = 0.3 * near[image, anchor] + encode(
        to_cxcywh(batch.boxes[image, slots[image, anchor]]), anchors[anchor]
    )
    return Scene(
        batch.to(device),  # type: ignore[arg-type]
        [(torch.from_numpy(row.boxes).to(device), torch.from_numpy(row.classes).to(device)) for row in rows],
        anchors.to(device),
        (near.to(device), sure.to(device)),
        (0.5 * deltas.to(device), 2.2 * logits.to(device)),
    )


def run_ops(scene: Scene, rounds: int, seconds: float, device: torch.device) -> list[dict[str, Any]]:
    """Time every contender of every operation, interleaved; -> JSON rows.

    seconds  a contender's share of a round, at least one call
    """
    rows = []
    for operation, contenders in operations(scene).items():
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
        results = {name: work() for name, work in contenders.items()}  # also the warm-up
        for _ in range(rounds):
            for name, work in contenders.items():
                taken[name].append(seconds_of(work, seconds, device))
        differences = {name: difference(operation, name, results, scene) for name in contenders if name != "paceline"}
        limit = RELATIVE if operation == "loss" else SHARE
        rows.append({
            "operation": operation,
            "seconds": {name: [wall for wall, _ in values] for name, values in taken.items()},
            "cpu_seconds": {name: [cpu for _, cpu in values] for name, values in taken.items()},
            "median_seconds": {name: statistics.median(wall for wall, _ in values) for name, values in taken.items()},
            "times_faster": {name: times_faster(taken["paceline"], taken[name], 0) for name in differences},
            "times_faster_cpu": {name: times_faster(taken["paceline"], taken[name], 1) for name in differences},
            "difference": differences,
            "agrees": {name: value <= limit for name, value in differences.items()},
        })  # fmt: skip
    return rows


def operations(scene: Scene) -> dict[str, dict[str, Callable[[], Any]]]:
    """Each operation's contenders, ready to be called."""
    batch, objects, anchors = scene.batch, scene.objects, scene.anchors
    corners, knobs, threshold = to_ltrb(anchors), RULES.detect, RULES.match_iou
    theirs = torchvision_parts(anchors, knobs, threshold)
    deltas, logits = (part.clone().requires_grad_() for part in scene.noise)
    # The reference's networks put out values first.
    turned = [part.detach().transpose(1, 2).contiguous().requires_grad_() for part in (deltas, logits)]

    def our_loss() -> tuple[Tensor, ...]:
        loss = loss_of(logits, deltas, scene)
        return loss.detach(), *torch.autograd.grad(loss, (deltas, logits))

    def plain_loss() -> tuple[Tensor, ...]:
        boxes, labels = reference_matching(objects, anchors, threshold)
        loss = reference_loss(turned[0], turned[1], boxes, labels, anchors)
        return loss.detach(), *torch.autograd.grad(loss, turned)

    def torchvision_loss() -> tuple[Tensor, ...]:
        loss = theirs["loss"](objects, theirs["matching"](objects), deltas, logits)
        return loss.detach(), *torch.autograd.grad(loss, (deltas, logits))

    found: dict[str, dict[str, Callable[[], Any]]] = {
        "matching": {
            "paceline": lambda: match(batch.boxes, batch.labels, corners, iou=threshold),
            "reference": lambda: reference_matching(objects, anchors, threshold),
        },
        "loss": {"paceline": our_loss, "reference": plain_loss},
    }
    for name, (places, scores) in {"detections": scene.trained, "detections of noise": scene.noise}.items():
        first = [part.transpose(1, 2).contiguous() for part in (places, scores)]
        found[name] = {
            "paceline": lambda places=places, scores=scores: detections(
                scores, places, anchors, score_above=knobs.score_above, iou=knobs.iou, candidates=knobs.candidates,
                candidates_of=knobs.candidates_of, keep=knobs.keep, clip=False,
            ),
            "reference": lambda first=first: reference_detections(first[0], first[1], anchors, knobs),
        }  # fmt: skip
        if theirs:
            found[name]["torchvision"] = lambda places=places, scores=scores: theirs["detections"](places, scores)
    if theirs:
        found["matching"]["torchvision"] = lambda: theirs["matching"](objects)
        found["loss"]["torchvision"] = torchvision_loss
    return found


def loss_of(logits: Tensor, deltas: Tensor, scene: Scene, *, positive: Positive = "above") -> Tensor:
    """Our loss: mean over images, or with positive at_least as torchvision sums it up."""
    batch = scene.batch
    losses = ssd_loss(
        logits, deltas, batch.boxes, batch.labels, scene.anchors,
        iou=RULES.match_iou, positive=positive, tie=RULES.tie, negatives=RULES.negatives,
    )  # fmt: skip
    if positive == "at_least":
        return (losses.classification + losses.localisation).sum() / losses.positives.sum().clamp(min=1)
    classification, localisation = per_image(losses)
    return (classification + localisation).mean()


def difference(operation: str, peer: str, results: Mapping[str, Any], scene: Scene) -> float:
    """How far a peer's result lies from ours under the peer's rules.

    return  matching: share of default boxes with another target; loss: largest difference of loss and gradients, relative
            to the largest value; detections: share of ours that the peer has not, or the other way round
    """
    if operation == "matching":
        return _matched_otherwise(peer, results, scene)
    if operation == "loss":
        ours = results["paceline"]
        if peer == "torchvision":
            deltas, logits = (part.clone().requires_grad_() for part in scene.noise)
            loss = loss_of(logits, deltas, scene, positive="at_least")
            ours = (loss.detach(), *torch.autograd.grad(loss, (deltas, logits)))
        other = [part.transpose(1, 2) if peer == "reference" and part.dim() == 3 else part for part in results[peer]]
        return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-12)) for a, b in zip(ours, other))
    images = range(len(scene.objects))
    pairs = [(_rows(results["paceline"], image), _rows(results[peer], image)) for image in images]
    missing = sum(_missing(mine, other) + _missing(other, mine) for mine, other in pairs)
    return missing / max(1, sum(len(mine) + len(other) for mine, other in pairs))


def times_faster(ours: Sequence[tuple[float, float]], theirs: Sequence[tuple[float, float]], which: int) -> float:
    """Median over rounds of theirs / ours. which: 0 for seconds, 1 for CPU-seconds, as `seconds_of` gives them."""
    return statistics.median(other[which] / max(own[which], 1e-9) for own, other in zip(ours, theirs))


def _matched_otherwise(peer: str, results: Mapping[str, Any], scene: Scene) -> float:
    batch = scene.batch
    rule: Positive = "at_least" if peer == "torchvision" else "above"
    slots, positives = match(batch.boxes, batch.labels, to_ltrb(scene.anchors), iou=RULES.match_iou, positive=rule)
    if peer == "torchvision":
        other = torch.stack(results[peer])
        return float((torch.where(positives, slots, -1) != other).float().mean())
    boxes, labels = results[peer]
    mine = to_cxcywh(batch.boxes.gather(1, slots.unsqueeze(2).expand(-1, -1, 4)))
    far = (torch.where(positives.unsqueeze(2), mine, scene.anchors) - boxes).abs().amax(dim=2) > EDGE
    return float((far | (batch.labels.gather(1, slots) * positives != labels)).float().mean())


def _rows(result: Any, image: int) -> Tensor:
    """One image's detections, (D, 6) ltrb, score, class, whoever found them."""
    rows: Tensor | Mapping[str, Tensor] = result[image]
    if isinstance(rows, Tensor):
        return rows[rows[:, 5] > 0]
    boxes, scores, labels = rows["boxes"] - SHIFT, rows["scores"], rows["labels"]
    return torch.cat((boxes, scores[:, None], labels[:, None].float()), dim=1)


def _missing(left: Tensor, right: Tensor) -> int:
    """How many detections of `left` are not in `right`."""
    if not len(left) or not len(right):
        return len(left)
    apart = (left[:, None] - right[None, :]).abs()
    same = (apart[..., :4].amax(dim=2) < EDGE) & (apart[..., 4] < SCORE) & (apart[..., 5] == 0)
    return int((~same.any(dim=1)).sum())
