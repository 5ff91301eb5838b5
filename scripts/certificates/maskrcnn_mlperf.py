"""The MLPerf reference's Mask R-CNN with its own optimizer, schedule and step: the original of maskrcnn.py --beside mlperf.

Needs yacs beside torch. Everything is the reference's own code, but for what a CPU of today lacks or what has no common ground:
    compiled kernels  nms and RoIAlign are torchvision's, as in scripts/originals/mlperf_maskrcnn.py
    draws             its sampler of anchors takes the places that ours drew; regions are all taken
    mask targets      ours: the reference rasterizes polygons per region (share of points: docs/reference/known-differences.md)
    RoIAlign          is given boxes by their edges, a pixel further right and down than the last pixel inside
    proposals         narrower than 1.5 pixels are dropped on both sides; the reference keeps those that were cut to the last pixel
                      at the photo's border, ours drops them
`as_published` undoes one of the last two, so that its effect can be measured.
The 3x3 convolution of a bottleneck strides, not the first 1x1, and pixels are normalized as ours: both are its own settings.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from maskrcnn_ours import DECAY, LOSSES, MIN_SIDE, PEAK, WARMUP, WARMUP_FROM
from maskrcnn_start import CLASSES, nudged, photos_of, read_batches, read_drop
from maskrcnn_torchvision import NAMES, SameAnchors
from torch import Tensor
from torch.nn.functional import pad

from paceline.data.batch import InstanceBatch
from paceline.models.ops.roi_align import mask_targets

sys.path.append(str(Path(__file__).parents[1] / "originals"))

# torchvision's names in the reference's.
RENAMED = (
    (r"^backbone\.body\.(conv1|bn1)", r"backbone.body.stem.\1"),
    (r"^backbone\.fpn\.inner_blocks\.(\d)\.0", lambda found: f"backbone.fpn.fpn_inner{int(found[1]) + 1}"),
    (r"^backbone\.fpn\.layer_blocks\.(\d)\.0", lambda found: f"backbone.fpn.fpn_layer{int(found[1]) + 1}"),
    (r"^rpn\.head\.conv\.0\.0", "rpn.head.conv"),
    (r"^roi_heads\.box_head", "roi_heads.box.feature_extractor"),
    (r"^roi_heads\.box_predictor", "roi_heads.box.predictor"),
    (r"^roi_heads\.mask_head\.(\d)\.0", lambda found: f"roi_heads.mask.feature_extractor.mask_fcn{int(found[1]) + 1}"),
    (r"^roi_heads\.mask_predictor", "roi_heads.mask.predictor"),
)


class Masks:
    """Objects' canvases as a field of a BoxList: chosen by numbers or by a mask."""

    def __init__(self, canvases: Tensor, frames: Tensor) -> None:
        self.canvases, self.frames = canvases, frames

    def __getitem__(self, item: Tensor) -> Masks:
        item = item.bool() if item.dtype == torch.uint8 else item
        return Masks(self.canvases[item], self.frames[item])


def project(masks: Masks, proposals: Any, side: int) -> Tensor:
    """In place of project_masks_on_boxes: (n, side, side) of the regions, ours."""
    return mask_targets(masks.canvases, masks.frames, outside(proposals.bbox), side=side, target="binary")


def outside(boxes: Tensor) -> Tensor:
    """(n, 4) by the last pixel inside -> by the edges."""
    return boxes + boxes.new_tensor([0.0, 0.0, 1.0, 1.0])


