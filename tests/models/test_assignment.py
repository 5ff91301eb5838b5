"""Assignment against the slow, obvious loop and torchvision's matcher, in both forms."""

from __future__ import annotations

import pytest
import torch
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchvision.models.detection._utils import Matcher

from paceline.models.ops.anchors import make_pyramid_anchors
from paceline.models.ops.boxes import pairwise_iou
from paceline.models.ops.matching import (
    is_inside_image,
    label_anchors,
    match_anchors,
    match_regions,
    match_regions_fixed,
    overlaps_cpu,
    overlaps_fixed,
)

# 4 x 4 + 2 x 2 cells of 3 anchors: 60, which is less than a block; and a pyramid of several blocks.
FEW = torch.cat(
    make_pyramid_anchors([(4, 4), (2, 2)], 32, 32, sizes=(8.0, 16.0), ratios=(0.5, 1.0, 2.0), rounding="half-even")
)
MANY = torch.cat(
    make_pyramid_anchors(
        [(24, 32), (12, 16), (6, 8), (3, 4), (2, 2)], 96, 128,
        sizes=(8.0, 16.0, 32.0, 64.0, 128.0), ratios=(0.5, 1.0, 2.0), rounding="half-even",
    )
)  # fmt: skip
RULES = {"fg_iou": 0.5, "bg_iou": 0.25}


def slow_match(boxes: Tensor, labels: Tensor, anchors: Tensor, allow_low_quality_matches: bool, eligible: Tensor | None):
    """Slot and kind of each anchor of one image."""
    overlap = pairwise_iou(boxes, anchors).tolist()
    objects = [slot for slot in range(len(labels)) if labels[slot] > 0]
    allowed = [a for a in range(len(anchors)) if eligible is None or bool(eligible[a])]
    slots, kind = [0] * len(anchors), [-1] * len(anchors)
    best_of = {g: max((overlap[g][a] for a in allowed), default=0.0) for g in objects}
    for a in allowed:
        touching = [g for g in objects if overlap[g][a] > 0]
        slots[a] = max(touching, key=lambda g: overlap[g][a], default=0)  # the first of equals
        most = max((overlap[g][a] for g in touching), default=0.0)
        is_best = any(overlap[g][a] == best_of[g] for g in touching)
        if most >= RULES["fg_iou"]:
            kind[a] = 1
        elif most < RULES["bg_iou"]:
            kind[a] = 1 if is_best and allow_low_quality_matches else 0
        elif is_best:
            kind[a] = 1
    return slots, kind


def both_forms(boxes: Tensor, labels: Tensor, anchors: Tensor, allow_low_quality_matches, eligible: Tensor | None = None):
    """The CPU's answer, after the accelerators' form gave the same with one group of objects and with many."""
    found = match_anchors(
        boxes, labels, anchors, **RULES, allow_low_quality_matches=allow_low_quality_matches, eligible=eligible
    )
    for pairs in (1, 10**9):
        best, slots, forced = overlaps_fixed(boxes, labels, anchors, eligible, pairs)
        kind = label_anchors(best, forced, **RULES, allow_low_quality_matches=allow_low_quality_matches, eligible=eligible)
        assert torch.equal(slots, found[0]) and torch.equal(kind, found[1])
    return found


# Edges on a coarse grid, so that equal overlaps and equal objects are common; some boxes lie beyond the anchors.
edge = st.integers(-1, 12).map(lambda n: n * 4.0)
box = st.tuples(edge, edge, edge, edge).map(lambda b: (min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3])))
image = st.lists(st.tuples(box, st.integers(0, 2)), min_size=4, max_size=4)


@pytest.mark.parametrize("allow_low_quality_matches", [True, False])
@pytest.mark.parametrize("edges", ["all", "inside"])
@examples(25)
@given(images=st.lists(image, min_size=1, max_size=2))
def test_matching_agrees_with_the_obvious_loop(allow_low_quality_matches, edges, images) -> None:
    boxes = torch.tensor([[row[0] for row in one] for one in images])
    labels = torch.tensor([[row[1] for row in one] for one in images])
    eligible = is_inside_image(FEW, torch.tensor([[32, 28]] * len(images))) if edges == "inside" else None
    slots, kind = both_forms(boxes, labels, FEW, allow_low_quality_matches, eligible)
    for place in range(len(images)):
        expected = slow_match(
            boxes[place], labels[place], FEW, allow_low_quality_matches, None if eligible is None else eligible[place]
        )
        assert (slots[place].tolist(), kind[place].tolist()) == expected


