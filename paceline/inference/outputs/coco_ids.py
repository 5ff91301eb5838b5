"""Ids of photos in a COCO annotation file, which a result file names them by.

They come from a file that the command names, from the data set that the run was trained on, or from names that are numbers, as
those of COCO's own photos. Nothing is guessed: a number that only might be the photo's would be scored as another photo.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, TypeAlias

from paceline._utils.errors import DataError, PacelineError
from paceline._utils.safe_read import read_plain
from paceline._utils.text import abbreviate
from paceline.config.run import RunRecord
from paceline.data.index.box_split import open_boxes
from paceline.data.index.manifest import Manifest

MAX_BYTES = 8 << 30
Ids: TypeAlias = dict[Path, int]  # a photo, as the command names it -> its id


def read_image_ids(photos: Sequence[Path], file: Path, categories: Mapping[str, int]) -> Ids:
    """Ids of the photos that a COCO JSON lists: the whole end of a photo's path must be a `file_name`.

    categories  the run's class names and category ids, which results have
    Raises PacelineError where it is none, names two images alike, numbers a category otherwise, or lists none of the photos.
    """
    record = _coco(file)
    _check_categories(record, file, categories)
    named = _names_in(record, file)
    ids = {}
    for photo in photos:
        ends = (str(PurePath(*photo.parts[first:])) for first in range(len(photo.parts)))
        # The longest first: val2017/1.jpg before 1.jpg.
        image = next((named[end] for end in ends if end in named), None)
        if image is not None:
            ids[photo] = image
    if not ids:
        example = abbreviate(next(iter(named), ""))
        raise PacelineError(f"--image-ids {file}: contains none of the images. It lists {len(named):,}, e.g. {example!r}.")
    return ids


def find_image_ids(photos: Sequence[Path], facts: RunRecord) -> tuple[Ids, str]:
    """Ids of all photos without a file that lists them, and whence; or none, and why.

    facts  the run's; photos of a split of its data set have the ids of that split's annotations
    """
    if ids := _ids_in_data(photos, facts.data):
        return ids, "image ids from the dataset of the run"
    numbers = {photo: int(photo.stem) for photo in photos if photo.stem.isascii() and photo.stem.isdigit()}
    if len(numbers) < len(photos):
        return {}, "the image ids are unknown (set --image-ids FILE, a COCO JSON file that lists the images)"
    if len(set(numbers.values())) < len(photos):
        return {}, "two file names have the same number (set --image-ids FILE for the image ids)"
    return numbers, "image ids from the file names"


def _coco(file: Path) -> dict[str, Any]:
    try:
        record = json.loads(read_plain(file, MAX_BYTES))
    except OSError as problem:
        raise PacelineError(f"--image-ids {file}: cannot be read ({problem.strerror}).") from None
    except (ValueError, RecursionError) as problem:
        raise PacelineError(f"--image-ids {file}: not valid JSON ({abbreviate(problem)}).") from None
    if not isinstance(record, dict) or not all(isinstance(record.get(key), list) for key in ("images", "categories")):
        raise PacelineError(f"--image-ids {file}: not a COCO JSON file: the lists `images` and `categories` are required.")
    return record


def _check_categories(record: Mapping[str, Any], file: Path, categories: Mapping[str, int]) -> None:
    numbered = {number: name for name, number in categories.items()}
    for category in record["categories"]:
        name, number = (category.get("name"), category.get("id")) if isinstance(category, dict) else (None, None)
        if not isinstance(name, str) or type(number) is not int:
            continue
        if numbered.get(number, name) != name and name not in categories:
            raise PacelineError(
                f"--image-ids {file}: the id {number} is category {abbreviate(name)!r} in the file, and "
                f"{abbreviate(numbered[number])!r} in the run. "
                "The results would be evaluated as other classes. Pass a file with the categories of the training set."
            )
        if categories.get(name, number) != number:
            raise PacelineError(
                f"--image-ids {file}: category {abbreviate(name)!r} has id {abbreviate(number)} in the file, and "
                f"{categories[name]} in the run. "
                "The results would be evaluated as other classes. Pass a file with the category ids of the training set."
            )


def _names_in(record: Mapping[str, Any], file: Path) -> dict[str, int]:
    named: dict[str, int] = {}
    for index, image in enumerate(record["images"]):
        name, number = (image.get("file_name"), image.get("id")) if isinstance(image, dict) else (None, None)
        if not isinstance(name, str) or type(number) is not int:
            raise PacelineError(f"--image-ids {file}: image {index} must have a file_name and an integer id.")
        if named.setdefault(os.path.normpath(name), number) != number:
            raise PacelineError(f"--image-ids {file}: two images have the file_name {abbreviate(name)!r}.")
    return named


def _ids_in_data(photos: Sequence[Path], data: Mapping[str, Any]) -> Ids:
    """Ids of photos that all lie in one split of the run's data set, where that is still there; {} for others."""
    root, folder = data.get("root"), data.get("manifest")
    if not isinstance(root, str) or not isinstance(folder, str) or not os.path.isdir(root):
        return {}
    paths = {photo: os.path.realpath(photo) for photo in photos}
    top = os.path.realpath(root) + os.sep
    if not all(location.startswith(top) for location in paths.values()):
        return {}
    try:
        manifest = Manifest.load(Path(folder))
        for ids in _splits(manifest, top):
            if all(location in ids for location in paths.values()):
                return {photo: ids[location] for photo, location in paths.items()}
    except DataError:
        return {}  # an index that is gone or outdated: the photos are named in another way, or not
    return {}


def _splits(manifest: Manifest, top: str) -> Iterator[dict[str, int]]:
    """Of each split: path -> image id."""
    for split in manifest.splits:
        opened = open_boxes(manifest, split)
        names = (os.fsdecode(opened.index.relative_name(i)) for i in range(len(opened)))
        yield {os.path.realpath(os.path.join(top, name)): int(image) for name, image in zip(names, opened.image_ids)}
