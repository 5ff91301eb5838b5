"""What many labels of a set have in common that looks like a mistake of the export: masks that mark nothing, boxes in another form.

Letters: M objects of all splits.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.pages.check.parts import Notice
from paceline.pages.check.suspicious import OVER_BORDER
from paceline.store.index import Index
from paceline.store.manifest import Manifest

# Of M objects: so large a part in another form is the form of the file, and what else fits is chance.
MOST = 0.75
# Corners taken as x y width height reach over the border where x1 + x2 does: 3 of 4 where objects lie anywhere. Good
# boxes hardly ever do.
REACHING_OVER = 0.3
# Fewer objects show no form.
LEAST_OBJECTS = 4
WITHOUT = "training takes the box for the mask, and scores of masks pass over them"


def mask_notices(manifest: Manifest) -> list[Notice]:
    """Where objects are without a mask, or have one that marks nothing of them."""
    counts = {name: split.boxes for name, split in manifest.splits.items() if split.boxes is not None}

    def text(what: str, numbers: Mapping[str, int]) -> str:
        found = [f"{number:,} in {name}" for name, number in numbers.items() if number]
        return f"{what}: {', '.join(found)}" if found else ""

    useless = [
        text("Masks that cover no pixel of their photo", {key: c.masks_without_pixel for key, c in counts.items()}),
        text("Masks that lie beside their box", {key: c.masks_beside_box for key, c in counts.items()}),
    ]
    none = text("Objects without a mask among others with one", {key: c.without_mask for key, c in counts.items()})
    said = ". ".join(filter(None, useless))
    return [
        *([Notice("bad", f"{said}. These objects count as without a mask: {WITHOUT}.")] if said else []),
        *([Notice("fair", f"{none}: {WITHOUT}.")] if none else []),
    ]


def coordinate_notices(splits: Mapping[str, Index]) -> list[Notice]:
    """A guess at what the numbers of most boxes are, where they are not x, y, width, height in pixels."""
    boxes = np.concatenate([np.asarray(index.extra["boxes"], np.float64) for index in splits.values()])  # (M, 4)
    sizes = [
        np.repeat(np.stack([index.widths, index.heights], axis=1), np.diff(index.extra["object_starts"]), axis=0)
        for index in splits.values()
    ]
    size = np.concatenate(sizes)
    if len(boxes) < LEAST_OBJECTS:
        return []
    begin, end = boxes[:, :2], boxes[:, 2:]
    fractions = (boxes >= 0).all(axis=1) & (boxes <= 1).all(axis=1) & (end > 0).all(axis=1)
    if fractions.mean() >= MOST:
        text = (
            f"Boxes whose numbers all lie between 0 and 1: {np.count_nonzero(fractions):,} of {len(boxes):,}. These look like "
            "fractions of the photo; COCO's boxes are in pixels."
        )
        return [Notice("bad", text)]
    corners = (end > begin).all(axis=1) & (end <= size + OVER_BORDER).all(axis=1) & (begin >= -OVER_BORDER).all(axis=1)
    over = (begin + end > size + OVER_BORDER).any(axis=1)
    if corners.mean() >= MOST and (over & corners).mean() >= REACHING_OVER:
        text = (
            f"Boxes that reach over the border, and fit as corners: {np.count_nonzero(over & corners):,} of {len(boxes):,}. These "
            "look like corners x1 y1 x2 y2; COCO's boxes are x y width height."
        )
        return [Notice("bad", text)]
    return []
