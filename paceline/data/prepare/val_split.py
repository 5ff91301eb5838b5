"""Draw a validation split: which photos must lie on the same side of it, and which side each class's photos are on.

Near-duplicates (frames of a film, photos of one patient) often share a part of their names: `--val-group` is a pattern whose
captured text is the name of the group. Photos of equal content belong together as well. A unit is what must not be split:
photos that a chain of equal groups and equal contents connects.

A unit's side is a function of its names and a seed alone: added or removed photos move no other one, and two people who split
the same folder get the same halves.

Letters: N photos.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from paceline._utils.errors import DataError
from paceline.data.formats.annotations import Annotations
from paceline.data.loader.sample_rng import SampleRng


@dataclass(frozen=True)
class ValSplit:
    """How a validation split is set apart. The fields are the command's flags, and are recorded in the manifest."""

    val_fraction: float = 0.0  # share of the photos; 0 = the data set has a validation split
    val_seed: int = 0  # another seed sets other photos apart
    # Regular expression, searched for in a photo's path: photos with the same captured text stay together.
    val_group: str = ""


NO_SPLIT = ValSplit()  # nothing is set apart


@dataclass(frozen=True)
class SplitUnits:
    """Photos that stay together."""

    of: np.ndarray  # (N,) the unit of each photo, 0, 1, ... in the order of `numbers`
    numbers: np.ndarray  # of each unit, in [0, 1), ascending
    alone: int  # photos that do not match a given pattern


def group_units(names: Sequence[str], split: ValSplit, digests: np.ndarray | None = None) -> SplitUnits:
    """The units of N photos.

    names    paths relative to the folder of the split
    digests  (N,) content hashes, where known
    A unit's number depends on its group's text and the seed alone, or else on the first of its names in byte order.
    Raises DataError for a pattern that is none, captures nothing, or matches no photo.
    """
    check_fraction(split.val_fraction)
    # A file system's own name, not the machine's spelling of it: the same on every system.
    keys = [os.fsencode(PurePath(name).as_posix()) for name in names]
    alone = 0
    if split.val_group:
        captured = _captured(keys, split.val_group)
        alone = sum(text is None for text in captured)
        # No path begins with NUL, so a group is never taken for a photo of that name.
        keys = [key if text is None else b"\0" + text for key, text in zip(keys, captured)]
    root = _connected(keys, digests)
    first: dict[int, bytes] = {}
    for i, key in enumerate(keys):
        first[root[i]] = min(first.get(root[i], key), key)

    def number(key: bytes) -> float:
        return SampleRng(split.val_seed, 0, int.from_bytes(hashlib.sha256(key).digest()[:8], "big")).uniform()

    numbers = {unit: number(key) for unit, key in first.items()}
    order = sorted(numbers, key=lambda unit: (numbers[unit], first[unit]))
    location = {unit: rank for rank, unit in enumerate(order)}
    of = np.array([location[unit] for unit in root], np.int64)
    return SplitUnits(of, np.array([numbers[unit] for unit in order], np.float64), alone)


