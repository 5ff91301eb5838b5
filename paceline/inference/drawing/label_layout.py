"""Names beside boxes: their places and size, and a legend below a picture that has too many.

Names never cover each other, and together no more than a part of the picture: they are written smaller first, then those of the
least important boxes are left out. The color still shows the class, and a legend can name each color's class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from PIL import Image, ImageDraw

from paceline.inference.drawing.rendering import BACKGROUND, INK, load_font, shorten_text

Rectangle: TypeAlias = tuple[int, int, int, int]  # left, top, right, bottom; pixels, right and bottom outside
Color: TypeAlias = tuple[int, int, int]

# Names and the boxes' own lines hide what is to be seen: more than this share of a picture is not written on.
MAX_WRITTEN = 0.12
SMALLEST_LETTERS = 11  # pixels; smaller ones are not read
_SMALL = 3  # a box up to so many letters' heights square would vanish under a name


class PlacedLabel(NamedTuple):
    """A name with its place."""

    words: str
    place: Rectangle
    box: int  # which of the boxes it belongs to


def choose_label_layout(
    boxes: Sequence[tuple[Rectangle, str]], size: tuple[int, int], text: int
) -> tuple[list[PlacedLabel], int]:
    """The place of each name, and the height of the letters: `text`, or smaller ones where more names then find a place.

    boxes  each with its name, "" for none; the most important first
    size   of the picture
    """
    wanted = sum(bool(words) for _, words in boxes)
    heights = sorted({text, max(SMALLEST_LETTERS, round(text * 0.7)), SMALLEST_LETTERS}, reverse=True)
    results: list[PlacedLabel] = []
    best = text
    for height in (height for height in heights if height <= text):
        names = place_labels(boxes, size, height)
        if len(names) > len(results):
            results, best = names, height
        if len(results) == wanted:
            break
    return results, best


def place_labels(boxes: Sequence[tuple[Rectangle, str]], size: tuple[int, int], text: int) -> list[PlacedLabel]:
    """The place of each name; they are placed in order, and those without room are left out.

    Of the free places a name takes the one that hides the least of small boxes, the first of equal ones.

    boxes  each with its name, "" for none; the most important first
    size   of the picture
    text   height of the letters, pixels
    """
    small = np.array([box for box, _ in boxes if count_pixels(box) <= (_SMALL * text) ** 2], np.int64).reshape(-1, 4)
    taken = np.zeros((len(boxes), 4), np.int64)
    room = MAX_WRITTEN * size[0] * size[1]
    names: list[PlacedLabel] = []
    for number, (box, name) in enumerate(boxes):
        if not name:
            continue
        words = shorten_text(name, size[0] - text // 2, text)
        width, height = _extent(words, text)
        width = min(size[0], width)
        if names and width * height > room:
            continue
        locations = np.array([_inside(x, y, width, height, size) for x, y in _corners(box, width, height)])
        locations = locations[(locations[:, 1] >= 0) & ~_shared(locations, taken[: len(names)]).any(axis=1)]
        if len(locations):
            best = locations[_shared(locations, small).sum(axis=1).argmin()]
            taken[len(names)] = best
            names.append(PlacedLabel(words, (int(best[0]), int(best[1]), int(best[2]), int(best[3])), number))
            room -= width * height
    return names


def draw_labels(draw: ImageDraw.ImageDraw, names: Sequence[PlacedLabel], colors: Sequence[Color], text: int) -> None:
    """Write each name on a field of its box's color."""
    for words, location, number in names:
        draw.rectangle((location[0], location[1], location[2] - 1, location[3] - 1), colors[number])
        middle = (location[1] + location[3]) / 2
        draw.text((location[0] + text // 4, middle), words, choose_text_color(colors[number]), load_font(text), anchor="lm")


def add_legend(
    picture: Image.Image, counts: Mapping[int, int], names: Mapping[int, str], color_of: Callable[[int], Color]
) -> Image.Image:
    """The picture with a strip below it: each class's color, name and number of boxes, the most frequent first.

    counts  class -> number of boxes
    """
    text, line = 15, 30
    indices: list[tuple[int, int, int, str]] = []  # left, row, class, words
    left, row = text, 0
    for label, count in sorted(counts.items(), key=lambda item: -item[1]):
        words = shorten_text(f"{names[label]} {count}", picture.width - 4 * text, text)
        width = math.ceil(load_font(text).getlength(words)) + 3 * text
        if left > text and left + width > picture.width:
            left, row = text, row + 1
        indices.append((left, row, label, words))
        left += width
    canvas = Image.new("RGB", (picture.width, picture.height + line * (row + 1)), BACKGROUND)
    canvas.paste(picture, (0, 0))
    draw = ImageDraw.Draw(canvas)
    for left, row, label, words in indices:
        middle = picture.height + line * row + line // 2
        draw.rectangle((left, middle - text // 2, left + text, middle + text // 2), color_of(label))
        draw.text((left + text * 3 // 2, middle), words, INK, load_font(text), anchor="lm")
    return canvas


@lru_cache(maxsize=4096)
def _extent(words: str, text: int) -> tuple[int, int]:
    """Width and height of a name's field, pixels."""
    return math.ceil(load_font(text).getlength(words)) + text // 2, text + text // 4


def _corners(box: Rectangle, width: int, height: int) -> list[tuple[int, int]]:
    """Places for a name, best first: above the box; then inside a large box, outside a small one."""
    left, top, right, bottom = box
    inside = [(left, top), (right - width, top), (left, bottom - height), (right - width, bottom - height)]
    outside = [(left, bottom), (right - width, top - height), (right - width, bottom), (right, top)]
    roomy = bottom - top > 3 * height and right - left > width
    return [(left, top - height), *(inside + outside if roomy else outside + inside)]


def _inside(x: int, y: int, width: int, height: int, size: tuple[int, int]) -> Rectangle:
    """The field moved into the picture; its top is negative in a picture lower than it."""
    left, top = min(max(x, 0), size[0] - width), min(max(y, 0), size[1] - height)
    return left, top, left + width, top + height


def _shared(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """(n, 4) and (m, 4) rectangles -> (n, m): pixels that lie in both."""
    least = np.maximum(one[:, None, :2], other[None, :, :2])
    most = np.minimum(one[:, None, 2:], other[None, :, 2:])
    return (most - least).clip(min=0).prod(axis=2)


def count_pixels(rectangle: Rectangle) -> int:
    """Pixels."""
    return (rectangle[2] - rectangle[0]) * (rectangle[3] - rectangle[1])


def choose_text_color(color: tuple[int, int, int]) -> tuple[int, int, int]:
    """Black or white: whichever is read better on `colour`."""
    red, green, blue = color
    return (0, 0, 0) if 0.299 * red + 0.587 * green + 0.114 * blue > 110 else (255, 255, 255)
