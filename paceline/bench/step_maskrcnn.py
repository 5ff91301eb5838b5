"""`paceline bench step --task maskrcnn`: normalisation, forward, sampling, losses, backward and the update.

Letters: B images of a step   H, W pixels of the input   K classes
Every contender gets the same pixels, objects, masks and proposals (step_maskrcnn_scene.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from paceline.bench.profile import Part, part
from paceline.bench.step import StepBench, placed, predicting
from paceline.bench.step_maskrcnn_scene import Scene, synthetic_scene
from paceline.boxes.matching import match_anchors, match_regions
from paceline.boxes.paste import paste_to_rle
from paceline.boxes.regions import proposals
from paceline.boxes.roi_pooling import levels_of, mask_targets, pool_regions
from paceline.boxes.sampling import random_bits, sample
from paceline.config.instances import InstanceInput, MaskRCNNModel
from paceline.config.recipe import Optim, Recipe
from paceline.config.system import Precision
from paceline.models import segmenter
from paceline.models.mask_rcnn import MaskRCNN, initialise_mask_rcnn
from paceline.models.mask_rcnn_loss import (
    anchor_box_loss,
    class_loss,
    mask_loss,
    objectness_loss,
    per_image,
    region_box_loss,
)
from paceline.models.segmenter import Segmenter

# Steps without a step's effect on the next: weights that are not trained must not run away while they are timed.
LR = 1e-5
# Frozen statistics of 0 and 1 let a residual net that is not trained grow at every block; so each block adds this share.
LAST_NORM = 0.2
LOGIT_STD = 4.0  # the spread of class logits that an untrained head is scaled to, so that every image has detections


@dataclass(frozen=True, kw_only=True)
class MaskRCNNBench(StepBench):
    """What to measure."""

    task = "maskrcnn"
    height: int  # H
    width: int  # W
    classes: int  # K
    objects: int  # of each image
    positives: tuple[int, ...]  # positive regions of each image; a run for each
    net: MaskRCNNModel = field(default_factory=MaskRCNNModel)

    def about(self) -> dict[str, Any]:
        """Facts of the report."""
        return {
            **{name: getattr(self, name) for name in ("height", "width", "classes", "objects")},
            "depth": self.net.depth,
        }

    def recipe(self) -> Recipe[MaskRCNNModel, InstanceInput]:
        """Settings of a run of this batch."""
        return Recipe(
            task=self.task,
            model=self.net,
            input=InstanceInput(),
            target_data="coco",
            global_batch=self.batch,
            images_seen=100 * self.batch,
            bn_span=self.batch,
            optim=Optim(lr=LR, momentum=0.9, weight_decay=1e-4),
        )

    def model(self, device: torch.device) -> Segmenter:
        """The segmenter with the same weights on every call."""
        photo = InstanceInput()
        network = MaskRCNN(self.net, self.classes)
        initialise_mask_rcnn(network, torch.Generator().manual_seed(0))
        scale_residuals(network.backbone.body, ("bn3", "bn2"), self.net.depth)
        return placed(Segmenter(network, mean=photo.mean, std=photo.std, settings=self.net), self.system, device)

    def scenes(self, device: torch.device) -> Iterator[tuple[str, Scene]]:
        """One for each count of positives."""
        for count in self.positives:
            yield f"{count} positive regions an image", self.scene(count).to(device)

    def scene(self, positives: int) -> Scene:
        """The batch, on the CPU."""
        return synthetic_scene(
            self.batch,
            self.height,
            self.width,
            classes=self.classes,
            objects=self.objects,
            positives=positives,
            proposals=self.net.rpn.post_train,
            canvas=self.net.mask.canvas,
        )

    def parts(self, model: Segmenter) -> Sequence[Part]:
        """As torchvision's network has them too (benchmarks/maskrcnn.py)."""
        backbone, rpn, heads = model.network.backbone, model.network.rpn, model.network.roi_heads
        return (
            *part("input", model.normalise),
            *part("trunk", backbone.body),
            *part("pyramid", backbone.fpn),
            *part("proposal head", rpn.head, rpn.head.at),  # pyright: ignore[reportAttributeAccessIssue]
            *part("box head", heads.boxes),
            *part("mask head", heads.masks),
            *part("proposals", proposals, called_in=segmenter),
            *part("matching and sampling", match_anchors, match_regions, sample, random_bits, called_in=segmenter),
            *part("pooling", levels_of, pool_regions, called_in=segmenter),
            *part("mask targets", mask_targets, called_in=segmenter),
            *part("losses", objectness_loss, anchor_box_loss, class_loss, region_box_loss, called_in=segmenter),
            *part("losses", mask_loss, per_image, called_in=segmenter),
        )

    def trained(self, scene: Scene, device: torch.device) -> Segmenter:
        """It goes on with the scene's proposals."""
        model = self.model(device).train()
        give_proposals(model, scene.proposals)
        return model

    def told(self, model: Segmenter, batch: Any) -> dict[str, float]:
        """How many regions of an image are positive."""
        return {"positives_an_image": float(model.count(batch)[:, model.terms.index("mask")].sum()) / len(batch)}

    def predictor(self, precision: Precision, scene: Scene, device: torch.device) -> Callable[[], list[list[Any]]]:
        """From photos to boxes and compressed masks, pasted on the device straight to run lengths: of each image a list of them."""
        ours = self.model(device).eval()
        scale_logits(ours, scene.batch, ours.network)
        predict = predicting(self, precision, ours, scene.batch, device)
        extent = torch.tensor([self.width, self.height, self.width, self.height], device=device)

        def compressed() -> list[list[Any]]:
            found, pasted = predict(), []
            for rows, masks in zip(found.detections, found.masks):
                rows, masks = rows[rows[:, 5] > 0], masks[rows[:, 5] > 0]
                pasted.append(list(paste_to_rle(masks, rows[:, :4] * extent, self.height, self.width)))
            return pasted

        return compressed


def scale_residuals(trunk: nn.Module, names: tuple[str, str], depth: int) -> None:
    """Let each residual block add LAST_NORM of what it would; names: its last norm's with three convolutions, with two."""
    name = names[0] if depth >= 50 else names[1]
    for path, module in trunk.named_modules():
        if path.endswith(name):
            cast(Tensor, module.weight).detach().fill_(LAST_NORM)


def give_proposals(model: Segmenter, regions: Tensor) -> None:
    """From now on the model goes on with these regions (B, P, 4) when it has made its own."""
    propose = model.propose

    def given(batch: Any) -> Any:
        return propose(batch)._replace(regions=regions, valid=torch.ones_like(regions[..., 0], dtype=torch.bool))

    model.propose = given


@torch.no_grad()
def scale_logits(ours: Segmenter, batch: Any, *networks: Any) -> None:
    """Scale the class weights of networks with our weights so that scores of this batch lie far apart."""
    seen: list[Tensor] = []
    hook = ours.network.roi_heads.box_predictor.cls_score.register_forward_hook(lambda *call: seen.append(call[2]))
    ours.predict(batch)
    hook.remove()
    for network in networks:
        network.roi_heads.box_predictor.cls_score.weight.mul_(LOGIT_STD / float(seen[0].float().std()))
