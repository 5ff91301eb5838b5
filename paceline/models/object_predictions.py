"""Detections and masks of an evaluation: in pixels of the photos, joined over ranks, scored, and described for the report.

Letters: N photos of the validation split   n photos of this evaluation   M objects   D detections   K classes, 1..K   B, S as in
batch.py
No bitmap of a photo is kept or sent: a mask is a string of run lengths from its first pixel on.
"""

from __future__ import annotations

import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline._utils.errors import DataError
from paceline.data.batch import APPROXIMATED, Batch, DetectedInstances
from paceline.data.index.box_split import BoxSplit, has_masks, read_object_masks
from paceline.data.rle import RLE
from paceline.models.metrics import coco
from paceline.models.metrics.bootstrap import Draws, resample_boxes, resample_masks
from paceline.models.metrics.coco import Detections, no_detections
from paceline.models.metrics.detection_errors import BestF1, find_best_f1
from paceline.models.metrics.top_k import check_every_image_once
from paceline.models.ops.paste_masks import PasteLaw, paste_to_rle

# Detections of an image in the predictions file: as many as the benchmark counts.
MAX_WRITTEN = 100
# A class's AP by the size of its objects.
SIZES = ("ap_small", "ap_medium", "ap_large")


def to_pixel_detections(rows: np.ndarray, heights: np.ndarray, widths: np.ndarray, plus_one: bool) -> coco.Detections:
    """Fractions of the photo to pixels.

    rows             (D, 7) float64: image number, left, top, right, bottom as fractions, score, class
    heights, widths  (N,) of every photo, by number
    plus_one         widths and heights one pixel larger, as the MXNet system reported them
    """
    numbers = rows[:, 0].astype(np.int64)
    across, down = widths[numbers].astype(np.float64), heights[numbers].astype(np.float64)
    left, top, right, bottom = (rows[:, index] * size for index, size in zip(range(1, 5), (across, down, across, down)))
    more = 1.0 if plus_one else 0.0
    boxes = np.column_stack((left, top, right - left + more, bottom - top + more))
    return coco.Detections(numbers, boxes, rows[:, 6].astype(np.int64), rows[:, 5])


def box_predictions_json(
    truth: coco.GroundTruth,
    detections: coco.Detections,
    scores: coco.BoxScores,
    best: BestF1 | None,
    files: Sequence[str],
    numbers: np.ndarray,
    classes: Sequence[str],
    category_ids: Sequence[int],
) -> dict[str, Any]:
    """JSON content of RUN/predictions/step-N.json (kind "boxes"): every image's detections beside its ground truth.

    detections  its `images` are rows of `truth`
    best     of `find_best_f1`, where it has found a threshold
    files    (N,) of the images, relative to the data set's root or absolute
    numbers  (N,) of the images in the validation index
    """
    starts = np.searchsorted(detections.images, np.arange(len(truth.image_ids) + 1))
    images = []
    for row, (file, number) in enumerate(zip(files, numbers.tolist())):
        mine = select_written(detections.scores, int(starts[row]), int(starts[row + 1]))
        real = slice(truth.starts[row], truth.starts[row + 1])
        images.append(
            {
                "index": number,
                "image_id": int(truth.image_ids[row]),
                "file": file,
                "width": int(truth.widths[row]),
                "height": int(truth.heights[row]),
                "boxes": detections.boxes[mine].round(2).tolist(),
                "labels": detections.classes[mine].tolist(),
                "scores": detections.scores[mine].astype(np.float64).round(5).tolist(),
                "truth": {
                    "boxes": truth.boxes[real].round(2).tolist(),
                    "labels": truth.classes[real].tolist(),
                    "crowd": truth.crowd[real].tolist(),
                },
            }
        )
    names = ("f1", "precision", "recall")
    at_best = [{name: getattr(one, name, coco.ABSENT) for name in names} for one in best.per_class] if best else repeat({})
    return {
        "kind": "boxes",
        "classes": list(classes),
        "category_ids": list(category_ids),
        **({} if best is None else {"best_f1": best.record()}),
        "images": images,
        "per_class": [
            {"name": name, "ap": score.ap, "ap50": score.ap50, "ar100": score.ar100, "objects": score.objects}
            | dict(zip(SIZES, score.by_size))
            | more
            for name, score, more in zip(classes, scores.per_class, at_best)
        ],
        "curves": precision_curves(scores, classes),
    }


def select_written(scores: np.ndarray, first: int, last: int) -> np.ndarray:
    """Of an image's detections, rows first..last - 1, those for the predictions file, best first."""
    mine = np.arange(first, last)
    return mine[np.argsort(-scores[mine], kind="stable")[:MAX_WRITTEN]]


