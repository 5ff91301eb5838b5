"""The classes of photos in containers: from class names or numbers of each photo to labels 0..K-1, the same in all splits."""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.safe_read import read_plain_text
from paceline._utils.text import join_names
from paceline.data.containers.listing import ContainerListing
from paceline.data.containers.split_files import ContainerRequest
from paceline.data.formats.class_folders import find_duplicate, tidy_class_name

# The original script of TFRecords counts classes from 1 and keeps 0 for a background; the others count from 0.
FIRST_LABEL = {"tfrecord": 1}
MAX_CLASSES = 1 << 20
MAX_LIST_BYTES = 1 << 26

# Class names, and the labels of each split.
Numbered = tuple[tuple[str, ...], dict[str, np.ndarray]]


@dataclass(frozen=True)
class ClassLabels:
    """K classes, the photos in the order that goes with them, and (N,) int64 labels of each split."""

    names: tuple[str, ...]
    splits: dict[str, ContainerListing]
    labels: dict[str, np.ndarray]
    readable: tuple[str, ...] | None = None  # K, where --class-names-file has readable names beside them


def resolve_classes(splits: dict[str, ContainerListing], request: ContainerRequest) -> ClassLabels:
    """Raises DataError where photos have no class, a number is none, or the splits' classes differ."""
    splits = {name: _with_official_classes(part, request) for name, part in splits.items()}
    for part in splits.values():
        if part.classes is None:
            raise DataError(
                f"{part.first_file}: its images are not in folders, so their classes are unknown. Pack the images as "
                "CLASS/image.jpg. For ImageNet's validation tar, pass the development kit (--devkit). For boxes, pass the "
                "annotations (--annotations, --val-annotations)."
            )
    kinds = {isinstance(part.classes, list) for part in splits.values()}
    if len(kinds) > 1:
        raise DataError("one split has class names and the other has indices. Prepare train and val from the same source.")
    listed, readable = _listed_names(request) if request.class_names_file or request.num_classes else (None, None)
    names, labels = (_by_name if kinds == {True} else _by_number)(splits, request, listed)
    if len(names) < 2:
        file = next(iter(splits.values())).first_file
        raise DataError(
            f"{file}: only one class ({', '.join(names)}); a classifier needs at least two. Add files, or set the number "
            "of classes (--num-classes 10)."
        )
    return ClassLabels(names, splits, labels, readable)


def _by_name(splits: dict[str, ContainerListing], request: ContainerRequest, listed: tuple[str, ...] | None) -> Numbered:
    first, *others = splits
    names = tuple(sorted(set(splits[first].classes or ()), key=os.fsencode)) if listed is None else listed
    # A macOS disk stores names in another Unicode form.
    forms = {unicodedata.normalize("NFC", name): name for name in names} | {name: name for name in names}
    named = {split: _in_forms(map(str, part.classes or ()), forms) for split, part in splits.items()}
    used = {split: set(classes) for split, classes in named.items()}
    if listed is not None:
        if unknown := sorted(set().union(*used.values()) - set(names)):
            raise DataError(f"{_named_by(request)}: must include {join_names(unknown)}, because images have these classes.")
    elif other := next((other for other in others if used[first] != used[other]), ""):
        raise DataError(
            f"the classes of {other} and {first} differ. Only in {first}: {join_names(sorted(used[first] - used[other]))}. "
            f"Only in {other}: {join_names(sorted(used[other] - used[first]))}. Pack both splits with the same classes, or "
            "list all classes in a file (--class-names-file FILE)."
        )
    number = {name: k for k, name in enumerate(names)}
    return names, {split: np.array([number[name] for name in classes], np.int64) for split, classes in named.items()}


def _in_forms(classes: Iterable[str], forms: dict[str, str]) -> list[str]:
    """Each class as `forms` spells it."""
    return [forms.get(name, forms.get(unicodedata.normalize("NFC", name), name)) for name in classes]


def _by_number(splits: dict[str, ContainerListing], request: ContainerRequest, listed: tuple[str, ...] | None) -> Numbered:
    first = first_label(request)
    labels, named = {}, {}
    for split, part in splits.items():
        assert isinstance(part.classes, np.ndarray)
        labels[split] = part.classes - first
        for number, name in (part.class_names or {}).items():
            if named.setdefault(number - first, name) != name:
                raise DataError(
                    f"{part.first_file}: class {number} is {name!r}, but {named[number - first]!r} in the other split. "
                    "Pack both splits with one class list."
                )
        if (low := np.flatnonzero(labels[split] < 0)).size:
            raise DataError(
                f"{part.title(low[0])} has class {part.classes[low[0]]}, but class indices start at {first}. If they start "
                f"at {part.classes.min()}, add --label-offset {max(0, int(part.classes.min()))}"
            )
    most = int(max(values.max() for values in labels.values())) + 1
    if most > MAX_CLASSES:
        number = most - 1 + first
        raise DataError(f"an image has class {number:,}, which is too large for a class index. Check the labels.")
    if listed is not None:
        if len(listed) < most:
            raise DataError(f"{_named_by(request)}: {len(listed):,} classes, but an image has class {most - 1 + first}.")
        return listed, labels
    _check_numbers(splits, first)
    names = tuple(named.get(k, str(k + first)) for k in range(most))
    if find_duplicate(names) is not None:
        names = tuple(str(k + first) for k in range(most))
    return names, labels


