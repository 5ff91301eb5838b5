"""Proposals: the CPU's form, the fixed shapes, torchvision's filter_proposals and slow loops agree."""

from __future__ import annotations

import math

import pytest
import torch
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchvision.models.detection.rpn import RegionProposalNetwork

from paceline.config.maskrcnn import RPN, MaskRCNNParity
from paceline.models.maskrcnn import proposals
from paceline.models.ops import dispatch
from paceline.models.ops.boxes import pairwise_iou

LIMIT = math.log(1000 / 16)
COUNTS = [300, 80, 20, 5]
RULES = {"pre": 60, "post": 50, "iou": 0.7, "min_box_side": 1e-3, "limit": LIMIT, "nms_over": "level", "post_of": "image"}
SIZES = torch.tensor([[96, 128], [80, 100], [64, 128]])


def outputs(seed: int, images: int = 3, counts=COUNTS, spread: float = 0.3):
    """Logits without two alike, deltas and anchors, some of them across the border or outside of the smaller photos."""
    random = torch.Generator().manual_seed(seed)
    total = sum(counts)
    logits = torch.stack([torch.randperm(total, generator=random) * (8 / max(total, 1)) - 4 for _ in range(images)])
    anchors = []
    for level, count in enumerate(counts):
        center = torch.rand(count, 2, generator=random) * torch.tensor([128.0, 96.0])
        half = 8.0 * 2**level * torch.exp(0.3 * torch.randn(count, 2, generator=random)) / 2
        anchors.append(torch.cat((center - half, center + half), dim=1))
    deltas = [spread * torch.randn(images, count, 4, generator=random) for count in counts]
    return list(logits.split(list(counts), dim=1)), deltas, anchors


def make_proposals(
    logits, deltas, anchors, sizes, *, pre, post, iou, limit, nms_over, post_of, post_group=0, groups=1, **rules
) -> tuple[Tensor, Tensor, Tensor]:
    settings = RPN(pre_nms_topk_train=pre, post_nms_topk_train=post, nms_iou=iou, max_log_scale=limit, **rules)
    parity = MaskRCNNParity(nms_per=nms_over, post_nms_per=post_of, post_nms_batch=post_group)
    return proposals.make_proposals(logits, deltas, anchors, sizes, settings, parity, training=True, groups=groups)


with_static_shapes = dispatch.static_shapes()(make_proposals)  # what an accelerator runs, on the CPU


def decoded(deltas: Tensor, anchors: Tensor, size) -> Tensor:
    """(n, 4) and (n, 4) -> (n, 4) ltrb clipped to the photo."""
    side = anchors[:, 2:] - anchors[:, :2]
    center = (anchors[:, :2] + anchors[:, 2:]) / 2 + deltas[:, :2] * side
    half = deltas[:, 2:].clamp(max=LIMIT).exp() * side / 2
    high = torch.tensor([float(size[1]), float(size[0])]).repeat(2)
    return torch.minimum(torch.cat((center - half, center + half), dim=1).clamp(min=0), high)


def slow_proposals(logits, deltas, anchors, sizes, *, pre, post, iou, min_box_side, limit, nms_over, post_of):
    """Of each image its boxes, best first."""
    if nms_over == "image":
        logits, deltas, anchors = [torch.cat(logits, 1)], [torch.cat(deltas, 1)], [torch.cat(anchors)]
    found = []
    for image, size in enumerate(sizes.tolist()):
        for scores, moves, references in zip(logits, deltas, anchors):
            boxes = decoded(moves[image], references, size)
            overlap = pairwise_iou(boxes, boxes)
            stays: list[int] = []
            for place in scores[image].argsort(descending=True)[:pre].tolist():
                width, height = (boxes[place, 2:] - boxes[place, :2]).tolist()
                if min(width, height) < min_box_side or any(overlap[better, place] > iou for better in stays):
                    continue
                stays.append(place)
            found += [(float(scores[image, place]), image, boxes[place].tolist()) for place in stays]
    found.sort(key=lambda entry: -entry[0])
    if post_of == "batch":
        found = found[: post * len(sizes)]
    of_image = [[box for _, owner, box in found if owner == image] for image in range(len(sizes))]
    return of_image if post_of == "batch" else [boxes[:post] for boxes in of_image]


def assert_same(boxes: Tensor, valid: Tensor, expected) -> None:
    for rows, taken, image in zip(boxes, valid, expected):
        count = len(image)
        assert taken.tolist() == [place < count for place in range(len(taken))]
        torch.testing.assert_close(rows[:count], torch.tensor(image).reshape(-1, 4), rtol=1e-5, atol=1e-4)
        assert not rows[count:].any()


