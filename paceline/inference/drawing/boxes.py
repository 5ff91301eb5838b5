"""Photos with boxes and masks: predictions, annotations, or both beside each other; and training samples as `paceline preview`
shows them.

A box is left, top, width, height in pixels of the photo as it is given. Classes are 1..K; a class has one color in
every picture. Boxes are cut at the photo's border; one without any pixel inside, or with a number that is none, is not
drawn. Names never cover each other, and not the picture.
Letters: n objects   H, W pixels of the network's input
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from PIL import Image, ImageDraw

from paceline.inference.drawing.masks import Mask, draw_masks, instance_color, resample_mask
from paceline.inference.drawing.rendering import BACKGROUND, INK, Photo, fit_image, load_font, shorten_text, to_pil

# Far apart for the eye and bright enough on dark and on light photos; neighboring classes differ most.
PALETTE = (
    (255, 112, 67), (64, 170, 255), (120, 214, 75), (236, 102, 210), (255, 205, 40), (50, 214, 200),
    (166, 128, 255), (255, 82, 100), (196, 226, 66), (90, 120, 255), (240, 165, 110), (60, 200, 120),
)  # fmt: skip
_HALO = (10, 12, 16)
CROWD = 12  # from so many boxes on, frames are no thicker than a twelfth of the middle one's side
_DASH = 5  # a dash's length in line widths, and the gap's
# Pixels of a sample's picture: photos at most this large, objects and their names on this much.
LARGEST, OBJECTS_SIDE = 224, 320


@dataclass(frozen=True)
class Annotation:
    """One box of a picture."""

    box: tuple[float, float, float, float]  # left, top, width, height; pixels of the photo
    label: int  # class 1..K, picks the color
    text: str  # written beside the box; "" for nothing
    line: Literal["solid", "dashed", "thin"] = "solid"  # dashed draws attention, thin is a box near the one that is shown
    mask: Mask | None = None  # of the whole photo, see masks.py; None for a box alone
    hue: int | None = None  # number of the mask's hue among its class's; None: the next one, counted through the picture


def class_color(label: int) -> tuple[int, int, int]:
    """The color of class 1..K."""
    return PALETTE[(label - 1) % len(PALETTE)]


def sort_largest_first(marks: Sequence[Annotation]) -> list[Annotation]:
    """The same marks, so that the names of the large boxes find their places first."""
    return sorted(marks, key=lambda mark: -mark.box[2] * mark.box[3])


def draw_annotations(
    photo: Photo,
    marks: Sequence[Annotation],
    *,
    width: int,
    height: int,
    letters: int = 0,
    legend: Mapping[int, str] | None = None,
) -> Image.Image:
    """The photo, whole and as large as fits into `width` times `height`, with its boxes.

    marks    the most important first: names find their places in this order
    letters  their height, pixels; 0: as suits the picture
    legend   classes and their names: they stand below the picture, beyond `height`, where a mark's name finds no place
    """
    picture = to_pil(photo)
    sharp = fit_image(picture, width, height)
    across, down = sharp.width / picture.width, sharp.height / picture.height
    placed = [(location, mark) for mark in marks if (location := box_pixels(mark.box, across, down, sharp.size))]
    drawn, names = _with_marks(sharp, placed, letters)
    if legend is None or names == sum(bool(mark.text) for _, mark in placed):
        return drawn
    return add_legend(drawn, Counter(mark.label for _, mark in placed), legend, class_color)


def draw_side_by_side(
    photo: Photo, left: Sequence[Annotation], right: Sequence[Annotation], *, width: int, height: int
) -> Image.Image:
    """The photo twice, with the left and with the right marks; each half fits into `width` times `height`."""
    first = draw_annotations(photo, left, width=width, height=height)
    second = draw_annotations(photo, right, width=width, height=height)
    gap = 6
    canvas = Image.new("RGB", (2 * first.width + gap, first.height), BACKGROUND)
    canvas.paste(first, (0, 0))
    canvas.paste(second, (first.width + gap, 0))
    return canvas


def box_pixels(
    box: tuple[float, float, float, float], across: float, down: float, size: tuple[int, int]
) -> Rectangle | None:
    """A box's rectangle in a picture, cut at its border and at least one pixel large; None where nothing is left.

    box           left, top, width, height in pixels of the photo
    across, down  pixels of the picture, of this size, for one of the photo
    """
    left, top, width, height = box
    if not all(map(math.isfinite, box)) or width < 0 or height < 0:
        return None
    edges = left * across, top * down, (left + width) * across, (top + height) * down
    if edges[0] >= size[0] or edges[1] >= size[1] or edges[2] < 0 or edges[3] < 0:
        return None
    x, y = (round(min(max(edge, 0), most - 1)) for edge, most in zip(edges[:2], size))
    return x, y, max(x + 1, round(min(edges[2], size[0]))), max(y + 1, round(min(edges[3], size[1])))


def _with_marks(picture: Image.Image, placed: list[tuple[Rectangle, Annotation]], letters: int) -> tuple[Image.Image, int]:
    """A copy of the picture with the boxes drawn, the small ones over the large ones, and the names over all boxes.

    -> it, and the number of names that found a place
    """
    side = math.sqrt(picture.width * picture.height)
    line, text = max(2, round(side / 220)), min(max(round(side / 24), 12), 30)
    masks, of_class = [], Counter[int]()
    for _, mark in placed:
        if mark.mask is not None:
            number = of_class[mark.label] if mark.hue is None else mark.hue
            masks.append((mark.mask, instance_color(class_color(mark.label), number)))
            of_class[mark.label] += 1
    if masks:  # they show more than the frames, which become thinner
        picture = draw_masks(picture, masks, line=max(1, line // 3))
        line, text = max(2, line // 2), max(11, round(text * 0.85))
    if letters:
        line, text = max(2, letters // 6), letters
    if len(placed) >= CROWD:
        sides = [min(right - left, bottom - top) for (left, top, right, bottom), _ in placed]
        line = max(1, min(line, round(median(sides) / 12)))
    canvas = picture.copy()
    draw = ImageDraw.Draw(canvas)
    for rectangle, mark in sorted(placed, key=lambda pair: -count_pixels(pair[0])):
        _outline(draw, rectangle, class_color(mark.label), line, mark.line)
    names, text = choose_label_layout([(box, mark.text) for box, mark in placed], picture.size, text)
    draw_labels(draw, names, [class_color(mark.label) for _, mark in placed], text)
    return canvas, len(names)


def _outline(draw: ImageDraw.ImageDraw, rectangle: Rectangle, color: tuple[int, int, int], width: int, line: str) -> None:
    """A frame inside the rectangle, with a dark edge on either side that keeps it visible on any photo."""
    left, top, right, bottom = rectangle[0], rectangle[1], rectangle[2] - 1, rectangle[3] - 1
    if line == "thin":
        draw.rectangle((left, top, right, bottom), outline=color)
        return
    inner = min(width, (right - left) // 2 + 1, (bottom - top) // 2 + 1)  # of a tiny box the frame leaves nothing
    draw.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=_HALO, width=inner + 2)
    if line == "solid":
        thin = min(right - left, bottom - top) < 2  # of such boxes Pillow's outline reaches beyond the corners
        draw.rectangle((left, top, right, bottom), color if thin else None, color, inner)
        return
    dash = _DASH * inner
    for start in range(left, right + 1, 2 * dash):
        end = min(start + dash - 1, right)
        draw.rectangle((start, top, end, top + inner - 1), color)
        draw.rectangle((start, bottom - inner + 1, end, bottom), color)
    for start in range(top, bottom + 1, 2 * dash):
        end = min(start + dash - 1, bottom)
        draw.rectangle((left, start, left + inner - 1, end), color)
        draw.rectangle((right - inner + 1, start, right, end), color)


def draw_sample(pixels: np.ndarray, label: Any, classes: Sequence[str]) -> tuple[Image.Image, str]:
    """A training sample, (H, W, 3) uint8 with its label: the photo and its class, or its objects and their number.

    A label that is a string is the caption.

    Boxes are in fractions of the pixels. With masks boxes are in pixels, and a canvas has a ring of one pixel (paceline.data.batch).
    """
    from paceline.data.batch import InstanceObjects, Objects  # loads torch, which no other drawing needs

    if not isinstance(label, Objects):
        picture = Image.fromarray(pixels)
        picture.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
        return picture, label if isinstance(label, str) else classes[int(label)]
    height, width = pixels.shape[:2]
    if isinstance(label, InstanceObjects):
        edges = label.boxes
        frames = zip(label.canvases, label.frames.tolist())
        masks = [
            resample_mask(canvas[1:-1, 1:-1], frame, height, width) if len(canvas) > 2 else None for canvas, frame in frames
        ]
    else:
        edges, masks = label.boxes * np.array([width, height, width, height]), [None] * len(label.boxes)
    marks = [
        Annotation((left, top, right - left, bottom - top), number, classes[int(number) - 1], mask=mask)
        for (left, top, right, bottom), number, mask in zip(edges.tolist(), label.classes.tolist(), masks)
    ]
    picture = draw_annotations(pixels, sort_largest_first(marks), width=OBJECTS_SIDE, height=OBJECTS_SIDE)
    return picture, f"{len(marks)} object{'' if len(marks) == 1 else 's'}"


# Names beside boxes: their places and size, and a legend below a picture that has too many.
#
# Names never cover each other, and together no more than a part of the picture: they are written smaller first, then those of the
# least important boxes are left out. The color still shows the class, and a legend can name each color's class.

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
