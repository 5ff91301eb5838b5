"""Match the names of photos and classes in a file of predictions with the data's.

All rows of a file are read alike, as ids or as names of files: if "7" were an id in one row and a file's stem in another, a photo
would be scored as another one.

Notation:
    n rows
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import unquote

import numpy as np

from paceline._utils.errors import DataError
from paceline._utils.names import IMAGE_SUFFIXES, OTHER_PICTURES
from paceline._utils.text import abbreviate, join_names
from paceline.inference.external_predictions import PredictionRows, parse_id

SEVERAL = -1
# Other ends of a name belong to its stem: "1.v2".
SUFFIXES = frozenset({*map(os.fsdecode, IMAGE_SUFFIXES), *OTHER_PICTURES, ".txt", ".xml", ".json"})
# Folders that name a part of a data set.
_SPLIT = re.compile(r"(train|val|test)(?:id|idation|ing)?[-_]?\d*", re.IGNORECASE)


def match_images(
    rows: PredictionRows, path: Path, files: Sequence[str], image_ids: Sequence[int]
) -> tuple[np.ndarray, str]:
    """Find the place of each row's photo in `files`.

    Args:
        rows (Rows): what the file of predictions has.
        path (Path): that file, for messages.
        files (Sequence[str]): paths of the data's photos.
        image_ids (Sequence[int]): ids of the annotations; empty if photos have none.

    Returns:
        tuple[np.ndarray, str]: places, shape (n,) int64, and a note on how the rows were read, or "".

    Raises:
        DataError: for a photo that the data does not have, or whose name stands for several.
    """
    photos, ids = _Photos(files), {int(image_id): index for index, image_id in enumerate(image_ids)}
    names = list(dict.fromkeys(rows.photos))
    by_id = {name: ids.get(number) for name in names if (number := parse_id(name)) is not None}
    by_name = {name: photos.find(str(name)) for name in names}
    mixed = {name: (by_id if isinstance(name, int) else by_name).get(name) for name in names}
    readings = (by_id, by_name, mixed) if rows.by_id else (by_name, by_id, mixed)
    complete = [one for one in readings if all(one.get(name, SEVERAL) not in (None, SEVERAL) for name in names)]
    result = (complete or readings)[0]
    for row, name in enumerate(rows.photos):
        position = result.get(name)
        if position is None or position == SEVERAL:
            what = f"is none of the data's {len(files):,} photos" if position is None else "is the name of several photos"
            example = os.path.join(*Path(files[0]).parts[-2:]) if files else "none"
            raise DataError(
                f"{path}: {rows.places[row]}: {abbreviate(repr(name), 200)} {what}, such as {example}"
                f"{f' (id {image_ids[0]})' if len(image_ids) else ''}. Name the data that was predicted on: --data, --split."
            )
    note = ""
    if result is by_id and by_name in complete and by_name != by_id:
        note = f"{path}: image_id has ids of the annotations, though files have these names too; file_name names files"
    return np.fromiter((result[name] for name in rows.photos), np.int64, len(rows.photos)), note


class _Photos:
    """The data's photos, found by the end of a path, with or without a suffix, of this system or of Windows."""

    def __init__(self, files: Sequence[str]) -> None:
        self._parts = [Path(file).parts for file in files]
        self._folders = {parts[-2] for parts in self._parts if len(parts) > 1}
        self._known: dict[Callable[[str], str], dict[str, list[int]]] = {}

    def _places(self, form: Callable[[str], str]) -> dict[str, list[int]]:
        """Names with and without their folder, and stems that are not a name, in this form -> places."""
        if form not in self._known:
            names, stems = {}, {}
            for index, parts in enumerate(self._parts):
                for tail in {parts[-1], "/".join(parts[-2:])}:
                    names.setdefault(form(tail), []).append(index)
                    stems.setdefault(form(_stem(tail)), []).append(index)
            self._known[form] = {**stems, **names}
        return self._known[form]

    def find(self, name: str) -> int | None:
        """-> the photo's place; None for another photo's name, SEVERAL for the name of several."""
        for form in (str, _folded):
            for parts in (name.split("/"), re.split(r"[/\\]", name)):
                tails = ("/".join(parts[-2:]), parts[-1])
                keys = (form(end) for tail in tails for end in (tail, _stem(tail)))
                if indices := next((results for key in keys if (results := self._places(form).get(key))), None):
                    return self._nearest(parts[:-1], indices, form)
        return None

    def _nearest(self, folders: Sequence[str], indices: Sequence[int], form: Callable[[str], str]) -> int | None:
        """Of photos with the same name, the one in `folders`, which may begin elsewhere; None if it is another split's."""

        def common(position: int) -> int:
            pairs = zip(reversed(folders), reversed(self._parts[position][:-1]))
            return next((i for i, (one, other) in enumerate(pairs) if form(one) != form(other)), len(folders))

        best = max(map(common, indices))
        nearest = [index for index in indices if common(index) == best]
        if len(nearest) > 1:
            return SEVERAL
        parts = self._parts[nearest[0]]
        if best == len(folders) or best >= len(parts) - 1:
            return nearest[0]
        explicit, own = folders[-1 - best], parts[-2 - best]
        there = os.path.join(*parts[: -2 - best], *folders[len(folders) - 1 - best :], parts[-1])
        splits = [result[1].lower() for one in (explicit, own) if (result := _SPLIT.fullmatch(one))]
        is_other = (
            len(set(splits)) > 1 or explicit in self._folders or (explicit not in ("", ".", "..") and os.path.exists(there))
        )
        return None if is_other else nearest[0]


