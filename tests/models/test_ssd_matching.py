"""Matching against the slow, obvious loop, with both tie rules and both thresholds."""

from __future__ import annotations

import pytest
import torch
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paceline.config.ssd import grid_sizes
from paceline.models.ops import matching
from paceline.models.ops.anchors import default_boxes, tie_order
from paceline.models.ops.boxes import pairwise_iou, to_ltrb
from paceline.models.ops.matching import match, match_fixed

ANCHORS = to_ltrb(default_boxes(64, grid_sizes(64), (0.1, 0.3, 0.5, 0.8, 0.9)))
RULES = [(match_rule, tie) for match_rule in ("gt", "ge") for tie in ("last", "first")]


def slow_match(
    boxes: Tensor, labels: Tensor, anchors: Tensor, iou: float, match_rule: str, tie: str, order=None, equal="first"
) -> dict[int, int]:
    """Object of each positive default box of one image."""
    order = range(len(anchors)) if order is None else order.tolist()
    overlap = pairwise_iou(boxes, anchors).tolist()
    objects = [slot for slot in range(len(labels)) if labels[slot] > 0]
    matched = {}
    for anchor in range(len(anchors)):
        rows = objects if equal == "first" else objects[::-1]
        best = max(rows, key=lambda slot: overlap[slot][anchor], default=None)  # the first of equals
        if best is None:
            continue
        value = overlap[best][anchor]
        if value > iou or (match_rule == "ge" and value == iou):
            matched[anchor] = best
    for slot in objects if tie == "last" else reversed(objects):
        best = max(order, key=lambda anchor: overlap[slot][anchor])
        if overlap[slot][best] > 0:
            matched[best] = slot
    return matched


def as_dicts(slots: Tensor, positives: Tensor) -> list[dict[int, int]]:
    return [{a: int(row[a]) for a in mask.nonzero().squeeze(1).tolist()} for row, mask in zip(slots, positives)]


# Edges on a coarse grid, so that equal overlaps, equal objects and an IoU of exactly one half are common.
edge = st.integers(0, 8).map(lambda n: n / 8)
box = st.tuples(edge, edge, edge, edge).map(lambda b: (min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3])))
image = st.lists(st.tuples(box, st.integers(0, 3)), min_size=5, max_size=5)


@pytest.mark.parametrize(("match_rule", "tie"), RULES)
@examples(20)
@given(images=st.lists(image, min_size=1, max_size=3))
def test_matching_agrees_with_the_obvious_loop(match_rule, tie, images) -> None:
    boxes = torch.tensor([[row[0] for row in one] for one in images])
    labels = torch.tensor([[row[1] for row in one] for one in images])
    slots, positives = match(boxes, labels, ANCHORS, iou=0.5, match_rule=match_rule, tie=tie)
    assert as_dicts(slots, positives) == [slow_match(b, n, ANCHORS, 0.5, match_rule, tie) for b, n in zip(boxes, labels)]
    whole = match_fixed(boxes, labels, ANCHORS, 0.5, match_rule, tie)
    assert as_dicts(*whole) == as_dicts(slots, positives)


@pytest.mark.parametrize("equal", ["first", "last"])
@pytest.mark.parametrize("rule", ["cell-last", "anchor", "anchor-last"])
@pytest.mark.parametrize("tie", ["last", "first"])
@examples(10)
@given(images=st.lists(image, min_size=1, max_size=3))
def test_equally_good_ones_are_decided_in_the_order_that_is_asked_for(rule, tie, equal, images) -> None:
    boxes = torch.tensor([[row[0] for row in one] for one in images])
    labels = torch.tensor([[row[1] for row in one] for one in images])
    order = tie_order(rule, grid_sizes(64))
    found = match(boxes, labels, ANCHORS, tie=tie, order=order, equal=equal)
    slow = [slow_match(b, n, ANCHORS, 0.5, "gt", tie, order, equal) for b, n in zip(boxes, labels)]
    assert as_dicts(*found) == slow


