"""The shapes of a run's batches: one size, or buckets of sizes with photos grouped by aspect ratio; how a photo is resized for them.

Every shape costs a compiled graph and, on an accelerator, its memory; every padded pixel costs arithmetic. The ladder of buckets was
chosen on COCO's photos, of which half are 4:3 and a third 3:2: padded to the smallest shape that holds it, a photo at 800/1333 is
padded by 3.3 percent on average.

Letters: n images   N photos of a split   H, W pixels of the network's input, multiples of `multiple`   h, w a resized photo
         S and L shortest and longest side of any shape, pixels
Sources of the resize laws: torchvision's GeneralizedRCNNTransform and torch's interpolate (recompute_scale_factor), "cut"; GluonCV's
resize_short_within, "rounded".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from paceline.config.maskrcnn import InstanceInput, WholeSides
from paceline.config.plan import BatchPlan
from paceline.config.recipe import Recipe
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.loader.sampler import (
    Order,
    Shape,
    batch_indices,
    group_batches,
    grouped_order,
    list_run_shapes,
    permutation,
)

# Limits of the steps whose shapes are computed exactly: photos, and epochs of a small set. A few seconds.
MAX_PHOTOS, MAX_EPOCHS = 20_000_000, 1_000
# Photos whose sizes are compared at once.
AT_ONCE = 2**20
# Aspect ratios of cameras, the longer side over the shorter. 3:2 occurs as 500x333 and 640x425 too, hence 1.51.
CAMERAS = (4 / 3, 1.51, 16 / 9)
# Most shapes of one ladder.
MAX = 10
# The side of a step has a random stream of its own; see data/loader/sample_rng.py.
SHORT_STREAM = 2 << 32


class ResizedShape(NamedTuple):
    """The size of one step's photos and input."""

    side: int  # the photo's shorter side, pixels
    shape: Shape  # H, W of the input that holds it


class SquareShapes:
    """Squares of one side, of another in evaluation. Its methods define what a task needs of its shapes; `AspectBuckets` has them too.

    `numbers` are images' numbers in their index.
    """

    vary = False  # whether batches of a run differ in shape: a discarded step on the largest then comes first

    def __init__(self, side: int, eval_side: int, *, images: int, seed: int, order: Order | None = None) -> None:
        """images: n, of training; seed: the recipe's; order: of its sampler, None: each image once an epoch."""
        self.fit, self.eval_fit = ResizedShape(side, (side, side)), ResizedShape(eval_side, (eval_side, eval_side))
        self.images, self.seed, self._order = images, seed, order

    def order(self, epoch: int) -> np.ndarray:
        """(n,) int64: the order in which this epoch takes the training images, see data/loader/sampler.py's Order."""
        return permutation(self.images, seed=self.seed, epoch=epoch) if self._order is None else self._order(epoch)

    def of_step(self, step: int, numbers: np.ndarray) -> ResizedShape:
        """Of every training photo of a step, on any rank and in any forward; numbers: all of them."""
        return self.fit

    def of_run(self, plan: BatchPlan) -> Sequence[ResizedShape]:
        """All fits of this run's steps, the largest first."""
        return (self.fit,)

    def largest_of_run(self, plan: BatchPlan) -> ResizedShape:
        """One that holds every step of this run, found without ordering an epoch."""
        return self.fit

    def widest(self) -> Shape:
        """H, W of an input as large as any that these photos can need: of every step, however mixed, and of every evaluation."""
        return max(self.fit.shape, self.eval_fit.shape, key=math.prod)

    def largest_of_data(self) -> Shape | None:
        """H, W of the largest input that one of the training photos alone needs; None: the recipe determines it."""
        return None

    def of_sample(self, number: int) -> ResizedShape:
        """Of one training photo alone."""
        return self.fit

    def evaluation(self, numbers: np.ndarray, batch: int) -> tuple[Sequence[tuple[np.ndarray, ResizedShape]], Shape]:
        """Validation photos, each once, in forwards of at most `batch`; and the largest H, W of any rank's."""
        parts = (numbers[at : at + batch] for at in range(0, len(numbers), batch))
        return [(part, self.eval_fit) for part in parts], self.eval_fit.shape


