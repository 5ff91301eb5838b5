"""Answers of any model, read from the files that other tools write, to be scored by `eval --predictions`.

    .json   COCO's results: a list of {"image_id", "category_id", "bbox" and or "segmentation", "score"} (pycocotools, detectron2,
            torchvision's reference, Ultralytics' save_json, RF-DETR); masks are run lengths or polygons, and as large as their pixels,
            as detectron2 has it (pycocotools takes the area of the box where an entry has both, which moves AP small, medium, large)
    folder  YOLO's text, PHOTO.txt a photo, in fractions of it: class, center x, center y, width, height, score; or class, x and y of
            each corner of a polygon, score (Ultralytics' save_txt with save_conf)
    .csv    a row an object or a class, named by the first line (COLUMNS below), as `predict --save-formats csv` and tables elsewhere
    have it;
            cells are separated by commas, semicolons, tabs, or bars
A photo is named by its id, file name or stem, a class by its name or number (external_scores.py). Texts are in UTF-8, UTF-16, or
UTF-32. Sources: cocodataset.org, "Results format"; docs.ultralytics.com/modes/predict.

Letters: n rows
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paceline._utils.errors import DataError, PacelineError
from paceline._utils.names import list_matching
from paceline._utils.safe_read import read_plain
from paceline._utils.text import abbreviate, join_names

Kind = Literal["classes", "boxes", "masks"]
# Objects365's results have 3 GB.
MAX_BYTES = 8 << 30
# Texts that label tools write next to the files of photos, without a suffix.
NOT_PHOTOS = frozenset({"classes", "labels", "names", "obj", "predefined_classes", "train", "val", "valid", "test"})
_ID = re.compile(r"(-?(?:0|[1-9]\d{0,17}))(?:\.0*)?", re.ASCII)
DELIMITERS = ",;\t|"
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
class PredictionRows:
    """What a file says, row by row, in its order."""

    kind: Kind
    places: Sequence[str]  # n, where each row stands, for messages
    photos: Sequence[int | str]  # n
    classes: Sequence[int | str]  # n; numbers as the file has them
    scores: np.ndarray  # (n,) float64
    boxes: np.ndarray  # (n, 4) float64 x, y, width, height; zeros of classes, and of masks without a box
    masks: list[Any]  # n of masks: {"size", "counts"}, or polygons as lists of x, y, ...; else 0
    fractions: bool = False  # boxes and polygons are in fractions of the photo
    ids: bool = False  # class numbers are the annotations' category ids, not places in the list of classes
    by_id: bool = False  # photos are named by the annotations' image ids before they are by their files
    notes: Sequence[str] = field(default=())  # for people: what was passed over

    def take(self, chosen: np.ndarray) -> PredictionRows:
        """Those rows alone, in this order; all of them are the same ones."""
        if len(chosen) == len(self.places):
            return self
        lists = {name: [values[row] for row in chosen] for name in LISTS if (values := getattr(self, name))}
        return replace(self, scores=self.scores[chosen], boxes=self.boxes[chosen], **lists)


def read_rows(path: Path) -> PredictionRows:
    """Raises PacelineError for a path that is none of these, DataError with the place of the first wrong row."""
    if path.is_dir():
        return _yolo(path)
    if not path.is_file():
        raise PacelineError(f"--predictions {path}: file or folder not found.")
    readers: dict[str, Callable[[Path], PredictionRows]] = {".json": _coco, ".csv": _table, ".tsv": _table}
    if path.suffix.lower() not in readers:
        raise PacelineError(
            f"--predictions {path}: must be COCO results (.json), a table (.csv, .tsv), or a folder of YOLO .txt files."
        )
    return _checked(readers[path.suffix.lower()](path), path)


def _text(path: Path) -> str:
    """The text of a file. Raises DataError if it cannot be read or decoded."""
    try:
        data = read_plain(path, MAX_BYTES)
        return data.decode(json.detect_encoding(data))
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({problem.strerror}).") from None
    except UnicodeDecodeError as problem:
        where = f"{problem.reason} at byte {problem.start}"
        raise DataError(f"{path}: not valid {problem.encoding.upper()} text ({where}). Save the file as UTF-8.") from None


def _coco(path: Path) -> PredictionRows:
    try:
        entries = json.loads(_text(path))
    except (ValueError, RecursionError) as problem:
        reason = problem if isinstance(problem, ValueError) else "nested too deeply"
        raise DataError(f"{path}: not valid JSON ({reason}).") from None
    if isinstance(entries, dict) and entries.get("kind") in ("classification", "boxes", "instances"):
        raise DataError(f"{path}: these are predictions of a paceline run. Evaluate the run:  paceline eval RUN")
    if isinstance(entries, dict) and isinstance(entries.get("annotations"), list):
        entries = entries["annotations"]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise DataError(f'{path}: expected a list of {{"image_id", "category_id", "bbox", "score"}}, as in COCO results.')
    masks = any(entry.get("segmentation") for entry in entries)
    needed = ("score", "segmentation" if masks else "bbox")
    for number, entry in enumerate(entries):
        lacking = [name for name in needed if name not in entry]
        lacking += [] if {"image_id", "file_name"} & entry.keys() else ["image_id"]
        lacking += [] if {"category_id", "category_name"} & entry.keys() else ["category_id"]
        if lacking:
            hint = ". This looks like ground truth. Pass a file of predictions" if "score" in lacking else ""
            raise DataError(f"{path}: entry {number} has no {join_names(lacking)}{hint}.")
        if not (entry.get("bbox") or entry.get("segmentation")):
            raise DataError(f"{path}: entry {number}: bbox must be 4 numbers, got {abbreviate(entry.get('bbox'))!r}.")
    return PredictionRows(
        kind="masks" if masks else "boxes",
        places=[f"entry {number}" for number in range(len(entries))],
        photos=[_name(entry, ("image_id", "file_name"), f"{path}: entry {n}") for n, entry in enumerate(entries)],
        classes=[_class_of(entry, f"{path}: entry {number}") for number, entry in enumerate(entries)],
        scores=_numbers([entry["score"] for entry in entries], path, "score"),
        boxes=_numbers([entry.get("bbox") or (0, 0, 0, 0) for entry in entries], path, "bbox", 4),
        masks=[entry["segmentation"] for entry in entries] if masks else [],
        ids=True,
        by_id=all("image_id" in entry for entry in entries),
    )


def _name(entry: dict[str, Any], keys: Sequence[str], where: str) -> int | str:
    """The first of `keys` in an entry: a whole number or a text."""
    key = next(key for key in keys if key in entry)
    value = entry[key]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise DataError(f"{where}: {key} must be an integer or a name, got {abbreviate(value)!r}.")
    return value


def _class_of(entry: dict[str, Any], where: str) -> int | str:
    explicit = _name(entry, ("category_name", "category_id"), where)
    number = None if "category_name" in entry else parse_id(explicit)
    return explicit if number is None else number


def parse_id(value: int | str) -> int | None:
    """The id that a number or a text is: "7" and "7.0" are, "007" is a name."""
    if isinstance(value, int):
        return value
    result = _ID.fullmatch(value)
    return int(result[1]) if result else None


def _numbers(values: Sequence[Any], path: Path, name: str, width: int = 0) -> np.ndarray:
    try:
        result = np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        result = None
    shape = (len(values), width) if width else (len(values),)
    if result is not None and (result.shape == shape or not len(values)):
        return result.reshape(shape)
    number = next(number for number, value in enumerate(values) if not _is_numbers(value, width))
    wanted = f"{width} numbers" if width else "a number"
    raise DataError(f"{path}: entry {number}: {name} must be {wanted}, got {abbreviate(values[number])!r}.")


def _is_numbers(value: Any, width: int) -> bool:
    try:
        return np.array(value, np.float64).shape == ((width,) if width else ())
    except (TypeError, ValueError, OverflowError):
        return False


def _yolo(folder: Path) -> PredictionRows:
    files = _texts(folder) or _texts(folder / "labels")
    if not files:
        raise DataError(f"--predictions {folder}: no .txt files found. Expected YOLO files, one IMAGE.txt per image.")
    locations, photos, classes, scores, boxes, polygons, others = [], [], [], [], [], [], []
    for file in files:
        lines = [(number, line) for number, line in enumerate(_text(file).splitlines(), 1) if line.strip()]
        no_photo = file.stem.lower() in NOT_PHOTOS or file.stem.lower().startswith("readme")
        if no_photo and not any(_words(line)[5:] for _, line in lines[:1]):
            others.append(file.name)
            continue
        for number, line in lines:
            location = f"{file.name}, line {number}"
            try:
                values = [float(word.replace(",", ".")) for word in _words(line)]
            except ValueError:
                raise DataError(f"{folder}: {location}: expected numbers, got {abbreviate(line.strip())!r}.") from None
            if len(values) < 6 or len(values) % 2:
                raise DataError(
                    f"{folder}: {location}: expected class, center x, center y, width, height, score (or class, a polygon, score), "
                    f"got {len(values)} numbers. In Ultralytics, set save_conf=True to write scores."
                )
            locations.append(location)
            photos.append(file.stem)
            classes.append(_whole(values[0], f"{folder}: {location}"))
            scores.append(values[-1])
            center_x, center_y, width, height = values[1:5] if len(values) == 6 else (0.0,) * 4
            boxes.append((center_x - width / 2, center_y - height / 2, width, height))
            polygons.append([values[1:-1]] if len(values) > 6 else [])
    masks = any(polygons)
    if masks and not all(polygons):
        location = locations[polygons.index([])]
        raise DataError(f"{folder}: {location} is a box, and other lines are polygons. Evaluate them separately.")
    result = np.array(boxes, np.float64).reshape(-1, 4)
    kind: Kind = "masks" if masks else "boxes"
    notes = [f"{folder}: ignoring {join_names(others)}, which contain no predictions"] if others else []
    rows = PredictionRows(
        kind, locations, photos, classes, np.array(scores), result, polygons if masks else [], fractions=True, notes=notes
    )
    return _checked(rows, folder)


def _texts(folder: Path) -> list[Path]:
    """The visible .txt files of a folder, by name."""
    return [file for file in list_matching(folder, "*.[tT][xX][tT]") if file.is_file()]


def _words(line: str) -> list[str]:
    """The cells of a line that semicolons, white space, or commas separate; a comma in a cell is a decimal one."""
    separator = ";" if ";" in line else None if len(line.split()) > 1 else ","
    return [word.strip(" \t,") for word in line.split(separator)]


def _whole(value: float, where: str) -> int:
    if not (math.isfinite(value) and value == int(value) and value >= 0):
        raise DataError(f"{where}: {value:g} is not a class index.")
    return int(value)


def _table(path: Path) -> PredictionRows:
    text = _text(path)
    head, _, below = text.partition("\n")
    skipped = 1 if head.strip().lower().startswith("sep=") else 0  # Excel's, for a separator of its own
    text, head = (below, below.partition("\n")[0]) if skipped else (text, head)
    delimiter = max(DELIMITERS, key=lambda one: len(_columns(head.split(one))))
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
        names = _columns(reader.fieldnames or ())
        entries, locations = [], []
        for entry in reader:
            entries.append({name: (entry[known] or "").strip() for name, known in names.items()})
            locations.append(f"line {reader.line_num + skipped}")
    except csv.Error as problem:
        raise DataError(f"{path}: not a valid table ({problem}).") from None
    columns = {what: next((name for name in known if name in names), "") for what, known in COLUMNS.items()}
    sides = next((form for form in (*CORNERS, *SIDES) if set(form) <= names.keys()), None)
    if sides and entries and not any(entry[side] for entry in entries for side in sides):
        sides = None  # classes, as `predict --save-formats csv` has them: its columns of boxes are empty
    needed = ("photo", "class", "score") if sides else ("photo", "class")
    if lacking := [what for what in needed if not columns[what]]:
        expected = "; ".join(f"{what.replace('photo', 'image')}: one of {', '.join(COLUMNS[what])}" for what in lacking)
        result = abbreviate(join_names(list(names)), 200)
        raise DataError(f"{path}: the first line has no column for {expected}. Columns: {result}.")

    def column(name: str) -> Iterator[float]:
        for entry, location in zip(entries, locations):
            try:
                yield float(entry[name] if delimiter == "," else entry[name].replace(",", "."))
            except ValueError:
                raise DataError(f"{path}: {location}: {name} must be a number, got {abbreviate(entry[name])!r}.") from None

    count = len(entries)
    boxes = np.zeros((count, 4))
    if sides:
        boxes = np.stack([np.fromiter(column(side), np.float64, count) for side in sides], axis=1)
        if sides in CORNERS:
            boxes[:, 2:] -= boxes[:, :2]
    scores = np.fromiter(column(columns["score"]), np.float64, count) if columns["score"] else np.ones(count)
    classes, photos = ([entry[columns[what]] for entry in entries] for what in ("class", "photo"))
    if columns["class"] in ("category_id", "class_id"):
        classes = [word if (number := parse_id(word)) is None else number for word in classes]
    kind: Kind = "boxes" if sides else "classes"
    ids, by_id = columns["class"] == "category_id", columns["photo"] == "image_id"
    return PredictionRows(kind, locations, photos, classes, scores, boxes, [], ids=ids, by_id=by_id)


def _columns(names: Sequence[str]) -> dict[str, str]:
    """Column names as COLUMNS spells them -> as the file does."""
    return {name.strip().strip('"').lower(): name for name in names if name and name.strip()}


def _checked(rows: PredictionRows, path: Path) -> PredictionRows:
    """Raises DataError for a box or a score that is not finite."""
    wrong = np.flatnonzero(~(np.isfinite(rows.scores) & np.isfinite(rows.boxes).all(axis=1)))
    if len(wrong):
        location = rows.places[int(wrong[0])]
        raise DataError(f"{path}: {location}: the box or score is not finite (rows with this problem: {len(wrong):,}).")
    return rows
