"""Which shapes a run's batches have, and which images share one: all alike, or padded to one of a ladder, likes together.

Letters: n images   N photos of a split   H, W pixels of the network's input
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from paceline.config.instances import InstanceInput
from paceline.config.plan import Plan
from paceline.config.recipe import Recipe
from paceline.data.buckets import Shape, aspect_groups, padded, resized_all, short_of_step
from paceline.data.grouped import group_batches, grouped_permutation, shapes_of_run
from paceline.data.loader import Forward
from paceline.data.stream import permutation

# (short side, epoch, number in the index, out (H, W, 3)) -> label
ReadAt = Callable[[int, int, int, np.ndarray], Any]


class Shapes(Protocol):
    """What a task asks of its shapes. `numbers` are images' numbers in their index."""

    vary: bool  # whether batches of a run differ in shape: a discarded step on the largest then comes first

    def order(self, epoch: int) -> np.ndarray:
        """(n,) int64: the order in which this epoch takes the training images."""
        ...

    def forward(self, step: int, epochs: np.ndarray, numbers: np.ndarray) -> Forward:
        """One forward's images, with their shape and how they are read at this step."""
        ...

    def of_run(self, plan: Plan) -> Sequence[Shape]:
        """H, W of every input of this run's training, the largest first."""
        ...

    def largest_of_data(self) -> Shape | None:
        """H, W of the largest input that one of the training photos alone needs; None: the recipe tells."""
        ...

    def of_sample(self, number: int) -> Shape:
        """H, W of one training photo alone."""
        ...

    def evaluation(self, numbers: np.ndarray, batch: int) -> tuple[Sequence[Forward], Shape]:
        """Validation photos, each once, in forwards of at most `batch`; and the largest H, W of any rank's."""
        ...


class OneShape:
    """Squares of one side, of another in evaluation."""

    vary = False

    def __init__(self, side: int, eval_side: int, *, images: int, seed: int) -> None:
        """images: n, of training; the seed is the recipe's."""
        self.side, self.eval_side, self.images, self.seed = side, eval_side, images, seed

    def order(self, epoch: int) -> np.ndarray:
        """The stream's own."""
        return permutation(self.images, seed=self.seed, epoch=epoch)

    def forward(self, step: int, epochs: np.ndarray, numbers: np.ndarray) -> Forward:
        """As they come."""
        return Forward(epochs, numbers)

    def of_run(self, plan: Plan) -> Sequence[Shape]:
        """The one."""
        return ((self.side, self.side),)

    def largest_of_data(self) -> Shape | None:
        """The recipe tells."""
        return None

    def of_sample(self, number: int) -> Shape:
        """The one."""
        return self.side, self.side

    def evaluation(self, numbers: np.ndarray, batch: int) -> tuple[Sequence[Forward], Shape]:
        """In order."""
        parts = (numbers[at : at + batch] for at in range(0, len(numbers), batch))
        return [Forward(np.zeros(len(part), np.int64), part) for part in parts], (self.eval_side, self.eval_side)


class Sizes(NamedTuple):
    """Of one split."""

    heights: np.ndarray  # (N,) pixels
    widths: np.ndarray
    numbers: np.ndarray  # (n,) of the photos that take part

    def chosen(self) -> tuple[np.ndarray, np.ndarray]:
        """Heights and widths (n,) of those that take part."""
        return self.heights[self.numbers], self.widths[self.numbers]


class Buckets:
    """Photos keep their aspect and are padded to a shape of a ladder, likes together; see data/buckets.py and data/grouped.py."""

    vary = True

    def __init__(self, recipe: Recipe[Any, InstanceInput], train: Sizes, val: Sizes, read: ReadAt) -> None:
        """train, val: sizes of this run's photos."""
        self.recipe, self.photo, self.train, self.val, self.read = recipe, recipe.input, train, val, read
        self.groups = aspect_groups(*train.chosen(), recipe.input)

    def order(self, epoch: int) -> np.ndarray:
        """Photos of like shape together."""
        seed, batch, n = self.recipe.seed, self.recipe.global_batch, len(self.groups)
        return grouped_permutation(n, seed=seed, epoch=epoch, groups=self.groups, global_batch=batch)

    def forward(self, step: int, epochs: np.ndarray, numbers: np.ndarray) -> Forward:
        """Padded together, at this step's size."""
        short = short_of_step(self.recipe.seed, step, self.photo.short)
        return Forward(epochs, numbers, self._shape(self.train, numbers, short), partial(self.read, short))

    def _shape(self, split: Sizes, numbers: np.ndarray, short: int) -> Shape:
        """H, W that these photos are padded to together."""
        if not len(numbers):
            return self.photo.multiple, self.photo.multiple
        sizes = resized_all(split.heights[numbers], split.widths[numbers], short, self.photo.long)
        height, width = sizes.max(axis=0).tolist()
        return padded(height, width, self.photo, short)

    def of_run(self, plan: Plan) -> Sequence[Shape]:
        """Of every step's size, those that the order brings."""
        found: set[Shape] = set()
        for short in self.photo.short:
            found |= set(
                shapes_of_run(
                    self.groups,
                    resized_all(*self.train.chosen(), short, self.photo.long),
                    lambda height, width, short=short: padded(height, width, self.photo, short),
                    global_batch=plan.global_batch,
                    each=plan.images_per_forward,
                    steps=plan.total_steps,
                )
            )
        return sorted(found, key=lambda shape: (-math.prod(shape), shape))

    def largest_of_data(self) -> Shape | None:
        """Of the largest size; a forward that has to mix portraits with landscapes is larger still, and rare."""
        short = max(self.photo.short)
        sizes = np.unique(resized_all(*self.train.chosen(), short, self.photo.long), axis=0).tolist()
        shapes = {padded(height, width, self.photo, short) for height, width in sizes}
        return max(shapes, key=math.prod, default=None)

    def of_sample(self, number: int) -> Shape:
        """At the size of evaluation."""
        return self._shape(self.train, np.array([number]), self.photo.short[-1])

    def evaluation(self, numbers: np.ndarray, batch: int) -> tuple[Sequence[Forward], Shape]:
        """Photos of one shape together: what one is padded to depends on the photo alone."""
        short = self.photo.short[-1]
        shapes = np.zeros((len(self.val.heights), 2), np.int64)
        for number in self.val.numbers:
            shapes[number] = self._shape(self.val, np.array([number]), short)
        groups = np.unique(shapes[numbers], axis=0, return_inverse=True)[1].reshape(-1)
        forwards = []
        for places in group_batches(groups, batch):
            part = numbers[places]
            height, width = shapes[part[0]].tolist()
            forwards.append(Forward(np.zeros(len(part), np.int64), part, (height, width)))
        height, width = shapes[shapes.prod(axis=1).argmax()].tolist()
        return forwards, (height, width)
