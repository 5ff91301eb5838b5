"""The module that training wraps for Mask R-CNN: photos and objects in, losses out; photos in, boxes and masks out. With
`masks` off it is Faster R-CNN: four loss terms, boxes alone.

Letters: B images   G object slots   A anchors   P proposals   R regions   D places for detections   K classes
On an accelerator every shape follows from the batch's own shape: sampled anchors and regions fill fixed slots, and empty slots have
weight 0. On a CPU the heads run on the regions that were taken: the mask head on the positives alone, at least one, so that every
parameter has a gradient on every rank.
Sampling draws from each image's own key by a counter-based hash, so it is a function of (seed, epoch, index) and of the network, not
of the batch that the image is in.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.config.maskrcnn import MaskRCNNModel
from paceline.data.batch import Batch, DetectedInstances, InstanceBatch
from paceline.models.layers.batch_norm import discard_pending, restore_running_statistics, snapshot_running_statistics
from paceline.models.layers.common import Normalize
from paceline.models.maskrcnn.loss import (
    ACCURACIES,
    TERMS,
    Regions,
    anchor_accuracies,
    anchor_box_loss,
    class_loss,
    gather_objects,
    keep_rows,
    mask_accuracies,
    mask_loss,
    objectness_loss,
    per_image,
    region_accuracies,
    region_box_loss,
    rows_of_images,
)
from paceline.models.maskrcnn.model import MaskRCNN
from paceline.models.maskrcnn.proposals import detect_regions, make_proposals
from paceline.models.ops.anchors import BEYOND_LAST, make_pyramid_anchors
from paceline.models.ops.boxes import BoxCoder, clip_to_photo
from paceline.models.ops.dispatch import uses_static_shapes
from paceline.models.ops.matching import is_inside_image, match_anchors, match_regions
from paceline.models.ops.roi_align import assign_levels, mask_targets, pool_regions, prepare_feature_maps
from paceline.models.ops.sampling import SampledBoxes, random_bits, sample_candidates

# Streams of an image's random bits.
ANCHOR_STREAM, REGION_STREAM = 1, 2


class Proposals(NamedTuple):
    """The first stage's results for a batch."""

    levels: list[Tensor]  # of the pyramid, finest first
    maps: list[Tensor]  # what regions are pooled from (`prepare_feature_maps`); level 6 is for proposals only
    anchors: list[Tensor]  # (A_l, 4) ltrb, pixels, of each level
    regions: Tensor  # (B, P, 4) ltrb, pixels
    valid: Tensor  # (B, P) bool
    unsettled: Tensor  # (B,) int64, proposals' candidates whose suppression was left open; 0 on a CPU


