"""YOLO labels: boxes and polygons that were written come back in pixels, in every layout, and what is broken is named by line."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from label_formats import Truth, link, objects_of, put, read_coco
from messages import check_lines, raises
from photo_folders import paint

from paceline._utils.errors import DataError
from paceline.data.formats.annotations import ImageLabels, polygon_area
from paceline.data.formats.yolo import find_yolo, read_label_file, read_yolo

NAMES = {0: "cat", 1: "dog"}
YAML = "train: images/train\nval: images/val\nnames: [cat, dog]\n"


def box_line(k: int, box: list[float], truth: Truth) -> str:
    x, y, w, h = box
    fractions = ((x + w / 2) / truth.width, (y + h / 2) / truth.height, w / truth.width, h / truth.height)
    return " ".join([str(k), *(f"{value:.10f}" for value in fractions)])


def polygon_line(k: int, polygon: list[float], truth: Truth) -> str:
    sides = (truth.width, truth.height)
    return " ".join([str(k), *(f"{value / sides[i % 2]:.10f}" for i, value in enumerate(polygon))])


def small_set(root: Path, yaml: str = YAML, label: str = "0 0.5 0.5 0.25 0.5\n") -> Path:
    """One picture of 16 x 12 pixels a split."""
    put(root / "data.yaml", yaml)
    for split in ("train", "val"):
        paint(root / "images" / split / "a.jpg")
        put(root / "labels" / split / "a.txt", label)
    return root


def test_real_boxes_written_as_yolo_come_back_to_a_millionth_of_a_pixel(shared_data: Path, tmp_path: Path) -> None:
    names = ["RBC", "WBC", "Platelets"]
    put(tmp_path / "data.yaml", f"train: ../train/images\nval: ../valid/images\nnc: 3\nnames: {names}\n")
    truths = {split: read_coco(shared_data / "bccd3", split) for split in ("train", "val")}
    for split, folder in (("train", "train"), ("val", "valid")):
        for truth in truths[split]:
            link(truth.path, tmp_path / folder / "images" / truth.path.name)
            lines = [box_line(names.index(name), box, truth) for name, box, _, _ in truth.objects]
            put(tmp_path / folder / "labels" / f"{truth.path.stem}.txt", "\n".join(lines))
    assert find_yolo(tmp_path)
    splits, notes = read_yolo(tmp_path)
    assert notes == [] and list(splits) == ["train", "val"]
    for split, got in splits.items():
        assert got.names == dict(enumerate(names))
        assert got.file_names == [truth.path.name for truth in truths[split]]
        for row, truth in enumerate(truths[split]):
            assert (got.heights[row], got.widths[row]) == (truth.height, truth.width)
            found = objects_of(got, row)
            assert [(name, crowd) for name, _, crowd in found] == [(name, 0) for name, _, _, _ in truth.objects]
            np.testing.assert_allclose([b for _, b, _ in found], [b for _, b, _, _ in truth.objects], atol=1e-6)


def test_real_polygons_come_back_with_their_bounds_as_boxes(shared_data: Path, tmp_path: Path) -> None:
    put(tmp_path / "data.yaml", "path: data\ntrain: images\nnames:\n  0: thing\n")
    truths, wanted = read_coco(shared_data / "coco_mini", "val"), []
    for truth in truths:
        # One part of an object is what a line holds; runs of crowds are no polygons.
        polygons = [parts[0] for _, _, crowd, parts in truth.objects if not crowd]
        wanted.append(polygons)
        link(truth.path, tmp_path / "data" / "images" / truth.path.name)
        if polygons:
            lines = [polygon_line(0, polygon, truth) for polygon in polygons]
            put(tmp_path / "data" / "labels" / f"{truth.path.stem}.txt", "\n".join(lines))
    got = read_yolo(tmp_path / "data.yaml")[0]["train"]
    flat = [polygon for polygons in wanted for polygon in polygons]
    assert got.object_rows.tolist() == [row for row, polygons in enumerate(wanted) for _ in polygons] and len(flat) > 20
    for i, polygon in enumerate(flat):
        ((found,),) = [got.segmentations[i]]
        np.testing.assert_allclose(found, polygon, atol=1e-6)
        x, y = polygon[0::2], polygon[1::2]
        np.testing.assert_allclose(got.boxes[i], [min(x), min(y), max(x) - min(x), max(y) - min(y)], atol=1e-6)
        area = sum(a * d - b * c for a, b, c, d in zip(x, y, x[1:] + x[:1], y[1:] + y[:1])) / 2
        assert got.areas[i] == pytest.approx(abs(area), rel=1e-6)


@given(
    k=st.sampled_from([0, 1]),
    box=st.tuples(*[st.floats(0, 1, width=32)] * 4),
    size=st.tuples(st.integers(1, 5000), st.integers(1, 5000)),
)
def test_a_line_gives_centre_and_size_in_pixels(tmp_path_factory, k: int, box: tuple, size: tuple[int, int]) -> None:
    path = tmp_path_factory.mktemp("label") / "a.txt"
    put(path, f"\n{k} " + " ".join(map(repr, box)) + "\n\n")
    photo = ImageLabels("a.jpg", *size)
    assert read_label_file(path, photo, NAMES) == []
    x, y, w, h = photo.boxes[0]
    assert photo.categories == [k]
    assert (x + w / 2, y + h / 2) == pytest.approx((box[0] * size[1], box[1] * size[0]), abs=1e-9)
    assert (w, h) == (box[2] * size[1], box[3] * size[0])


def test_no_label_file_or_an_empty_one_is_an_image_without_objects_and_the_first_is_counted(tmp_path: Path) -> None:
    small_set(tmp_path)
    paint(tmp_path / "images/train/b.jpg")
    paint(tmp_path / "images/train/c.PNG", kind="PNG")
    put(tmp_path / "labels/train/c.txt")
    splits, notes = read_yolo(tmp_path)
    assert splits["train"].file_names == ["a.jpg", "b.jpg", "c.PNG"] and splits["train"].object_rows.tolist() == [0]
    assert check_lines(notes, ("train", "1 of 3 images", "label"))


def test_lists_several_folders_and_labels_beside_the_images_are_found(tmp_path: Path) -> None:
    for name in ("one/a", "one/images/b", "two/images/deep/c", "two/images/d"):
        paint(tmp_path / f"{name}.jpg")
        put(tmp_path / f"{name.replace('images', 'labels')}.txt", "1 0.5 0.5 1 1\n")
    put(tmp_path / "val.txt", f"./one/a.jpg\n\n{tmp_path}/two/images/d.jpg\n./one/a.jpg\n")
    put(tmp_path / "set.yml", "names: {1: dog, 4: cow}\ntrain: [one, two/images]\nval: val.txt\n")
    assert find_yolo(tmp_path)
    splits, _ = read_yolo(tmp_path)
    assert splits["train"].images_folder == tmp_path
    assert splits["train"].file_names == ["one/a.jpg", "one/images/b.jpg", "two/images/d.jpg", "two/images/deep/c.jpg"]
    assert splits["val"].file_names == ["one/a.jpg", "two/images/d.jpg"]
    assert splits["val"].boxes.tolist() == [[0, 0, 16, 12]] * 2 and splits["val"].names == {1: "dog", 4: "cow"}
    assert splits["val"].source == tmp_path / "val.txt"


def test_names_that_yaml_takes_for_other_things_stay_words(tmp_path: Path) -> None:
    small_set(tmp_path, YAML.replace("[cat, dog]", "[no, 1.0, ~]"))
    assert read_yolo(tmp_path)[0]["train"].names == {0: "no", 1: "1.0", 2: "~"}


def test_an_image_that_is_gone_or_broken_stays_to_be_named_by_the_verification(tmp_path: Path) -> None:
    small_set(tmp_path)
    put(tmp_path / "images/train/b.jpg", "no image")
    put(tmp_path / "labels/train/b.txt", "0 0.5 0.5 0.5 0.5\n")
    os.symlink(tmp_path / "gone", tmp_path / "images/train/c.jpg")
    got = read_yolo(tmp_path)[0]["train"]
    assert got.file_names == ["a.jpg", "b.jpg", "c.jpg"]
    assert got.heights.tolist() == [12, 0, 0] and got.object_rows.tolist() == [0]


def test_the_size_is_found_behind_a_long_comment(tmp_path: Path) -> None:
    small_set(tmp_path)
    path = tmp_path / "images/train/a.jpg"
    data = path.read_bytes()
    comment = b"\xff\xfe\xff\xff" + b" " * 65533
    path.write_bytes(data[:2] + 3 * comment + data[2:])
    assert read_yolo(tmp_path)[0]["train"].widths.tolist() == [16]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("2 0.5 0.5 0.1 0.1", r"class 2.*data\.yaml.*0 to 1"),
        ("-1 0.5 0.5 0.1 0.1", r"class -1.*data\.yaml"),
        ("0.5 0.5 0.5 0.1 0.1", "class 0.5, expected"),
        ("0 0.5 0.5 0.1", "4 numbers.*cx cy"),
        ("0 0.5 0.5 0.1 0.1 0.9", "6 numbers.*track id.*cut"),
        ("0 0.5 0.5 0.1 0.1 0.9 0.9 0.9", "8 numbers, expected"),
        ("cat 0.5 0.5 0.1 0.1", "not numbers: 'cat 0.5"),
        ("0 240 120 30 40", "240.*fraction"),
        ("0 0.5 0.5 0.1 1.5", r"1\.5.*fraction"),
        ("0 0.5 nan 0.1 0.1", "nan.*fraction"),
        ("0 0.5 0.5 -0.005 0.1", "width or height.*0"),
        ("0 0.5 0.5 -0.1875 0.1", r"width or height.*-0\.1875"),
        ("0,0.5,0.5,0.1,0.1", "1 number, .*separated by ','"),
        ("0;0.5;0.5;0.1;0.1", "1 number, .*separated by ';'"),
        ("0 0.5 0.5 0.1 0.1 0.4 0.4 2 0.5 0.5 0", r"2.*fraction.*kpt_shape: \[2, 3\]"),
        ("0 0.5 0.5 0.1 0.1 0.4 0.4 2 0.5 0.5 0 0.5 0.5 1", r"14 numbers, expected .* kpt_shape: \[3, 3\]"),
        ("0 0.1 0.1 0.5 0.1 0.3 7", "7.*fraction"),
    ],
)
def test_a_malformed_line_is_named_with_file_and_line(tmp_path: Path, line: str, reason: str) -> None:
    small_set(tmp_path, label=f"0 0.5 0.5 0.25 0.5\n\n{line}\n")
    with pytest.raises(DataError, match=rf"labels/train/a\.txt:3: .*{reason}"):
        read_yolo(tmp_path)


@pytest.mark.parametrize(
    ("yaml", "reason"),
    [
        ("train: images/train\n", "data.yaml ... class names"),
        ("train: images/train\nnames: cat, dog\n", "names ... 'cat, dog' ... list"),
        ("train: images/train\nnames: classes.txt\n", "names ... 'classes.txt'"),
        ("train: images/train\nnames: []\n", "class names"),
        ("train: images/train\nnames: {a: cat}\n", "names: ... class indices"),
        ("train: images/train\nnames: [cat, [dog]]\n", "class 1 of names ... name"),
        ("train: images/train\nnames:\n  - cat\n  - traffic: red\n", 'class 1 of names ... colon ... "traffic: red"'),
        ("train: images/train\nnames: [cat, cat]\n", "two classes ... 'cat'"),
        ("train: images/train\nnc: 3\nnames: [cat, dog]\n", "nc: is 3, but names: has 2"),
        ("names: [cat, dog]\n", "train ... folder"),
        ("names: [cat, dog]\ntrain: {a: b}\n", "train ... folder"),
        ("names: [cat, dog]\ntrain: nowhere\n", "train ... nowhere"),
        ("names: [cat, dog]\ntrain: labels/train\n", "train ... images"),
        ("names: [cat, dog\n", "data.yaml ... not valid YAML"),
        ("- cat\n", "keys"),
        ("names: !!python/object/apply:os.system [echo]\n", "train ... folder"),
        ("names: " + "[" * 20_000, "nested"),
    ],
)
def test_a_wrong_data_yaml_is_named_with_the_key(tmp_path: Path, yaml: str, reason: str) -> None:
    with raises(DataError, reason):
        read_yolo(small_set(tmp_path, yaml))


def test_yaml_of_another_kind_or_none_is_not_yolo(tmp_path: Path) -> None:
    assert not find_yolo(tmp_path) and not find_yolo(tmp_path / "nowhere")
    put(tmp_path / "conda.yaml", "dependencies: [python]\n")
    assert not find_yolo(tmp_path)
    put(tmp_path / "other.yaml", YAML)
    with pytest.raises(DataError, match=r"multiple YAML files found \(conda\.yaml, other\.yaml\)"):
        read_yolo(tmp_path)


def test_a_split_whose_labels_all_lack_is_refused_with_the_place(tmp_path: Path) -> None:
    small_set(tmp_path)
    (tmp_path / "labels/val/a.txt").unlink()
    with raises(DataError, "val", "1 images", "labels/val/a.txt"):
        read_yolo(tmp_path)


@given(st.floats(0.1, 100), st.floats(0.1, 100), st.booleans())
def test_a_polygons_area_is_that_of_its_triangle_in_either_direction(w: float, h: float, turn: bool) -> None:
    corners = [(3.0, 4.0), (3.0 + w, 4.0), (3.0, 4.0 + h)][:: -1 if turn else 1]
    assert polygon_area([value for corner in corners for value in corner]) == pytest.approx(w * h / 2)