def stratified_split(units: SplitUnits, labels: np.ndarray, fraction: float) -> np.ndarray:
    """(N,) bool: photos of val. Of every class the share is `fraction` to within one photo where no groups are.

    labels  (N,) class of each photo
    Units are taken in the order of their numbers while that brings the classes nearer to their shares; a class of two
    units or more has one on either side, as far as units of several classes allow it.
    """
    classes = int(labels.max(initial=-1)) + 1
    total = np.bincount(labels, minlength=classes)
    pairs, photos = np.unique(np.stack([units.of, labels], axis=1), axis=0, return_counts=True)
    units_of_class = np.bincount(pairs[:, 1], minlength=classes)
    wanted = np.clip(np.round(fraction * total), 1, np.maximum(total - 1, 1)) * (units_of_class > 1)
    starts = np.searchsorted(pairs[:, 0], np.arange(len(units.numbers) + 1))
    in_val = np.zeros(len(units.numbers), bool)
    taken = np.zeros(classes, np.int64)

    def leaves_some(own: np.ndarray, count: np.ndarray) -> bool:
        return bool(((taken[own] + count < total[own]) | (units_of_class[own] < 2)).all())

    def of_unit(unit: int) -> tuple[np.ndarray, np.ndarray]:
        part = slice(starts[unit], starts[unit + 1])
        return pairs[part, 1], photos[part]

    for unit in range(len(units.numbers)):
        own, count = of_unit(unit)
        nearer = np.abs(wanted[own] - taken[own]).sum() - np.abs(wanted[own] - taken[own] - count).sum()
        if nearer > 0 and leaves_some(own, count):
            in_val[unit] = True
            taken[own] += count
    # A class whose units are all too large for its share gets the smallest of them.
    for label in np.flatnonzero((taken == 0) & (units_of_class > 1)):
        mine = pairs[pairs[:, 1] == label, 0]
        for unit in sorted(mine.tolist(), key=lambda unit: (of_unit(unit)[1].sum(), unit)):
            if leaves_some(*of_unit(unit)):
                own, count = of_unit(unit)
                in_val[unit] = True
                taken[own] += count
                break
    return in_val[units.of]


def split_by_patterns(
    annotations: Annotations, split: ValSplit, *, digests: np.ndarray | None = None
) -> tuple[Annotations, Annotations, int]:
    """-> (train, val, photos that match no given pattern): an image goes to val where its unit's number is below the fraction.

    split    the fraction is the expected share of images in val; the true number scatters around it, by
             sqrt(N fraction (1 - fraction)) where no groups are
    digests  (N,) content hashes where known: images of equal content share a side, so that nothing is validated on what
             was trained on
    Both sides keep the order and the ids of `annotations`, and have one image at least: the unit with the lowest number
    (or highest) goes over where a side would be empty.
    Raises DataError for a fraction outside (0, 1), a pattern that cannot be used, or fewer than two different images.
    """
    units = group_units(annotations.file_names, split, digests)
    if len(units.numbers) < 2:
        raise DataError(
            f"{annotations.source}: {len(units.of):,} images, of which a validation split cannot be made: two different "
            "ones (or groups of them) are needed. Add images, or name a validation set."
        )
    last = np.searchsorted(units.numbers, split.val_fraction)
    in_val = units.of < np.clip(last, 1, len(units.numbers) - 1)
    return annotations.chosen(np.flatnonzero(~in_val)), annotations.chosen(np.flatnonzero(in_val)), units.alone


def check_fraction(fraction: float) -> None:
    """Raises DataError unless 0 < fraction < 1."""
    if not 0 < fraction < 1:
        raise DataError(f"--val-fraction {fraction:g}: must lie between 0 and 1, without both. 0.2 is usual.")


def _captured(keys: Sequence[bytes], pattern: str) -> list[bytes | None]:
    """For each name the captured texts of the pattern, or None where it does not match."""
    example = r"Example:  --val-group '(patient\d+)_'"
    try:
        search = re.compile(os.fsencode(pattern))
    except re.error as reason:
        raise DataError(f"--val-group {pattern!r}: no regular expression ({reason}). {example}") from None
    if not search.groups:
        raise DataError(f"--val-group {pattern!r}: it captures nothing; put the group's name in brackets. {example}")
    matches = [search.search(key) for key in keys]
    if keys and not any(matches):
        raise DataError(
            f"--val-group {pattern!r}: matches none of the {len(keys):,} photos, {os.fsdecode(keys[0])} first. {example}"
        )
    return [None if match is None else b"\0".join(text or b"" for text in match.groups()) for match in matches]


def _connected(keys: Sequence[bytes], digests: np.ndarray | None) -> list[int]:
    """For each photo the first one that equal keys and equal contents connect it with."""
    parent = list(range(len(keys)))

    def top(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for values in [keys] if digests is None else [keys, digests.tolist()]:
        seen: dict[bytes | int, int] = {}
        for i, value in enumerate(values):
            one, other = sorted((top(i), top(seen.setdefault(value, i))))
            parent[other] = one
    return [top(i) for i in range(len(keys))]
