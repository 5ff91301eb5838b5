"""From the network's output to detections: scores, candidates, decoding, suppression.

Letters: B images   A default boxes   K classes (0 is background)   C candidates of a list   D places for detections
Equal scores: the earlier default box is the better one, then the lower class; among candidates of the image the lower class,
then the earlier default box, as MXNet lists them. (Which of several equals makes the cut to `candidates` is an
accelerator's own choice.)
Sources: MLPerf reference SSD, utils.py (candidates of each class); System A's MXNet box_nms (candidates of the image).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from paceline.boxes.coding import decode
from paceline.boxes.forms import fixed_shapes
from paceline.boxes.geometry import clip as clip_to_image
from paceline.boxes.suppression import stays_in_list, stays_in_lists

CandidatesOf = Literal["class", "image"]
# Overlaps of one image's candidates take K * C * C numbers; so many images at a time keep them below half a gibibyte.
IMAGES_AT_ONCE = 16
# A CPU looks at the best scores of (this times D) default boxes first: mostly enough of them stay. Then at four times
# as many, and so on until it has seen all.
FIRST_LOOK = 2
GROWTH = 4


def detections(
    logits: Tensor,
    deltas: Tensor,
    anchors: Tensor,
    *,
    score_above: float,
    iou: float,
    candidates: int,
    candidates_of: CandidatesOf,
    keep: int,
    clip: bool,
) -> Tensor:
    """Detections of each image, best first.

    logits         (B, A, K + 1), deltas (B, A, 4), anchors (A, 4) cxcywh fractions
    score_above    a class probability must be above this; 0 or more
    iou            of two boxes of one class that overlap by this or more, the better one stays
    candidates     boxes that enter suppression: of each class, or of the image's classes together
    keep           D: the best boxes that stay, of all classes together
    clip           cut their edges at the image's border, after suppression
    return         (B, D, 6) float32: left, top, right, bottom as fractions of the input, score, class 1..K.
                   Empty places are zeros, class 0. Fixed shapes and no host synchronisation, except on a CPU
    """
    images, boxes, classes = logits.shape
    found = logits.new_zeros((images, keep, 6), dtype=torch.float32)
    fixed = fixed_shapes(logits)
    step = IMAGES_AT_ONCE if fixed else 1
    for first in range(0, images if boxes and classes > 1 else 0, step):
        part = slice(first, first + step)
        chances = logits[part].float().softmax(dim=2)[..., 1:]
        if not fixed:
            rows = of_one_image(
                chances[0], deltas[first], anchors, score_above, iou, candidates, candidates_of, keep
            ).unsqueeze(0)
        elif candidates_of == "class":
            rows = of_each_class(chances, deltas[part], anchors, score_above, iou, candidates, keep)
        else:
            rows = of_the_image(chances, deltas[part], anchors, score_above, iou, candidates, keep)
        found[part, : rows.shape[1]] = rows
    if clip:
        found[..., :4] = clip_to_image(found[..., :4])
    return found


def of_each_class(
    chances: Tensor, deltas: Tensor, anchors: Tensor, score_above: float, iou: float, candidates: int, keep: int
) -> Tensor:
    """Each class brings its own candidates. Any device, fixed shapes; arguments as in `of_the_image`."""
    classes = chances.shape[2]
    above = chances.masked_fill(~(chances > score_above), 0.0).transpose(1, 2)
    scores, anchor = best(above, candidates)
    candidate_boxes = rows_of(decode(deltas, anchors), anchor.flatten(1)).unflatten(1, scores.shape[1:])
    stays = stays_in_lists(candidate_boxes, scores > 0, iou)
    # The lists of all classes become one, in the order that breaks ties, before the best are taken.
    number = torch.arange(classes, device=chances.device)
    place = (anchor * classes + number.view(1, classes, 1)).flatten(1).argsort(dim=1)
    score = scores.masked_fill(~stays, 0.0).flatten(1).gather(1, place)
    chosen = place.gather(1, score.argsort(dim=1, descending=True, stable=True)[:, :keep])
    return packed(
        rows_of(candidate_boxes.flatten(1, 2), chosen),
        scores.masked_fill(~stays, 0.0).flatten(1).gather(1, chosen),
        chosen // scores.shape[2] + 1,
    )


def of_the_image(
    chances: Tensor, deltas: Tensor, anchors: Tensor, score_above: float, iou: float, candidates: int, keep: int
) -> Tensor:
    """The classes share the candidates. Any device, fixed shapes.

    chances  (B, A, K) probabilities of classes 1..K, the rest as in `detections`
    return   (B, at most D, 6), empty places zero
    """
    boxes = chances.shape[1]
    above = chances.masked_fill(~(chances > score_above), 0.0)
    scores, entry = best(above.transpose(1, 2).flatten(1), candidates)
    candidate_boxes = rows_of(decode(deltas, anchors), entry % boxes)
    stays = stays_in_lists(candidate_boxes, scores > 0, iou, classes=entry // boxes)
    # Sorting what stays to the front keeps the order, best first.
    chosen = (~stays).to(torch.uint8).argsort(dim=1, stable=True)[:, :keep]
    score = scores.masked_fill(~stays, 0.0).gather(1, chosen)
    return packed(rows_of(candidate_boxes, chosen), score, (entry // boxes).gather(1, chosen) + 1)


def of_one_image(
    chances: Tensor,
    deltas: Tensor,
    anchors: Tensor,
    score_above: float,
    iou: float,
    candidates: int,
    candidates_of: CandidatesOf,
    keep: int,
) -> Tensor:
    """The same result on a CPU with work that follows the number of scores above the threshold.

    A box is suppressed by better ones only, so the D best that stay among the best scores are the D best of all.

    chances  (A, K), deltas (A, 4)
    return   (at most D, 6), no empty places
    """
    of_anchor = chances.amax(dim=1)
    look = FIRST_LOOK * keep if candidates_of == "class" else candidates
    while True:
        scores, anchor, number, complete = best_entries(chances, of_anchor, score_above, look, candidates_of)
        if candidates_of == "class":
            enters = places_in_class(number) < candidates
            scores, anchor, number = scores[enters], anchor[enters], number[enters]
        else:
            scores, anchor, number = scores[:candidates], anchor[:candidates], number[:candidates]
        boxes = decode(deltas[anchor], anchors[anchor])
        stays = stays_in_list(boxes, number, iou).nonzero().squeeze(1)[:keep]
        if complete or candidates_of == "image" or len(stays) == keep:
            return packed(boxes[stays], scores[stays], number[stays] + 1)
        look *= GROWTH


def best_entries(
    chances: Tensor, of_anchor: Tensor, score_above: float, look: int, candidates_of: CandidatesOf
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """The best scores of one image over all default boxes and classes: `look` of them or more, if there are as many.

    chances    (A, K), of_anchor (A,) its largest along K
    return     scores (n,) descending, default box (n,), class - 1 (n,), and whether these are all above the threshold
    """
    above = of_anchor > score_above
    cut = 0.0
    complete = int(above.sum()) <= look
    if not complete:
        # `look` default boxes have a score of `cut` or more, and no other default box has one.
        cut = of_anchor.topk(look, sorted=True).values[-1]
        above = above & (of_anchor >= cut)
    rows = above.nonzero().squeeze(1)
    part = chances[rows]
    wanted = (part > score_above) & (part >= cut)
    if candidates_of == "class":
        place, number = wanted.nonzero(as_tuple=True)
    else:
        number, place = wanted.T.nonzero(as_tuple=True)
    scores, order = part[place, number].sort(descending=True, stable=True)
    return scores, rows[place[order]], number[order], complete


def places_in_class(number: Tensor) -> Tensor:
    """How many earlier entries have an entry's class: (n,) -> (n,)."""
    grouped, order = number.sort(stable=True)
    start = torch.searchsorted(grouped, grouped)
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order)) - start)


def best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest along the last dimension, or all, and their places; equals in order of their place."""
    values, places = scores.topk(min(count, scores.shape[-1]), dim=-1)
    places, order = places.sort(dim=-1)
    values, by_value = values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return values, places.gather(-1, by_value)


def rows_of(rows: Tensor, places: Tensor) -> Tensor:
    """(B, N, 4) and (B, C) -> (B, C, 4)."""
    return rows.gather(1, places.unsqueeze(2).expand(-1, -1, rows.shape[2]))


def packed(boxes: Tensor, scores: Tensor, classes: Tensor) -> Tensor:
    """(..., 4), (...), (...) -> (..., 6), zeros where the score is 0."""
    rows = torch.cat((boxes, scores.unsqueeze(-1), classes.unsqueeze(-1)), dim=-1)
    return torch.where(scores.unsqueeze(-1) > 0, rows, 0.0)