@pytest.mark.parametrize("pre", [1, 60, 300])
@pytest.mark.parametrize("post", [1, 50, 200])
def test_they_are_torchvisions(pre, post) -> None:
    logits, deltas, anchors = outputs(seed=0)
    rules = {"training": pre, "testing": pre}, {"training": post, "testing": post}
    network = RegionProposalNetwork(None, None, 0.7, 0.3, 256, 0.5, *rules, 0.7)
    moved = network.box_coder.decode(torch.cat(deltas, 1).reshape(-1, 4), [torch.cat(anchors)] * 3).view(3, -1, 4)
    expected, _ = network.filter_proposals(moved, torch.cat(logits, 1), [tuple(s) for s in SIZES.tolist()], COUNTS)
    for form in (make_proposals, with_static_shapes):
        boxes, valid, _ = form(logits, deltas, anchors, SIZES, **{**RULES, "pre": pre, "post": post})
        assert boxes.shape == (3, post, 4)
        for image in range(3):
            assert torch.equal(boxes[image][valid[image]], expected[image])


@examples(25)
@given(
    seed=st.integers(0, 10**6),
    counts=st.sampled_from([[40, 10, 3], [1, 1], [30], [0, 5]]),
    spread=st.sampled_from([0.0, 0.3, 3.0]),
    pre=st.sampled_from([1, 8, 100]),
    post=st.sampled_from([1, 6, 60]),
    iou=st.sampled_from([0.3, 0.7]),
    min_box_side=st.sampled_from([1e-3, 4.0]),
    nms_over=st.sampled_from(["level", "image"]),
    post_of=st.sampled_from(["image", "batch"]),
)
def test_every_rule_is_the_obvious_loop(seed, counts, spread, pre, post, iou, min_box_side, nms_over, post_of) -> None:
    logits, deltas, anchors = outputs(seed, images=2, counts=counts, spread=spread)
    rules = dict(pre=pre, post=post, iou=iou, min_box_side=min_box_side, limit=LIMIT, nms_over=nms_over, post_of=post_of)
    expected = slow_proposals(logits, deltas, anchors, SIZES[:2], **rules)
    boxes, valid, _ = make_proposals(logits, deltas, anchors, SIZES[:2], **rules)
    assert_same(boxes, valid, expected)
    fixed, fixed_valid, _ = with_static_shapes(logits, deltas, anchors, SIZES[:2], **rules)
    assert torch.equal(fixed, boxes) and torch.equal(fixed_valid, valid)


def test_the_best_of_the_batch_spread_as_they_like() -> None:
    logits, deltas, anchors = outputs(seed=5)
    logits = [level + torch.tensor([[0.0], [1.0], [-20.0]]) for level in logits]
    for form in (make_proposals, with_static_shapes):
        boxes, valid, _ = form(logits, deltas, anchors, SIZES, **{**RULES, "post": 30, "post_of": "batch"})
        assert boxes.shape == (3, 90, 4)
        assert int(valid.sum()) == 90 and valid[1].sum() > valid[0].sum() > 0 and not valid[2].any()
        boxes, *_ = form(logits, deltas, anchors, SIZES, **{**RULES, "post": 1000, "post_of": "batch"})
        assert boxes.shape[1] == 60 + 60 + 20 + 5, "never more places than candidates"


def test_a_batch_s_number_may_be_no_multiple_of_its_images() -> None:
    """12,000 of 11 images in published logs; here 89 of 3: all of 90 but the worst."""
    logits, deltas, anchors = outputs(seed=5)
    for form in (make_proposals, with_static_shapes):
        rules = {**RULES, "post": 30, "post_of": "batch"}
        boxes, most, _ = form(logits, deltas, anchors, SIZES, **rules)
        fewer, valid, _ = form(logits, deltas, anchors, SIZES, **rules, post_group=89)
        assert fewer.shape == (3, 89, 4) and int(valid.sum()) == 89
        assert torch.equal(fewer[valid], boxes[:, :89][valid]) and bool((most[:, :89] | ~valid).all())


