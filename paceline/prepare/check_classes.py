"""The check page of class folders: photos of each class, counts, photos that are there twice, tiny and turned ones.

Letters: N photos of one split; K classes, 0..K-1.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from paceline.data.index import Index
from paceline.data.randomness import hash_keys
from paceline.prepare.check_parts import (
    Notice,
    Page,
    image_size,
    render,
    share_rows,
    turned_notice,
    turned_photos,
    twins,
    where,
)
from paceline.prepare.check_tiles import Tile, class_hue, class_tile
from paceline.prepare.listing import some

MOST_CLASSES, MOST_ROWS = 40, 200  # with photos; in the table
PHOTOS = 8  # of each class, and examples of each kind of find
SIDE = 264  # pixels of a tile's longer side: twice the density of the page
TINY = 32  # pixels of the shorter side: less than any network's input
FEW, UNEVEN = 10, 20  # photos of a class in train; times as many in the largest class as in the smallest


def class_page(root: Path, classes: Sequence[str], splits: Mapping[str, Index]) -> Page:
    """The page.

    root     the data set's folder, for the headline
    classes  readable names of the classes
    splits   name -> index of a class-folder data set, training first where it is there; the first one is what is shown
    """
    counts = {split: np.bincount(index.labels, minlength=len(classes)) for split, index in splits.items()}
    first = next(iter(splits))
    pairs, repeats = twins(splits), _repeats(splits[first])
    conflicts = [pair for pair in repeats if splits[first].labels[pair[0]] != splits[first].labels[pair[1]]]
    tiny = [(split, row) for split, index in splits.items() for row in np.flatnonzero(_short(index) < TINY).tolist()]
    notices = _notices(counts, classes, len(pairs), len(conflicts), len(tiny))
    turned = turned_photos(splits)
    notices += turned_notice(splits, len(turned))
    colour = "bad" if any(notice.colour == "bad" for notice in notices) else "fair" if notices else "good"
    words = {"bad": "Look at this before training", "fair": "Something to look at", "good": "Nothing suspicious"}
    verdict = colour, words[colour]
    html = render(
        "check_classes.html.jinja",
        name=root.name,
        root=str(root),
        verdict=verdict,
        notices=notices,
        cards=_cards(splits, counts, len(pairs), len(repeats), len(tiny), len(turned)),
        splits=list(splits),
        balance=_balance(counts, classes),
        num_classes=len(classes),
        image_sizes=[(split, *image_size(index)) for split, index in splits.items()],
        finds=_finds(splits, classes, pairs, conflicts, tiny, turned),
        grid=_grid(splits, classes, counts),
    )
    return Page(html, verdict, notices)


def _notices(
    counts: Mapping[str, np.ndarray], classes: Sequence[str], pairs: int, conflicts: int, tiny: int
) -> list[Notice]:
    notices = []
    first, shown = next(iter(counts.items()))
    if pairs:
        notices.append(
            Notice("bad", f"Photos of val that are in train too, byte for byte: {pairs:,}. Scores will flatter.")
        )
    if conflicts:
        notices.append(Notice("bad", f"Photos of {first} that lie in two classes, byte for byte: {conflicts:,}."))
    for split, values in counts.items():
        if lacking := where((values == 0) & (shown > 0), classes):
            notices.append(Notice("fair", f"Classes without a photo in {split}, so not scored: {some(lacking, 12)}."))
    if few := where(shown < FEW, classes):
        notices.append(Notice("fair", f"Classes with fewer than {FEW} photos in {first}: {some(few, 12)}."))
    most, least = int(shown.argmax()), int(shown.argmin())
    if shown[most] >= UNEVEN * max(int(shown[least]), 1):
        text = f"{classes[most]} has {shown[most]:,} photos in {first}, {classes[least]} has {shown[least]:,}"
        notices.append(Notice("fair", f"Uneven classes: {text}."))
    if tiny:
        notices.append(Notice("fair", f"Photos of which a side is shorter than {TINY} pixels: {tiny:,}."))
    return notices


def _cards(
    splits: Mapping[str, Index], counts: Mapping[str, np.ndarray], pairs: int, repeats: int, tiny: int, turned: int
) -> list[tuple[str, str, str]]:
    """(label, value, note) of the row of numbers at the top."""
    first, shown = next(iter(counts.items()))
    return [
        *((f"{split} photos", f"{len(index):,}", "") for split, index in splits.items()),
        ("classes", f"{len(shown):,}", ""),
        ("photos/class", f"{np.mean(shown):.3g}", f"in {first}, {shown.min():,} to {shown.max():,}"),
        ("in both splits", f"{pairs:,}", "equal photos"),
        (f"twice in {first}", f"{repeats:,}", "equal photos"),
        ("tiny photos", f"{tiny:,}", f"under {TINY} px"),
        ("EXIF-rotated", f"{turned:,}", "photos"),
    ]


def _balance(counts: Mapping[str, np.ndarray], classes: Sequence[str]) -> list[dict]:
    """A row for each class, the most frequent first."""
    shares, top = share_rows(counts)
    order = sorted(range(len(classes)), key=lambda k: (-sum(int(values[k]) for values in counts.values()), k))
    return [
        {
            "name": classes[k],
            "hue": class_hue(k + 1),
            "splits": [
                (int(counts[split][k]), int(counts[split][k]), float(shares[split][k]), float(shares[split][k]) / top)
                for split in counts
            ],
        }
        for k in order[:MOST_ROWS]
    ]


def _finds(
    splits: Mapping[str, Index],
    classes: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    conflicts: Sequence[tuple[int, int]],
    tiny: Sequence[tuple[str, int]],
    turned: Sequence[tuple[str, int]],
) -> list[tuple[str, str, list[Tile]]]:
    """(title, count, examples) of each kind of find."""
    name, first = next(iter(splits.items()))
    leaks = [
        class_tile(splits["val"], row, side=SIDE, caption=f"{name}: {_file(first, twin)}")
        for twin, row in pairs[:PHOTOS]
    ]
    doubles = [
        class_tile(first, row, side=SIDE, caption=f"{classes[first.labels[row]]}, and {classes[first.labels[twin]]}")
        for twin, row in conflicts[:PHOTOS]
    ]
    small = [
        class_tile(
            splits[split], row, side=SIDE, caption=f"{splits[split].widths[row]} x {splits[split].heights[row]} px"
        )
        for split, row in tiny[:PHOTOS]
    ]
    upright = [
        class_tile(splits[split], row, side=SIDE, caption=classes[int(splits[split].labels[row])])
        for split, row in turned[:PHOTOS]
    ]
    finds = [
        ("Photos in both splits", f"{len(pairs):,} of val, byte for byte", leaks),
        ("Photos in two classes", f"{len(conflicts):,} of {name}, byte for byte", doubles),
        ("Tiny photos", f"{len(tiny):,} with a side under {TINY} pixels", small),
        ("Photos with an EXIF rotation", f"{len(turned):,}, shown upright", upright),
    ]
    return [find for find in finds if find[2]]


def _grid(
    splits: Mapping[str, Index], classes: Sequence[str], counts: Mapping[str, np.ndarray]
) -> list[tuple[str, str, list[Tile]]]:
    """(name, counts, photos of the first split) of up to MOST_CLASSES classes, evenly spread; always the same photos of a set."""
    first = next(iter(splits.values()))
    drawn = np.argsort(hash_keys(0, 0, np.arange(len(first))), kind="stable")
    shown = np.unique(np.linspace(0, len(classes) - 1, min(len(classes), MOST_CLASSES)).astype(int))
    grid = []
    for k in shown.tolist():
        rows = drawn[first.labels[drawn] == k][:PHOTOS].tolist()
        tiles = [
            class_tile(first, row, side=SIDE, caption=f"{first.widths[row]} x {first.heights[row]} px") for row in rows
        ]
        grid.append((classes[k], ", ".join(f"{values[k]:,} in {split}" for split, values in counts.items()), tiles))
    return grid


def _repeats(index: Index) -> list[tuple[int, int]]:
    """(first, other) of each photo that repeats an earlier one's content."""
    digests = np.asarray(index.extra["digests"])
    _, first, back = np.unique(digests, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[back] != np.arange(len(digests)))
    return [(int(first[back[row]]), int(row)) for row in again]


def _short(index: Index) -> np.ndarray:
    return np.minimum(index.heights, index.widths)


def _file(index: Index, row: int) -> str:
    return os.path.basename(os.fsdecode(index.relative_name(row)))
