"""A split is a function of file name and seed: nothing else in the data set moves an image, and no object is lost."""

from __future__ import annotations

from pathlib import Path, PurePath

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import raises

from paceline._utils.errors import DataError
from paceline.data.formats.annotations import Annotations, ImageLabels, make_annotations
from paceline.data.prepare.val_split import ValSplit, split_by_patterns


def make(names: list[str]) -> Annotations:
    """Image i has i % 3 objects, all of whose numbers tell the image's name apart."""
    photos = []
    for name in names:
        photo = ImageLabels(name, 10 + len(name), 20)
        for k in range(sum(name.encode()) % 3):
            photo.add(k, (float(len(name)), float(k), 1, 2), polygon=[0, 0, 1, 0, 1, 1])
        photos.append(photo)
    return make_annotations(Path("source"), Path("images"), photos, {0: "a", 1: "b", 2: "c"})


def facts(annotations: Annotations) -> dict[str, tuple]:
    """Everything known of each image, by name."""
    rows = {}
    for row, name in enumerate(annotations.file_names):
        mine = np.flatnonzero(annotations.object_rows == row)
        rows[name] = (
            annotations.image_ids[row], annotations.heights[row], annotations.annotation_ids[mine].tolist(),
            annotations.boxes[mine].tolist(), annotations.categories[mine].tolist(), annotations.areas[mine].tolist(),
            annotations.crowd[mine].tolist(), [annotations.segmentations[i] for i in mine],
        )  # fmt: skip
    return rows


# Names of files: "a" and "a/" are one.
NAMES = st.lists(
    st.text("abcdefgh/_0123", min_size=1, max_size=6),
    min_size=2,
    max_size=40,
    unique_by=lambda name: PurePath(name).as_posix(),
)


@given(NAMES, st.floats(0.01, 0.99), st.integers(0, 9))
def test_both_sides_have_images_and_together_they_are_the_whole(names: list[str], fraction: float, seed: int) -> None:
    whole = make(names)
    train, val, _ = split_by_patterns(whole, ValSplit(fraction, seed))
    assert train.file_names and val.file_names
    assert {**facts(train), **facts(val)} == facts(whole)
    assert sorted(train.file_names + val.file_names) == sorted(names)
    assert train.names is whole.names and val.file_names == [n for n in names if n in set(val.file_names)]


def test_an_image_stays_on_its_side_whatever_else_is_there() -> None:
    names = [f"photos/{i:05}.jpg" for i in range(400)]
    _, val, _ = split_by_patterns(make(names), ValSplit(0.25, 7))
    _, val_of_half, _ = split_by_patterns(make(names[::-2]), ValSplit(0.25, 7))
    assert set(val_of_half.file_names) == set(val.file_names) & set(names[::-2])
    _, larger, _ = split_by_patterns(make(names), ValSplit(0.4, 7))
    assert set(val.file_names) < set(larger.file_names)
    assert {"photos/00001.jpg", "photos/00004.jpg"} & set(val.file_names) == {"photos/00001.jpg"}  # never changes


def test_the_share_is_about_what_was_asked_and_another_seed_gives_another_split() -> None:
    whole = make([f"{i}.jpg" for i in range(2000)])
    _, one, _ = split_by_patterns(whole, ValSplit(0.2, 0))
    _, two, _ = split_by_patterns(whole, ValSplit(0.2, 1))
    for val in (one, two):
        assert abs(len(val.file_names) - 400) < 5 * np.sqrt(2000 * 0.2 * 0.8)
    assert set(one.file_names) != set(two.file_names)


@pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9])
def test_a_side_that_would_be_empty_gets_one_image(fraction: float) -> None:
    train, val, _ = split_by_patterns(make(["a", "b", "c"]), ValSplit(fraction))
    assert sorted((len(train.file_names), len(val.file_names))) == [1, 2]
    assert len(val.file_names) == (1 if fraction < 0.5 else 2)


@given(st.integers(0, 99))
def test_equal_images_share_a_side(seed: int) -> None:
    names = [f"{i}.jpg" for i in range(40)]
    digests = np.arange(40, dtype=np.uint64) % 8
    train, val, _ = split_by_patterns(make(names), ValSplit(0.5, seed), digests=digests)
    side = {name: 0 for name in train.file_names} | {name: 1 for name in val.file_names}
    for digest in range(8):
        assert len({side[name] for name, own in zip(names, digests) if own == digest}) == 1


def test_what_cannot_be_split_is_refused() -> None:
    for fraction in (0.0, 1.0, -0.1, 1.5, float("nan")):
        with pytest.raises(DataError, match="--val-fraction"):
            split_by_patterns(make(["a", "b"]), ValSplit(fraction))
    for names in ([], ["a"]):
        with raises(DataError, "source", "validation", "images"):
            split_by_patterns(make(names), ValSplit(0.2))
    with pytest.raises(DataError, match="two different"):
        split_by_patterns(make(["a", "b"]), ValSplit(0.2), digests=np.zeros(2, np.uint64))


def test_selecting_nothing_or_everything() -> None:
    whole = make(["ab", "c", "de"])
    assert facts(whole.chosen(np.arange(3))) == facts(whole)
    nothing = whole.chosen(np.arange(0))
    assert nothing.boxes.shape == (0, 4) and nothing.file_names == []
