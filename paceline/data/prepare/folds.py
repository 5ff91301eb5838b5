"""Divide the training photos of a prepared data set into folds: K parts with the same shares of every class, groups whole.

Parts are dealt out by iterative stratification (Sechidis, Tsoumakas, Vlahavas, "On the Stratification of Multi-Label Data", ECML
PKDD 2011): the class with the fewest photos left comes first, and each of its units (val_split.py: photos that stay together)
goes to the part that lacks most of that class. With one class a photo that is a stratified division; a photo of several classes
counts for all of them, rare ones first. The result is a function of the photos, their labels, K, the seed and the pattern alone.

Letters: N photos   K classes, 0..K-1   U units
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.reporter import SILENT, Reporter
from paceline._utils.text import format_count, join_names
from paceline.config.run import RunOptions
from paceline.data.index.index import Index, open_split
from paceline.data.index.manifest import Manifest
from paceline.data.index.splits import Fold
from paceline.data.prepare.val_split import SplitUnits, ValSplit, group_units


def with_fold(manifest: Manifest, controls: RunOptions, reporter: Reporter = SILENT) -> Manifest:
    """The manifest with its "val" being one fold of its training photos, as the controls ask; nothing is written.

    The reporter gets a line for classes of boxes that the fold lacks, or that only it has.
    Raises DataError where the photos cannot be divided so.
    """
    if "train" not in manifest.splits:
        raise DataError(f"{manifest.called}: it has no training photos, and --folds divides those.")
    index, folds = open_split(manifest, "train"), controls.folds
    group = controls.fold_group or str((manifest.request or {}).get("val_group", ""))
    prefix = f"{manifest.splits['train'].folder}/"
    names = [os.fsdecode(index.relative_name(i)).removeprefix(prefix) for i in range(len(index))]
    try:
        units = group_units(names, ValSplit(1 / folds, controls.fold_seed, group), index.extra.get("digests"))
    except DataError as problem:  # of the pattern
        raise DataError(str(problem).replace("--val-group", "--fold-group")) from None
    photos, labels = _labels(manifest, index)
    parts = assign_folds(units, photos, labels, len(manifest.classes), folds)
    fold = Fold(controls.fold, folds, controls.fold_seed, group, parts == controls.fold - 1)
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
    what = f"different training {'group' if fold.group else 'photo'}"
    if number < folds:
        raise DataError(f"--folds {folds}: {manifest.called} has {format_count(number, what)}, and each fold needs one.")
    result = np.unique(np.stack([labels, parts[photos]], axis=1), axis=0)
    lacking = [int(label) for label in np.unique(labels) if (result[:, 0] == label).sum() < folds]
    if manifest.kind == "boxes":
        held = fold.held_out[photos]
        unscored, unlearned = (np.setdiff1d(labels, labels[side]) for side in (held, ~held))
        which = f"fold {fold.number} of {folds}"
        rows = (unscored, f"{which} lacks, so its scores leave out"), (unlearned, f"{which} alone has, so not learned")
        return [f"{about}: {join_names([manifest.classes[i] for i in these])}" for these, about in rows if len(these)]
    if not lacking:
        return []
    having = [len(np.unique(units.of[photos[labels == label]])) for label in lacking]
    fewest, name = min(zip(having, (manifest.classes[label] for label in lacking)))
    why = f"--folds {folds}: class {name} has {format_count(fewest, what)} in {manifest.called}"
    if fewest < 2:
        raise DataError(f"{why}: there are no folds that all have it. Add photos of it, or leave the class away.")
    if fewest < folds:
        raise DataError(f"{why}, and each fold needs one. Take at most --folds {fewest}, or add photos of it.")
    raise DataError(
        f"{why}, and a fold would have none, as they lie together with others. Take fewer --folds or another "
        f"--fold-seed than {fold.seed}."
    )
