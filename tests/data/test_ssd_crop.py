"""The law of SSD's random crop: its options, its bounds, its rule of centers, and that it always ends."""

from __future__ import annotations

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

from paceline.config.ssd import BoxInput, BoxParity
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.crop import IOU_ABOVE, MAX_DRAWS, CropWindow, _Objects, ssd_crop

NO_BOXES = np.zeros((0, 4))


def _crop(height: int, width: int, boxes, key: int, **options):
    settings = BoxInput(image_size=300, **options)
    return ssd_crop(height, width, np.array(boxes, np.float64).reshape(-1, 4), SampleRng(0, 0, key), settings)


def _iou(boxes: np.ndarray, crop: np.ndarray) -> np.ndarray:
    """The obvious one, of every box with one crop."""
    low, high = np.maximum(boxes[:, :2], crop[:2]), np.minimum(boxes[:, 2:], crop[2:])
    overlap = np.clip(high - low, 0, None).prod(axis=1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    return overlap / (areas + (crop[2:] - crop[:2]).prod() - overlap)


def _ltrb(window: CropWindow) -> np.ndarray:
    return np.array([window.left, window.top, window.left + window.width, window.top + window.height], np.float64)


def _law(rng: np.random.Generator, boxes: np.ndarray, attempts: int, free_above: float) -> tuple[np.ndarray, int]:
    """The reference's loop in fractions of the photo, written down as it is told: (crop, objects that stay)."""
    centers = (boxes[:, :2] + boxes[:, 2:]) / 2
    while True:
        option = rng.integers(7)
        if option == 0:
            return np.array([0.0, 0.0, 1.0, 1.0]), len(boxes)
        above = (*IOU_ABOVE, free_above)[option - 1]
        for _ in range(attempts):
            w, h = rng.uniform(0.3, 1.0, 2)
            if not 0.5 <= w / h <= 2:
                continue
            left, top = rng.uniform(0, 1 - w), rng.uniform(0, 1 - h)
            crop = np.array([left, top, left + w, top + h])
            inside = ((centers > crop[:2]) & (centers < crop[2:])).all(axis=1)
            if (_iou(boxes, crop) > above).all() and inside.any():
                return crop, int(inside.sum())


@st.composite
def _photos(draw):
    """(height, width, boxes ltrb in pixels with some area inside the photo, key)"""
    height, width = draw(st.integers(1, 700)), draw(st.integers(1, 700))
    share = st.floats(0, 1)
    boxes = []
    for a, b, c, d in draw(st.lists(st.tuples(share, share, share, share), max_size=12)):
        if abs(a - c) > 1e-3 and abs(b - d) > 1e-3:
            boxes.append((min(a, c) * width, min(b, d) * height, max(a, c) * width, max(b, d) * height))
    return height, width, np.array(boxes, np.float64).reshape(-1, 4), draw(st.integers(0, 2**32))


@examples(400)
@given(photo=_photos(), attempts=st.sampled_from([1, 50]), free=st.sampled_from(["any", "touching"]))
def test_a_crop_lies_inside_the_photo_and_keeps_just_the_objects_whose_centre_it_holds(photo, attempts, free):
    height, width, boxes, key = photo
    window, keep = _crop(height, width, boxes, key, crop_trials=attempts, parity=BoxParity(free_crop=free))

    assert keep.shape == (len(boxes),) and keep.dtype == bool
    assert window.resized_height == window.resized_width == 300
    assert window.top >= 0 and window.top + window.height <= height and window.height >= 1
    assert window.left >= 0 and window.left + window.width <= width and window.width >= 1
    if (window.height, window.width) == (height, width):
        assert keep.all()
        return
    centers, crop = (boxes[:, :2] + boxes[:, 2:]) / 2, _ltrb(window)
    np.testing.assert_array_equal(keep, ((centers > crop[:2]) & (centers < crop[2:])).all(axis=1))
    assert keep.any()
    if free == "touching":
        assert (_iou(boxes, crop) > 0).all()


@examples(300)
@given(photo=_photos(), threshold=st.sampled_from([0.0, *IOU_ABOVE]))
def test_a_proposal_is_judged_by_its_iou_and_an_option_is_skipped_only_where_no_crop_could_do(photo, threshold):
    height, width, boxes, key = photo
    if not len(boxes):
        return
    objects, rng = _Objects(boxes), np.random.default_rng(key)
    least = max(1, round(0.3 * width)), max(1, round(0.3 * height))
    forbidden = objects.forbid(threshold, *least)
    candidates = [np.round(boxes[0]).astype(int)]  # the likeliest to succeed
    for _ in range(40):
        w, h = rng.integers(least[0], width + 1), rng.integers(least[1], height + 1)
        left, top = rng.integers(0, width - w + 1), rng.integers(0, height - h + 1)
        candidates.append(np.array([left, top, left + w, top + h]))
    for crop in candidates:
        if crop[2] - crop[0] < least[0] or crop[3] - crop[1] < least[1]:
            continue
        above = bool((_iou(boxes, crop.astype(np.float64)) > threshold).all())
        assert objects.all_above(threshold, tuple(crop.tolist())) == above
        assert not (above and forbidden)


def test_each_option_comes_up_one_time_in_seven():
    """With an object as large as the photo the IoU is the crop's share of the area, which tells the options apart."""
    rng = np.random.default_rng(0)
    w, h = rng.uniform(0.3, 1.0, (2, 400_000))
    area = (w * h)[(w / h >= 0.5) & (w / h <= 2)]
    # The free crop must hold the center of the photo, the others do so by their IoU or nearly so.
    edges = np.array([0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
    x, y = rng.uniform(0, 1 - w), rng.uniform(0, 1 - h)
    center = ((x < 0.5) & (x + w > 0.5) & (y < 0.5) & (y + h > 0.5))[(w / h >= 0.5) & (w / h <= 2)]
    expected = np.zeros(6)
    for above in (*IOU_ABOVE, -1.0):
        expected += np.histogram(area[(area > above) & center], edges)[0] / ((area > above) & center).sum() / 7

    samples, side = 6000, 1000
    found, whole = [], 0
    for key in range(samples):
        window, _ = _crop(side, side, [(0, 0, side, side)], key, crop_trials=3000)
        if window.height == window.width == side:
            whole += 1
        else:
            found.append(window.height * window.width / side**2)
    tolerance = 4 * np.sqrt(1 / 7 * 6 / 7 / samples)
    assert whole / samples == pytest.approx(1 / 7, abs=tolerance)
    np.testing.assert_allclose(np.histogram(found, edges)[0] / samples, expected, atol=tolerance)


CROWD = [(0.1, 0.1, 0.3, 0.5), (0.05, 0.6, 0.35, 0.95), (0.5, 0.2, 0.9, 0.9), (0.42, 0.42, 0.5, 0.55)]


@pytest.mark.parametrize(
    ("boxes", "attempts", "free", "free_above"),
    [
        ([(0.2, 0.3, 0.7, 0.8)], 1, "any", -1.0),
        ([(0.2, 0.3, 0.7, 0.8)], 50, "touching", 0.0),
        ([(0.05, 0.1, 0.8, 0.95), (0.2, 0.1, 0.95, 0.9)], 1, "any", -1.0),
        (CROWD, 1, "any", -1.0),
        (CROWD, 50, "touching", 0.0),
    ],
)
def test_crops_are_distributed_as_by_the_references_loop(boxes, attempts, free, free_above):
    """Means of what a crop is described by: left, top, width, height, their squares, the objects that stay."""
    boxes, samples, side = np.array(boxes), 2500 if attempts == 1 else 500, 1000
    rng = np.random.default_rng(1)
    rows = {"ours": [], "told": []}
    for key in range(samples):
        window, keep = _crop(side, side, boxes * side, key, crop_trials=attempts, parity=BoxParity(free_crop=free))
        rows["ours"].append([*(_ltrb(window) / side), window.width == window.height == side, keep.sum()])
        crop, stay = _law(rng, boxes, attempts, free_above)
        rows["told"].append([*crop, bool((crop == (0, 0, 1, 1)).all()), stay])
    ours, told = (np.array(rows[who], np.float64) for who in ("ours", "told"))
    for power in (1, 2):
        spread = np.sqrt((ours**power).var(axis=0) / samples + (told**power).var(axis=0) / samples)
        apart = np.abs((ours**power).mean(axis=0) - (told**power).mean(axis=0))
        assert (apart <= 4.5 * spread + 0.002).all(), (apart / spread).round(1)


def test_sides_and_aspect_stay_in_their_ranges_and_reach_them():
    shares = []
    for key in range(3000):
        window, _ = _crop(600, 900, [(300, 200, 600, 400)], key)
        if (window.height, window.width) != (600, 900):
            shares.append((window.width / 900, window.height / 600))
    w, h = np.array(shares).T
    half = 0.5 / 600  # whole pixels
    assert w.min() >= 0.3 - half and h.min() >= 0.3 - half
    assert w.min() < 0.33 and h.min() < 0.33 and w.max() > 0.97 and h.max() > 0.97
    assert (w / h).min() >= 0.5 - 4 * half and (w / h).max() <= 2 + 8 * half
    assert (w / h).min() < 0.53 and (w / h).max() > 1.9


def test_without_objects_it_is_the_whole_photo():
    for key in range(50):
        window, keep = _crop(40, 60, NO_BOXES, key)
        assert window == CropWindow(0, 0, 40, 60, 300, 300) and keep.shape == (0,)


def test_it_ends_even_where_the_whole_photo_is_never_drawn():
    class NeverWhole(SampleRng):
        __slots__ = ("drawn",)

        def integer(self, low: int, high: int) -> int:
            self.drawn = getattr(self, "drawn", 0) + 1
            return 1

    random = NeverWhole(0, 0, 0)
    corners = np.array([(0.0, 0.0, 2.0, 2.0), (98.0, 98.0, 100.0, 100.0)])  # no crop has IoU > 0.1 with both
    window, keep = ssd_crop(100, 100, corners, random, BoxInput(image_size=300))
    assert window == CropWindow(0, 0, 100, 100, 300, 300) and keep.all()
    assert random.drawn == MAX_DRAWS


def test_a_crop_depends_on_its_key_alone():
    boxes = [(10, 20, 200, 220), (100, 40, 300, 200)]
    first = [_crop(240, 320, boxes, key) for key in range(40)]
    again = [_crop(240, 320, boxes, key) for key in reversed(range(40))][::-1]
    assert [window for window, _ in first] == [window for window, _ in again]
    assert len({window for window, _ in first}) > 20
