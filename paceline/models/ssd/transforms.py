"""One photo and its boxes, or a mosaic, as a sample of the network: turn, crop, flip, colors are drawn, and the boxes follow.

Letters: n objects as annotated, m <= n that stay; S side of the network's input, pixels.
A sample's random numbers are drawn in a fixed order, turn, zoom-out, crop, flip, jitter, so a crop's place never depends on how
colors are treated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.config.ssd import BoxInput
from paceline.data.batch import Objects
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.augment import mean_levels
from paceline.data.transforms.color_jitter import sample_color_jitter
from paceline.data.transforms.crop import CropWindow, clip_to_image, ssd_crop, ssd_expand
from paceline.data.transforms.decode import PartnerSample, SampleSpec
from paceline.data.transforms.exif import rotate_boxes
from paceline.data.transforms.image_io import Header
from paceline.data.transforms.resample import ResizeLaw
from paceline.data.transforms.sample import sample_orientation

# A box narrower or lower than this share of the crop is no longer an object: under a third of a pixel at 300 pixels, and a side of 0
# has no logarithm in the regression's targets. Clipping makes such boxes, and a few are annotated.
MIN_SIDE = 1e-3


def sample_box_spec(
    header: Header, name: str, boxes: np.ndarray, classes: np.ndarray, random: SampleRng, settings: BoxInput
) -> SampleSpec:
    """A random crop, labeled with the Objects that stay in it, for an input of (S, S).

    boxes    (n, 4) float64 x, y, width, height in pixels of the photo; each with some area inside it
    classes  (n,) int, 1..K
    """
    turn = sample_orientation(random, settings.vflip, settings.rot90)
    ltrb = rotate_boxes(clip_to_edges(boxes, header.height, header.width), turn, header.height, header.width)
    header = header.turned(turn)
    canvas, location = (header.height, header.width), (0, 0)
    if settings.zoom_out_max > 1:
        canvas, location = ssd_expand(*canvas, random, settings.zoom_out_max)
        ltrb += (location[1], location[0]) * 2
    if settings.iou_crop == "ssd":
        window, keep = ssd_crop(*canvas, ltrb, random, settings)
    else:
        window = CropWindow(0, 0, *canvas, settings.image_size, settings.image_size)
        keep = np.ones(len(boxes), bool)
    flip = random.coin(settings.hflip)
    color = sample_color_jitter(random, settings)
    fractions, keep = clip_boxes_to_crop(window, ltrb, keep, flip)
    objects = Objects(boxes=fractions[keep].astype(np.float32), classes=classes[keep].astype(np.int64))
    window, shown = clip_to_image(window, location, header.height, header.width, flip)
    more = {"place": shown, "around": mean_levels(settings.mean)}
    return SampleSpec(name, header, window, objects, flip, color, settings.decoder, choose_resize_method(settings), **more)


def choose_resize_method(settings: BoxInput) -> ResizeLaw:
    """How a crop is resized."""
    return "tensorflow-crop" if settings.resize == "tensorflow" else settings.resize


def evaluation_box_spec(header: Header, name: str, settings: BoxInput) -> SampleSpec:
    """The whole photo, resized to (S, S) without keeping its aspect ratio; no objects."""
    objects = Objects(np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    law = "tensorflow-photo" if settings.resize == "tensorflow" else settings.resize
    window = CropWindow(0, 0, header.height, header.width, settings.image_size, settings.image_size)
    return SampleSpec(name, header, window, objects, decoder=settings.decoder, law=law)


def clip_to_edges(boxes: np.ndarray, height: int, width: int) -> np.ndarray:
    """(n, 4) x, y, width, height -> (n, 4) float64 left, top, right, bottom, cut at the photo's border."""
    ltrb = np.array(boxes, np.float64).reshape(-1, 4)
    ltrb[:, 2:] += ltrb[:, :2]
    return np.clip(ltrb, 0.0, (width, height, width, height))


def clip_boxes_to_crop(window: CropWindow, ltrb: np.ndarray, keep: np.ndarray, flip: bool) -> tuple[np.ndarray, np.ndarray]:
    """Boxes cut at the window's region and measured in it, and which of them are still objects.

    ltrb    (n, 4) float64, pixels of the photo; keep (n,) bool, which stay by the crop's rule
    return  (n, 4) float64 fractions of the region, mirrored with `flip`; (n,) bool, `keep` and both sides at least MIN_SIDE
    """
    shift = (window.left, window.top, window.left, window.top)
    fractions = np.clip((ltrb - shift) / (window.width, window.height, window.width, window.height), 0.0, 1.0)
    if flip:
        fractions[:, [0, 2]] = 1.0 - fractions[:, [2, 0]]
    sides = fractions[:, 2:] - fractions[:, :2]
    return fractions, keep & (sides >= MIN_SIDE).all(axis=1)


# Mosaic: four photos with boxes in one picture, which shows a detector more objects, smaller ones, and other neighbors.
#
# The picture is divided at a point, and each photo fills one of its four parts with a random region of itself, at 1/zoom of the scale
# at which evaluation sees it: zoom is uniform from 1, at which objects are as large as there, to where the region has the photo's
# whole height or width. Objects stay by SSD's rule: where their center lies in the region.
# Numbers drawn: the point's x and y, then of each photo turn, zoom, top, left, flip, jitter.
# Source of the idea: Bochkovskiy, Wang, Liao 2020 (arXiv 2004.10934), section 3.3.

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
    size = settings.image_size
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
    size, (top, left, h, w) = settings.image_size, part
    turn = sample_orientation(random, settings.vflip, settings.rot90)
    upright, header = photo.header, photo.header.turned(turn)
    ltrb = rotate_boxes(clip_to_edges(photo.boxes, upright.height, upright.width), turn, upright.height, upright.width)
    zoom = random.uniform(1.0, size / max(h, w))
    rows = min(header.height, max(1, round(header.height * zoom * h / size)))
    columns = min(header.width, max(1, round(header.width * zoom * w / size)))
    y, x = random.integer(0, header.height - rows + 1), random.integer(0, header.width - columns + 1)
    window = CropWindow(y, x, rows, columns, h, w)
    flip = random.coin(settings.hflip)
    color = sample_color_jitter(random, settings)
    centers = (ltrb[:, :2] + ltrb[:, 2:]) / 2 - (x, y)
    held = np.logical_and(centers > 0, centers < (columns, rows)).all(axis=1)
    fractions, keep = clip_boxes_to_crop(window, ltrb, np.asarray(held), flip)
    boxes = (fractions * (w, h, w, h) + (left, top, left, top)) / size
    keep &= (boxes[:, 2:] - boxes[:, :2] >= MIN_SIDE).all(axis=1)
    objects = Objects(boxes=boxes[keep].astype(np.float32), classes=photo.classes[keep].astype(np.int64))
    law = choose_resize_method(settings)
    return SampleSpec(photo.name, header, window, objects, flip, color, settings.decoder, law, place=(top, left))
