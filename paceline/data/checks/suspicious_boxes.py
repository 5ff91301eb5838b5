"""Boxes that a person should look at before training on them, and what many labels have in common that looks like a mistake of the
export: masks that mark nothing, boxes in another form. Nothing is removed: some data sets are like that. Also what all
checks share: notices, a data set's splits as people see them, equal photos, and photos that EXIF turns.

Letters: M objects of one split (of all splits for notices), in index order. Boxes are x, y, width, height in pixels of the stored
image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from paceline.config.resnet import Exif
from paceline.data.index.box_split import box_index
from paceline.data.index.index import Index, open_split
from paceline.data.index.manifest import Manifest
from paceline.data.transforms.exif import UPRIGHT

# Two pixels of a network input of 300: below, an object leaves no trace after the first stride.
TINY = 2 / 300
NEARLY_ALL = 0.95  # share of the image's area; often a label of the whole photo, drawn as a box
EXTREME_ASPECT = 10.0  # longer side over shorter one
OVER_BORDER = 2.0  # pixels beyond the image that rounding in tools does not explain
SAME_BOX = 0.95  # IoU of two boxes that were meant to be one
# Of each kind so many are described; all are counted. The page shows a few.
MAX_WORST = 1_000
# A box meets so many of those that begin right of it. Of real data none has more that are near enough to be the same.
MAX_MET = 32
# Of M objects: so large a part in another form is the form of the file, and what else fits is chance.
MAX = 0.75
# Corners taken as x y width height reach over the border where x1 + x2 does: 3 of 4 where objects lie anywhere. Good
# boxes hardly ever do.
REACHING_OVER = 0.3
# Fewer objects show no form.
MIN_OBJECTS = 4
WITHOUT = "training uses the box as the mask, and mask metrics ignore these objects"


class Notice(NamedTuple):
    """Something to know before training."""

    color: str  # "bad" or "fair"
    text: str
    noted: bool = False  # the manifest's notes, which prepare prints, have it already
    warns: bool = False  # prepare prints a warning, whatever the color


@dataclass(frozen=True)
class SuspicionType:
    """One kind of suspicion. grave: training cannot use such a box."""

    key: str
    title: str
    why: str
    grave: bool = False


KINDS = (
    SuspicionType(
        "degenerate",
        "Zero-area boxes",
        "the width or height is 0, negative, or not finite; never used for training",
        grave=True,
    ),
    SuspicionType("outside", "Boxes outside the image", "no part is inside the image; never used for training", grave=True),
    SuspicionType("two_classes", "Boxes with two classes", f"IoU above {SAME_BOX:g} with a box of another class"),
    SuspicionType("twice", "Duplicate boxes", f"IoU above {SAME_BOX:g} with a box of the same class"),
    SuspicionType("over_border", "Boxes beyond the border", f"more than {OVER_BORDER:g} pixels beyond the image"),
    SuspicionType(
        "tiny",
        "Tiny boxes",
        f"the shorter side is less than {100 * TINY:.1f}% of the image's shorter side (2 of 300 pixels)",
    ),
    SuspicionType("nearly_all", "Boxes as large as the image", f"at least {100 * NEARLY_ALL:.0f}% of the image area"),
    SuspicionType("aspect", "Very long or very tall boxes", f"one side is more than {EXTREME_ASPECT:g} times the other"),
)


@dataclass(frozen=True)
class SuspiciousBox:
    """One object (or pair of objects) of a kind. `note` is the measured value; the larger `degree`, the worse."""

    image: int
    objects: tuple[int, ...]
    note: str
    degree: float


@dataclass(frozen=True)
class SuspiciousBoxes:
    """How many there are of a kind (at least, where not `all_met`: an image has too many boxes in one place to compare
    each with each), and the MAX_WORST worst, the worst first.
    """

    count: int
    worst: list[SuspiciousBox]
    all_met: bool = True


def find_suspicious(index: Index) -> dict[str, SuspiciousBoxes]:
    """The suspects of one split by kind, KINDS' keys. Crowd regions are never suspects of size.

    index  a split of a box data set (extra: object_starts, boxes, classes, crowd)
    """
    starts, boxes = index.extra["object_starts"], np.asarray(index.extra["boxes"])
    crowd = np.asarray(index.extra["crowd"]) > 0
    image_of = np.repeat(np.arange(len(index)), np.diff(starts))
    width, height = index.widths[image_of].astype(float), index.heights[image_of].astype(float)
    with np.errstate(all="ignore"):
        x, y, w, h = boxes.T
        solid = np.isfinite(boxes).all(axis=1) & (w > 0) & (h > 0)
        over = np.maximum.reduce([-x, -y, x + w - width, y + h - height])
        outside = solid & ((x >= width) | (y >= height) | (x + w <= 0) | (y + h <= 0))
        share = w * h / (width * height)
        thin = np.minimum(w / width, h / height)
        aspect = np.maximum(w / h, h / w)
    inside = solid & ~outside & ~crowd

    def suspects(mask: np.ndarray, degree: np.ndarray, note: Callable[[int], str]) -> SuspiciousBoxes:
        rows = np.flatnonzero(mask)
        worst = rows[np.argsort(-degree[rows], kind="stable")[:MAX_WORST]]
        return SuspiciousBoxes(
            len(rows), [SuspiciousBox(int(image_of[i]), (int(i),), note(i), float(degree[i])) for i in worst]
        )

    def size(i: int) -> str:
        return f"{w[i]:.4g} x {h[i]:.4g} px"

    result = {
        "degenerate": suspects(~solid, np.zeros(len(boxes)), size),
        "outside": suspects(outside, over, lambda i: f"at {x[i]:.4g}, {y[i]:.4g}, {width[i]:.0f} x {height[i]:.0f} px"),
        "over_border": suspects(inside & (over > OVER_BORDER), over, lambda i: f"{over[i]:.4g} px beyond the border"),
        "tiny": suspects(inside & (thin < TINY), -thin, size),
        "nearly_all": suspects(inside & (share >= NEARLY_ALL), share, lambda i: f"{100 * share[i]:.0f}% of the image"),
        "aspect": suspects(inside & (aspect > EXTREME_ASPECT), aspect, lambda i: f"{aspect[i]:.3g} : 1, {size(i)}"),
    }
    return {**result, **_same_boxes(boxes, np.asarray(index.extra["classes"]), solid & ~crowd, image_of)}


def _same_boxes(
    boxes: np.ndarray, classes: np.ndarray, keep: np.ndarray, image_of: np.ndarray
) -> dict[str, SuspiciousBoxes]:
    """Pairs of boxes of one image with an IoU above SAME_BOX, by whether their classes are the same."""
    result: dict[str, list[SuspiciousBox]] = {"twice": [], "two_classes": []}
    counts = dict.fromkeys(result, 0)
    rows = np.flatnonzero(keep)
    order = rows[np.lexsort((boxes[rows, 0], image_of[rows]))]
    # By image and left edge; a box meets those behind it until the left edges are too far apart for such an IoU.
    meeting = np.arange(len(order))
    for lag in range(1, MAX_MET + 1):
        meeting = meeting[meeting + lag < len(order)]
        a, b = order[meeting], order[meeting + lag]
        near = (image_of[a] == image_of[b]) & (boxes[b, 0] - boxes[a, 0] <= (1 - SAME_BOX) * boxes[a, 2])
        meeting, a, b = meeting[near], a[near], b[near]
        iou = paired_overlaps(boxes[a], boxes[b], np.zeros(len(a), bool))
        alike = classes[a] == classes[b]
        for key, mask in (("twice", alike), ("two_classes", ~alike)):
            hits = np.flatnonzero((iou > SAME_BOX) & mask)
            counts[key] += len(hits)
            first, second = np.minimum(a[hits], b[hits]), np.maximum(a[hits], b[hits])
            for i in np.lexsort((second, first, -iou[hits]))[:MAX_WORST].tolist():
                pair, degree = (int(first[i]), int(second[i])), float(iou[hits[i]])
                result[key].append(SuspiciousBox(int(image_of[pair[0]]), pair, f"IoU {degree:.3f}", degree))
    return {
        key: SuspiciousBoxes(
            counts[key], sorted(pairs, key=lambda pair: (-pair.degree, pair.objects))[:MAX_WORST], all_met=not len(meeting)
        )
        for key, pairs in result.items()
    }


def mask_notices(manifest: Manifest) -> list[Notice]:
    """Where objects are without a mask, or have one that marks nothing of them."""
    counts = {name: split.boxes for name, split in manifest.splits.items() if split.boxes is not None}

    def text(what: str, numbers: Mapping[str, int]) -> str:
        results = [f"{number:,} in {name}" for name, number in numbers.items() if number]
        return f"{what}: {', '.join(results)}" if results else ""

    useless = [
        text("Masks without a pixel inside their image", {key: c.masks_without_pixel for key, c in counts.items()}),
        text("Masks outside their box", {key: c.masks_beside_box for key, c in counts.items()}),
    ]
    none = text("Objects without a mask among objects with masks", {key: c.without_mask for key, c in counts.items()})
    said = ". ".join(filter(None, useless))
    return [
        *([Notice("bad", f"{said}. These objects are treated as objects without a mask: {WITHOUT}.")] if said else []),
        *([Notice("fair", f"{none}: {WITHOUT}.")] if none else []),
    ]


def coordinate_notices(splits: Mapping[str, Index]) -> list[Notice]:
    """A guess at what the numbers of most boxes are, where they are not x, y, width, height in pixels."""
    boxes = np.concatenate([np.asarray(index.extra["boxes"], np.float64) for index in splits.values()])  # (M, 4)
    sizes = [
        np.repeat(np.stack([index.widths, index.heights], axis=1), np.diff(index.extra["object_starts"]), axis=0)
        for index in splits.values()
    ]
    text = guess_coordinate_format(boxes, np.concatenate(sizes))
    return [Notice("bad", text)] if text else []


def guess_coordinate_format(boxes: np.ndarray, size: np.ndarray) -> str:
    """Return what most boxes seem to be if not x, y, width, height in pixels; boxes (M, 4), size (M, 2) widths and heights."""
    if len(boxes) < MIN_OBJECTS:
        return ""
    begin, end = boxes[:, :2], boxes[:, 2:]
    fractions = (boxes >= 0).all(axis=1) & (boxes <= 1).all(axis=1) & (end > 0).all(axis=1)
    if fractions.mean() >= MAX:
        return (
            f"{np.count_nonzero(fractions):,} of {len(boxes):,} boxes have only values between 0 and 1. They look like "
            "fractions of the image, but COCO boxes are in pixels."
        )
    corners = (end > begin).all(axis=1) & (end <= size + OVER_BORDER).all(axis=1) & (begin >= -OVER_BORDER).all(axis=1)
    over = (begin + end > size + OVER_BORDER).any(axis=1)
    if corners.mean() >= MAX and (over & corners).mean() >= REACHING_OVER:
        return (
            f"{np.count_nonzero(over & corners):,} of {len(boxes):,} boxes extend beyond the image and would fit as "
            "corners. They look like x1 y1 x2 y2, but COCO boxes are x y width height."
        )
    return ""


def paired_overlaps(boxes: np.ndarray, others: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    """(n, 4) and (n, 4) x, y, width, height -> (n,) intersection over union; over the area of `boxes` alone where `crowd`.

    A pair without area overlaps 0. n may be 0.
    """
    low = np.maximum(boxes[:, :2], others[:, :2])
    high = np.minimum(boxes[:, :2] + boxes[:, 2:], others[:, :2] + others[:, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=1)
    whole = boxes[:, 2:].prod(axis=1) + np.where(crowd, 0, others[:, 2:].prod(axis=1) - shared)
    return np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)


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


def find_equal_photos(splits: Mapping[str, Index]) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    """((split, row) of the first, (split, row) of the other) for each photo that has the bytes of an earlier one."""
    names, digests = list(splits), [np.asarray(index.extra["digests"]) for index in splits.values()]
    starts = np.cumsum([0, *map(len, digests)])
    _, first, back = np.unique(np.concatenate([np.zeros(0, np.uint64), *digests]), return_index=True, return_inverse=True)

    def place(number: int) -> tuple[str, int]:
        split = int(np.searchsorted(starts, number, side="right")) - 1
        return names[split], number - int(starts[split])

    again = np.flatnonzero(first[back] != np.arange(starts[-1]))
    return [(place(int(first[back[number]])), place(int(number))) for number in again]
