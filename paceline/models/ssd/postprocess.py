"""From SSD's output to detections: scores, candidates, decoding, suppression.

Letters: B images   A default boxes   K classes (0 is background)   C candidates of a list   D places for detections
Equal scores: the earlier default box is the better one, then the lower class; among candidates of the image the lower class,
then the earlier default box, as MXNet lists them. (Which of several equals makes the cut to `candidates` is an accelerator's own
choice.)
Sources: MLPerf reference SSD, utils.py (candidates of each class); System A's MXNet box_nms (candidates of the image).
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.config.ssd import DetectionFilter
from paceline.models.ops.boxes import SSD_CODER, clip_fractions
from paceline.models.ops.dispatch import uses_static_shapes
from paceline.models.ops.nms import gather_boxes, nms_cpu, nms_fixed, top_k

# Scores, their sorting and K * C * BLOCK overlaps of this many images take 0.65 GiB with COCO's classes and 200 candidates. As many
# as an evaluation's forward has, mostly: launching the small kernels of a suppression then costs less than what they move.
IMAGES_AT_ONCE = 64
# Boxes of a block; one round less is always enough to settle them, so suppression leaves nothing open. All blocks together take
# about C rounds whatever their size; small ones take less memory.
BLOCK = 16
# A CPU examines the best scores of (this times D) default boxes first: mostly enough of them are kept. Then four times as many, and
# so on until all are examined.
FIRST_LOOK = 2
GROWTH = 4


def postprocess_ssd(
    logits: Tensor, deltas: Tensor, anchors: Tensor, rules: DetectionFilter, iou: float, clip: bool = False
) -> Tensor:
    """Detections of each image, best first.

    logits  (B, A, K + 1), deltas (B, A, 4), anchors (A, 4) cxcywh fractions
    rules   all but `nms_iou` and `nms_rule` count; `max_detections` is D, of all classes together
    iou     of two boxes of one class that overlap by more, the better one is kept
    clip    clip boxes to the image, after suppression
    return  (B, D, 6) float32: left, top, right, bottom as fractions of the input, score, class 1..K.
            Empty places are zeros, class 0. Fixed shapes and no host synchronization, except on a CPU
    """
    images, boxes, classes = logits.shape
    result = logits.new_zeros((images, rules.max_detections, 6), dtype=torch.float32)
    fixed = uses_static_shapes(logits)
    step = IMAGES_AT_ONCE if fixed else 1
    for first in range(0, images if boxes and classes > 1 else 0, step):
        part = slice(first, first + step)
        probs = logits[part].float().softmax(dim=2)[..., 1:]
        if not fixed:
            rows = detections_cpu(probs[0], deltas[first], anchors, rules, iou).unsqueeze(0)
        else:
            form = detect_by_class_fixed if rules.topk_per == "class" else detect_by_image_fixed
            rows = form(probs, deltas[part], anchors, rules, iou)
        result[part, : rows.shape[1]] = rows
    if clip:
        result[..., :4] = clip_fractions(result[..., :4])
    return result


def detect_by_class_fixed(probs: Tensor, deltas: Tensor, anchors: Tensor, rules: DetectionFilter, iou: float) -> Tensor:
    """Each class has its own candidates. Any device, fixed shapes; arguments as in `detect_by_image_fixed`."""
    classes = probs.shape[2]
    above = probs.masked_fill(~(probs > rules.score_threshold), 0.0).transpose(1, 2)
    scores, anchor = top_k(above, rules.topk_candidates)
    boxes = gather_boxes(SSD_CODER.decode(deltas, anchors), anchor.flatten(1)).unflatten(1, scores.shape[1:])
    kept, _ = nms_fixed(boxes, scores > 0, iou, block=BLOCK, rounds=BLOCK - 1)
    scores = scores.masked_fill(~kept, 0.0)
    # The lists of all classes become one, in the order that breaks ties, before the best are taken.
    number = torch.arange(classes, device=probs.device)
    positions = (anchor * classes + number.view(1, classes, 1)).flatten(1).argsort(dim=1)
    score = scores.flatten(1).gather(1, positions)
    chosen = positions.gather(1, score.argsort(dim=1, descending=True, stable=True)[:, : rules.max_detections])
    chosen_boxes = gather_boxes(boxes.flatten(1, 2), chosen)
    return pack_detections(chosen_boxes, scores.flatten(1).gather(1, chosen), chosen // scores.shape[2] + 1)


def detect_by_image_fixed(probs: Tensor, deltas: Tensor, anchors: Tensor, rules: DetectionFilter, iou: float) -> Tensor:
    """The classes share the candidates. Any device, fixed shapes.

    probs    (B, A, K) of classes 1..K, the rest as in `postprocess_ssd`
    return   (B, at most D, 6), empty places zero
    """
    anchor_count = probs.shape[1]
    above = probs.masked_fill(~(probs > rules.score_threshold), 0.0)
    scores, entry = top_k(above.transpose(1, 2).flatten(1), rules.topk_candidates)
    boxes = gather_boxes(SSD_CODER.decode(deltas, anchors), entry % anchor_count)
    number = entry // anchor_count
    kept, _ = nms_fixed(boxes, scores > 0, iou, number, block=BLOCK, rounds=BLOCK - 1)
    # Sorting what is kept to the front keeps the order, best first.
    chosen = (~kept).to(torch.uint8).argsort(dim=1, stable=True)[:, : rules.max_detections]
    score = scores.masked_fill(~kept, 0.0).gather(1, chosen)
    return pack_detections(gather_boxes(boxes, chosen), score, number.gather(1, chosen) + 1)


def detections_cpu(probs: Tensor, deltas: Tensor, anchors: Tensor, rules: DetectionFilter, iou: float) -> Tensor:
    """(at most D, 6), no empty places: the same result of one image, (A, K) and (A, 4), on a CPU.

    The work follows the number of scores above the threshold. A box is suppressed by better ones only, so the D best that are
    kept among the best scores are the D best of all.
    """
    of_anchor = probs.amax(dim=1)
    look = FIRST_LOOK * rules.max_detections if rules.topk_per == "class" else rules.topk_candidates
    while True:
        scores, anchor, number, complete = best_entries(probs, of_anchor, look, rules)
        if rules.topk_per == "class":
            enters = rank_in_class(number) < rules.topk_candidates
            scores, anchor, number = scores[enters], anchor[enters], number[enters]
        else:
            scores, anchor, number = (
                scores[: rules.topk_candidates],
                anchor[: rules.topk_candidates],
                number[: rules.topk_candidates],
            )
        boxes = SSD_CODER.decode(deltas[anchor], anchors[anchor])
        kept = nms_cpu(boxes, iou, number)[: rules.max_detections]
        if complete or rules.topk_per == "image" or len(kept) == rules.max_detections:
            return pack_detections(boxes[kept], scores[kept], number[kept] + 1)
        look *= GROWTH


def best_entries(
    probs: Tensor, of_anchor: Tensor, look: int, rules: DetectionFilter
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """The best scores of one image over all default boxes and classes: `look` of them or more, if there are as many.

    probs      (A, K), of_anchor (A,) its largest along K
    return     scores (n,) descending, default box (n,), class - 1 (n,), and whether this is every score above the threshold
    """
    above = of_anchor > rules.score_threshold
    cut = 0.0
    complete = int(above.sum()) <= look
    if not complete:
        # `look` default boxes have a score of `cut` or more, and no other default box has one.
        cut = of_anchor.topk(look, sorted=True).values[-1]
        above = above & (of_anchor >= cut)
    rows = above.nonzero().squeeze(1)
    part = probs[rows]
    wanted = (part > rules.score_threshold) & (part >= cut)
    if rules.topk_per == "class":
        positions, number = wanted.nonzero(as_tuple=True)
    else:
        number, positions = wanted.T.nonzero(as_tuple=True)
    scores, order = part[positions, number].sort(descending=True, stable=True)
    return scores, rows[positions[order]], number[order], complete


def rank_in_class(number: Tensor) -> Tensor:
    """How many earlier entries have an entry's class: (n,) -> (n,)."""
    grouped, order = number.sort(stable=True)
    start = torch.searchsorted(grouped, grouped)
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order)) - start)


def pack_detections(boxes: Tensor, scores: Tensor, classes: Tensor) -> Tensor:
    """(..., 4), (...), (...) -> (..., 6), zeros where the score is 0."""
    rows = torch.cat((boxes, scores.unsqueeze(-1), classes.unsqueeze(-1)), dim=-1)
    return torch.where(scores.unsqueeze(-1) > 0, rows, 0.0)
