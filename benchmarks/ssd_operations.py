"""Matching, loss and detections on one synthetic batch: ours, the MLPerf reference's formulation, torchvision's parts.

Letters: B images   A default boxes   K classes   C = K + 1   G object slots   n objects of an image   D detections
Every contender gets the same numbers in the memory layout that it wants, made outside the clock. Loss means matching, both
losses and their gradient with respect to the network's outputs, because our loss matches inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.ssd_plain import SHIFT, reference_detections, reference_loss, reference_matching, torchvision_parts
from paceline.config.ssd import SSDModel
from paceline.models.ops.boxes import SSD_CODER, to_cxcywh, to_ltrb
from paceline.models.ops.matching import MatchRule, match
from paceline.models.ssd.loss import normalize_per_image, ssd_loss
from paceline.models.ssd.postprocess import postprocess_ssd
from paceline.tools.bench.harness import OURS, Operation
from paceline.tools.bench.step_ssd import SSDBench, SSDInputs, make_ssd_inputs

OPS_IMAGES = 8  # of the batch, at most: the reference's suppression takes seconds an image
RULES = SSDModel()
# What still counts as agreement: overlaps within rounding of a threshold may fall on either side.
SHARE, RELATIVE = 2e-3, 1e-4
# Two detections are one where class, score and edges are.
SCORE, EDGE = 1e-5, 1e-4


class Guesses(NamedTuple):
    """What a network might say of a scene: deltas (B, A, 4) and logits (B, A, C)."""

    trained: tuple[Tensor, Tensor]  # of a trained network
    noise: tuple[Tensor, Tensor]  # thousands of boxes pass the threshold


def guesses(scene: SSDInputs, classes: int) -> Guesses:
    """The same on every call."""
    batch, anchors = scene.batch, scene.anchors
    random = torch.Generator().manual_seed(0)
    shape = (len(batch), len(anchors))
    logits = torch.randn(*shape, classes + 1, generator=random).to(anchors.device)
    deltas = torch.randn(*shape, 4, generator=random).to(anchors.device)
    slots, positives = match(batch.boxes, batch.labels, to_ltrb(anchors))
    sure = logits.clone()
    sure[..., 0] += 9.0
    image, anchor = positives.nonzero(as_tuple=True)
    sure[image, anchor, 0] -= 9.0
    sure[image, anchor, batch.labels[image, slots[image, anchor]]] += 7.0
    near = deltas.clone()
    near[image, anchor] = 0.3 * near[image, anchor] + SSD_CODER.encode(
        to_cxcywh(batch.boxes[image, slots[image, anchor]]), anchors[anchor]
    )
    return Guesses((near, sure), (0.5 * deltas, 2.2 * logits))


def operations(bench: SSDBench, device: torch.device) -> Iterator[Operation]:
    """Matching, loss and detections of at most OPS_IMAGES."""
    scene = make_ssd_inputs(min(bench.batch, OPS_IMAGES), bench.classes, bench.size, device)
    guess = guesses(scene, bench.classes)
    for name, works in contenders_of(scene, guess).items():
        differences = {peer: partial(difference, name, peer, scene, guess) for peer in works if peer != OURS}
        yield Operation(name, works, differences, RELATIVE if name == "loss" else SHARE)


def contenders_of(scene: SSDInputs, guess: Guesses) -> dict[str, dict[str, Callable[[], Any]]]:
    """Each operation's contenders, ready to be called, ours first."""
    batch, objects, anchors = scene.batch, scene.objects, scene.anchors
    corners, knobs, threshold = to_ltrb(anchors), RULES.detect, RULES.match_iou
    theirs = torchvision_parts(anchors, knobs, threshold)
    deltas, logits = (part.clone().requires_grad_() for part in guess.noise)
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
            OURS: lambda: match(batch.boxes, batch.labels, corners, iou=threshold),
            "reference": lambda: reference_matching(objects, anchors, threshold),
        },
        "loss": {OURS: our_loss, "reference": plain_loss},
    }
    for name, (places, scores) in {"detections": guess.trained, "detections of noise": guess.noise}.items():
        first = [part.transpose(1, 2).contiguous() for part in (places, scores)]
        found[name] = {
            OURS: lambda places=places, scores=scores: postprocess_ssd(scores, places, anchors, knobs, knobs.nms_iou),
            "reference": lambda first=first: reference_detections(first[0], first[1], anchors, knobs),
        }  # fmt: skip
        if theirs:
            found[name]["torchvision"] = lambda places=places, scores=scores: theirs["detections"](places, scores)
    if theirs:
        found["matching"]["torchvision"] = lambda: theirs["matching"](objects)
        found["loss"]["torchvision"] = torchvision_loss
    return found


def loss_of(logits: Tensor, deltas: Tensor, scene: SSDInputs, *, match_rule: MatchRule = "gt") -> Tensor:
    """Our loss: mean over images, or with match_rule ge as torchvision sums it up."""
    batch = scene.batch
    losses = ssd_loss(
        logits,
        deltas,
        batch.boxes,
        batch.labels,
        scene.anchors,
        replace(RULES, match_rule=match_rule, parity=replace(RULES.parity, box_order="cell")),
    )
    if match_rule == "ge":
        return (losses.classification + losses.localisation).sum() / losses.positives.sum().clamp(min=1)
    classification, localisation = normalize_per_image(losses)
    return (classification + localisation).mean()


def difference(operation: str, peer: str, scene: SSDInputs, guess: Guesses, mine: Any, theirs: Any) -> float:
    """How far a peer's result lies from ours under the peer's rules.

    return  matching: share of default boxes with another target; loss: largest difference of loss and gradients, relative
            to the largest value; detections: share of ours that the peer has not, or the other way round
    """
    if operation == "matching":
        return _matched_otherwise(peer, theirs, scene)
    if operation == "loss":
        if peer == "torchvision":
            deltas, logits = (part.clone().requires_grad_() for part in guess.noise)
            loss = loss_of(logits, deltas, scene, match_rule="ge")
            mine = (loss.detach(), *torch.autograd.grad(loss, (deltas, logits)))
        other = [part.transpose(1, 2) if peer == "reference" and part.dim() == 3 else part for part in theirs]
        return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-12)) for a, b in zip(mine, other))
    images = range(len(scene.objects))
    pairs = [(_rows(mine, image), _rows(theirs, image)) for image in images]
    missing = sum(_missing(left, right) + _missing(right, left) for left, right in pairs)
    return missing / max(1, sum(len(left) + len(right) for left, right in pairs))


def _matched_otherwise(peer: str, theirs: Any, scene: SSDInputs) -> float:
    batch = scene.batch
    rule: MatchRule = "ge" if peer == "torchvision" else "gt"
    slots, positives = match(batch.boxes, batch.labels, to_ltrb(scene.anchors), iou=RULES.match_iou, match_rule=rule)
    if peer == "torchvision":
        other = torch.stack(theirs)
        return float((torch.where(positives, slots, -1) != other).float().mean())
    boxes, labels = theirs
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