def load(folder: Path, as_published: str, drop: int) -> SimpleNamespace:
    """The reference's modules with the replacements that the head of this file names."""
    from mlperf_maskrcnn import import_reference

    reference = import_reference(folder)
    kernels = sys.modules["maskrcnn_benchmark._C"]
    align, further = kernels.roi_align_forward, pad(torch.ones(2), (3, 0)) * (as_published != "pooling")
    kernels.__dict__.update(
        roi_align_forward=lambda features, regions, *rest: align(features, regions + further, *rest),
        roi_align_backward=lambda gradient, regions, *rest: torch.ops.torchvision._roi_align_backward(
            gradient, regions + further, *rest, False
        ),
    )
    sys.modules["maskrcnn_benchmark.layers.roi_align"]._C = kernels  # pyright: ignore[reportAttributeAccessIssue]  of an earlier load
    reference.mask_loss.project_masks_on_boxes = project
    sys.modules.setdefault("cv2", ModuleType("cv2"))  # for keypoints and drawings
    from maskrcnn_benchmark.config import cfg  # pyright: ignore[reportMissingImports]
    from maskrcnn_benchmark.modeling.detector import build_detection_model  # pyright: ignore[reportMissingImports]
    from maskrcnn_benchmark.solver import make_lr_scheduler, make_optimizer  # pyright: ignore[reportMissingImports]
    from maskrcnn_benchmark.structures.image_list import ImageList  # pyright: ignore[reportMissingImports]

    cfg.merge_from_file(str(folder / "configs" / "e2e_mask_rcnn_R_50_FPN_1x.yaml"))
    settings = {
        "MODEL.DEVICE": "cpu",
        "MODEL.RESNETS.STRIDE_IN_1X1": False,
        "MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN": 2 * 128,
        "MODEL.RPN.MIN_SIZE": 0 if as_published == "narrow proposals" else MIN_SIDE,
        "SOLVER.BASE_LR": PEAK,
        "SOLVER.WEIGHT_DECAY": DECAY,
        "SOLVER.STEPS": (drop,),
        "SOLVER.WARMUP_ITERS": WARMUP,
        "SOLVER.WARMUP_FACTOR": WARMUP_FROM,
    }
    for name, value in settings.items():
        node = cfg
        *parents, last = name.split(".")
        for parent in parents:
            node = node[parent]
        node[last] = value
    assert cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES == CLASSES + 1
    return SimpleNamespace(
        cfg=cfg, build=build_detection_model, optimizer=make_optimizer, schedule=make_lr_scheduler,
        ImageList=ImageList, BoxList=reference.BoxList,
    )  # fmt: skip


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights under the reference's names."""
    found = {}
    for name, tensor in state.items():
        for pattern, into in RENAMED:
            name = re.sub(pattern, into, name)
        found[name] = tensor
    return found


def targets_of(batch: InstanceBatch, BoxList: Any) -> list[Any]:
    """A BoxList of each photo's objects."""
    found = []
    for image, count in enumerate((batch.labels > 0).sum(dim=1).tolist()):
        height, width = batch.sizes[image].tolist()
        inside = batch.boxes[image, :count] - torch.tensor([0.0, 0.0, 1.0, 1.0])
        target = BoxList(inside, (width, height))
        target.add_field("labels", batch.labels[image, :count])
        target.add_field("masks", Masks(batch.canvases[image, :count], batch.frames[image, :count]))
        found.append(target)
    return found


def train(dump: Path, steps: int, seed: int = 0, *, folder: Path, as_published: str = "") -> list[dict[str, float]]:
    """Losses of the original's steps from DUMP's weights on DUMP's batches, in do_train's order; seed: see `nudged`."""
    torch.set_num_threads(1)
    theirs = load(folder, as_published, read_drop(dump))
    model = theirs.build(theirs.cfg)
    state = renamed(nudged(torch.load(dump / "first.pth"), seed))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all("cell_anchors" in name for name in missing), (missing, unexpected)
    sampler = SameAnchors(256, 0.5)
    model.rpn.loss_evaluator.fg_bg_sampler = sampler
    model.train()
    optimizer = theirs.optimizer(theirs.cfg, model)
    schedule = theirs.schedule(theirs.cfg, optimizer)
    losses = []
    for step, (batch, drawn) in enumerate(read_batches(dump, steps)):
        sampler.now = drawn
        schedule.step()
        sizes = [tuple(size) for size in batch.sizes.tolist()]
        found = model(theirs.ImageList(photos_of(batch), sizes), targets_of(batch, theirs.BoxList))
        sum(found.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append({ours: found[name].item() for ours, name in zip(LOSSES, NAMES)})
        print(f"mlperf {seed} {step} {losses[-1]}", flush=True)
    return losses
