"""Copy-paste: objects of another photo, cut out along their masks, lie over a sample of Mask R-CNN.

The other photo is drawn as any (turn, crop or scale, flip, colors), at its own size in this step, cut to the sample's; each of its
objects that has a mask is taken with probability 1/2. Masks end where these begin; an object of which less than MIN_LEFT of its mask
is left is dropped, the box of one that lost a part shrinks to the rest. Edges are not smoothed: the paper found no difference.
Numbers drawn, after the sample's own: what the other photo draws, then a coin for each of its objects that stay.

Letters: n objects of the sample, k pasted ones; h, w the sample's photo in the input; C canvas side
Source: Ghiasi et al. 2021 (arXiv 2012.07177), section 3.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from paceline.config.maskrcnn import InstanceInput
from paceline.data.batch import InstanceObjects
from paceline.data.index.box_split import BoxSplit
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.transforms.color_jitter import sample_color_jitter
from paceline.data.transforms.crop import CropWindow
from paceline.data.transforms.decode import PartnerSample, SampleSpec
from paceline.data.transforms.exif import rotate_boxes
from paceline.data.transforms.image_io import Header
from paceline.models.maskrcnn.transforms import MIN_LEFT, MIN_SIDE, ImagePlacement, keep_visible_objects, sample_placement
from paceline.models.ssd.transforms import clip_to_edges


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
