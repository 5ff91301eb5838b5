"""Which part of an image is used: training's random crops and the evaluation's resize and center crop.

Pure geometry, no pixels, decided before a pixel is decoded. Its result, a Window, is all that decoding needs to know.
Letters: H, W height and width of the stored image; S side of the network's input; n objects of the photo. All lengths in pixels, boxes
float64 left, top, right, bottom.

SSD's crop is one of seven options, of equal probability: the whole photo; a crop whose IoU with every object is above 0.1, 0.3, 0.5,
0.7 or 0.9; a free crop. A proposal that fails is proposed again, and after some failures the option is drawn again. An object stays
when its center lies inside the crop; at least one must. Crops are whole pixels from the start, so pixels and boxes agree exactly; the
reference judges a crop in fractions and cuts the pixels up to one pixel beside it.
Sources of random_resized_crop: Szegedy et al. 2014 (arXiv 1409.4842), section 6; the rounding, the ten tries and the fallback are
torchvision's (transforms RandomResizedCrop, Resize, CenterCrop). Of ssd_crop: Liu et al. 2016 (arXiv 1512.02325), section 2.2; MLPerf
reference SSD, utils.py SSDCropping.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from paceline._utils.errors import RecipeError
from paceline.config.ssd import BoxInput
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.exif import TURNS, UPRIGHT

# torchvision gives up on a random shape after this many and takes the largest centered crop of an allowed aspect.
CROP_TRIES = 10


class CropWindow(NamedTuple):
    """A region of the stored image, the size it is resized to, and where the output starts inside the result.

    The filter reads no pixels outside the region. The output's own size is that of the array it is written to.
    """

    top: int
    left: int
    height: int
    width: int
    resized_height: int
    resized_width: int
    skip_top: int = 0
    skip_left: int = 0


class SourceRegion(NamedTuple):
    """A window's region in the stored frame, pixels, and the orientation that turns it into the displayed one."""

    top: int
    left: int
    height: int
    width: int
    orientation: int


