"""Network inputs of few shapes: how a photo is resized, and to which of a few shapes a batch of photos is padded.

Every shape costs a compiled graph and, on an accelerator, its memory; every padded pixel costs arithmetic. The ladder below was chosen
on COCO's photos, of which half are 4:3 and a third 3:2: padded to the smallest shape that holds it, a photo at 800/1333 is padded by
3.3 percent on average.

Letters: N photos; h, w a resized photo; H, W a shape, multiples of `multiple`; S and L shortest and longest side of any shape, pixels.
Sources of the resize laws: torchvision's GeneralizedRCNNTransform and torch's interpolate (recompute_scale_factor), "cut"; GluonCV's
resize_short_within, "rounded".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from paceline.config.maskrcnn import InstanceInput, WholeSides
from paceline.data.loader.sample_rng import SampleRng

Shape = tuple[int, int]

# Aspect ratios of cameras, the longer side over the shorter. 3:2 occurs as 500x333 and 640x425 too, hence 1.51.
CAMERAS = (4 / 3, 1.51, 16 / 9)
# Most shapes of one ladder.
MAX = 10
# The side of a step has a random stream of its own; see data/loader/sample_rng.py.
SHORT_STREAM = 2 << 32


def resized_size(height: int, width: int, short: int, long: int, sides: WholeSides = "cut") -> tuple[int, int]:
    """-> (h, w): the shorter side becomes `short`, or less where the longer one would exceed `long`.

    Both become whole pixels, at least 1: "cut" may leave a side one pixel below the request, "rounded" does not (halves to even).
    """
    scale = min(short / min(height, width), long / max(height, width))
    whole = int if sides == "cut" else round
    return max(1, whole(height * scale)), max(1, whole(width * scale))


def resized_sizes(heights: np.ndarray, widths: np.ndarray, short: int, long: int, sides: WholeSides = "cut") -> np.ndarray:
    """(N,), (N,) -> (N, 2) int64: `resized_size` of each photo."""
    lengths = np.column_stack((heights, widths)).astype(np.float64)
    scale = np.minimum(short / lengths.min(axis=1), long / lengths.max(axis=1))
    result = lengths * scale[:, None]
    return np.maximum(1, (result if sides == "cut" else result.round()).astype(np.int64))


@cache
def make_buckets(short: int, long: int, multiple: int) -> tuple[Shape, ...]:
    """The ladder of shapes for photos resized to (short, long): at most ten, the smallest area first.

    Landscape shapes S x W and the same as portraits; the square S x S; squares for batches of both, the largest L x L,
    which holds everything. Where at most four widths lie above S, all of them are steps; else those of CAMERAS are.
    """
    least, most = _up(short, multiple), _up(long, multiple)
    if most - least <= 4 * multiple:
        widths = set(range(least + multiple, most + 1, multiple))
        squares = [least, most]
    else:
        widths = {_up(short * ratio, multiple) for ratio in CAMERAS}
        widths = {width for width in widths if least < width < most} | {most}
        squares = [least, most, least + multiple, _up(short * CAMERAS[0], multiple)]
    shapes = {(least, width) for width in widths} | {(width, least) for width in widths}
    for side in squares:
        if len(shapes) < MAX:
            shapes.add((min(side, most), min(side, most)))
    return tuple(sorted(shapes, key=lambda shape: (shape[0] * shape[1], shape)))


def choose_bucket(h: int, w: int, shapes: Sequence[Shape]) -> Shape:
    """The first shape that holds (h, w): of a ladder, the one of the smallest area. Of several photos: max h and max w.

    Raises ValueError where none does.
    """
    for shape in shapes:
        if h <= shape[0] and w <= shape[1]:
            return shape
    raise ValueError(f"{h} x {w} pixels fit into none of {tuple(shapes)}")


def padded_shape(h: int, w: int, settings: InstanceInput, short: int) -> Shape:
    """The shape of a batch whose photos have at most h rows and w columns, by the rule `settings.padding`."""
    if settings.padding == "multiple":
        return _up(h, settings.multiple), _up(w, settings.multiple)
    return choose_bucket(h, w, make_buckets(short, settings.long, settings.multiple))


def aspect_groups(heights: np.ndarray, widths: np.ndarray, settings: InstanceInput) -> np.ndarray:
    """(N,), (N,) of the photos as stored -> (N,) int64: each photo's place on the ladder, from the tallest shape, 0, to the widest.

    Neighbors need little padding together. Photos of a square above S are portraits and landscapes, on either side of S x S. Places
    that no photo has do not count. With several short sides the ladder of the largest is taken: the ratios hardly differ.
    """
    short = max(settings.short)
    sizes = resized_sizes(heights, widths, short, settings.long, settings.sides)
    least = _up(short, settings.multiple)
    axis = np.zeros(len(sizes))
    for shape in reversed(make_buckets(short, settings.long, settings.multiple)):  # the smallest that holds it comes last
        holds = (sizes <= shape).all(axis=1)
        axis[holds] = shape[1] / shape[0]
        if shape[0] == shape[1] > least:
            axis[holds] += np.where(sizes[holds, 0] > sizes[holds, 1], -1e-6, 1e-6)
    return np.unique(axis, return_inverse=True)[1].astype(np.int64).reshape(-1)


def choose_short_side(seed: int, step: int, choices: Sequence[int]) -> int:
    """The short side of all photos of a step: one of `choices`, each equally likely."""
    if len(choices) == 1:
        return choices[0]
    return choices[SampleRng(seed, 0, step, stream=SHORT_STREAM).integer(0, len(choices))]


def _up(length: float, multiple: int) -> int:
    return int(-(-length // multiple)) * multiple
