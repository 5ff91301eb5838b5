"""Which part of an image is seen: training's random crop and the evaluation's resize and centre crop.

Pure geometry on integers, no pixels. Its result, a Window, is all that decoding needs to know.
Letters: H, W height and width of the stored image; S side of the network's input. All lengths in pixels.

Source: Szegedy et al. 2014 (arXiv 1409.4842), section 6, for the random crop; the rounding, the ten tries and the
fallback are torchvision's (transforms RandomResizedCrop, Resize, CenterCrop).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from paceline.config.errors import RecipeError
from paceline.input.randomness import SampleRandom
from paceline.store.orientation import TURNS, UPRIGHT

# torchvision gives up on a random shape after this many and takes the largest centred crop of an allowed aspect.
CROP_TRIES = 10


class Window(NamedTuple):
    """A region of the stored image, the size it is resized to, and where the output starts inside the result.

    The filter never sees pixels outside the region. The output's own size is that of the array it is written to.
    """

    top: int
    left: int
    height: int
    width: int
    resized_height: int
    resized_width: int
    skip_top: int = 0
    skip_left: int = 0


class Source(NamedTuple):
    """A window's region in the stored frame, pixels, and the orientation that turns it into the shown one."""

    top: int
    left: int
    height: int
    width: int
    orientation: int


def random_resized_crop(
    height: int,
    width: int,
    size: int,
    random: SampleRandom,
    *,
    area: tuple[float, float] = (0.08, 1.0),
    aspect: tuple[float, float] = (3 / 4, 4 / 3),
) -> Window:
    """A region of random area and shape, resized to (size, size).

    area    smallest and largest share of the image's area
    aspect  smallest and largest width / height, uniform in the logarithm
    """
    low, high = math.log(aspect[0]), math.log(aspect[1])
    for _ in range(CROP_TRIES):
        target = height * width * random.uniform(*area)
        ratio = math.exp(random.uniform(low, high))
        crop_width = round(math.sqrt(target * ratio))
        crop_height = round(math.sqrt(target / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top = random.integer(0, height - crop_height + 1)
            left = random.integer(0, width - crop_width + 1)
            return Window(top, left, crop_height, crop_width, size, size)
    return _largest_centred(height, width, size, aspect)


def _largest_centred(height: int, width: int, size: int, aspect: tuple[float, float]) -> Window:
    """The largest centred region whose width / height lies in `aspect`."""
    crop_height, crop_width = height, width
    if width / height < aspect[0]:
        crop_height = max(1, round(width / aspect[0]))
    elif width / height > aspect[1]:
        crop_width = max(1, round(height * aspect[1]))
    return Window((height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width, size, size)


def resized_shape(height: int, width: int, short: int) -> tuple[int, int]:
    """(height, width) after the shorter side became `short`; the longer one is truncated, as torchvision's Resize."""
    if width <= height:
        return int(short * height / width), short
    return short, int(short * width / height)


def resize_and_centre_crop(height: int, width: int, resize: int, size: int) -> Window:
    """The whole image with its shorter side resized to `resize`, of which the central (size, size) is kept.

    Raises RecipeError when the crop is larger than the resized image: evaluation never pads.
    """
    if size > resize:
        raise RecipeError(
            f"a centre crop of {size} px does not fit an image whose shorter side is resized to {resize} px.\n"
            f"Resize to {size} px or more."
        )
    resized_height, resized_width = resized_shape(height, width, resize)
    # Python rounds halves to even and so does torchvision: 16.5 -> 16, 17.5 -> 18.
    skip_top, skip_left = round((resized_height - size) / 2.0), round((resized_width - size) / 2.0)
    return Window(0, 0, height, width, resized_height, resized_width, skip_top, skip_left)


def source_of(window: Window, orientation: int, height: int, width: int) -> Source:
    """Where a window's region lies in the stored photo.

    window         of the shown photo
    height, width  of the shown photo, pixels
    """
    if orientation == UPRIGHT:
        return Source(*window[:4], UPRIGHT)
    from_right, from_below, swapped = TURNS[orientation]
    top = height - window.top - window.height if from_below else window.top
    left = width - window.left - window.width if from_right else window.left
    if swapped:
        return Source(left, top, window.width, window.height, orientation)
    return Source(top, left, window.height, window.width, orientation)
