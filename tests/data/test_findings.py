"""What is found in a data set is said by whoever prepares it first: prepare, a training, an evaluation."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from coco_sets import edit, make_set
from messages import check_line, raises
from photo_folders import make_photos, paint

from paceline._utils.errors import DataError
from paceline._utils.reporter import Lines
from paceline.cli.main import main
from paceline.cli.printing import format_prepared
from paceline.data.index.manifest import Kind, cached_manifest_folder
from paceline.data.prepare.auto_prepare import EvalSplit, prepare_eval_split, prepare_if_needed
from paceline.data.prepare.class_source import prepare_folder
from paceline.data.prepare.val_split import ValSplit
from paceline.inference.image_paths import find_photos


def odd_boxes(root: Path) -> Path:
    """A box over the border, and a photo that is in train and in val."""
    make_set(root)
    edit(root, lambda record: record["annotations"][0].update(bbox=[30, 20, 30, 30]))
    shutil.copy(root / "train2017" / "1.jpg", root / "val2017" / "1.jpg")
    return root


def odd_classes(root: Path) -> Path:
    """A photo that lies in train and in val."""
    make_photos(root)
    shutil.copy(root / "train" / "cat" / "0.jpg", root / "val" / "cat" / "0.jpg")
    return root


@pytest.mark.parametrize(("kind", "make", "wanted"), [
    ("boxes", odd_boxes, ("boxes partly outside their image, clipped in training: 1", "1 image of val is also an image of train")),
    ("class-folder", odd_classes, ("Identical images in train and val: 1",)),
])  # fmt: skip
def test_a_training_that_prepares_says_what_prepare_says(tmp_path, capsys, kind: Kind, make, wanted):
    root, said = make(tmp_path / "set"), []
    place = prepare_if_needed(root, kind=kind, reporter=Lines(said.append, format_prepared))
    assert (
        place == cached_manifest_folder(root) and str(place / "check.html") in said[-1] and (place / "check.html").is_file()
    )
    for what in wanted:
        assert sum(what in line for line in said) == 1
    assert main(["prepare", "coco" if kind == "boxes" else "folder", str(root), "--output-dir", str(tmp_path / "out")]) == 0
    printed, _, after = capsys.readouterr().out.replace(str(tmp_path / "out"), str(place)).partition("next (")
    assert "paceline plan " in after
    assert "".join(printed.split()) == "".join("".join(said[1:]).split())
    said.clear()
    assert prepare_if_needed(root, kind=kind, reporter=Lines(said.append, format_prepared)) == place and not said


def test_an_evaluation_that_prepares_says_what_is_odd(tmp_path):
    root = odd_boxes(tmp_path / "set")
    edit(root, lambda record: record["annotations"][0].update(bbox=[30, 20, 30, 30]), "val")
    said: list[str] = []
    place = prepare_eval_split(EvalSplit(data=str(root)), "boxes", reporter=Lines(said.append, format_prepared))
    assert check_line(said, "boxes partly", "1") and (place / "check.html").is_file()


def test_files_left_out_by_their_suffix_are_counted_with_what_to_do(tmp_path):
    root = make_photos(tmp_path / "set")
    for label in ("cat", "dog"):
        for name in ("0.jpg", "1.jpg"):
            (root / "train" / label / name).rename(root / "train" / label / name.replace("jpg", "HEIC"))
    (root / "train" / "cat" / "notes.txt").write_text("x")
    wanted = "5 files: 4 .heic, 1 .txt; .heic is not supported: convert these files to JPEG, or rename JPEG files to .jpg"
    said: list[str] = []
    prepare_if_needed(root, reporter=Lines(said.append, format_prepared))
    assert f"note: train: ignored {wanted}" in said
    with pytest.raises(DataError) as refused:
        find_photos([root / "val"], apart_from=[root / "val" / "cat", root / "val" / "dog"])
    assert "Skipped" in str(refused.value)
    assert find_photos([root]).skipped() == wanted
    (root / "train" / "dog" / "2.jpg").unlink()
    with raises(DataError, "train/dog", "2 files: 2 .heic", "JPEG"):
        prepare_if_needed(root, reporter=Lines(said.append, format_prepared))


def test_pictures_that_no_label_file_could_name_are_counted(tmp_path):
    root = make_set(tmp_path / "set")
    for name in ("7.heic", "8.heic", "labels.txt", ".hidden.heic"):
        (root / "train2017" / name).write_text("x")
    said: list[str] = []
    prepare_if_needed(root, kind="boxes", reporter=Lines(said.append, format_prepared))
    assert sum("2 files: 2 .heic" in line for line in said) == 1


def test_folders_of_pictures_that_are_not_read_are_not_called_empty(tmp_path):
    for label in ("cat", "dog"):
        paint(tmp_path / "set" / label / "0.heic")
    with raises(DataError, "cat, dog", "2 files: 2 .heic", "convert"):
        prepare_folder(tmp_path / "set", val=ValSplit(0.2))
    with raises(DataError, "cat", "1 file: 1 .heic", "convert"):
        prepare_folder(tmp_path / "set" / "cat", val=ValSplit(0.2))
