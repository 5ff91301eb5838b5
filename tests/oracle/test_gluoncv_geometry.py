"""GluonCV's own anchors, targets, samples, pooling and mask targets, as recorded from its code, beside ours.

tests/oracle/recorded/README.md says from which versions; `recorded` reads those files, or in the nightly run ones made anew.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gluoncv_recorded import Recorded, reader
from torch import Tensor

from paceline.config.maskrcnn import RPN
from paceline.config.recipes.maskrcnn import gluoncv
from paceline.data.transforms.crop import CropWindow
from paceline.models.maskrcnn.mask_targets import make_canvases
from paceline.models.ops.anchors import make_pyramid_anchors
from paceline.models.ops.boxes import BoxCoder
from paceline.models.ops.matching import is_inside_image, match_anchors
from paceline.models.ops.roi_align import assign_levels, mask_targets, pool_regions
from paceline.models.ops.sampling import random_bits, sample_candidates
from paceline.models.ops.torchvision_kernels import roi_align

HEIGHT, WIDTH = 320, 416
MODEL = gluoncv().model


@pytest.fixture
def recorded() -> Recorded:
    return reader()


def our_anchors(rpn: RPN = MODEL.rpn) -> list[Tensor]:
    grids = [(-(-HEIGHT // stride), -(-WIDTH // stride)) for stride in (4, 8, 16, 32, 64)]
    return make_pyramid_anchors(
        grids, HEIGHT, WIDTH, sizes=rpn.anchor_sizes, ratios=rpn.aspect_ratios, rounding=MODEL.parity.anchor_rounding
    )


def test_anchors(recorded: Recorded) -> None:
    theirs = recorded("anchors")
    ours = our_anchors()
    assert [len(level) for level in ours] == theirs["counts"].tolist()
    for level, stride in enumerate((4, 8, 16, 32, 64)):
        grid = ours[level].view(-1, -(-WIDTH // stride), 3, 4)
        assert np.array_equal(np.stack((grid[0, 0], grid[2, 3])), theirs["cells"][level])
    assert np.array_equal(ours[4], theirs["whole"])


def matched(boxes: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """anchors (A, 4), slots (A,) and kind (A,) of one photo, by the recipe's rules."""
    rpn, anchors = MODEL.rpn, torch.cat(our_anchors())
    inside = is_inside_image(anchors, torch.tensor([[HEIGHT, WIDTH]]))
    slots, kind = match_anchors(
        torch.from_numpy(boxes)[None],
        torch.ones(1, len(boxes), dtype=torch.int64),
        anchors,
        fg_iou=rpn.fg_iou,
        bg_iou=rpn.bg_iou,
        allow_low_quality_matches=rpn.allow_low_quality_matches,
        eligible=inside,
    )
    return anchors, slots[0], kind[0]


def test_which_anchors_are_positive_and_what_they_learn(recorded: Recorded) -> None:
    theirs = recorded("anchor_targets")
    for photo in range(int(theirs["photos"])):
        boxes = theirs[f"boxes_{photo}"]
        anchors, slots, kind = matched(boxes)
        assert np.array_equal(kind, theirs[f"kind_{photo}"]), photo
        positive = kind == 1
        targets = BoxCoder((1, 1, 1, 1)).encode(torch.from_numpy(boxes)[slots[positive]], anchors[positive])
        assert np.allclose(targets, theirs[f"targets_{photo}"], rtol=0, atol=2e-6)


def test_how_many_anchors_are_sampled(recorded: Recorded) -> None:
    theirs = recorded("anchor_targets")
    for photo in range(int(theirs["photos"])):
        _, _, kind = matched(theirs[f"boxes_{photo}"])
        chosen = sample_candidates(
            kind[None] == 1,
            kind[None] == 0,
            random_bits(torch.tensor([photo]), len(kind), 1),
            count=MODEL.rpn.samples_per_image,
            most_positive=int(MODEL.rpn.samples_per_image * MODEL.rpn.positive_fraction),
            fill="negatives",
        )
        counts = [int((chosen.positive & chosen.taken).sum()), int((~chosen.positive & chosen.taken).sum())]
        assert counts == theirs[f"sampled_{photo}"].tolist(), photo


