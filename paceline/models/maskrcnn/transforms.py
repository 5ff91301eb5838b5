"""One photo and its objects as a sample of Mask R-CNN: turn, crop, flip and colors are drawn, and boxes and masks follow.

Letters: n objects that are wanted, m <= n that stay; h, w the photo in the input; H, W the input; C canvas side
A sample's random numbers are drawn in a fixed order: turn, crop, flip, jitter. The key of the network's own sampling has a random
stream to itself, so it depends on no setting.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paceline._utils.errors import DataError
from paceline.config.maskrcnn import InstanceInput
from paceline.data.batch import InstanceObjects
from paceline.data.index.box_split import BoxSplit
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.color_jitter import sample_color_jitter
from paceline.data.transforms.crop import CropWindow
from paceline.data.transforms.decode import SampleSpec
from paceline.data.transforms.exif import rotate_boxes
from paceline.data.transforms.image_io import Header
from paceline.data.transforms.sample import sample_orientation
from paceline.models.batch_shapes import Shape, resized_size
from paceline.models.maskrcnn.mask_targets import make_canvases
from paceline.models.ssd.transforms import clip_to_edges

KEY_STREAM = 3 << 32
# A cropped object with less than this share of its box left is no longer an object.
MIN_LEFT = 0.25
# Nor is one whose box is narrower or lower than this in the input, pixels: no feature of the network shows it.
MIN_SIDE = 1.0


def image_key(seed: int, epoch: int, index: int) -> int:
    """The image's random key in [0, 2^32), of this epoch."""
    return SampleRng(seed, epoch, index, stream=KEY_STREAM).bits() >> 32


