"""`paceline data lint DIR`: what in a data set spoils results, or deserves a look before training.

bad   photos that cannot be decoded, copies across splits or classes, classes of val that train lacks or that have two names, objects
      without area or outside
fair  copies within a split, boxes that look like mistakes, unequal classes, photos turned by EXIF, photos that another library decodes
      otherwise, labels that runs contradict
Nothing is changed.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from paceline.config.errors import DataError
from paceline.config.printable import some
from paceline.datasets.label_errors import TITLES, label_errors
from paceline.datasets.near_copies import MOST_PHOTOS, near_copies
from paceline.pages.check.parts import turned_photos, where
from paceline.pages.check.suspicious import KINDS, find_suspicious
from paceline.store.index import Index

UNEQUAL = 20  # from this ratio of the most common class to the rarest on
Place = tuple[str, int]  # split, row


class Found(NamedTuple):
    """One photo, object or class."""

    place: Place | None  # None for classes
    objects: tuple[int, ...]  # rows of the split's objects
    name: str  # the photo's file below the set's folder, or the classes
    note: str = ""  # what was seen there

    @property
    def text(self) -> str:
        """Both on a line."""
        return f"{self.name}: {self.note}" if self.note else self.name


class Finding(NamedTuple):
    """All of one kind."""

    colour: Literal["bad", "fair"]
    key: str  # stable, for programs
    title: str
    why: str
    found: Sequence[Found]

    def record(self) -> dict[str, Any]:
        """For --json."""
        return {**self._asdict(), "found": [one.text for one in self.found]}


def lint(
    splits: Mapping[str, Index],
    classes: Sequence[str],
    answers: Mapping[str, Mapping[str, Any]],
    passed: Callable[[int], None] = lambda _: None,
) -> list[Finding]:
    """Every finding, the bad ones first; kinds of which there is none are left out.

    splits   of one data set, train first; boxes in the frame that they are drawn in
    classes  their names, 0..K-1 of class folders, 1..K of boxes
    answers  a run's name -> the content of its predictions, on photos of these splits
    passed   called with the number of photos that were read
    Raises DataError for answers on other photos, and for a photo that is gone or has changed since it was indexed.
    """
    findings = [*_copies(splits, passed), *_classes(splits, classes), *_objects(splits), *_turned(splits)]
    findings += _labels(splits, answers)
    return sorted((one for one in findings if one.found), key=lambda one: one.colour)


def _copies(splits: Mapping[str, Index], passed: Callable[[int], None]) -> Iterable[Finding]:
    equal = list(_equal(splits))
    near = near_copies(splits, passed)
    kinds = [("equal", "byte for byte", equal)]
    if near is not None:
        known = {frozenset(pair[:2]) for pair in equal}
        kinds.append(
            ("near", "re-encoded, resized or mirrored", [p for p in near.pairs if frozenset(p[:2]) not in known])
        )
        damaged = [Found(place, (), _name(splits, place)) for place in near.damaged]
        yield Finding("bad", "damaged", "photos that cannot be decoded", "training would stop at them", damaged)
        apart = [Found(place, (), _name(splits, place), note) for place, note in near.apart]
        why = "a model sees other pixels where another library reads them"
        yield Finding("fair", "decoded_apart", "photos that libraries decode differently", why, apart)
    for key, how, pairs in kinds:
        across = [pair for pair in pairs if pair[0][0] != pair[1][0]]
        within = [pair for pair in pairs if pair[0][0] == pair[1][0]]
        named = [pair for pair in within if _differ(splits, *pair[:2])]
        rest = [pair for pair in within if not _differ(splits, *pair[:2])]
        yield Finding(
            "bad", f"{key}_across", f"photos in two splits, {how}", "scores will flatter", _pairs(splits, across)
        )
        yield Finding(
            "bad", f"{key}_classes", f"photos in two classes, {how}", "one label is wrong", _pairs(splits, named)
        )
        yield Finding(
            "fair", f"{key}_within", f"photos twice in a split, {how}", "they count twice", _pairs(splits, rest)
        )
    if near is None:
        text = f"more than {MOST_PHOTOS:,} photos: only equal ones were looked for"
        yield Finding("fair", "near", "near copies", "not looked for", [Found(None, (), text)])


def _equal(splits: Mapping[str, Index]) -> Iterable[tuple[Place, Place, float]]:
    first: dict[int, Place] = {}
    for name, index in splits.items():
        for row, digest in enumerate(np.asarray(index.extra["digests"]).tolist()):
            before = first.setdefault(digest, (name, row))
            if before != (name, row):
                yield before, (name, row), 1.0


def _differ(splits: Mapping[str, Index], one: Place, other: Place) -> bool:
    """Whether two photos of class folders lie in two classes."""
    if "object_starts" in splits[one[0]].extra:
        return False
    labels = [int(splits[split].labels[row]) for split, row in (one, other)]
    return labels[0] != labels[1]


def _pairs(splits: Mapping[str, Index], pairs: Iterable[tuple[Place, Place, float]]) -> list[Found]:
    return [Found(second, (), _name(splits, second), f"is {_name(splits, first)}") for first, second, _ in pairs]


def _name(splits: Mapping[str, Index], place: Place) -> str:
    """The photo's file below the set's folder."""
    return os.fsdecode(splits[place[0]].relative_name(place[1]))


def _classes(splits: Mapping[str, Index], classes: Sequence[str]) -> Iterable[Finding]:
    counts = {name: _counts(index, len(classes)) for name, index in splits.items()}
    spelt = defaultdict(list)
    for name in classes:
        spelt[re.sub(r"[\W_]+", "", name.casefold()).removesuffix("s")].append(name)
    twice = [Found(None, (), " and ".join(names)) for names in spelt.values() if len(names) > 1]
    yield Finding(
        "bad", "class_twice", "classes with one name in two spellings", "each takes the other's photos", twice
    )
    for split, learnt in ((name, counts["train"]) for name in counts if name != "train" and "train" in counts):
        unseen = [Found(None, (), name) for name in where((counts[split] > 0) & (learnt == 0), classes)]
        yield Finding("bad", "unseen", f"classes of {split} that train lacks", "they cannot be learned", unseen)
        unscored = [Found(None, (), name) for name in where((counts[split] == 0) & (learnt > 0), classes)]
        yield Finding("fair", "unscored", f"classes of train that {split} lacks", "they are not scored", unscored)
    first = next(iter(counts.values()), np.zeros(0))
    there = np.flatnonzero(first)
    if len(there) and first.max() >= UNEQUAL * first[there].min():
        most, least = int(first.argmax()), int(there[first[there].argmin()])
        text = f"{classes[most]} {first[most]:,}, {classes[least]} {first[least]:,}"
        yield Finding("fair", "unequal", "unequal classes", "rare ones are learned last", [Found(None, (), text)])


def _counts(index: Index, classes: int) -> np.ndarray:
    if "object_starts" in index.extra:
        return np.bincount(np.asarray(index.extra["classes"]), minlength=classes + 1)[1:]
    return np.bincount(index.labels, minlength=classes)


def _objects(splits: Mapping[str, Index]) -> Iterable[Finding]:
    of = {name: find_suspicious(index) for name, index in splits.items() if "object_starts" in index.extra}
    for kind in KINDS:
        found = [
            Found((name, one.image), one.objects, _name(splits, (name, one.image)), one.note)
            for name, kinds in of.items()
            for one in kinds[kind.key].worst
        ]
        title = f"boxes: {kind.title[0].lower()}{kind.title[1:]}"
        yield Finding("bad" if kind.grave else "fair", kind.key, title, kind.why, found)


def _turned(splits: Mapping[str, Index]) -> Iterable[Finding]:
    found = [Found(place, (), _name(splits, place)) for place in turned_photos(splits)]
    why = "readers that ignore EXIF see them lying, and boxes drawn in one frame lie wrong in the other"
    yield Finding("fair", "turned", "photos turned by EXIF", why, found)


def _labels(splits: Mapping[str, Index], answers: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
    known: dict[str, Place] = {}
    for name, index in splits.items() if answers else ():
        for row in range(len(index)):
            known |= dict.fromkeys((index.path(row), _name(splits, (name, row))), (name, row))
    found: defaultdict[str, list[tuple[float, Found]]] = defaultdict(list)
    for run, predictions in answers.items():
        if strange := [image["file"] for image in predictions["images"] if image["file"] not in known]:
            raise DataError(f"--runs {run}: its photos are not of this data set: {some(strange, 3)}.")
        for one in label_errors(predictions):
            split, row = known[one.file]
            objects = () if one.object is None else (int(splits[split].extra["object_starts"][row]) + one.object,)
            found[one.kind].append((one.degree, Found((split, row), objects, _name(splits, (split, row)), one.note)))
    for kind, title in TITLES.items():
        surest = [one for _, one in sorted(found[kind], key=lambda pair: -pair[0])]
        yield Finding("fair", f"label_{kind}", title, "look at each; the surest come first", surest)
