"""The second stage of Mask R-CNN under the MLPerf reference's rules against what its own code said: heads' targets and results."""

from __future__ import annotations

import numpy as np
import torch
from mlperf_recorded import inputs, outside, recorded, tensor
from pycocotools import mask as official
from torch import Tensor

from paceline.config.recipes import RECIPES
from paceline.models.maskrcnn.loss import class_loss, region_box_loss
from paceline.models.maskrcnn.proposals import detect_regions
from paceline.models.ops import dispatch
from paceline.models.ops.boxes import BoxCoder
from paceline.models.ops.matching import match_regions
from paceline.models.ops.paste_masks import paste_to_rle
from paceline.models.ops.roi_align import assign_levels, pool_regions

MODEL = RECIPES["maskrcnn"]().model
ROI, DETECT = MODEL.roi, MODEL.detect


def regions(image: int) -> Tensor:
    """The last pixels inside."""
    height, width = inputs().PHOTOS[image]
    objects = inputs().boxes_in(f"objects {image}", 5, height, width)
    return torch.from_numpy(inputs().around(f"regions {image}", objects, inputs().REGIONS, height, width))


def objects(image: int) -> Tensor:
    return outside(inputs().boxes_in(f"objects {image}", 5, *inputs().PHOTOS[image]))


def test_regions_have_its_classes_and_targets() -> None:
    for image in range(2):
        boxes = outside(regions(image))
        slots, positive = match_regions(
            objects(image)[None], torch.arange(1, 6)[None] * 7, boxes[None], torch.ones(1, len(boxes), dtype=torch.bool),
            iou=ROI.fg_iou,
        )  # fmt: skip
        labels = ((slots + 1) * 7 * positive)[0]
        assert torch.equal(labels, tensor(f"region_labels{image}"))
        assert 10 < int(positive.sum()) < len(boxes) - 10
        deltas = BoxCoder(ROI.box_reg_weights).encode(objects(image)[slots[0]], boxes)
        torch.testing.assert_close(deltas[positive[0]], tensor(f"region_deltas{image}")[positive[0]], rtol=0, atol=2e-5)


def test_both_losses_of_the_regions_that_it_sampled() -> None:
    """Both are divided by all sampled regions; boxes turn linear at 1."""
    labels = torch.cat([tensor(f"sampled_labels{image}") for image in range(2)])
    targets = []
    for image in range(2):
        slots = (tensor(f"sampled_labels{image}") // 7 - 1).clamp(min=0)
        regions_of = outside(tensor(f"sampled_regions{image}"))
        targets.append(BoxCoder(ROI.box_reg_weights).encode(objects(image)[slots], regions_of))
    targets = torch.cat(targets)
    logits, deltas = (torch.from_numpy(part) for part in inputs().box_head_output("training", len(labels)))
    sums = (
        class_loss(logits, labels, torch.ones(len(labels))).sum(),
        region_box_loss(deltas, targets, labels, labels > 0, ROI.smooth_l1_beta).sum(),
    )
    torch.testing.assert_close((torch.stack(sums) / len(labels)).double(), tensor("region_losses"), rtol=1e-5, atol=0)


def test_levels_are_the_references() -> None:
    boxes = torch.cat((regions(0), regions(1), torch.from_numpy(inputs().boxes_in("large", 200, 800, 1333))))
    found = assign_levels(outside(boxes), levels=4, law="torchvision", first=2)
    assert torch.equal(found, tensor("levels").long())
    assert len(found.unique()) == 4


def test_pooled_regions_are_the_references() -> None:
    """RoIAlign takes the reference's coordinates as they are, the pixel is counted for the level alone."""
    boxes = torch.cat([regions(image)[:10] for image in range(2)])
    found = pool_regions(
        [torch.from_numpy(part) for part in inputs().feature_maps()], inputs().STRIDES[:4], torch.arange(2).repeat_interleave(10),
        boxes, assign_levels(outside(boxes), levels=4, law="torchvision", first=2),
        side=ROI.pool_size, sampling_ratio=ROI.sampling_ratio, aligned=ROI.aligned,
    )  # fmt: skip
    torch.testing.assert_close(found, tensor("pooled"), rtol=1e-5, atol=1e-5)


def found_by(form) -> tuple[Tensor, Tensor, Tensor]:
    logits, deltas = (torch.from_numpy(part).unflatten(0, (2, -1)) for part in inputs().box_head_output("testing", 180))
    boxes = torch.stack([outside(regions(image)) for image in range(2)])
    return form(logits, deltas, boxes, torch.tensor(inputs().PHOTOS))


def through_detections(logits, deltas, boxes, sizes):
    valid, coder = torch.ones(boxes.shape[:2], dtype=torch.bool), BoxCoder(ROI.box_reg_weights, ROI.max_log_scale)
    return detect_regions(logits, deltas, boxes, valid, sizes, coder, DETECT)


def through_fixed_shapes(logits, deltas, boxes, sizes):
    with dispatch.static_shapes():
        return through_detections(logits, deltas, boxes, sizes)


def test_detections_are_the_references_in_both_forms() -> None:
    for form in (through_detections, through_fixed_shapes):
        boxes, scores, labels = found_by(form)[:3]
        for image in range(2):
            theirs, count = outside(recorded()[f"found{image}"]), int((labels[image] > 0).sum())
            assert count == len(theirs)
            torch.testing.assert_close(scores[image, :count], tensor(f"found_scores{image}"), rtol=1e-5, atol=0)
            assert torch.equal(labels[image, :count], tensor(f"found_labels{image}"))
            torch.testing.assert_close(boxes[image, :count], theirs, rtol=0, atol=1e-4)


def test_masks_are_pasted_as_the_reference_pastes_them() -> None:
    """Its boxes go in as they are: the pixel is counted when the region is cut to whole pixels."""
    (height, width), side, count = inputs().PHOTOS[0], inputs().MASK_SIDE, inputs().PASTED
    probs = torch.from_numpy(inputs().normal("chances", count, 1, side, side)).sigmoid()[:, 0]
    boxes = torch.from_numpy(inputs().boxes_in("pasted", count, height, width))
    theirs = np.unpackbits(recorded()["pasted"])[: count * height * width].reshape(count, height, width)
    runs = official.encode(np.asfortranarray(theirs.transpose(1, 2, 0)))
    assert list(paste_to_rle(probs, boxes, height, width)) == [entry["counts"] for entry in runs]
