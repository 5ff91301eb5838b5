"""COCO JSON of strangers: values that fit nowhere in each of its fields, masks, names, and files that are no JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coco_sets import HEIGHT, WIDTH, edit, json_file, make_set
from hostile import ESCAPE, Case, Family, fifo, sparse, unix_socket, zeros

from paceline.data.prepare.box_source import prepare_boxes


def read(folder: Path) -> None:
    prepare_boxes(folder, workers=1)


def words(folder: Path) -> list[object]:
    return ["prepare", "coco", folder, "--workers", 1]


# Columns of the matrix below.
VALUES: dict[str, Any] = {
    "10**400": 10**400,
    "-10**400": -(10**400),
    "2**70": 2**70,
    "1e308": 1e308,
    "nan": math.nan,
    "infinity": math.inf,
    "half": 1.5,
    "text": "1",
    "null": None,
    "list": [1],
    "deep list": json.loads("[" * 900 + "]" * 900),
    "true": True,
}
# (list, field) -> a letter for each value: r refused, t taken.
FIELDS: dict[tuple[str, str], str] = {
    ("images", "id"): "rrrrrrrtrrrr",
    ("images", "width"): "rrrrrrrrtrrr",
    ("images", "height"): "rrrrrrrrtrrr",
    ("images", "file_name"): "rrrrrrrtrrrr",
    ("annotations", "id"): "rrrrrrrtrrrr",
    ("annotations", "image_id"): "rrrrrrrtrrrr",
    ("annotations", "category_id"): "rrrrrrrrrrrr",
    # Any number is one; what an absent area or flag means is known.
    ("annotations", "area"): "rrtttttttrrt",
    ("annotations", "iscrowd"): "rrtttttttrrt",
    ("annotations", "bbox"): "rrrrrrrrrrrr",
    ("categories", "id"): "rrrrrrrrrrrr",
    ("categories", "name"): "rrrrrrrrrrrr",
}


SINGULAR = {"images": "image", "annotations": "annotation", "categories": "category"}


def put(key: str, place: int, field: str, value: Any) -> Callable[[Path], object]:
    return lambda folder: edit(folder, lambda record: record[key][place].__setitem__(field, value))


def called(name: str) -> Callable[[Path], object]:
    """The first class, in both splits."""

    def change(folder: Path) -> None:
        for split in ("train", "val"):
            edit(folder, lambda record: record["categories"][0].update(name=name), split)

    return change


def mask(value: Any) -> Callable[[Path], object]:
    return put("annotations", 0, "segmentation", value)


def polygon(*values: Any) -> Callable[[Path], object]:
    return mask([list(values)])


def runs(counts: Any, size: Any = (HEIGHT, WIDTH)) -> Callable[[Path], object]:
    return mask({"counts": counts, "size": size})


def content(data: bytes) -> Callable[[Path], object]:
    return lambda folder: json_file(folder, "train").write_bytes(data)


def of_the_json(change: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: change(json_file(folder, "train"))


def matrix() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for (key, field), letters in FIELDS.items():
        for (label, value), letter in zip(VALUES.items(), letters, strict=True):
            says = "train2017" if letter == "r" else ""
            cases[f"{SINGULAR[key]} {field} {label}"] = put(key, 0, field, value), says
    return cases


def many_categories(folder: Path) -> None:
    edit(folder, lambda record: record.update(categories=[{"id": i, "name": f"n{i // 2}"} for i in range(100_000)]))


def long_text_among_numbers(folder: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        record["annotations"] += [{**record["annotations"][0], "id": 10**6 + i} for i in range(20_000)]
        record["annotations"][-1]["bbox"] = ["x" * 10**6, 1, 1, 1]

    edit(folder, change)


OTHERS: dict[str, Case] = {
    "bbox with 10**400": (put("annotations", 0, "bbox", [1, 2, 3, 10**400]), "annotation 0 .*'bbox' is"),
    "bbox of lists": (put("annotations", 0, "bbox", [[1], [2], [3], [4]]), "annotation 0 .*'bbox' is"),
    "bbox not finite": (put("annotations", 0, "bbox", [math.nan, 2, math.inf, 3]), ""),
    "bbox of 1e308": (put("annotations", 0, "bbox", [-1e308, -1e308, 1e308, 1e308]), ""),
    "a megabyte of text among numbers": (long_text_among_numbers, "annotation 20003 .*'bbox' is"),
    "polygon of texts": (polygon("1", "2", "3", "4", "5", "6"), ""),
    "polygon of 10**400": (polygon(1, 2, 3, 4, 5, 10**400), "that is too large for a float"),
    "polygon of pairs": (polygon([1, 2], [3, 4], [5, 6], 1, 2, 3), "points are not pairs of numbers"),
    "polygon of nothing": (polygon(None, 1, 2, 3, 4, 5), "which is not a number"),
    "polygon not finite": (polygon(math.nan, 1, 2, 3, 4, 5), ""),
    "polygon of two points": (polygon(1, 1, 2, 2), ""),
    "polygon of half a point": (polygon(1, 1, 2, 2, 3, 3, 4), r"odd number of values"),
    "polygon far away": (polygon(1e300, 1e300, -1e300, 1e300, 0, -1e300), ""),
    "numbers for polygons": (mask([1, 2, 3, 4, 5, 6]), ""),
    "number for a mask": (mask(5), "its segmentation is "),
    "text for a mask": (mask("x" * 10**6), "its segmentation is "),
    "mask without a size": (mask({"counts": [WIDTH * HEIGHT]}), "RLE mask has size None"),
    "mask of another size": (runs([WIDTH * HEIGHT], [WIDTH, HEIGHT]), "RLE mask has size"),
    "mask of 10**400 rows": (runs([1], [10**400, 1]), "RLE mask has size"),
    "negative run": (runs([-5, WIDTH * HEIGHT + 5]), "a run with a negative length"),
    "runs too short": (runs([1, 2, 3]), "covers 6 pixels"),
    "run of 10**400": (runs([10**400]), "cannot be read"),
    "runs of halves": (runs([0.5, WIDTH * HEIGHT - 0.5]), "not a list of integers"),
    "runs of texts": (runs(["1", "2"]), "not a list of integers"),
    "runs in lists": (runs([[WIDTH * HEIGHT]]), "not a list of integers"),
    "runs in an object": (runs({"a": 1}), "not a list of integers"),
    "compressed run of endless digits": (runs("o" * 10**6), "ends within a number"),
    "compressed run of too many digits": (runs("o" * 50 + "1"), "too many digits"),
    "compressed run of no such character": (runs("\x01\u20ac"), "cannot be read"),
    "half a character in a file's name": (put("images", 0, "file_name", "\ud800.jpg"), "a file name"),
    "half a character in a class": (put("categories", 0, "name", "\ud800x"), "surrogate code point"),
    "escape sequences in a file's name": (put("images", 0, "file_name", f"{ESCAPE}.jpg"), "not found"),
    "escape sequences in a class": (called(f"cat{ESCAPE}"), ""),
    "line break in a file's name": (put("images", 0, "file_name", "a\nforged: all is well.jpg"), "a file name"),
    "line break in a class": (called("cat\nforged: all is well"), ""),
    "a class of a megabyte": (put("categories", 0, "name", "x" * 10**6), "more than 1,000 characters"),
    "a file's name of a megabyte": (put("images", 0, "file_name", "x" * 10**6), "a file name"),
    "NUL in a file's name": (put("images", 0, "file_name", "a\0.jpg"), "a file name"),
    "path out of the folder": (put("images", 0, "file_name", "../../../etc/passwd"), "is outside the folder"),
    "absolute path": (put("images", 0, "file_name", "/etc/passwd"), "is outside the folder"),
    "a hundred thousand classes, each twice": (many_categories, "two categories are named"),
    "key with a line break": (
        lambda folder: json_file(folder, "train").write_text(json.dumps({f"{ESCAPE}\nforged": 1})), "not a COCO annotation"
    ),
    "nested a hundred thousand deep": (content(b"[" * 100_000), "nested too deeply"),
    "objects nested deep": (content(b'{"a":' * 100_000), "nested too deeply"),
    "number of five thousand digits": (content(b'{"images": ' + b"1" * 5000), "not valid JSON"),
    "half a file": (content(b'{"images": ['), "not valid JSON"),
    "no text": (content(b"\xff\xfe\x00\xd8"), "not valid JSON"),
    "nothing": (content(b""), "not valid JSON"),
    "named pipe": (of_the_json(fifo), "a named pipe"),
    "socket": (of_the_json(unix_socket), "a socket"),
    "endless zeros": (of_the_json(zeros), "a device"),
    "a tebibyte": (of_the_json(lambda path: sparse(path, 1 << 40)), "the limit is"),
}  # fmt: skip

COCO = Family("COCO JSON", make_set, read, words, {**matrix(), **OTHERS})
