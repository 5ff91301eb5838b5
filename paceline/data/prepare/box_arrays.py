"""`Annotations` and what is known of the files -> the index's arrays of one split, masks among them, and counts of what is odd.

Letters: N images   M objects   K classes 1..K   P polygon coordinates   Q polygons   R runs
An object has polygons, or an RLE (run-length encoding), or neither. Runs count the image's pixels column by column,
background first. The compressed form is a string: each run a number of 5 bits a character, lowest first, from character
48 on; bit 5 marks that more follow; the sign is the last character's bit 4; from the fourth run on, it is the difference
to the run two before. Source: Lin et al. 2014; the form of the string: rleToString in pycocotools' maskApi.c.

A mask that marks nothing of its object is dropped: all of it outside the photo, shrunk to a point, written as fractions where
pixels are meant, or of another object. A network would learn from it that the object has no pixel.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.text import abbreviate
from paceline.data.formats.annotations import MIN_NUMBERS, Annotations, decode_runs, run_extent, to_rle_or_polygons
from paceline.data.index.box_split import map_category_ids
from paceline.data.rle import concatenated_ranges
from paceline.data.transforms.polygon_fill import find_crossings

# Pixels that a side of a box has inside its photo: of a smaller object, a good outline may miss every pixel's middle.
MIN_SIDE = 2.0
# Pixels between a mask and its box that rounding explains.
ROUNDED = 1.0
# Square pixels. An outline that encloses less than this, plus the width and height of its extent, is rasterized to see whether it
# meets a pixel.
SURE_AREA = 4.0

ErrorOf = Callable[[int, str], Exception]
_NO_RUNS = np.zeros(0, np.uint32)


def box_arrays(
    annotations: Annotations, category_ids: np.ndarray, heights: np.ndarray, widths: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """-> the arrays of data/index/box_split.py BOX_ARRAYS, and the fields of BoxCounts that follow from them.

    annotations      of the images that are kept, all of whose categories are in the table
    category_ids     (K,) ascending
    heights, widths  (N,) pixels, of the decoded files
    Objects are put in the order of their images; those of one image keep theirs.
    Raises DataError, naming the annotation, for a mask that does not fit its image.
    """
    number = len(annotations.file_names)
    order = np.argsort(annotations.object_rows, kind="stable")
    rows = annotations.object_rows[order]
    ids = annotations.annotation_ids[order]

    def error_of(row: int, reason: str) -> DataError:
        title = f"{annotations.source}: annotation id {ids[row]} (image {annotations.file_names[rows[row]]})"
        return DataError(f"{title}: {reason}. Correct the file, or export it again.")

    boxes = annotations.boxes[order].reshape(-1, 4)
    finite = np.isfinite(boxes).all(axis=1)
    # Comparisons with NaN are false, so pycocotools would match such a box everywhere; one without area matches nowhere.
    boxes[~finite] = 0.0
    classes = map_category_ids(category_ids, annotations.categories[order])
    crowd = annotations.crowd[order].astype(np.uint8)
    # (M, 2) width and height of what lies inside the image; not above 0 where nothing does.
    size = np.stack([widths[rows], heights[rows]], axis=1)
    inside = np.minimum(boxes[:, :2] + boxes[:, 2:], size) - np.maximum(boxes[:, :2], 0)
    degenerate = ~finite | (boxes[:, 2:] <= 0).any(axis=1)
    outside = ~degenerate & (inside <= 0).any(axis=1)
    # Annotations are rounded to hundredths: a box that ends a hundredth beyond the border was meant to end there.
    partly = ~degenerate & ~outside & (boxes[:, 2:] - inside > 0.011).any(axis=1)
    masks, left_out_polygons, polygons_not_finite = mask_arrays(
        [annotations.segmentations[i] for i in order.tolist()], heights[rows], widths[rows], error_of
    )
    none = ~_has_mask(masks)
    empty, beside = find_useless_masks(masks, boxes, heights[rows], widths[rows])
    if (empty | beside).any():
        masks = remove_masks(masks, empty | beside)
    areas = annotations.areas[order].astype(np.float64)
    if len(unknown := np.flatnonzero(np.isnan(areas))):
        with np.errstate(over="ignore"):  # of boxes that no image can hold
            areas[unknown] = boxes[unknown, 2] * boxes[unknown, 3]
        for row in unknown[_has_mask(masks)[unknown]].tolist():
            areas[row] = _mask_area(masks, row, int(heights[rows[row]]), int(widths[rows[row]]))
    counts = np.bincount(rows, minlength=number)
    # Objects that repeat an earlier one: same image, class and box.
    keys = np.column_stack([rows, classes, boxes])[np.lexsort((*boxes.T, classes, rows))]
    again = (keys[1:] == keys[:-1]).all(axis=1)
    arrays = {
        "image_ids": annotations.image_ids.astype(np.int64),
        "object_starts": cumulative_starts(counts),
        "boxes": boxes,
        "classes": classes,
        "crowd": crowd,
        "areas": np.where(np.isfinite(areas), areas, 0.0),
        "annotation_ids": ids.astype(np.int64),
        "usable": (~degenerate & ~outside).astype(np.uint8),
        **masks,
    }
    numbers = {
        "objects": len(rows),
        "crowd": int(np.count_nonzero(crowd)),
        "degenerate": int(np.count_nonzero(degenerate)),
        "outside": int(np.count_nonzero(outside)),
        "partly_outside": int(np.count_nonzero(partly)),
        "duplicates": int(np.count_nonzero(again)),
        "empty_images": int(np.count_nonzero(counts == 0)),
        "left_out_polygons": left_out_polygons,
        "polygons_not_finite": polygons_not_finite,
        "masks_without_pixel": int(np.count_nonzero(empty)),
        "masks_beside_box": int(np.count_nonzero(beside)),
        "without_mask": 0 if none.all() else int(np.count_nonzero(none & (crowd == 0))),
    }
    return arrays, numbers


def _has_mask(masks: Mapping[str, np.ndarray]) -> np.ndarray:
    """(M,) bool"""
    return (np.diff(masks["object_polygons"]) > 0) | (np.diff(masks["object_rles"]) > 0)


def mask_arrays(
    segmentations: Sequence[Any], heights: np.ndarray, widths: np.ndarray, error_of: ErrorOf
) -> tuple[dict[str, np.ndarray], int, int]:
    """-> the arrays of data/index/box_split.py MASK_ARRAYS, and how many polygons were left out: too short; not finite.

    segmentations    (M) as formats/annotations.py reads them
    heights, widths  (M,) pixels, of the image that each object is in
    error_of         (object row, reason) -> the error that is raised for numbers that are none, runs that do not fill the image
    """
    polygons, per_object, runs, left_out, not_finite = [], [], [], 0, 0
    for row, explicit in enumerate(segmentations):
        kept: list[Any] = []
        run = _NO_RUNS
        try:
            mask = to_rle_or_polygons(explicit)
            if isinstance(mask, dict):
                run = decode_runs(mask, int(heights[row]), int(widths[row]))
            elif mask:
                kept = [polygon for polygon in mask if len(polygon) >= MIN_NUMBERS]
                left_out += len(mask) - len(kept)
        except ValueError as error:
            raise error_of(row, str(error)) from None
        polygons += kept
        per_object.append(len(kept))
        runs.append(run)
    lengths = np.array([len(polygon) for polygon in polygons], np.int64)
    objects = np.repeat(np.arange(len(segmentations)), per_object)
    points = _points(polygons, int(lengths.sum()), objects, error_of)
    if not np.isfinite(points).all():
        broken = np.unique(np.repeat(np.arange(len(polygons)), lengths)[~np.isfinite(points)])
        points = points[~np.isin(np.repeat(np.arange(len(polygons)), lengths), broken)]
        lengths, objects = np.delete(lengths, broken), np.delete(objects, broken)
        not_finite = len(broken)
    arrays = {
        "polygon_points": points,
        "polygon_starts": cumulative_starts(lengths),
        "object_polygons": cumulative_starts(np.bincount(objects, minlength=len(segmentations))),
        "rle_counts": np.concatenate([_NO_RUNS, *runs]),
        "object_rles": cumulative_starts(np.array([len(run) for run in runs], np.int64)),
    }
    return arrays, left_out, not_finite


def cumulative_starts(counts: np.ndarray) -> np.ndarray:
    """(n,) counts -> (n+1,) int64: rows of entry i are starts[i]:starts[i + 1]."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _points(polygons: list[Any], total: int, objects: np.ndarray, error_of: ErrorOf) -> np.ndarray:
    try:
        # Unlike numpy, array takes no text for a number.
        points = array("d", chain.from_iterable(polygons))
    except (TypeError, OverflowError):
        for row, polygon in zip(objects, polygons):
            for value in polygon:
                if not isinstance(value, int | float):
                    raise error_of(
                        int(row), f"its segmentation has the value {abbreviate(value)!r}, which is not a number"
                    ) from None
                if isinstance(value, int) and abs(value) > sys.float_info.max:
                    raise error_of(int(row), "its segmentation has a number that is too large for a float") from None
        raise
    return np.frombuffer(points, np.float64) if total else np.zeros(0)


