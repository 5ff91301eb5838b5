"""A run that can learn or score nothing is rejected, and classes and objects out of reach are named with their number."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from coco_sets import edit, make_set
from messages import check_line, check_lines, check_text
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from paceline._utils.errors import DataError
from paceline.cli.main import main
from paceline.config.recipes import RECIPES
from paceline.data.prepare.box_source import prepare_boxes
from paceline.models.object_task import describe_class_limits, describe_detection_limit
from paceline.models.registry import get_workload

NAMES = ("a", "b", "c", "d")


def limits(train: list[tuple[int, int]], val: list[tuple[int, int]]) -> list[str]:
    """Of objects (class, whether it counts)."""
    splits = {"train": train, "val": val}
    return describe_class_limits(
        NAMES,
        {
            split: (np.array([k for k, _ in rows], int), np.array([kept for _, kept in rows], bool))
            for split, rows in splits.items()
        },
    )


def test_classes_out_of_reach_are_counted() -> None:
    every = [(k, 1) for k in (1, 2, 3, 4)]
    assert limits(every, every) == []
    found = limits([(1, 1), (2, 0), (2, 0), (3, 1)], [(1, 1), (2, 0), (3, 0)])
    check_text(found[0], "3 of 7", "of b", "crowd", "learned")
    check_text(found[1], "1 of 4", "learned", "d")
    check_text(found[2], "1 of 3", "val", "of c", "crowd", "scored")
    assert len(found) == 3
    assert check_lines(
        limits([(1, 1), (3, 1)], [(1, 1), (2, 1), (4, 1)]), ("2 of 4", "train", "b, d"), ("1 of 4", "val", "c")
    )
    only = describe_class_limits(NAMES[:2], {"val": (np.array([1, 2]), np.array([True, False]))})
    check_text(only[0], "1 of 2", "of b", "crowd", "scored")


def perfect_ap(objects: list[list[int]]) -> tuple[float, float]:
    """AP and AR100 of pycocotools if each object is found; objects: of each image, the class of each."""
    entries = [
        {"id": 1000 * image + place + 1, "image_id": image, "category_id": k, "bbox": [20 * place, 0, 10, 10], "area": 100,
         "iscrowd": 0}
        for image, classes in enumerate(objects, start=1)
        for place, k in enumerate(classes)
    ]  # fmt: skip
    truth = COCO()
    truth.dataset = {
        "images": [{"id": i + 1} for i in range(len(objects))],
        "annotations": entries,
        "categories": [{"id": 1}, {"id": 2}],
    }
    truth.createIndex()
    found = truth.loadRes(
        [{**{key: entry[key] for key in ("image_id", "category_id", "bbox")}, "score": 0.9} for entry in entries]
    )
    scored = COCOeval(truth, found, "bbox")
    scored.evaluate(), scored.accumulate(), scored.summarize()
    return scored.stats[0], scored.stats[8]


@pytest.mark.parametrize(
    "objects", [[[1] * 150], [[1] * 150, [2] * 3], [[1] * 130 + [2] * 30, [1] * 20, [2] * 107], [[1] * 100 + [2] * 50]]
)
def test_the_highest_possible_ap_is_that_of_pycocotools(objects: list[list[int]]) -> None:
    starts, classes = np.cumsum([0, *map(len, objects)]), np.array([k for image in objects for k in image])
    said = describe_detection_limit(starts, classes, np.ones(len(classes), bool))
    ap, recall = perfect_ap(objects)
    if max(image.count(k) for image in objects for k in (1, 2)) <= 100:
        assert said == [] and ap == 1
    else:
        check_text(said[0], f"{100 * ap:.1f}", f"{100 * recall:.1f}")


def crowded(split: str, only: int = 0):
    """A set whose objects in a split, of a class or all, are crowd regions."""

    def change(record) -> None:
        for entry in record["annotations"]:
            entry["iscrowd"] = int(only in (0, entry["category_id"]))

    return lambda root: edit(root, change, split)


@pytest.mark.parametrize("name", ["ssd-demo", "maskrcnn-demo"])
@pytest.mark.parametrize(
    ("split", "said"), [("train", "3 training.*4 objects.*4 crowd"), ("val", "2 validation.*2 objects.*2 crowd")]
)
def test_a_run_that_learns_or_scores_nothing_is_rejected(name: str, split: str, said: str, tmp_path: Path) -> None:
    root = crowded(split)(make_set(tmp_path / "set"))
    recipe = RECIPES[name]()
    with pytest.raises(DataError, match=f"{said}(.|\n)*paceline prepare coco"):
        get_workload(recipe.task).open(recipe, prepare_boxes(root), limit_train=0, limit_val=0)


def test_a_class_of_crowds_is_a_warning_of_prepare_training_and_report(tmp_path: Path, capsys) -> None:
    root = crowded("val", 7)(crowded("train", 7)(make_set(tmp_path / "set")))
    facts = ("3 of 6", "of cat", "crowd")
    assert main(["prepare", "coco", str(root)]) == 0
    check_line(capsys.readouterr().out, "warning", *facts)
    run = tmp_path / "run"
    assert main(["train", "ssd-demo", "--data", str(root), "--max-steps", "1", "--output-dir", str(run)]) == 0
    check_line(capsys.readouterr().out, "warning", *facts)
    check_text(json.loads((run / "run.json").read_text())["data"]["warnings"][0], *facts)
    check_line((run / "report.html").read_text(), *facts)
