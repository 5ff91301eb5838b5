"""Photos with boxes and masks: what was found, what was annotated, both beside each other, and training images with objects.

A box is left, top, width, height in pixels of the photo as it is given. Classes are 1..K; a class has one colour in
every picture. Boxes are cut at the photo's border; one without any pixel inside, or with a number that is none, is not
drawn. Names never cover each other, and not the picture (draw_names.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from PIL import Image, ImageDraw

from paceline.batch.detection import Objects
from paceline.batch.instances import InstanceObjects
from paceline.report.draw import BACKGROUND, MOST_ENLARGED, Photo, to_picture
from paceline.report.draw_masks import Mask, canvas_pixels, instance_colour, with_masks
from paceline.report.draw_names import Rectangle, area, best_names, with_legend, write_names

# Far apart for the eye and bright enough on dark and on light photos; neighbouring classes differ most.
PALETTE = (
    (255, 112, 67), (64, 170, 255), (120, 214, 75), (236, 102, 210), (255, 205, 40), (50, 214, 200),
    (166, 128, 255), (255, 82, 100), (196, 226, 66), (90, 120, 255), (240, 165, 110), (60, 200, 120),
)  # fmt: skip
_HALO = (10, 12, 16)
CROWD = 12  # from so many boxes on, frames are no thicker than a twelfth of the middle one's side
_DASH = 5  # a dash's length in line widths, and the gap's


@dataclass(frozen=True)
class Mark:
    """One box of a picture.

    box    left, top, width, height; pixels of the photo
    label  class 1..K, picks the colour
    text   what is written beside the box; "" for nothing
    line   dashed for a box that wants attention
    mask   of the whole photo, see draw_masks.py; None for a box alone
    hue    which of its class's hues the mask has, 0, 1, 2, ...; None: the next one, counted through the picture
    """

    box: tuple[float, float, float, float]
    label: int
    text: str
    line: Literal["solid", "dashed"] = "solid"
    mask: Mask | None = None
    hue: int | None = None


def colour_of(label: int) -> tuple[int, int, int]:
    """The colour of class 1..K."""
    return PALETTE[(label - 1) % len(PALETTE)]


def marks_picture(
    photo: Photo,
    marks: Sequence[Mark],
    *,
    width: int,
    height: int,
    most_enlarged: float = MOST_ENLARGED,
    legend: Mapping[int, str] | None = None,
) -> Image.Image:
    """The photo, whole and as large as fits into `width` times `height`, with its boxes.

    marks   the most important first: names find their places in this order
    legend  classes and their names: they stand below the picture, beyond `height`, where a mark's name finds no place
    """
    picture = to_picture(photo)
    scale = min(width / picture.width, height / picture.height, most_enlarged)
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    sharp = picture if size == picture.size else picture.resize(size, Image.Resampling.LANCZOS)
    across, down = size[0] / picture.width, size[1] / picture.height
    placed = [(rectangle, mark) for mark in marks if (rectangle := _pixels(mark, across, down, size))]
    drawn, names = _with_marks(sharp, placed)
    if legend is None or names == sum(bool(mark.text) for _, mark in placed):
        return drawn
    return with_legend(drawn, Counter(mark.label for _, mark in placed), legend, colour_of)


def beside(photo: Photo, left: Sequence[Mark], right: Sequence[Mark], *, width: int, height: int) -> Image.Image:
    """The photo twice, with the left and with the right marks; each half fits into `width` times `height`."""
    first = marks_picture(photo, left, width=width, height=height)
    second = marks_picture(photo, right, width=width, height=height)
    gap = 6
    canvas = Image.new("RGB", (2 * first.width + gap, first.height), BACKGROUND)
    canvas.paste(first, (0, 0))
    canvas.paste(second, (first.width + gap, 0))
    return canvas


def objects_picture(photo: Photo, objects: Objects, names: Sequence[str], *, side: int) -> Image.Image:
    """A training image with its objects, enlarged or reduced so that the longer side has `side` pixels.

    objects  boxes as fractions of the photo
    names    of classes 1..K
    """
    picture = to_picture(photo)
    marks = [
        Mark(
            (
                left * picture.width,
                top * picture.height,
                (right - left) * picture.width,
                (bottom - top) * picture.height,
            ),
            label,
            names[int(label) - 1],
        )
        for (left, top, right, bottom), label in zip(objects.boxes.tolist(), objects.classes.tolist())
    ]
    marks.sort(key=lambda mark: -mark.box[2] * mark.box[3])  # the large ones are named first
    return marks_picture(picture, marks, width=side, height=side)


def instances_picture(photo: Photo, objects: InstanceObjects, names: Sequence[str], *, side: int) -> Image.Image:
    """A training image with its objects and their masks as they are handed to the network, scaled as by `objects_picture`.

    objects  boxes and frames in pixels of the photo
    names    of classes 1..K
    """
    picture = to_picture(photo)
    marks = [
        Mark(
            (left, top, right - left, bottom - top),
            label,
            names[int(label) - 1],
            mask=canvas_pixels(canvas, frame, picture.height, picture.width),
        )
        for (left, top, right, bottom), label, canvas, frame in zip(
            objects.boxes.tolist(), objects.classes.tolist(), objects.canvases, objects.frames.tolist()
        )
    ]
    marks.sort(key=lambda mark: -mark.box[2] * mark.box[3])  # the large ones are named first
    return marks_picture(picture, marks, width=side, height=side)


def _pixels(mark: Mark, across: float, down: float, size: tuple[int, int]) -> Rectangle | None:
    """The mark's rectangle in the picture, cut at its border and at least one pixel large; None where nothing is left."""
    left, top, width, height = mark.box
    if not all(map(math.isfinite, mark.box)) or width < 0 or height < 0:
        return None
    edges = left * across, top * down, (left + width) * across, (top + height) * down
    if edges[0] >= size[0] or edges[1] >= size[1] or edges[2] < 0 or edges[3] < 0:
        return None
    x, y = (round(min(max(edge, 0), most - 1)) for edge, most in zip(edges[:2], size))
    return x, y, max(x + 1, round(min(edges[2], size[0]))), max(y + 1, round(min(edges[3], size[1])))


