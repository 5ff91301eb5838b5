"""Preparing COCO-format sets: layouts, counts, hashes, freshness, and what is decoded again."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from coco_sets import HEIGHT, WIDTH, box, edit, json_file, make_set, train_document
from messages import check_text, raises
from photo_folders import make_photos, paint

from paceline._utils.errors import DataError
from paceline._utils.reporter import Lines
from paceline.data.index.box_split import open_boxes
from paceline.data.index.manifest import BoxCounts, Manifest, cached_manifest_folder, repeat_command
from paceline.data.index.staleness import find_stale_file
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.data.prepare.box_source import BoxRequest, prepare_boxes
from paceline.data.prepare.class_source import prepare_folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_set(tmp_path / "set")


def counts(manifest: Manifest, split: str = "train") -> BoxCounts:
    found = manifest.splits[split].boxes
    assert found is not None
    return found


def test_a_manifest_is_read_back_as_it_was_written(root):
    manifest = prepare_boxes(root)
    again = Manifest.load(root)
    assert again == manifest and again.content_hash == manifest.content_hash
    assert manifest.kind == "boxes" and manifest.classes == ("dog", "cat") and manifest.category_ids == (3, 7)
    assert manifest.splits["train"].per_class == (2, 2) and manifest.splits["train"].images == 3


def test_every_oddity_is_kept_counted_and_out_of_training_where_it_must_be(root):
    odd = [
        box(5, 3, 5, 5, 0, 4),  # no width
        box(5, 3, 5, 5, 4, -1),  # negative height
        box(5, 3, 1, 1, float("inf"), 4),
        box(5, 3, WIDTH, 1, 5, 5),  # begins where the image ends
        box(5, 3, -9, -9, 5, 5),
        box(5, 3, WIDTH - 2, 1, 5, 5),  # partly outside
        box(5, 3, 0, 0, WIDTH + 0.01, HEIGHT),  # rounding
        box(5, 3, 2, 2, 5, 5),
        box(5, 3, 2, 2, 5, 5),  # twice
        box(5, 7, 2, 2, 5, 5),  # of another class: no duplicate
        box(5, 3, 0, 0, 20, 20, iscrowd=1),
    ]
    edit(root, lambda record: record["annotations"].extend({"id": 900 + i, **entry} for i, entry in enumerate(odd)))
    paint(root / "train2017" / "new.jpg")
    manifest = prepare_boxes(root)
    found = counts(manifest)
    assert (found.objects, found.crowd, found.degenerate, found.outside) == (15, 1, 3, 2)
    assert (found.partly_outside, found.duplicates, found.empty_images, found.unlisted_images) == (1, 1, 0, 1)
    last = open_boxes(manifest, "train").objects(2)
    assert last.usable.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    assert last.boxes[2].tolist() == [0, 0, 0, 0] and last.boxes[1].tolist() == [5, 5, 4, -1]
    assert manifest.splits["train"].per_class == (2 + 9, 3)  # crowds are no objects to be found


def test_ids_with_holes_and_zero_become_classes_in_order(root):
    for split in ("train", "val"):

        def renumber(record):
            for entry in record["categories"]:
                entry["id"] = {3: 0, 7: 900}[entry["id"]]
            for entry in record["annotations"]:
                entry["category_id"] = {3: 0, 7: 900}[entry["category_id"]]

        edit(root, renumber, split)
    manifest = prepare_boxes(root)
    assert manifest.category_ids == (0, 900) and manifest.classes == ("dog", "cat")
    assert open_boxes(manifest, "train").objects(0).classes.tolist() == [2, 1]


def test_what_a_json_may_leave_out_is_filled_in_and_noted(root):
    def strip(record):
        for entry in record["annotations"]:
            for name in ("area", "iscrowd", "id"):
                del entry[name]
        for entry in record["images"]:
            del entry["height"], entry["width"]

    edit(root, strip)
    manifest = prepare_boxes(root)
    found = open_boxes(manifest, "train")
    assert found.areas.tolist() == (found.boxes[:, 2] * found.boxes[:, 3]).tolist() and not found.crowd.any()
    assert sorted(found.annotation_ids) == [1, 2, 3, 4] and found.heights.tolist() == [HEIGHT] * 3
    assert len(manifest.notes) == 2 and check_text(manifest.notes[0], "'area'", "mask (0)", "box (4)")


def roboflow(root: Path) -> None:
    for split, folder in (("train", "train"), ("val", "valid")):
        os.rename(root / f"{split}2017", root / folder)
        os.rename(json_file(root, split), root / folder / "_annotations.coco.json")


def other_year(root: Path) -> None:
    (root / "images").mkdir()
    for split in ("train", "val"):
        os.rename(root / f"{split}2017", root / "images" / f"{split}2014")
        os.rename(json_file(root, split), root / "annotations" / f"instances_{split}2014.json")
    (root / "annotations" / "captions_train2014.json").write_text("{}")


def no_year(root: Path) -> None:
    for split in ("train", "val"):
        os.rename(root / f"{split}2017", root / split)
        os.rename(json_file(root, split), root / "annotations" / f"{split}.json")


@pytest.mark.parametrize("layout", [roboflow, other_year, no_year])
def test_other_layouts_are_found_by_themselves(root, layout):
    layout(root)
    manifest = prepare_boxes(root)
    assert [split.images for split in manifest.splits.values()] == [3, 2] and find_stale_file(manifest) is None
    assert open_boxes(manifest, "train").index.read(0)


def test_the_parent_category_of_roboflow_is_no_class(root):
    for split in ("train", "val"):

        def add_parent(record):
            for entry in record["categories"]:
                entry["supercategory"] = "animals"
            record["categories"].insert(0, {"id": 0, "name": "animals", "supercategory": "none"})

        edit(root, add_parent, split)
    manifest = prepare_boxes(root)
    assert manifest.classes == ("dog", "cat") and check_text(manifest.notes[0], "0 (animals)", "parent")


def test_files_named_one_by_one_go_to_the_cache_and_are_trained_on_from_there(root):
    request = BoxRequest(
        "coco", str(root / "train2017"), str(json_file(root, "train")), str(root / "val2017"), str(json_file(root, "val"))
    )
    manifest = prepare_boxes(None, request)
    assert cached_manifest_folder(root) in manifest.folder.parents and not (root / "manifest.json").exists()
    assert prepare_if_needed(manifest.folder, kind="boxes", reporter=Lines(pytest.fail)) == manifest.folder
    assert f"--images-dir {root / 'train2017'} --annotations" in repeat_command(manifest)
    edit(root, lambda record: record["annotations"].pop())
    with raises(DataError, "instances_train2017.json", "annotations changed", "--val-annotations"):
        prepare_if_needed(manifest.folder, kind="boxes", reporter=Lines(pytest.fail))


def test_a_set_is_prepared_once_into_the_cache_and_again_when_its_annotations_change(root):
    said: list[str] = []
    place = prepare_if_needed(root, kind="boxes", reporter=Lines(said.append))
    assert place == cached_manifest_folder(root) and "5 images" in said[0]
    assert (
        prepare_if_needed(root, kind="boxes", reporter=Lines(pytest.fail))
        == place
        == prepare_if_needed(place, kind="boxes", reporter=Lines(pytest.fail))
    )
    before = Manifest.load(place)
    edit(root, lambda record: record["annotations"][0]["bbox"].__setitem__(0, 2))
    said.clear()
    assert prepare_if_needed(root, kind="boxes", reporter=Lines(said.append)) == place and "annotations changed" in said[0]
    after = Manifest.load(place)
    assert after.content_hash != before.content_hash
    assert after.splits["val"].content_hash == before.splits["val"].content_hash


@pytest.mark.parametrize("field", ["category_id", "iscrowd", "area", "bbox", "segmentation"])
def test_the_hash_speaks_of_every_annotation(root, field):
    before = prepare_boxes(root).content_hash
    new = {"category_id": 3, "iscrowd": 1, "area": 2.0, "bbox": [1, 2, 10, 11], "segmentation": [[0, 0, 4, 0, 4, 4]]}[field]
    edit(root, lambda record: record["annotations"][0].__setitem__(field, new))
    assert prepare_boxes(root).content_hash != before


def test_a_large_set_is_not_prepared_without_being_asked(root):
    with raises(DataError, "5 images", "not prepared", f"paceline prepare coco --data {root}"):
        prepare_if_needed(root, kind="boxes", reporter=Lines(pytest.fail), small=4)
    prepare_boxes(root)
    assert prepare_if_needed(root, kind="boxes", reporter=Lines(pytest.fail), small=4) == root


def test_a_copy_with_new_times_is_fresh_and_a_changed_image_is_not(root, tmp_path):
    prepare_boxes(root)
    shutil.copytree(root, tmp_path / "copy", copy_function=shutil.copyfile)
    os.utime(json_file(tmp_path / "copy", "train"), ns=(1, 1))
    manifest = Manifest.load(tmp_path / "copy")
    assert find_stale_file(manifest) is None
    with open(tmp_path / "copy" / "train2017" / "2.jpg", "ab") as file:
        file.write(b"x")
    assert "2.jpg: " in str(find_stale_file(manifest))
    os.remove(json_file(tmp_path / "copy", "val"))
    os.remove(tmp_path / "copy" / "train2017" / "2.jpg")
    assert find_stale_file(manifest) is not None


def test_an_image_that_was_missing_and_came_back_makes_the_manifest_stale(root):
    data = (root / "train2017" / "2.jpg").read_bytes()
    os.remove(root / "train2017" / "2.jpg")
    place = prepare_boxes(root, BoxRequest(on_missing="skip"), out=cached_manifest_folder(root)).folder
    assert prepare_if_needed(root, kind="boxes", reporter=Lines(pytest.fail)) == place
    (root / "train2017" / "2.jpg").write_bytes(data)
    prepare_if_needed(root, kind="boxes")
    assert Manifest.load(place).splits["train"].images == 3


def test_images_that_did_not_change_are_not_decoded_again(root, verified):
    prepare_boxes(root)
    verified.clear()
    edit(root, lambda record: record["annotations"].pop())
    prepare_boxes(root)
    assert verified == []
    paint(root / "val2017" / "2.jpg", size=(WIDTH, HEIGHT), quality=30)
    prepare_boxes(root)
    assert verified == ["2.jpg"]


def test_pictures_in_both_splits_and_rotated_ones_are_noted(root):
    from PIL import Image

    shutil.copy(root / "train2017" / "1.jpg", root / "val2017" / "2.jpg")
    exif = Image.Exif()
    exif[0x0112] = 3
    paint(root / "train2017" / "5.jpg", size=(WIDTH, HEIGHT), exif=exif)
    manifest = prepare_boxes(root)
    assert manifest.splits["train"].rotated == 1
    check_text(manifest.notes[0], "1 image", "EXIF", "5.jpg", "check.html")
    check_text(manifest.notes[1], "1 image", "val", "train", "bytes", "2.jpg")


def test_a_share_for_val_is_recorded_and_kept_when_the_set_grows(root):
    def grow(record):
        for i in range(10, 50):
            paint(root / "train2017" / f"{i}.jpg", size=(WIDTH, HEIGHT))
            record["images"].append({"id": i, "file_name": f"{i}.jpg", "width": WIDTH, "height": HEIGHT})
            record["annotations"].append({"id": 1000 + i, **box(i, 7, 1, 1, 5, 5)})

    os.remove(json_file(root, "val"))
    shutil.rmtree(root / "val2017")
    edit(root, grow)
    request = BoxRequest(val_fraction=0.3, split_seed=5)
    manifest = prepare_boxes(root, request, out=cached_manifest_folder(root))
    in_val = set(open_boxes(manifest, "val").image_ids)
    check_text(manifest.notes, f"{len(in_val)} of 43", "val", "--split-seed 6")
    assert 3 < len(in_val) < 25 and not in_val & set(open_boxes(manifest, "train").image_ids)
    assert Manifest.load(manifest.folder).request == {**dataclasses.asdict(request), "layout": "coco"}
    edit(root, lambda record: record["annotations"].pop())
    assert set(open_boxes(Manifest.load(prepare_if_needed(root, kind="boxes")), "val").image_ids) == in_val


def test_each_kind_passes_over_a_manifest_of_the_other(root, tmp_path):
    photos = make_photos(tmp_path / "photos")
    prepare_folder(photos)
    with raises(DataError, "boxes", "paceline train classify-demo --data"):
        prepare_if_needed(photos, kind="boxes", reporter=Lines(pytest.fail))
    prepare_boxes(root)
    with raises(DataError, "class folders", "paceline train ssd-finetune --data"):
        prepare_if_needed(root, reporter=Lines(pytest.fail))


def test_objects_are_read_the_same_whatever_their_order_in_the_file(root):
    first = open_boxes(prepare_boxes(root), "train")
    boxes = {int(i): first.objects(row).boxes.tolist() for row, i in enumerate(first.image_ids)}
    order = np.argsort([entry["image_id"] for entry in train_document()["annotations"]], kind="stable")
    edit(
        root,
        lambda record: record.update(annotations=[record["annotations"][i] for i in order], images=record["images"][::-1]),
    )
    second = open_boxes(prepare_boxes(root), "train")
    assert {int(i): second.objects(row).boxes.tolist() for row, i in enumerate(second.image_ids)} == boxes
    assert second.image_ids.tolist() == first.image_ids.tolist()[::-1]
