"""A validation split of class folders that bring none: a partition, by class, groups whole, nothing copied, found by train."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from coco_sets import HEIGHT, WIDTH, box, document, write_json
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from messages import check_text, raises
from photo_folders import paint
from tiny_runs import TINY

from paceline._utils.errors import DataError
from paceline._utils.reporter import Lines
from paceline.cli.main import main
from paceline.data.index.box_split import open_boxes
from paceline.data.index.index import open_split
from paceline.data.index.manifest import Manifest, cached_manifest_folder, repeat_command
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.data.prepare.box_source import BoxRequest, prepare_boxes
from paceline.data.prepare.class_source import prepare_folder
from paceline.data.prepare.val_split import ValSplit, group_units, stratified_split


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """ROOT/CLASS/*.jpg: 10 cats, and 6 dogs of 3 litters."""
    for number in range(10):
        paint(tmp_path / "pets" / "cat" / f"{number}.jpg")
    for number in range(6):
        paint(tmp_path / "pets" / "dog" / f"litter{number // 2}_{number}.jpg")
    return tmp_path / "pets"


def files_of(manifest: Manifest) -> dict[str, set[str]]:
    return {
        split: {index.relative_name(i).decode() for i in range(len(index))}
        for split in manifest.splits
        for index in [open_split(manifest, split)]
    }


SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@examples(200)
@given(sizes=SIZES, fraction=st.floats(0.01, 0.99), seed=st.integers(0, 5))
def test_without_groups_each_class_has_its_share_to_within_a_photo(sizes, fraction, seed):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    names = [f"{label}/{number}.jpg" for number, label in enumerate(labels)]
    in_val = stratified_split(group_units(names, ValSplit(fraction, seed)), labels, fraction)
    for label, size in enumerate(sizes):
        found = int(in_val[labels == label].sum())
        assert abs(found - fraction * size) <= 1
        assert size < 2 or 0 < found < size
        assert size > 1 or not found, "a single photo is trained on"


@examples(200)
@given(sizes=SIZES, groups=st.integers(1, 12), fraction=st.floats(0.05, 0.95), across=st.booleans(), data=st.data())
def test_groups_are_never_split_and_classes_of_several_are_on_both_sides(sizes, groups, fraction, across, data):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    of = data.draw(st.lists(st.integers(0, groups - 1), min_size=len(labels), max_size=len(labels)))
    names = [
        f"{label}/{'' if across else f'c{label}'}g{group}_{number}.jpg"
        for number, (label, group) in enumerate(zip(labels, of))
    ]
    digests = np.array([data.draw(st.sampled_from([number, 0, 1])) for number in range(2, 2 + len(labels))], np.uint64)
    units = group_units(names, ValSplit(fraction, 0, r"/(\w*g\d+)_"), digests if across else None)
    in_val = stratified_split(units, labels, fraction)
    group_of = np.array([name.split("/")[1].split("_")[0] for name in names])
    for group in set(group_of):
        assert len(set(in_val[group_of == group])) == 1
    if across:
        for digest in (0, 1):
            assert len(set(in_val[digests == digest])) <= 1
    else:
        for label in range(len(sizes)):
            mine = labels == label
            several = len(set(units.of[mine])) > 1
            assert several == (0 < in_val[mine].sum() < mine.sum())


@examples(30)
@given(st.permutations([f"{label}/{number}.jpg" for label in "ab" for number in range(9)]))
def test_the_order_in_which_photos_are_found_does_not_matter(names):
    labels = np.array([ord(name[0]) - ord("a") for name in names])
    in_val = stratified_split(group_units(names, ValSplit(0.3, 1)), labels, 0.3)
    assert {name for name, val in zip(names, in_val) if val} == {
        "a/2.jpg", "a/4.jpg", "a/6.jpg", "b/0.jpg", "b/1.jpg", "b/2.jpg",
    }  # fmt: skip


def test_a_folder_of_classes_alone_is_split_and_stays_untouched(photos, capsys):
    before = sorted(photos.rglob("*"))
    flags = ["--val-fraction", "0.3", "--split-seed", "3", "--group-by", "(litter.)"]
    assert main(["prepare", "folder", str(photos), *flags]) == 0
    assert sorted(photos.rglob("*")) == before, "each folder in it is a class: nothing is added"
    manifest = Manifest.load(prepare_if_needed(photos, reporter=Lines(pytest.fail)))
    assert manifest.folder == cached_manifest_folder(photos)
    assert manifest.request == {"val_fraction": 0.3, "split_seed": 3, "group_by": "(litter.)"}
    assert repeat_command(manifest).endswith("/pets --val-fraction 0.3 --split-seed 3 --group-by '(litter.)'")
    files = files_of(manifest)
    assert files["train"] | files["val"] == {str(path.relative_to(photos)) for path in before if path.is_file()}
    assert not files["train"] & files["val"]
    assert manifest.splits["val"].per_class == (3, 2) and manifest.splits["train"].per_class == (7, 4)
    dogs = [{name[:11] for name in part if name.startswith("dog")} for part in files.values()]
    assert not dogs[0] & dogs[1]
    check_text(capsys.readouterr().out, "10 images", "--group-by")


def test_training_finds_the_split_and_notices_new_photos(photos, tmp_path, capsys):
    prepare_folder(photos, val=ValSplit(0.3))
    flags = [*TINY, "--max-steps", "1", "--system", "cpu"]
    assert main(["train", "classify-demo", "--data", str(photos), "--output-dir", str(tmp_path / "run"), *flags]) == 0
    facts = json.loads((tmp_path / "run" / "run.json").read_text())["data"]
    assert (facts["train_images"], facts["val_images"]) == (11, 5)
    capsys.readouterr()
    paint(photos / "cat" / "new.jpg")
    said: list[str] = []
    manifest = Manifest.load(prepare_if_needed(photos, reporter=Lines(said.append)))
    assert "cat/new.jpg is new" in said[0]
    assert manifest.request and manifest.request["val_fraction"] == 0.3
    assert sum(split.images for split in manifest.splits.values()) == 17
    os.remove(photos / "dog" / "litter0_0.jpg")
    said.clear()
    assert prepare_if_needed(photos, reporter=Lines(said.append)) and "litter0_0.jpg was removed" in said[0]


def test_a_train_folder_without_val_is_split_where_it_lies(photos, tmp_path):
    root = tmp_path / "set"
    shutil.copytree(photos, root / "train")
    manifest = prepare_folder(root, val=ValSplit(0.2))
    assert manifest.folder == root and manifest.splits["val"].folder == "train"
    assert prepare_if_needed(root, reporter=Lines(pytest.fail)) == root
    moved = root.rename(tmp_path / "moved")
    assert prepare_if_needed(moved, reporter=Lines(pytest.fail)) == moved
    assert open_split(Manifest.load(moved), "val").read(0)


def test_photos_of_equal_content_share_a_side(photos):
    for number in range(8):
        shutil.copy(photos / "cat" / "0.jpg", photos / "cat" / f"copy{number}.jpg")
    files = files_of(prepare_folder(photos, val=ValSplit(0.4)))
    copies = {name for name in files["val"] | files["train"] if "copy" in name or name == "cat/0.jpg"}
    assert copies <= files["train"] or copies <= files["val"]


def test_what_cannot_be_split_so_is_refused(photos, tmp_path):
    def refused(message: str, root: Path = photos, **options) -> None:
        with raises(DataError, message):
            prepare_folder(root, **options)

    refused("--val-fraction 1.5 ... 0 ... 1", val=ValSplit(1.5))
    refused("--group-by: requires --val-fraction", val=ValSplit(group_by="(x)"))
    refused("--group-by '('", val=ValSplit(0.2, 0, "("))
    refused("--group-by 'x'", val=ValSplit(0.2, 0, "x"))
    refused("16 images ... cat/0.jpg", val=ValSplit(0.2, 0, "(zebra)"))
    refused(r"16 images in 1 groups", val=ValSplit(0.2, 0, r"(\.jpg)"))
    refused("ImageNet has 50,000 validation images", expect="imagenet", val=ValSplit(0.2))
    refused("a class ... outside", out=photos / "index", val=ValSplit(0.2))
    root = tmp_path / "both"
    for split in ("train", "val"):
        shutil.copytree(photos, root / split)
    refused("validation ... in val/", root=root, val=ValSplit(0.2))
    prepare_if_needed(root)


def test_photos_of_boxes_are_grouped_too(tmp_path):
    """12 images; those whose numbers begin with 1 belong together."""
    numbers = list(range(1, 13))
    write_json(tmp_path, "train", document(numbers, [box(number, 7, 1, 1, 9, 9) for number in numbers]))
    for number in numbers:
        paint(tmp_path / "train2017" / f"{number}.jpg", size=(WIDTH, HEIGHT))
    sides = set()
    for seed in range(12):
        request = BoxRequest(val_fraction=0.4, split_seed=seed, group_by="^(1)")
        manifest = prepare_boxes(tmp_path, request)
        assert manifest.request and manifest.request["group_by"] == "^(1)"
        assert len(manifest.notes) == 2 and check_text(manifest.notes[1], "8 images", "--group-by", "validation")
        ids = set(open_boxes(manifest, "val").image_ids.tolist())
        assert len({number in ids for number in (1, 10, 11, 12)}) == 1
        sides.add(1 in ids)
    assert sides == {True, False}
    with raises(DataError, "validation", r"--group-by '(x)' --val-fraction 0.2"):
        prepare_boxes(tmp_path, BoxRequest(group_by="(x)"))
