"""The check page of a box data set, to be looked at before training on it.

Class balance of each split, object sizes, images without objects, photos that lie in both splits, boxes that look wrong
with their surroundings, and a dozen random photos with their annotations.

Letters: N images, M objects of one split; K classes, 1..K.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.data.checks.suspicious_boxes import (
    KINDS,
    SuspicionType,
    SuspiciousBox,
    coordinate_notices,
    find_equal_photos,
    find_rotated_images,
    find_suspicious,
)
from paceline.data.index.index import Index
from paceline.data.loader.sample_rng import hash_keys
from paceline.models.object_task import describe_class_limits, describe_detection_limit
from paceline.tools.report.check import page_parts
from paceline.tools.report.check.tiles import CheckTile, make_tile

MOSAIC = 12  # random photos
EXAMPLES = 6  # of each kind of suspicion, and of photos in both splits
MOSAIC_SIDE, EXAMPLE_SIDE = 480, 300  # pixels of a tile's longer side: sharp at nearly twice the density of the page

# sqrt(object area / image area): what remains of a size when the image is resized to the network's input.
SIZE_EDGES = np.array([0, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, np.inf])
SIZE_LABELS = ("under 1 %", "1-2 %", "2-4 %", "4-8 %", "8-16 %", "16-32 %", "32-64 %", "over 64 %")
COUNT_EDGES = np.array([0, 1, 2, 3, 5, 9, 17, 33, 65, np.inf])
COUNT_LABELS = ("0", "1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "over 64")
SMALL_AREA, LARGE_AREA = 32**2, 96**2  # square pixels, COCO's borders of small, medium and large


@dataclass(frozen=True)
class SuspicionSummary:
    """One kind with its count in each split, and its worst examples."""

    kind: SuspicionType
    counts: dict[str, int]
    tiles: list[CheckTile]
    exact: bool  # False: there are at least so many


def make_box_page(
    root: Path,
    classes: Sequence[str],
    splits: Mapping[str, Index],
    notices: Sequence[page_parts.Notice] = (),
    linted: page_parts.LintSummary = page_parts.NOT_LINTED,
) -> page_parts.CheckPage:
    """The page.

    root     the data set's folder, for the headline
    classes  names of the classes 1..K
    splits   name -> index of a box data set, training first
    notices  further ones, from the manifest
    linted   what stands first on the page
    """
    suspicions, pairs, turned = (
        _suspicions(splits, classes),
        page_parts.twins_in_val(find_equal_photos(splits)),
        find_rotated_images(splits),
    )
    objects, images = _class_counts(splits, len(classes))
    each = np.concatenate([np.diff(index.extra["object_starts"]) for index in splits.values()])  # objects of an image
    crowd = sum(int(np.count_nonzero(index.extra["crowd"])) for index in splits.values())
    unusable = sum(int(np.count_nonzero(index.extra["usable"] == 0)) for index in splits.values())
    upright = [
        make_tile(splits[split], row, classes, side=MOSAIC_SIDE, caption=_objects(splits[split], row))
        for split, row in turned[:EXAMPLES]
    ]
    doubles = [
        make_tile(
            splits["val"],
            row,
            classes,
            side=EXAMPLE_SIDE,
            caption=f"train: {page_parts.get_file_name(splits['train'], twin)}",
        )
        for twin, row in pairs[:EXAMPLES]
    ]
    return page_parts.make_page(
        "box_page.html.jinja",
        root,
        classes,
        splits,
        [
            *linted.notices,
            *notices,
            *coordinate_notices(splits),
            *page_parts.twin_notice(len(pairs), noted=True),
            *_notices(splits, classes),
            *page_parts.turned_notice(splits, len(turned)),
        ],
        linted=linted.finds,
        boxes=sum(sum(suspicion.counts.values()) for suspicion in suspicions),
        grave=any(suspicion.kind.grave for suspicion in suspicions),
        finds=[
            page_parts.CheckExamples(
                "Photos with an EXIF rotation", f"{len(turned):,}: do boxes lie where objects are?", upright, "wide"
            ),
            page_parts.CheckExamples("Photos in both splits", f"{len(pairs):,} of val, byte for byte", doubles),
        ],
        cards=[  # (label, value, note) of the row of numbers at the top
            *(
                (f"{split} images", f"{len(index):,}", f"{len(index.extra['classes']):,} objects")
                for split, index in splits.items()
            ),
            ("classes", f"{len(classes):,}", ""),
            ("objects/image", f"{np.mean(each):.3g}" if len(each) else "0", f"at most {int(each.max(initial=0)):,}"),
            ("empty images", f"{int(np.count_nonzero(each == 0)):,}", "without objects"),
            ("crowd regions", f"{crowd:,}", "not scored"),
            ("unusable boxes", f"{unusable:,}", "not trained on"),
            ("in both splits", f"{len(pairs):,}", "equal photos"),
        ],
        balance=page_parts.class_balance(classes, objects, images),
        charts=[_sizes(splits), _counts(splits)],
        suspicions=suspicions,
        mosaic=_mosaic(splits, classes),
        masks=any(len(index.extra.get(name, ())) for index in splits.values() for name in ("polygon_points", "rle_counts")),
    )


def _notices(splits: Mapping[str, Index], classes: Sequence[str]) -> list[page_parts.Notice]:
    """Which classes and objects no training and no score can reach."""
    single = {split: np.asarray(index.extra["crowd"]) == 0 for split, index in splits.items()}
    if "train" in splits:
        single["train"] = single["train"] & (np.asarray(splits["train"].extra["usable"]) > 0)
    objects = {split: (np.asarray(index.extra["classes"]), single[split]) for split, index in splits.items()}
    limits = describe_class_limits(classes, objects)
    if "val" in splits:
        limits += describe_detection_limit(np.asarray(splits["val"].extra["object_starts"]), *objects["val"])
    return [page_parts.Notice("fair", text, warns=True) for text in limits]


def _class_counts(splits: Mapping[str, Index], num_classes: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Split -> (K,) objects of each class, and split -> (K,) images with such objects; crowds are not counted."""
    objects, images = {}, {}
    for split, index in splits.items():
        single = index.extra["crowd"] == 0
        labels = index.extra["classes"][single]
        image_of = np.repeat(np.arange(len(index)), np.diff(index.extra["object_starts"]))[single]
        pairs = np.unique(image_of * (num_classes + 1) + labels)
        objects[split] = np.bincount(labels, minlength=num_classes + 1)[1:]
        images[split] = np.bincount(pairs % (num_classes + 1), minlength=num_classes + 1)[1:]
    return objects, images


