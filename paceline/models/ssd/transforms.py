"""One photo and its boxes as a sample of the network: turn, crop, flip and colours are drawn, and the boxes follow.

Letters: n objects as annotated, m <= n that stay; S side of the network's input, pixels.
A sample's random numbers are drawn in a fixed order, turn, zoom-out, crop, flip, jitter, so a crop's place never depends on how
colours are treated.
"""

from __future__ import annotations

import numpy as np

from paceline.config.ssd import BoxInput
from paceline.data.batch import Objects
from paceline.data.loader.sample_rng import SampleRandom
from paceline.data.transforms.augment import levels
from paceline.data.transforms.color_jitter import draw_colour
from paceline.data.transforms.crop import Window, part_of_photo, ssd_crop, zoomed_out
from paceline.data.transforms.exif import turned_boxes
from paceline.data.transforms.image_header import Header
from paceline.data.transforms.resample import ResizeLaw
from paceline.data.transforms.sample import Draw, draw_turn

# A box narrower or lower than this share of the crop is no longer an object: under a third of a pixel at 300 pixels, and a side of 0
# has no logarithm in the regression's targets. Clipping makes such boxes, and a few are annotated.
LEAST_SIDE = 1e-3


def draw_training_sample(
    header: Header, name: str, boxes: np.ndarray, classes: np.ndarray, random: SampleRandom, settings: BoxInput
) -> Draw:
    """A random crop, labelled with the Objects that stay in it, for an input of (S, S).

    boxes    (n, 4) float64 x, y, width, height in pixels of the photo; each with some area inside it
    classes  (n,) int, 1..K
    """
    turn = draw_turn(random, settings.vflip, settings.rot90)
    ltrb = turned_boxes(inside(boxes, header.height, header.width), turn, header.height, header.width)
    header = header.turned(turn)
    canvas, place = (header.height, header.width), (0, 0)
    if settings.zoom_out > 1:
        canvas, place = zoomed_out(*canvas, random, settings.zoom_out)
        ltrb += (place[1], place[0]) * 2
    if settings.crop == "ssd":
        window, keep = ssd_crop(
            *canvas,
            ltrb,
            random,
            size=settings.size,
            attempts=settings.crop_attempts,
            side=settings.crop_side,
            aspect=settings.crop_aspect,
            free=settings.crop_free,
        )
    else:
        window = Window(0, 0, *canvas, settings.size, settings.size)
        keep = np.ones(len(boxes), bool)
    flip = random.coin(settings.flip)
    colour = draw_colour(random, settings)
    fractions, keep = boxes_in(window, ltrb, keep, flip)
    objects = Objects(boxes=fractions[keep].astype(np.float32), classes=classes[keep].astype(np.int64))
    window, shown = part_of_photo(window, place, header.height, header.width, flip)
    more = {"place": shown, "around": levels(settings.mean)}
    return Draw(name, header, window, objects, flip, colour, settings.decoder, crop_law(settings), **more)


def crop_law(settings: BoxInput) -> ResizeLaw:
    """How a crop is resized."""
    return "tensorflow-crop" if settings.resize == "tensorflow" else settings.resize


def draw_evaluation_sample(header: Header, name: str, settings: BoxInput) -> Draw:
    """The whole photo, resized to (S, S) without keeping its aspect ratio; no objects."""
    objects = Objects(np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    law = "tensorflow-photo" if settings.resize == "tensorflow" else settings.resize
    window = Window(0, 0, header.height, header.width, settings.size, settings.size)
    return Draw(name, header, window, objects, decoder=settings.decoder, law=law)


def inside(boxes: np.ndarray, height: int, width: int) -> np.ndarray:
    """(n, 4) x, y, width, height -> (n, 4) float64 left, top, right, bottom, cut at the photo's border."""
    ltrb = np.array(boxes, np.float64).reshape(-1, 4)
    ltrb[:, 2:] += ltrb[:, :2]
    return np.clip(ltrb, 0.0, (width, height, width, height))


def boxes_in(window: Window, ltrb: np.ndarray, keep: np.ndarray, flip: bool) -> tuple[np.ndarray, np.ndarray]:
    """Boxes cut at the window's region and measured in it, and which of them are still objects.

    ltrb    (n, 4) float64, pixels of the photo; keep (n,) bool, which stay by the crop's rule
    return  (n, 4) float64 fractions of the region, mirrored with `flip`; (n,) bool, `keep` and both sides at least LEAST_SIDE
    """
    shift = (window.left, window.top, window.left, window.top)
    fractions = np.clip((ltrb - shift) / (window.width, window.height, window.width, window.height), 0.0, 1.0)
    if flip:
        fractions[:, [0, 2]] = 1.0 - fractions[:, [2, 0]]
    sides = fractions[:, 2:] - fractions[:, :2]
    return fractions, keep & (sides >= LEAST_SIDE).all(axis=1)
