"""What Mask R-CNN is measured against: torchvision's own model, and detectron2's where its Python code can be imported.

Letters: B images   K classes   P proposals of an image
torchvision's is built as `maskrcnn_resnet50_fpn` is with weights: frozen BatchNorm, stem and first stage frozen. Its own
resizing is switched off, because the photos have their size already; normalising and batching are part of its step.
detectron2's is built from its configuration with the same rules where it has a switch; its RoIAlign (shifted by half a
pixel, as many samples as a cell needs) and its weights are its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor, nn

from paceline.bench.step_maskrcnn_profile import Contender
from paceline.bench.step_maskrcnn_scene import Scene
from paceline.config.instances import MaskRCNNModel

Autocast = Callable[[], AbstractContextManager]


class Absent(Exception):
    """This peer cannot take part, and why."""


def torchvision_model(settings: MaskRCNNModel, classes: int, memory: torch.memory_format) -> nn.Module:
    """torchvision's Mask R-CNN by these settings, on the CPU; classes: K."""
    detection = importlib.import_module("torchvision.models.detection")
    utils = importlib.import_module("torchvision.models.detection.backbone_utils")
    frozen = importlib.import_module("torchvision.ops.misc").FrozenBatchNorm2d
    resnet = importlib.import_module("torchvision").models.get_model(
        f"resnet{settings.depth}", weights=None, norm_layer=frozen
    )
    rpn, roi, detect = settings.rpn, settings.roi, settings.detect
    model = detection.MaskRCNN(
        utils._resnet_fpn_extractor(resnet, 3),
        classes + 1,
        rpn_pre_nms_top_n_train=rpn.pre_train,
        rpn_pre_nms_top_n_test=rpn.pre_test,
        rpn_post_nms_top_n_train=rpn.post_train,
        rpn_post_nms_top_n_test=rpn.post_test,
        rpn_nms_thresh=rpn.iou,
        rpn_fg_iou_thresh=rpn.positive_iou,
        rpn_bg_iou_thresh=rpn.negative_iou,
        rpn_batch_size_per_image=rpn.samples,
        rpn_positive_fraction=rpn.positive_share,
        box_score_thresh=detect.score_above,
        box_nms_thresh=detect.iou,
        box_detections_per_img=detect.keep,
        box_fg_iou_thresh=roi.iou,
        box_bg_iou_thresh=roi.iou,
        box_batch_size_per_image=roi.samples,
        box_positive_fraction=roi.positive_share,
    )
    model.transform.resize = lambda image, target: (image, target)
    return model.to(memory_format=memory)


def torchvision_contender(model: nn.Module, scene: Scene, *, lr: float, decay: float, autocast: Autocast) -> Contender:
    """A careful user's loop around it, on a model that is on its device."""
    model.train()
    functions = importlib.import_module("torchvision.models.detection.roi_heads")
    net = cast(Any, model)
    backbone, rpn, heads = net.backbone, net.rpn, net.roi_heads
    optimiser = torch.optim.SGD(
        [weight for weight in model.parameters() if weight.requires_grad],
        lr=lr, momentum=0.9, weight_decay=decay, fused=True,
    )  # fmt: skip
    targets = [
        {"boxes": boxes, "labels": labels, "masks": masks}
        for boxes, labels, masks in zip(scene.boxes, scene.labels, scene.bitmaps)
    ]
    own_proposals = rpn.filter_proposals

    def given_proposals(*args: Any) -> tuple[list[Tensor], list[Tensor]]:
        _, scores = own_proposals(*args)
        return list(scene.proposals), scores

    rpn.filter_proposals = given_proposals

    def step() -> Tensor:
        images = list(scene.batch.images.float() / 255)
        with autocast():
            losses = model(images, targets)
        loss = cast(Tensor, sum(losses.values()))
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    parts = (
        (net.transform, "forward", "input"),
        (backbone.body, "forward", "trunk"),
        (backbone.fpn, "forward", "pyramid"),
        (rpn.head, "forward", "proposal head"),
        (rpn.anchor_generator, "forward", "proposals"),
        (rpn.box_coder, "decode", "proposals"),
        (rpn, "filter_proposals", "proposals"),
        (rpn, "assign_targets_to_anchors", "matching and sampling"),
        (rpn.box_coder, "encode", "matching and sampling"),
        (rpn, "fg_bg_sampler", "matching and sampling"),
        (rpn, "compute_loss", "losses"),
        (heads, "select_training_samples", "matching and sampling"),
        (heads.box_roi_pool, "forward", "pooling"),
        (heads.mask_roi_pool, "forward", "pooling"),
        (heads.box_head, "forward", "box head"),
        (heads.box_predictor, "forward", "box head"),
        (heads.mask_head, "forward", "mask head"),
        (heads.mask_predictor, "forward", "mask head"),
        (functions, "project_masks_on_boxes", "mask targets"),
        (functions, "fastrcnn_loss", "losses"),
        (functions, "maskrcnn_loss", "losses"),
    )
    return Contender(step, parts, (heads, "select_training_samples", _torchvision_positives), optimiser)


