"""`Annotations` and what is known of the files -> the index's arrays of one split, and its annotations in numbers.

Letters: N images, M objects, K classes 1..K.
"""

from __future__ import annotations

import numpy as np

from paceline.config.errors import DataError
from paceline.datasets.formats.annotations import Annotations
from paceline.datasets.mask_checks import useless_masks, without
from paceline.datasets.segmentation import mask_arrays, starts_of
from paceline.store.box_split import classes_of


def box_arrays(
    annotations: Annotations, category_ids: np.ndarray, heights: np.ndarray, widths: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """-> the arrays of store/box_split.py BOX_ARRAYS, and the fields of BoxCounts that follow from them.

    annotations   of the images that are kept, all of whose categories are in the table
    category_ids  (K,) ascending
    heights       (N,) pixels, of the decoded files
    widths        (N,)
    Objects are put in the order of their images; those of one image keep theirs.
    Raises DataError, naming the annotation, for a mask that does not fit its image.
    """
    number = len(annotations.file_names)
    order = np.argsort(annotations.object_rows, kind="stable")
    rows = annotations.object_rows[order]
    ids = annotations.annotation_ids[order]

    def blame(row: int, reason: str) -> DataError:
        return DataError(
            f"{annotations.source}: annotation id {ids[row]} (image {annotations.file_names[rows[row]]}): {reason}. "
            "Correct the file, or export it again."
        )

    boxes = annotations.boxes[order].reshape(-1, 4)
    finite = np.isfinite(boxes).all(axis=1)
    # Comparisons with NaN are false, so pycocotools would find such a box everywhere: one without area is found nowhere.
    boxes[~finite] = 0.0
    classes = classes_of(category_ids, annotations.categories[order])
    crowd = annotations.crowd[order].astype(np.uint8)
    inside = _sides_inside(boxes, heights[rows], widths[rows])
    degenerate = ~finite | (boxes[:, 2:] <= 0).any(axis=1)
    outside = ~degenerate & (inside <= 0).any(axis=1)
    # Annotations are rounded to hundredths: a box that ends a hundredth beyond the border was meant to end there.
    partly = ~degenerate & ~outside & (boxes[:, 2:] - inside > 0.011).any(axis=1)
    areas = annotations.areas[order].astype(np.float64)
    masks, left_out_polygons, polygons_not_finite = mask_arrays(
        [annotations.segmentations[i] for i in order.tolist()], heights[rows], widths[rows], blame
    )
    none = (np.diff(masks["object_polygons"]) == 0) & (np.diff(masks["object_rles"]) == 0)
    empty, beside = useless_masks(masks, boxes, heights[rows], widths[rows])
    if (empty | beside).any():
        masks = without(masks, empty | beside)
    counts = np.bincount(rows, minlength=number)
    arrays = {
        "image_ids": annotations.image_ids.astype(np.int64),
        "object_starts": starts_of(counts),
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
        "duplicates": _duplicates(rows, classes, boxes),
        "empty_images": int(np.count_nonzero(counts == 0)),
        "left_out_polygons": left_out_polygons,
        "polygons_not_finite": polygons_not_finite,
        "masks_without_pixel": int(np.count_nonzero(empty)),
        "masks_beside_box": int(np.count_nonzero(beside)),
        "without_mask": 0 if none.all() else int(np.count_nonzero(none & (crowd == 0))),
    }
    return arrays, numbers


def _sides_inside(boxes: np.ndarray, heights: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """(M, 2) width and height of what lies inside the image; not above 0 where nothing does."""
    size = np.stack([widths, heights], axis=1)
    return np.minimum(boxes[:, :2] + boxes[:, 2:], size) - np.maximum(boxes[:, :2], 0)


def _duplicates(rows: np.ndarray, classes: np.ndarray, boxes: np.ndarray) -> int:
    """Objects that repeat an earlier one: same image, class and box."""
    keys = np.column_stack([rows, classes, boxes])[np.lexsort((*boxes.T, classes, rows))]
    return int(np.count_nonzero((keys[1:] == keys[:-1]).all(axis=1)))