def _stem(name: str) -> str:
    stem, suffix = os.path.splitext(name)
    return stem if suffix.lower() in SUFFIXES else name


def _folded(name: str) -> str:
    """A name without what systems and exporters change: case, Unicode form, URL encoding, blanks around it."""
    return unicodedata.normalize("NFC", unquote(name)).casefold().strip()


def match_classes(
    rows: PredictionRows, path: Path, names: Sequence[str], category_ids: Sequence[int], own: Sequence[str], first: int
) -> np.ndarray:
    """Find the place of each row's class in `names`.

    Args:
        rows (Rows): what the file of predictions has.
        path (Path): that file, for messages.
        names (Sequence[str]): the data's classes.
        category_ids (Sequence[int]): their ids in the annotations; empty if they have none.
        own (Sequence[str]): the model's classes in its order; empty if numbers are the data's.
        first (int): the number of the first class.

    Returns:
        np.ndarray: places, shape (n,) int64.

    Raises:
        DataError: for a class that the data does not have.
    """
    indices = {name: index for index, name in enumerate(names)}
    if own:
        if unknown := [name for name in own if name not in indices]:
            raise DataError(
                f"--class-names: {join_names(unknown)}: none of the data's classes, which are {join_names(list(names), 8)}."
            )
        numbers = {first + number: indices[name] for number, name in enumerate(own)}
    elif rows.ids and category_ids:
        numbers = {int(category): index for index, category in enumerate(category_ids)}
    else:
        numbers = {first + index: index for index in range(len(names))}
    # Texts that look like numbers are names if all of them are, as of digits.
    named = not own and all(explicit in indices for explicit in set(rows.classes) if isinstance(explicit, str))
    result = np.zeros(len(rows.classes), np.int64)
    for row, explicit in enumerate(rows.classes):
        number = None if named and isinstance(explicit, str) else parse_id(explicit)
        position = indices.get(str(explicit)) if number is None else numbers.get(number)
        if position is None:
            kind = "name" if number is None else "number"
            have = join_names(list(names), 8) if number is None else join_names([str(number) for number in numbers], 8)
            raise DataError(
                f"{path}: {rows.places[row]}: class {abbreviate(repr(explicit), 100)} is not the {kind} of a class "
                f"here; these are {have}. "
                "Name the model's classes in its own order with --class-names A B C, and the number of the first with --first-class."
            )
        result[row] = position
    return result
