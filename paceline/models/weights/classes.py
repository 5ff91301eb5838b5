"""Classes of weights: the names of published rows in their order, and rows by name: those that a data set shares with a file are kept,
others start anew.

Letters: K classes of the data set   J classes of the file   n boxes of a cell (1 elsewhere)   e numbers of a class in a layer
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from torch import Tensor

from paceline._utils.text import join_names
from paceline._utils.version import PACKAGE

_NAMES = """
  person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, stop sign, parking meter, bench,
  bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, backpack, umbrella, handbag, tie, suitcase, frisbee, skis,
  snowboard, sports ball, kite, baseball bat, baseball glove, skateboard, surfboard, tennis racket, bottle, wine glass, cup, fork,
  knife, spoon, bowl, banana, apple, sandwich, orange, broccoli, carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed,
  dining table, toilet, tv, laptop, mouse, remote, keyboard, cell phone, microwave, oven, toaster, sink, refrigerator, book, clock,
  vase, scissors, teddy bear, hair drier, toothbrush
"""
_UNUSED = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
# COCO's 80 categories by the ids of its annotations, which have holes.
COCO = dict(
    zip((number for number in range(1, 91) if number not in _UNUSED), " ".join(_NAMES.split()).split(", "), strict=True)
)
COCO_80 = tuple(COCO.values())
# Of files that have a row for each id up to 90, those of no category included.
COCO_90 = tuple(COCO.get(number, "") for number in range(1, 91))


@cache
def imagenet_wnids() -> tuple[str, ...]:
    """The 1000 WordNet ids in sort order, which names ImageNet's class folders."""
    file = PACKAGE / "data" / "formats" / "imagenet_wnids.txt"
    return tuple(file.read_text(encoding="ascii").split())


def readable_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names for people: of ImageNet's WordNet ids torchvision's words, of a row for no category N/A."""
    if tuple(names) == imagenet_wnids():
        from torchvision.models import ResNet50_Weights

        return tuple(ResNet50_Weights.IMAGENET1K_V1.meta["categories"])
    return tuple(name or "N/A" for name in names)


def category_ids(names: Sequence[str]) -> tuple[int, ...]:
    """The ids that COCO's annotations have for its rows; 1..K of other names."""
    ids = {name: number for number, name in COCO.items()}
    return tuple(ids[name] for name in names) if tuple(names) == COCO_80 else tuple(range(1, len(names) + 1))


def published_class_names(classes: int) -> tuple[str, ...]:
    """Names of the rows of weights that somebody published for so many classes; () where that tells nothing."""
    return {80: COCO_80, 90: COCO_90, 1000: imagenet_wnids()}.get(classes, ())


# So many classes are said a line each; of more, the new ones are named.
MAX_LINES = 20
MAX_NAMED = 10


@dataclass(frozen=True)
class Labels:
    """The classes of a data set, in the order of its rows."""

    names: tuple[str, ...]
    ids: tuple[int, ...] = ()  # of annotations, as `names`
    folders: tuple[str, ...] = ()  # of class folders, as `names`


@dataclass(frozen=True)
class ClassRows:
    """For each class of the data set, its row among the file's classes, counted from 0; None: it starts anew."""

    places: tuple[int | None, ...]
    ours: tuple[str, ...]
    theirs: tuple[str, ...]

    @property
    def any(self) -> bool:
        """Whether one of them is in the file."""
        return any(index is not None for index in self.places)

    @property
    def same(self) -> bool:
        """Whether all rows of the file stay where they are."""
        return self.places == tuple(range(len(self.theirs)))

    def lines(self) -> list[str]:
        """Row by row for people; of many classes the counts, and the new ones."""
        kept = sum(index is not None for index in self.places)
        lines = [f"class rows matched by name: {kept} of {len(self.places)}; the file has {len(self.theirs)}"]
        if len(self.places) <= MAX_LINES:
            for number, (name, index) in enumerate(zip(self.ours, self.places), start=1):
                was = "new" if index is None else f"row {index + 1} of the file, {self.theirs[index]}"
                lines.append(f"  class {number} {name}: {was}")
        elif new := [name for name, index in zip(self.ours, self.places) if index is None]:
            lines.append(f"  new: {join_names(new, MAX_NAMED)}")
        return lines


def match_rows(theirs: Sequence[Sequence[str]], labels: Labels) -> ClassRows:
    """Rows of the same names; capitals, spaces, hyphens and underscores make no difference.

    theirs   of each class of the file its names
    A name that stands for several classes of one side tells nothing.
    """
    indices: dict[str, int] = {}
    count = Counter(name for names in theirs for name in {_plain(name) for name in names})
    for index, names in enumerate(theirs):
        indices |= {plain: index for name in names if (plain := _plain(name)) and count[plain] == 1}
    own = [
        {_plain(name) for name in row}
        for row in zip(*(column for column in (labels.names, labels.folders) if len(column) == len(labels.names)))
    ]
    ours = Counter(name for names in own for name in names)
    results = [
        next((indices[name] for name in sorted(names) if ours[name] == 1 and name in indices), None) for names in own
    ]
    taken = Counter(position for position in results if position is not None)
    return ClassRows(
        tuple(position if position is not None and taken[position] == 1 else None for position in results),
        labels.names,
        tuple(names[0] for names in theirs),
    )


def select_rows(own: Tensor, saved: Tensor, indices: Sequence[int | None], *, cells: int = 1, each: int = 1) -> Tensor:
    """A class layer's weight or bias with the file's rows where it has them, the model's own elsewhere.

    own     (n * K * e, ...), the model's first weights
    saved   (n * J * e, ...)
    indices  for each of the model's K rows (the background's too, where there is one) its row in the file
    """
    made = own.detach().clone().unflatten(0, (cells, -1, each))
    theirs = saved.unflatten(0, (cells, -1, each)).to(made.dtype)
    for row, index in enumerate(indices):
        if index is not None:
            made[:, row] = theirs[:, index]
    return made.flatten(0, 2)


def count_class_rows(tensors: Mapping[str, Tensor]) -> int:
    """Class rows of weights under our names, without a background; 0 where there are none, or a padded head does not tell."""
    boxes = len(tensors["heads.0.loc.bias"]) // 4 if "heads.0.loc.bias" in tensors else 0
    for name, each, background in (
        ("fc.bias", 1, 0),
        ("roi_heads.box_predictor.cls_score.bias", 1, 1),
        ("heads.0.conf.bias", boxes, 1),
    ):
        if name in tensors and each and tensors[name].dim() == 1:
            return max(0, len(tensors[name]) // each - background)
    return 0


def add_background_row(rows: ClassRows) -> list[int | None]:
    """Places of a layer whose first row is the background's, on both sides."""
    return [0, *(None if index is None else index + 1 for index in rows.places)]


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()
