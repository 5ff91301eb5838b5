"""Pictures for people: a photo with its five best answers under it, and mosaics with captions.

Photos are (H, W, 3) uint8 RGB arrays or PIL images of any mode; sizes are pixels. Text is drawn in the font that comes
with Pillow, so the result is the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from paceline.data.picture import to_rgb

Photo: TypeAlias = "np.ndarray | Image.Image"

BACKGROUND = (17, 20, 26)
INK = (236, 239, 244)
TRACK = (42, 48, 58)
RIGHT = (64, 186, 122)
WRONG = (240, 99, 92)
BAR = (92, 145, 255)
# A thumbnail blown up further than this is only blur.
MOST_ENLARGED = 4


def to_picture(photo: Photo) -> Image.Image:
    """Any photo as an RGB PIL image. Raises ValueError for an array that is not (H, W, 3) uint8."""
    if isinstance(photo, Image.Image):
        return to_rgb(photo)
    if photo.dtype != np.uint8 or photo.ndim != 3 or photo.shape[2] != 3:
        raise ValueError(f"a photo is (H, W, 3) uint8, this is {photo.shape} {photo.dtype}")
    return Image.fromarray(np.ascontiguousarray(photo))


def top5_picture(
    photo: Photo, names: Sequence[str], scores: Sequence[float], *, truth: str | None = None, width: int = 480
) -> Image.Image:
    """A photo, `width` pixels wide, with a bar for each answer below it.

    names, scores  the answers, best first, scores 0..1; as many of each (five or fewer)
    truth          the photo's class where it is known: its bar is green, and a wrong best answer is red
    """
    picture = _fit_width(to_picture(photo), width)
    row, margin = 30, 14
    answers = list(zip(names, scores))
    panel = margin + row * len(answers) + (row if truth is not None and truth not in names else 0) + margin // 2
    canvas = Image.new("RGB", (width, picture.height + panel), BACKGROUND)
    canvas.paste(picture, (0, 0))
    draw = ImageDraw.Draw(canvas)
    name_width = int(width * 0.42)
    left, right = margin + name_width + 10, width - margin - 56
    for place, (name, score) in enumerate(answers):
        top = picture.height + margin + place * row
        colour = RIGHT if name == truth else WRONG if truth is not None and place == 0 else BAR
        draw.text((margin, top), shortened(name, name_width, 17), INK, font_of(17))
        draw.rounded_rectangle((left, top + 4, right, top + 16), 6, TRACK)
        filled = round((right - left) * min(max(score, 0.0), 1.0))
        if filled > 0:
            draw.rounded_rectangle((left, top + 4, left + filled, top + 16), min(6, filled // 2), colour)
        draw.text((width - margin, top), f"{100 * score:.1f} %", INK, font_of(17), anchor="ra")
    if truth is not None and truth not in names:
        top = picture.height + margin + len(answers) * row
        draw.text((margin, top), shortened(f"truth: {truth}", width - 2 * margin, 17), RIGHT, font_of(17))
    return canvas


def mosaic(photos: Sequence[Photo], captions: Sequence[str], columns: int, *, tile: int = 224) -> Image.Image:
    """Photos in rows of `columns`, each whole in a square of `tile` pixels, with one line of text below.

    captions  one a photo; "" for none. No photos give an empty strip.
    Raises ValueError where the numbers of photos and captions differ, or columns < 1.
    """
    if len(photos) != len(captions) or columns < 1:
        raise ValueError(f"{len(photos)} photos, {len(captions)} captions, {columns} columns")
    gap, text = 8, 24
    columns = min(columns, max(len(photos), 1))
    rows = math.ceil(len(photos) / columns)
    width, height = gap + columns * (tile + gap), gap + rows * (tile + text + gap)
    canvas = Image.new("RGB", (width, height), BACKGROUND)
    draw = ImageDraw.Draw(canvas)
    for place, (photo, caption) in enumerate(zip(photos, captions)):
        left = gap + place % columns * (tile + gap)
        top = gap + place // columns * (tile + text + gap)
        picture = _fit_square(to_picture(photo), tile)
        canvas.paste(picture, (left + (tile - picture.width) // 2, top + (tile - picture.height) // 2))
        draw.text((left + 2, top + tile + 3), shortened(caption, tile - 4, 15), INK, font_of(15))
    return canvas


@lru_cache(maxsize=8)
def font_of(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font; `size` is the height of a line, pixels."""
    return ImageFont.load_default(size)


def shortened(text: str, width: int, size: int) -> str:
    """The text, cut to `width` pixels with three dots where it is longer; line breaks become spaces."""
    text = " ".join(text.split())
    font = font_of(size)
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text.rstrip() + "..."


def _fit_width(picture: Image.Image, width: int) -> Image.Image:
    scale = width / picture.width
    height = max(1, round(picture.height * scale))
    if scale <= MOST_ENLARGED and height <= 4 * width:
        return picture.resize((width, height), Image.Resampling.LANCZOS)
    # A tiny photo stays tiny in the middle, and a very tall one is not made into a tower.
    small = _fit_square(picture, width)
    canvas = Image.new("RGB", (width, small.height), BACKGROUND)
    canvas.paste(small, ((width - small.width) // 2, 0))
    return canvas


def _fit_square(picture: Image.Image, side: int) -> Image.Image:
    scale = min(side / picture.width, side / picture.height, MOST_ENLARGED)
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    return picture.resize(size, Image.Resampling.LANCZOS)
