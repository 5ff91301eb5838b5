"""A validation split where a data set brings none: which side an image is on is a function of its name and a seed alone.

So images that come later, or are taken away, move no other one, and two people who split the same folder get the same halves.
Letters: N images of the one split there is, M objects.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

import numpy as np

from paceline.config.errors import DataError
from paceline.data.randomness import SampleRandom
from paceline.prepare.annotations import Annotations


def split_off(
    annotations: Annotations, fraction: float, seed: int = 0, *, digests: np.ndarray | None = None
) -> tuple[Annotations, Annotations]:
    """-> (train, val): each image goes to val where the random number of its file name is below `fraction`.

    fraction  expected share of images in val; the true number scatters around it, by sqrt(N fraction (1 - fraction))
    seed      another seed gives another split
    digests   (N,) content hashes where known: images of equal content share the side of the first of their names, so
              that nothing is validated on what was trained on
    Both sides keep the order and the ids of `annotations`, and have one image at least: the one with the lowest number
    (or highest) goes over where a side would be empty.
    Raises DataError for a fraction outside (0, 1), or fewer than two different images.
    """
    if not 0 < fraction < 1:
        raise DataError(f"--val-fraction {fraction:g}: must lie between 0 and 1, without both. 0.2 is usual.")
    numbers = _numbers(annotations.file_names, seed, digests)
    if len(np.unique(numbers)) < 2:
        raise DataError(
            f"{annotations.source}: {len(numbers):,} images, of which a validation split cannot be made: two different "
            "ones are needed. Add images, or name a validation set."
        )
    in_val = numbers < fraction
    if not in_val.any():
        in_val = numbers == numbers.min()
    elif in_val.all():
        in_val = numbers < numbers.max()
    return select(annotations, np.flatnonzero(~in_val)), select(annotations, np.flatnonzero(in_val))


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


def _numbers(file_names: Sequence[str], seed: int, digests: np.ndarray | None) -> np.ndarray:
    """(N,) float64 in [0, 1): of each name, or of the first name (in byte order) with the same content."""
    # A file system's own name, not the machine's spelling of it: the same on every system.
    keys = [os.fsencode(PurePath(name).as_posix()) for name in file_names]
    own = np.array([_number(key, seed) for key in keys], np.float64)
    if digests is None:
        return own
    first: dict[int, int] = {}
    for i in sorted(range(len(keys)), key=keys.__getitem__):
        first.setdefault(int(digests[i]), i)
    return own[[first[int(digest)] for digest in digests]]


def _number(key: bytes, seed: int) -> float:
    name = int.from_bytes(hashlib.sha256(key).digest()[:8], "big")
    return SampleRandom(seed, 0, name).uniform()
