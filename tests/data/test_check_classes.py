"""The check page of class folders, masks on the page of boxes, and what of both is said in the terminal."""

from __future__ import annotations

import re
import shutil
import tarfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from coco_sets import box, edit, make_set
from html_pages import picture_in, read_page
from instance_sets import make_instances
from messages import check_line, check_lines
from orientation import note
from photo_folders import make_photos, paint

from paceline.cli.main import main
from paceline.data.index.box_split import box_index
from paceline.data.prepare.box_source import prepare_boxes
from paceline.data.prepare.class_source import prepare_folder
from paceline.data.prepare.val_split import ValSplit
from paceline.tools.report.check.page import write_check_page
from paceline.tools.report.check.page_parts import make_tile, region_mask


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """12 photos of each class in train, 3 in val, of 48 x 40 pixels."""
    for split, number in (("train", 12), ("val", 3)):
        for label in ("cat", "<b>dog</b>"):
            for i in range(number):
                paint(tmp_path / "photos" / split / label.replace("/", "") / f"{i}.jpg", size=(48, 40))
    return tmp_path / "photos"


def texts(root: Path) -> list[str]:
    return [notice.text for notice in write_check_page(prepare_folder(root))[1].notices]


def test_a_sound_set_has_every_class_with_its_photos_and_no_notice(photos):
    path, page = write_check_page(prepare_folder(photos))
    assert path == photos / "check.html" and path.read_text() == page.html
    assert page.verdict == ("good", "No issues found") and not page.notices
    assert len(read_page(page.html).pictures) == 2 * 8 and "not found" not in page.html
    assert "12 in train, 3 in val" in page.html
    assert "<b>dog" not in page.html and "&lt;b&gt;dog" in page.html


def test_leaks_conflicts_tiny_and_turned_photos_are_counted_and_shown(photos):
    shutil.copy(photos / "train" / "cat" / "0.jpg", photos / "val" / "cat" / "leak.jpg")
    shutil.copy(photos / "train" / "cat" / "1.jpg", photos / "train" / "<b>dog<b>" / "wrong.jpg")
    paint(photos / "train" / "cat" / "tiny.jpg", size=(50, 31))
    paint(photos / "train" / "cat" / "turned.jpg", size=(50, 40), exif=note(6))
    assert check_lines(
        texts(photos),
        ("val", "train", "val: 1"),
        ("train", "one class", "1"),
        ("32 pixels", "1"),
        ("EXIF", "1", "--input.exif apply"),
    )
    html = write_check_page(prepare_folder(photos))[1].html
    for title in ("Images in both splits", "Images in more than one class", "Tiny images", "Images with an EXIF rotation"):
        assert html.count(f"<h2>{title} <small>1") == 1


@pytest.mark.parametrize("split", ["train", "val"])
def test_one_split_alone_has_its_page(photos, split, tmp_path, capsys):
    shutil.copy(photos / split / "cat" / "1.jpg", photos / split / "<b>dog<b>" / "wrong.jpg")
    with tarfile.open(tmp_path / "photos.tar", "w") as archive:
        archive.add(photos / split, split)
    out = tmp_path / "set"
    assert main(["prepare", "tar", f"--{split}", str(tmp_path / "photos.tar"), "--output-dir", str(out)]) == 0
    said = capsys.readouterr().out
    check_line(said, split, "one class", "1")
    assert ("paceline eval RUN --data" in said) == (split == "val")
    html = (out / "check.html").read_text()
    assert f"duplicates in {split}" in html and html.count(f"Image sizes in {split}:") == 1


def test_few_photos_missing_ones_and_uneven_classes_are_noticed(tmp_path):
    for label, count in (("many", 60), ("few", 3), ("one", 1)):
        for number in range(count):
            paint(tmp_path / "set" / label / f"{number}.jpg", size=(40, 40))
    page = write_check_page(prepare_folder(tmp_path / "set", val=ValSplit(0.2)))[1]
    assert check_lines(
        [notice.text for notice in page.notices],
        ("val", "evaluated): one."),
        ("10 images", "train: few, one."),
        ("many has 48", "one has 1"),
    )


def test_a_long_table_says_how_much_of_it_is_folded_away(tmp_path):
    for split in ("train", "val"):
        for label in range(45):
            paint(tmp_path / "set" / split / f"c{label:02}" / "0.jpg", size=(40, 40))
    html = write_check_page(prepare_folder(tmp_path / "set"))[1].html
    assert "<summary>33 more classes</summary>" in html and "40 of 45 classes shown" in html
    assert all(f"</span>c{label:02}</td>" in html for label in range(45))


