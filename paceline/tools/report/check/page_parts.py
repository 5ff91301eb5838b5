"""Shared by the check pages of boxes and of class folders: notices, numbers of photos, examples, the page itself, and its photos: a
whole image, or the part around a box, with the objects drawn on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from PIL import Image, ImageDraw

from paceline.data.checks.suspicious_boxes import Notice
from paceline.data.index.index import Index
from paceline.data.transforms.image_io import open_rgb
from paceline.inference.drawing.boxes import Annotation, box_pixels, class_color, draw_annotations
from paceline.inference.drawing.masks import resample_mask
from paceline.inference.drawing.rendering import encode_jpeg_uri
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
        verdict = "bad", "Check before training"
    elif boxes or notices:
        verdict = "fair", f"{boxes:,} suspicious boxes" if boxes else "Check the notices"
    else:
        verdict = "good", "No issues found"
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


def twins_in_val(equal: Iterable[tuple[tuple[str, int], tuple[str, int]]]) -> list[tuple[int, int]]:
    """Rows (train, val) of those pairs of equal photos that lie in both splits, a pair for each such photo of val."""
    return [(first, other) for (split, first), (of_other, other) in equal if (split, of_other) == ("train", "val")]


def twin_notice(count: int, *, noted: bool) -> list[Notice]:
    """Where photos lie in both splits."""
    text = f"Images of val that are also in train (identical bytes): {count:,}. Scores will be too high."
    return [Notice("bad", text, noted)] if count else []


def twin_examples(
    splits: Mapping[str, Index], pairs: Sequence[tuple[int, int]], classes: Sequence[str], *, side: int, most: int
) -> CheckExamples:
    """Photos of val that are in train too; pairs: rows of train and val, of which `most` are shown."""
    names = [os.path.basename(os.fsdecode(splits["train"].relative_name(twin))) for twin, _ in pairs[:most]]
    tiles = [
        make_tile(splits["val"], row, classes, side=side, caption=f"train: {name}") for (_, row), name in zip(pairs, names)
    ]
    return CheckExamples("Images in both splits", f"{len(pairs):,} of val, with identical bytes", tiles)


def image_size(index: Index) -> tuple[str, str]:
    """-> the most frequent size with its share, and the range."""
    if not len(index):
        return "no images", ""
    sizes, counts = np.unique(np.stack([index.widths, index.heights], axis=1), axis=0, return_counts=True)
    width, height = sizes[counts.argmax()]
    if len(sizes) == 1:
        return f"all {width} x {height} px", ""
    most = f"{width} x {height} px in {100 * counts.max() / len(index):.0f}% of the images"
    wide, high = (f"{sides.min()} to {sides.max()}" for sides in (index.widths, index.heights))
    return most, f"width {wide}, height {high}"


def turned_notice(splits: Mapping[str, Index], count: int) -> list[Notice]:
    """Where there are such photos: how the page, and which recipes, show them."""
    if not count:
        return []
    shown = all(index.exif == "apply" for index in splits.values())
    how = "shown upright, as in training with --input.exif apply" if shown else "shown as stored, like the annotations"
    return [Notice("fair", f"Images with an EXIF rotation: {count:,}, {how}.", noted=True)]


MAX_BOXES = 150  # drawn in one tile
# A box is shown with so much around it, in its own longer side, and at least so many pixels.
AROUND = 3.0
MIN_REGION = 64.0
RIM = 0.04  # of the longer side
LETTERS = 20  # pixels: tiles have nearly twice the density of the page
# Names are written beside boxes of at least this share of the tile's width, or pointed at; others are under the pointer.
NAMED_FROM = 0.16
GRAY = (128, 130, 134)  # beyond the image


class TileBox(NamedTuple):
    """Where a drawn box lies, in percent of the tile, and what stands under the pointer there."""

    left: float
    top: float
    width: float
    height: float
    about: str


@dataclass(frozen=True)
class CheckTile:
    """One picture. photo is a data URI, "" where the file cannot be read; aspect is width / height."""

    photo: str
    aspect: float
    boxes: list[TileBox]
    caption: str
    file: str
    split: str


def make_tile(
    index: Index, image: int, names: Sequence[str] = (), *, side: int, focus: Sequence[int] = (), caption: str = ""
) -> CheckTile:
    """Image number `image`, with its objects where the data set has boxes.

    names    of the classes 1..K
    side     longer side of the tile, pixels
    focus    objects to point at: the tile shows their surroundings, other boxes faintly. None: the whole image
    """
    width, height = int(index.widths[image]), int(index.heights[image])
    boxes = np.asarray(index.extra.get("boxes", np.zeros((0, 4))))
    start, stop = index.extra["object_starts"][image : image + 2].tolist() if "boxes" in index.extra else (0, 0)
    region = _region(boxes[list(focus)], width, height)
    # The largest first, so that small ones lie above them and can be pointed at.
    with np.errstate(over="ignore"):
        areas = np.abs(boxes[start:stop, 2] * boxes[start:stop, 3])
    focused = np.isin(np.arange(start, stop), np.array(focus, np.int64))
    shown = (start + np.lexsort((-areas, focused))[-MAX_BOXES:]).tolist()
    if stop - start > MAX_BOXES:
        caption = f"{caption}; {MAX_BOXES} of {stop - start:,} objects drawn"
    picture = _part(index, image, region, side)
    drawn = []
    if picture is not None:
        marks = [_mark(index, image, row, region, picture.size, names, focus) for row in shown]
        locations = [box_pixels(mark.box, 1, 1, picture.size) for mark in marks]
        drawn = [
            _under_the_pointer(index, row, location, picture.size, names)
            for row, location in zip(shown, locations)
            if location
        ]
        picture = draw_annotations(picture, marks, width=picture.width, height=picture.height, letters=LETTERS)
    return CheckTile(
        photo="" if picture is None else encode_jpeg_uri(picture, subsampling=0 if drawn else -1),
        aspect=(region[2] - region[0]) / (region[3] - region[1]),
        boxes=drawn,
        caption=caption,
        file=index.name(image),
        split=index.split,
    )


def _region(boxes: np.ndarray, width: int, height: int) -> Region:
    """Left, top, right, bottom of what is shown; may reach beyond the image where a box does."""
    boxes = boxes[np.isfinite(boxes).all(axis=1)]
    if not len(boxes):
        return 0, 0, width, height
    left, top = boxes[:, :2].min(axis=0)
    right, bottom = (boxes[:, :2] + np.maximum(boxes[:, 2:], 0)).max(axis=0)
    # A box far away is shown at most one image beyond the border.
    left, right = np.clip([left, right], -width, 2 * width).tolist()
    top, bottom = np.clip([top, bottom], -height, 2 * height).tolist()
    side = max(AROUND * max(right - left, bottom - top), MIN_REGION)
    x, y = (0.0, width), (0.0, height)
    if side < 0.8 * max(width, height):
        x, y = _window((left + right) / 2, side, width), _window((top + bottom) / 2, side, height)
    rim = RIM * max(x[1] - x[0], y[1] - y[0])  # around a box that reaches beyond the image
    return (
        left - rim if left < x[0] else x[0],
        top - rim if top < y[0] else y[0],
        right + rim if right > x[1] else x[1],
        bottom + rim if bottom > y[1] else y[1],
    )


def _window(middle: float, side: float, length: int) -> tuple[float, float]:
    """`side` pixels around `middle`, moved to lie inside 0..length where they fit."""
    if side >= length:
        return 0, length
    first = min(max(middle - side / 2, 0), length - side)
    return first, first + side


def _part(index: Index, image: int, region: Region, side: int) -> Image.Image | None:
    """The region of a photo, its longer side of `side` pixels; None where the photo cannot be read."""
    left, top, right, bottom = region
    scale = side / max(right - left, bottom - top)
    size = max(1, round((right - left) * scale)), max(1, round((bottom - top) * scale))
    inner = max(left, 0), max(top, 0), min(right, index.widths[image]), min(bottom, index.heights[image])
    try:
        whole = region == (0, 0, index.widths[image], index.heights[image])
        photo = open_rgb(index.read(image), index.exif, least=size if whole else None)
    except Exception:  # DataError, and Pillow's format plugins raise many types on damaged bytes
        return None  # gone or changed since it was verified: the page says "image not found"
    picture = Image.new("RGB", size, GRAY)
    if inner[0] < inner[2] and inner[1] < inner[3]:
        x, y = photo.width / int(index.widths[image]), photo.height / int(index.heights[image])
        source = inner[0] * x, inner[1] * y, inner[2] * x, inner[3] * y
        inside = [round((value - region[position % 2]) * scale) for position, value in enumerate(inner)]
        inside_size = max(1, inside[2] - inside[0]), max(1, inside[3] - inside[1])
        part = photo.resize(inside_size, Image.Resampling.BICUBIC, box=source, reducing_gap=2)
        picture.paste(part, (inside[0], inside[1]))
    return picture


def _mark(
    index: Index, image: int, row: int, region: Region, size: tuple[int, int], names: Sequence[str], focus: Sequence[int]
) -> Annotation:
    """An object in a tile of this size; a box of negative size is a line or a point."""
    across, down = size[0] / (region[2] - region[0]), size[1] / (region[3] - region[1])
    x, y, w, h = np.asarray(index.extra["boxes"][row], float).tolist()
    box = (x - region[0]) * across, (y - region[1]) * down, max(w, 0) * across, max(h, 0) * down
    label, crowd = int(index.extra["classes"][row]), bool(index.extra["crowd"][row])
    if focus and row not in focus:
        return Annotation(box, label, "", "thin")
    named = focus or box[2] >= NAMED_FROM * size[0]
    name = names[label - 1] + (" (crowd)" if crowd else "") if named else ""
    return Annotation(box, label, name, "dashed" if crowd else "solid", region_mask(index, image, row, region, size))


def _under_the_pointer(
    index: Index, row: int, location: tuple[int, int, int, int], size: tuple[int, int], names: Sequence[str]
) -> TileBox:
    left, top, right, bottom = (100 * edge / size[axis % 2] for axis, edge in enumerate(location))
    x, y, w, h = index.extra["boxes"][row]
    name = names[int(index.extra["classes"][row]) - 1] + (", crowd" if index.extra["crowd"][row] else "")
    return TileBox(left, top, right - left, bottom - top, f"{name}: {w:.4g} x {h:.4g} px at {x:.4g}, {y:.4g}")


# An object's mask as a tile of the check page shows it, from what the data set has of it: polygons or run lengths.
#
# Letters: h, w pixels of the photo   H, W pixels of the tile


Region: TypeAlias = "tuple[float, float, float, float]"  # left, top, right, bottom in pixels of the photo


def region_mask(index: Index, image: int, row: int, region: Region, size: tuple[int, int]) -> np.ndarray | None:
    """The part of the mask of object `row` that lies in a region of photo number `image`, (H, W) bool; None without a mask.

    size  W, H of the tile that shows the region
    """
    extra = index.extra
    if "object_polygons" not in extra:
        return None
    scale = size[0] / (region[2] - region[0]), size[1] / (region[3] - region[1])
    first, last = extra["object_polygons"][row : row + 2].tolist()
    if last > first:
        canvas = Image.new("1", size)
        starts = extra["polygon_starts"][first : last + 1]
        for start, stop in pairwise(starts.tolist()):
            points = np.asarray(extra["polygon_points"][start:stop]).reshape(-1, 2)
            # Far outside the picture is outside: coordinates from other people's files may be of any size.
            placed = np.clip((points - region[:2]) * scale, -1e6, 1e6)
            ImageDraw.Draw(canvas).polygon([(x, y) for x, y in placed.tolist()], fill=1)
        return np.array(canvas)
    first, last = extra["object_rles"][row : row + 2].tolist()
    if last == first:
        return None
    height, width = int(index.heights[image]), int(index.widths[image])
    runs = np.asarray(extra["rle_counts"][first:last])
    whole = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T
    frame = -region[0] * scale[0], -region[1] * scale[1], *scale
    return resample_mask(whole, frame, size[1], size[0])
