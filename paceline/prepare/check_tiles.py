"""Photos of the check page: a whole image, or the part around a box, as a small JPEG with the boxes to draw over it."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from paceline.data.index import Index
from paceline.data.picture import open_rgb
from paceline.prepare.check_masks import paint_masks

MOST_BOXES = 150  # drawn in one tile
# A box is shown with so much around it, in its own longer side, and at least so many pixels.
AROUND = 3.0
LEAST_REGION = 64.0
RIM = 0.04  # of the longer side
# Names are written on boxes of at least this share of the tile's width; on others they only appear under the pointer.
NAMED_FROM = 0.16
GREY = (128, 130, 134)  # beyond the image


@dataclass(frozen=True)
class TileBox:
    """A box to draw; left, top, width, height in percent of the tile."""

    left: float
    top: float
    width: float
    height: float
    name: str
    about: str  # shown under the pointer
    hue: float  # degrees, one for each class
    style: str  # "focus" ("focus second" where a pair is pointed at), "other", "crowd" or "plain"
    named: bool


@dataclass(frozen=True)
class Tile:
    """One picture. photo is a data URI, "" where the file cannot be read; aspect is width / height."""

    photo: str
    aspect: float
    boxes: list[TileBox]
    caption: str
    file: str
    split: str


def class_hue(k: int) -> float:
    """Degrees of a class's colour: steps of the golden angle, so that neighbours differ whatever K is."""
    return (k - 1) * 137.508 % 360


def make_tile(
    index: Index, image: int, names: Sequence[str], *, side: int, focus: Sequence[int] = (), caption: str = ""
) -> Tile:
    """Image number `image` with its boxes.

    names    of the classes 1..K
    side     longer side of the tile, pixels
    focus    objects to point at: the tile shows their surroundings, other boxes faintly. None: the whole image
    """
    width, height = int(index.widths[image]), int(index.heights[image])
    boxes = np.asarray(index.extra["boxes"])
    region = _region(boxes[list(focus)], width, height)
    start, stop = int(index.extra["object_starts"][image]), int(index.extra["object_starts"][image + 1])
    # The largest first, so that small ones lie above them and can be pointed at.
    with np.errstate(over="ignore"):
        areas = np.abs(boxes[start:stop, 2] * boxes[start:stop, 3])
    focused = np.isin(np.arange(start, stop), np.array(focus, np.int64))
    shown = start + np.lexsort((-areas, focused))[-MOST_BOXES:]
    drawn = [_tile_box(index, i, region, names, focus) for i in shown.tolist()]
    if stop - start > MOST_BOXES:
        caption = f"{caption}; {MOST_BOXES} of {stop - start:,} objects drawn"
    hues = [class_hue(int(index.extra["classes"][i])) for i in shown]
    return Tile(
        photo=_photo(index, image, region, side, shown.tolist(), hues),
        aspect=(region[2] - region[0]) / (region[3] - region[1]),
        boxes=[box for box in drawn if box is not None],
        caption=caption,
        file=index.name(image),
        split=index.split,
    )


def _region(boxes: np.ndarray, width: int, height: int) -> tuple[float, float, float, float]:
    """Left, top, right, bottom of what is shown; may reach beyond the image where a box does."""
    boxes = boxes[np.isfinite(boxes).all(axis=1)]
    if not len(boxes):
        return 0, 0, width, height
    left, top = boxes[:, :2].min(axis=0)
    right, bottom = (boxes[:, :2] + np.maximum(boxes[:, 2:], 0)).max(axis=0)
    # A box far away is shown at most one image beyond the border.
    left, right = np.clip([left, right], -width, 2 * width).tolist()
    top, bottom = np.clip([top, bottom], -height, 2 * height).tolist()
    side = max(AROUND * max(right - left, bottom - top), LEAST_REGION)
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


def class_tile(index: Index, image: int, *, side: int, caption: str = "") -> Tile:
    """A photo of class folders, whole."""
    width, height = int(index.widths[image]), int(index.heights[image])
    return Tile(
        photo=_photo(index, image, (0, 0, width, height), side),
        aspect=width / height,
        boxes=[],
        caption=caption,
        file=index.name(image),
        split=index.split,
    )


def _photo(
    index: Index,
    image: int,
    region: tuple[float, float, float, float],
    side: int,
    objects: Sequence[int] = (),
    hues: Sequence[float] = (),
) -> str:
    """objects, hues: whose masks are painted, where they have any."""
    left, top, right, bottom = region
    scale = side / max(right - left, bottom - top)
    size = max(1, round((right - left) * scale)), max(1, round((bottom - top) * scale))
    inner = max(left, 0), max(top, 0), min(right, index.widths[image]), min(bottom, index.heights[image])
    try:
        whole = region == (0, 0, index.widths[image], index.heights[image])
        photo = open_rgb(index.read(image), index.exif, least=size if whole else None)
    except Exception:  # DataError, and Pillow's format plugins raise many types on damaged bytes
        return ""  # gone or changed since it was verified: the page says "photo not found"
    picture = Image.new("RGB", size, GREY)
    if inner[0] < inner[2] and inner[1] < inner[3]:
        to_decoded = photo.width / int(index.widths[image]), photo.height / int(index.heights[image])
        x, y = to_decoded
        source = inner[0] * x, inner[1] * y, inner[2] * x, inner[3] * y
        inside = [round((value - region[place % 2]) * scale) for place, value in enumerate(inner)]
        inside_size = max(1, inside[2] - inside[0]), max(1, inside[3] - inside[1])
        part = photo.resize(inside_size, Image.Resampling.BICUBIC, box=source, reducing_gap=2)
        picture.paste(part, (inside[0], inside[1]))
    if objects:
        picture = paint_masks(picture, index, image, region, objects, hues)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _tile_box(
    index: Index, i: int, region: tuple[float, float, float, float], names: Sequence[str], focus: Sequence[int]
) -> TileBox | None:
    """None where no part of the box lies in the region."""
    x, y, w, h = (float(value) for value in index.extra["boxes"][i])
    if not np.isfinite([x, y, w, h]).all():
        return None
    left, top, right, bottom = region
    x0, x1 = max(x, left), min(x + max(w, 0), right)
    y0, y1 = max(y, top), min(y + max(h, 0), bottom)
    if x0 > x1 or y0 > y1:
        return None
    crowd = bool(index.extra["crowd"][i])
    k = int(index.extra["classes"][i])
    share = (x1 - x0) / (right - left)
    return TileBox(
        left=100 * (x0 - left) / (right - left),
        top=100 * (y0 - top) / (bottom - top),
        width=100 * share,
        height=100 * (y1 - y0) / (bottom - top),
        name=names[k - 1],
        about=f"{names[k - 1]}{', crowd' if crowd else ''}: {w:.4g} x {h:.4g} px at {x:.4g}, {y:.4g}",
        hue=class_hue(k),
        style=_style(i, focus, crowd),
        named=i in focus or (not focus and share >= NAMED_FROM),
    )


def _style(i: int, focus: Sequence[int], crowd: bool) -> str:
    if i in focus:
        return "focus second" if i in focus[1:] else "focus"
    return "other" if focus else "crowd" if crowd else "plain"