def test_prepare_says_what_the_page_warns_of_once(photos, tmp_path, capsys):
    shutil.copy(photos / "train" / "cat" / "0.jpg", photos / "val" / "cat" / "leak.jpg")
    assert main(["prepare", "folder", str(photos)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    check_line(said, "warning", "val", "train", "1", "optimistic")
    check_line(said, "check.html", "training")
    root = make_set(tmp_path / "set")
    edit(root, lambda record: record["categories"].append({"id": 9, "name": "emu"}))
    edit(root, lambda record: record["annotations"].append(box(1, 9, 1, 1, 5, 5, id=7)))
    shutil.copy(root / "train2017" / "1.jpg", root / "val2017" / "2.jpg")
    assert main(["prepare", "coco", str(root)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    check_line(said, "warning", "1 of 3", "val", "emu")
    assert said.count("1 image of val") == 1


def test_entries_that_are_no_photos_are_counted_once(tmp_path):
    root = make_photos(tmp_path / "photos")
    shutil.rmtree(root / "val")
    (root / "train" / "notes.txt").write_text("x")
    manifest = prepare_folder(root, val=ValSplit(0.4))
    assert [split.ignored for split in manifest.splits.values()] == [1, 0]


def test_masks_are_filled_where_the_object_is_and_nowhere_else(tmp_path):
    """Beside hotcoco's full masks of polygons and of run lengths, in a picture of the photo's own size."""
    from hotcoco import mask as official

    manifest = prepare_boxes(make_instances(tmp_path / "set", train=8, val=3))
    index = box_index(manifest, "train", "apply")
    checked = set()
    for image in range(len(index)):
        height, width = int(index.heights[image]), int(index.widths[image])
        for row in range(*index.extra["object_starts"][image : image + 2].tolist()):
            painted = region_mask(index, image, row, (0, 0, width, height), (width, height))
            first, last = index.extra["object_polygons"][row : row + 2]
            starts = index.extra["polygon_starts"][first : last + 1]
            polygons = [index.extra["polygon_points"][a:b].tolist() for a, b in pairwise(starts)]
            if polygons:
                wanted = official.decode(official.merge(official.fr_py_objects(polygons, height, width))).astype(bool)
                assert (painted & wanted).sum() / (painted | wanted).sum() > 0.85, "Pillow draws the rim's pixels too"
            else:
                first, last = index.extra["object_rles"][row : row + 2]
                runs = index.extra["rle_counts"][first:last]
                wanted = np.repeat(np.arange(len(runs)) % 2, runs).reshape(width, height).T.astype(bool)
                np.testing.assert_array_equal(painted, wanted)
            checked.add(bool(polygons))
    assert checked == {True, False}


def test_a_tile_around_a_box_shows_the_part_of_the_mask_that_lies_there(tmp_path):
    manifest = prepare_boxes(make_instances(tmp_path / "set", train=8, val=3))
    index = box_index(manifest, "train", "apply")
    without = {
        **index.extra,
        "object_polygons": index.extra["object_polygons"] * 0,
        "object_rles": index.extra["object_rles"] * 0,
    }
    plain = replace(index, extra=without)
    tiles = [
        make_tile(which, 1, ["a", "b"], side=240, focus=[int(index.extra["object_starts"][1])]) for which in (index, plain)
    ]
    filled, plain = (np.asarray(picture_in(tile.photo)).astype(int) for tile in tiles)
    difference = np.abs(filled - plain).sum(axis=2)
    focused = tiles[0].boxes[-1]  # what is pointed at lies above all others
    height, width = difference.shape
    inside = np.zeros((height, width), bool)
    top, left = round(focused.top * height / 100), round(focused.left * width / 100)
    inside[
        top - 3 : top + round(focused.height * height / 100) + 4, left - 3 : left + round(focused.width * width / 100) + 4
    ] = True
    assert difference[inside].max() > 100
    assert difference[~inside].max() < 60, "JPEG's noise alone"


def test_the_heading_says_masks_where_the_set_has_some(tmp_path):
    page = write_check_page(prepare_boxes(make_instances(tmp_path / "masks", train=8, val=3)))[1]
    assert re.search("<h2>Images with masks", page.html)
    page = write_check_page(prepare_boxes(make_set(tmp_path / "boxes")))[1]
    assert re.search("<h2>Images with boxes", page.html)