def test_how_many_regions_are_sampled(recorded: Recorded) -> None:
    """Where negatives are plenty, equal counts. Where they are few GluonCV loses some and repeats others."""
    theirs = recorded("region_samples")
    equal = 0
    for there, taken in zip(theirs["there"].tolist(), theirs["taken"].tolist()):
        positives, negatives = there
        kinds = torch.tensor([1] * positives + [0] * negatives)[None]
        chosen = sample_candidates(
            kinds == 1,
            kinds == 0,
            random_bits(torch.tensor([7]), kinds.shape[1], 2),
            count=64,
            most_positive=16,
            fill=MODEL.parity.roi_fill,
        )
        ours = [int((chosen.positive & chosen.taken).sum()), int((~chosen.positive & chosen.taken).sum())]
        assert sum(ours) == min(64, positives + negatives)
        if negatives >= 64 - min(positives, 16):
            assert ours == taken[:2], there
            equal += 1
        else:  # never fewer different ones
            assert ours[0] >= min(positives, 16) and ours[1] >= taken[4]
    assert equal >= 4


def test_roi_align(recorded: Recorded) -> None:
    theirs = recorded("pooling")
    boxes, image = torch.from_numpy(theirs["boxes"]), torch.from_numpy(theirs["image"])
    feature = torch.from_numpy(theirs["feature"])
    ours = pool_regions([feature], [4], image, boxes, torch.zeros_like(image), side=14, sampling_ratio=2, aligned=False)
    assert np.allclose(ours, theirs["pooled"], rtol=0, atol=3e-6)
    kernel = roi_align(
        feature, torch.cat((image[:, None].float(), boxes), 1), 14, scale=0.25, sampling_ratio=2, aligned=False
    )
    assert np.allclose(kernel, theirs["pooled"], rtol=0, atol=3e-6)


def test_levels_of_regions(recorded: Recorded) -> None:
    theirs = recorded("pooling")
    ours = assign_levels(torch.from_numpy(theirs["regions"]), levels=4, law="gluoncv", first=2) + 2
    assert np.array_equal(ours, theirs["levels"])


def test_boxes_from_deltas(recorded: Recorded) -> None:
    theirs = recorded("decoding")
    deltas, boxes = torch.from_numpy(theirs["deltas"]), torch.from_numpy(theirs["boxes"])
    for name, weights, limit in (
        ("of_regions", MODEL.roi.box_reg_weights, MODEL.roi.max_log_scale),
        ("of_anchors", (1.0, 1.0, 1.0, 1.0), MODEL.rpn.max_log_scale),
    ):
        assert np.allclose(BoxCoder(weights, limit).decode(deltas, boxes), theirs[name], rtol=2e-6, atol=2e-4), name


class Outlines:
    """The recorded outlines as data/index/box_split.py has polygons: one of each object."""

    def __init__(self, outlines: np.ndarray) -> None:
        count, points, _ = outlines.shape
        self.polygon_points = outlines.astype(np.float64).ravel()
        self.polygon_starts = np.arange(count + 1) * 2 * points
        self.object_polygons = np.arange(count + 1)
        self.rle_counts = np.zeros(0, np.int64)
        self.object_rles = np.zeros(count + 1, np.int64)


def our_mask_targets(theirs, side: int, sampling_ratio: int) -> np.ndarray:
    height, width = theirs["size"].tolist()
    outlines = theirs["outlines"]
    boxes = np.concatenate((outlines.min(axis=1), outlines.max(axis=1)), axis=1).astype(np.float64)
    canvases, frames = make_canvases(
        Outlines(outlines),
        np.arange(len(boxes)),
        boxes,
        photo=(height, width),
        window=CropWindow(0, 0, height, width, height, width),
        flip=False,
        side=side,
    )
    of = theirs["matches"]
    return mask_targets(
        torch.from_numpy(canvases[of]),
        torch.from_numpy(frames[of]),
        torch.from_numpy(theirs["rois"]),
        side=28,
        target=MODEL.mask.target,
        sampling_ratio=sampling_ratio,
    ).numpy()


def test_mask_targets(recorded: Recorded) -> None:
    """From a canvas that holds the whole mask the same shares; from the recipe's, objects above 112 pixels are blurred."""
    theirs = recorded("mask_targets")
    assert np.allclose(our_mask_targets(theirs, 160, MODEL.mask.sampling_ratio), theirs["targets"], rtol=0, atol=1e-5)
    adaptive = np.abs(our_mask_targets(theirs, 160, 0) - theirs["targets"])
    assert adaptive.max() > 0.05  # the number of sample points shows
    coarse = np.abs(our_mask_targets(theirs, MODEL.mask.target_buffer_size, MODEL.mask.sampling_ratio) - theirs["targets"])
    assert coarse.mean() < 0.01
