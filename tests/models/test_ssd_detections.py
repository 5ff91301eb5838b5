"""Detections: the CPU's short way, the fixed shapes and the obvious loop agree (the reference itself: tests/oracle)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from slow_nms import slow_detections
from torch import Tensor

from paceline.config.ssd import DetectionFilter, grid_sizes
from paceline.models.ops import dispatch
from paceline.models.ops.anchors import default_boxes
from paceline.models.ssd.postprocess import postprocess_ssd

ANCHORS = default_boxes(64, grid_sizes(64), (0.1, 0.3, 0.5, 0.8, 0.9))
IOU = 0.5
REFERENCE = DetectionFilter(topk_candidates=20, max_detections=15)
SYSTEM_A = DetectionFilter(score_threshold=0.0, topk_candidates=40, topk_per="image", max_detections=30)


def outputs(images: int, classes: int, spread: float, seed: int, boxes: int = 150) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    places = torch.randperm(len(ANCHORS), generator=random)[:boxes]
    logits = spread * torch.randn(images, boxes, classes + 1, generator=random)
    return logits, torch.randn(images, boxes, 4, generator=random), ANCHORS[places]


with_static_shapes = dispatch.static_shapes()(postprocess_ssd)  # what an accelerator runs, on the CPU


def assert_same(found: Tensor, expected) -> None:
    for rows, image in zip(found, expected):
        count = int((rows[:, 5] > 0).sum())
        assert count == len(image)
        assert rows[:count, 5].tolist() == [number for _, number, _, _ in image]
        assert rows[:count, 4].tolist() == pytest.approx([score for _, _, score, _ in image])
        for row, (_, _, _, box) in zip(rows[:count, :4].tolist(), image):
            assert row == pytest.approx(box, rel=1e-5, abs=1e-6)
        assert not rows[count:].any()


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("rules", [REFERENCE, SYSTEM_A, replace(REFERENCE, score_threshold=0.0)])
@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_both_forms_are_the_obvious_loop(rules, spread, clip) -> None:
    logits, deltas, anchors = outputs(2, 4, spread, seed=1)
    expected = slow_detections(logits, deltas, anchors, rules, clip)
    assert_same(postprocess_ssd(logits, deltas, anchors, rules, IOU, clip), expected)
    assert_same(with_static_shapes(logits, deltas, anchors, rules, IOU, clip), expected)


@examples(60)
@given(
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.0, 0.3, 1.0, 4.0]),
    score_threshold=st.sampled_from([0.0, 0.01, 0.05, 0.3, 0.9]),
    candidates=st.sampled_from([1, 3, 30, 1000]),
    topk_per=st.sampled_from(["class", "image"]),
    keep=st.sampled_from([1, 4, 50, 2000]),
    crowd=st.booleans(),
)
def test_the_cpus_short_way_is_the_fixed_shapes(seed, spread, score_threshold, candidates, topk_per, keep, crowd) -> None:
    logits, deltas, anchors = outputs(1, 3, spread, seed, boxes=60)
    if crowd:  # every default box predicts nearly the same place: few stay, and the short way must look again
        anchors = anchors[:1].expand(60, -1)
        deltas = 0.1 * deltas
    if spread == 0.0 and candidates < 1000:  # equal scores: which of them makes the cut is not promised
        candidates = 1000
    rules = DetectionFilter(
        score_threshold=score_threshold, topk_candidates=candidates, topk_per=topk_per, max_detections=keep
    )  # type: ignore[arg-type]
    found, fixed = (
        postprocess_ssd(logits, deltas, anchors, rules, IOU),
        with_static_shapes(logits, deltas, anchors, rules, IOU),
    )
    assert torch.equal(found[..., 4:], fixed[..., 4:])
    assert torch.allclose(found[..., :4], fixed[..., :4], atol=1e-6)


@pytest.mark.parametrize("topk_per", ["class", "image"])
def test_what_lies_elsewhere_is_found_behind_a_crowd_of_candidates(topk_per) -> None:
    """29 default boxes predict one place, and the last of the candidates another one."""
    anchors = torch.tensor([[0.3, 0.3, 0.2, 0.2]] * 29 + [[0.7, 0.7, 0.2, 0.2]])
    logits = torch.stack((torch.zeros(30), torch.linspace(4, 3, 30)), dim=1).unsqueeze(0)
    rules = replace(SYSTEM_A, topk_per=topk_per, topk_candidates=30, max_detections=3)
    for form in (postprocess_ssd, with_static_shapes):
        found = form(logits, torch.zeros(1, 30, 4), anchors, rules, IOU)[0]
        assert found[:, 5].tolist() == [1.0, 1.0, 0.0]
        assert found[:2, 0].tolist() == pytest.approx([0.2, 0.6])


@pytest.mark.parametrize(("images", "boxes", "classes"), [(0, 5, 3), (2, 0, 3), (2, 5, 0)])
def test_nothing_to_find_gives_empty_places(images, boxes, classes) -> None:
    found = postprocess_ssd(
        torch.zeros(images, boxes, classes + 1), torch.zeros(images, boxes, 4), ANCHORS[:boxes], REFERENCE, IOU
    )
    assert found.shape == (images, 15, 6)
    assert not found.any()


def test_nothing_above_the_threshold_gives_empty_places() -> None:
    logits, deltas, anchors = outputs(1, 4, 0.1, seed=0)
    logits[..., 0] += 20
    assert not postprocess_ssd(logits, deltas, anchors, REFERENCE, IOU).any()
    assert not with_static_shapes(logits, deltas, anchors, REFERENCE, IOU).any()


def test_a_broken_network_gives_no_detections_and_no_error() -> None:
    logits, deltas, anchors = outputs(1, 4, 0.1, seed=0)
    logits[:] = float("nan")
    assert not postprocess_ssd(logits, deltas, anchors, REFERENCE, IOU).any()


def test_half_precision_is_scored_in_float32() -> None:
    logits, deltas, anchors = outputs(1, 4, 3.0, seed=2)
    found = postprocess_ssd(logits.bfloat16(), deltas.bfloat16(), anchors, REFERENCE, IOU)
    assert found.dtype == torch.float32
    assert torch.equal(
        found, postprocess_ssd(logits.bfloat16().float(), deltas.bfloat16().float(), anchors, REFERENCE, IOU)
    )


@pytest.mark.parametrize("rules", [REFERENCE, SYSTEM_A])
def test_fixed_shapes_do_not_depend_on_the_data(rules) -> None:
    """The meta device has no data to look at."""
    logits, deltas, anchors = (part.to("meta") for part in outputs(3, 4, 1.0, seed=0))
    assert postprocess_ssd(logits, deltas, anchors, rules, IOU).shape == (3, rules.max_detections, 6)


@pytest.mark.parametrize("rules", [REFERENCE, SYSTEM_A])
def test_a_chain_of_overlaps_is_followed_to_its_end_in_both_forms(rules) -> None:
    """Each box overlaps its neighbors only, so every second one is kept."""
    count = 70
    anchors = torch.tensor([[0.1 + 0.006 * place, 0.5, 0.02, 0.5] for place in range(count)])
    logits = torch.stack((torch.zeros(count), torch.linspace(4, 3, count)), dim=1).unsqueeze(0)
    rules = replace(rules, topk_candidates=count, max_detections=count)
    for form in (postprocess_ssd, with_static_shapes):
        found = form(logits, torch.zeros(1, count, 4), anchors, rules, IOU)[0]
        kept = (found[:, 5] > 0).nonzero().squeeze(1)
        assert found[kept, 4].tolist() == logits[0].softmax(dim=1)[::2, 1].tolist()
