"""Pictures for people: a photo with its five best answers under it, mosaics with captions, and pictures inside a page.

Photos are (H, W, 3) uint8 RGB arrays or PIL images of any mode; sizes are pixels. Text is drawn in the font that comes
with Pillow, so the result is the same on every machine.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from paceline.data.transforms.image_io import to_rgb

Photo: TypeAlias = "np.ndarray | Image.Image"

BACKGROUND = (17, 20, 26)
INK = (236, 239, 244)
TRACK = (42, 48, 58)
BAR = (92, 145, 255)
# A thumbnail blown up further than this is only blur.
MAX_ENLARGED = 4


def to_pil(photo: Photo) -> Image.Image:
    """Any photo as an RGB PIL image. Raises ValueError for an array that is not (H, W, 3) uint8."""
    if isinstance(photo, Image.Image):
        return to_rgb(photo)
    if photo.dtype != np.uint8 or photo.ndim != 3 or photo.shape[2] != 3:
        raise ValueError(f"a photo is (H, W, 3) uint8, this is {photo.shape} {photo.dtype}")
    return Image.fromarray(np.ascontiguousarray(photo))


def draw_top5(photo: Photo, names: Sequence[str], scores: Sequence[float], *, width: int = 480) -> Image.Image:
    """A photo, `width` pixels wide, with a bar for each answer below it.

    names, scores  the answers, best first, scores 0..1; as many of each (five or fewer)
    """
    picture = _fit_width(to_pil(photo), width)
    row, margin = 30, 14
    answers = list(zip(names, scores))
    panel = margin + row * len(answers) + margin // 2
    canvas = Image.new("RGB", (width, picture.height + panel), BACKGROUND)
    canvas.paste(picture, (0, 0))
    draw = ImageDraw.Draw(canvas)
    name_width = int(width * 0.42)
    left, right = margin + name_width + 10, width - margin - 56
    for index, (name, score) in enumerate(answers):
        top = picture.height + margin + index * row
        draw.text((margin, top), shorten_text(name, name_width, 17), INK, load_font(17))
        draw.rounded_rectangle((left, top + 4, right, top + 16), 6, TRACK)
        filled = round((right - left) * min(max(score, 0.0), 1.0))
        if filled > 0:
            draw.rounded_rectangle((left, top + 4, left + filled, top + 16), min(6, filled // 2), BAR)
        draw.text((width - margin, top), f"{100 * score:.1f} %", INK, load_font(17), anchor="ra")
    return canvas


def draw_mosaic_page(photos: Sequence[Photo], captions: Sequence[str], columns: int, *, tile: int = 224) -> Image.Image:
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
    for index, (photo, caption) in enumerate(zip(photos, captions)):
        left = gap + index % columns * (tile + gap)
        top = gap + index // columns * (tile + text + gap)
        picture = fit_image(to_pil(photo), tile, tile)
        canvas.paste(picture, (left + (tile - picture.width) // 2, top + (tile - picture.height) // 2))
        draw.text((left + 2, top + tile + 3), shorten_text(caption, tile - 4, 15), INK, load_font(15))
    return canvas


@lru_cache(maxsize=8)
def load_font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font; `size` is the height of a line, pixels."""
    return ImageFont.load_default(size)


def shorten_text(text: str, width: int, size: int) -> str:
    """The text, cut to `width` pixels with three dots where it is longer; line breaks become spaces."""
    text = " ".join(text.split())
    font = load_font(size)
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text.rstrip() + "..."


def fit_image(picture: Image.Image, width: int, height: int) -> Image.Image:
    """The picture, whole, as large as fits into `width` times `height`; a tiny one stays small."""
    scale = min(width / picture.width, height / picture.height, MAX_ENLARGED)
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    return picture if size == picture.size else picture.resize(size, Image.Resampling.LANCZOS)


def encode_jpeg(picture: Image.Image, quality: int, *, subsampling: int = -1) -> bytes:
    """The picture as a JPEG file; subsampling 0 keeps the color of thin lines, -1 is the format's usual."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality, subsampling=subsampling)
    return buffer.getvalue()


def encode_jpeg_uri(picture: Image.Image, quality: int = 80, *, subsampling: int = -1) -> str:
    """The picture as a data URI, which a page holds in itself; parameters as of `encode_jpeg`."""
    return "data:image/jpeg;base64," + base64.b64encode(encode_jpeg(picture, quality, subsampling=subsampling)).decode()


def _fit_width(picture: Image.Image, width: int) -> Image.Image:
    height = max(1, round(picture.height * width / picture.width))
    if width <= MAX_ENLARGED * picture.width and height <= 4 * width:
        return picture.resize((width, height), Image.Resampling.LANCZOS)
    # A tiny photo stays tiny in the middle, and a very tall one is not made into a tower.
    small = fit_image(picture, width, width)
    canvas = Image.new("RGB", (width, small.height), BACKGROUND)
    canvas.paste(small, ((width - small.width) // 2, 0))
    return canvas
