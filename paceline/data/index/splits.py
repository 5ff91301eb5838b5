"""Parts of a data set that a run is evaluated on in place of its validation photos.

A half of the validation photos: settings are chosen on "tune", and the result is measured once on "test". The name of a photo's
file decides its half, without folders: it is the same in each layout and container that keeps the names, on each machine, and stays
what it is when other photos come or go. Photos of one scene under different names may be in different halves.

A fold is one part of the training photos; a run learns from all others. A manifest that carries one reads as a data set whose "val"
is that part; the real validation split is not touched. data/prepare/val_split.py decides which photos are in it.

Another data set, which was exported by itself: its classes are those of the run that have the same names. Of class folders the
folders' names decide, and where those differ the readable names of either side; of boxes the names of the categories. Ids and order
may differ, and a data set may lack classes of the run. One with objects of classes that the run does not have is refused: no score
would mean anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from paceline._utils.errors import DataError
from paceline._utils.text import join_names

if TYPE_CHECKING:
    import numpy as np

    from paceline.config.run import RunRecord
    from paceline.data.index.manifest import Manifest


@dataclass(frozen=True)
class Fold:
    """Part `number` of `of`, 1 to `of`."""

    number: int
    of: int
    seed: int  # of the division; a recipe's seed has no part in it
    group: str  # the pattern of photos that stay together; "" = none but those of equal content
    held_out: np.ndarray  # (N,) bool, the training photos of this part

    def facts(self, data_hash: str) -> dict[str, Any]:
        """For run.json, data.fold; data_hash: of the data set, alike in all folds."""
        return {"number": self.number, "of": self.of, "seed": self.seed, "group": self.group, "data": data_hash}

    def hash(self, data_hash: str) -> str:
        """64 hex digits: equal exactly where data set and held out photos are."""
        return hashlib.sha256(data_hash.encode() + self.held_out.tobytes()).hexdigest()


def format_fold(facts: Any) -> str:
    """`Fold.facts`, as a run.json has them, as "fold 2 of 5", with a seed where it is not 0; "" of no fold."""
    if not isinstance(facts, Mapping):
        return ""
    seed = f" (seed {facts['seed']})" if facts.get("seed") else ""
    return f"fold {facts.get('number')} of {facts.get('of')}{seed}"


def select_half(names: Iterable[bytes], half: str) -> np.ndarray:
    """(N,) bool, for N photos by their paths: half "test" has those whose SHA-256 of the last part begins with a set bit; "": all."""
    import numpy as np  # what prints a half's name needs none

    test = np.array([hashlib.sha256(name.rpartition(b"/")[2]).digest()[0] >= 128 for name in names], bool)
    return test if half == "test" else ~test if half == "tune" else np.ones_like(test)


def format_half(half: object) -> str:
    """As a run.json has it, as "half test"; "" where all photos are meant."""
    return f"{half} subset" if half in ("tune", "test") else ""


def map_classes(manifest: Manifest, run: RunRecord) -> Manifest:
    """The manifest as if its classes were the run's; nothing is written.

    run  its run.json
    Raises DataError naming classes that the run does not have.
    """
    names = tuple(str(name) for name in run.classes)
    if manifest.kind == "class-folder":
        return _class_folders(manifest, names, tuple(map(str, run.data.get("class_folders") or ())))
    indices = {name: index for index, name in enumerate(names)}
    counts = manifest.splits["val"].per_class
    unknown = [name for name, count in zip(manifest.classes, counts) if count and name not in indices]
    if unknown:
        raise _refusal(manifest, unknown, names)
    own_ids = dict(zip(manifest.classes, manifest.category_ids or ()))
    spare = max((*own_ids.values(), *(run.data.get("category_ids") or ()), 0)) + 1
    return replace(
        manifest,
        classes=names,
        category_ids=tuple(own_ids.get(name, spare + index) for index, name in enumerate(names)),
        relabel=tuple(indices.get(name, -1) for name in manifest.classes),
    )


def _class_folders(manifest: Manifest, names: Sequence[str], folders: Sequence[str]) -> Manifest:
    own, readable = manifest.classes, manifest.class_names or ()
    for mine, theirs in ((own, folders), (readable, names), (own, names), (readable, folders)):
        indices = {name: index for index, name in enumerate(theirs)}
        # ImageNet has two cranes: readable names that stand for several classes decide nothing.
        if mine and len(indices) == len(theirs) and indices.keys() >= set(mine):
            relabel = tuple(indices[name] for name in mine)
            return replace(manifest, classes=tuple(folders or names), class_names=tuple(names), relabel=relabel)
    known = {*names, *folders}
    raise _refusal(manifest, [name for name in own if name not in known], folders or names)


def _refusal(manifest: Manifest, unknown: Sequence[str], names: Sequence[str]) -> DataError:
    return DataError(
        f"{manifest.called}: has the classes {join_names(unknown)}, which are not in the run. The run has "
        f"{join_names(names, 8)}. Metrics between them would be meaningless. Use "
        "the same names for the same classes (class folders can have readable names in classes.json)."
    )