class ImageSizes(NamedTuple):
    """Of one split."""

    heights: np.ndarray  # (N,) pixels
    widths: np.ndarray
    numbers: np.ndarray  # (n,) of the photos that take part

    def chosen(self) -> tuple[np.ndarray, np.ndarray]:
        """Heights and widths (n,) of those that take part."""
        return self.heights[self.numbers], self.widths[self.numbers]


class AspectBuckets:
    """Photos keep their aspect ratio and are padded to a shape of a ladder, similar ones together (see data/loader)."""

    vary = True

    def __init__(
        self, recipe: Recipe[Any, InstanceInput], train: ImageSizes, val: ImageSizes, order: Order | None = None
    ) -> None:
        """train, val: sizes of this run's photos; order: of the recipe's sampler, None: each photo once an epoch."""
        self.photo, self.train, self.val, self.seed = recipe.input, train, val, recipe.seed
        self.groups = aspect_groups(*train.chosen(), recipe.input)
        self._order = grouped_order(self.groups, seed=recipe.seed, global_batch_size=recipe.global_batch_size, base=order)
        self._each_once = order is None

    def order(self, epoch: int) -> np.ndarray:
        """Photos of like shape together."""
        return self._order(epoch)

    def of_step(self, step: int, numbers: np.ndarray) -> ResizedShape:
        """Padded together, at this step's size.

        Not by the forward: statistics of BatchNorm and convolutions at a photo's edge depend on the padding, so a step would depend
        on how it is cut. Nearly every step has photos of one shape anyway.
        """
        return self._fit(self.train, numbers, choose_short_side(self.seed, step, self.photo.min_size))

    def _fit(self, split: ImageSizes, numbers: np.ndarray, short: int) -> ResizedShape:
        if not len(numbers):
            return ResizedShape(short, (self.photo.size_divisor, self.photo.size_divisor))
        sizes = self._resized(split, numbers, short)
        height, width = sizes.max(axis=0).tolist()
        return ResizedShape(short, padded_shape(height, width, self.photo, short))

    def _resized(self, split: ImageSizes, numbers: np.ndarray, short: int) -> np.ndarray:
        """(n, 2) what holds each photo; one that may be turned on its side, which is drawn for each by itself, needs a square."""
        sizes = resized_sizes(
            split.heights[numbers], split.widths[numbers], short, self.photo.max_size, self.photo.parity.side_rounding
        )
        return np.maximum(sizes, sizes[:, ::-1]) if self.photo.rot90 and split is self.train else sizes

    def of_run(self, plan: BatchPlan) -> Sequence[ResizedShape]:
        """The exact fits of its steps; past MAX_PHOTOS or MAX_EPOCHS the fits that follow from its groups alone.

        The latter are nearly exact; a rare step that mixes portraits with landscapes may have a smaller shape than is listed for it.
        """
        sizes = {short: self._resized(self.train, self.train.numbers, short) for short in self.photo.min_size}
        batch, images = plan.global_batch_size, len(self.train.numbers)
        steps = min(plan.stop_after, max(1, min(MAX_PHOTOS, MAX_EPOCHS * images) // batch))
        together = max(1, min(AT_ONCE, images) // batch)
        results = set() if steps == plan.stop_after else self._by_groups(plan)
        for first in range(0, steps, together):
            here = range(first, min(first + together, steps))
            positions = np.arange(here.start * batch, here.stop * batch).reshape(-1, batch)
            _, of_steps = batch_indices(images, positions, seed=self.seed, order=self._order)
            shorts = np.array([choose_short_side(self.seed, step, self.photo.min_size) for step in here])
            for short, each in sizes.items():
                sides = each[of_steps[shorts == short]].max(axis=1, initial=0)
                results |= {
                    ResizedShape(short, padded_shape(height, width, self.photo, short))
                    for height, width in np.unique(sides, axis=0).tolist()
                }
        return _largest_first(results)

    def largest_of_run(self, plan: BatchPlan) -> ResizedShape:
        """It follows from the number of photos in each group, where each is drawn once an epoch."""
        return _largest_first(self._by_groups(plan))[0] if self._each_once else self.of_run(plan)[0]

    def _by_groups(self, plan: BatchPlan) -> set[ResizedShape]:
        if not self._each_once:  # what meets in a step differs from epoch to epoch
            return {ResizedShape(short, self.widest()) for short in self.photo.min_size}
        results: set[ResizedShape] = set()
        for short in self.photo.min_size:
            shapes = list_run_shapes(
                self.groups,
                self._resized(self.train, self.train.numbers, short),
                lambda height, width, short=short: padded_shape(height, width, self.photo, short),
                global_batch_size=plan.global_batch_size,
                steps=plan.total_steps,
            )
            results |= {ResizedShape(short, shape) for shape in shapes}
        return results

    def widest(self) -> Shape:
        """A step may mix the tallest photo with the widest; an evaluation pads each photo for itself."""
        results = set()
        for short in self.photo.min_size:
            height, width = self._resized(self.train, self.train.numbers, short).max(axis=0).tolist()
            results.add(padded_shape(height, width, self.photo, short))
        short = self.photo.min_size[-1]
        for height, width in np.unique(self._resized(self.val, self.val.numbers, short), axis=0).tolist():
            results.add(padded_shape(height, width, self.photo, short))
        return max(results, key=math.prod)

    def largest_of_data(self) -> Shape | None:
        """Of the largest size; a step that has to mix portraits with landscapes is larger still, and rare."""
        short = max(self.photo.min_size)
        sizes = np.unique(self._resized(self.train, self.train.numbers, short), axis=0).tolist()
        shapes = {padded_shape(height, width, self.photo, short) for height, width in sizes}
        return max(shapes, key=math.prod, default=None)

    def of_sample(self, number: int) -> ResizedShape:
        """At the size of evaluation."""
        return self._fit(self.train, np.array([number]), self.photo.min_size[-1])

    def evaluation(self, numbers: np.ndarray, batch: int) -> tuple[Sequence[tuple[np.ndarray, ResizedShape]], Shape]:
        """Photos of one shape together: a photo's padding depends on the photo alone."""
        short = self.photo.min_size[-1]
        shapes = np.zeros((len(self.val.heights), 2), np.int64)
        for number in self.val.numbers:
            shapes[number] = self._fit(self.val, np.array([number]), short).shape
        groups = np.unique(shapes[numbers], axis=0, return_inverse=True)[1].reshape(-1)
        parts = [numbers[indices] for indices in group_batches(groups, batch)]
        height, width = shapes[shapes.prod(axis=1).argmax()].tolist()
        return [(part, ResizedShape(short, tuple(shapes[part[0]].tolist()))) for part in parts], (height, width)


def _largest_first(fits: Iterable[ResizedShape]) -> list[ResizedShape]:
    return sorted(fits, key=lambda fit: (-math.prod(fit.shape), fit))


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
    raise ValueError(f"{h} x {w} pixels do not fit any of the shapes {tuple(shapes)}")


def padded_shape(h: int, w: int, settings: InstanceInput, short: int) -> Shape:
    """The shape of a batch whose photos have at most h rows and w columns, by the rule `settings.padding`."""
    if settings.padding_mode == "multiple":
        return _up(h, settings.size_divisor), _up(w, settings.size_divisor)
    return choose_bucket(h, w, make_buckets(short, settings.max_size, settings.size_divisor))


def aspect_groups(heights: np.ndarray, widths: np.ndarray, settings: InstanceInput) -> np.ndarray:
    """(N,), (N,) of the photos as stored -> (N,) int64: each photo's place on the ladder, from the tallest shape, 0, to the widest.

    Neighbors need little padding together. Photos of a square above S are portraits and landscapes, on either side of S x S. Places
    that no photo has do not count. With several short sides the ladder of the largest is taken: the ratios hardly differ.
    """
    short = max(settings.min_size)
    sizes = resized_sizes(heights, widths, short, settings.max_size, settings.parity.side_rounding)
    least = _up(short, settings.size_divisor)
    axis = np.zeros(len(sizes))
    for shape in reversed(
        make_buckets(short, settings.max_size, settings.size_divisor)
    ):  # the smallest that holds it comes last
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
