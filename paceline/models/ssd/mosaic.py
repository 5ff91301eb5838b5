"""Mosaic: four photos with boxes in one picture, which shows a detector more objects, smaller ones, and other neighbors.

The picture is divided at a point, and each photo fills one of its four parts with a random region of itself, at 1/zoom of the scale at
which evaluation sees it: zoom is uniform from 1, at which objects are as large as there, to where the region has the photo's whole
height or width. Objects stay by SSD's rule: where their center lies in the region.
Numbers drawn: the point's x and y, then of each photo turn, zoom, top, left, flip, jitter.

Letters: n objects as annotated, m <= n that stay; S side of the network's input, pixels
Source of the idea: Bochkovskiy, Wang, Liao 2020 (arXiv 2004.10934), section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.config.ssd import BoxInput
from paceline.data.batch import Objects
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.color_jitter import sample_color_jitter
from paceline.data.transforms.crop import CropWindow
from paceline.data.transforms.decode import PartnerSample, SampleSpec
from paceline.data.transforms.exif import rotate_boxes
from paceline.data.transforms.image_io import Header
from paceline.data.transforms.sample import sample_orientation
from paceline.models.ssd.transforms import MIN_SIDE, choose_resize_method, clip_boxes_to_crop, clip_to_edges

PHOTOS = 4
CENTER = (0.3, 0.7)  # where the picture is divided, as shares of its sides


class MosaicImage(NamedTuple):
    """One photo and its boxes."""

    number: int  # in its index
    header: Header
    name: str
    boxes: np.ndarray  # (n, 4) float64 x, y, width, height in pixels of the photo
    classes: np.ndarray  # (n,) int, 1..K


def sample_mosaic(photos: Sequence[MosaicImage], random: SampleRng, settings: BoxInput) -> SampleSpec:
    """The sample of the first of PHOTOS photos, with the others and the Objects of all that stay, for an input of (S, S)."""
    size = settings.size
    x, y = (round(size * random.uniform(*CENTER)) for _ in range(2))
    parts = ((0, 0, y, x), (0, x, y, size - x), (y, 0, size - y, x), (y, x, size - y, size - x))
    first, *others = (_draw_part(photo, part, random, settings) for photo, part in zip(photos, parts, strict=True))
    of_all = [first.label, *(draw.label for draw in others)]
    return first._replace(
        label=Objects(*(np.concatenate([getattr(each, name) for each in of_all]) for name in ("boxes", "classes"))),
        others=tuple(PartnerSample(photo.number, draw) for photo, draw in zip(photos[1:], others)),
    )


def _draw_part(photo: MosaicImage, part: tuple[int, int, int, int], random: SampleRng, settings: BoxInput) -> SampleSpec:
    """part: top, left, height and width in the picture."""
    size, (top, left, h, w) = settings.size, part
    turn = sample_orientation(random, settings.vflip, settings.rot90)
    upright, header = photo.header, photo.header.turned(turn)
    ltrb = rotate_boxes(clip_to_edges(photo.boxes, upright.height, upright.width), turn, upright.height, upright.width)
    zoom = random.uniform(1.0, size / max(h, w))
    rows = min(header.height, max(1, round(header.height * zoom * h / size)))
    columns = min(header.width, max(1, round(header.width * zoom * w / size)))
    y, x = random.integer(0, header.height - rows + 1), random.integer(0, header.width - columns + 1)
    window = CropWindow(y, x, rows, columns, h, w)
    flip = random.coin(settings.flip)
    color = sample_color_jitter(random, settings)
    centers = (ltrb[:, :2] + ltrb[:, 2:]) / 2 - (x, y)
    held = np.logical_and(centers > 0, centers < (columns, rows)).all(axis=1)
    fractions, keep = clip_boxes_to_crop(window, ltrb, np.asarray(held), flip)
    boxes = (fractions * (w, h, w, h) + (left, top, left, top)) / size
    keep &= (boxes[:, 2:] - boxes[:, :2] >= MIN_SIDE).all(axis=1)
    objects = Objects(boxes=boxes[keep].astype(np.float32), classes=photo.classes[keep].astype(np.int64))
    law = choose_resize_method(settings)
    return SampleSpec(photo.name, header, window, objects, flip, color, settings.decoder, law, place=(top, left))
