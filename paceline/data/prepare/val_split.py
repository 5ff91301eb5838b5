"""Draw a validation split, or folds: which photos must lie on the same side, and which side each class's photos are on.

Near-duplicates (frames of a film, photos of one patient) often share a part of their names: `--group-by` is a pattern whose
captured text is the name of the group. Photos of equal content belong together as well. A unit is what must not be split:
photos that a chain of equal groups and equal contents connects.

A unit's side is a function of its names and a seed alone: added or removed photos move no other one, and two people who split
the same folder get the same halves.

Folds are K parts of the training photos with the same shares of every class, groups whole. They are dealt out by iterative
stratification (Sechidis, Tsoumakas, Vlahavas, "On the Stratification of Multi-Label Data", ECML PKDD 2011): the class with the
fewest photos left comes first, and each of its units goes to the part that lacks most of that class. With one class a photo that is
a stratified division; a photo of several classes counts for all of them, rare ones first. The result is a function of the photos,
their labels, K, the seed and the pattern alone.

Letters: N photos   K classes, 0..K-1   U units
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.reporter import SILENT, Reporter
from paceline._utils.text import format_count, join_names
from paceline.config.run import RunOptions
from paceline.data.formats.annotations import Annotations
from paceline.data.index.index import Index, open_split
from paceline.data.index.manifest import Manifest
from paceline.data.index.splits import Fold
from paceline.data.loader.sample_rng import SampleRng


@dataclass(frozen=True)
class ValSplit:
    """How a validation split is set apart. The fields are the command's flags, and are recorded in the manifest."""

    val_fraction: float = 0.0  # share of the photos; 0 = the data set has a validation split
    split_seed: int = 0  # another seed sets other photos apart
    # Regular expression, searched for in a photo's path: photos with the same captured text stay together.
    group_by: str = ""


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
    if split.group_by:
        captured = _captured(keys, split.group_by)
        alone = sum(text is None for text in captured)
        # No path begins with NUL, so a group is never taken for a photo of that name.
        keys = [key if text is None else b"\0" + text for key, text in zip(keys, captured)]
    root = _connected(keys, digests)
    first: dict[int, bytes] = {}
    for i, key in enumerate(keys):
        first[root[i]] = min(first.get(root[i], key), key)

    def number(key: bytes) -> float:
        return SampleRng(split.split_seed, 0, int.from_bytes(hashlib.sha256(key).digest()[:8], "big")).uniform()

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
            f"{annotations.source}: {len(units.of):,} images cannot be divided into train and val, because at least two "
            "different images (or groups) are required. Add images, or pass a validation set."
        )
    last = np.searchsorted(units.numbers, split.val_fraction)
    in_val = units.of < np.clip(last, 1, len(units.numbers) - 1)
    return annotations.chosen(np.flatnonzero(~in_val)), annotations.chosen(np.flatnonzero(in_val)), units.alone


def check_fraction(fraction: float) -> None:
    """Raises DataError unless 0 < fraction < 1."""
    if not 0 < fraction < 1:
        raise DataError(f"--val-fraction {fraction:g}: must be between 0 and 1, exclusive. 0.2 is usual.")


