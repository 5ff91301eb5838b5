"""Bad input: each flaw of layout or file has one clear error that says what to do, and leaves no manifest."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest
from messages import raises
from photo_folders import paint

from paceline._utils.errors import DataError
from paceline._utils.reporter import Lines
from paceline.cli.main import main
from paceline.data.index.manifest import Manifest, find_manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.data.prepare.class_source import prepare_folder


def no_folder(root: Path) -> None:
    root.rename(root.with_name("gone"))


def is_a_file(root: Path) -> None:
    no_folder(root)
    root.write_text("")


def empty(root: Path) -> None:
    no_folder(root)
    root.mkdir()


def images_in_root(root: Path) -> None:
    empty(root)
    paint(root / "1.jpg")


def images_in_train(root: Path) -> None:
    paint(root / "train" / "1.jpg")


def images_in_val(root: Path) -> None:
    paint(root / "val" / "1.jpg")


def one_level_up(root: Path) -> None:
    no_folder(root)
    root.mkdir()
    root.with_name("gone").rename(root / "inner")


def a_split_itself(root: Path) -> None:
    other = root.with_name("other")
    root.rename(other)
    root.symlink_to(other / "train")


def no_split_folders(root: Path) -> None:
    (root / "train").rename(root / "cats")
    (root / "val").rename(root / "dogs")


def no_val(root: Path) -> None:
    (root / "val").rename(root / "test")


def classes_alone(root: Path) -> None:
    for name in ("cat", "dog"):
        (root / "train" / name).rename(root / name)
    for split in ("train", "val"):
        shutil.rmtree(root / split)


def two_vals(root: Path) -> None:
    paint(root / "valid" / "cat" / "0.jpg")


def one_class(root: Path) -> None:
    for split in ("train", "val"):
        (root / split / "dog").rename(root / f"{split}-dog")


def other_val_classes(root: Path) -> None:
    (root / "val" / "dog").rename(root / "val" / "cow")


def empty_class(root: Path) -> None:
    (root / "train" / "eel").mkdir()


def nested(root: Path) -> None:
    paint(root / "train" / "cat" / "black" / "0.jpg")


def empty_train(root: Path) -> None:
    (root / "train").rename(root / "old")
    (root / "train").mkdir()


LAYOUTS = [
    (no_folder, r"photos: folder not found\. Check the path"),
    (is_a_file, "photos: is a file"),
    (empty, "photos: the folder is empty. Expected ROOT/train/CLASS"),
    (images_in_root, r"photos: has 1 images directly in it \(1\.jpg\) and no train/.* Expected"),
    (images_in_train, r"train: has 1 images directly in it \(1\.jpg\).*Move each image into"),
    (images_in_val, r"val: has 1 images directly in it \(1\.jpg\).*Move each image into"),
    (one_level_up, "train/ not found, but .*inner has one.*--data .*photos/inner"),
    (a_split_itself, r"one split of a dataset\. Use the folder above it:  --data .*other"),
    (no_split_folders, "train/ not found, only cats, dogs. Expected"),
    (
        no_val,
        r"validation images are required, but val/.* To use 20% .*\n  paceline prepare folder .*photos --val-fraction 0\.2$",
    ),
    (
        classes_alone,
        r"train/ and val/ not found, only .*\(cat, dog\).*\n  paceline prepare folder --data .* --val-fraction 0\.2$",
    ),
    (two_vals, "has both val/ and valid/"),
    (one_class, r"train: only one class \(cat\)"),
    (other_val_classes, r"classes of val/ and train/ differ\. Only in train/: 'dog'\. Only in val/: 'cow'\."),
    (empty_class, "train/eel: no images in this class folder"),
    (nested, r"train/cat: must have only images, but has 1 folders \(black\)"),
    (empty_train, "train: no class folders found"),
]


@pytest.mark.parametrize(("spoil", "message"), LAYOUTS, ids=[spoil.__name__ for spoil, _ in LAYOUTS])
def test_a_wrong_layout_is_named_by_prepare_and_by_train(photos, spoil, message):
    spoil(photos)
    for prepare in (prepare_folder, lambda root: prepare_if_needed(root)):
        with pytest.raises(DataError, match=message):
            prepare(photos)
    assert find_manifest(photos) is None


def test_a_folder_that_may_not_be_read_is_named(photos, monkeypatch):
    real = os.scandir

    def scandir(path):
        if path == os.fsencode(photos / "train" / "dog"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(DataError, match=r"train/dog: permission denied\. .*chmod"):
        prepare_folder(photos)


@pytest.mark.parametrize("spoil", [no_val, classes_alone])
def test_the_command_in_the_error_makes_a_val(photos, spoil, capsys):
    spoil(photos)
    with pytest.raises(DataError) as error:
        prepare_folder(photos)
    assert main(shlex.split(str(error.value).splitlines()[-1])[1:]) == 0
    assert "train: 4 images in 2 classes" in capsys.readouterr().out
    manifest = Manifest.load(prepare_if_needed(photos, reporter=Lines(pytest.fail)))
    assert [split.per_class for split in manifest.splits.values()] == [(2, 2), (1, 1)]


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def without_end_marker(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def half_a_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def bad_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:2] + b"?" * 200)


def text(path: Path) -> None:
    path.write_text("<html>404</html>\n" * 9)


def zero_bytes(path: Path) -> None:
    path.write_bytes(b"")


def noise(path: Path) -> None:
    path.write_bytes(bytes(range(128, 256)) * 8)


def broken_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere.jpg")


def truncated_png(path: Path) -> None:
    paint(path, kind="PNG")
    path.write_bytes(path.read_bytes()[:-40])


SPOILT = [
    (truncated, "truncated: the file ends before its image data|truncated: the JPEG's end marker is missing"),
    (without_end_marker, "truncated"),
    (half_a_header, "truncated"),
    (bad_header, "damaged: a JPEG whose header cannot be read"),
    (text, r"text and not an image \('<html>404"),
    (zero_bytes, r"empty file \(0 bytes\)"),
    (noise, "not an image in a supported format"),
    (broken_link, "a link to a missing file"),
    (truncated_png, "truncated|damaged"),
]


@pytest.mark.parametrize(("spoil", "reason"), SPOILT, ids=[spoil.__name__ for spoil, _ in SPOILT])
def test_a_file_that_cannot_be_used_is_named_with_its_reason(photos, spoil, reason):
    spoil(photos / "train" / "dog" / "1.jpg")
    with pytest.raises(DataError, match=rf"train/dog/1\.jpg: ({reason})[\s\S]*--on-unreadable skip"):
        prepare_if_needed(photos)
    assert find_manifest(photos) is None
    manifest = prepare_folder(photos, on_unreadable="skip")
    (entry,) = manifest.splits["train"].unreadable
    assert entry.path == "train/dog/1.jpg" and manifest.splits["train"].per_class == (3, 2)
    assert prepare_if_needed(photos, reporter=Lines(pytest.fail)) == photos


def test_a_file_that_may_not_be_read_is_named(photos, monkeypatch):
    real = os.open

    def refuse(path, *args, **kwargs):
        if os.fsencode(path) == os.fsencode(photos / "val" / "cat" / "0.jpg"):
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    with raises(DataError, "val/cat/0.jpg", "Permission denied", "--on-unreadable skip"):
        prepare_folder(photos)


def test_the_number_of_other_bad_files_is_said_and_many_are_listed_in_a_file(photos):
    text(photos / "train" / "cat" / "0.jpg")
    with pytest.raises(DataError) as error:
        prepare_folder(photos)
    assert "Also unusable" not in str(error.value)
    for i in range(9):
        text(photos / "train" / "dog" / f"x{i}.jpg")
    with pytest.raises(
        DataError, match=r"train/cat/0\.jpg: .*\nAlso unusable, 9 images: .*x3\.jpg.*unreadable\.txt"
    ) as error:
        prepare_folder(photos)
    assert "x4.jpg" not in str(error.value) and len((photos / "unreadable.txt").read_text().splitlines()) == 11
    prepare_folder(photos, on_unreadable="skip")
    assert sorted(os.listdir(photos)) == ["index", "manifest.json", "train", "val"]


def test_a_class_without_one_usable_image_is_refused_even_under_skip(photos):
    for i in range(2):
        text(photos / "val" / "dog" / f"{i}.jpg")
    with raises(DataError, "val/dog", "decoded"):
        prepare_folder(photos, on_unreadable="skip")