def _torchvision_positives(sampled: Any) -> Tensor:
    return torch.stack([(labels > 0).sum() for labels in sampled[2]]).sum()


def detectron2_model(settings: MaskRCNNModel, classes: int) -> nn.Module:
    """detectron2's Mask R-CNN by these settings, on the CPU.

    Raises Absent where it cannot be imported.
    """
    try:
        config = importlib.import_module("detectron2.config").get_cfg()
        build_model = importlib.import_module("detectron2.modeling").build_model
    except ImportError as problem:
        raise Absent(
            f"{problem}. Package registries do not have it; its source folder on PYTHONPATH, with fvcore, iopath, omegaconf "
            "and hydra-core, is enough: training needs none of its compiled parts"
        ) from problem
    rpn, roi, levels = settings.rpn, settings.roi, ["p2", "p3", "p4", "p5"]
    stages = ["res2", "res3", "res4", "res5"]
    values = {
        "MODEL.DEVICE": "cpu",
        "MODEL.WEIGHTS": "",
        "MODEL.META_ARCHITECTURE": "GeneralizedRCNN",
        "MODEL.MASK_ON": True,
        "MODEL.BACKBONE.NAME": "build_resnet_fpn_backbone",
        "MODEL.RESNETS.DEPTH": settings.depth,
        "MODEL.RESNETS.RES2_OUT_CHANNELS": 64 if settings.depth < 50 else 256,
        "MODEL.RESNETS.OUT_FEATURES": stages,
        "MODEL.RESNETS.STRIDE_IN_1X1": False,
        "MODEL.FPN.IN_FEATURES": stages,
        "MODEL.ANCHOR_GENERATOR.SIZES": [[size] for size in rpn.sizes],
        "MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS": [list(rpn.ratios)],
        "MODEL.RPN.IN_FEATURES": [*levels, "p6"],
        "MODEL.RPN.PRE_NMS_TOPK_TRAIN": rpn.pre_train,
        "MODEL.RPN.POST_NMS_TOPK_TRAIN": rpn.post_train,
        "MODEL.RPN.BATCH_SIZE_PER_IMAGE": rpn.samples,
        "MODEL.ROI_HEADS.NAME": "StandardROIHeads",
        "MODEL.ROI_HEADS.NUM_CLASSES": classes,
        "MODEL.ROI_HEADS.IN_FEATURES": levels,
        "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": roi.samples,
        "MODEL.ROI_BOX_HEAD.NAME": "FastRCNNConvFCHead",
        "MODEL.ROI_BOX_HEAD.NUM_FC": 2,
        "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": roi.side,
        "MODEL.ROI_MASK_HEAD.NAME": "MaskRCNNConvUpsampleHead",
        "MODEL.ROI_MASK_HEAD.NUM_CONV": settings.mask.convs,
        "MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION": settings.mask.side,
    }
    config.merge_from_list([part for pair in values.items() for part in pair])
    return build_model(config)


def detectron2_contender(model: nn.Module, scene: Scene, *, lr: float, decay: float, autocast: Autocast) -> Contender:
    """detectron2's plain training loop, on a model that is on its device."""
    structures = importlib.import_module("detectron2.structures")
    storage = importlib.import_module("detectron2.utils.events").EventStorage
    model.train()
    net = cast(Any, model)
    rpn, heads = net.proposal_generator, net.roi_heads
    size = tuple(scene.batch.images.shape[2:])
    optimiser = torch.optim.SGD(
        [weight for weight in model.parameters() if weight.requires_grad],
        lr=lr, momentum=0.9, weight_decay=decay, fused=True,
    )  # fmt: skip
    inputs = []
    for place, image in enumerate(scene.batch.images):
        truth = structures.Instances(size)
        truth.gt_boxes = structures.Boxes(scene.boxes[place])
        truth.gt_classes = scene.labels[place] - 1
        truth.gt_masks = structures.BitMasks(scene.bitmaps[place].bool())
        inputs.append({"image": image, "instances": truth})
    own_proposals = rpn.predict_proposals

    def given_proposals(*args: Any) -> list[Any]:
        own_proposals(*args)
        found = []
        for boxes in scene.proposals:
            found.append(structures.Instances(size))
            found[-1].proposal_boxes = structures.Boxes(boxes)
            found[-1].objectness_logits = boxes.new_zeros(len(boxes))
        return found

    rpn.predict_proposals = given_proposals

    def step() -> Tensor:
        with storage(0), autocast():
            losses = model(inputs)
        loss = cast(Tensor, sum(losses.values()))
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    def positives(sampled: Any) -> Tensor:
        classes = torch.cat([instances.gt_classes for instances in sampled])
        return ((classes >= 0) & (classes < heads.num_classes)).sum()

    return Contender(step, (), (heads, "label_and_sample_proposals", positives), optimiser)
