"""Our kernels in Triton on a GPU, at the networks' sizes: bit by bit the torch forms there, without a wait, and in a CUDA graph.

CI has no GPU, so these skip there.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paceline.distributed.device.timing import find_host_wait
from paceline.models.ops.boxes import to_ltrb
from paceline.models.ops.dispatch import set_triton
from paceline.models.ops.matching import match, match_anchors
from paceline.models.ops.nms import nms_fixed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = torch.device("cuda", 0)
Answers = Callable[[], tuple[Tensor, ...]]


def boxes_at(grid: int, *shape: int) -> Tensor:
    """Boxes in a square of 1024, on a grid so coarse that many are equal, or on one so fine that none are."""
    random = torch.Generator(CUDA).manual_seed(len(shape))
    drawn = torch.rand(*shape, 4, generator=random, device=CUDA) * torch.tensor([1.0, 1.0, 0.3, 0.3], device=CUDA)
    return 1024 * to_ltrb((drawn * grid).round() / grid)


def a_third_empty(images: int, objects: int) -> Tensor:
    return torch.arange(images * objects, device=CUDA).view(images, objects) % 3


def anchors_of_a_pyramid(grid: int) -> Answers:
    boxes, anchors, labels = boxes_at(grid, 4, 128), boxes_at(grid, 200_003), a_third_empty(4, 128)
    eligible = torch.rand(4, 200_003, device=CUDA, generator=torch.Generator(CUDA).manual_seed(0)) < 0.9
    rules = dict(fg_iou=0.7, bg_iou=0.3, allow_low_quality_matches=True, eligible=eligible)
    return lambda: match_anchors(boxes, labels, anchors, **rules)


def default_boxes(grid: int) -> Answers:
    boxes, anchors, labels = boxes_at(grid, 32, 64), boxes_at(grid, 8732), a_third_empty(32, 64)
    return lambda: match(boxes, labels, anchors, equal="last")


def candidates(grid: int) -> Answers:
    boxes = boxes_at(grid, 4, 5, 2000)
    valid, classes = boxes[..., 0] > 30, boxes[..., 1].long() % 3
    return lambda: nms_fixed(boxes, valid, 0.7, classes, rounds=255)


@pytest.mark.parametrize("grid", [2**20, 16])
@pytest.mark.parametrize("form", [anchors_of_a_pyramid, default_boxes, candidates])
def test_a_kernel_answers_as_the_torch_form_and_does_not_wait(form: Callable[[int], Answers], grid: int) -> None:
    answers = form(grid)
    wanted = answers()
    set_triton(True)
    try:
        found = answers()
        assert find_host_wait(answers, CUDA) == ""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = answers()
        graph.replay()
    finally:
        set_triton(False)
    for ours, again, theirs in zip(found, captured, wanted, strict=True):
        assert torch.equal(ours, theirs) and torch.equal(again, theirs)
