"""A data set's classes in a run's numbers, so that the run can be scored on data that was exported by itself.

Classes are the same where their names are: of class folders the folders' names decide, and where those differ the readable
names of either side; of boxes the names of the categories. Ids and order may differ, and a data set may lack classes of the run.
One with objects of classes that the run does not have is refused: no score would mean anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline._utils.errors import DataError
from paceline._utils.text import join_names
from paceline.config.run import RunRecord
from paceline.data.index.manifest import Manifest


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
        f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}. Metrics between them would be meaningless. Use "
        "the same names for the same classes (class folders can have readable names in classes.json)."
    )