@pytest.mark.parametrize("nms_over", ["level", "image"])
def test_one_list_for_the_image_lets_levels_compete(nms_over) -> None:
    """Twice the same anchor, on two levels."""
    anchors = [torch.tensor([[10.0, 10.0, 40.0, 40.0]])] * 2
    logits, deltas = [torch.tensor([[1.0]]), torch.tensor([[2.0]])], [torch.zeros(1, 1, 4)] * 2
    for form in (make_proposals, with_static_shapes):
        _, valid, _ = form(logits, deltas, anchors, SIZES[:1], **{**RULES, "nms_over": nms_over})
        assert int(valid.sum()) == (2 if nms_over == "level" else 1)


def test_boxes_outside_of_the_photo_vanish_even_if_inside_of_the_padding() -> None:
    anchors = [torch.tensor([[70.0, 10.0, 90.0, 30.0], [40.0, 10.0, 90.0, 30.0]])]
    sizes = torch.tensor([[60, 64]])
    for form in (make_proposals, with_static_shapes):
        boxes, valid, _ = form([torch.tensor([[3.0, 2.0]])], [torch.zeros(1, 2, 4)], anchors, sizes, **RULES)
        assert boxes[valid].tolist() == [[40.0, 10.0, 64.0, 30.0]]
        boxes, valid, _ = form([torch.tensor([[3.0, 2.0]])], [torch.zeros(1, 2, 4)], anchors, sizes * 0, **RULES)
        assert boxes.shape == (1, 50, 4) and not valid.any() and not boxes.any()


def test_equal_logits_keep_the_order_of_levels_and_anchors() -> None:
    logits, deltas, anchors = outputs(seed=2, images=1, counts=[20, 10])
    logits = [torch.zeros_like(level) for level in logits]
    rules = {**RULES, "pre": 100, "iou": 1.0}
    for form in (make_proposals, with_static_shapes):
        boxes, valid, _ = form(logits, deltas, anchors, SIZES[:1], **rules)
        expected = torch.cat([decoded(moves[0], references, (96, 128)) for moves, references in zip(deltas, anchors)])
        large = ((expected[:, 2:] - expected[:, :2]) >= 1e-3).all(dim=1)
        torch.testing.assert_close(boxes[valid], expected[large], rtol=1e-5, atol=1e-4)


@examples(15)
@given(
    seed=st.integers(0, 10**6),
    images=st.sampled_from([1, 2, 3]),
    groups=st.sampled_from([1, 2, 3]),
    counts=st.sampled_from([[40, 10, 3], [1, 1], [0, 5], [0]]),
    spread=st.sampled_from([0.0, 3.0]),
    post=st.sampled_from([1, 6, 60]),
    post_group=st.sampled_from([0, 7]),
)
def test_groups_of_a_batch_are_batches_of_their_own(seed, images, groups, counts, spread, post, post_group) -> None:
    logits, deltas, anchors = outputs(seed, images=images * groups, counts=counts, spread=spread)
    sizes = SIZES[torch.arange(images * groups) % len(SIZES)]
    rules = dict(pre=8, post=post, iou=0.7, min_box_side=1e-3, limit=LIMIT, nms_over="level", post_of="batch")
    rules["post_group"] = post_group
    for form in (make_proposals, with_static_shapes):
        whole = form(logits, deltas, anchors, sizes, **rules, groups=groups)
        parts = [
            form([level[at] for level in logits], [level[at] for level in deltas], anchors, sizes[at], **rules)
            for at in torch.arange(images * groups).chunk(groups)
        ]
        assert all(torch.equal(one, torch.cat(several)) for one, several in zip(whole, zip(*parts)))


def test_no_gradient_and_float32_whatever_comes_in() -> None:
    logits, deltas, anchors = outputs(seed=1)
    logits = [level.bfloat16().requires_grad_() for level in logits]
    deltas = [level.bfloat16().requires_grad_() for level in deltas]
    boxes, valid, _ = make_proposals(logits, deltas, anchors, SIZES, **RULES)
    assert boxes.dtype == torch.float32 and not boxes.requires_grad and valid.any()
    full = make_proposals([level.float() for level in logits], [level.float() for level in deltas], anchors, SIZES, **RULES)
    assert torch.equal(boxes, full[0])


@pytest.mark.parametrize("post_of", ["image", "batch"])
def test_the_memory_estimate_runs_it_without_data(post_of) -> None:
    logits, deltas, anchors = ([part.to("meta") for part in parts] for parts in outputs(seed=0))
    boxes, valid, _ = make_proposals(logits, deltas, anchors, SIZES.to("meta"), **{**RULES, "post_of": post_of})
    assert boxes.shape == (3, 50 if post_of == "image" else 145, 4) and valid.shape == boxes.shape[:2]