def _captured(keys: Sequence[bytes], pattern: str) -> list[bytes | None]:
    """For each name the captured texts of the pattern, or None where it does not match."""
    example = r"Example:  --group-by '(patient\d+)_'"
    try:
        search = re.compile(os.fsencode(pattern))
    except re.error as reason:
        raise DataError(f"--group-by {pattern!r}: not a regular expression ({reason}). {example}") from None
    if not search.groups:
        raise DataError(f"--group-by {pattern!r}: must have a capturing group, in parentheses. {example}")
    matches = [search.search(key) for key in keys]
    if keys and not any(matches):
        raise DataError(
            f"--group-by {pattern!r}: matches none of the {len(keys):,} images, such as {os.fsdecode(keys[0])}. {example}"
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


def with_fold(manifest: Manifest, options: RunOptions, reporter: Reporter = SILENT) -> Manifest:
    """The manifest with its "val" being one fold of its training photos, as the options ask; nothing is written.

    The reporter gets a line for classes of boxes that the fold lacks, or that only it has.
    Raises DataError where the photos cannot be divided so.
    """
    if "train" not in manifest.splits:
        raise DataError(f"{manifest.called}: has no training images to divide into --num-folds.")
    index, folds = open_split(manifest, "train"), options.num_folds
    group = options.group_by or str((manifest.request or {}).get("group_by", ""))
    prefix = f"{manifest.splits['train'].folder}/"
    names = [os.fsdecode(index.relative_name(i)).removeprefix(prefix) for i in range(len(index))]
    try:
        units = group_units(names, ValSplit(1 / folds, options.fold_seed, group), index.extra.get("digests"))
    except DataError as problem:  # of the pattern
        raise DataError(str(problem).replace("--group-by", "--group-by")) from None
    photos, labels = _labels(manifest, index)
    parts = assign_folds(units, photos, labels, len(manifest.classes), folds)
    fold = Fold(options.fold, folds, options.fold_seed, group, parts == options.fold - 1)
    for line in _check(parts, units, photos, labels, manifest, fold):
        reporter.line(line)
    return replace(manifest, splits={**manifest.splits, "val": manifest.splits["train"]}, fold=fold)


def assign_folds(units: SplitUnits, photos: np.ndarray, labels: np.ndarray, classes: int, folds: int) -> np.ndarray:
    """(N,) the part of each photo, 0 to folds - 1.

    photos, labels  pairs of a photo and a class that is on it, each once; a photo may have none
    """
    number = len(units.numbers)
    sizes = np.bincount(units.of, minlength=number)
    pairs, times = np.unique(np.stack([units.of[photos], labels], axis=1), axis=0, return_counts=True)
    of_unit = np.split(np.arange(len(pairs)), np.searchsorted(pairs[:, 0], np.arange(1, number)))
    left = np.bincount(labels, minlength=classes)
    # What each part still lacks: photos of each class, and photos.
    lacks, lacks_photos = np.tile(left / folds, (folds, 1)), np.full(folds, len(units.of) / folds)
    part = np.full(number, -1, np.int64)

    def put(unit: int, need: np.ndarray) -> None:
        # Sums of fractions of K may differ in their last bit where they are equal in truth.
        best = np.lexsort((np.arange(folds), -lacks_photos.round(6), -need.round(6)))[0]
        part[unit] = best
        lacks_photos[best] -= sizes[unit]
        rows = of_unit[unit]
        lacks[best, pairs[rows, 1]] -= times[rows]
        left[pairs[rows, 1]] -= times[rows]

    while left.any():
        rarest = int(np.where(left > 0, left, left.max() + 1).argmin())
        rows = np.flatnonzero((pairs[:, 1] == rarest) & (part[pairs[:, 0]] < 0))
        # The largest first; equal ones in the seed's order.
        for row in rows[np.lexsort((pairs[rows, 0], -times[rows]))]:
            put(int(pairs[row, 0]), lacks[:, rarest])
    for unit in np.flatnonzero(part < 0):  # photos of no class
        put(int(unit), lacks_photos)
    return part[units.of]


def _labels(manifest: Manifest, index: Index) -> tuple[np.ndarray, np.ndarray]:
    """-> pairs (photo, class 0..K-1), each once: of a photo with boxes the classes of its objects, crowds apart."""
    if manifest.kind == "class-folder":
        return np.arange(len(index)), np.asarray(index.labels, np.int64)
    arrays = index.extra
    images = np.repeat(np.arange(len(index)), np.diff(arrays["object_starts"]))
    counts = (arrays["crowd"] == 0) & (arrays["usable"] == 1)
    pairs = np.unique(np.stack([images[counts], arrays["classes"][counts] - 1], axis=1), axis=0).astype(np.int64)
    return pairs[:, 0], pairs[:, 1]


def _check(
    parts: np.ndarray, units: SplitUnits, photos: np.ndarray, labels: np.ndarray, manifest: Manifest, fold: Fold
) -> list[str]:
    """Lines about classes that the fold, or all others, lack.

    Raises DataError where a part has no photo, or lacks a class of class folders. Of boxes rare classes are usual, and their
    scores leave out what is not there.
    """
    folds, number = fold.of, len(units.numbers)
    what = f"different training {'group' if fold.group else 'image'}"
    if number < folds:
        raise DataError(f"--num-folds {folds}: {manifest.called} has {format_count(number, what)}; each fold requires one.")
    result = np.unique(np.stack([labels, parts[photos]], axis=1), axis=0)
    lacking = [int(label) for label in np.unique(labels) if (result[:, 0] == label).sum() < folds]
    if manifest.kind == "boxes":
        held = fold.held_out[photos]
        unscored, unlearned = (np.setdiff1d(labels, labels[side]) for side in (held, ~held))
        which = f"fold {fold.number} of {folds}"
        rows = (
            (unscored, f"{which} does not have these classes, so its scores exclude them"),
            (unlearned, f"only {which} has these classes, so they are not learned"),
        )
        return [f"{about}: {join_names([manifest.classes[i] for i in these])}" for these, about in rows if len(these)]
    if not lacking:
        return []
    having = [len(np.unique(units.of[photos[labels == label]])) for label in lacking]
    fewest, name = min(zip(having, (manifest.classes[label] for label in lacking)))
    why = f"--num-folds {folds}: class {name} has {format_count(fewest, what)} in {manifest.called}"
    if fewest < 2:
        raise DataError(f"{why}, so it is missing from some folds. Add images of this class, or remove it.")
    if fewest < folds:
        raise DataError(f"{why}, but each fold requires one. Use at most --num-folds {fewest}, or add images of it.")
    raise DataError(
        f"{why}, but they are in groups with others, so a fold would have none. Use fewer --num-folds, or another "
        f"--fold-seed than {fold.seed}."
    )
