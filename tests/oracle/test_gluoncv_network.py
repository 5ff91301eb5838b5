"""GluonCV's Mask R-CNN on recorded feature maps beside ours with its recipe: proposals, losses, gradients, detections, masks.

Ours gets the same weights and, where GluonCV draws at random, the sample that it drew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from gluoncv_recorded import Recorded, reader
from torch import Tensor, nn
from torch.nn import functional

from paceline.config.maskrcnn import MaskRCNNModel
from paceline.config.recipes.maskrcnn import gluoncv
from paceline.data.batch import InstanceBatch
from paceline.models.maskrcnn.loss import Regions
from paceline.models.maskrcnn.model import MaskRCNN
from paceline.models.maskrcnn.module import MaskRCNNWithLoss
from paceline.models.ops.matching import is_inside_image, match_anchors
from paceline.models.ops.sampling import SampledBoxes

CLASSES, HEIGHT, WIDTH = 3, 256, 320
PROPOSALS, SAMPLES, ANCHORS = 40, 32, 48
NAMES = {
    "box_dense0": "roi_heads.box_head.fc6",
    "box_dense1": "roi_heads.box_head.fc7",
    "net_dense0": "roi_heads.box_predictor.cls_score",
    "net_dense1": "roi_heads.box_predictor.bbox_pred",
    "net_rpn0_rpnhead0_conv0": "rpn.head.conv.0.0",
    "net_rpn0_rpnhead0_conv1": "rpn.head.cls_logits",
    "net_rpn0_rpnhead0_conv2": "rpn.head.bbox_pred",
    "net_mask0_conv0": "roi_heads.mask_head.0.0",
    "net_mask0_conv1": "roi_heads.mask_head.1.0",
    "net_mask0_conv2": "roi_heads.mask_predictor.conv5_mask",
    "net_mask0_conv3": "roi_heads.mask_predictor.mask_fcn_logits",
}
# Rows that ours has for the background and GluonCV has not.
BACKGROUND = {"roi_heads.box_predictor.bbox_pred": 4, "roi_heads.mask_predictor.mask_fcn_logits": 1}


@pytest.fixture
def recorded() -> Recorded:
    return reader()


class Maps(nn.Module):
    """Recorded maps in place of trunk and pyramid."""

    strides = (4, 8, 16, 32, 64)

    def __init__(self, levels: list[Tensor]) -> None:
        super().__init__()
        self.levels = nn.ParameterList(levels)

    def forward(self, images: Tensor) -> list[Tensor]:
        return list(self.levels)


def settings() -> MaskRCNNModel:
    """GluonCV's recipe with the recorded net's few channels and places."""
    model = gluoncv().model
    return replace(
        model,
        depth=10,
        width=8,
        fpn_channels=4,
        rpn=replace(
            model.rpn,
            channels=6,
            samples_per_image=ANCHORS,
            pre_nms_topk_train=300,
            post_nms_topk_train=PROPOSALS,
            pre_nms_topk_test=200,
            post_nms_topk_test=PROPOSALS,
        ),
        roi=replace(model.roi, fc_channels=12, samples_per_image=SAMPLES),
        mask=replace(model.mask, num_convs=2, conv_channels=4),
        detect=replace(model.detect, max_detections=PROPOSALS),
    )


def ours(theirs: Mapping[str, np.ndarray]) -> MaskRCNNWithLoss:
    network = MaskRCNN(settings(), CLASSES)
    network.backbone = Maps([torch.from_numpy(theirs[f"weight_maps_level{level}"]) for level in range(2, 7)])
    for name, module in NAMES.items():
        target = network.get_submodule(module)
        for part in ("weight", "bias"):
            values = torch.from_numpy(theirs[f"weight_{name}_{part}"])
            missing = BACKGROUND.get(module, 0)
            getattr(target, part).data = torch.cat((values.new_zeros(missing, *values.shape[1:]), values))
    return MaskRCNNWithLoss(network, mean=(0.0,) * 3, std=(1.0,) * 3, settings=settings())


def batch_of(theirs: Mapping[str, np.ndarray]) -> InstanceBatch:
    """The recorded objects; a canvas is the photo's whole mask."""
    boxes, classes = torch.from_numpy(theirs["boxes"]), torch.from_numpy(theirs["classes"])
    images, objects = classes.shape
    masks = np.unpackbits(theirs["masks"]).reshape(images, objects, HEIGHT, WIDTH)
    canvases = functional.pad(torch.from_numpy(masks).float(), (1, 1, 1, 1), mode="replicate").to(torch.uint8)
    return InstanceBatch(
        images=torch.zeros(images, 3, HEIGHT, WIDTH, dtype=torch.uint8),
        labels=classes + 1,
        indices=torch.arange(images),
        boxes=boxes.clamp(min=0),
        sizes=torch.tensor([[HEIGHT, WIDTH]] * images),
        keys=torch.arange(images),
        canvases=canvases,
        frames=torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(images, objects, 4),
    )


