"""A program: our Triton kernels on a CPU by Triton's interpreter, beside their torch forms; prints name -> failure or "" as JSON.

Triton reads TRITON_INTERPRET when it is imported, so this is a process of its own. Argument: examples of each property.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from itertools import product

import interpreted_roi_align as of_roi_align
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.config.ssd import grid_sizes
from paceline.models.ops import matching as by
from paceline.models.ops import nms
from paceline.models.ops.anchors import default_boxes, make_pyramid_anchors, tie_order
from paceline.models.ops.boxes import to_ltrb
from paceline.models.ops.nms import nms_fixed
from paceline.models.ops.triton_matching import BLOCK, ROWS, keep_best, overlaps

PYRAMID = torch.cat(
    make_pyramid_anchors(
        [(12, 20), (6, 10), (3, 5), (2, 3), (1, 2)], 48, 80,
        sizes=(8, 16, 32, 64, 128), ratios=(0.5, 1.0, 2.0), rounding="none",
    )
)  # fmt: skip
DEFAULTS = to_ltrb(default_boxes(64, grid_sizes(64), (0.1, 0.3, 0.5, 0.8, 0.9)))
RULES = list(product(("gt", "ge"), ("last", "first"), ("first", "last")))
random = torch.Generator().manual_seed(0)


def scene(images: int, objects: int, grid: int = 0) -> tuple[Tensor, Tensor]:
    """Boxes and labels, a third of the slots empty; with `grid` on so many edges, for ties and boxes without area."""
    ends = torch.rand(2, images, objects, 2, generator=random)
    ends = (ends * grid).round() / grid if grid else ends
    low, high = ends.amin(0), ends.amax(0)
    return torch.cat((low, high), dim=2), torch.randint(0, 3, (images, objects), generator=random)


def alike(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape and torch.equal(ours, theirs)


def check_anchors(boxes: Tensor, labels: Tensor, anchors: Tensor, eligible: Tensor | None) -> None:
    alike(by.overlaps_triton(boxes, labels, anchors, eligible), by.overlaps_fixed(boxes, labels, anchors, eligible))


def check_defaults(boxes: Tensor, labels: Tensor, anchors: Tensor) -> None:
    for positive, tie, equal in RULES:
        rules = 0.5, positive, tie, equal
        alike(by.match_triton(boxes, labels, anchors, *rules), by.match_fixed(boxes, labels, anchors, *rules))


def anchors_of_a_pyramid() -> None:
    inside = by.is_inside_image(PYRAMID, torch.tensor([[48.0, 80.0], [40.0, 60.0]]))
    for grid, eligible in ((0, None), (4, inside), (4, None), (0, torch.zeros_like(inside))):
        boxes, labels = scene(2, 8, grid=grid)
        labels[1] = 0  # a photo without objects
        boxes *= torch.tensor([80.0, 48.0, 80.0, 48.0])
        boxes[0, 0] = PYRAMID[700]
        check_anchors(boxes, labels, PYRAMID, eligible)


def default_boxes_of_a_network() -> None:
    for grid in (0, 4):
        boxes, labels = scene(2, 8, grid=grid)
        labels[1] = 0
        check_defaults(boxes, labels, DEFAULTS)


def odd_numbers() -> None:
    for images, objects, anchors in ((1, 1, 1), (0, 3, 5), (2, 0, 5), (2, 3, 0), (1, 5, BLOCK - 1), (3, 2, BLOCK + 1)):
        boxes, labels = scene(images, objects, grid=3)
        places, _ = scene(1, anchors, grid=3)
        check_anchors(boxes, labels, places[0], None)
        check_anchors(boxes, labels, places[0], torch.rand(images, anchors, generator=random) < 0.5)
        check_defaults(boxes, labels, places[0])


def objects_that_share_a_best_anchor() -> None:
    boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(3, 5, 4)
    anchors = torch.tensor([[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0], [2.0, 2.0, 3.0, 3.0]]).repeat(BLOCK // 2, 1)
    labels = torch.tensor([[0, 1, 1, 1, 0], [1, 0, 0, 0, 1], [0, 0, 0, 0, 0]])
    check_anchors(boxes, labels, anchors, None)
    check_defaults(boxes, labels, anchors)


def lists_of_candidates() -> None:
    shapes = [(4, 0), (0, 7), (1,), (31,), (2, 3, 8), (2, 33), (ROWS + 1,), (100,)]
    for shape, (iou, grid) in product(shapes, ((0.5, 6), (0.7, 0))):
        boxes, _ = scene(1, torch.Size(shape).numel(), grid=grid)
        boxes = boxes.view(*shape, 4)
        valid = torch.rand(shape, generator=random) < 0.8
        classes = torch.randint(0, 3, shape, generator=random)
        for compete in (None, classes):
            check_list(boxes, valid, iou, compete)
    check_list(boxes, torch.zeros_like(valid), 0.5, None)


def check_list(boxes: Tensor, valid: Tensor, iou: float, classes: Tensor | None) -> None:
    wanted, unsettled = nms_fixed(boxes, valid, iou, classes, rounds=255)
    assert not unsettled.any()
    alike((keep_best(boxes, valid, iou, classes),), (wanted,))


def a_chain_and_an_overlap_of_the_threshold() -> None:
    left = torch.arange(70) * 0.3
    chain = torch.stack((left, torch.zeros(70), left + 1, torch.ones(70)), dim=1)
    kept = keep_best(chain, torch.ones(70, dtype=torch.bool), 0.5, None)
    assert kept.tolist() == [place % 2 == 0 for place in range(70)]
    for side, share in ((10, 1), (10, 3), (10, 7), (5, 3)):  # a share of a box, whose IoU is not exact in binary
        pair = torch.tensor([[0.0, 0.0, 1.0, side], [0.0, 0.0, 1.0, share]])
        for change in (-1e-7, 0, 1e-7):
            check_list(pair, torch.ones(2, dtype=torch.bool), share / side + change, None)


EDGE = st.integers(0, 8).map(lambda n: n / 8)
BOX = st.tuples(EDGE, EDGE, EDGE, EDGE).map(lambda b: (min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3])))
ROW = st.tuples(BOX, st.integers(0, 2), st.booleans())
EXAMPLES = settings(max_examples=int(sys.argv[1]), deadline=None, database=None)


@EXAMPLES
@given(st.lists(ROW, min_size=1, max_size=6), st.lists(ROW, min_size=1, max_size=40), st.sampled_from(RULES))
def any_objects_and_anchors(objects, places, rule) -> None:
    boxes, labels = torch.tensor([[row[0] for row in objects]]), torch.tensor([[row[1] for row in objects]])
    anchors, eligible = torch.tensor([row[0] for row in places]), torch.tensor([[row[2] for row in places]])
    check_anchors(boxes, labels, anchors, eligible)
    rules = 0.5, *rule
    alike(by.match_triton(boxes, labels, anchors, *rules), by.match_fixed(boxes, labels, anchors, *rules))


@EXAMPLES
@given(st.lists(ROW, min_size=1, max_size=40), st.sampled_from([0.25, 0.5, 0.7, 1.0]))
def any_candidates(rows, iou) -> None:
    boxes, valid = torch.tensor([row[0] for row in rows]), torch.tensor([row[2] for row in rows])
    for classes in (None, torch.tensor([row[1] for row in rows])):
        check_list(boxes, valid, iou, classes)


def operators_that_torch_compiles() -> None:
    boxes, labels = scene(2, 4, grid=4)
    valid, kinds = labels > 0, labels.clone()
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(overlaps, (boxes, labels, DEFAULTS, None, True, "first", "last"), test_utils=tests)
    torch.library.opcheck(keep_best, (boxes, valid, 0.5, kinds), test_utils=tests)

    def whole(boxes: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        anchors = dict(fg_iou=0.7, bg_iou=0.3, allow_low_quality_matches=True, eligible=None)
        proposed = by.match_anchors(boxes, labels, DEFAULTS, **anchors)
        return *proposed, *by.match(boxes, labels, DEFAULTS, order=order), *nms_fixed(boxes, labels > 0, 0.5)

    order = tie_order("anchor", grid_sizes(64))
    by.uses_static_shapes = lambda _: True
    wanted = whole(boxes, labels)
    by.uses_triton = nms.uses_triton = lambda _: True
    alike(torch.compile(whole, fullgraph=True, backend="aot_eager")(boxes, labels), wanted)


CASES: tuple[Callable[[], None], ...] = (
    anchors_of_a_pyramid, default_boxes_of_a_network, odd_numbers, objects_that_share_a_best_anchor, lists_of_candidates,
    a_chain_and_an_overlap_of_the_threshold, any_objects_and_anchors, any_candidates, operators_that_torch_compiles,
    *of_roi_align.CASES,
)  # fmt: skip

if __name__ == "__main__":
    said = {}
    for case in [case for case in CASES if case.__name__ in sys.argv[2:] or not sys.argv[2:]]:
        try:
            case()
            said[case.__name__] = ""
        except Exception:
            said[case.__name__] = traceback.format_exc()
    print(json.dumps(said))