def find_useless_masks(
    masks: Mapping[str, np.ndarray], boxes: np.ndarray, heights: np.ndarray, widths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """-> (M,) bool: masks without a pixel of their photo; (M,) bool: others that lie beside their box.

    boxes            (M, 4) x, y, width, height, pixels; where one has no MIN_SIDE inside the photo, its mask is not judged
    heights, widths  (M,) of each object's photo
    """
    size = np.stack([widths, heights], axis=1).astype(np.float64)
    extents, area = _outline_extents(masks)
    for row in np.flatnonzero(np.diff(masks["object_rles"])).tolist():
        counts = masks["rle_counts"][slice(*masks["object_rles"][row : row + 2])]
        extents[row] = run_extent(counts, int(heights[row]), int(widths[row]))
    inside = np.minimum(extents[:, 2:], size) - np.maximum(extents[:, :2], 0)
    corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    judged = _has_mask(masks) & (np.minimum(corners[:, 2:], size) - np.maximum(corners[:, :2], 0) >= MIN_SIDE).all(axis=1)
    empty = judged & (inside <= 0).any(axis=1)
    over = (extents[:, :2] < -ROUNDED).any(axis=1) | (extents[:, 2:] > size + ROUNDED).any(axis=1)
    # A strip less than a pixel wide may lie between two columns or rows of pixels, however long it is.
    sure = area >= SURE_AREA + inside.sum(axis=1)
    unsure = judged & ~empty & (np.diff(masks["object_polygons"]) > 0) & (over | ~sure)
    for row in np.flatnonzero(unsure).tolist():
        empty[row] = not _meets_a_pixel(masks, row, int(heights[row]), int(widths[row]))
    gap = np.maximum(extents[:, :2], corners[:, :2]) - np.minimum(extents[:, 2:], corners[:, 2:])
    return empty, judged & ~empty & (gap > ROUNDED).any(axis=1)


def remove_masks(masks: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays with no mask for objects `rows`, (M,) bool."""
    polygons, runs = np.diff(masks["object_polygons"]), np.diff(masks["object_rles"])
    of_polygon, numbers = np.repeat(rows, polygons), np.diff(masks["polygon_starts"])
    return {
        "polygon_points": masks["polygon_points"][~np.repeat(of_polygon, numbers)],
        "polygon_starts": cumulative_starts(numbers[~of_polygon]),
        "object_polygons": cumulative_starts(np.where(rows, 0, polygons)),
        "rle_counts": masks["rle_counts"][~np.repeat(rows, runs)],
        "object_rles": cumulative_starts(np.where(rows, 0, runs)),
    }


def _outline_extents(masks: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """-> (M, 4) left, top, right, bottom of each object's polygons; (M,) what they enclose, square pixels, overlaps twice."""
    points, starts = masks["polygon_points"].reshape(-1, 2), masks["polygon_starts"] // 2
    number = len(masks["object_polygons"]) - 1
    extents = np.tile([np.inf, np.inf, -np.inf, -np.inf], (number, 1))
    area = np.zeros(number)
    if not len(points):
        return extents, area
    has = np.diff(masks["object_polygons"]) > 0
    first = starts[masks["object_polygons"][:-1][has]]
    extents[has, :2] = np.minimum.reduceat(points, first)
    extents[has, 2:] = np.maximum.reduceat(points, first)
    following = np.arange(1, len(points) + 1)
    following[starts[1:] - 1] = starts[:-1]
    with np.errstate(over="ignore", invalid="ignore"):
        # Relative to each polygon's first corner: products of large coordinates would drown a small area.
        x, y = (points - np.repeat(points[starts[:-1]], np.diff(starts), axis=0)).T
        halves = np.abs(np.add.reduceat(x * y[following] - x[following] * y, starts[:-1])) / 2
        area[has] = np.add.reduceat(halves, masks["object_polygons"][:-1][has])
    return extents, area


def _mask_area(masks: Mapping[str, np.ndarray], row: int, height: int, width: int) -> float:
    """The pixels of an object's mask, counted as pycocotools does."""
    runs = masks["rle_counts"][slice(*masks["object_rles"][row : row + 2])]
    if len(runs):
        return float(runs[1::2].sum())
    from hotcoco import mask

    starts = masks["polygon_starts"][slice(masks["object_polygons"][row], masks["object_polygons"][row + 1] + 1)]
    polygons = [masks["polygon_points"][start:stop].tolist() for start, stop in pairwise(starts)]
    return float(mask.area(mask.merge(mask.fr_py_objects(polygons, height, width))))


def _meets_a_pixel(masks: Mapping[str, np.ndarray], row: int, height: int, width: int) -> bool:
    polygons = concatenated_ranges(masks["object_polygons"][[row]], masks["object_polygons"][[row + 1]])[0]
    starts, stops = masks["polygon_starts"][polygons], masks["polygon_starts"][polygons + 1]
    points = masks["polygon_points"][starts[0] : stops[-1]].reshape(-1, 2)
    return len(find_crossings(points, (stops - starts) // 2, height, width).columns) > 0
