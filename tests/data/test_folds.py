"""Folds: a partition, every class in each part to within what its groups allow, groups whole, a function of the data and K alone."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from coco_sets import HEIGHT, WIDTH, box, document, make_set, write_json
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from messages import check_lines, check_text
from photo_folders import paint

from paceline._utils.errors import DataError
from paceline._utils.reporter import Lines
from paceline.config.run import RunOptions
from paceline.data.index.box_split import open_boxes
from paceline.data.index.index import open_split
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.box_source import prepare_boxes
from paceline.data.prepare.class_source import prepare_folder
from paceline.data.prepare.val_split import ValSplit, assign_folds, group_units, with_fold


def parts_of(names: list[str], labels: list[set[int]], folds: int, seed: int = 0, group: str = "") -> np.ndarray:
    units = group_units(names, ValSplit(1 / folds, seed, group))
    pairs = np.array([(photo, label) for photo, own in enumerate(labels) for label in sorted(own)], np.int64)
    pairs = pairs.reshape(-1, 2)
    return assign_folds(units, pairs[:, 0], pairs[:, 1], 1 + max((max(own) for own in labels if own), default=0), folds)


@examples(150)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6), folds=st.integers(2, 7), seed=st.integers(0, 5))
def test_with_one_class_a_photo_each_part_has_its_share_to_within_a_photo(sizes, folds, seed):
    labels = [{label} for label, size in enumerate(sizes) for _ in range(size)]
    parts = parts_of([f"{number}.jpg" for number in range(len(labels))], labels, folds, seed)
    for label, size in enumerate(sizes):
        counts = np.bincount(parts[[own == {label} for own in labels]], minlength=folds)
        assert counts.sum() == size and counts.max() - counts.min() <= 1
    whole = np.bincount(parts, minlength=folds)
    assert whole.max() - whole.min() <= 1, "what is over of one class goes where others left less"


def test_large_groups_come_first_so_that_small_ones_fill_up():
    groups = [0, 1, 2, 3, 4, 5, *[6] * 6]
    parts = parts_of([f"g{group}_{number}.jpg" for number, group in enumerate(groups)], [{0}] * 12, 2, group=r"g(\d)_")
    assert np.bincount(parts).tolist() == [6, 6]


LABELS = st.lists(st.sets(st.integers(0, 3), max_size=3), min_size=1, max_size=60)


@examples(150)
@given(labels=LABELS, folds=st.integers(2, 5), groups=st.integers(1, 30), data=st.data())
def test_groups_are_whole_and_no_order_of_the_photos_matters(labels, folds, groups, data):
    group_of = data.draw(st.lists(st.integers(0, groups - 1), min_size=len(labels), max_size=len(labels)))
    names = [f"g{group}_{number}.jpg" for number, group in enumerate(group_of)]
    parts = parts_of(names, labels, folds, group=r"g(\d+)_")
    for group in set(group_of):
        assert len(set(parts[np.array(group_of) == group])) == 1
    order = np.array(data.draw(st.permutations(range(len(labels)))), int)
    again = parts_of([names[i] for i in order], [labels[i] for i in order], folds, group=r"g(\d+)_")
    np.testing.assert_array_equal(again, parts[order])


@examples(60)
@given(labels=st.lists(st.sets(st.integers(0, 4), min_size=1, max_size=2), min_size=40, max_size=80))
def test_photos_of_several_classes_are_dealt_out_better_than_by_lot(labels):
    def unevenness(parts: np.ndarray) -> float:
        counts = np.array([np.bincount(parts[[label in own for own in labels]], minlength=4) for label in range(5)], float)
        return float(((counts - counts.mean(axis=1, keepdims=True)) ** 2).sum())

    parts = parts_of([f"{number}.jpg" for number in range(len(labels))], labels, 4)
    random = np.random.default_rng(0)
    by_lot = [unevenness(random.permutation(np.arange(len(labels)) % 4)) for _ in range(20)]
    assert unevenness(parts) <= np.median(by_lot) + 1e-9


@pytest.fixture
def pets(tmp_path) -> Manifest:
    """10 cats and 6 dogs of 3 litters, two of the cats the same photo."""
    for number in range(10):
        paint(tmp_path / "pets" / "train" / "cat" / f"{number}.jpg")
    shutil.copy(tmp_path / "pets" / "train" / "cat" / "0.jpg", tmp_path / "pets" / "train" / "cat" / "1.jpg")
    for number in range(6):
        paint(tmp_path / "pets" / "train" / "dog" / f"litter{number // 2}_{number}.jpg")
    for name in ("cat", "dog"):
        paint(tmp_path / "pets" / "val" / name / "v.jpg")
    return prepare_folder(tmp_path / "pets")


def held_out(manifest: Manifest, fold: int, folds: int = 3, **more) -> np.ndarray:
    chosen = with_fold(manifest, RunOptions(num_folds=folds, fold=fold, **more))
    assert chosen.fold is not None
    return chosen.fold.held_out


def test_folds_of_a_prepared_set_are_a_partition_that_its_val_and_the_order_of_asking_do_not_change(pets):
    folds = np.stack([held_out(pets, fold) for fold in (1, 2, 3)])
    assert folds.shape == (3, 16) and (folds.sum(axis=0) == 1).all()
    labels = open_split(pets, "train").labels
    assert sorted(folds[:, labels == 1].sum(axis=1).tolist()) == [2, 2, 2]
    np.testing.assert_array_equal(held_out(pets, 2), folds[1])
    assert not np.array_equal(held_out(pets, 2, fold_seed=1), folds[1])
    assert (folds[:, 0] == folds[:, 1]).all(), "photos of equal content share a fold"
    chosen = with_fold(pets, RunOptions(num_folds=3, fold=1))
    assert len(open_split(chosen, "val")) == 16 and len(open_split(pets, "val")) == 2


def test_a_pattern_keeps_litters_together_and_what_prepare_was_told_counts(pets):
    names = [open_split(pets, "train").name(i) for i in range(10, 16)]
    for fold in (1, 2, 3):
        mine = held_out(pets, fold, group_by=r"(litter\d)_")[10:]
        assert mine.sum() == 2 and len({name.split("_")[0] for name, own in zip(names, mine) if own}) == 1


@pytest.mark.parametrize(
    ("folds", "more", "wanted"),
    [
        (7, {}, "dog ... 6 different"),
        (4, {"group_by": r"(litter\d)_"}, "dog ... 3 different"),
        (20, {}, "15 different"),
        (3, {"group_by": "("}, "--group-by '('"),
    ],
)
def test_folds_that_cannot_be_are_refused_in_a_sentence(pets, folds, more, wanted):
    with pytest.raises(DataError, match=r"--num-folds|--group-by") as refusal:
        held_out(pets, 1, folds, **more)
    assert check_text(str(refusal.value), wanted)


def test_boxes_are_dealt_out_by_their_classes_and_photos_without_objects_fill_up(tmp_path):
    make_set(tmp_path)
    objects = [box(image, 1 + image % 2, 2, 2, 8, 8) for image in range(1, 13)]
    objects += [box(image, 3, 2, 2, 4, 4) for image in (1, 2, 3)]
    names = {1: "a", 2: "b", 3: "rare"}
    write_json(tmp_path, "train", document([*range(1, 16)], objects, names))
    write_json(tmp_path, "val", document([1, 2], [box(1, 1, 1, 1, 9, 9)], names))
    for image in range(1, 16):
        paint(tmp_path / "train2017" / f"{image}.jpg", size=(WIDTH, HEIGHT))
    manifest = prepare_boxes(tmp_path)
    split = open_boxes(manifest, "train")
    said: list[str] = []
    with_fold(manifest, RunOptions(num_folds=4, fold=4), Lines(said.append))
    assert check_lines(said, ("fold 4 of 4", "scores", "rare"))
    for fold in (1, 2, 3):
        mine = held_out(manifest, fold)
        rows = np.repeat(mine, np.diff(split.object_starts))
        assert np.bincount(split.classes[rows], minlength=4)[1:].tolist() == [2, 2, 1] and mine.sum() == 5
