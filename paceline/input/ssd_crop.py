"""SSD's random crop: which part of a photo is seen, and which of its objects stay.

One of seven options, of equal probability: the whole photo; a crop whose IoU with every object is above 0.1, 0.3, 0.5,
0.7 or 0.9; a free crop. A proposal that fails is proposed again, and after some failures the option is drawn again.
An object stays when its centre lies inside the crop; at least one must.

Decided from boxes alone, before a pixel is decoded. Crops are whole pixels from the start, so that pixels and boxes
agree exactly; the reference judges a crop in fractions and cuts the pixels up to one pixel beside it.
Letters: n objects of the photo. Boxes are float64 left, top, right, bottom in pixels of the photo.

Source: Liu et al. 2016 (arXiv 1512.02325), section 2.2; MLPerf reference SSD, utils.py SSDCropping.
"""

from __future__ import annotations

import numpy as np

from paceline.config.detection import FreeCrop
from paceline.input.crop import Window
from paceline.input.randomness import SampleRandom

# Least IoU of a crop with every object, by option; the seventh option is the whole photo. None: no such condition.
IOU_ABOVE = (0.1, 0.3, 0.5, 0.7, 0.9)
OPTIONS = len(IOU_ABOVE) + 2
# The whole photo comes up with 1/7 at each draw, so more draws than this have a probability of 1e-67.
MOST_DRAWS = 1000


def ssd_crop(
    height: int,
    width: int,
    boxes: np.ndarray,
    random: SampleRandom,
    *,
    size: int,
    attempts: int = 1,
    side: tuple[float, float] = (0.3, 1.0),
    aspect: tuple[float, float] = (0.5, 2.0),
    free: FreeCrop = "any",
) -> tuple[Window, np.ndarray]:
    """A crop resized to (size, size), and (n,) bool: the objects that stay.

    height, width  of the photo, pixels
    boxes          (n, 4) float64, each with some area inside the photo
    attempts       proposals for one drawn option before the option is drawn again
    side           range of the crop's width and of its height, each uniform, as shares of the photo's
    aspect         range of (share of the width) / (share of the height); a proposal outside it is a failed one
    free           the seventh option: "any" has no condition on the IoU, "touching" wants it above 0 with every object
    Without objects no crop can hold a centre, so it is the whole photo, as with the reference. So it is after
    MOST_DRAWS draws.
    """
    objects = _Objects(boxes)
    least = max(1, round(side[0] * width)), max(1, round(side[0] * height))
    above = (None, *IOU_ABOVE, None if free == "any" else 0.0)
    for _ in range(MOST_DRAWS if len(boxes) else 0):
        option = random.integer(0, OPTIONS)
        if option == 0:
            break
        threshold = above[option]
        if threshold is not None and objects.forbid(threshold, *least):
            continue  # no proposal can succeed: the same as `attempts` failures
        for _ in range(attempts):
            share_x, share_y = random.uniform(*side), random.uniform(*side)
            if not aspect[0] <= share_x / share_y <= aspect[1]:
                continue
            crop_width, crop_height = max(1, round(share_x * width)), max(1, round(share_y * height))
            left = random.integer(0, width - crop_width + 1)
            top = random.integer(0, height - crop_height + 1)
            crop = (left, top, left + crop_width, top + crop_height)
            if threshold is not None and not objects.all_above(threshold, crop):
                continue
            keep = objects.centres_in(crop)
            if any(keep):
                return Window(top, left, crop_height, crop_width, size, size), np.array(keep, bool)
    return Window(0, 0, height, width, size, size), np.ones(len(boxes), bool)


class _Objects:
    """The boxes of one photo as plain numbers: a proposal is judged by a few comparisons, far below a numpy call."""

    def __init__(self, boxes: np.ndarray) -> None:
        self.boxes: list[list[float]] = boxes.tolist()
        if not self.boxes:
            return
        lefts, tops, rights, bottoms = zip(*self.boxes)
        self.centres = [((x0 + x1) / 2, (y0 + y1) / 2) for x0, y0, x1, y1 in self.boxes]
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
        # Overlap with every box, the whole condition at threshold 0, and cheap to refuse by at any other.
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

    def centres_in(self, crop: tuple[int, int, int, int]) -> list[bool]:
        left, top, right, bottom = crop
        return [left < x < right and top < y < bottom for x, y in self.centres]
