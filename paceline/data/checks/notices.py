"""What the checks of a data set share: notices, its splits as people see them, and photos that EXIF turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from paceline.config.resnet import Exif
from paceline.data.index.box_split import box_index
from paceline.data.index.index import Index, open_split
from paceline.data.index.manifest import Manifest
from paceline.data.transforms.exif import UPRIGHT


class Notice(NamedTuple):
    """Something to know before training."""

    color: str  # "bad" or "fair"
    text: str
    noted: bool = False  # the manifest's notes, which prepare prints, have it already
    warns: bool = False  # prepare prints a warning, whatever the color


def open_displayed_splits(manifest: Manifest) -> dict[str, Index]:
    """Each split's index, in the frame that boxes were drawn in, or where it is unknown, photos as people see them."""
    if manifest.kind == "boxes":
        readings = {split.boxes.exif for split in manifest.splits.values() if split.boxes is not None}
        frame: Exif = "ignore" if "ignore" in readings else "apply"
        return {name: box_index(manifest, name, frame) for name in manifest.splits}
    return {name: open_split(manifest, name).as_shown() for name in manifest.splits}


def names_where(mask: np.ndarray, classes: Sequence[str]) -> list[str]:
    """Names of the classes for which `mask` is true."""
    return [name for name, wanted in zip(classes, mask.tolist()) if wanted]


def find_rotated_images(splits: Mapping[str, Index]) -> list[tuple[str, int]]:
    """(split, row) of each photo that carries an EXIF rotation."""
    return [
        (split, row) for split, index in splits.items() for row in np.flatnonzero(index.orientations != UPRIGHT).tolist()
    ]


def find_equal_images(splits: Mapping[str, Index]) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    """((split, row) of the first such photo, (split, row)) of each photo that repeats an earlier one byte for byte."""
    digests = np.concatenate([np.asarray(index.extra["digests"]) for index in splits.values()])
    _, first, back = np.unique(digests, return_index=True, return_inverse=True)
    starts, names = np.cumsum([0, *map(len, splits.values())]), list(splits)

    def locate(position: int) -> tuple[str, int]:
        split = int(np.searchsorted(starts, position, side="right")) - 1
        return names[split], position - int(starts[split])

    again = np.flatnonzero(first[back] != np.arange(len(digests))).tolist()
    return [(locate(int(first[back[position]])), locate(position)) for position in again]
