"""The check page of class folders: photos of each class, counts, repeated, tiny and EXIF-rotated photos.

Letters: N photos of one split; K classes, 0..K-1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from paceline._utils.text import join_names
from paceline.data.checks.suspicious_boxes import find_equal_photos, find_rotated_images, names_where
from paceline.data.index.index import Index
from paceline.data.loader.sample_rng import hash_keys
from paceline.tools.report.check import page_parts
from paceline.tools.report.check.tiles import CheckTile, make_tile

MAX_SHOWN = 40  # classes with photos
PHOTOS = 8  # of each class, and examples of each kind of find
SIDE = 264  # pixels of a tile's longer side: twice the density of the page
TINY = 32  # pixels of the shorter side: less than any network's input
FEW, UNEVEN = 10, 20  # photos of a class in train; times as many in the largest class as in the smallest


def make_class_page(
    root: Path, classes: Sequence[str], splits: Mapping[str, Index], linted: page_parts.LintSummary = page_parts.NOT_LINTED
) -> page_parts.CheckPage:
    """The page.

    root     the data set's folder, for the headline
    classes  readable names of the classes
    splits   name -> index of a class-folder data set, training first where it is there; the first one is what is shown
    linted   what stands first on the page
    """
    counts = {split: np.bincount(index.labels, minlength=len(classes)) for split, index in splits.items()}
    first, shown = next(iter(counts.items()))
    equal = find_equal_photos(splits)
    pairs = page_parts.twins_in_val(equal)
    repeats = [(row, other) for (split, row), (of_other, other) in equal if split == of_other == first]
    conflicts = [pair for pair in repeats if splits[first].labels[pair[0]] != splits[first].labels[pair[1]]]
    tiny = [
        (split, row)
        for split, index in splits.items()
        for row in np.flatnonzero(np.minimum(index.heights, index.widths) < TINY).tolist()
    ]
    turned = find_rotated_images(splits)
    notices = page_parts.twin_notice(len(pairs), noted=False) + _notices(counts, classes, len(conflicts), len(tiny))
    return page_parts.make_page(
        "page.html.jinja",
        root,
        classes,
        splits,
        [*linted.notices, *notices, *page_parts.turned_notice(splits, len(turned))],
        finds=_finds(splits, classes, pairs, conflicts, tiny, turned),
        linted=linted.finds,
        cards=[  # (label, value, note) of the row of numbers at the top
            *((f"{split} photos", f"{len(index):,}", "") for split, index in splits.items()),
            ("classes", f"{len(shown):,}", ""),
            ("photos/class", f"{np.mean(shown):.3g}", f"in {first}, {shown.min():,} to {shown.max():,}"),
            ("in both splits", f"{len(pairs):,}", "equal photos"),
            (f"twice in {first}", f"{len(repeats):,}", "equal photos"),
            ("tiny photos", f"{len(tiny):,}", f"under {TINY} px"),
            ("EXIF-rotated", f"{len(turned):,}", "photos"),
        ],
        balance=page_parts.class_balance(classes, counts, counts),
        grid=_grid(splits, classes, counts),
    )


def _notices(
    counts: Mapping[str, np.ndarray], classes: Sequence[str], conflicts: int, tiny: int
) -> list[page_parts.Notice]:
    notices = []
    first, shown = next(iter(counts.items()))
    if conflicts:
        notices.append(
            page_parts.Notice("bad", f"Photos of {first} that lie in two classes, byte for byte: {conflicts:,}.")
        )
    for split, values in counts.items():
        if lacking := names_where((values == 0) & (shown > 0), classes):
            notices.append(
                page_parts.Notice("fair", f"Classes without a photo in {split}, so not scored: {join_names(lacking, 12)}.")
            )
    if few := names_where(shown < FEW, classes):
        notices.append(
            page_parts.Notice("fair", f"Classes with fewer than {FEW} photos in {first}: {join_names(few, 12)}.")
        )
    most, least = int(shown.argmax()), int(shown.argmin())
    if shown[most] >= UNEVEN * max(int(shown[least]), 1):
        text = f"{classes[most]} has {shown[most]:,} photos in {first}, {classes[least]} has {shown[least]:,}"
        notices.append(page_parts.Notice("fair", f"Uneven classes: {text}."))
    if tiny:
        notices.append(page_parts.Notice("fair", f"Photos of which a side is shorter than {TINY} pixels: {tiny:,}."))
    return notices


def _finds(
    splits: Mapping[str, Index],
    classes: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    conflicts: Sequence[tuple[int, int]],
    tiny: Sequence[tuple[str, int]],
    turned: Sequence[tuple[str, int]],
) -> list[page_parts.CheckExamples]:
    name, first = next(iter(splits.items()))

    def tiles(rows: Sequence[tuple[Index, int, str]]) -> list[CheckTile]:
        return [make_tile(index, row, side=SIDE, caption=caption) for index, row, caption in rows]

    leaks = [(splits["val"], row, f"{name}: {page_parts.get_file_name(first, twin)}") for twin, row in pairs[:PHOTOS]]
    doubles = [
        (first, row, f"{classes[first.labels[row]]}, and {classes[first.labels[twin]]}") for twin, row in conflicts[:PHOTOS]
    ]
    small = [(splits[split], row, _size(splits[split], row)) for split, row in tiny[:PHOTOS]]
    upright = [(splits[split], row, classes[int(splits[split].labels[row])]) for split, row in turned[:PHOTOS]]
    return [
        page_parts.CheckExamples("Photos in both splits", f"{len(pairs):,} of val, byte for byte", tiles(leaks)),
        page_parts.CheckExamples("Photos in two classes", f"{len(conflicts):,} of {name}, byte for byte", tiles(doubles)),
        page_parts.CheckExamples("Tiny photos", f"{len(tiny):,} with a side under {TINY} pixels", tiles(small)),
        page_parts.CheckExamples("Photos with an EXIF rotation", f"{len(turned):,}, shown upright", tiles(upright)),
    ]


def _grid(
    splits: Mapping[str, Index], classes: Sequence[str], counts: Mapping[str, np.ndarray]
) -> list[tuple[str, str, list[CheckTile]]]:
    """(name, counts, photos of the first split) of up to MAX_SHOWN classes, evenly spread; always the same photos of a set."""
    first = next(iter(splits.values()))
    drawn = np.argsort(hash_keys(0, 0, np.arange(len(first))), kind="stable")
    shown = np.unique(np.linspace(0, len(classes) - 1, min(len(classes), MAX_SHOWN)).astype(int))
    grid = []
    for k in shown.tolist():
        rows = drawn[first.labels[drawn] == k][:PHOTOS].tolist()
        tiles = [make_tile(first, row, side=SIDE, caption=_size(first, row)) for row in rows]
        grid.append((classes[k], ", ".join(f"{values[k]:,} in {split}" for split, values in counts.items()), tiles))
    return grid


def _size(index: Index, row: int) -> str:
    return f"{index.widths[row]} x {index.heights[row]} px"
