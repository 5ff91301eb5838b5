"""Rows of a class layer by the names of the classes: those that a data set shares with a weight file are kept, others start anew.

Letters: K classes of the data set   J classes of the file   n boxes of a cell (1 elsewhere)   e numbers of a class in a layer
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from paceline.config.printable import some

# So many classes are said a line each; of more, the new ones are named.
MOST_LINES = 20
MOST_NAMED = 10


@dataclass(frozen=True)
class Labels:
    """The classes of a data set, in the order of its rows."""

    names: tuple[str, ...]
    ids: tuple[int, ...] = ()  # of annotations, as `names`
    folders: tuple[str, ...] = ()  # of class folders, as `names`


@dataclass(frozen=True)
class Rows:
    """For each class of the data set, its row among the file's classes, counted from 0; None: it starts anew."""

    places: tuple[int | None, ...]
    ours: tuple[str, ...]
    theirs: tuple[str, ...]

    @property
    def any(self) -> bool:
        """Whether one of them is in the file."""
        return any(place is not None for place in self.places)

    @property
    def same(self) -> bool:
        """Whether all rows of the file stay where they are."""
        return self.places == tuple(range(len(self.theirs)))

    def lines(self) -> list[str]:
        """Row by row for people; of many classes the counts, and the new ones."""
        kept = sum(place is not None for place in self.places)
        lines = [f"class rows by name: {kept} of {len(self.places)} kept, of the file's {len(self.theirs)}"]
        if len(self.places) <= MOST_LINES:
            for number, (name, place) in enumerate(zip(self.ours, self.places), start=1):
                was = "new" if place is None else f"row {place + 1} of the file, {self.theirs[place]}"
                lines.append(f"  class {number} {name}: {was}")
        elif new := [name for name, place in zip(self.ours, self.places) if place is None]:
            lines.append(f"  new: {some(new, MOST_NAMED)}")
        return lines


def match_rows(theirs: Sequence[Sequence[str]], labels: Labels) -> Rows:
    """Rows of the same names; capitals, spaces, hyphens and underscores make no difference.

    theirs   of each class of the file its names
    A name that stands for several classes of one side tells nothing.
    """
    places: dict[str, int] = {}
    count = Counter(name for names in theirs for name in {_plain(name) for name in names})
    for place, names in enumerate(theirs):
        places |= {plain: place for name in names if (plain := _plain(name)) and count[plain] == 1}
    own = [
        {_plain(name) for name in row}
        for row in zip(*(column for column in (labels.names, labels.folders) if len(column) == len(labels.names)))
    ]
    ours = Counter(name for names in own for name in names)
    found = [
        next((places[name] for name in sorted(names) if ours[name] == 1 and name in places), None) for names in own
    ]
    taken = Counter(place for place in found if place is not None)
    return Rows(
        tuple(place if place is not None and taken[place] == 1 else None for place in found),
        labels.names,
        tuple(names[0] for names in theirs),
    )


def take_rows(own: Tensor, saved: Tensor, places: Sequence[int | None], *, cells: int = 1, each: int = 1) -> Tensor:
    """A class layer's weight or bias with the file's rows where it has them, the model's own elsewhere.

    own     (n * K * e, ...), the model's first weights
    saved   (n * J * e, ...)
    places  for each of the model's K rows (the background's too, where there is one) its row in the file
    """
    made = own.detach().clone().unflatten(0, (cells, -1, each))
    theirs = saved.unflatten(0, (cells, -1, each)).to(made.dtype)
    for row, place in enumerate(places):
        if place is not None:
            made[:, row] = theirs[:, place]
    return made.flatten(0, 2)


def row_count(tensors: Mapping[str, Tensor]) -> int:
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


def with_background(rows: Rows) -> list[int | None]:
    """Places of a layer whose first row is the background's, on both sides."""
    return [0, *(None if place is None else place + 1 for place in rows.places)]


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()