def precision_curves(scores: coco.BoxScores, classes: Sequence[str]) -> dict[str, Any]:
    """The precision of each class, and their mean, over recall."""
    return {
        "iou": coco.CURVE_IOU,
        "recall": np.linspace(0, 1, coco.RECALL_POINTS).round(2).tolist(),
        "classes": {name: curve.round(5).tolist() for name, curve in zip(classes, scores.curves)},
        "mean": scores.mean_curve.round(5).tolist(),
    }


class InstanceTruth(NamedTuple):
    """The ground truth of the n photos of an evaluation."""

    boxes: coco.GroundTruth
    masks: RLE  # M, of the rows of `boxes`
    known: (
        np.ndarray
    )  # (M,) bool; an object without a mask need not be detected as one, and nothing on its box counts as wrong

    @property
    def for_masks(self) -> coco.GroundTruth:
        """The ground truth for scoring masks: an object without a mask is treated as a crowd."""
        return replace(self.boxes, crowd=np.where(self.known, self.boxes.crowd, 1).astype(np.uint8))


class ScoredInstances(NamedTuple):
    """An evaluation's outcome."""

    found: coco.Detections  # their `images` are rows of the truth
    masks: RLE  # D
    box_scores: coco.BoxScores
    mask_scores: coco.BoxScores
    best: BestF1 | None  # of the boxes
    approximated: Mapping[str, int]  # what accelerators left open in all photos, by name; empty on a CPU

    @property
    def metrics(self) -> dict[str, float]:
        """The 24 numbers by their names."""
        return {**self.box_scores.metrics, **self.mask_scores.metrics}

    def draws(self, truth: InstanceTruth) -> Draws:
        """Of boxes and masks; the truth is the one that was scored by."""
        of_masks = resample_masks(truth.for_masks, truth.masks, self.found, self.masks)
        return {**resample_boxes(truth.boxes, self.found), **of_masks}


class InstanceScore:
    """One rank's share of an evaluation."""

    def __init__(
        self,
        heights: np.ndarray,
        widths: np.ndarray,
        mask_threshold: float = 0.5,
        law: PasteLaw = "torchvision",
        *,
        plus_one: bool = False,
    ) -> None:
        """
        heights, widths  (N,) of every validation photo, pixels
        mask_threshold, law  of masks: see `InstanceFilter` and `paste_to_rle`
        plus_one         see `to_pixel_detections`
        """
        self.heights, self.widths, self.mask_threshold, self.plus_one = heights, widths, mask_threshold, plus_one
        self.law: PasteLaw = law
        self.scored: list[np.ndarray] = []
        self.rows: list[np.ndarray] = []
        self.masks: list[RLE] = []
        self.open: list[Tensor] = []

    def add(self, batch: Batch, outputs: DetectedInstances | Tensor) -> None:
        """Paste the masks of B photos, where there are masks, into their pixels; `batch.indices` are numbers of validation photos.

        outputs  of a network of boxes alone its detections, (B, D, 6)
        """
        if isinstance(outputs, Tensor):
            outputs = DetectedInstances(outputs, None)
        numbers = batch.indices.cpu().numpy()
        result = outputs.detections.cpu()
        self.scored.append(numbers)
        if outputs.open is not None:
            self.open.append(outputs.open.sum(dim=0))
        for image, number in enumerate(numbers.tolist()):
            indices = (result[image, :, 5] > 0).nonzero()[:, 0]
            mine = result[image, indices].to(torch.float64)
            height, width = int(self.heights[number]), int(self.widths[number])
            boxes = mine[:, :4] * torch.tensor([width, height, width, height])
            if outputs.masks is not None:
                masks = outputs.masks[image][indices.to(outputs.masks.device)]
                runs = paste_to_rle(masks, boxes, height, width, threshold=self.mask_threshold, law=self.law)
                self.masks.append(runs)
            self.rows.append(np.column_stack((np.full(len(mine), number), mine.numpy())))

    def pack(self) -> bytes:
        """For rank 0."""
        scored = np.concatenate([np.zeros(0, np.int64), *self.scored])
        rows = np.concatenate([np.zeros((0, 7)), *self.rows])
        detections = to_pixel_detections(rows, self.heights, self.widths, self.plus_one)
        left_open = torch.stack(self.open).sum(dim=0).cpu().numpy() if self.open else None
        return pack_shard(CocoShard(scored, detections, RLE.join(self.masks), left_open))