def _check_numbers(splits: dict[str, ContainerListing], first: int) -> None:
    """Raises DataError where numbers look as if they counted from another first one, or differently in each split."""
    used = {split: set(np.unique(np.asarray(part.classes)).tolist()) for split, part in splits.items()}
    lowest = min(map(min, used.values()))
    if lowest > first:
        raise DataError(
            f"{next(iter(splits.values())).first_file}: no image has class {first}, at which the indices start; the "
            f"lowest is {lowest}. If they start at {lowest}, add --label-offset {lowest}. If the first classes have no "
            "images, add --num-classes N, or --class-names-file FILE."
        )
    train = used.get("train", set())
    if alone := sorted(used.get("val", set()) - train) if train else []:
        raise DataError(
            f"{splits['val'].first_file}: no training image has the classes {join_names(map(str, alone))}. The two splits "
            "may count classes differently. If they do not, set --num-classes or --class-names-file."
        )


def read_numbered_names(classes: str, request: ContainerRequest) -> dict[int, str]:
    """Class number -> name from --class-names-file, or another file like it, for boxes; {} for no file.

    A list counts from the first label; a COCO JSON's categories, or an object of numbers and names, have numbers of their own.
    """
    if not classes:
        return {}
    path = Path(classes).expanduser()
    try:
        record = json.loads(read_plain_text(path, MAX_LIST_BYTES)) if path.suffix == ".json" else None
        if isinstance(record, dict):
            table = record.get("categories", record)
            pairs = [(one["id"], one["name"]) for one in table] if isinstance(table, list) else table.items()
            return {int(number): tidy_class_name(name, f"--class-names-file {path}: a class") for number, name in pairs}
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(f"--class-names-file {path}: cannot be read ({error!r}). Expected a COCO JSON or names.") from None
    return dict(enumerate(_listed_names(request)[0], first_label(request)))


def first_label(request: ContainerRequest) -> int:
    """The number of the first class in the containers."""
    return request.label_offset if request.label_offset >= 0 else FIRST_LABEL.get(request.layout, 0)


def _named_by(request: ContainerRequest) -> str:
    """The flag that says which classes there are, for messages."""
    file = request.class_names_file
    return f"--class-names-file {file}" if file else f"--num-classes {request.num_classes}"


def _listed_names(request: ContainerRequest) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """-> the K names of --class-names-file, and K readable ones where those are others.

    With --num-classes they are called by number.
    """
    if request.num_classes:
        return tuple(map(str, range(min(request.num_classes, MAX_CLASSES)))), None
    return read_class_names(Path(request.class_names_file).expanduser())


def read_class_names(path: Path) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """-> the names in a file of --class-names-file, and readable ones where those are others. Raises DataError for any other file.

    The file names one a line, or is a JSON list or {name: readable name}.
    """
    try:
        text = read_plain_text(path, MAX_LIST_BYTES)
        explicit = (
            json.loads(text) if text.lstrip()[:1] in ("[", "{") else [line for line in text.splitlines() if line.strip()]
        )
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"--class-names-file {path}: cannot be read ({reason}). Write one class per line.") from None
    if not isinstance(explicit, list | dict):
        raise DataError(f"--class-names-file {path}: not a list of names. Write one class per line, or a JSON list.")
    title = f"--class-names-file {path}: a class"
    names = tuple(tidy_class_name(name, title) for name in explicit)
    if (twice := find_duplicate(names)) is not None:
        raise DataError(f"--class-names-file {path}: {twice!r} is listed twice. Remove one of them.")
    if isinstance(explicit, list) or all(name == value for name, value in explicit.items()):
        return names, None
    return names, tuple(tidy_class_name(name, title) for name in explicit.values())


def _with_official_classes(part: ContainerListing, request: ContainerRequest) -> ContainerListing:
    """ImageNet's validation photos lie flat in their tar; the devkit knows their classes."""
    if part.classes is not None or not request.devkit:
        return part
    from paceline.data.formats.devkit import validation_labels
    from paceline.data.formats.published_sets import VAL_NAME

    labels = validation_labels(Path(request.devkit).expanduser())
    classes, names = [], []
    for name in part.names:
        match = VAL_NAME.match(os.path.basename(name))
        if match is None or not 0 < int(match[1]) <= len(labels):
            raise DataError(
                f"{part.first_file}: {os.fsdecode(name)} is not a validation image of ImageNet, so its class is not in "
                "--devkit."
            )
        classes.append(labels[int(match[1]) - 1])
        names.append(os.path.dirname(name) + b"/" + os.fsencode(classes[-1]) + b"/" + os.path.basename(name))
    return replace(part, classes=classes, names=names).in_folder_order()
