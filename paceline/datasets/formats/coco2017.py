"""Is this COCO 2017, the whole of it or a part? Told from the annotations' file names, classes and counts.

Counts: 118,287 training photos, 117,266 of them with at least one annotation, crowds included (those are what MLPerf's SSD
and Mask R-CNN train on), and 5,000 for validation. A score on a part of either is not a score on COCO 2017.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.config.errors import DataError
from paceline.datasets.formats.annotations import Annotations

FILES = {"train": "instances_train2017.json", "val": "instances_val2017.json"}
# SHA-256 over the 80 categories in the order of their ids, "ID NAME" and a line break each.
CATEGORIES_SHA256 = "4b2d7644cf2470e0419216f5d30ce11a569c8784aa07ca9f5ab36c49b44aedc4"


@dataclass(frozen=True)
class Counts:
    """Photos of a set."""

    train: int
    with_objects: int  # of them
    val: int

    def __str__(self) -> str:
        return f"{self.with_objects:,} training photos with objects ({self.train:,} in all) and {self.val:,} for validation"


WHOLE = Counts(118_287, 117_266, 5_000)


def coco2017_counts(splits: Mapping[str, Annotations]) -> Counts | None:
    """What of COCO 2017 is there; None for another data set: other classes, or annotations under other names."""
    for split, found in splits.items():
        if found.source.name != FILES.get(split) or _digest(found.names) != CATEGORIES_SHA256:
            return None
    train, val = splits.get("train"), splits.get("val")
    return Counts(
        0 if train is None else len(train.file_names),
        0 if train is None else len(np.unique(train.object_rows)),
        0 if val is None else len(val.file_names),
    )


def part_of_coco2017(splits: Mapping[str, Annotations]) -> str:
    """The words "COCO 2017: 282 of ..." for a part of it; "" for the whole, another set, and what is only scored on."""
    counts = coco2017_counts(splits)
    if counts is None or counts == WHOLE or "train" not in splits:
        return ""
    return (
        f"COCO 2017: {counts.with_objects:,} of {WHOLE.with_objects:,} training photos with objects, "
        f"{counts.val:,} of {WHOLE.val:,} for validation"
    )


def check_coco2017(root: Path, splits: Mapping[str, Annotations]) -> None:
    """Raises DataError where it is not the whole of COCO 2017."""
    counts = coco2017_counts(splits)
    if counts is None:
        raise DataError(
            f"{root}: not COCO 2017, which has annotations/{FILES['train']} and {FILES['val']} with its 80 classes. "
            "Leave out --expect coco2017 for another data set."
        )
    if counts != WHOLE:
        raise DataError(
            f"{root}: {counts}; COCO 2017 has {WHOLE}. Bring the rest (`paceline download coco2017 DIR`), or leave out "
            "--expect coco2017 to train on this part."
        )


def _digest(names: Mapping[int, str]) -> str:
    lines = "".join(f"{category} {names[category]}\n" for category in sorted(names))
    return hashlib.sha256(lines.encode()).hexdigest()