def objects(images: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Objects of all sizes inside 96 x 128 pixels, every slot filled."""
    random = torch.Generator().manual_seed(seed)
    center = torch.rand(images, count, 2, generator=random) * torch.tensor([128.0, 96.0])
    half = 2 + 40 * torch.rand(images, count, 2, generator=random) ** 2
    limit = torch.tensor([128.0, 96.0, 128.0, 96.0])
    boxes = torch.cat((center - half, center + half), dim=2).clamp(min=0).minimum(limit)
    return boxes, torch.ones(images, count, dtype=torch.int64)


@pytest.mark.parametrize("count", [1, 7, 128])
def test_matching_is_torchvisions(count) -> None:
    boxes, labels = objects(1, count, seed=count)
    slots, kind = both_forms(boxes, labels, MANY, True)
    matcher = Matcher(RULES["fg_iou"], RULES["bg_iou"], allow_low_quality_matches=True)
    expected = matcher(pairwise_iou(boxes[0], MANY))
    assert torch.equal(kind[0] == 1, expected >= 0)
    assert torch.equal(kind[0] == 0, expected == Matcher.BELOW_LOW_THRESHOLD)
    assert torch.equal(slots[0][expected >= 0], expected[expected >= 0])


@pytest.mark.parametrize("allow_low_quality_matches", [True, False])
def test_images_do_not_see_each_other_and_empty_slots_may_lie_anywhere(allow_low_quality_matches) -> None:
    boxes, labels = objects(3, 6, seed=1)
    labels[0, :3], labels[1], labels[2, 5] = 0, 0, 0
    eligible = is_inside_image(MANY, torch.tensor([[96, 128], [90, 70], [60, 128]]))
    slots, kind = both_forms(boxes, labels, MANY, allow_low_quality_matches, eligible)
    for place in range(3):
        one = slice(place, place + 1)
        alone = match_anchors(
            boxes[one],
            labels[one],
            MANY,
            **RULES,
            allow_low_quality_matches=allow_low_quality_matches,
            eligible=eligible[one],
        )
        assert torch.equal(slots[one], alone[0]) and torch.equal(kind[one], alone[1])
    assert set(slots[0][kind[0] == 1].tolist()) == {3, 4, 5}
    assert not (kind[1] == 1).any()


@pytest.mark.parametrize(("images", "slots_there"), [(0, 0), (0, 4), (2, 0), (2, 4)])
def test_without_objects_every_anchor_is_negative(images, slots_there) -> None:
    boxes, labels = torch.zeros(images, slots_there, 4), torch.zeros(images, slots_there, dtype=torch.int64)
    slots, kind = both_forms(boxes, labels, MANY, True)
    assert slots.shape == kind.shape == (images, len(MANY))
    assert kind.dtype == torch.int8 and slots.dtype == torch.int64
    assert not kind.any()


def test_without_anchors_there_is_nothing_to_match() -> None:
    slots, kind = both_forms(*objects(2, 3, seed=0), torch.zeros(0, 4), True)
    assert slots.shape == kind.shape == (2, 0)


ROW = torch.tensor([[x, 0.0, x + 8.0, 8.0] for x in (0.0, 8.0, 16.0, 24.0, 100.0)])
ONE = torch.ones(1, 1, dtype=torch.int64)


def test_all_anchors_that_share_an_objects_best_overlap_are_positive() -> None:
    box = torch.tensor([[[7.0, 0.0, 9.0, 8.0]]])  # a pixel's column of each of two anchors: IoU 1/9
    assert both_forms(box, ONE, ROW, True)[1].tolist() == [[1, 1, 0, 0, 0]]
    assert both_forms(box, ONE, ROW, False)[1].tolist() == [[0, 0, 0, 0, 0]]


def test_a_best_anchor_between_the_thresholds_is_positive_by_either_rule() -> None:
    box = torch.tensor([[[0.0, 0.0, 8.0, 3.0]]])  # IoU 3/8
    assert both_forms(box, ONE, ROW, True)[1].tolist() == [[1, 0, 0, 0, 0]]
    assert both_forms(box, ONE, ROW, False)[1].tolist() == [[1, 0, 0, 0, 0]]


def test_a_forced_anchor_learns_the_object_that_itself_overlaps_most() -> None:
    boxes = torch.tensor([[[0.0, 0.0, 1.0, 8.0], [0.0, 0.0, 8.0, 8.0]]])
    slots, kind = both_forms(boxes, torch.ones(1, 2, dtype=torch.int64), ROW, True)
    assert (int(slots[0, 0]), kind[0].tolist()) == (1, [1, 0, 0, 0, 0])


@pytest.mark.parametrize("box", [(200.0, 0.0, 208.0, 8.0), (8.0, 3.0, 8.0, 5.0), (8.0, 8.0, 16.0, 16.0)])
def test_an_object_that_touches_no_anchor_forces_none(box) -> None:
    """Far away, without area, or sharing an edge only. torchvision would make every anchor positive."""
    slots, kind = both_forms(torch.tensor([[box]]), ONE, ROW, True)
    assert not kind.any() and not slots.any()


def test_an_anchor_that_is_not_eligible_is_no_objects_best() -> None:
    box = torch.tensor([[[1.0, 0.0, 10.0, 8.0]]])  # IoU 7/10 with the first anchor, 2/15 with the second
    eligible = torch.tensor([[False, True, True, True, True]])
    assert both_forms(box, ONE, ROW, True)[1].tolist() == [[1, 0, 0, 0, 0]]
    assert both_forms(box, ONE, ROW, True, eligible)[1].tolist() == [[-1, 1, 0, 0, 0]]
    assert both_forms(box, ONE, ROW, True, torch.zeros_like(eligible))[1].tolist() == [[-1] * 5]


def test_the_thresholds_themselves_are_positive_and_not_negative() -> None:
    anchors = torch.tensor([[0.0, 0.0, 8.0, 4.0], [0.0, 0.0, 8.0, 2.0], [0.0, 0.0, 8.0, 1.0], [0.0, 0.0, 8.0, 8.0]])
    box = torch.tensor([[[0.0, 0.0, 8.0, 8.0]]])
    assert both_forms(box, ONE, anchors, True)[1].tolist() == [[1, -1, 0, 1]]


def test_inside_means_from_the_first_to_the_last_pixel() -> None:
    anchors = torch.tensor([[0.0, 0.0, 63.0, 31.0], [0.0, 0.0, 64.0, 31.0], [0.0, 0.0, 63.0, 32.0], [-1.0, 0.0, 9.0, 9.0]])
    sizes = torch.tensor([[32, 64], [33, 65]])
    assert is_inside_image(anchors, sizes).tolist() == [[True, False, False, False], [True, True, True, False]]


@pytest.mark.parametrize("count", [0, 1, 5, 128])
def test_regions_match_as_torchvisions_do(count) -> None:
    boxes, labels = objects(2, count, seed=count)
    if count > 1:
        labels[1, 0] = 0
    regions, valid = objects(2, 50, seed=99)[0], torch.rand(2, 50, generator=torch.Generator().manual_seed(0)) > 0.2
    slots, positive = match_regions(boxes, labels, regions, valid, iou=0.5)
    fixed = match_regions_fixed(boxes, labels, regions, valid, 0.5)
    assert torch.equal(slots, fixed[0]) and torch.equal(positive, fixed[1])
    for place in range(2):
        filled = labels[place].nonzero().squeeze(1)
        if len(filled) == 0:
            assert not positive[place].any() and not slots[place].any()
            continue
        expected = Matcher(0.5, 0.5)(pairwise_iou(boxes[place, filled], regions[place]))
        assert torch.equal(positive[place], (expected >= 0) & valid[place])
        assert torch.equal(slots[place][positive[place]], filled[expected[positive[place]]])


def test_a_region_at_the_threshold_is_positive() -> None:
    region = torch.tensor([[[0.0, 0.0, 8.0, 4.0], [0.0, 0.0, 8.0, 3.9]]])
    box, valid = torch.tensor([[[0.0, 0.0, 8.0, 8.0]]]), torch.ones(1, 2, dtype=torch.bool)
    assert match_regions(box, ONE, region, valid, iou=0.5)[1].tolist() == [[True, False]]


def test_shapes_do_not_depend_on_the_data() -> None:
    """The meta device has no data to look at."""
    boxes = torch.empty(2, 8, 4, device="meta")
    labels = torch.empty(2, 8, dtype=torch.int64, device="meta")
    anchors, regions = MANY.to("meta"), torch.empty(2, 50, 4, device="meta")
    eligible = is_inside_image(anchors, torch.empty(2, 2, dtype=torch.int64, device="meta"))
    slots, kind = match_anchors(boxes, labels, anchors, **RULES, allow_low_quality_matches=True, eligible=eligible)
    assert slots.shape == kind.shape == (2, len(MANY))
    valid = torch.empty(2, 50, dtype=torch.bool, device="meta")
    slots, positive = match_regions(boxes, labels, regions, valid, iou=0.5)
    assert slots.shape == positive.shape == (2, 50)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000])
def test_near_blocks_give_exactly_what_all_anchors_give(count) -> None:
    boxes, labels = objects(2, 20, seed=7)
    anchors = MANY[-count:]
    for one, other in zip(overlaps_cpu(boxes, labels, anchors, None), overlaps_fixed(boxes, labels, anchors, None)):
        assert torch.equal(one, other)