class MaskRCNNWithLoss(nn.Module):
    """Normalization, network, sampling and losses in one, so that data parallel and the compiler see a whole forward.

    Losses are not divided; they are sums over the loss groups of this forward (`loss_groups`, consecutive equal parts of its
    images), which paceline/training/loss_normalization.py divides.
    """

    def __init__(self, network: MaskRCNN, *, mean: Sequence[float], std: Sequence[float], settings: MaskRCNNModel) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std)
        self.network = network
        self.settings = settings
        self.terms = TERMS if settings.masks else TERMS[:-1]
        self.loss_groups = 1
        self._anchors: dict[tuple, list[Tensor]] = {}

    def forward(self, batch: Batch) -> dict[str, Any]:
        """-> "sums" (groups, T) with a graph and "counts" (groups, T) without; columns are the T `terms`, float32.

        With `settings.log_rcnn_accuracies` "accuracies" too: by name (2,), see paceline/models/maskrcnn/loss.py. On an accelerator
        "unsettled" (), candidates of proposals whose suppression was left open, of all images.
        """
        assert isinstance(batch, InstanceBatch)
        proposed = self.propose(batch)
        anchors, anchor_slots = self._sample_anchors(batch, torch.cat(proposed.anchors))
        rows = self._sample_regions(batch, proposed)
        accuracies: list[Tensor] = []
        of_anchors = self._anchor_losses(batch, proposed, anchors, anchor_slots, accuracies)
        of_boxes = self._box_losses(batch, proposed, rows, accuracies)
        of_masks = (self._mask_losses(batch, proposed, rows, accuracies),) if self.settings.masks else ()
        sums = torch.stack((*of_anchors, *of_boxes, *of_masks), dim=1)
        counts = self._counts(len(batch), anchors, rows)
        result: dict[str, Any] = {"sums": self._grouped(sums), "counts": self._grouped(counts)}
        if accuracies:
            result["accuracies"] = dict(zip(ACCURACIES, accuracies))
        if uses_static_shapes(sums):
            result["unsettled"] = proposed.unsettled.sum()
        return result

    @torch.no_grad()
    def count(self, batch: Batch) -> Tensor:
        """The counts that `forward` would return for this batch; running statistics stay as they were."""
        assert isinstance(batch, InstanceBatch)
        kept = snapshot_running_statistics(self)
        proposed = self.propose(batch)
        anchors, _ = self._sample_anchors(batch, torch.cat(proposed.anchors))
        counts = self._counts(len(batch), anchors, self._sample_regions(batch, proposed))
        discard_pending(self)
        restore_running_statistics(self, kept)
        return self._grouped(counts)

    @torch.no_grad()
    def predict(self, batch: Batch) -> DetectedInstances:
        """Detections, and their masks where it has a head for them; reads `images` and `sizes` of the batch only."""
        assert isinstance(batch, InstanceBatch)
        detect, roi, parity = self.settings.detect, self.settings.roi, self.settings.parity
        proposed = self.propose(batch)
        images, indices = proposed.valid.shape
        image = rows_of_images(images, indices, proposed.regions.device)
        boxes, valid = proposed.regions.flatten(0, 1), proposed.valid.flatten()
        kept = None if uses_static_shapes(boxes) else valid.nonzero().squeeze(1)
        logits, deltas = self.network.roi_heads.boxes(
            self._pool_boxes(proposed.maps, *keep_rows(kept, image, boxes, valid))
        )
        if kept is not None:
            logits, deltas = (
                part.new_zeros(len(valid), part.shape[1]).index_copy(0, kept, part) for part in (logits, deltas)
            )
        result, scores, labels, left_open = detect_regions(
            logits.unflatten(0, (images, indices)),
            deltas.unflatten(0, (images, indices)),
            proposed.regions,
            proposed.valid,
            batch.sizes,
            BoxCoder(roi.box_reg_weights, roi.max_log_scale),
            detect,
            clip_first=parity.clip_boxes == "before",
        )
        masks = self._masks_of(proposed.maps, result, labels) if self.settings.masks else None
        if parity.clip_boxes == "after":  # masks were computed in the whole boxes
            result = clip_to_photo(result, batch.sizes)
        width_height = batch.sizes.flip(1).repeat(1, 2).unsqueeze(1)
        fractions = result / width_height
        table = torch.cat((fractions, scores.unsqueeze(2), labels.unsqueeze(2).to(fractions.dtype)), dim=2)
        if not uses_static_shapes(table):
            return DetectedInstances(table, masks)
        left_open[:, 0] += proposed.unsettled
        return DetectedInstances(table, masks, left_open)

    def _masks_of(self, maps: list[Tensor], result: Tensor, labels: Tensor) -> Tensor:
        """(B, D, S, S) of the boxes found, (B, D, 4), with their classes (B, D)."""
        side = 2 * self.settings.mask.pool_size
        rows = (labels > 0).flatten()
        masks = result.new_zeros(len(rows), side, side)
        kept = None if uses_static_shapes(result) else rows.nonzero().squeeze(1)
        image, boxes = keep_rows(
            kept, rows_of_images(len(labels), labels.shape[1], result.device), result.flatten(0, 1), rows
        )
        if len(boxes):
            own = labels.flatten() if kept is None else labels.flatten()[kept]
            pooled = self._pool(maps, image, boxes, self.settings.mask.pool_size)
            probs = self.network.roi_heads.masks(pooled, own).float().sigmoid()
            masks = probs * rows.view(-1, 1, 1) if kept is None else masks.index_copy(0, kept, probs)
        return masks.unflatten(0, labels.shape)

    def propose(self, batch: InstanceBatch) -> Proposals:
        """Trunk, pyramid, proposals."""
        levels = self.network.backbone(self._input(batch))
        with torch.no_grad():  # no gradient passes through proposals; sampled anchors are computed again, with one
            logits, deltas = self.network.rpn.head(levels)  # pyright: ignore[reportCallIssue]
        anchors = self._anchors_of(batch.images, levels)
        result = make_proposals(
            logits,
            deltas,
            anchors,
            batch.sizes,
            self.settings.rpn,
            self.settings.parity,
            training=self.training,
            groups=self.loss_groups if self.training else 1,  # like the images of a GPU in the original
        )
        # "average" pools four times as many cells: maps in float32 would raise the peak of memory there.
        maps = prepare_feature_maps(levels[:-1]) if self.settings.parity.roi_pooling == "direct" else levels[:-1]
        return Proposals(levels, maps, anchors, *result)

    def _input(self, batch: InstanceBatch) -> Tensor:
        """Normalized photos; the padding is 0, which no pixel value is exactly."""
        images = self.normalize(batch.images)
        height, width = images.shape[2:]
        rows = torch.arange(height, device=images.device) < batch.sizes[:, :1]
        columns = torch.arange(width, device=images.device) < batch.sizes[:, 1:]
        return images * (rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1)

    def _anchors_of(self, images: Tensor, levels: list[Tensor]) -> list[Tensor]:
        """The anchors of this input shape, cached, except in a graph that is traced for any shape."""
        grids, rpn = [(level.shape[2], level.shape[3]) for level in levels], self.settings.rpn
        make = partial(
            make_pyramid_anchors,
            grids,
            *images.shape[2:],
            sizes=rpn.anchor_sizes,
            ratios=rpn.aspect_ratios,
            rounding=self.settings.parity.anchor_rounding,
        )
        if isinstance(images.shape[2], torch.SymInt):
            return make()
        key = (images.device, images.shape[2], images.shape[3])
        if key not in self._anchors:
            self._anchors[key] = [part.to(images.device) for part in make()]
        return self._anchors[key]

    @torch.no_grad()
    def _sample_anchors(self, batch: InstanceBatch, anchors: Tensor) -> tuple[SampledBoxes, Tensor]:
        """-> the sampled anchors, and the object slot of every anchor (B, A)."""
        rpn = self.settings.rpn
        beyond = BEYOND_LAST[self.settings.parity.anchor_rounding]
        inside = None if rpn.keep_border_anchors else is_inside_image(anchors, batch.sizes, beyond)
        slots, kind = match_anchors(
            batch.boxes,
            batch.labels,
            anchors,
            fg_iou=rpn.fg_iou,
            bg_iou=rpn.bg_iou,
            allow_low_quality_matches=rpn.allow_low_quality_matches,
            eligible=None if rpn.allow_low_quality_matches else inside,
        )
        if inside is not None:  # the MLPerf reference drops anchors that cross the edge after matching, GluonCV before
            kind = kind.masked_fill(~inside, -1)
        chosen = sample_candidates(
            kind == 1,
            kind == 0,
            random_bits(batch.keys, len(anchors), ANCHOR_STREAM),
            count=rpn.samples_per_image,
            most_positive=int(rpn.samples_per_image * rpn.positive_fraction),
            fill="negatives",
        )
        return chosen, slots

    @torch.no_grad()
    def _sample_regions(self, batch: InstanceBatch, proposed: Proposals) -> Regions:
        """Proposals and the objects' own boxes, matched and sampled."""
        roi = self.settings.roi
        regions = torch.cat((proposed.regions, batch.boxes), dim=1)
        valid = torch.cat((proposed.valid, batch.labels > 0), dim=1)
        slots, positive = match_regions(batch.boxes, batch.labels, regions, valid, iou=roi.fg_iou)
        chosen = sample_candidates(
            positive,
            valid & ~positive,
            random_bits(batch.keys, regions.shape[1], REGION_STREAM),
            count=roi.samples_per_image,
            most_positive=self._most_positive(),
            fill=self.settings.parity.roi_fill,
        )
        boxes = regions.gather(1, chosen.places.unsqueeze(2).expand(-1, -1, 4)).flatten(0, 1)
        slots = slots.gather(1, chosen.places).flatten()
        positive = chosen.positive & chosen.taken
        # Positives that fill places left by negatives train the class alone, as in GluonCV.
        trains_shape = positive & (torch.arange(roi.samples_per_image, device=boxes.device) < self._most_positive())
        image = rows_of_images(len(batch), roi.samples_per_image, boxes.device)
        parts = (image, boxes, slots, positive.flatten(), trains_shape.flatten(), chosen.taken.flatten())
        if not uses_static_shapes(boxes):
            rows = chosen.taken.flatten().nonzero().squeeze(1)
            parts = tuple(part[rows] for part in parts)
        image, boxes, slots, positive, trains_shape, taken = parts
        return Regions(image.masked_fill(~taken, -1), boxes, slots, positive, trains_shape, taken.float())

    def _anchor_losses(
        self, batch: InstanceBatch, proposed: Proposals, chosen: SampledBoxes, slots: Tensor, accuracies: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """(B,) each; here and below `accuracies` collects the accuracies where they are asked for."""
        positive = chosen.positive & chosen.taken
        logits, deltas = self.network.rpn.head.at(proposed.levels, chosen.places)  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
        objects = batch.boxes.gather(1, slots.gather(1, chosen.places).unsqueeze(2).expand(-1, -1, 4))
        anchors = torch.cat(proposed.anchors)[chosen.places]
        # A place without an object has its own anchor as target: finite, and masked out.
        objects = torch.where(positive.unsqueeze(2), objects, anchors)
        targets = BoxCoder().encode(objects, anchors)
        if self.settings.log_rcnn_accuracies:
            accuracies += anchor_accuracies(logits, deltas, targets, positive, chosen.taken)
        objectness = objectness_loss(logits, positive, chosen.taken)
        return objectness, anchor_box_loss(deltas, targets, positive, self.settings.rpn.smooth_l1_beta)

    def _box_losses(
        self, batch: InstanceBatch, proposed: Proposals, rows: Regions, accuracies: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        roi, images = self.settings.roi, len(batch)
        image = rows.image.clamp(min=0)
        labels = gather_objects(batch.labels, image, rows.slots).masked_fill(~rows.positive, 0)
        objects = torch.where(rows.positive.unsqueeze(1), gather_objects(batch.boxes, image, rows.slots), rows.boxes)
        targets = BoxCoder(roi.box_reg_weights).encode(objects, rows.boxes)
        targets = targets.masked_fill(~rows.positive.unsqueeze(1), 0.0)  # an empty place has no extent to divide by
        logits, deltas = self.network.roi_heads.boxes(self._pool_boxes(proposed.maps, rows.image, rows.boxes))
        if self.settings.log_rcnn_accuracies:
            of_rows = labels, rows.weight > 0, rows.trains_shape
            accuracies += region_accuracies(logits, deltas, targets, *of_rows, images * roi.samples_per_image)
        return (
            per_image(class_loss(logits, labels, rows.weight), image, images),
            per_image(region_box_loss(deltas, targets, labels, rows.trains_shape, roi.smooth_l1_beta), image, images),
        )

    def _mask_losses(self, batch: InstanceBatch, proposed: Proposals, rows: Regions, accuracies: list[Tensor]) -> Tensor:
        settings, images = self.settings.mask, len(batch)
        indices = self._mask_places(rows)
        image, boxes, slots, trains_shape = (
            part[indices] for part in (rows.image, rows.boxes, rows.slots, rows.trains_shape)
        )
        of = image.clamp(min=0)
        canvases = gather_objects(batch.canvases, of, slots)
        frames = gather_objects(batch.frames, of, slots)
        labels = gather_objects(batch.labels, of, slots)
        side, ratio = 2 * settings.pool_size, settings.sampling_ratio
        targets = mask_targets(canvases, frames, boxes, side=side, target=settings.target, sampling_ratio=ratio)
        pooled = self._pool(proposed.maps, image.masked_fill(~trains_shape, -1), boxes, settings.pool_size)
        proposed.maps.clear()  # copies in float32 would take memory while the mask head runs
        logits = self.network.roi_heads.masks(pooled, labels)
        if self.settings.log_rcnn_accuracies:
            accuracies += mask_accuracies(logits, targets, trains_shape)
        return per_image(mask_loss(logits, targets, trains_shape.float()), of, images)

    def _mask_places(self, rows: Regions) -> Tensor:
        """Rows that enter the mask head: those whose mask trains, at least one; or the first places of each image."""
        if uses_static_shapes(rows.boxes):
            first = torch.arange(self._most_positive(), device=rows.boxes.device)
            starts = torch.arange(0, len(rows.boxes), self.settings.roi.samples_per_image, device=rows.boxes.device)
            return (starts.unsqueeze(1) + first).flatten()
        indices = rows.trains_shape.nonzero().squeeze(1)
        # One row of weight 0 keeps the head in the graph of a batch without objects; a batch always has a region.
        return indices if len(indices) else indices.new_zeros(min(1, len(rows.boxes)))

    def _pool_boxes(self, maps: list[Tensor], image: Tensor, boxes: Tensor) -> Tensor:
        roi = self.settings.roi
        if self.settings.parity.roi_pooling == "direct":
            return self._pool(maps, image, boxes, roi.pool_size)
        return F.avg_pool2d(self._pool(maps, image, boxes, 2 * roi.pool_size), 3, 2, padding=1)

    def _pool(self, maps: list[Tensor], image: Tensor, boxes: Tensor, side: int) -> Tensor:
        """(R, C, side, side) from the level that fits each box."""
        settings, backbone = self.settings, self.network.backbone
        law = "gluoncv" if settings.parity.roi_pooling == "average" else "torchvision"
        return pool_regions(
            maps,
            backbone.strides[: len(maps)],
            image,
            boxes,
            assign_levels(boxes, levels=len(maps), law=law, first=settings.min_fpn_level),
            side=side,
            sampling_ratio=settings.roi.sampling_ratio,
            aligned=settings.roi.aligned,
            mode=settings.roi.pool_type,
        )

    def _counts(self, images: int, anchors: SampledBoxes, rows: Regions) -> Tensor:
        """(B, T) float32, each image's share of each term's divisor."""
        image = rows.image.clamp(min=0)
        sampled = anchors.taken.sum(dim=1).float()
        regions = per_image(rows.weight, image, images)
        trains_shape = per_image(rows.trains_shape.float(), image, images)
        return torch.stack((sampled, sampled, regions, regions, trains_shape)[: len(self.terms)], dim=1)

    def _most_positive(self) -> int:
        """Places for positives among an image's sampled regions."""
        return int(self.settings.roi.samples_per_image * self.settings.roi.positive_fraction)

    def _grouped(self, of_images: Tensor) -> Tensor:
        """(B, T) -> (groups, T), sums over each group's images."""
        return of_images.unflatten(0, (self.loss_groups, -1)).sum(dim=1)
