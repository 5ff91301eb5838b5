"""One photo and its objects as a sample of Mask R-CNN: turn, crop, flip and colors are drawn, and boxes and masks follow.

Letters: n objects that are wanted, m <= n that stay; h, w the photo in the input; H, W the input; C canvas side
A sample's random numbers are drawn in a fixed order: turn, crop, flip, jitter. The key of the network's own sampling has a random
stream to itself, so it depends on no setting.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np

from paceline._utils.errors import DataError
from paceline.config.maskrcnn import InstanceInput
from paceline.data.batch import InstanceObjects
from paceline.data.index.box_split import BoxSplit
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.color_jitter import sample_color_jitter
from paceline.data.transforms.crop import CropWindow
from paceline.data.transforms.decode import PartnerSample, SampleSpec
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
    short   the shorter side of this step, pixels; the longer one has settings.max_size at most
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
    h, w = resized_size(header.height, header.width, short, settings.max_size, settings.parity.side_rounding)
    window, least = CropWindow(0, 0, header.height, header.width, h, w), MIN_LEFT
    if settings.min_crop_scale < 1:
        window = crop_window(header.height, header.width, h, w, random, settings.min_crop_scale)
    elif settings.scale_jitter != (1.0, 1.0):
        window = scaled_window(header.height, header.width, h, w, random, settings.scale_jitter)
        # An object that fills the photo fills every part of it, however small.
        least *= window.height * window.width / (header.height * header.width)
    return ImagePlacement(photo, turn, header, window, random.coin(settings.hflip), least)


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
    h, w = resized_size(header.height, header.width, short, settings.max_size, settings.parity.side_rounding)
    if h > shape[0] or w > shape[1]:
        raise DataError(
            f"{name}: its {header.width} x {header.height} pixels do not fit the prepared input size {shape[1]} x "
            f"{shape[0]}, because the file has changed.\nPrepare the dataset again."
        )
    return h, w


# Copy-paste: objects of another photo, cut out along their masks, lie over a sample of Mask R-CNN.
#
# The other photo is drawn as any (turn, crop or scale, flip, colors), at its own size in this step, cut to the sample's; each of its
# objects that has a mask is taken with probability 1/2. Masks end where these begin; an object of which less than MIN_LEFT of its mask
# is left is dropped, the box of one that lost a part shrinks to the rest. Edges are not smoothed: the paper found no difference.
# Numbers drawn, after the sample's own: what the other photo draws, then a coin for each of its objects that stay.
#
# Letters: n objects of the sample, k pasted ones; h, w the sample's photo in the input; C canvas side
# Source: Ghiasi et al. 2021 (arXiv 2012.07177), section 3.


def paste_objects(
    draw: SampleSpec,
    index: int,
    name: str,
    split: BoxSplit,
    rows: np.ndarray,
    random: SampleRng,
    settings: InstanceInput,
    short: int,
) -> SampleSpec:
    """The sample with objects of photo `index` over it; as it was, where none is taken.

    rows  (n,) int64, the objects that photo `index` may give
    """
    under: InstanceObjects = draw.label
    header = Header(int(split.heights[index]), int(split.widths[index]), 0, False, 0)
    view = sample_placement(header, random, settings, short)
    view = view._replace(window=_cut(view.window, *under.size))
    color = sample_color_jitter(random, settings)
    masked = np.diff(split.object_polygons)[rows] + np.diff(split.object_rles)[rows] > 0
    side = under.canvases.shape[-1] - 2
    over, seen = keep_visible_objects(view, split, rows[masked], side)
    taken = np.array([random.coin() for _ in seen], bool)
    # A canvas repeats its photo's border outwards; here other things lie there.
    whole = np.ones((view.window.resized_height, view.window.resized_width), bool)
    over = replace(over, size=under.size, canvases=over.canvases & _at_centers(over, under.size, whole))
    over, seen = _only(over, taken), seen[taken]
    if not len(seen):
        return draw
    mask = _covered(view, split, seen)
    below = remove_covered(under, mask)
    joined = {
        name: np.concatenate((getattr(below, name), getattr(over, name)))
        for name in ("boxes", "classes", "canvases", "frames")
    }
    pasted = SampleSpec(name, view.header, view.window, over, view.flip, color, settings.decoder, settings.resize)
    return draw._replace(label=replace(under, **joined), others=(*draw.others, PartnerSample(index, pasted, mask=mask)))


def remove_covered(objects: InstanceObjects, mask: np.ndarray) -> InstanceObjects:
    """What is left of a sample's objects below pixels that others cover.

    mask  bool, of the upper left part of the sample
    """
    canvases, boxes = objects.canvases & ~_at_centers(objects, objects.size, mask), objects.boxes.copy()
    keep = np.ones(len(boxes), bool)
    for at in np.flatnonzero((canvases != objects.canvases).any(axis=(1, 2))).tolist():
        before, (x, y, pitch_x, pitch_y) = objects.canvases[at], objects.frames[at].tolist()
        ys, xs = np.nonzero(canvases[at, 1:-1, 1:-1])
        if len(xs) < MIN_LEFT * before[1:-1, 1:-1].sum() or not len(xs):
            keep[at] = False
            continue
        low, high = (
            (x + xs.min() * pitch_x, y + ys.min() * pitch_y),
            (x + (xs.max() + 1) * pitch_x, y + (ys.max() + 1) * pitch_y),
        )
        boxes[at, :2], boxes[at, 2:] = np.maximum(boxes[at, :2], low), np.minimum(boxes[at, 2:], high)
        keep[at] = (boxes[at, 2:] - boxes[at, :2] >= MIN_SIDE).all()
    return _only(replace(objects, canvases=canvases, boxes=boxes), keep)


def _at_centers(objects: InstanceObjects, size: tuple[int, int], mask: np.ndarray) -> np.ndarray:
    """(n, C + 2, C + 2) bool: the mask, False beyond it, at the centers of the pixels of canvases in a sample of `size`.

    Beyond the sample's border it is the nearest pixel's inside, as canvases are.
    """
    cover, centers = np.zeros(size, bool), np.arange(objects.canvases.shape[-1]) - 0.5
    cover[: mask.shape[0], : mask.shape[1]] = mask
    x, y, pitch_x, pitch_y = objects.frames.T[..., None]
    columns = np.clip(np.floor(x + centers * pitch_x), 0, size[1] - 1).astype(np.int64)
    rows = np.clip(np.floor(y + centers * pitch_y), 0, size[0] - 1).astype(np.int64)
    return cover[rows[:, :, None], columns[:, None, :]]


def _only(objects: InstanceObjects, keep: np.ndarray) -> InstanceObjects:
    names = (each.name for each in fields(objects) if each.name not in ("size", "key"))
    return replace(objects, **{name: getattr(objects, name)[keep] for name in names})


def _cut(window: CropWindow, h: int, w: int) -> CropWindow:
    """The upper left part of a window that is at most (h, w) once it is resized."""
    rows, columns = min(h, window.resized_height), min(w, window.resized_width)
    height = max(1, round(window.height * rows / window.resized_height))
    width = max(1, round(window.width * columns / window.resized_width))
    return CropWindow(window.top, window.left, height, width, rows, columns)


def _covered(view: ImagePlacement, split: BoxSplit, rows: np.ndarray) -> np.ndarray:
    """(h, w) bool of the view: the pixels of these objects' masks, one object after the other at full resolution."""
    h, w = view.window.resized_height, view.window.resized_width
    result = np.zeros((h, w), bool)
    ltrb = rotate_boxes(clip_to_edges(split.boxes[rows], *view.photo), view.turn, *view.photo)
    for row, box in zip(rows, ltrb):
        scale = (w / view.window.width, h / view.window.height)
        expected = int(max((box[2] - box[0]) * scale[0], (box[3] - box[1]) * scale[1])) + 2
        # The latter holds any mask; an annotated box nearly always does.
        for side in (min(expected, max(h, w)), max(h, w)):
            (canvas,), ((x, y, pitch_x, pitch_y),) = view.canvases(split, np.array([row]), box[None], side)
            if pitch_x == pitch_y == 1:
                break
        top, left = int(y), int(x)
        part = result[top : top + side, left : left + side]
        part |= canvas[1 : 1 + part.shape[0], 1 : 1 + part.shape[1]].astype(bool)
    return result