@pytest.mark.parametrize("equal", ["first", "last"])
def test_images_matched_in_parts_have_the_same_bits(monkeypatch, equal) -> None:
    random = torch.Generator().manual_seed(0)
    ends = (torch.rand(2, 7, 5, 2, generator=random) * 8).round() / 8
    boxes, labels = torch.cat((ends.amin(0), ends.amax(0)), dim=2), torch.randint(0, 3, (7, 5), generator=random)
    rules, largest = (boxes, labels, ANCHORS, 0.5, "gt", "last", equal), []
    wanted = match_fixed(*rules)
    monkeypatch.setattr(matching, "pairwise_iou", lambda *pair: largest.append(len(pair[0])) or pairwise_iou(*pair))
    for images, parts in ((1, [1] * 7), (3, [3, 3, 1]), (4, [4, 3]), (6, [4, 3]), (7, [7])):
        largest.clear()
        found = match_fixed(*rules, pairs=images * 5 * len(ANCHORS))
        assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True)) and largest == parts


@pytest.mark.parametrize(("images", "objects"), [(0, 0), (0, 8), (2, 0), (2, 8)])
def test_no_objects_match_nothing(images, objects) -> None:
    boxes, labels = torch.zeros(images, objects, 4), torch.zeros(images, objects, dtype=torch.int64)
    slots, positives = match(boxes, labels, ANCHORS)
    assert slots.shape == positives.shape == (images, len(ANCHORS))
    assert not positives.any()


def test_every_slot_may_be_filled() -> None:
    random = torch.Generator().manual_seed(0)
    center, half = torch.rand(1, 64, 2, generator=random), 0.02 + 0.3 * torch.rand(1, 64, 2, generator=random)
    boxes, labels = torch.cat((center - half, center + half), dim=2), torch.ones(1, 64, dtype=torch.int64)
    slots, positives = match(boxes, labels, ANCHORS)
    assert as_dicts(slots, positives)[0] == slow_match(boxes[0], labels[0], ANCHORS, 0.5, "gt", "last")


def test_the_threshold_itself_counts_only_by_the_rule_that_says_so() -> None:
    anchors = torch.tensor([[0.0, 0.0, 1.0, 0.5], [0.0, 0.0, 1.0, 1.0]])
    boxes = torch.tensor([[[0.0, 0.0, 1.0, 1.0]]])
    labels = torch.ones(1, 1, dtype=torch.int64)
    assert match(boxes, labels, anchors, match_rule="gt")[1].tolist() == [[False, True]]
    assert match(boxes, labels, anchors, match_rule="ge")[1].tolist() == [[True, True]]


def test_an_object_below_the_threshold_still_gets_its_best_default_box() -> None:
    boxes = torch.tensor([[[0.01, 0.01, 0.02, 0.02]]])
    positives = match(boxes, torch.ones(1, 1, dtype=torch.int64), ANCHORS)[1]
    assert positives.sum() == 1
    assert int(positives[0].nonzero()) == int(pairwise_iou(boxes[0], ANCHORS)[0].argmax())


def test_an_object_without_area_is_left_out() -> None:
    boxes = torch.tensor([[[0.3, 0.3, 0.3, 0.6], [0.1, 0.1, 0.5, 0.5]]])
    slots, positives = match(boxes, torch.ones(1, 2, dtype=torch.int64), ANCHORS)
    assert positives.any()
    assert set(slots[positives].tolist()) == {1}


def test_shapes_do_not_depend_on_the_data() -> None:
    """The meta device has no data to look at."""
    slots, positives = match(
        torch.empty(2, 8, 4, device="meta"), torch.empty(2, 8, dtype=torch.int64, device="meta"), ANCHORS.to("meta")
    )
    assert slots.shape == positives.shape == (2, len(ANCHORS))