def read_instance_truth(boxes: coco.GroundTruth, split: BoxSplit, numbers: np.ndarray) -> InstanceTruth:
    """The ground truth of some photos of a split, its masks as strings; about 30 microseconds an object.

    boxes    of these photos
    numbers  (n,) of the photos, each once
    """
    return InstanceTruth(boxes, *read_object_masks(split, numbers))


def require_masks(split: BoxSplit, data: Path) -> None:
    """Raises DataError where the split has objects and not a single mask. data: the set's name for --data."""
    if len(split.classes) and not has_masks(split):
        named = shlex.quote(str(data))
        raise DataError(
            f"{data}: its objects have boxes but no masks, and this recipe trains on masks.\nTrain this network without "
            f"masks:  paceline train fasterrcnn-finetune --data {named} --weights fasterrcnn\nor train a faster detector "
            f'of boxes:  paceline train ssd-finetune --data {named} --weights resnet34\nor add a "segmentation" (polygons '
            "or run lengths) to the objects in the JSON, then prepare it again."
        )


def score_instances(truth: InstanceTruth, packed: Sequence[bytes], numbers: np.ndarray) -> ScoredInstances:
    """All ranks' shares, joined and scored twice.

    packed   the `InstanceScore.pack_shard` of each rank
    numbers  (n,) of the photos, as in `read_instance_truth`
    Raises RuntimeError unless every photo was scored exactly once.
    """
    shares = [unpack_shard(share) for share in packed]
    detections, masks = join_detection_masks(shares, numbers)
    of_masks = coco.score_masks(truth.for_masks, truth.masks, detections, masks)
    best = find_best_f1(truth.boxes, detections)
    return ScoredInstances(
        detections, masks, coco.score_boxes(truth.boxes, detections), of_masks, best, join_approximations(shares)
    )


def join_approximations(shares: Sequence[CocoShard]) -> dict[str, int]:
    """What accelerators left open in all photos, by name; {} on a CPU."""
    left_open = [share.left_open for share in shares if share.left_open is not None]
    return dict(zip(APPROXIMATED, np.sum(left_open, axis=0).tolist())) if left_open else {}


def instance_predictions_json(
    truth: InstanceTruth,
    scored: ScoredInstances,
    files: Sequence[str],
    numbers: np.ndarray,
    classes: Sequence[str],
    category_ids: Sequence[int],
) -> dict[str, Any]:
    """JSON content of RUN/predictions/step-N.json (kind "instances"): as kind "boxes", with the masks beside the boxes.

    Each image has "masks" beside "boxes", and its truth too: run-length strings at the photo's size, null for an object without a
    mask. Each class has "mask_ap", "mask_ap50" and AP by size; "mask_curves" are the masks' precision as "curves" are the boxes'.
    files, numbers, classes, category_ids  as in `box_predictions_json`
    """
    named = files, numbers, classes, category_ids
    described = box_predictions_json(truth.boxes, scored.found, scored.box_scores, scored.best, *named)
    starts = np.searchsorted(scored.found.images, np.arange(len(truth.boxes.image_ids) + 1))
    for row, image in enumerate(described["images"]):
        mine = select_written(scored.found.scores, int(starts[row]), int(starts[row + 1]))
        image["masks"] = [scored.masks[int(location)].decode("ascii") for location in mine]
        image["truth"]["masks"] = [
            truth.masks[index].decode("ascii") if truth.known[index] else None
            for index in range(int(truth.boxes.starts[row]), int(truth.boxes.starts[row + 1]))
        ]
    for entry, score in zip(described["per_class"], scored.mask_scores.per_class):
        entry.update(mask_ap=score.ap, mask_ap50=score.ap50)
        entry.update({f"mask_{name}": value for name, value in zip(SIZES, score.by_size)})
    described.update(kind="instances", mask_curves=precision_curves(scored.mask_scores, classes))
    return described


# One rank's detections as bytes, and all ranks' joined: every image exactly once, the same result for any number of ranks.
#
# Letters: n images of the evaluation   D detections
# Packing loses nothing: a column is packed in half its width where that holds every value exactly (28 bytes a detection whose box and
# score were computed in float32, 44 where only the score was), and an image's detections keep their order, which decides between equal
# scores. Masks are packed as their run-length strings, end to end, and their lengths.

# The columns of Detections, and their types once unpacked.
COLUMNS = {"images": np.int64, "boxes": np.float64, "classes": np.int64, "scores": np.float64}
SMALLER = {np.dtype(np.int64): np.int32, np.dtype(np.float64): np.float32}


