"""Bad annotations: each flaw has one clear error that names the file and the entry, and leaves no manifest."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from coco_sets import box, edit, json_file, make_set
from messages import check_line, check_text, raises

from paceline._utils.errors import DataError
from paceline.data.formats.coco import load_json
from paceline.data.index.box_split import open_boxes
from paceline.data.index.manifest import find_manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.data.prepare.box_source import BoxRequest, prepare_boxes
from paceline.tools.report.prepare_notes import prepare_lines


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_set(tmp_path / "set")


def put(key: str, place: int, field: str, value):
    return lambda record: record[key][place].__setitem__(field, value)


def without(key: str, place: int, field: str):
    return lambda record: record[key][place].pop(field)


# The change to the training JSON -> what the message says.
FLAWS = {
    "no images": (lambda record: record.pop("images"), "not a COCO annotation file, because it has no 'images'"),
    "images no list": (lambda record: record.update(images={}), "'images' is not a list"),
    "no categories": (lambda record: record.update(categories=[]), "no categories"),
    "no image": (lambda record: record.update(images=[]), "no images in the file"),
    "no object": (lambda record: record.update(annotations=[]), "no usable object"),
    "entry no object": (lambda record: record["images"].append(3), "entry 3 of 'images' must be an object"),
    "unknown image": (put("annotations", 1, "image_id", 99), "annotation 1 belongs to image id 99"),
    "unknown category": (put("annotations", 1, "category_id", 9), "annotation 1 .id 101. has category_id 9"),
    "image id twice": (put("images", 1, "id", 1), "image id 1 occurs 2 times .entries 0 and 1"),
    "category id twice": (put("categories", 1, "id", 7), "category id 7 occurs 2 times"),
    "name twice": (put("categories", 1, "name", "cat"), "two categories are named 'cat'"),
    "no name": (without("categories", 0, "name"), "category 0 .id 7. has no name"),
    "no bbox": (without("annotations", 2, "bbox"), "annotation 2 .id 102.: 'bbox' is missing"),
    "short bbox": (put("annotations", 2, "bbox", [1, 2, 3]), r"annotation 2 .id 102.: 'bbox' is '\[1, 2, 3\]'"),
    "words in bbox": (put("annotations", 0, "bbox", [1, 2, 3, "4 px"]), "annotation 0 .*'bbox' is"),
    "no image_id": (without("annotations", 3, "image_id"), "annotation 3 .*'image_id' is missing"),
    "word as image_id": (put("annotations", 0, "image_id", "one"), "'image_id' is 'one'; expected an integer"),
    "fraction as category": (put("annotations", 0, "category_id", 3.5), "'category_id' is '3.5'"),
    "id too large": (put("images", 0, "id", 2**70), "'id' is '1180591620717411303424'"),
    "word as area": (put("annotations", 0, "area", "big"), "'area' is 'big'"),
    "no file name": (without("images", 2, "file_name"), "image 2 .*'file_name' is missing"),
    "path out": (put("images", 0, "file_name", "../../secret.jpg"), "image 0 .*is outside the folder"),
    "absolute path": (put("images", 0, "file_name", "/etc/passwd"), "image 0 .*is outside the folder"),
    "word as height": (put("images", 0, "height", "tall"), "'height' is 'tall'"),
    "negative width": (put("images", 1, "width", -4), "'width' is '-4'"),
    "other size": (put("images", 1, "width", 41), r"2\.jpg: has 40 x 30 pixels, but .*has 41 x 30.* 1 of 3 images"),
    "broken mask": (
        put("annotations", 0, "segmentation", {"counts": [3], "size": [30, 40]}),
        "annotation id 100 .*covers 3",
    ),
    "unlike names": (put("categories", 0, "name", "cow"), "category id 7 is 'cow' in .*train2017.json, but 'cat' in"),
    "unlike ids": (put("categories", 1, "id", 4), "category_id 3, but this category is not listed"),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flaw_of_the_json_is_named_with_file_and_entry(root, flaw):
    change, reason = FLAWS[flaw]
    edit(root, change)
    for prepare in (prepare_boxes, lambda root: prepare_if_needed(root, kind="boxes")):
        with pytest.raises(DataError, match=reason) as caught:
            prepare(root)
        assert "train2017" in str(caught.value)
        assert find_manifest(root) is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "not valid JSON"),
        (b"\xff\xfe\x00", "valid JSON"),
        (b"[]", "a list"),
        (b"", "valid JSON"),
        (b"[" * 100_000, "valid JSON"),
    ],
)
def test_a_file_that_is_no_coco_json_is_named(root, content, reason):
    json_file(root, "train").write_bytes(content)
    with pytest.raises(DataError, match=rf"instances_train2017\.json: .*{reason}"):
        prepare_boxes(root)


def test_a_missing_image_is_named_with_the_way_to_go_on_without(root):
    os.remove(root / "train2017" / "2.jpg")
    with pytest.raises(DataError, match=r"train2017/2\.jpg: not found") as caught:
        prepare_boxes(root)
    assert "paceline prepare coco --data" in str(caught.value) and "--on-missing skip" in str(caught.value)
    train = prepare_boxes(root, BoxRequest(on_missing="skip")).splits["train"]
    assert train.images == 2 and train.boxes is not None
    assert train.boxes.left_out_objects == 2 and train.boxes.objects == 2
    assert [(entry.path, entry.reason) for entry in train.unreadable] == [("train2017/2.jpg", "not found")]


def test_all_images_missing_is_a_wrong_folder_whatever_is_asked(root):
    for split in ("train", "val"):
        for path in (root / f"{split}2017").iterdir():
            path.unlink()
    with raises(DataError, "train2017/1.jpg", "5 images", "--images-dir"):
        prepare_boxes(root, BoxRequest(on_missing="skip"))


def test_a_split_without_any_usable_image_is_refused(root):
    for path in (root / "val2017").iterdir():
        path.unlink()
    with raises(DataError, "instances_val2017.json", "2 images"):
        prepare_boxes(root, BoxRequest(on_missing="skip"))


def test_a_broken_image_is_named_and_may_be_left_out(root):
    (root / "train2017" / "1.jpg").write_text("text")
    with raises(DataError, "train2017/1.jpg", "('text')") as caught:
        prepare_boxes(root)
    assert "paceline prepare coco" in str(caught.value) and "--on-unreadable skip" in str(caught.value)
    train = prepare_boxes(root, BoxRequest(on_unreadable="skip")).splits["train"]
    assert train.images == 2 and "('text')" in train.unreadable[0].reason


def test_a_class_in_val_that_train_does_not_know_is_named(root):
    edit(root, lambda record: record["categories"].append({"id": 9, "name": "emu"}), "val")
    assert prepare_boxes(root).classes == ("dog", "cat", "emu")  # only named there: no object has it
    edit(root, lambda record: record["annotations"].append(box(1, 9, 1, 1, 5, 5, id=7)), "val")
    with raises(DataError, "instances_val2017.json", "'emu'", "--on-class-mismatch warn"):
        prepare_boxes(root)
    manifest = prepare_boxes(root, BoxRequest(on_class_mismatch="warn"))
    assert manifest.classes == ("dog", "cat", "emu") and manifest.splits["val"].per_class == (1, 1, 1)


def test_a_class_that_train_names_and_never_shows_is_a_warning(root):
    edit(root, lambda record: record["categories"].append({"id": 9, "name": "emu"}))
    edit(root, lambda record: record["categories"].append({"id": 9, "name": "emu"}), "val")
    edit(root, lambda record: record["annotations"].append(box(1, 9, 1, 1, 5, 5, id=7)), "val")
    lines = list(prepare_lines(prepare_boxes(root)))
    check_line(lines, "warning", "1 of 3", "train", "emu")


def test_one_name_under_two_ids_is_refused(root):
    edit(root, lambda record: record["categories"].append({"id": 9, "name": "emu"}))
    edit(root, lambda record: record["categories"].append({"id": 10, "name": "emu"}), "val")
    with raises(DataError, "'emu'", "id 9", "instances_train2017.json", "10", "instances_val2017.json"):
        prepare_boxes(root)


def test_no_val_asks_for_one_or_for_a_share(root):
    os.remove(json_file(root, "val"))
    with raises(DataError, "validation", "--val-fraction 0.2"):
        prepare_boxes(root)
    assert find_manifest(root) is None
    manifest = prepare_boxes(root, BoxRequest(val_fraction=0.4))
    assert manifest.splits["train"].images + manifest.splits["val"].images == 3


def test_a_folder_without_annotations_says_what_is_wanted(tmp_path, root):
    (tmp_path / "empty").mkdir()
    with raises(DataError, "annotations/instances_train2017.json", "--annotations FILE"):
        prepare_boxes(tmp_path / "empty")
    with pytest.raises(DataError, match=f"Use  --data {re.escape(str(root))}"):
        prepare_boxes(tmp_path)
    with raises(DataError, "nowhere", "--data"):
        prepare_boxes(tmp_path / "nowhere")
    with raises(DataError, "instances_train2017.json", "file", "--data"):
        prepare_boxes(json_file(root, "train"))


def test_several_sets_or_a_missing_folder_of_images_are_named(root):
    os.rename(root / "train2017", root / "photos")
    with raises(DataError, "instances_train2017.json", "train2017", "images/train2017", "--images-dir DIR"):
        prepare_boxes(root)
    os.rename(root / "photos", root / "train2017")
    for split in ("train", "val"):
        os.rename(json_file(root, split), root / "annotations" / f"instances_{split}A.json")
        (root / "annotations" / f"instances_{split}B.json").write_text("{}")
    with pytest.raises(DataError, match=r"\(instances_trainA\.json, instances_trainB\.json\)"):
        prepare_boxes(root)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"images_dir": "x"}, "--images-dir and --annotations must be set together"),
        ({"images_dir": "x", "annotations": "y", "val_images_dir": "z"}, "--val-images-dir: requires --val-annotations"),
        ({"images_dir": "x", "annotations": "y"}, "x ... folder"),
    ],
)
def test_half_a_request_is_refused(flags, reason):
    with raises(DataError, reason):
        prepare_boxes(None, BoxRequest(**flags))


def test_annotations_in_a_zip_unpack_to_no_more_than_annotations_do(tmp_path) -> None:
    bomb = tmp_path / "annotations.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("instances_train2017.json", "w") as file:
        file.write(b'{"images": [')
        for _ in range(64):
            file.write(b" " * 2**20)
        file.write(b"]}")
    with raises(DataError, "annotations.zip", "67,108,878", "--annotations"):
        load_json(bomb, "train")
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:  # a small one may be as repetitive as it likes
        archive.writestr("instances_train2017.json", '{"images": [' + " " * 2**20 + "]}")
    assert load_json(bomb, "train")[1] == {"images": []}


def test_a_draw_without_objects_names_another_seed_and_a_set_without_any_does_not(root):
    os.remove(json_file(root, "val"))
    edit(root, lambda record: record.update(annotations=[box(1, 7, 1, 2, 10, 12, id=1)]))
    with raises(DataError, "instances_train2017.json", "1 images", "--split-seed 1"):
        prepare_boxes(root, BoxRequest(val_fraction=0.4))
    edit(root, lambda record: record.update(annotations=[]))
    with raises(DataError, "instances_train2017.json", "2 images", "annotate"):
        prepare_boxes(root, BoxRequest(val_fraction=0.4))


def test_other_jsons_and_encodings_are_called_what_they_are(root):
    edit(root, lambda record: record["annotations"][0].update(segments_info=[]))
    with pytest.raises(DataError, match=r"train2017\.json: a panoptic JSON"):
        prepare_boxes(root)
    json_file(root, "train").write_bytes(b'{"images": "K\xe4fer"}')
    with raises(DataError, "instances_train2017.json", "UTF-8", "0xe4", "13", "iconv -f latin1 -t utf-8"):
        prepare_boxes(root)


def test_numbers_as_texts_are_numbers_and_ignore_is_counted(root):
    found = open_boxes(prepare_boxes(root), "train")

    def spell(record):
        for entry in (*record["images"], *record["annotations"], *record["categories"]):
            for key, value in entry.items():
                entry[key] = str(value) if isinstance(value, int | float) else value
        for entry in record["annotations"]:
            entry["bbox"] = list(map(str, entry["bbox"]))
        record["annotations"][1]["ignore"] = "1"
        record["annotations"][2]["ignore"] = "0"

    manifest = prepare_boxes(edit(root, spell))
    again = open_boxes(manifest, "train")
    for name in ("boxes", "classes", "crowd", "areas", "annotation_ids"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
    check_text(manifest.notes[0], "9 of 'id'", "3 of 'height'")
    check_text(manifest.notes[1], "1 objects", "'ignore'")