def _with_marks(picture: Image.Image, placed: list[tuple[Rectangle, Mark]]) -> tuple[Image.Image, int]:
    """A copy of the picture with the boxes drawn, the small ones over the large ones, and the names over all boxes.

    -> it, and the number of names that found a place
    """
    side = math.sqrt(picture.width * picture.height)
    line, text = max(2, round(side / 220)), min(max(round(side / 24), 12), 30)
    masks, of_class = [], Counter[int]()
    for _, mark in placed:
        if mark.mask is not None:
            number = of_class[mark.label] if mark.hue is None else mark.hue
            masks.append((mark.mask, instance_colour(colour_of(mark.label), number)))
            of_class[mark.label] += 1
    if masks:  # they tell more than the frames, which step back
        picture = with_masks(picture, masks, line=max(1, line // 3))
        line, text = max(2, line // 2), max(11, round(text * 0.85))
    if len(placed) >= CROWD:
        line = max(
            1,
            min(line, round(median(min(right - left, bottom - top) for (left, top, right, bottom), _ in placed) / 12)),
        )
    canvas = picture.copy()
    draw = ImageDraw.Draw(canvas)
    for rectangle, mark in sorted(placed, key=lambda pair: -area(pair[0])):
        _outline(draw, rectangle, colour_of(mark.label), line, mark.line)
    names, text = best_names([(box, mark.text) for box, mark in placed], picture.size, text)
    write_names(draw, names, [colour_of(mark.label) for _, mark in placed], text)
    return canvas, len(names)


def _outline(
    draw: ImageDraw.ImageDraw, rectangle: Rectangle, colour: tuple[int, int, int], width: int, line: str
) -> None:
    """A frame inside the rectangle, with a dark edge on either side that keeps it visible on any photo."""
    left, top, right, bottom = rectangle[0], rectangle[1], rectangle[2] - 1, rectangle[3] - 1
    inner = min(width, (right - left) // 2 + 1, (bottom - top) // 2 + 1)  # of a tiny box the frame leaves nothing
    draw.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=_HALO, width=inner + 2)
    if line == "solid":
        thin = min(right - left, bottom - top) < 2  # of such boxes Pillow's outline reaches beyond the corners
        draw.rectangle((left, top, right, bottom), colour if thin else None, colour, inner)
        return
    dash = _DASH * inner
    for start in range(left, right + 1, 2 * dash):
        end = min(start + dash - 1, right)
        draw.rectangle((start, top, end, top + inner - 1), colour)
        draw.rectangle((start, bottom - inner + 1, end, bottom), colour)
    for start in range(top, bottom + 1, 2 * dash):
        end = min(start + dash - 1, bottom)
        draw.rectangle((left, start, left + inner - 1, end), colour)
        draw.rectangle((right - inner + 1, start, right, end), colour)