def random_resized_crop(
    height: int,
    width: int,
    size: int,
    random: SampleRng,
    *,
    area: tuple[float, float] = (0.08, 1.0),
    aspect: tuple[float, float] = (3 / 4, 4 / 3),
) -> CropWindow:
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
            return CropWindow(top, left, crop_height, crop_width, size, size)
    # The largest centered region whose width / height lies in `aspect`.
    crop_height, crop_width = height, width
    if width / height < aspect[0]:
        crop_height = max(1, round(width / aspect[0]))
    elif width / height > aspect[1]:
        crop_width = max(1, round(height * aspect[1]))
    return CropWindow((height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width, size, size)


def resized_shape(height: int, width: int, short: int) -> tuple[int, int]:
    """(height, width) after the shorter side became `short`; the longer one is truncated, as torchvision's Resize."""
    if width <= height:
        return int(short * height / width), short
    return short, int(short * width / height)


def resize_and_center_crop(height: int, width: int, resize: int, size: int) -> CropWindow:
    """The whole image with its shorter side resized to `resize`, of which the central (size, size) is kept.

    Raises RecipeError when the crop is larger than the resized image: evaluation never pads.
    """
    if size > resize:
        raise RecipeError(
            f"a center crop of {size} px does not fit a shorter side of {resize} px.\nResize to at least {size} px."
        )
    resized_height, resized_width = resized_shape(height, width, resize)
    # Python rounds halves to even and so does torchvision: 16.5 -> 16, 17.5 -> 18.
    skip_top, skip_left = round((resized_height - size) / 2.0), round((resized_width - size) / 2.0)
    return CropWindow(0, 0, height, width, resized_height, resized_width, skip_top, skip_left)


def source_region(window: CropWindow, orientation: int, height: int, width: int) -> SourceRegion:
    """Where a window's region lies in the stored photo; window, height and width are of the displayed photo."""
    if orientation == UPRIGHT:
        return SourceRegion(*window[:4], UPRIGHT)
    from_right, from_below, swapped = TURNS[orientation]
    top = height - window.top - window.height if from_below else window.top
    left = width - window.left - window.width if from_right else window.left
    if swapped:
        return SourceRegion(left, top, window.width, window.height, orientation)
    return SourceRegion(top, left, window.height, window.width, orientation)


# Least IoU of a crop with every object, by option; the seventh option is the whole photo. None: no such condition.
IOU_ABOVE = (0.1, 0.3, 0.5, 0.7, 0.9)
OPTIONS = len(IOU_ABOVE) + 2
# The whole photo comes up with 1/7 at each draw, so more draws than this have a probability of 1e-67.
MAX_DRAWS = 1000


def ssd_crop(
    height: int, width: int, boxes: np.ndarray, random: SampleRng, settings: BoxInput
) -> tuple[CropWindow, np.ndarray]:
    """A crop resized to (size, size) of the settings, and (n,) bool: the objects that stay.

    boxes     (n, 4) float64, each with some area inside the photo of (height, width)
    settings  `crop_scale`: the crop's width and its height are each uniform. `crop_ratio`: a proposal outside it is a failed one.
              `parity.free_crop`: "any" has no condition on the IoU, "touching" requires it above 0 with every object
    Without objects no crop can hold a center, so it is the whole photo, as with the reference; as it is after MAX_DRAWS draws.
    """
    objects, size, side, aspect = _Objects(boxes), settings.image_size, settings.crop_scale, settings.crop_ratio
    least = max(1, round(side[0] * width)), max(1, round(side[0] * height))
    above = (None, *IOU_ABOVE, None if settings.parity.free_crop == "any" else 0.0)
    for _ in range(MAX_DRAWS if len(boxes) else 0):
        option = random.integer(0, OPTIONS)
        if option == 0:
            break
        threshold = above[option]
        if threshold is not None and objects.forbid(threshold, *least):
            continue  # no proposal can succeed: the same as `crop_trials` failures
        for _ in range(settings.crop_trials):
            share_x, share_y = random.uniform(*side), random.uniform(*side)
            if not aspect[0] <= share_x / share_y <= aspect[1]:
                continue
            crop_width, crop_height = max(1, round(share_x * width)), max(1, round(share_y * height))
            left = random.integer(0, width - crop_width + 1)
            top = random.integer(0, height - crop_height + 1)
            crop = (left, top, left + crop_width, top + crop_height)
            if threshold is not None and not objects.all_above(threshold, crop):
                continue
            keep = objects.centers_in(crop)
            if any(keep):
                return CropWindow(top, left, crop_height, crop_width, size, size), np.array(keep, bool)
    return CropWindow(0, 0, height, width, size, size), np.ones(len(boxes), bool)


def ssd_expand(height: int, width: int, random: SampleRng, most: float) -> tuple[tuple[int, int], tuple[int, int]]:
    """A canvas of 1 to `most` times the photo's sides, uniform, and the photo's top and left on it; every second photo is its own.

    Source: Liu et al. 2016 (arXiv 1512.02325), section 3.6: `most` 4; torchvision's RandomZoomOut.
    """
    if random.coin():
        return (height, width), (0, 0)
    times = random.uniform(1.0, most)
    tall, wide = round(height * times), round(width * times)
    return (tall, wide), (random.integer(0, tall - height + 1), random.integer(0, wide - width + 1))


def clip_to_image(
    window: CropWindow, location: tuple[int, int], height: int, width: int, flip: bool
) -> tuple[CropWindow, tuple[int, int]]:
    """A window on a canvas -> what it shows of the photo, (height, width), at `location` there; and where that begins in the output.

    Edges are rounded to whole pixels of the output. The window and the photo overlap.
    """
    spans = []
    for first, length, resized, begin, side in zip(window[:2], window[2:4], window[4:6], location, (height, width)):
        low, high = max(first, begin), min(first + length, begin + side)
        start = min(round((low - first) * resized / length), resized - 1)
        spans.append((low - begin, high - low, start, max(1, round((high - first) * resized / length) - start)))
    (top, rows, down, h), (left, columns, across, w) = spans
    return CropWindow(top, left, rows, columns, h, w), (down, window.resized_width - across - w if flip else across)


class _Objects:
    """The boxes of one photo as plain numbers: judging a proposal takes a few comparisons, far cheaper than a numpy call."""

    def __init__(self, boxes: np.ndarray) -> None:
        self.boxes: list[list[float]] = boxes.tolist()
        if not self.boxes:
            return
        lefts, tops, rights, bottoms = zip(*self.boxes)
        self.centers = [((x0 + x1) / 2, (y0 + y1) / 2) for x0, y0, x1, y1 in self.boxes]
        self.last_left, self.last_top = max(lefts), max(tops)
        self.first_right, self.first_bottom = min(rights), min(bottoms)
        widths = [x1 - x0 for x0, x1 in zip(lefts, rights)]
        heights = [y1 - y0 for y0, y1 in zip(tops, bottoms)]
        areas = [w * h for w, h in zip(widths, heights)]
        self.ranges = [(min(values), max(values)) for values in (widths, heights, areas)]

    def forbid(self, threshold: float, least_width: int, least_height: int) -> bool:
        """True only where no crop has an IoU above the threshold with every box.

        The IoU of two boxes is at most the ratio of their widths, of their heights, and of their areas, smaller over
        larger. So the crop's width lies between threshold * (largest width) and (smallest width) / threshold.
        """
        for least, (small, large) in zip((least_width, least_height, least_width * least_height), self.ranges):
            if small <= threshold * max(least, threshold * large):
                return True
        return False

    def all_above(self, threshold: float, crop: tuple[int, int, int, int]) -> bool:
        """Whether the crop's IoU with every box is above the threshold."""
        left, top, right, bottom = crop
        # Overlap with every box: the whole condition at threshold 0, and a cheap first test at any other.
        if left >= self.first_right or right <= self.last_left or top >= self.first_bottom or bottom <= self.last_top:
            return False
        if threshold == 0:
            return True
        area = (right - left) * (bottom - top)
        for x0, y0, x1, y1 in self.boxes:
            overlap = (min(x1, right) - max(x0, left)) * (min(y1, bottom) - max(y0, top))
            if overlap <= threshold * (area + (x1 - x0) * (y1 - y0) - overlap):
                return False
        return True

    def centers_in(self, crop: tuple[int, int, int, int]) -> list[bool]:
        left, top, right, bottom = crop
        return [left < x < right and top < y < bottom for x, y in self.centers]
