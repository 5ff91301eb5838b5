"""Answers of any model, read from the files that other tools write, to be scored by `eval --predictions`.

    .json   COCO's results: a list of {"image_id", "category_id", "bbox" and or "segmentation", "score"} (pycocotools, detectron2,
            torchvision's reference, Ultralytics' save_json, RF-DETR); masks are run lengths or polygons, and as large as their pixels,
            as detectron2 has it (pycocotools takes the area of the box where an entry has both, which moves AP small, medium, large)
    folder  YOLO's text, PHOTO.txt a photo, in fractions of it: class, centre x, centre y, width, height, score; or class, x and y of
            each corner of a polygon, score (Ultralytics' save_txt with save_conf)
    .csv    a row an object or a class, named by the first line (COLUMNS below), as `predict --write csv` and tables elsewhere have it
A photo is named by its id, file name or stem, a class by its name or number. Sources: cocodataset.org, "Results format";
docs.ultralytics.com/modes/predict.

Letters: n rows
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paceline.config.errors import DataError, UserError
from paceline.config.listing import listed
from paceline.config.printable import some

Kind = Literal["classes", "boxes", "masks"]
# What a column of a .csv may be called.
COLUMNS = {
    "photo": ("image_id", "image", "file", "filename", "file_name", "path", "photo"),
    "class": ("name", "class", "label", "category", "category_name", "class_name", "category_id", "class_id"),
    "score": ("score", "confidence", "conf", "probability"),
}
CORNERS = (("xmin", "ymin", "xmax", "ymax"), ("x1", "y1", "x2", "y2"), ("left", "top", "right", "bottom"))
SIDES = (
    ("left", "top", "width", "height"),
    ("x", "y", "w", "h"),
    ("x", "y", "width", "height"),
    ("xmin", "ymin", "width", "height"),
)


LISTS = ("places", "photos", "classes", "masks")  # of a row each


@dataclass(frozen=True)
class Rows:
    """What a file says, row by row, in its order."""

    kind: Kind
    places: Sequence[str]  # n, where each row stands, for messages
    photos: Sequence[int | str]  # n
    classes: Sequence[int | str]  # n; numbers as the file has them
    scores: np.ndarray  # (n,) float64
    boxes: np.ndarray  # (n, 4) float64 x, y, width, height; zeros of classes, and of masks without a box
    masks: Sequence[Any]  # n of masks: {"size", "counts"}, or polygons as lists of x, y, ...; else 0
    fractions: bool = False  # boxes and polygons are in fractions of the photo
    ids: bool = False  # class numbers are the annotations' category ids, not places in the list of classes

    def take(self, chosen: np.ndarray) -> Rows:
        """Those rows alone, in this order; all of them are the same ones."""
        if len(chosen) == len(self.places):
            return self
        lists = {name: [values[row] for row in chosen] for name in LISTS if (values := getattr(self, name))}
        return replace(self, scores=self.scores[chosen], boxes=self.boxes[chosen], **lists)


def read_rows(path: Path) -> Rows:
    """Raises UserError for a path that is nothing of these, DataError with the place of the first row that cannot be."""
    if path.is_dir():
        return _yolo(path)
    if not path.is_file():
        raise UserError(f"--predictions {path}: there is no such file or folder.")
    readers: dict[str, Callable[[Path], Rows]] = {".json": _coco, ".csv": _table}
    if path.suffix.lower() not in readers:
        raise UserError(
            f"--predictions {path}: wanted COCO's results (.json), a table (.csv), or a folder of YOLO's .txt files."
        )
    try:
        return _checked(readers[path.suffix.lower()](path), path)
    except UnicodeDecodeError as problem:
        raise DataError(f"{path}: it is no text in UTF-8 ({problem.reason} at byte {problem.start}).") from None


def _coco(path: Path) -> Rows:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as problem:
        raise DataError(f"{path}: it is no JSON: {problem}.") from None
    if isinstance(entries, dict) and entries.get("kind") in ("classification", "boxes", "instances"):
        raise DataError(f"{path}: these are a run's own predictions; score the run:  paceline eval RUN")
    if isinstance(entries, dict) and isinstance(entries.get("annotations"), list):
        entries = entries["annotations"]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise DataError(
            f'{path}: wanted a list of {{"image_id", "category_id", "bbox", "score"}}, as COCO\'s results are.'
        )
    masks = any(entry.get("segmentation") for entry in entries)
    needed = ("score", "segmentation" if masks else "bbox")
    for number, entry in enumerate(entries):
        lacking = [name for name in needed if name not in entry]
        lacking += [] if {"image_id", "file_name"} & entry.keys() else ["image_id"]
        lacking += [] if {"category_id", "category_name"} & entry.keys() else ["category_id"]
        if lacking:
            hint = ": ground truth has none; name the file of the model's answers" if "score" in lacking else ""
            raise DataError(f"{path}: entry {number} has no {some(lacking)}{hint}.")
    return Rows(
        kind="masks" if masks else "boxes",
        places=[f"entry {number}" for number in range(len(entries))],
        photos=[entry.get("image_id", entry.get("file_name")) for entry in entries],
        classes=[entry.get("category_name", entry.get("category_id")) for entry in entries],
        scores=_numbers([entry["score"] for entry in entries], path, "score"),
        boxes=_numbers([entry.get("bbox") or (0, 0, 0, 0) for entry in entries], path, "bbox", 4),
        masks=[entry["segmentation"] for entry in entries] if masks else (),
        ids=True,
    )


def _numbers(values: Sequence[Any], path: Path, name: str, width: int = 0) -> np.ndarray:
    try:
        found = np.array(values, np.float64)
    except (TypeError, ValueError):
        found = None
    shape = (len(values), width) if width else (len(values),)
    if found is not None and (found.shape == shape or not len(values)):
        return found.reshape(shape)
    for number, value in enumerate(values):
        if not _is_numbers(value, width):
            wanted = f"{width} numbers" if width else "a number"
            raise DataError(f"{path}: entry {number}: {name} must be {wanted}, not {value!r}.")
    raise AssertionError


def _is_numbers(value: Any, width: int) -> bool:
    try:
        return np.array(value, np.float64).shape == ((width,) if width else ())
    except (TypeError, ValueError):
        return False


def _yolo(folder: Path) -> Rows:
    files = [file for file in listed(folder, "*.txt") if file.is_file()]
    if not files:
        raise DataError(f"--predictions {folder}: no .txt file in it; wanted YOLO's PHOTO.txt, one a photo.")
    places, photos, classes, scores, boxes, polygons = [], [], [], [], [], []
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip():
                continue
            place = f"{file.name}, line {number}"
            try:
                values = [float(word) for word in line.split()]
            except ValueError:
                raise DataError(f"{folder}: {place}: {line.strip()[:60]!r} is no row of numbers.") from None
            if len(values) < 6 or len(values) % 2:
                raise DataError(
                    f"{folder}: {place}: {len(values)} numbers; wanted class, centre x, centre y, width, height, score (or class, "
                    "a polygon, score). Scores are written with save_conf=True."
                )
            places.append(place)
            photos.append(file.stem)
            classes.append(_whole(values[0], f"{folder}: {place}"))
            scores.append(values[-1])
            centre_x, centre_y, width, height = values[1:5] if len(values) == 6 else (0.0,) * 4
            boxes.append((centre_x - width / 2, centre_y - height / 2, width, height))
            polygons.append([values[1:-1]] if len(values) > 6 else [])
    masks = any(polygons)
    if masks and not all(polygons):
        place = places[polygons.index([])]
        raise DataError(f"{folder}: {place} is a box, and others are polygons: score them apart.")
    found = np.array(boxes, np.float64).reshape(-1, 4)
    kind: Kind = "masks" if masks else "boxes"
    rows = Rows(kind, places, photos, classes, np.array(scores), found, polygons if masks else (), fractions=True)
    return _checked(rows, folder)


def _whole(value: float, where: str) -> int:
    if not (math.isfinite(value) and value == int(value) and value >= 0):
        raise DataError(f"{where}: {value:g} is no number of a class.")
    return int(value)


def _table(path: Path) -> Rows:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        names = {name.strip().lower(): name for name in reader.fieldnames or () if name}
        entries = list(reader)
    columns = {what: next((names[name] for name in known if name in names), None) for what, known in COLUMNS.items()}
    sides = next((form for form in (*CORNERS, *SIDES) if set(form) <= names.keys()), None)
    if sides and not any(entry[names[side]] for entry in entries for side in sides):
        sides = None  # classes, as `predict --write csv` has them: its columns of boxes are empty
    needed = ("photo", "class", "score") if sides else ("photo", "class")
    if lacking := [what for what in needed if columns[what] is None]:
        wanted = "; ".join(f"{what}: one of {', '.join(COLUMNS[what])}" for what in lacking)
        raise DataError(f"{path}: its first line names no column of {wanted}. It has {some(list(names)) or 'none'}.")
    places = [f"line {number}" for number in range(2, len(entries) + 2)]

    def column(name: str) -> Iterator[float]:
        for entry, place in zip(entries, places):
            try:
                yield float(entry[name])
            except (TypeError, ValueError):
                raise DataError(f"{path}: {place}: {name} must be a number, not {entry[name]!r}.") from None

    count = len(entries)
    boxes = np.zeros((count, 4))
    if sides:
        boxes = np.stack([np.fromiter(column(names[side]), np.float64, count) for side in sides], axis=1)
        if sides in CORNERS:
            boxes[:, 2:] -= boxes[:, :2]
    named, ids = columns["class"], columns["class"] == names.get("category_id")
    scores = np.fromiter(column(columns["score"]), np.float64, count) if columns["score"] else np.ones(count)
    classes = [_class_word(entry[named]) for entry in entries]
    photos = [str(entry[columns["photo"]]) for entry in entries]
    return Rows("boxes" if sides else "classes", places, photos, classes, scores, boxes, (), ids=ids)


def _class_word(word: str | None) -> int | str:
    text = (word or "").strip()
    return int(text) if text.isascii() and text.isdigit() else text


def _checked(rows: Rows, path: Path) -> Rows:
    """Raises DataError for a box or a score that is not finite."""
    wrong = np.flatnonzero(~(np.isfinite(rows.scores) & np.isfinite(rows.boxes).all(axis=1)))
    if len(wrong):
        place = rows.places[int(wrong[0])]
        raise DataError(f"{path}: {place}: its box or score is not finite ({len(wrong):,} such rows).")
    return rows


def photo_numbers(rows: Rows, path: Path, files: Sequence[str], image_ids: Sequence[int]) -> np.ndarray:
    """(n,) int64: the place of each row's photo in `files`.

    files      the data's photos, by their paths
    image_ids  of the annotations; () where photos have none
    Raises DataError for a photo that the data do not have, or whose name stands for several.
    """
    known: dict[str, int] = {}  # the ends of each path, with and without suffix; SEVERAL where photos share one
    for place, file in enumerate(files):
        for end in _ends(file):
            known[end] = place if known.get(end, place) == place else SEVERAL
    ids = {int(image_id): place for place, image_id in enumerate(image_ids)}
    found = np.zeros(len(rows.photos), np.int64)
    for row, name in enumerate(rows.photos):
        place = ids.get(name) if isinstance(name, int) else None
        if place is None:
            place = next((known[end] for end in _ends(str(name)) if end in known), None)
        if place is None and str(name).isascii() and str(name).isdigit():
            place = ids.get(int(name))
        if place is None or place == SEVERAL:
            what = f"is none of the data's {len(files):,} photos" if place is None else "is the name of several photos"
            raise DataError(
                f"{path}: {rows.places[row]}: {name!r} {what}, such as {files[0] if files else 'none'}"
                f"{f' (id {image_ids[0]})' if len(image_ids) else ''}. Score answers on the photos that they are of: --data, --split."
            )
        found[row] = place
    return found


SEVERAL = -1


def _ends(file: str) -> Iterator[str]:
    """The longest first: folder/val/7.jpg, folder/val/7, val/7.jpg, val/7, 7.jpg, 7."""
    parts = Path(file).parts
    for first in range(len(parts)):
        end = "/".join(parts[first:])
        yield end
        yield end.removesuffix(Path(end).suffix)


def class_numbers(
    rows: Rows, path: Path, names: Sequence[str], category_ids: Sequence[int], own: Sequence[str], first: int
) -> np.ndarray:
    """(n,) int64: the place of each row's class in `names`.

    names         the data's classes; category_ids: their ids in the annotations, () where they have none
    own, first    the model's classes in its order, and the number of the first; () where the numbers are the data's
    Raises DataError for a class that the data do not have.
    """
    places = {name: place for place, name in enumerate(names)}
    if own:
        if unknown := [name for name in own if name not in places]:
            raise DataError(
                f"--class-names: {some(unknown)}: none of the data's classes, which are {some(list(names), 8)}."
            )
        numbers = {first + number: places[name] for number, name in enumerate(own)}
    elif rows.ids and category_ids:
        numbers = {int(category): place for place, category in enumerate(category_ids)}
    else:
        numbers = {first + place: place for place in range(len(names))}
    found = np.zeros(len(rows.classes), np.int64)
    for row, given in enumerate(rows.classes):
        place = numbers.get(given) if isinstance(given, int) else places.get(given)
        if place is None:
            kind = "name" if isinstance(given, str) else "number"
            have = some(list(names), 8) if kind == "name" else some([str(number) for number in numbers], 8)
            raise DataError(
                f"{path}: {rows.places[row]}: class {given!r} is no {kind} of a class here; these are {have}. Name the model's "
                "classes in its own order with --class-names A B C, and the number of the first with --first-class."
            )
        found[row] = place
    return found
