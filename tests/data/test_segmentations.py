"""Masks that are given as points, boxes and areas that masks give: the same as pycocotools', whatever the number of corners."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coco_sets import HEIGHT, WIDTH, box, edit, make_set
from messages import check_text, raises
from pycocotools import mask as official

from paceline._utils.errors import DataError
from paceline.data.formats.annotations import segmentation_box
from paceline.data.index.box_split import open_boxes
from paceline.data.prepare.box_arrays import mask_arrays
from paceline.data.prepare.box_source import prepare_boxes


def outline(corners: int) -> list[list[float]]:
    angles = [2 * math.pi * place / corners for place in range(corners)]
    return [[round(20 + 15 * math.cos(angle), 2), round(15 + 10 * math.sin(angle), 2)] for angle in angles]


def flat(points: list[list[float]]) -> list[float]:
    return [value for point in points for value in point]


FORMS = {
    "flat": flat,
    "points": lambda points: points,
    "nested": lambda points: [points],
    "pairs as tuples": lambda points: [tuple(map(tuple, points))],
    "standard": lambda points: [flat(points)],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("corners", [3, 4, 5, 6, 7, 8, 20])
def test_points_are_the_polygon_that_they_are_for_any_number_of_corners(form: str, corners: int) -> None:
    points = outline(corners)
    found, left_out, _ = mask_arrays([FORMS[form](points)], np.array([HEIGHT]), np.array([WIDTH]), _failed)
    assert found["polygon_points"].tolist() == flat(points) and left_out == 0
    assert found["object_polygons"].tolist() == [0, 1] and found["polygon_starts"].tolist() == [0, 2 * corners]


@pytest.mark.parametrize("corners", [1, 2])
def test_points_that_enclose_nothing_are_one_polygon_that_is_left_out(corners: int) -> None:
    for form in FORMS.values():
        found, left_out, _ = mask_arrays([form(outline(corners))], np.array([HEIGHT]), np.array([WIDTH]), _failed)
        assert found["object_polygons"].tolist() == [0, 0] and left_out == 1


def test_polygons_in_several_forms_and_one_mask_in_a_list_are_read() -> None:
    four, eight = outline(4), outline(8)
    runs = {"size": [HEIGHT, WIDTH], "counts": [100, 5, HEIGHT * WIDTH - 105]}
    found, left_out, _ = mask_arrays([[flat(four), eight], [runs]], *(np.full(2, n) for n in (HEIGHT, WIDTH)), _failed)
    assert found["polygon_points"].tolist() == flat(four) + flat(eight) and left_out == 0
    assert found["object_polygons"].tolist() == [0, 2, 2] and found["rle_counts"].tolist() == runs["counts"]


def _failed(row: int, reason: str) -> Exception:
    return AssertionError(f"{row}: {reason}")


def stripped(*keys: str, **masks: Any):
    """An edit of a JSON whose annotations get a mask each, and lose `keys`."""

    def change(record: Any) -> None:
        for place, entry in enumerate(record["annotations"]):
            entry["segmentation"] = list(masks.values())[place % len(masks)]
            for key in keys:
                entry.pop(key, None)

    return change


@pytest.mark.parametrize("lacking", ["absent", None, []])
def test_a_missing_box_is_the_bounds_of_its_mask(lacking: Any, tmp_path: Path) -> None:
    mask = np.zeros((HEIGHT, WIDTH), np.uint8, order="F")
    mask[4:9, 7:31] = 1
    runs = official.encode(mask)
    compressed = {"size": runs["size"], "counts": runs["counts"].decode()}
    points = [[2, 3], [30.5, 3], [12, 20]]

    def change(record: Any) -> None:
        stripped(a=points, b=compressed)(record)
        for entry in record["annotations"]:
            entry["bbox"] = lacking
            if lacking == "absent":
                del entry["bbox"]

    manifest = prepare_boxes(edit(make_set(tmp_path / "set"), change))
    found = open_boxes(manifest, "train")
    # By image: the third annotation of the JSON is the second object of its first image.
    assert found.boxes.tolist() == [[2, 3, 28.5, 17], [2, 3, 28.5, 17], [7, 4, 24, 5], [7, 4, 24, 5]]
    assert official.toBbox(runs).tolist() == [7, 4, 24, 5] and found.usable.all()
    check_text(manifest.notes[0], "4 annotations", "'bbox'")


@pytest.mark.parametrize(
    ("segmentation", "reason"),
    [
        (None, "annotation 2 ... id 102 ... 'bbox'"),
        ([[1, 2, 3, 4]], "annotation 2 ... id 102 ... 'bbox'"),
        ([[1, 2, 3, 4, 5]], "annotation 2 ... id 102 ... 'bbox' ... odd number"),
        ([[1, 2, 3, 4, 5, "x"]], "'bbox' ... 'x'"),
        ({"counts": [5], "size": [1]}, "has no 'bbox' ... size"),
        ({"counts": [5], "size": [2, 3]}, "has no 'bbox' ... covers 5 pixels"),
    ],
)
def test_without_a_box_and_a_mask_that_gives_one_there_is_no_object(segmentation, reason, tmp_path: Path) -> None:
    def change(record: Any) -> None:
        del record["annotations"][2]["bbox"]
        record["annotations"][2]["segmentation"] = segmentation

    with raises(DataError, reason):
        prepare_boxes(edit(make_set(tmp_path / "set"), change))


def test_a_missing_area_is_that_of_pycocotools_for_the_mask() -> None:
    from paceline.data.formats.coco import coco_annotations
    from paceline.data.prepare.box_arrays import box_arrays

    height, width, random = 120, 160, np.random.default_rng(5)
    masks: list[Any] = []
    for _ in range(30):  # around COCO's border of 32 x 32 pixels
        x, y = random.uniform(0, 100), random.uniform(0, 60)
        w, h = random.uniform(28, 50), random.uniform(28, 50)
        masks.append([[x, y, x + w, y, x + w, y + h * 0.8, x + w * 0.7, y + h, x, y + h]])
    two = [masks[0][0], masks[3][0]]  # overlap counts once
    shape = np.zeros((height, width), np.uint8, order="F")
    shape[5:40, 9:38] = 1
    rle = official.encode(shape)
    masks += [two, {"size": [height, width], "counts": rle["counts"].decode()}, None]
    entries = [{**box(1, 7, 0, 0, 160, 120), "id": i, "segmentation": mask} for i, mask in enumerate(masks, start=1)]
    for entry in entries:
        del entry["area"]
    record = {"images": [{"id": 1, "file_name": "1.jpg"}], "annotations": entries, "categories": [{"id": 7, "name": "a"}]}
    annotations, notes = coco_annotations(Path("x.json"), record, Path())
    arrays, _ = box_arrays(annotations, np.array([7]), np.array([height]), np.array([width]))
    polygons = [official.merge(official.frPyObjects(mask, height, width)) for mask in masks[:31]]
    wanted = [*(float(official.area(one)) for one in (*polygons, rle)), 19200.0]
    assert arrays["areas"].tolist() == wanted
    assert len({area < 32**2 for area in wanted}) == 2  # both of COCO's sizes are among them
    check_text(notes[0], "33 annotations", "'area'", "mask (32)", "box (1)")


def test_the_box_of_polygons_that_are_not_finite_or_of_no_pixel_is_none() -> None:
    assert segmentation_box([[1, 2, float("nan"), 4, 5, 6]]) is None and segmentation_box(None) is None
    assert segmentation_box({"counts": [6], "size": [2, 3]}) is None
    assert segmentation_box([[1, 2, 9, 4, 5, 6], [0, 0, 1, 1]]) == (1, 2, 8, 4)
