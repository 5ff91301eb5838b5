"""Whether boxes were drawn on photos as they are shown or as they are stored is told by the annotated sizes, and kept to."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from coco_sets import HEIGHT, WIDTH, edit, make_set
from label_formats import put, voc_xml
from messages import check_lines, check_text, raises
from orientation import note
from photo_folders import make_photos, paint

from paceline._utils.errors import DataError
from paceline.data.index.box_split import open_boxes
from paceline.data.index.index import Index, open_split
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.box_source import prepare_boxes
from paceline.data.prepare.class_source import prepare_folder
from paceline.data.transforms.exif import ROTATED
from paceline.tools.report.check.page import write_check_page


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_set(tmp_path / "set")


def lay_down(path: Path, orientation: int = 6) -> None:
    """Replace a photo by one that is shown at the same size and stored on its side (or turned by half)."""
    size = (HEIGHT, WIDTH) if orientation >= 5 else (WIDTH, HEIGHT)
    paint(path, size=size, exif=note(orientation))


def test_boxes_of_photos_as_shown_are_read_so_and_no_other_way(root):
    lay_down(root / "train2017" / "2.jpg", 8)
    manifest = prepare_boxes(root)
    assert [split.boxes.exif for split in manifest.splits.values() if split.boxes] == ["apply", "apply"]
    assert check_lines(manifest.notes, ("1 image", "EXIF", "2.jpg", "--input.exif apply"))
    train = open_boxes(Manifest.load(root), "train", "apply")
    assert (train.heights == HEIGHT).all() and (train.widths == WIDTH).all()
    assert open_split(manifest, "train").heights.tolist() == [HEIGHT, WIDTH, HEIGHT], "the index has them as stored"
    with raises(DataError, "EXIF", "1 image", "train", "Add  --input.exif apply"):
        open_boxes(manifest, "train")


def test_boxes_of_photos_as_stored_are_read_so_and_no_other_way(root):
    paint(root / "train2017" / "1.jpg", size=(WIDTH, HEIGHT), exif=note(5))
    paint(root / "val2017" / "1.jpg", size=(WIDTH, HEIGHT), exif=note(6))
    manifest = prepare_boxes(root)
    check_text(manifest.notes[0], "2 images", "EXIF", "1.jpg, 1.jpg")
    check_text(manifest.notes[0], "--input.exif ignore")
    assert (open_boxes(manifest, "val").heights == HEIGHT).all()
    with raises(DataError, "EXIF", "val", "Add  --input.exif ignore"):
        open_boxes(manifest, "val", "apply")


def test_usable_boxes_are_those_inside_the_photo_that_the_annotations_mean(root):
    lay_down(root / "train2017" / "2.jpg")

    def at_the_right(record):
        record["annotations"][1]["bbox"] = [WIDTH - 6, 2, 5, 5]  # beyond the stored photo, which is HEIGHT wide

    manifest = prepare_boxes(edit(root, at_the_right))
    assert manifest.splits["train"].boxes is not None and manifest.splits["train"].boxes.outside == 0
    assert open_boxes(manifest, "train", "apply").usable.all()


def test_sets_that_mix_both_are_refused_by_name(root):
    lay_down(root / "train2017" / "2.jpg")
    paint(root / "val2017" / "1.jpg", size=(WIDTH, HEIGHT), exif=note(6))
    with raises(DataError, "train2017/2.jpg", "val2017/1.jpg", "mogrify"):
        prepare_boxes(root)


def test_a_size_that_neither_reading_explains_is_refused(root):
    paint(root / "train2017" / "2.jpg", size=(HEIGHT, WIDTH))
    with pytest.raises(DataError, match=r"2\.jpg: has 30 x 40 pixels, but .* has 40 x 30.* 1 of 3 images"):
        prepare_boxes(root)


def test_upside_down_photos_tell_nothing_and_may_be_read_both_ways(root):
    lay_down(root / "train2017" / "2.jpg", 3)
    manifest = prepare_boxes(root)
    check_text(manifest.notes[0], "check.html", "--input.exif apply", "--input.exif ignore")
    for exif in ("apply", "ignore"):
        assert (open_boxes(manifest, "train", exif).heights == HEIGHT).all()


def test_voc_sizes_tell_as_coco_sizes_do(tmp_path):
    for name in ("a", "b"):
        lay_down(tmp_path / "JPEGImages" / f"{name}.jpg")
        put(tmp_path / "Annotations" / f"{name}.xml", voc_xml(f"{name}.jpg", (HEIGHT, WIDTH), [("cat", (3, 2, 38, 20), 0)]))
        put(tmp_path / "ImageSets" / "Main" / f"{'train' if name == 'a' else 'val'}.txt", name)
    manifest = prepare_boxes(tmp_path)
    check_text(" ".join(manifest.notes), "--input.exif apply")
    assert open_boxes(manifest, "train", "apply").widths.tolist() == [WIDTH]


def test_yolo_fractions_are_of_the_photo_as_it_is_read(tmp_path):
    put(tmp_path / "data.yaml", "train: images/train\nval: images/val\nnames: [cat, dog]\n")
    for split in ("train", "val"):
        lay_down(tmp_path / "images" / split / "a.jpg", 6)
        paint(tmp_path / "images" / split / "b.jpg", size=(20, 10))
        put(tmp_path / "labels" / split / "a.txt", "0 0.5 0.5 0.25 0.5\n1 0.1 0.2 0.9 0.2 0.9 0.8\n")
        put(tmp_path / "labels" / split / "b.txt", "1 0.1 0.2 0.9 0.2 0.9 0.8\n0 0.5 0.5 0.25 0.5\n")
    manifest = prepare_boxes(tmp_path)
    check_text(" ".join(manifest.notes), "YOLO", "check.html")
    for exif, (height, width) in (("apply", (HEIGHT, WIDTH)), ("ignore", (WIDTH, HEIGHT))):
        train = open_boxes(manifest, "train", exif)
        fraction, polygon = [0.375, 0.25, 0.25, 0.5], np.array([[0.1, 0.2], [0.9, 0.2], [0.9, 0.8]])
        np.testing.assert_allclose(train.boxes[0], np.array(fraction) * [width, height, width, height], rtol=1e-6)
        np.testing.assert_allclose(train.polygons(1)[0], polygon * [width, height], rtol=1e-6)
        np.testing.assert_allclose(train.boxes[3], np.array(fraction) * [20, 10, 20, 10], rtol=1e-6)
        np.testing.assert_allclose(train.polygons(2)[0], polygon * [20, 10], rtol=1e-6)
        assert (train.heights.tolist(), train.widths.tolist()) == ([height, 10], [width, 20])
    assert "Images with an EXIF rotation <small>2. Check that" in write_check_page(manifest)[1].html
    assert "not found" not in write_check_page(manifest)[1].html


def without_orientations(manifest: Manifest) -> Manifest:
    """The manifest as an older version wrote it, which noted that a photo is rotated and not how."""
    for split in manifest.splits:
        path = manifest.folder / manifest.index / f"{split}.flags.npy"
        np.save(path, np.load(path) & np.uint8(31))
    return manifest


def test_a_set_that_an_older_version_prepared_serves_until_the_rotation_is_asked_for(root, monkeypatch, verified):
    paint(root / "train2017" / "2.jpg", size=(WIDTH, HEIGHT), exif=note(3))
    manifest = without_orientations(prepare_boxes(root))
    assert open_split(manifest, "train").extra["flags"][1] & ROTATED
    assert (open_boxes(manifest, "train").heights == HEIGHT).all()
    with raises(DataError, "train2017/2.jpg", "EXIF", "paceline prepare coco"):
        open_boxes(manifest, "train", "apply")
    monkeypatch.setattr("paceline.data.prepare.pipeline.find_index_damage", lambda manifest: None)
    verified.clear()
    again = prepare_boxes(root)
    assert verified == ["2.jpg"], "the others are known"
    assert open_split(again, "train").orientations.tolist() == [1, 3, 1]


def test_content_hash_and_index_do_not_depend_on_what_is_known_of_rotation(root, tmp_path):
    """Neither of a set without any rotated photo has changed by the notes that one with such photos has."""
    manifest = prepare_boxes(root)
    moved = shutil.copytree(root, tmp_path / "other")
    for entry in ("manifest.json", "index"):
        path = moved / entry
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    lay_down(moved / "train2017" / "2.jpg", 3)
    other = prepare_boxes(moved)
    assert other.splits["val"].content_hash == manifest.splits["val"].content_hash
    assert not np.any(open_split(manifest, "train").extra["flags"])


def test_class_folders_note_orientations_and_have_no_boxes_to_contradict(tmp_path):
    photos = make_photos(tmp_path / "photos")
    paint(photos / "train" / "cat" / "0.jpg", size=(40, 30), exif=note(7))
    index = Index.open(prepare_folder(photos).folder, "train")
    assert index.orientations.tolist() == [7, 1, 1, 1, 1, 1]
    assert (index.heights[0], index.as_shown().heights[0]) == (30, 40)
