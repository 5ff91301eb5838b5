"""Masks that mark nothing of their object are counted and taken as none; beside pycocotools, which rasterizes every one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coco_sets import HEIGHT, WIDTH, box, document, make_set, write_json
from example_counts import examples
from hypothesis import example, given
from hypothesis import strategies as st
from instance_sets import json_file, make_instances
from messages import check_line, check_lines
from pycocotools import mask as official

from paceline.data.index.box_split import has_masks, open_boxes, read_object_masks
from paceline.data.prepare.box_arrays import find_useless_masks, mask_arrays, remove_masks
from paceline.data.prepare.box_source import prepare_boxes
from paceline.tools.report.prepare_notes import prepare_lines

SPOILT: dict[str, Callable[[dict[str, Any]], Any]] = {
    "outside": lambda entry: [[number + 5000 for number in entry["segmentation"][0]]],
    "left of it": lambda entry: [[number - 5000 for number in entry["segmentation"][0]]],
    "a point": lambda entry: [entry["bbox"][:2] * 4],
    "a line": lambda entry: [[0, 0, 20, 20, 40, 40]],
    "fractions": lambda entry: [[number / 1000 for number in entry["segmentation"][0]]],
    "no run": lambda entry: {"counts": [60 * 80], "size": [80, 60] if entry["image_id"] % 2 else [60, 80]},
}


def spoil(root: Path, mask: Callable[[dict[str, Any]], Any], every: int = 1) -> int:
    """Give each `every`-th object of train another mask -> how many have one now."""
    record = json.loads(json_file(root, "train").read_text())
    chosen = [entry for entry in record["annotations"] if not entry["iscrowd"]][::every]
    for entry in chosen:
        entry["segmentation"] = mask(entry)
    json_file(root, "train").write_text(json.dumps(record))
    return len(chosen)


@pytest.mark.parametrize("kind", SPOILT)
@pytest.mark.parametrize("every", [1, 2])
def test_masks_that_mark_nothing_are_counted_and_taken_as_none(tmp_path, kind, every):
    root = make_instances(tmp_path / "set", train=8, val=2)
    spoilt = spoil(root, SPOILT[kind], every)
    manifest = prepare_boxes(root)
    lines = [line for line in prepare_lines(manifest) if line.startswith("warning: Masks")]
    assert check_lines(lines, ("masks", spoilt, "train", "box"))
    assert lines[0].removeprefix("warning: ") in (manifest.folder / "check.html").read_text()
    split = open_boxes(manifest, "train")
    known = read_object_masks(split, np.arange(len(split))).known
    assert np.count_nonzero(~known & (split.crowd == 0)) == spoilt and known[split.crowd == 1].all()


def test_masks_of_another_object_and_missing_ones_are_counted(tmp_path):
    root = make_instances(tmp_path / "set", train=8, val=2)
    size = {False: (60, 80), True: (80, 60)}

    def far(entry: dict[str, Any]) -> Any:
        height, width = size[entry["image_id"] % 2 == 1]
        entry["bbox"] = [0, 0, 10, 10]
        return [[width - 20, height - 20, width, height - 20, width, height]]

    moved = spoil(root, far, 2)
    check_line(prepare_lines(prepare_boxes(root)), "masks", "box", moved, "train")
    root = make_instances(tmp_path / "other", train=8, val=2)
    lacking = spoil(root, lambda entry: [], 3)
    said = list(prepare_lines(prepare_boxes(root)))
    check_line(said, "note", "mask", lacking, "train")


def test_good_masks_and_sets_of_boxes_are_not_noted(tmp_path):
    for root in (make_instances(tmp_path / "masks", train=8, val=4), make_set(tmp_path / "boxes")):
        assert not [line for line in prepare_lines(prepare_boxes(root)) if "ask" in line and "of masks" in line]


def test_a_set_of_which_no_mask_marks_anything_is_one_of_boxes(tmp_path):
    root = make_set(tmp_path / "set")
    outline = [[500, 500, 510, 500, 510, 510]]
    write_json(root, "train", document([1, 2, 5], [box(1, 7, 1, 2, 10, 12, segmentation=outline), box(2, 3, 0, 0, 5, 5)]))
    assert not has_masks(open_boxes(prepare_boxes(root), "train"))


@examples(300)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.3, 1.0, 3.0, 30.0, 1e4]))
@example(4755, 3.0)  # encloses 5 square pixels between two columns
def test_masks_without_a_pixel_are_those_that_pycocotools_finds_empty(seed, reach):
    random = np.random.default_rng(seed)
    given_masks: list[Any] = []
    for _ in range(6):
        middle = random.uniform(-5, 45, 2)
        outlines = [(middle + random.normal(0, reach, (random.integers(3, 6), 2))) for _ in range(random.integers(1, 3))]
        given_masks.append([outline.reshape(-1).tolist() for outline in outlines])
    sides = np.full(6, HEIGHT), np.full(6, WIDTH)
    masks, *_ = mask_arrays(given_masks, *sides, lambda row, reason: ValueError(reason))
    boxes = np.tile([0.0, 0.0, WIDTH, HEIGHT], (6, 1))
    empty, beside = find_useless_masks(masks, boxes, *sides)
    drawn = [official.merge(official.frPyObjects(one, HEIGHT, WIDTH)) for one in given_masks]
    assert empty.tolist() == [official.area(one) == 0 for one in drawn] and not (beside & empty).any()
    kept = remove_masks(masks, empty)
    again = mask_arrays(
        [None if no else one for no, one in zip(empty, given_masks)], *sides, lambda row, reason: ValueError()
    )
    assert all(np.array_equal(kept[name], again[0][name]) for name in kept)