def _histogram(title: str, note: str, labels: Sequence[str], counts: Mapping[str, np.ndarray]) -> dict[str, Any]:
    shares, top = page_parts.share_rows(counts)
    columns = [
        (label, [(int(counts[split][i]), float(shares[split][i]), float(shares[split][i]) / top) for split in counts])
        for i, label in enumerate(labels)
    ]
    return {"title": title, "note": note, "columns": columns}


def _sizes(splits: Mapping[str, Index]) -> dict[str, Any]:
    counts, areas = {}, []
    for split, index in splits.items():
        image_of = np.repeat(np.arange(len(index)), np.diff(index.extra["object_starts"]))
        usable = index.extra["usable"] > 0
        boxes = np.asarray(index.extra["boxes"])[usable]
        pixels = index.heights[image_of].astype(float) * index.widths[image_of]
        with np.errstate(over="ignore"):  # of boxes that no image can hold
            shares = np.sqrt(boxes[:, 2] * boxes[:, 3] / pixels[usable])
        counts[split] = np.histogram(shares, SIZE_EDGES)[0]
        areas.append(np.asarray(index.extra["areas"])[usable])
    area = np.concatenate(areas) if areas else np.zeros(0)
    total = max(len(area), 1)
    small, large = np.count_nonzero(area < SMALL_AREA) / total, np.count_nonzero(area >= LARGE_AREA) / total
    note = (
        f"By COCO's borders (32 and 96 pixels of a square): {100 * small:.0f} % small, "
        f"{100 * (1 - small - large) if len(area) else 0:.0f} % medium, {100 * large:.0f} % large."
    )
    return _histogram("Object size, of the image's side", note, SIZE_LABELS, counts)


def _counts(splits: Mapping[str, Index]) -> dict[str, Any]:
    counts = {split: np.histogram(np.diff(index.extra["object_starts"]), COUNT_EDGES)[0] for split, index in splits.items()}
    median = {split: np.median(np.diff(index.extra["object_starts"])) for split, index in splits.items() if len(index)}
    note = ", ".join(f"median {value:g} in {split}" for split, value in median.items())
    return _histogram("Objects in an image", note[:1].upper() + note[1:] + "." if note else "", COUNT_LABELS, counts)


def _suspicions(splits: Mapping[str, Index], classes: Sequence[str]) -> list[SuspicionSummary]:
    result = {split: find_suspicious(index) for split, index in splits.items()}
    suspicions = []
    for kind in KINDS:
        of_kind = {split: suspects[kind.key] for split, suspects in result.items()}
        worst = [(split, suspect) for split, suspects in of_kind.items() for suspect in suspects.worst]
        worst = _varied(sorted(worst, key=lambda pair: -pair[1].degree))
        if worst:
            tiles = [
                make_tile(splits[split], s.image, classes, side=EXAMPLE_SIDE, focus=s.objects, caption=s.note)
                for split, s in worst
            ]
            counts = {split: suspects.count for split, suspects in of_kind.items()}
            exact = all(suspects.all_met for suspects in of_kind.values())
            suspicions.append(SuspicionSummary(kind, counts, tiles, exact))
    return suspicions


def _varied(worst: Sequence[tuple[str, SuspiciousBox]]) -> list[tuple[str, SuspiciousBox]]:
    """The first EXAMPLES, at most two of one image while there are others: one bad image would fill the row."""
    seen: dict[tuple[str, int], int] = {}
    first, rest = [], []
    for split, suspect in worst:
        key = (split, suspect.image)
        seen[key] = seen.get(key, 0) + 1
        (first if seen[key] <= 2 else rest).append((split, suspect))
        if len(first) == EXAMPLES:
            break
    return (first + rest)[:EXAMPLES]


def _mosaic(splits: Mapping[str, Index], classes: Sequence[str]) -> list[CheckTile]:
    """MOSAIC photos drawn from all splits together, always the same ones of a data set."""
    chosen = np.sort(np.argsort(hash_keys(0, 0, np.arange(sum(map(len, splits.values())))))[:MOSAIC])
    tiles, first = [], 0
    for index in splits.values():
        for image in (chosen[(chosen >= first) & (chosen < first + len(index))] - first).tolist():
            tiles.append(make_tile(index, image, classes, side=MOSAIC_SIDE, caption=_objects(index, image)))
        first += len(index)
    return tiles


def _objects(index: Index, image: int) -> str:
    number = int(index.extra["object_starts"][image + 1] - index.extra["object_starts"][image])
    return "no objects" if number == 0 else "1 object" if number == 1 else f"{number:,} objects"
