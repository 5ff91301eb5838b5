"""Large photos in overlapping tiles, for objects that are too small in the network's input of the whole photo.

Each tile is answered as a photo of its own, and so is the whole photo, whose answer has the objects that no tile holds. All of them
are merged, class by class, best first:
- a box that ends at an edge of its tile inside the photo may be a piece of an object: it gives way to any other box, of another tile
  or of the whole photo, that covers it, unless that box is far less certain;
- of two boxes of different tiles that overlap as suppression counts it, the better stays. Boxes of one tile have been through it.

Letters: n objects   h, w of a tile, H, W of the photo, pixels
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from paceline._utils.errors import DataError
from paceline.data.rle import compress, decode_mask
from paceline.data.workers.crew import map_ordered
from paceline.inference.image_input import Photo, decode_photo
from paceline.inference.image_paths import FailedImage
from paceline.inference.results import DetectionResult, PredictionResult

# Share of a tile's side that its neighbor has too, where no other is asked for.
OVERLAP = 0.2
# A box as near to its tile's inner edge as this share of the tile's side is taken for cut.
AT_EDGE = 0.01
# A cut box is covered by one that holds this share of it, and has this share of its score.
COVERED, CERTAIN = 0.7, 0.5
# Boxes of two tiles are one object from this overlap on: IoU.
SAME = 0.5


class TileWindow(NamedTuple):
    """A tile in its photo."""

    top: int
    left: int
    height: int
    width: int


def make_tiles(height: int, width: int, tile: int, overlap: float) -> list[TileWindow]:
    """Tiles of at most `tile` pixels a side that cover a photo, evenly spread, neighbors sharing at least `overlap` of a side.

    return  row by row; [] where the photo is one tile
    """
    tops, lefts = _starts(height, tile, overlap), _starts(width, tile, overlap)
    if len(tops) == len(lefts) == 1:
        return []
    return [TileWindow(top, left, min(tile, height), min(tile, width)) for top in tops for left in lefts]


def _starts(side: int, tile: int, overlap: float) -> list[int]:
    more = max(0, side - tile)
    count = 1 + int(np.ceil(more / max(1.0, tile * (1 - overlap))))
    return np.linspace(0, more, count).round().astype(int).tolist()


def predict_tiled(
    predict_iter: Callable[[Iterable[Photo]], Iterator[PredictionResult | FailedImage]],
    photos: Iterable[Photo],
    settings: Any,
    *,
    tile: int,
    overlap: float,
) -> Iterator[PredictionResult | FailedImage]:
    """The merged answers for photos, in their order; a photo that cannot be read is a FailedImage in its place.

    predict_iter  of a predictor, for photos of any size
    settings      the recipe's data treatment, which names the decoder
    One photo is decoded beside the one whose tiles are being answered.
    """
    waiting: deque[list[TileWindow]] = deque()

    def decoded(photo: Photo) -> tuple[Photo, np.ndarray | None]:
        try:
            return photo, decode_photo(photo, settings)
        except DataError:  # which predict_iter reports
            return photo, None

    def parts() -> Iterator[Photo]:
        for photo, pixels in map_ordered(photos, decoded, size=1, ahead=1):
            locations = [] if pixels is None else make_tiles(pixels.shape[0], pixels.shape[1], tile, overlap)
            waiting.append(locations)
            yield photo
            if pixels is not None:
                yield from (pixels[top : top + height, left : left + width] for top, left, height, width in locations)

    answers = predict_iter(parts())
    for whole in answers:
        locations = waiting.popleft()
        tiles = [next(answers) for _ in locations]
        detections = [one for one in tiles if isinstance(one, DetectionResult)]
        yield merge_tiles(whole, locations, detections) if isinstance(whole, DetectionResult) and locations else whole


def merge_tiles(
    whole: DetectionResult, locations: Sequence[TileWindow], tiles: Sequence[DetectionResult]
) -> DetectionResult:
    """The answer of a whole photo and those of its tiles as one, best first."""
    every = [(TileWindow(0, 0, whole.height, whole.width), whole), *zip(locations, tiles)]
    boxes = np.concatenate([one.boxes_xywh + np.array([location.left, location.top, 0, 0]) for location, one in every])
    sources = np.repeat(np.arange(len(every)), [len(one.scores) for _, one in every])
    columns = {
        name: sum((getattr(one, name) for _, one in every), ()) for name in ("class_ids", "names", "scores", "category_ids")
    }
    cut = np.concatenate([_cut(one.boxes_xyxy, location, whole) for location, one in every])
    scores = np.array(columns["scores"])
    kept = []
    for class_id in set(columns["class_ids"]):
        rows = np.flatnonzero(np.array(columns["class_ids"]) == class_id)
        kept += rows[_survivors(boxes[rows], scores[rows], cut[rows], sources[rows])].tolist()
    kept.sort(key=lambda row: -scores[row])
    firsts = np.searchsorted(sources, np.arange(len(every)))
    masks = None
    if whole.masks_rle is not None:
        masks = tuple(
            _mask_in_photo(one, int(row - firsts[sources[row]]), location, whole)
            for row in kept
            for location, one in [every[sources[row]]]
        )
    facts = {name: tuple(values[row] for row in kept) for name, values in columns.items()}
    return replace(whole, boxes_xywh=boxes[kept].reshape(-1, 4), masks_rle=masks, **facts)


def _cut(boxes: np.ndarray, location: TileWindow, whole: DetectionResult) -> np.ndarray:
    """(n,) bool: which boxes of a tile, corners in its own pixels, end at an edge that lies inside the photo."""
    size = np.array([location.width, location.height])
    near = AT_EDGE * size
    first = np.array([location.left, location.top]) > 0
    last = np.array([location.left, location.top]) + size < np.array([whole.width, whole.height])
    return np.any((boxes[:, :2] <= near) & first | (boxes[:, 2:] >= size - near) & last, axis=1)


def _survivors(boxes: np.ndarray, scores: np.ndarray, cut: np.ndarray, sources: np.ndarray) -> np.ndarray:
    """Rows of one class that stay: boxes (n, 4) left, top, width, height in the photo; sources (n,): which tile."""
    rows = np.argsort(-scores, kind="stable")
    stays = np.ones(len(boxes), bool)
    for row in rows[cut[rows]]:
        inner, _ = _overlaps(boxes[row], boxes)
        covered = inner >= COVERED * boxes[row, 2] * boxes[row, 3]
        larger = boxes[:, 2] * boxes[:, 3] > boxes[row, 2] * boxes[row, 3]
        others = (sources != sources[row]) & (scores >= CERTAIN * scores[row]) & (~cut | larger)
        stays[row] = not (covered & others).any()
    kept = []
    waiting = rows[stays[rows]]
    while len(waiting):
        best, waiting = waiting[0], waiting[1:]
        kept.append(best)
        _, iou = _overlaps(boxes[best], boxes[waiting])
        waiting = waiting[(iou < SAME) | (sources[waiting] == sources[best])]
    return np.array(kept, int)


def _overlaps(box: np.ndarray, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n,) shared square pixels, and IoU."""
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[:2] + box[2:], boxes[:, :2] + boxes[:, 2:])
    inner = (high - low).clip(0).prod(1)
    return inner, inner / np.maximum(box[2:].prod() + boxes[:, 2:].prod(1) - inner, 1e-9)


def _mask_in_photo(detections: DetectionResult, row: int, location: TileWindow, whole: DetectionResult) -> bytes:
    """A tile's mask as the photo's run lengths, without a bitmap of the photo."""
    assert detections.masks_rle is not None
    if detections is whole:
        return detections.masks_rle[row]
    pixels = decode_mask(detections.masks_rle[row], location.height, location.width).astype(bool)
    steps = np.diff(np.pad(pixels, ((1, 1), (0, 0))).astype(np.int8), axis=0).T  # (w, h + 1): column by column
    offset = (location.left + np.arange(location.width))[:, None] * whole.height + location.top
    at = offset + np.arange(location.height + 1)
    starts, stops = at[steps > 0], at[steps < 0]
    joined = np.flatnonzero(starts[1:] == stops[:-1])  # a column's end is the next one's beginning
    starts, stops = np.delete(starts, joined + 1), np.delete(stops, joined)
    bounds = np.concatenate(([0], np.column_stack((starts, stops)).ravel(), [whole.height * whole.width]))
    runs = np.diff(bounds)
    if len(runs) > 1 and runs[-1] == 0:  # the last pixel is the object's
        runs = runs[:-1]
    return compress(runs, np.array([0, len(runs)]))[0]
