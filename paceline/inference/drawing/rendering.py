"""Pictures for people: a photo with its five best answers under it, mosaics with captions, and pictures inside a page.

Photos are (H, W, 3) uint8 RGB arrays or PIL images of any mode; sizes are pixels. Text is drawn in the font that comes
with Pillow, so the result is the same on every machine.
"""

from __future__ import annotations

import base64
import io
import math
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from paceline._utils.errors import DataError, PacelineError
from paceline._utils.safe_read import read_plain
from paceline.config.resnet import Exif
from paceline.data.index.index import Index, open_split
from paceline.data.index.manifest import FILE_NAME, Manifest, is_paceline_manifest, manifest_candidates
from paceline.data.transforms.image_io import MAX_BYTES, open_rgb, to_rgb

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
        raise ValueError(f"expected an image of shape (H, W, 3) and dtype uint8, got {photo.shape} {photo.dtype}")
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
        draw.text((width - margin, top), f"{100 * score:.1f}%", INK, load_font(17), anchor="ra")
    return canvas


def draw_mosaic_page(photos: Sequence[Photo], captions: Sequence[str], columns: int, *, tile: int = 224) -> Image.Image:
    """Photos in rows of `columns`, each whole in a square of `tile` pixels, with one line of text below.

    captions  one a photo; "" for none. No photos give an empty strip.
    Raises ValueError where the numbers of photos and captions differ, or columns < 1.
    """
    if len(photos) != len(captions) or columns < 1:
        raise ValueError(f"{len(photos)} images, {len(captions)} captions, {columns} columns")
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


# A photo by the path that predictions name, for the page: a file, or a record of the containers that a folder's manifest indexes.
#
# A predictions file may come from somebody else, and the page is given away: it shows photos that the index of the run's data set
# lists, and no other file. An index in the run's own folder may list photos in that folder alone.


def find_listed_images(files: Collection[str], run: Path, root: str, manifest: str) -> dict[str, str]:
    """Each of `files`, as predictions name them, that the data set's index lists -> its absolute path.

    root, manifest   folders of the data set and of its manifest, as run.json has them
    """
    if not root or not os.path.isabs(root):
        return {}
    wanted = {os.path.join(root, file): file for file in files}
    result: dict[str, str] = {}
    for opened in _manifests(Path(root), manifest):
        own = _is_below(str(opened.folder), run)
        # Photos that were scored are in another split than the million that trained.
        for split in sorted(opened.splits, key=lambda name: name == opened.learnt):
            if len(result) == len(wanted):
                return result
            with suppress(PacelineError):  # it is damaged, or needs what is not installed: its photos are not shown
                index = open_split(opened, split)
                paths = (os.path.join(root, os.fsdecode(index.relative_name(i))) for i in range(len(index)))
                result |= {wanted[path]: path for path in paths if path in wanted and (not own or _is_below(path, run))}
    return result


def _manifests(root: Path, folder: str) -> Iterator[Manifest]:
    """Those of `root`: in it, in the cache, or in the folder of prepare's --output-dir."""
    named = [Path(folder) / FILE_NAME] if os.path.isabs(folder) else []
    for path in dict.fromkeys((*manifest_candidates(root), *named)):
        with suppress(DataError):  # gone, or of another version: the page goes without photos
            manifest = Manifest.load(path)
            if os.path.realpath(manifest.root_path) == os.path.realpath(root):
                yield manifest


def _is_below(path: str, folder: Path) -> bool:
    return os.path.realpath(path).startswith(os.path.join(os.path.realpath(folder), ""))


def read_rgb(file: str | Path, exif: Exif, *, least: tuple[int, int] | None = None) -> Image.Image | None:
    """The photo as one whole RGB picture (data/transforms/image_io.py open_rgb); None where it is gone, or is no picture any more.

    None also where `file` is a name alone: only photos that may be shown have absolute paths.
    """
    if not os.path.isabs(file):
        return None
    try:
        data = read_plain(file, MAX_BYTES) if os.path.exists(file) else _contained(Path(file))
        return open_rgb(data, exif, least=least)
    except Exception:  # Pillow's format plugins raise many types on damaged bytes
        return None


def _contained(path: Path) -> bytes:
    """A record whose name is `path` relative to its data set's folder. Raises DataError where there is none."""
    for folder in path.parents:
        if is_paceline_manifest(folder / FILE_NAME):
            status = os.stat(folder / FILE_NAME)
            index, i = _numbers(folder, status.st_mtime_ns).get(os.fsencode(path.relative_to(folder)), (None, 0))
            if index is not None:
                return index.read(i)
    raise DataError(f"{path}: file not found, and not a record of a container.")


@lru_cache(maxsize=2)
def _numbers(folder: Path, _: int) -> dict[bytes, tuple[Index, int]]:
    """Name -> where it is, of all records in the containers that the manifest in `folder` indexes."""
    manifest = Manifest.load(folder)
    indexes = [open_split(manifest, split) for split in manifest.splits] if manifest.in_containers else []
    return {index.relative_name(i): (index, i) for index in indexes for i in range(len(index))}