class ImagePlacement(NamedTuple):
    """How a photo becomes a part of the input, as drawn."""

    photo: tuple[int, int]  # height and width as annotated
    turn: int
    header: Header  # turned, as the window
    window: CropWindow
    flip: bool
    least: float  # share of its box with which an object stays

    def canvases(self, split: BoxSplit, rows: np.ndarray, ltrb: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
        """`make_canvases` these objects; ltrb (n, 4) their boxes in the turned photo."""
        return make_canvases(
            split, rows, ltrb, photo=self.photo, turn=self.turn, window=self.window, flip=self.flip, side=side
        )


def sample_instance_spec(
    header: Header,
    name: str,
    split: BoxSplit,
    rows: np.ndarray,
    random: SampleRng,
    key: int,
    settings: InstanceInput,
    short: int,
    canvas: int,
    shape: Shape,
) -> SampleSpec:
    """The photo, cropped or not, in the top left corner of the input, labeled with the InstanceObjects that stay.

    rows    (n,) int64, the wanted objects' rows in the split; each box with some area inside the photo
    key     see `image_key`; canvas C, 0 where masks are not learned
    short   the shorter side of this step, pixels; the longer one has settings.long at most
    shape   (H, W); holds the photo's resized size, cropped or not
    Raises DataError for an image of another size than when the data was prepared.
    """
    view = sample_placement(header, random, settings, short)
    _fitting(view.header, name, short, settings, shape)
    color = sample_color_jitter(random, settings)
    objects, _ = keep_visible_objects(view, split, rows, canvas, key)
    return SampleSpec(name, view.header, view.window, objects, view.flip, color, settings.decoder, settings.resize)


def sample_placement(header: Header, random: SampleRng, settings: InstanceInput, short: int) -> ImagePlacement:
    """Draw turn, crop and flip. header: of the photo as annotated; short as in `sample_instance_spec`."""
    photo, turn = (header.height, header.width), sample_orientation(random, settings.vflip, settings.rot90)
    header = header.turned(turn)
    h, w = resized_size(header.height, header.width, short, settings.long, settings.sides)
    window, least = CropWindow(0, 0, header.height, header.width, h, w), MIN_LEFT
    if settings.crop < 1:
        window = crop_window(header.height, header.width, h, w, random, settings.crop)
    elif settings.scale_jitter != (1.0, 1.0):
        window = scaled_window(header.height, header.width, h, w, random, settings.scale_jitter)
        # An object that fills the photo fills every part of it, however small.
        least *= window.height * window.width / (header.height * header.width)
    return ImagePlacement(photo, turn, header, window, random.coin(settings.flip), least)


def keep_visible_objects(
    view: ImagePlacement, split: BoxSplit, rows: np.ndarray, canvas: int, key: int = 0
) -> tuple[InstanceObjects, np.ndarray]:
    """What stays of the objects `rows`, and (m,) int64 the rows of those."""
    ltrb = rotate_boxes(clip_to_edges(split.boxes[rows], *view.photo), view.turn, *view.photo)
    boxes, keep = clip_boxes_to_input(view.window, ltrb, view.flip, view.least)
    kept = int(keep.sum())
    canvases, frames = np.zeros((kept, 2, 2), np.uint8), np.tile(np.array([0, 0, 1, 1], np.float32), (kept, 1))
    if canvas:
        canvases, frames = view.canvases(split, rows[keep], ltrb[keep], canvas)
    objects = InstanceObjects(
        boxes=boxes[keep].astype(np.float32),
        classes=split.classes[rows][keep].astype(np.int64),
        canvases=canvases,
        frames=frames,
        size=(view.window.resized_height, view.window.resized_width),
        key=key,
    )
    return objects, rows[keep]


def evaluation_instance_spec(header: Header, name: str, settings: InstanceInput, short: int, shape: Shape) -> SampleSpec:
    """The whole photo in the top left corner of the input, (H, W) = `shape`; no objects, key 0.

    Raises DataError for an image of another size than when the data was prepared.
    """
    size = _fitting(header, name, short, settings, shape)
    objects = InstanceObjects(
        boxes=np.zeros((0, 4), np.float32),
        classes=np.zeros(0, np.int64),
        canvases=np.zeros((0, 2, 2), np.uint8),
        frames=np.zeros((0, 4), np.float32),
        size=size,
        key=0,
    )
    window = CropWindow(0, 0, header.height, header.width, *size)
    return SampleSpec(name, header, window, objects, decoder=settings.decoder, law=settings.resize)


def crop_window(height: int, width: int, h: int, w: int, random: SampleRng, least: float) -> CropWindow:
    """A random region with at least the share `least` of each side, resized to fill (h, w) as far as its aspect allows.

    (h, w) is the whole photo's size in the input, so the shape that a sample needs is known before anything is drawn. Four numbers
    are drawn: the shares of height and width, uniform, then the places.
    """
    rows = max(1, round(height * random.uniform(least, 1.0)))
    columns = max(1, round(width * random.uniform(least, 1.0)))
    top, left = random.integer(0, height - rows + 1), random.integer(0, width - columns + 1)
    scale = min(h / rows, w / columns)
    return CropWindow(top, left, rows, columns, min(h, max(1, round(rows * scale))), min(w, max(1, round(columns * scale))))


def scaled_window(height: int, width: int, h: int, w: int, random: SampleRng, scale: tuple[float, float]) -> CropWindow:
    """Large-scale jitter: the photo at `factor` times (h, w), uniform in `scale`; beyond 1 as much of it, anywhere, as fills (h, w).

    Drawn are the factor and, beyond 1, the place. (h, w) plays the part of the fixed canvas, so a sample's shape is known before.
    Source: Ghiasi et al. 2021 (arXiv 2012.07177), section 3; torchvision's ScaleJitter and FixedSizeCrop.
    """
    factor = random.uniform(*scale)
    if factor <= 1:
        return CropWindow(0, 0, height, width, max(1, round(factor * h)), max(1, round(factor * w)))
    rows, columns = max(1, round(height / factor)), max(1, round(width / factor))
    top, left = random.integer(0, height - rows + 1), random.integer(0, width - columns + 1)
    return CropWindow(top, left, rows, columns, h, w)


def clip_boxes_to_input(
    window: CropWindow, ltrb: np.ndarray, flip: bool, least: float = MIN_LEFT
) -> tuple[np.ndarray, np.ndarray]:
    """Boxes in the input, cut at the window's region, and which of them are still objects.

    ltrb    (n, 4) float64, pixels of the photo
    return  (n, 4) float64 pixels of the input, mirrored with `flip`; (n,) bool, at least the share `least` of the area is left and
            both sides are at least MIN_SIDE
    """
    scale = (window.resized_width / window.width, window.resized_height / window.height) * 2
    whole = (ltrb - (window.left, window.top) * 2) * scale
    boxes = np.clip(whole, 0.0, (window.resized_width, window.resized_height) * 2)
    sides, before = boxes[:, 2:] - boxes[:, :2], whole[:, 2:] - whole[:, :2]
    if flip:
        boxes[:, [0, 2]] = window.resized_width - boxes[:, [2, 0]]
    return boxes, (sides.prod(axis=1) >= least * before.prod(axis=1)) & (sides >= MIN_SIDE).all(axis=1)


def _fitting(header: Header, name: str, short: int, settings: InstanceInput, shape: Shape) -> tuple[int, int]:
    """(h, w) of the whole photo in the input."""
    h, w = resized_size(header.height, header.width, short, settings.long, settings.sides)
    if h > shape[0] or w > shape[1]:
        raise DataError(
            f"{name}: {header.width} x {header.height} pixels, which do not fit the {shape[1]} x {shape[0]} input "
            "chosen for its size when the data was prepared: the file has changed.\nPrepare the data set again."
        )
    return h, w
