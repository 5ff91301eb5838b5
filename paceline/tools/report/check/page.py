"""check.html beside a manifest, to be looked at before training; prepare writes it last, and prints its notices in the terminal too.

Of boxes: class balance of each split, object sizes, images without objects, photos that lie in both splits, boxes that look wrong
with their surroundings, and a dozen random photos with their annotations. Of class folders: photos of each class, counts, repeated,
tiny and EXIF-rotated photos.

Letters: N images, M objects of one split; K classes: of boxes 1..K, of class folders 0..K-1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline._utils.atomic_write import atomic_write, is_replaceable, remove_stale_parts
from paceline._utils.errors import DataError
from paceline._utils.text import join_names
from paceline.data.checks.suspicious_boxes import (
    KINDS,
    Notice,
    SuspicionType,
    SuspiciousBox,
    coordinate_notices,
    find_equal_photos,
    find_rotated_images,
    find_suspicious,
    mask_notices,
    names_where,
    open_displayed_splits,
)
from paceline.data.index.index import Index
from paceline.data.index.manifest import Manifest
from paceline.data.loader.sample_rng import hash_keys
from paceline.models.object_task import describe_class_limits, describe_detection_limit
from paceline.tools.report.check.page_parts import (
    NOT_LINTED,
    CheckExamples,
    CheckPage,
    CheckTile,
    LintSummary,
    class_balance,
    make_page,
    make_tile,
    share_rows,
    turned_notice,
    twin_examples,
    twin_notice,
    twins_in_val,
)

FILE_NAME = "check.html"
MOSAIC = 12  # random photos
EXAMPLES = 6  # of each kind of suspicion, and of photos in both splits
MOSAIC_SIDE, EXAMPLE_SIDE = 480, 300  # pixels of a tile's longer side: sharp at nearly twice the density of the page

# sqrt(object area / image area): what remains of a size when the image is resized to the network's input.
SIZE_EDGES = np.array([0, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, np.inf])
SIZE_LABELS = ("under 1%", "1-2%", "2-4%", "4-8%", "8-16%", "16-32%", "32-64%", "over 64%")
COUNT_EDGES = np.array([0, 1, 2, 3, 5, 9, 17, 33, 65, np.inf])
COUNT_LABELS = ("0", "1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "over 64")
SMALL_AREA, LARGE_AREA = 32**2, 96**2  # square pixels, COCO's borders of small, medium and large

MAX_GRID_CLASSES = 40  # classes with photos
CLASS_PHOTOS = 8  # of each class, and examples of each kind of find
PHOTO_SIDE = 264  # pixels of a tile's longer side: twice the density of the page
TINY = 32  # pixels of the shorter side: less than any network's input
FEW, UNEVEN = 10, 20  # photos of a class in train; times as many in the largest class as in the smallest


def make_check_page(manifest: Manifest, splits: Mapping[str, Index], linted: LintSummary = NOT_LINTED) -> CheckPage:
    """The page of a data set; splits: as `open_displayed_splits`; linted: what stands first."""
    if manifest.kind == "boxes":
        return make_box_page(manifest.called, manifest.classes, splits, mask_notices(manifest), linted)
    return make_class_page(manifest.called, manifest.class_names or manifest.classes, splits, linted)


def write_check_page(manifest: Manifest) -> tuple[Path | None, CheckPage]:
    """Write FOLDER/check.html beside the manifest -> its path, None where another file is in its place, and its content.

    Raises DataError where the index is damaged, or the page cannot be written.
    """
    page = make_check_page(manifest, open_displayed_splits(manifest))
    path = manifest.folder / FILE_NAME
    if not is_replaceable(path):
        return None, page
    try:
        remove_stale_parts(path.parent, {path.name})
        atomic_write(path, page.html.encode("utf-8", "replace"))
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}). Make the folder writable.") from error
    return path, page


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
    notices: Sequence[Notice] = (),
    linted: LintSummary = NOT_LINTED,
) -> CheckPage:
    """The page.

    root     the data set's folder, for the headline
    classes  names of the classes 1..K
    splits   name -> index of a box data set, training first
    notices  further ones, from the manifest
    linted   what stands first on the page
    """
    suspicions, pairs, turned = (
        _suspicions(splits, classes),
        twins_in_val(find_equal_photos(splits)),
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
    return make_page(
        "box_page.html.jinja",
        root,
        classes,
        splits,
        [
            *linted.notices,
            *notices,
            *coordinate_notices(splits),
            *twin_notice(len(pairs), noted=True),
            *_box_notices(splits, classes),
            *turned_notice(splits, len(turned)),
        ],
        linted=linted.finds,
        boxes=sum(sum(suspicion.counts.values()) for suspicion in suspicions),
        grave=any(suspicion.kind.grave for suspicion in suspicions),
        finds=[
            CheckExamples(
                "Images with an EXIF rotation", f"{len(turned):,}. Check that the boxes match the objects", upright, "wide"
            ),
            twin_examples(splits, pairs, classes, side=EXAMPLE_SIDE, most=EXAMPLES),
        ],
        cards=[  # (label, value, note) of the row of numbers at the top
            *(
                (f"{split} images", f"{len(index):,}", f"{len(index.extra['classes']):,} objects")
                for split, index in splits.items()
            ),
            ("classes", f"{len(classes):,}", ""),
            ("objects per image", f"{np.mean(each):.3g}" if len(each) else "0", f"at most {int(each.max(initial=0)):,}"),
            ("empty images", f"{int(np.count_nonzero(each == 0)):,}", "without objects"),
            ("crowd regions", f"{crowd:,}", "ignored in metrics"),
            ("unusable boxes", f"{unusable:,}", "ignored in training"),
            ("in both splits", f"{len(pairs):,}", "identical images"),
        ],
        balance=class_balance(classes, objects, images),
        charts=[_sizes(splits), _counts(splits)],
        suspicions=suspicions,
        mosaic=_mosaic(splits, classes),
        masks=any(len(index.extra.get(name, ())) for index in splits.values() for name in ("polygon_points", "rle_counts")),
    )


def _box_notices(splits: Mapping[str, Index], classes: Sequence[str]) -> list[Notice]:
    """Which classes and objects no training and no score can reach."""
    single = {split: np.asarray(index.extra["crowd"]) == 0 for split, index in splits.items()}
    if "train" in splits:
        single["train"] = single["train"] & (np.asarray(splits["train"].extra["usable"]) > 0)
    objects = {split: (np.asarray(index.extra["classes"]), single[split]) for split, index in splits.items()}
    limits = describe_class_limits(classes, objects)
    if "val" in splits:
        limits += describe_detection_limit(np.asarray(splits["val"].extra["object_starts"]), *objects["val"])
    return [Notice("fair", text, warns=True) for text in limits]


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
    shares, top = share_rows(counts)
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
        f"COCO sizes (limits: 32 x 32 and 96 x 96 pixels): {100 * small:.0f}% small, "
        f"{100 * (1 - small - large) if len(area) else 0:.0f}% medium, {100 * large:.0f}% large."
    )
    return _histogram("Object size (of the image side)", note, SIZE_LABELS, counts)


def _counts(splits: Mapping[str, Index]) -> dict[str, Any]:
    counts = {split: np.histogram(np.diff(index.extra["object_starts"]), COUNT_EDGES)[0] for split, index in splits.items()}
    median = {split: np.median(np.diff(index.extra["object_starts"])) for split, index in splits.items() if len(index)}
    note = ", ".join(f"median {value:g} in {split}" for split, value in median.items())
    return _histogram("Objects per image", note[:1].upper() + note[1:] + "." if note else "", COUNT_LABELS, counts)


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


def make_class_page(
    root: Path, classes: Sequence[str], splits: Mapping[str, Index], linted: LintSummary = NOT_LINTED
) -> CheckPage:
    """The page.

    root     the data set's folder, for the headline
    classes  readable names of the classes
    splits   name -> index of a class-folder data set, training first where it is there; the first one is what is shown
    linted   what stands first on the page
    """
    counts = {split: np.bincount(index.labels, minlength=len(classes)) for split, index in splits.items()}
    first, shown = next(iter(counts.items()))
    equal = find_equal_photos(splits)
    pairs = twins_in_val(equal)
    repeats = [(row, other) for (split, row), (of_other, other) in equal if split == of_other == first]
    conflicts = [pair for pair in repeats if splits[first].labels[pair[0]] != splits[first].labels[pair[1]]]
    tiny = [
        (split, row)
        for split, index in splits.items()
        for row in np.flatnonzero(np.minimum(index.heights, index.widths) < TINY).tolist()
    ]
    turned = find_rotated_images(splits)
    notices = twin_notice(len(pairs), noted=False) + _class_notices(counts, classes, len(conflicts), len(tiny))
    return make_page(
        "page.html.jinja",
        root,
        classes,
        splits,
        [*linted.notices, *notices, *turned_notice(splits, len(turned))],
        finds=_finds(splits, classes, pairs, conflicts, tiny, turned),
        linted=linted.finds,
        cards=[  # (label, value, note) of the row of numbers at the top
            *((f"{split} images", f"{len(index):,}", "") for split, index in splits.items()),
            ("classes", f"{len(shown):,}", ""),
            ("images per class", f"{np.mean(shown):.3g}", f"in {first}: {shown.min():,} to {shown.max():,}"),
            ("in both splits", f"{len(pairs):,}", "identical images"),
            (f"duplicates in {first}", f"{len(repeats):,}", "identical images"),
            ("tiny images", f"{len(tiny):,}", f"under {TINY} px"),
            ("EXIF-rotated", f"{len(turned):,}", "images"),
        ],
        balance=class_balance(classes, counts, counts),
        grid=_grid(splits, classes, counts),
    )


def _class_notices(counts: Mapping[str, np.ndarray], classes: Sequence[str], conflicts: int, tiny: int) -> list[Notice]:
    notices = []
    first, shown = next(iter(counts.items()))
    if conflicts:
        notices.append(Notice("bad", f"Identical images in more than one class of {first}: {conflicts:,}."))
    for split, values in counts.items():
        if lacking := names_where((values == 0) & (shown > 0), classes):
            notices.append(Notice("fair", f"Classes without images in {split} (not evaluated): {join_names(lacking, 12)}."))
    if few := names_where(shown < FEW, classes):
        notices.append(Notice("fair", f"Classes with fewer than {FEW} images in {first}: {join_names(few, 12)}."))
    most, least = int(shown.argmax()), int(shown.argmin())
    if shown[most] >= UNEVEN * max(int(shown[least]), 1):
        text = f"{classes[most]} has {shown[most]:,} images in {first}, {classes[least]} has {shown[least]:,}"
        notices.append(Notice("fair", f"Class imbalance: {text}."))
    if tiny:
        notices.append(Notice("fair", f"Images with a side shorter than {TINY} pixels: {tiny:,}."))
    return notices


def _finds(
    splits: Mapping[str, Index],
    classes: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    conflicts: Sequence[tuple[int, int]],
    tiny: Sequence[tuple[str, int]],
    turned: Sequence[tuple[str, int]],
) -> list[CheckExamples]:
    name, first = next(iter(splits.items()))

    def tiles(rows: Sequence[tuple[Index, int, str]]) -> list[CheckTile]:
        return [make_tile(index, row, side=PHOTO_SIDE, caption=caption) for index, row, caption in rows]

    doubles = [
        (first, row, f"{classes[first.labels[row]]}, and {classes[first.labels[twin]]}")
        for twin, row in conflicts[:CLASS_PHOTOS]
    ]
    small = [(splits[split], row, _size_text(splits[split], row)) for split, row in tiny[:CLASS_PHOTOS]]
    upright = [(splits[split], row, classes[int(splits[split].labels[row])]) for split, row in turned[:CLASS_PHOTOS]]
    return [
        twin_examples(splits, pairs, classes, side=PHOTO_SIDE, most=CLASS_PHOTOS),
        CheckExamples("Images in more than one class", f"{len(conflicts):,} identical images of {name}", tiles(doubles)),
        CheckExamples("Tiny images", f"{len(tiny):,} with a side under {TINY} pixels", tiles(small)),
        CheckExamples("Images with an EXIF rotation", f"{len(turned):,}, shown upright", tiles(upright)),
    ]


def _grid(
    splits: Mapping[str, Index], classes: Sequence[str], counts: Mapping[str, np.ndarray]
) -> list[tuple[str, str, list[CheckTile]]]:
    """(name, counts, photos of the first split) of up to MAX_GRID_CLASSES classes, evenly spread; always the same photos of a set."""
    first = next(iter(splits.values()))
    drawn = np.argsort(hash_keys(0, 0, np.arange(len(first))), kind="stable")
    shown = np.unique(np.linspace(0, len(classes) - 1, min(len(classes), MAX_GRID_CLASSES)).astype(int))
    grid = []
    for k in shown.tolist():
        rows = drawn[first.labels[drawn] == k][:CLASS_PHOTOS].tolist()
        tiles = [make_tile(first, row, side=PHOTO_SIDE, caption=_size_text(first, row)) for row in rows]
        grid.append((classes[k], ", ".join(f"{values[k]:,} in {split}" for split, values in counts.items()), tiles))
    return grid


def _size_text(index: Index, row: int) -> str:
    return f"{index.widths[row]} x {index.heights[row]} px"
