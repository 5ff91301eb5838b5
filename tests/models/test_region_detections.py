"""Detections of regions: the CPU's form, the fixed shapes and torchvision's postprocess_detections agree."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchvision.models.detection.roi_heads import RoIHeads

from paceline.config.maskrcnn import InstanceFilter
from paceline.models.maskrcnn import proposals as module
from paceline.models.maskrcnn.proposals import detect_regions
from paceline.models.ops import dispatch
from paceline.models.ops.boxes import BoxCoder

LIMIT = math.log(1000 / 16)
SIZES = torch.tensor([[96, 128], [80, 100]])
CODER = BoxCoder((10.0, 10.0, 5.0, 5.0), LIMIT)
RULES = InstanceFilter(max_detections=20)


def outputs(seed: int, count: int = 60, classes: int = 4, spread: float = 2.0, images: int = 2):
    random = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(images, count, classes + 1, generator=random)
    deltas = torch.randn(images, count, 4 * (classes + 1), generator=random)
    center = torch.rand(images, count, 2, generator=random) * torch.tensor([128.0, 96.0])
    half = 10.0 * torch.exp(0.6 * torch.randn(images, count, 2, generator=random))
    regions = torch.cat((center - half, center + half), dim=2).clamp(min=0)
    return logits, deltas, regions, torch.rand(images, count, generator=random) < 0.8


with_static_shapes = dispatch.static_shapes()(detect_regions)  # what an accelerator runs, on the CPU
FORMS = [detect_regions, with_static_shapes]


def torchvisions(logits, deltas, regions, valid, sizes, *, score_threshold, iou, keep):
    """In float64: moving classes apart by an offset does not round there."""
    heads = RoIHeads(None, None, None, 0.5, 0.5, 512, 0.25, (10.0, 10.0, 5.0, 5.0), score_threshold, iou, keep)
    return heads.postprocess_detections(
        logits[valid].double(), deltas[valid].double(), [rows[taken].double() for rows, taken in zip(regions, valid)],
        [tuple(size) for size in sizes.tolist()],
    )  # fmt: skip


def assert_same(found: tuple[Tensor, ...], expected) -> None:
    for boxes, scores, labels, _, *theirs in zip(*found, *expected):
        count = len(theirs[0])
        assert int((scores > 0).sum()) == count
        assert labels[:count].tolist() == theirs[2].tolist()
        torch.testing.assert_close(scores[:count].double(), theirs[1], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(boxes[:count].double(), theirs[0], rtol=1e-5, atol=1e-4)
        assert not boxes[count:].any() and not scores[count:].any() and not labels[count:].any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("score_threshold", [0.0, 0.05, 0.6])
@pytest.mark.parametrize("keep", [1, 20, 400])
def test_they_are_torchvisions(form, score_threshold, keep) -> None:
    given_outputs = (*outputs(seed=0), SIZES)
    found = form(*given_outputs, CODER, replace(RULES, score_threshold=score_threshold, max_detections=keep))
    assert found[0].shape == (2, keep, 4) and found[2].dtype == torch.int64
    assert_same(found, torchvisions(*given_outputs, score_threshold=score_threshold, iou=0.5, keep=keep))


@examples(40)
@given(
    seed=st.integers(0, 10**6),
    count=st.sampled_from([0, 1, 7, 40]),
    classes=st.sampled_from([1, 3]),
    spread=st.sampled_from([0.0, 1.0, 6.0]),
    score_threshold=st.sampled_from([0.0, 0.05, 0.3]),
    iou=st.sampled_from([0.3, 0.5, 1.0]),
    min_box_side=st.sampled_from([0.0, 1e-2, 15.0]),
    keep=st.sampled_from([1, 10, 200]),
    crowd=st.booleans(),
)
def test_the_fixed_shapes_are_the_cpus_form(
    seed, count, classes, spread, score_threshold, iou, min_box_side, keep, crowd
) -> None:
    logits, deltas, regions, valid = outputs(seed, count, classes, spread)
    if crowd:  # all near one place
        regions, deltas = torch.tensor([30.0, 20.0, 60.0, 70.0]).expand_as(regions), 0.5 * deltas
    rules = replace(RULES, score_threshold=score_threshold, nms_iou=iou, min_box_side=min_box_side, max_detections=keep)
    one = detect_regions(logits, deltas, regions, valid, SIZES, CODER, rules)
    other = with_static_shapes(logits, deltas, regions, valid, SIZES, CODER, rules)
    assert all(torch.equal(*pair) for pair in zip(one, other))


def test_candidates_limit_what_the_fixed_shapes_look_at() -> None:
    logits, deltas, regions, valid = outputs(seed=3)
    sizes = 10 * SIZES  # none is dropped for lying outside
    chosen = with_static_shapes(
        logits, deltas, regions, valid, sizes, CODER, replace(RULES, topk_candidates=5, nms_iou=1.0)
    )
    every = detect_regions(logits, deltas, regions, valid, sizes, CODER, replace(RULES, nms_iou=1.0))
    assert (chosen[1] > 0).sum(dim=1).tolist() == [5, 5]
    assert torch.equal(chosen[1][:, :5], every[1][:, :5])


def test_what_the_fixed_shapes_did_not_look_at_is_counted(monkeypatch) -> None:
    """Pairs beyond the cap, and boxes whose suppression was cut off: a chain of overlaps longer than the rounds."""
    logits, deltas, regions, valid = outputs(seed=3)
    scored = (logits.softmax(dim=2)[..., 1:] > RULES.score_threshold) & valid.unsqueeze(2)
    left_open = with_static_shapes(logits, deltas, regions, valid, SIZES, CODER, replace(RULES, topk_candidates=5))[3]
    assert left_open.tolist() == [[0, count - 5] for count in scored.sum(dim=(1, 2)).tolist()]
    assert not with_static_shapes(logits, deltas, regions, valid, SIZES, CODER, RULES)[3].any()

    count = 12  # each overlaps its neighbor by more than a half, in the order of their scores
    chain = torch.tensor([[4.0 * place, 10.0, 4.0 * place + 20.0, 30.0] for place in range(count)])
    logits = torch.zeros(1, count, 2)
    logits[0, :, 1] = torch.linspace(4, 3, count)
    monkeypatch.setattr(module, "nms_fixed", partial(module.nms_fixed, rounds=3))
    found = with_static_shapes(
        logits, torch.zeros(1, count, 8), chain[None], torch.ones(1, count, dtype=torch.bool), SIZES[:1], CODER, RULES
    )
    assert found[3].tolist() == [[count - 3, 0]]
    assert not detect_regions(
        logits, torch.zeros(1, count, 8), chain[None], torch.ones(1, count, dtype=torch.bool), SIZES[:1], CODER, RULES
    )[3].any()


@pytest.mark.parametrize("form", FORMS)
def test_classes_compete_apart_and_the_better_of_one_class_stays(form) -> None:
    regions = torch.tensor([[[10.0, 10.0, 50.0, 50.0], [11.0, 10.0, 50.0, 50.0]]])
    logits = torch.tensor([[[0.0, 3.0, 2.0], [0.0, 2.5, 2.4]]])
    boxes, scores, labels, _ = form(
        logits, torch.zeros(1, 2, 12), regions, torch.ones(1, 2, dtype=torch.bool), SIZES[:1], CODER, RULES
    )
    probs = logits[0].softmax(dim=1)
    assert labels[0, :3].tolist() == [1, 2, 0]
    assert torch.equal(scores[0, :2], torch.stack((probs[0, 1], probs[1, 2])))
    assert torch.equal(boxes[0, :2], regions[0])


@pytest.mark.parametrize("form", FORMS)
def test_a_photo_without_valid_regions_has_no_detections(form) -> None:
    logits, deltas, regions, valid = outputs(seed=4)
    valid[1] = False
    found = form(logits, deltas, regions, valid, SIZES, CODER, RULES)
    assert found[1][0].any() and not any(part[1].any() for part in found)
    alone = form(logits[:1], deltas[:1], regions[:1], valid[:1], SIZES[:1], CODER, RULES)
    assert all(torch.equal(part[:1], only) for part, only in zip(found, alone))


@pytest.mark.parametrize("form", FORMS)
def test_boxes_are_clipped_to_the_photo_and_dropped_outside(form) -> None:
    regions = torch.tensor([[[90.0, 60.0, 120.0, 100.0], [101.0, 10.0, 120.0, 20.0]]])
    logits = torch.tensor([[[0.0, 3.0], [0.0, 4.0]]])
    boxes, scores, *_ = form(
        logits, torch.zeros(1, 2, 8), regions, torch.ones(1, 2, dtype=torch.bool), SIZES[1:], CODER, RULES
    )
    assert boxes[0, 0].tolist() == [90.0, 60.0, 100.0, 80.0] and int((scores > 0).sum()) == 1


@pytest.mark.parametrize("form", FORMS)
def test_or_reach_beyond_it_where_the_caller_cuts_them(form) -> None:
    regions = torch.tensor([[[90.0, 60.0, 120.0, 100.0], [101.0, 10.0, 120.0, 20.0]]])
    logits = torch.tensor([[[0.0, 3.0], [0.0, 4.0]]])
    boxes, scores, *_ = form(
        logits, torch.zeros(1, 2, 8), regions, torch.ones(1, 2, dtype=torch.bool), SIZES[1:], CODER, RULES, False
    )
    assert boxes[0, :2].tolist() == regions[0].flip(0).tolist() and int((scores > 0).sum()) == 2


@pytest.mark.parametrize("form", FORMS)
def test_bf16_outputs_are_answered_in_float32_without_gradient(form) -> None:
    logits, deltas, regions, valid = outputs(seed=6)
    logits, deltas = logits.bfloat16().requires_grad_(), deltas.bfloat16().requires_grad_()
    found = form(logits, deltas, regions, valid, SIZES, CODER, RULES)
    full = form(logits.float(), deltas.float(), regions, valid, SIZES, CODER, RULES)
    assert found[0].dtype == found[1].dtype == torch.float32
    assert all(torch.equal(*pair) and not pair[0].requires_grad for pair in zip(found, full))


def test_the_memory_estimate_runs_it_without_data() -> None:
    boxes, scores, labels, _ = detect_regions(*(part.to("meta") for part in (*outputs(seed=0), SIZES)), CODER, RULES)
    assert (boxes.shape, scores.shape, labels.shape) == ((2, 20, 4), (2, 20), (2, 20))
