"""One rank's detections as bytes, and all ranks' joined: every image exactly once, the same result for any number of ranks.

Letters: n images of the evaluation   D detections
Nothing is lost on the way: a column travels in half its width where that holds every value exactly (28 bytes a detection whose box
and score were computed in float32, 44 where only the score was), and an image's detections keep their order, which decides between
equal scores.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.metrics.coco import Detections, no_detections
from paceline.metrics.top_k import check_every_image_once

SMALLER = {np.dtype(np.int64): np.int32, np.dtype(np.float64): np.float32}


@dataclass(frozen=True)
class Share:
    """What one rank scored. `detections.images` are numbers of the validation index here, not yet rows of a GroundTruth."""

    scored: np.ndarray  # int64, the images this rank went through, also those in which it found nothing
    detections: Detections


def pack(share: Share) -> bytes:
    """Compact bytes, to be sent to rank 0; nothing is pickled. A rank without images packs empty arrays."""
    found = share.detections
    buffer = io.BytesIO()
    np.savez(
        buffer,
        scored=_smallest(share.scored),
        images=_smallest(found.images),
        boxes=_smallest(found.boxes),
        classes=_smallest(found.classes),
        scores=_smallest(found.scores),
    )
    return buffer.getvalue()


def unpack(packed: bytes) -> Share:
    """The share that was packed, value for value; boxes and scores are float64, numbers int64."""
    with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
        found = Detections(
            images=arrays["images"].astype(np.int64),
            boxes=arrays["boxes"].astype(np.float64),
            classes=arrays["classes"].astype(np.int64),
            scores=arrays["scores"].astype(np.float64),
        )
        return Share(arrays["scored"].astype(np.int64), found)


def join(shares: Sequence[Share], numbers: np.ndarray) -> Detections:
    """All ranks' detections, ordered by image, for the images that were to be scored.

    numbers  (n,) int64, the images of this evaluation as numbers of the validation index, each once
    return   Detections whose `images` are places in `numbers`: rows of subset(truth, numbers)
    Raises RuntimeError unless every one of these images was scored exactly once, or where a detection lies in an image that its
    own rank did not score.
    """
    numbers = np.asarray(numbers, np.int64)
    check_every_image_once(_joined([share.scored for share in shares], np.zeros(0, np.int64)), numbers)
    for rank, share in enumerate(shares):
        strange = ~np.isin(share.detections.images, share.scored)
        if strange.any():
            raise RuntimeError(f"share {rank} has {strange.sum()} detections in images that it did not score")
    nothing, parts = no_detections(), [share.detections for share in shares]
    images = _joined([part.images for part in parts], nothing.images)
    by_number = np.argsort(numbers)
    rows = by_number[np.searchsorted(numbers, images, sorter=by_number)] if len(images) else images
    order = np.argsort(rows, kind="stable")
    return Detections(
        images=rows[order],
        boxes=_joined([part.boxes for part in parts], nothing.boxes)[order],
        classes=_joined([part.classes for part in parts], nothing.classes)[order],
        scores=_joined([part.scores for part in parts], nothing.scores)[order],
    )


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