def drawn_anchors(theirs: Mapping[str, np.ndarray], batch: InstanceBatch, anchors: Tensor) -> tuple[SampledBoxes, Tensor]:
    """The anchors that GluonCV drew, and each anchor's object, found by our rules."""
    rpn = settings().rpn
    slots, kind = match_anchors(
        batch.boxes,
        batch.labels,
        anchors,
        fg_iou=rpn.fg_iou,
        bg_iou=rpn.bg_iou,
        allow_low_quality_matches=rpn.allow_low_quality_matches,
        eligible=is_inside_image(anchors, batch.sizes),
    )
    kinds = torch.from_numpy(theirs["anchor_kinds"])
    assert ((kinds == kind) | (kinds < 0)).all()  # it drew from what ours would draw from
    places, positive = [], []
    for image in kinds:
        drawn = torch.cat(((image == 1).nonzero(), (image == 0).nonzero())).squeeze(1)
        places.append(drawn)
        positive.append(image[drawn] == 1)
    chosen = torch.stack(places)
    return SampledBoxes(chosen, torch.stack(positive), torch.ones_like(chosen, dtype=torch.bool)), slots


def test_proposals(recorded: Recorded) -> None:
    theirs = recorded("training")
    seen = ours(theirs).train().propose(batch_of(theirs))
    assert seen.valid.all()
    assert np.allclose(seen.regions, theirs["proposals"], rtol=0, atol=1e-3)


def test_losses_and_gradients(recorded: Recorded) -> None:
    theirs = recorded("training")
    model, batch = ours(theirs).train(), batch_of(theirs)
    seen = model.propose(batch)
    anchors, slots = drawn_anchors(theirs, batch, torch.cat(seen.anchors))
    samples = torch.from_numpy(theirs["samples"]).flatten()
    assert (samples != 0).all()
    rows = Regions(
        image=torch.arange(2).repeat_interleave(SAMPLES),
        boxes=torch.from_numpy(theirs["rois"]).flatten(0, 1),
        slots=torch.from_numpy(theirs["matches"]).flatten(),
        positive=samples > 0,
        trains_shape=samples > 0,
        weight=torch.ones(2 * SAMPLES),
    )
    sums = torch.stack(
        (
            *model._anchor_losses(batch, seen, anchors, slots, []),
            *model._box_losses(batch, seen, rows, []),
            model._mask_losses(batch, seen, rows, []),
        ),
        dim=1,
    )
    losses = sums.sum(dim=0) / model._counts(2, anchors, rows).sum(dim=0)
    assert np.allclose(losses.detach(), theirs["losses"], rtol=2e-6)
    losses.sum().backward()
    for name, module in NAMES.items():
        for part in ("weight", "bias"):
            gradient = getattr(model.network.get_submodule(module), part).grad
            assert close(gradient[BACKGROUND.get(module, 0) :], theirs[f"gradient_{name}_{part}"]), (name, part)
    for level, made in enumerate(model.network.backbone.levels, start=2):
        assert close(made.grad, theirs[f"gradient_maps_level{level}"]), level


def close(gradient: Tensor | None, theirs: np.ndarray) -> bool:
    made = np.zeros_like(theirs) if gradient is None else gradient.numpy()
    assert np.allclose(made, theirs, rtol=0, atol=2e-5 * max(np.abs(theirs).max(), 1e-3))
    return True


def test_detections_and_their_masks(recorded: Recorded) -> None:
    theirs = recorded("detections")
    model = ours(theirs).eval()
    photo = InstanceBatch(
        images=torch.zeros(1, 3, HEIGHT, WIDTH, dtype=torch.uint8),
        labels=torch.zeros(1, 0, dtype=torch.int64),
        indices=torch.zeros(1, dtype=torch.int64),
        boxes=torch.zeros(1, 0, 4),
        sizes=torch.tensor([[HEIGHT, WIDTH]]),
        keys=torch.zeros(1, dtype=torch.int64),
        canvases=torch.zeros(1, 0, 2, 2, dtype=torch.uint8),
        frames=torch.zeros(1, 0, 4),
    )
    found = model.predict(photo)
    table = found.detections[0]
    taken = table[:, 5] > 0
    assert int(taken.sum()) == len(theirs["classes"])
    assert np.array_equal(table[taken, 5], theirs["classes"] + 1)
    assert np.allclose(table[taken, 4], theirs["scores"], rtol=0, atol=2e-5)
    assert np.abs(theirs["boxes"] - theirs["clipped"]).max() > 1  # boxes that reach beyond the photo are among them
    pixels = table[taken, :4] * torch.tensor([WIDTH, HEIGHT] * 2)
    assert np.allclose(pixels, theirs["clipped"], rtol=0, atol=2e-3)
    assert np.allclose(found.masks[0][taken], theirs["masks"].astype(np.float32), rtol=0, atol=1e-3)