@dataclass(frozen=True)
class CocoShard:
    """One rank's results. `detections.images` are numbers of the validation index here, not yet rows of a GroundTruth."""

    scored: np.ndarray  # int64, the images of this rank, also those without detections
    detections: Detections
    masks: RLE | None = None  # of the detections, row by row; None where the task has none
    left_open: np.ndarray | None = None  # int64, sums of what an accelerator approximated; None where nothing was


def pack_shard(share: CocoShard) -> bytes:
    """Compact bytes, to be sent to rank 0; nothing is pickled. A rank without images packs empty arrays."""
    detections = share.detections
    buffer = io.BytesIO()
    columns = {"scored": share.scored, **{name: getattr(detections, name) for name in COLUMNS}}
    columns = {name: _smallest(column) for name, column in columns.items()}
    if share.masks is not None:
        columns.update(mask_text=share.masks.text, mask_lengths=_smallest(np.diff(share.masks.starts)))
    if share.left_open is not None:
        columns["left_open"] = share.left_open
    np.savez(buffer, **columns)  # pyright: ignore[reportArgumentType]  numpy's own flags are keywords, too
    return buffer.getvalue()


def unpack_shard(packed: bytes) -> CocoShard:
    """The share that was packed, value for value; boxes and scores are float64, numbers int64."""
    with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
        detections = Detections(**{name: arrays[name].astype(kind) for name, kind in COLUMNS.items()})
        masks = None
        if "mask_text" in arrays:
            lengths = arrays["mask_lengths"].astype(np.int64)
            masks = RLE(arrays["mask_text"], np.concatenate([np.zeros(1, np.int64), lengths]).cumsum())
        left_open = arrays.get("left_open")
        return CocoShard(arrays["scored"].astype(np.int64), detections, masks, left_open)


def join_detections(shares: Sequence[CocoShard], numbers: np.ndarray) -> Detections:
    """All ranks' detections, ordered by image, for the images that were to be scored.

    numbers  (n,) int64, the images of this evaluation as numbers of the validation index, each once
    return   Detections whose `images` are places in `numbers`: rows of subset(truth, numbers)
    Raises RuntimeError unless every one of these images was scored exactly once, or where a detection lies in an image that its
    own rank did not score.
    """
    return _joined_detections(shares, *_rows_in_order(shares, numbers))


def join_detection_masks(shares: Sequence[CocoShard], numbers: np.ndarray) -> tuple[Detections, RLE]:
    """As `join_detections`, with the detections' masks, row by row.

    Raises RuntimeError as `join_detections` does, and where a share does not have one mask a detection.
    """
    for rank, share in enumerate(shares):
        if share.masks is None or len(share.masks) != len(share.detections.scores):
            has = 0 if share.masks is None else len(share.masks)
            raise RuntimeError(f"share {rank} has {has} masks for {len(share.detections.scores)} detections")
    rows, order = _rows_in_order(shares, numbers)
    masks = RLE.join([share.masks for share in shares if share.masks is not None])
    return _joined_detections(shares, rows, order), masks.take(order)


def _rows_in_order(shares: Sequence[CocoShard], numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """-> of all shares' detections, end to end, the place of their image in `numbers`, and their order by it.
    Raises as `join_detections`."""
    numbers = np.asarray(numbers, np.int64)
    check_every_image_once(_joined([share.scored for share in shares], np.zeros(0, np.int64)), numbers)
    for rank, share in enumerate(shares):
        strange = ~np.isin(share.detections.images, share.scored)
        if strange.any():
            raise RuntimeError(f"share {rank} has {strange.sum()} detections in images that it did not score")
    images = _joined([share.detections.images for share in shares], no_detections().images)
    by_number = np.argsort(numbers)
    rows = by_number[np.searchsorted(numbers, images, sorter=by_number)] if len(images) else images
    return rows, np.argsort(rows, kind="stable")


def _joined_detections(shares: Sequence[CocoShard], rows: np.ndarray, order: np.ndarray) -> Detections:
    def joined(name: str) -> np.ndarray:
        return _joined([getattr(share.detections, name) for share in shares], getattr(no_detections(), name))[order]

    return Detections(rows[order], joined("boxes"), joined("classes"), joined("scores"))


def _smallest(column: np.ndarray) -> np.ndarray:
    """The column in half its width where this changes no value."""
    half = SMALLER.get(column.dtype)
    if half is None:
        return column
    with np.errstate(over="ignore", invalid="ignore"):
        small = column.astype(half)
    return small if np.array_equal(small, column) else column


def _joined(columns: list[np.ndarray], empty: np.ndarray) -> np.ndarray:
    return np.concatenate(columns) if columns else empty
