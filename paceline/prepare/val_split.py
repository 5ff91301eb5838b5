"""A validation split where a data set brings none: which side an image is on is a function of its name and a seed alone.

So images that come later, or are taken away, move no other one, and two people who split the same folder get the same halves.
Letters: N images of the one split there is, M objects.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from paceline.config.errors import DataError
from paceline.prepare.annotations import Annotations
from paceline.prepare.val_groups import ValSplit, units_of


def split_off(
    annotations: Annotations, split: ValSplit, *, digests: np.ndarray | None = None
) -> tuple[Annotations, Annotations, int]:
    """-> (train, val, photos that match no given pattern): an image goes to val where its unit's number is below the fraction.

    split    the fraction is the expected share of images in val; the true number scatters around it, by
             sqrt(N fraction (1 - fraction)) where no groups are
    digests  (N,) content hashes where known: images of equal content share a side, so that nothing is validated on what
             was trained on
    Both sides keep the order and the ids of `annotations`, and have one image at least: the unit with the lowest number
    (or highest) goes over where a side would be empty.
    Raises DataError for a fraction outside (0, 1), a pattern that cannot be used, or fewer than two different images.
    """
    units = units_of(annotations.file_names, split, digests)
    if len(units.numbers) < 2:
        raise DataError(
            f"{annotations.source}: {len(units.of):,} images, of which a validation split cannot be made: two different "
            "ones (or groups of them) are needed. Add images, or name a validation set."
        )
    last = np.searchsorted(units.numbers, split.val_fraction)
    in_val = units.of < np.clip(last, 1, len(units.numbers) - 1)
    train, val = select(annotations, np.flatnonzero(~in_val)), select(annotations, np.flatnonzero(in_val))
    return train, val, units.alone


def select(annotations: Annotations, rows: np.ndarray) -> Annotations:
    """Those images alone, with their objects; file names, ids and class names stay what they are.

    rows  (n,) integers 0..N-1, ascending
    """
    new_row = np.full(len(annotations.file_names), -1, np.int64)
    new_row[rows] = np.arange(len(rows))
    objects = np.flatnonzero(new_row[annotations.object_rows] >= 0)
    return replace(
        annotations,
        file_names=[annotations.file_names[row] for row in rows],
        image_ids=annotations.image_ids[rows],
        heights=annotations.heights[rows],
        widths=annotations.widths[rows],
        object_rows=new_row[annotations.object_rows[objects]],
        boxes=annotations.boxes[objects],
        categories=annotations.categories[objects],
        crowd=annotations.crowd[objects],
        areas=annotations.areas[objects],
        annotation_ids=annotations.annotation_ids[objects],
        segmentations=[annotations.segmentations[i] for i in objects],
    )
