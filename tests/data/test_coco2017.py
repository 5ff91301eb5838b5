"""What is COCO 2017, the whole or a part, and what is ImageNet: told by names, classes and counts, and written down."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from coco_sets import edit, make_set
from messages import check_text, raises

from paceline._utils.errors import DataError
from paceline.data.formats import published_sets
from paceline.data.formats.layouts import read_source
from paceline.data.formats.published_sets import CocoCounts, check_coco2017, part_of_coco2017
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.box_source import BoxRequest, prepare_boxes
from paceline.data.prepare.class_source import prepare_folder

EXPECTED = BoxRequest(expect="coco2017")


@pytest.fixture
def root(tmp_path: Path, monkeypatch) -> Path:
    """A set of cats and dogs that counts as COCO's classes; its third training photo has no object."""
    monkeypatch.setattr(published_sets, "CATEGORIES_SHA256", hashlib.sha256(b"3 dog\n7 cat\n").hexdigest())
    monkeypatch.setattr(published_sets, "COCO2017", CocoCounts(3, 2, 2))
    return make_set(tmp_path / "coco")


def test_the_whole_set_is_no_part(root: Path) -> None:
    manifest = prepare_boxes(root, EXPECTED)
    assert (manifest.expect, manifest.part_of) == ("coco2017", "")
    assert prepare_boxes(root).part_of == ""


@pytest.mark.parametrize("whole", [CocoCounts(4, 2, 2), CocoCounts(3, 3, 2), CocoCounts(3, 2, 3), CocoCounts(2, 2, 2)])
def test_each_count_tells_a_part(root: Path, monkeypatch, whole: CocoCounts) -> None:
    monkeypatch.setattr(published_sets, "COCO2017", whole)
    with raises(DataError, "2 training", "of 3", f"{whole.with_objects} training", "--expect coco2017"):
        prepare_boxes(root, EXPECTED)
    manifest = prepare_boxes(root)
    assert check_text(manifest.part_of, "COCO 2017", f"2 of {whole.with_objects}", f"2 of {whole.val}")
    assert Manifest.load(manifest.folder).part_of == manifest.part_of
    assert manifest.expect == "any"


def test_photos_that_are_left_out_make_a_part(root: Path) -> None:
    (root / "val2017" / "2.jpg").unlink()
    skipping = BoxRequest(on_missing="skip")
    assert "1 of 2 validation images" in prepare_boxes(root, skipping).part_of
    with pytest.raises(DataError, match="and 1 validation images"):
        prepare_boxes(root, replace(skipping, expect="coco2017"))


def test_a_set_that_is_only_scored_on_is_no_part(root: Path, monkeypatch) -> None:
    monkeypatch.setattr(published_sets, "COCO2017", CocoCounts(9, 9, 9))
    splits = read_source(root).splits
    assert part_of_coco2017(splits) and not part_of_coco2017({"val": splits["val"]})


def test_crowds_count_as_objects(root: Path) -> None:
    edit(root, lambda record: [entry.update(iscrowd=1) for entry in record["annotations"]])
    assert part_of_coco2017(read_source(root).splits) == ""


def test_another_data_set_is_no_part_and_not_expected(root: Path) -> None:
    edit(root, lambda record: record["categories"][0].update(name="lynx"))
    splits = read_source(root).splits
    assert part_of_coco2017(splits) == ""
    with pytest.raises(DataError, match="not COCO 2017"):
        check_coco2017(root, splits)
    for split in ("train", "val"):
        (root / "annotations" / f"instances_{split}2017.json").rename(root / "annotations" / f"instances_{split}2014.json")
        (root / f"{split}2017").rename(root / f"{split}2014")
    assert part_of_coco2017(read_source(root).splits) == ""


def test_real_annotations_are_known_as_a_part(shared_data: Path) -> None:
    splits = read_source(shared_data / "coco_mini").splits
    assert check_text(part_of_coco2017(splits), "COCO 2017", "281 of 117,266", "64 of 5,000")


def test_class_folders_of_imagenets_classes_are_a_part(tmp_path: Path) -> None:
    from photo_folders import paint

    for split, wnid in (("train", "n01440764"), ("train", "n01443537"), ("val", "n01440764"), ("val", "n01443537")):
        paint(tmp_path / split / wnid / "1.jpg")
    said = "ImageNet-1k: 2 of 1,000 classes, 2 of 1,281,167 training images, 2 of 50,000 validation images"
    assert prepare_folder(tmp_path).part_of == said
    for split in ("train", "val"):
        (tmp_path / split / "n01443537").rename(tmp_path / split / "cats")
    assert prepare_folder(tmp_path).part_of == ""
