"""Shared by the check pages of boxes and of class folders: notices, numbers of photos, examples, and the page itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paceline.data.checks.notices import Notice
from paceline.data.index.index import Index
from paceline.inference.drawing.boxes import class_color
from paceline.tools.report.check.tiles import make_tile
from paceline.tools.report.html import render_page

MAX_CLASSES = 200  # rows of the table of classes


class CheckPage(NamedTuple):
    """A check page."""

    html: str
    verdict: tuple[str, str]  # color and words
    notices: list[Notice]


class CheckExamples(NamedTuple):
    """Examples of something to look at; `note` stands beside the title, `size` is "wide" or ""."""

    title: str
    note: str
    tiles: list[Any]
    size: str = ""


class LintSummary(NamedTuple):
    """What `data lint` has found."""

    notices: Sequence[Notice] = ()
    finds: Sequence[CheckExamples] = ()


NOT_LINTED = LintSummary()


def make_page(
    template: str,
    root: Path,
    classes: Sequence[str],
    splits: Mapping[str, Index],
    notices: list[Notice],
    *,
    boxes: int = 0,
    grave: bool = False,
    finds: Sequence[CheckExamples],
    **content: Any,
) -> CheckPage:
    """Fill in a template of this folder.

    root     the data set's folder, for the headline
    boxes    how many look suspicious; grave where some make training wrong
    content  this template's own values
    """
    if grave or any(notice.color == "bad" for notice in notices):
        verdict = "bad", "Look at this before training"
    elif boxes or notices:
        verdict = "fair", f"{boxes:,} boxes to look at" if boxes else "Something to look at"
    else:
        verdict = "good", "Nothing suspicious"
    shared = {
        "name": root.name,
        "root": str(root),
        "verdict": verdict,
        "notices": notices,
        "splits": list(splits),
        "num_classes": len(classes),
        "image_sizes": [(split, *image_size(index)) for split, index in splits.items()],
        "finds": [find for find in finds if find.tiles],
    }
    return CheckPage(render_page(template, {**shared, **content}), verdict, notices)


def class_balance(
    classes: Sequence[str], objects: Mapping[str, np.ndarray], images: Mapping[str, np.ndarray]
) -> list[dict[str, Any]]:
    """A row for each class, the most frequent first: of each split objects, images, and share of the split's objects.

    objects, images  split -> (K,) numbers of each class
    """
    shares, top = share_rows(objects)
    order = sorted(range(len(classes)), key=lambda k: (-sum(int(counts[k]) for counts in objects.values()), k))
    return [
        {
            "name": classes[k],
            "color": class_color(k + 1),
            "splits": [
                (int(objects[split][k]), int(images[split][k]), float(shares[split][k]), float(shares[split][k]) / top)
                for split in objects
            ],
        }
        for k in order[:MAX_CLASSES]
    ]


def share_rows(counts: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], float]:
    """-> of each split, the share of each count in the split's sum, and the largest share of any, 1 where all are 0."""
    shares = {split: values / max(int(values.sum()), 1) for split, values in counts.items()}
    return shares, max((float(share.max(initial=0)) for share in shares.values()), default=0) or 1.0


def find_duplicates(splits: Mapping[str, Index]) -> list[tuple[int, int]]:
    """Rows (train, val) of photos of equal content, a pair for each such photo of val."""
    if "train" not in splits or "val" not in splits:
        return []
    train, val = (np.asarray(splits[split].extra["digests"]) for split in ("train", "val"))
    order = np.argsort(train, kind="stable")
    location = np.minimum(np.searchsorted(train[order], val), max(len(train) - 1, 0))
    same = np.flatnonzero(train[order][location] == val) if len(train) else []
    return [(int(order[location[row]]), int(row)) for row in same]


def twin_notice(count: int, *, noted: bool) -> list[Notice]:
    """Where photos lie in both splits."""
    text = f"Photos of val that are in train too, byte for byte: {count:,}. Scores will flatter."
    return [Notice("bad", text, noted)] if count else []


def twin_examples(
    splits: Mapping[str, Index], pairs: Sequence[tuple[int, int]], classes: Sequence[str], *, side: int, most: int
) -> CheckExamples:
    """Photos of val that are in train too; pairs: rows of train and val, of which `most` are shown."""
    names = [os.path.basename(os.fsdecode(splits["train"].relative_name(twin))) for twin, _ in pairs[:most]]
    tiles = [
        make_tile(splits["val"], row, classes, side=side, caption=f"train: {name}") for (_, row), name in zip(pairs, names)
    ]
    return CheckExamples("Photos in both splits", f"{len(pairs):,} of val, byte for byte", tiles)


def image_size(index: Index) -> tuple[str, str]:
    """-> the most frequent size with its share, and the range."""
    if not len(index):
        return "no images", ""
    sizes, counts = np.unique(np.stack([index.widths, index.heights], axis=1), axis=0, return_counts=True)
    width, height = sizes[counts.argmax()]
    if len(sizes) == 1:
        return f"all {width} x {height} px", ""
    most = f"{width} x {height} px in {100 * counts.max() / len(index):.0f} % of the images"
    wide, high = (f"{sides.min()} to {sides.max()}" for sides in (index.widths, index.heights))
    return most, f"{wide} wide, {high} high"


def turned_notice(splits: Mapping[str, Index], count: int) -> list[Notice]:
    """Where there are such photos: how the page, and which recipes, show them."""
    if not count:
        return []
    shown = all(index.exif == "apply" for index in splits.values())
    how = "upright here, as --input.exif apply trains on them" if shown else "as stored here, as the annotations count"
    return [Notice("fair", f"Photos with an EXIF rotation: {count:,}, {how}.", noted=True)]
