"""Preparing class folders: what comes out, where it goes, and what train does by itself."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torchvision
from messages import check_text, raises
from photo_folders import paint
from PIL import Image

from paceline._utils.errors import DataError
from paceline._utils.reporter import Lines
from paceline.data.formats.class_folders import class_names_changed
from paceline.data.index.index import Index
from paceline.data.index.manifest import Manifest, cached_manifest_folder, find_manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.data.prepare.class_source import prepare_folder
from paceline.data.prepare.verify_image import CMYK, GRAYSCALE, MISNAMED, NOT_JPEG
from paceline.data.transforms.exif import read_index_flags


def test_the_index_has_imagefolders_files_in_imagefolders_order(photos):
    for name in ("B.JPEG", "a.png", "10.jpeg", "notes.txt", "._0.jpg"):
        paint(photos / "train" / "dog" / name, kind="PNG" if name.endswith("png") else "JPEG")
    manifest = prepare_folder(photos)
    for split in ("train", "val"):
        index = Index.open(manifest.folder, split)
        theirs = torchvision.datasets.ImageFolder(
            str(photos / split), is_valid_file=lambda path: "._" not in path and path[-4:] != ".txt"
        )
        ours = [(index.name(i), int(index.labels[i])) for i in range(len(index))]
        assert ours == theirs.samples
        assert list(manifest.classes) == theirs.classes
    assert manifest.splits["train"].ignored == 2


def test_sizes_flags_and_counts_are_those_of_the_files(photos):
    cats = photos / "train" / "cat"
    exif = Image.Exif()
    exif[0x0112] = 6
    paint(cats / "a.jpg", size=(40, 30), exif=exif)
    paint(cats / "b.jpg", mode="L", size=(9, 5))
    paint(cats / "c.jpg", mode="CMYK", size=(1, 1))
    paint(cats / "d.jpg", kind="PNG", size=(7, 6))
    paint(cats / "e.jpg", size=(50, 20), progressive=True)
    paint(cats / "f.webp", kind="WEBP", size=(8, 3))
    manifest = prepare_folder(photos)
    index = Index.open(manifest.folder, "train")
    rows = {
        Path(index.name(i)).name: (index.heights[i], index.widths[i], index.extra["flags"][i]) for i in range(len(index))
    }
    assert rows["a.jpg"] == (30, 40, read_index_flags(6)), "the size as stored, and how it is turned"
    assert rows["b.jpg"] == (5, 9, GRAYSCALE)
    assert rows["c.jpg"] == (1, 1, CMYK)
    assert rows["d.jpg"] == (6, 7, NOT_JPEG | MISNAMED)
    assert rows["e.jpg"] == (20, 50, 0)
    assert rows["f.webp"] == (3, 8, NOT_JPEG)
    train = manifest.splits["train"]
    assert (train.rotated, train.grayscale, train.cmyk, train.not_jpeg, train.misnamed) == (1, 1, 1, 2, 1)
    assert train.images == 12 and train.per_class == (9, 3) and train.bytes == index.lengths.sum()


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_the_validation_folder_may_have_three_names(photos, name):
    (photos / "val").rename(photos / name)
    manifest = prepare_folder(photos)
    assert manifest.splits["val"].folder == name and Index.open(photos, "val").name(0) == str(
        photos / name / "cat" / "0.jpg"
    )


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("classes.json", '{"classes": {"cat": "house cat", "dog": "hound"}, "source": "x"}'),
        ("classes.json", '{"dog": "hound", "cat": "house cat"}'),
        ("LOC_synset_mapping.txt", "cat house cat, moggy\ndog hound\n"),
    ],
)
def test_readable_class_names_are_taken_up(photos, file, text):
    assert prepare_folder(photos).class_names is None
    (photos / file).write_text(text)
    named = prepare_folder(photos)
    assert named.class_names == ("house cat", "hound")
    (photos / file).unlink()
    assert class_names_changed(named) is not None
    said: list[str] = []
    again = Manifest.load(prepare_if_needed(photos, reporter=Lines(said.append)))
    assert again.class_names is None and "class names" in said[0]
    splits = {name: replace(split, records="ranges") for name, split in named.splits.items()}
    assert class_names_changed(replace(named, splits=splits)) is None  # a container brings no file of names


def test_names_for_some_classes_only_are_not_used(photos):
    (photos / "classes.json").write_text('{"cat": "house cat"}')
    assert prepare_folder(photos).class_names is None
    (photos / "classes.json").write_text('{"cat": ')
    with pytest.raises(DataError, match=r"classes\.json: not valid JSON"):
        prepare_folder(photos)


def test_a_root_that_may_be_written_holds_its_manifest_and_only_that(photos):
    manifest = prepare_folder(photos)
    assert manifest.folder == photos and sorted(os.listdir(photos)) == ["index", "manifest.json", "train", "val"]


def test_a_root_without_write_permission_is_left_alone(photos):
    photos.chmod(0o555)
    try:
        manifest = prepare_folder(photos)
        assert sorted(os.listdir(photos)) == ["train", "val"]
        assert manifest.folder == cached_manifest_folder(photos) and manifest.root_path == photos
        assert Index.open(manifest.folder, "train").read(0)
    finally:
        photos.chmod(0o755)


def test_out_puts_it_elsewhere_and_that_folder_serves_as_data(photos, tmp_path):
    out = tmp_path / "out"
    prepare_folder(photos, out=out)
    assert sorted(os.listdir(photos)) == ["train", "val"] and find_manifest(out) == out / "manifest.json"
    assert prepare_if_needed(out, reporter=Lines(pytest.fail)) == out


def test_a_manifest_of_another_tool_is_never_replaced(photos):
    (photos / "manifest.json").write_text('{"name": "mine"}')
    with raises(DataError, "manifest.json", "--output-dir DIR"):
        prepare_folder(photos)
    assert (photos / "manifest.json").read_text() == '{"name": "mine"}'


def test_an_output_folder_that_cannot_be_made_is_named(photos, tmp_path):
    (tmp_path / "file").write_text("")
    with raises(DataError, "file/out", "Not a directory", "--output-dir DIR"):
        prepare_folder(photos, out=tmp_path / "file" / "out")


def test_a_small_set_is_prepared_once_into_the_cache_and_said_so(photos, verified):
    lines: list[str] = []
    folder = prepare_if_needed(photos, reporter=Lines(lines.append))
    assert folder == cached_manifest_folder(photos) and sorted(os.listdir(photos)) == ["train", "val"]
    assert check_text(lines[0], "not prepared", "10 images") and not any("\n" in line for line in lines)
    assert prepare_if_needed(photos, reporter=Lines(pytest.fail)) == folder and len(verified) == 10


def test_a_stale_small_set_is_prepared_again_beside_the_users_manifest(photos):
    prepare_folder(photos)
    before = (photos / "manifest.json").read_bytes()
    paint(photos / "train" / "cat" / "new.jpg")
    lines: list[str] = []
    assert prepare_if_needed(photos, reporter=Lines(lines.append)) == cached_manifest_folder(photos)
    assert check_text(lines[0], "manifest", "new.jpg") and "new.jpg is new" in lines[0]
    assert (photos / "manifest.json").read_bytes() == before
    assert prepare_if_needed(photos, reporter=Lines(pytest.fail)) == cached_manifest_folder(photos)


def test_a_stale_out_folder_is_prepared_again_only_once(photos, tmp_path):
    out = tmp_path / "out"
    prepare_folder(photos, out=out)
    paint(photos / "train" / "cat" / "new.jpg")
    assert prepare_if_needed(out) == cached_manifest_folder(photos)
    assert prepare_if_needed(out, reporter=Lines(pytest.fail)) == cached_manifest_folder(photos)


def test_a_damaged_manifest_of_a_small_set_is_made_anew(photos):
    prepare_folder(photos)
    path = photos / "manifest.json"
    path.write_text(path.read_text()[:300])
    lines: list[str] = []
    assert (
        prepare_if_needed(photos, reporter=Lines(lines.append)) == cached_manifest_folder(photos) and "damaged" in lines[0]
    )


def test_a_damaged_out_folder_says_so(photos, tmp_path):
    prepare_folder(photos, out=tmp_path / "out")
    path = tmp_path / "out" / "manifest.json"
    path.write_text(path.read_text()[:300])
    with pytest.raises(DataError, match=r"out/manifest\.json: damaged"):
        prepare_if_needed(tmp_path / "out")


def test_a_large_set_is_refused_with_the_command_to_run(photos, verified):
    with raises(DataError, "10 images", "not prepared", "paceline prepare folder --data"):
        prepare_if_needed(photos, small=9, reporter=Lines(pytest.fail))
    assert verified == []
    prepare_folder(photos)
    assert prepare_if_needed(photos, small=9, reporter=Lines(pytest.fail)) == photos


def test_the_real_photos_are_all_readable(shared_data, tmp_path):
    manifest = prepare_folder(shared_data / "imagenette224", out=tmp_path)
    assert {name: split.images for name, split in manifest.splits.items()} == {"train": 2000, "val": 1000}
    assert manifest.class_names is not None and manifest.class_names[0] == "tench"
    index = Index.open(tmp_path, "val")
    assert np.array_equal(np.bincount(index.labels), [100] * 10) and set(index.heights.tolist()) == {224}
    assert manifest.splits["train"].grayscale > 0 and Manifest.load(tmp_path).content_hash == manifest.content_hash
