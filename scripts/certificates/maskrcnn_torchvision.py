"""torchvision's Mask R-CNN with torch.optim.SGD and torch's schedulers: the original of maskrcnn.py --beside torchvision.

Model, transform, losses, matching, proposals, pooling and masks are torchvision's own. Its sampler of anchors takes the places that
ours drew, after a look that they are places which it could have drawn; regions are all taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from maskrcnn_ours import DECAY, LOSSES, PEAK, WARMUP, WARMUP_FROM
from maskrcnn_start import CLASSES, bitmaps, nudged, read_batches, read_drop
from torch import Tensor
from torch.optim.lr_scheduler import ChainedScheduler, LinearLR, MultiStepLR
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.ops import FrozenBatchNorm2d

from paceline.data.batch import InstanceBatch

NAMES = ("loss_objectness", "loss_rpn_box_reg", "loss_classifier", "loss_box_reg", "loss_mask")


class SameAnchors:
    """In place of BalancedPositiveNegativeSampler: the places that were drawn already; `now` is set before each step."""

    def __init__(self, count: int, share: float) -> None:
        self.count, self.share = count, share
        self.now: Mapping[str, Tensor] = {}

    def __call__(self, labels: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """labels: (A,) of each image, 1 positive, 0 negative, else neither -> masks of the sampled ones of either kind."""
        chosen: tuple[list[Tensor], list[Tensor]] = ([], [])
        for row, places, positive in zip(labels, self.now["places"], self.now["positive"]):
            positives, negatives = places[positive & (places >= 0)], places[~positive & (places >= 0)]
            most = min(int((row >= 1).sum()), int(self.count * self.share))
            assert len(positives) == most and bool((row[positives] >= 1).all())
            assert len(negatives) == min(int((row == 0).sum()), self.count - most) and bool((row[negatives] == 0).all())
            for masks, drawn in zip(chosen, (positives, negatives)):
                masks.append(torch.zeros(len(row), dtype=torch.bool).index_fill(0, drawn, True))
        return chosen


def build() -> MaskRCNN:
    """maskrcnn_resnet50_fpn as torchvision makes it with a trained trunk, for K classes, 128 proposals and inputs of their size."""
    trunk = resnet_fpn_backbone(backbone_name="resnet50", weights=None, trainable_layers=3, norm_layer=FrozenBatchNorm2d)
    return MaskRCNN(trunk, CLASSES + 1, rpn_post_nms_top_n_train=128, _skip_resize=True)


def targets_of(batch: InstanceBatch) -> list[dict[str, Tensor]]:
    """What torchvision takes: boxes, labels and bitmaps of each photo."""
    counts = (batch.labels > 0).sum(dim=1).tolist()
    return [
        {"boxes": batch.boxes[k, :count], "labels": batch.labels[k, :count], "masks": bitmaps(batch, k)}
        for k, count in enumerate(counts)
    ]


def train(dump: Path, steps: int, seed: int = 0) -> list[dict[str, float]]:
    """Losses of the original's steps from DUMP's weights on DUMP's batches; seed: see `nudged`."""
    torch.set_num_threads(1)
    model = build()
    model.load_state_dict(nudged(torch.load(dump / "first.pth"), seed), strict=True)
    sampler = SameAnchors(256, 0.5)
    model.rpn.fg_bg_sampler = sampler  # type: ignore[assignment]
    model.train()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=PEAK, momentum=0.9, weight_decay=DECAY)
    schedule = ChainedScheduler(
        [LinearLR(optimizer, WARMUP_FROM, total_iters=WARMUP), MultiStepLR(optimizer, [read_drop(dump)])]
    )
    losses = []
    for step, (batch, drawn) in enumerate(read_batches(dump, steps)):
        sampler.now = drawn
        photos = [batch.images[k, :, :h, :w].float() / 255 for k, (h, w) in enumerate(batch.sizes.tolist())]
        found = model(photos, targets_of(batch))
        optimizer.zero_grad()
        torch.stack(list(found.values())).sum().backward()
        optimizer.step()
        schedule.step()
        losses.append({ours: found[name].item() for ours, name in zip(LOSSES, NAMES)})
        print(f"torchvision {seed} {step} {losses[-1]}", flush=True)
    return losses
