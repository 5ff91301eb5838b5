"""What Mask R-CNN is measured against: torchvision's own model, and detectron2's where its Python code can be imported.

Letters: B images   K classes   P proposals of an image
torchvision's is built as `maskrcnn_resnet50_fpn` is with weights: frozen BatchNorm, stem and first stage frozen. Its own
resizing is switched off, because the photos have their size already; normalizing and batching are part of its step.
detectron2's is built from its configuration with the same rules where it has a switch; its RoIAlign (shifted by half a
pixel, as many samples as a cell needs) and its weights are its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarks.maskrcnn_operations import compressed, operations
from benchmarks.plain_loop import plain_loop
from paceline._utils.errors import PacelineError
from paceline.config.maskrcnn import MaskRCNNModel
from paceline.config.system import Precision
from paceline.distributed.device.setup import autocast_for
from paceline.tools.bench.harness import OURS, Case, Menu, Operation, ReadyCase, Step
from paceline.tools.bench.profile import ProfiledPart, resolve_part
from paceline.tools.bench.step_maskrcnn import MaskRCNNBench, MaskRCNNInputs, scale_logits, scale_residuals

__all__ = ["contenders", "operations", "prediction"]


def contenders(bench: MaskRCNNBench, precision: Precision, scene: MaskRCNNInputs, device: torch.device) -> Menu:
    """torchvision's in both memory layouts, with our weights; detectron2's."""

    def theirs(memory: torch.memory_format) -> ReadyCase:
        return torchvision_step(torchvision_peer(bench, device, memory), scene, bench, precision)

    def facebooks() -> ReadyCase:
        model = detectron2_model(bench.net, bench.classes)
        scale_residuals(model, ("conv3.norm", "conv2.norm"), bench.net.depth)
        return detectron2_step(model.to(device), scene, bench, precision)

    return {
        "torchvision": Case(partial(theirs, torch.contiguous_format), profiled=True),
        "torchvision channels_last": Case(partial(theirs, torch.channels_last)),
        "detectron2": Case(facebooks),
    }


def prediction(
    bench: MaskRCNNBench, precision: Precision, scene: MaskRCNNInputs, device: torch.device, ours: Callable[[], Any]
) -> Operation:
    """torchvision's model with its pasting, a bitmap of the whole photo for every detection, and pycocotools' compression, as its
    own evaluation has them. Every image must have as many detections.
    """
    model: Any = torchvision_peer(bench, device, torch.contiguous_format).eval()
    scale_logits(bench.model(device).eval(), scene.batch, model)
    autocast = autocast_for(replace(bench.system, precision=precision), device)

    @torch.no_grad()
    def predict() -> list[list[bytes]]:
        with autocast():
            found = model(list(scene.batch.images.float() / 255))
        return [compressed(image["masks"]) for image in found]

    def apart(mine: list[Any], other: list[Any]) -> float:
        return sum(abs(len(a) - len(b)) for a, b in zip(mine, other)) / max(1, sum(map(len, other)))

    return Operation("prediction", {OURS: ours, "torchvision": predict}, {"torchvision": apart}, limit=0.1)


def torchvision_peer(bench: MaskRCNNBench, device: torch.device, memory: torch.memory_format) -> nn.Module:
    """torchvision's model with our weights."""
    model = torchvision_model(bench.net, bench.classes, memory)
    model.load_state_dict(bench.model(torch.device("cpu")).network.state_dict())
    return model.to(device)


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
        rpn_pre_nms_top_n_train=rpn.pre_nms_topk_train,
        rpn_pre_nms_top_n_test=rpn.pre_nms_topk_test,
        rpn_post_nms_top_n_train=rpn.post_nms_topk_train,
        rpn_post_nms_top_n_test=rpn.post_nms_topk_test,
        rpn_nms_thresh=rpn.nms_iou,
        rpn_fg_iou_thresh=rpn.fg_iou,
        rpn_bg_iou_thresh=rpn.bg_iou,
        rpn_batch_size_per_image=rpn.samples_per_image,
        rpn_positive_fraction=rpn.positive_fraction,
        box_score_thresh=detect.score_threshold,
        box_nms_thresh=detect.nms_iou,
        box_detections_per_img=detect.max_detections,
        box_fg_iou_thresh=roi.fg_iou,
        box_bg_iou_thresh=roi.fg_iou,
        box_batch_size_per_image=roi.samples_per_image,
        box_positive_fraction=roi.positive_fraction,
    )
    model.transform.resize = lambda image, target: (image, target)
    return model.to(memory_format=memory)


def loop(model: nn.Module, losses: Callable[[], Any], bench: MaskRCNNBench, precision: Precision) -> Step:
    """Around a model whose `losses` come by name."""
    autocast = autocast_for(replace(bench.system, precision=precision), next(model.parameters()).device)

    def loss() -> Tensor:
        with autocast():
            return cast(Tensor, sum(losses().values()))

    return plain_loop(model, loss, bench.recipe().optim)


