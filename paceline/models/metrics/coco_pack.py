"""One rank's detections as bytes, and all ranks' joined: every image exactly once, the same result for any number of ranks.

Letters: n images of the evaluation   D detections
Packing loses nothing: a column is packed in half its width where that holds every value exactly (28 bytes a detection whose box and
score were computed in float32, 44 where only the score was), and an image's detections keep their order, which decides between equal
scores. Masks are packed as their run-length strings, end to end, and their lengths.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.data.rle import RLE
from paceline.models.metrics.coco import Detections, no_detections
from paceline.models.metrics.top_k import check_every_image_once

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
            raise RuntimeError(f"share {rank} has {has} masks of {len(share.detections.scores)} detections")
    rows, order = _rows_in_order(shares, numbers)
    masks = RLE.join([share.masks for share in shares if share.masks is not None])
    return _joined_detections(shares, rows, order), masks.take(order)


def _rows_in_order(shares: Sequence[CocoShard], numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """-> of all shares' detections, end to end, the place of their image in `numbers`, and their order by it. "
    "Raises as `join_detections`."""
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
