"""Boxes come back from the index as they were annotated, under classes 1..K, with their masks."""

from __future__ import annotations

import json

import numpy as np
import pytest
from coco_sets import make_set
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from messages import raises
from pycocotools.coco import COCO
from tiny_runs import make_photos

from paceline._utils.errors import DataError
from paceline.data.index.box_split import BOX_ARRAYS, BoxSplit, make_class_table, map_category_ids, open_boxes
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.data.prepare.box_source import prepare_boxes
from paceline.data.prepare.class_source import prepare_folder
from paceline.models.metrics.coco import GroundTruth


@pytest.mark.parametrize("name", ["coco_mini", "facemask3", "bccd3"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_every_number_of_a_real_set_is_the_json_s(shared_data, name, split):
    manifest = Manifest.load(prepare_if_needed(shared_data / name, kind="boxes"))
    found = open_boxes(manifest, split)
    record = json.loads((shared_data / name / "annotations" / f"instances_{split}2017.json").read_text())
    objects: dict[int, list] = {image["id"]: [] for image in record["images"]}
    for entry in record["annotations"]:
        objects[entry["image_id"]].append(entry)
    names = {entry["id"]: entry["name"] for entry in record["categories"]}
    assert found.image_ids.tolist() == list(objects) and len(found) == len(record["images"])
    assert found.num_classes == len(names) and not found.index.labels.any()
    for i, image in enumerate(record["images"]):
        here, wanted = found.objects(i), objects[image["id"]]
        assert (found.heights[i], found.widths[i]) == (image["height"], image["width"])
        assert found.index.relative_name(i) == f"{split}2017/{image['file_name']}".encode()
        assert here.boxes.tolist() == [[float(side) for side in entry["bbox"]] for entry in wanted]
        assert [found.names[k - 1] for k in here.classes] == [names[entry["category_id"]] for entry in wanted]
        assert found.category_ids[here.classes - 1].tolist() == [entry["category_id"] for entry in wanted]
        assert here.crowd.tolist() == [entry["iscrowd"] for entry in wanted]
        assert here.areas.tolist() == [entry["area"] for entry in wanted]
        assert here.annotation_ids.tolist() == [entry["id"] for entry in wanted]
        assert here.usable.all() and found.object_starts[i] == here.first


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_masks_of_a_real_set_decode_to_what_pycocotools_makes_of_the_json(shared_data, capsys):
    root = shared_data / "coco_mini"
    found = open_boxes(Manifest.load(prepare_if_needed(root, kind="boxes")), "val")
    official = COCO(str(root / "annotations" / "instances_val2017.json"))
    capsys.readouterr()
    crowds = np.flatnonzero(found.crowd)
    assert len(crowds) == 3
    image_of = np.repeat(np.arange(len(found)), np.diff(found.object_starts))
    for row in range(len(found.classes)):
        annotation = official.anns[int(found.annotation_ids[row])]
        if row in crowds:
            values = np.repeat(np.arange(len(found.rle(row))) % 2, found.rle(row))
            i = image_of[row]
            mask = values.reshape(found.widths[i], found.heights[i]).T
            assert (mask == official.annToMask(annotation)).all() and found.polygons(row) == []
        else:
            wanted = [np.reshape(polygon, (-1, 2)) for polygon in annotation["segmentation"]]
            assert len(found.rle(row)) == 0 and len(wanted) == len(found.polygons(row))
            assert all((a == b).all() for a, b in zip(found.polygons(row), wanted))


def test_the_arrays_are_mapped_not_read_and_have_the_dtypes_of_the_table(tmp_path):
    found = open_boxes(prepare_boxes(make_set(tmp_path / "set")), "train")
    for name, kind in BOX_ARRAYS.items():
        array = getattr(found, name)
        assert array.dtype == kind and (array.size == 0 or isinstance(_memory(array), np.memmap)), name


def _memory(array: np.ndarray) -> object:
    """What an array's bytes belong to."""
    while isinstance(array.base, np.ndarray) and not isinstance(array.base, np.memmap):
        array = array.base
    return array.base


def test_objects_lie_with_their_image_and_an_image_may_have_none(tmp_path):
    found = open_boxes(prepare_boxes(make_set(tmp_path / "set")), "train")
    assert found.names == ("dog", "cat") and found.category_ids.tolist() == [3, 7]
    assert found.object_starts.tolist() == [0, 2, 4, 4]
    assert found.objects(0).boxes.tolist() == [[1, 2, 10, 12], [5.5, 6, 7, 8]]
    assert found.objects(0).classes.tolist() == [2, 1] and found.objects(0).annotation_ids.tolist() == [100, 102]
    empty = found.objects(2)
    assert empty.boxes.shape == (0, 4) and empty.first == 4
    assert found.polygons(0) == [] and found.rle(0).size == 0


def test_the_truth_is_what_the_scorer_takes(tmp_path):
    found: BoxSplit = open_boxes(prepare_boxes(make_set(tmp_path / "set")), "val")
    truth = GroundTruth(**found.truth_arrays(), num_classes=found.num_classes)
    assert truth.starts[-1] == len(truth.boxes) == 2 and truth.image_ids.tolist() == [1, 2]


@examples(50)
@given(st.sets(st.integers(-(2**40), 2**40), min_size=1, max_size=30), st.data())
def test_ids_to_classes_and_back_for_any_ids(ids, data):
    names = {category: f"name {category}" for category in data.draw(st.permutations(sorted(ids)))}
    table, order = make_class_table(names)
    asked = np.array(data.draw(st.lists(st.integers(-(2**40), 2**40) | st.sampled_from(sorted(ids)))), np.int64)
    classes = map_category_ids(table, asked)
    for category, k in zip(asked.tolist(), classes.tolist()):
        assert (order[k - 1] == names[category]) if category in names else k == 0
    known = classes > 0
    assert table[classes[known] - 1].tolist() == asked[known].tolist()


def test_class_folders_are_no_boxes_and_a_missing_array_is_named(tmp_path):
    with raises(DataError, "class folders", "COCO", "YOLO"):
        open_boxes(prepare_folder(make_photos(tmp_path / "photos")), "train")
    manifest = prepare_boxes(make_set(tmp_path / "set"))
    del manifest.splits["train"].arrays["usable"]
    with raises(DataError, "usable", "train", "paceline prepare coco --data"):
        open_boxes(manifest, "train")
    with pytest.raises(DataError, match="split 'test'"):
        open_boxes(manifest, "test")