def torchvision_step(model: nn.Module, scene: MaskRCNNInputs, bench: MaskRCNNBench, precision: Precision) -> ReadyCase:
    """On a model that is on its device."""
    model.train()
    functions = importlib.import_module("torchvision.models.detection.roi_heads")
    net = cast(Any, model)
    backbone, rpn, heads = net.backbone, net.rpn, net.roi_heads
    targets = [
        {"boxes": boxes, "labels": labels, "masks": masks}
        for boxes, labels, masks in zip(scene.boxes, scene.labels, scene.bitmaps)
    ]
    own_proposals = rpn.filter_proposals

    def given_proposals(*args: Any) -> tuple[list[Tensor], list[Tensor]]:
        _, scores = own_proposals(*args)
        return list(scene.proposals), scores

    rpn.filter_proposals = given_proposals

    positives: list[Tensor] = []
    select = heads.select_training_samples

    def selected(*args: Any) -> Any:
        found = select(*args)
        positives[:] = found[2]
        return found

    heads.select_training_samples = selected

    def extra_facts() -> dict[str, float]:
        return {"positives_an_image": float(sum((labels > 0).sum() for labels in positives)) / len(targets)}

    def losses() -> Any:
        return model(list(scene.batch.images.float() / 255), targets)

    parts = (
        *resolve_part("input", net.transform),
        *resolve_part("backbone", backbone.body),
        *resolve_part("FPN", backbone.fpn),
        *resolve_part("proposal head", rpn.head),
        *resolve_part("proposals", rpn.anchor_generator, rpn.box_coder.decode),
        ProfiledPart(rpn, "filter_proposals", "proposals"),
        *resolve_part("matching and sampling", rpn.assign_targets_to_anchors, rpn.box_coder.encode),
        ProfiledPart(rpn, "fg_bg_sampler", "matching and sampling"),
        ProfiledPart(heads, "select_training_samples", "matching and sampling"),
        *resolve_part("losses", rpn.compute_loss),
        *resolve_part("losses", functions.fastrcnn_loss, functions.maskrcnn_loss, called_in=functions),
        *resolve_part("pooling", heads.box_roi_pool, heads.mask_roi_pool),
        *resolve_part("box head", heads.box_head, heads.box_predictor),
        *resolve_part("mask head", heads.mask_head, heads.mask_predictor),
        *resolve_part("mask targets", functions.project_masks_on_boxes, called_in=functions),
    )
    return ReadyCase(loop(model, losses, bench, precision), parts, extra_facts)


def detectron2_model(settings: MaskRCNNModel, classes: int) -> nn.Module:
    """detectron2's Mask R-CNN by these settings, on the CPU.

    Raises PacelineError where it cannot be imported.
    """
    try:
        config = importlib.import_module("detectron2.config").get_cfg()
        build_model = importlib.import_module("detectron2.modeling").build_model
    except ImportError as problem:
        raise PacelineError(
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
        "MODEL.ANCHOR_GENERATOR.SIZES": [[size] for size in rpn.anchor_sizes],
        "MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS": [list(rpn.aspect_ratios)],
        "MODEL.RPN.IN_FEATURES": [*levels, "p6"],
        "MODEL.RPN.PRE_NMS_TOPK_TRAIN": rpn.pre_nms_topk_train,
        "MODEL.RPN.POST_NMS_TOPK_TRAIN": rpn.post_nms_topk_train,
        "MODEL.RPN.BATCH_SIZE_PER_IMAGE": rpn.samples_per_image,
        "MODEL.ROI_HEADS.NAME": "StandardROIHeads",
        "MODEL.ROI_HEADS.NUM_CLASSES": classes,
        "MODEL.ROI_HEADS.IN_FEATURES": levels,
        "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": roi.samples_per_image,
        "MODEL.ROI_BOX_HEAD.NAME": "FastRCNNConvFCHead",
        "MODEL.ROI_BOX_HEAD.NUM_FC": 2,
        "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": roi.pool_size,
        "MODEL.ROI_MASK_HEAD.NAME": "MaskRCNNConvUpsampleHead",
        "MODEL.ROI_MASK_HEAD.NUM_CONV": settings.mask.num_convs,
        "MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION": settings.mask.pool_size,
    }
    config.merge_from_list([part for pair in values.items() for part in pair])
    return build_model(config)


def detectron2_step(model: nn.Module, scene: MaskRCNNInputs, bench: MaskRCNNBench, precision: Precision) -> ReadyCase:
    """On a model that is on its device."""
    structures = importlib.import_module("detectron2.structures")
    storage = importlib.import_module("detectron2.utils.events").EventStorage
    model.train()
    net = cast(Any, model)
    rpn, heads = net.proposal_generator, net.roi_heads
    size = tuple(scene.batch.images.shape[2:])
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

    positives: list[Any] = []
    select = heads.label_and_sample_proposals

    def selected(*args: Any) -> Any:
        positives[:] = select(*args)
        return list(positives)

    heads.label_and_sample_proposals = selected

    def extra_facts() -> dict[str, float]:
        classes = torch.cat([instances.gt_classes for instances in positives])
        return {"positives_an_image": float(((classes >= 0) & (classes < heads.num_classes)).sum()) / len(inputs)}

    def losses() -> Any:
        with storage(0):
            return model(inputs)

    return ReadyCase(loop(model, losses, bench, precision), (), extra_facts)
