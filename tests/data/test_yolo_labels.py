"""Labels of YOLO images under near names, paths of other machines, key points: every object is read, or its file is named."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest
from label_formats import put
from messages import check_text, raises
from photo_folders import paint

from paceline._utils.errors import DataError
from paceline.cli.main import main
from paceline.data.formats.file_matching import NearNames, fold_name, fold_name_loosely
from paceline.data.formats.yolo import read_yolo

YAML = "train: images/train\nval: images/val\nnames: [cat, dog]\n"
BOX = "1 0.5 0.5 0.25 0.5\n"


def make_set(root: Path, images: list[str], labels: list[str], yaml: str = YAML) -> Path:
    """Pictures of 16 x 12 pixels and labels of one object; `val` is complete."""
    put(root / "data.yaml", yaml)
    for image in (*images, "images/val/v.jpg"):
        paint(root / image, kind="PNG" if image.endswith("png") else "JPEG")
    for label in (*labels, "labels/val/v.txt"):
        put(root / label, BOX)
    return root


def rows_and_notes(root: Path) -> tuple[list[int], str]:
    """The image of each object of train, and the notes."""
    splits, notes = read_yolo(root)
    return splits["train"].object_rows.tolist(), "\n".join(notes)


NFC, NFD = (unicodedata.normalize(form, "images/train/K\u00e4fer 1") for form in ("NFC", "NFD"))


@pytest.mark.parametrize(
    ("image", "label"),
    [
        ("images/train/b.jpg", "labels/train/B.txt"),
        ("images/train/b.jpg", "labels/train/b.TXT"),
        ("images/train/B.JPG", "labels/train/b.Txt"),
        ("images/train/b.jpg", "labels/train/b.jpg.txt"),
        ("images/train/b.jpg", "labels/train/b.txt.txt"),
        ("images/train/b c.jpg", "labels/train/b_c.txt"),
        ("images/train/b_c.jpg", "labels/train/b c.txt"),
        ("images/train/b  c.jpg", "labels/train/b c .txt"),
        ("images/train/b c.jpg", "labels/train/b%20c.txt"),
        (NFC + ".jpg", NFD.replace("images", "labels") + ".txt"),
        (NFD + ".jpg", NFC.replace("images", "labels") + ".txt"),
        ("images/train/b.jpg", "images/train/b.txt"),
        ("images/train/b.jpg", "images/train/labels/b.txt"),
        ("images/train/b.jpg", "Labels/train/b.txt"),
        ("images/train/b.jpg", "LABELS/Train/b.txt"),
        ("images/train/b.jpg", "labels/b.txt"),
        ("images/train/images/b.jpg", "images/train/images/b.txt"),
    ],
)
def test_a_label_under_a_near_name_is_read_with_a_note(tmp_path: Path, image: str, label: str) -> None:
    make_set(tmp_path, ["images/train/a.jpg", image], ["labels/train/a.txt", label])
    rows, notes = rows_and_notes(tmp_path)
    assert rows == [0, 1] and check_text(notes, "train", "1 label file", "name", Path(label).name)
    assert "no label" not in notes and "no image" not in notes


@pytest.mark.parametrize(
    ("images", "labels", "yaml"),
    [
        (["Images/train/a.jpg"], ["Labels/train/a.txt"], YAML.replace("images/train", "Images/train")),
        (["Images/Train/a.jpg"], ["labels/train/a.txt"], YAML.replace("images/train", "Images/train")),
        (["images/Train/a.jpg"], ["labels/Train/a.txt"], YAML),
        (["train/photos/a.jpg"], ["train/labels/a.txt"], YAML.replace("images/train", "train/photos")),
        (["train/a.jpg"], ["labels/train/a.txt"], YAML.replace("images/train", "train")),
        (["train/img/a.jpg"], ["train/Labels/a.txt"], YAML.replace("images/train", "train/img")),
    ],
)
def test_folders_of_images_and_labels_are_found_in_any_case(tmp_path: Path, images, labels, yaml: str) -> None:
    assert rows_and_notes(make_set(tmp_path, images, labels, yaml))[0] == [0]


def test_a_label_of_another_image_is_never_used(tmp_path: Path) -> None:
    """The label of a photo that no split lists, of another folder, or one that fits two photos equally."""
    make_set(
        tmp_path,
        ["images/train/a.jpg", "images/train/b c.jpg", "images/train/d.jpg", "images/test/d.jpg", "images/train/e f.jpg"],
        ["labels/train/a.txt", "labels/test/d.txt", "labels/train/e_f.txt", "labels/train/E_F.txt"],
        YAML.replace("images/train", "list.txt"),
    )
    put(tmp_path / "list.txt", "".join(f"images/train/{name}.jpg\n" for name in ("a", "b c", "d", "e f")))
    paint(tmp_path / "images/train/b_c.jpg")
    put(tmp_path / "labels/train/b_c.txt", BOX)
    rows, notes = rows_and_notes(tmp_path)
    assert rows == [0] and check_text(notes, "train", "3 of 4", "label")
    check_text(notes, "2 label files", "labels/train/E_F.txt, labels/train/e_f.txt")


def test_two_images_that_share_a_label_are_rejected_unless_it_is_empty(tmp_path: Path) -> None:
    make_set(tmp_path, ["images/train/a.jpg", "images/train/a.png"], ["labels/train/a.txt"])
    with raises(DataError, "labels/train/a.txt", "2 images", "a.jpg", "a.png"):
        read_yolo(tmp_path)
    put(tmp_path / "labels/train/a.txt")
    assert rows_and_notes(tmp_path)[0] == []


def test_labels_called_as_the_whole_image_belong_to_it(tmp_path: Path) -> None:
    names = ("a.jpg", "a.png", "B.JPG")
    make_set(tmp_path, [f"images/train/{name}" for name in names], [f"labels/train/{name}.txt" for name in names])
    rows, notes = rows_and_notes(tmp_path)
    assert rows == [0, 1, 2] and check_text(notes, "train", "3 label files", "name")


def test_captions_next_to_images_are_no_labels(tmp_path: Path) -> None:
    make_set(tmp_path, ["images/train/a.jpg", "images/train/b.jpg"], ["labels/train/a.txt"])
    put(tmp_path / "images/train/b.txt", "a cat and 2 dogs\n")
    rows, notes = rows_and_notes(tmp_path)
    assert rows == [0] and check_text(notes, "train", "1 of 2", "label")


def test_a_split_is_never_replaced_by_another(tmp_path: Path) -> None:
    make_set(tmp_path, ["images/a.jpg"], ["labels/a.txt"], "train: images\nval: ../valid/images\nnames: [cat, dog]\n")
    with raises(DataError, "val", "../valid/images"):
        read_yolo(tmp_path)


def test_images_of_two_splits_that_share_a_label_are_rejected(tmp_path: Path) -> None:
    make_set(tmp_path, ["images/a.jpg", "images/a.png"], ["labels/a.txt"], "train: t.txt\nval: v.txt\nnames: [cat, dog]\n")
    put(tmp_path / "t.txt", "images/a.jpg\n")
    put(tmp_path / "v.txt", "images/a.png\n")
    with pytest.raises(DataError, match="matches 2 images"):
        read_yolo(tmp_path)
    put(tmp_path / "v.txt", "images/a.jpg\n")  # the same photo in both
    assert rows_and_notes(tmp_path)[0] == [0]


def test_labels_without_an_image_are_listed_and_lists_of_classes_are_not(tmp_path: Path) -> None:
    make_set(
        tmp_path,
        ["images/train/a.jpg"],
        ["labels/train/a.txt", "labels/train/lost.txt", "labels/val/lost 2.txt", "labels/train/more/x.txt"],
    )
    for name, text in (("classes.txt", "cat\ndog\n"), ("readme.txt", "1 2 3\n"), ("empty.txt", ""), ("._a.txt", BOX)):
        put(tmp_path / "labels/train" / name, text)
    paint(tmp_path / "images/train/c.heic")  # it cannot be read, and prepare counts it
    put(tmp_path / "labels/train/c.txt", BOX)
    rows, notes = rows_and_notes(tmp_path)
    assert rows == [0]
    check_text(notes, "3 label files", "labels/train/lost.txt, labels/train/more/x.txt, labels/val/lost 2.txt")


@pytest.mark.parametrize(
    "yaml",
    [
        "path: C:\\data\\set\ntrain: images\\train\nval: images\\val\n",
        "train: C:\\data\\set\\images\\train\nval: D:/set/images/val\n",
        "path: /home/ann/set\ntrain: /home/ann/set/images/train\nval: ../../images/val\n",
        "train: .\\IMAGES\\train\nval: \\\\server\\share\\images\\val\n",
    ],
)
def test_folders_of_another_machine_are_found_with_a_note(tmp_path: Path, yaml: str) -> None:
    make_set(tmp_path, ["images/train/a.jpg"], ["labels/train/a.txt"], yaml + "names: [cat, dog]\n")
    splits, notes = read_yolo(tmp_path)
    assert [len(split.boxes) for split in splits.values()] == [1, 1]
    assert "data.yaml: train: " in notes[0] and notes[0].endswith(f"using {tmp_path}/images/train")


@pytest.mark.parametrize(
    "line",
    [
        ".\\images\\train\\a b.jpg",
        "C:\\set\\images\\train\\a b.jpg",
        "data/images/train/a b.jpg",
        "/content/set/images/train/a b.jpg",
        "images/train/a%20b.jpg",
        "./Images/train/A B.JPG",
    ],
)
def test_paths_of_another_machine_in_a_list_are_found_with_a_note(tmp_path: Path, line: str) -> None:
    make_set(tmp_path, ["images/train/a b.jpg"], ["labels/train/a b.txt"], YAML.replace("images/train", "train.txt"))
    put(tmp_path / "train.txt", f"{line}\n")
    splits, notes = read_yolo(tmp_path)
    assert splits["train"].file_names == ["a b.jpg"] and len(splits["train"].boxes) == 1
    check_text(notes[0], "train.txt", "1 of")


def test_a_list_whose_images_are_all_missing_is_rejected_for_its_images(tmp_path: Path) -> None:
    make_set(tmp_path, ["images/train/a.jpg"], ["labels/train/a.txt"], YAML.replace("images/train", "train.txt"))
    put(tmp_path / "train.txt", "elsewhere/x.jpg\nelsewhere/y.jpg\n")
    with raises(DataError, "train.txt", "2 images", "elsewhere/x.jpg"):
        read_yolo(tmp_path)


@pytest.mark.parametrize(
    ("shape", "points"),
    [
        ("[4, 2]", "0.1 0.2 " * 4),
        ("[3, 3]", "0.1 0.2 2 " * 3),
        ("[2, 3]", "0.1 0.2 1 0.3 0.3 1"),
        ("[1, 2]", "0 0"),
        ("[17, 3]", "0 0 0 " * 17),
    ],
)
def test_key_points_give_boxes_and_no_masks(tmp_path: Path, shape: str, points: str) -> None:
    make_set(tmp_path, ["images/train/a.jpg"], ["labels/train/a.txt"], f"{YAML}kpt_shape: {shape}\n")
    put(tmp_path / "labels/train/a.txt", f"{BOX.strip()} {points}\n{BOX}")
    splits, notes = read_yolo(tmp_path)
    assert splits["train"].boxes.tolist() == [[6, 3, 4, 6]] * 2 and splits["train"].segmentations == [None, None]
    check_text(notes, "train", "kpt_shape", "2 objects")
    put(tmp_path / "labels/train/a.txt", f"{BOX.strip()} {points} 0.1\n")
    with raises(DataError, "a.txt:1", "kpt_shape"):
        read_yolo(tmp_path)


@pytest.mark.parametrize("shape", ["4", "[4]", "[0, 2]", "[4, 5]", "[a, 2]", "[4, 2, 1]", "{a: b}", "[[4], 2]"])
def test_a_shape_of_key_points_that_is_none_is_rejected(tmp_path: Path, shape: str) -> None:
    make_set(tmp_path, ["images/train/a.jpg"], ["labels/train/a.txt"], f"{YAML}kpt_shape: {shape}\n")
    with pytest.raises(DataError, match=r"data\.yaml: kpt_shape: is .* expected"):
        read_yolo(tmp_path)


def test_files_that_are_not_utf8_are_rejected_with_the_command_that_converts_them(tmp_path: Path) -> None:
    make_set(tmp_path, ["images/train/a.jpg"], ["labels/train/a.txt"])
    (tmp_path / "data.yaml").write_bytes(YAML.replace("cat", "L\u00f6we").encode("latin-1"))
    with raises(DataError, "data.yaml", "byte 45", "UTF-8", "iconv"):
        read_yolo(tmp_path)


def test_hidden_and_system_files_are_no_part_of_a_yolo_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_set(tmp_path, ["images/train/a.jpg"], ["labels/train/a.txt"])
    (tmp_path / "data.yaml").rename(tmp_path / "set.yaml")
    for name in ("._set.yaml", ".other.yml", "images/train/._a.jpg", "labels/train/._a.txt"):
        put(tmp_path / name, "\x00\x05\x16\x07")
    for folder in (".ipynb_checkpoints", "@eaDir/a.jpg", "__MACOSX"):
        paint(tmp_path / "images/train" / folder / "a.jpg")
    assert main(["prepare", "yolo", str(tmp_path), "--output-dir", str(tmp_path / "out")]) == 0
    assert "train: 1 images, 1 objects" in capsys.readouterr().out.replace("image,", "images,").replace(
        "object ", "objects "
    )


def test_a_label_under_a_near_name_is_watched_for_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from paceline.data.index.manifest import Manifest
    from paceline.data.index.staleness import find_stale_file

    make_set(tmp_path / "set", ["images/train/a.jpg", "images/train/b.jpg"], ["labels/train/a.txt", "labels/train/b.TXT"])
    assert main(["prepare", "yolo", str(tmp_path / "set"), "--output-dir", str(tmp_path / "out")]) == 0
    manifest = Manifest.load(tmp_path / "out")
    assert find_stale_file(manifest) is None
    put(tmp_path / "set/labels/train/b.TXT", BOX + BOX)
    assert "annotations changed" in str(find_stale_file(manifest))


def test_forms_of_names() -> None:
    assert fold_name(NFC) == fold_name(NFD.upper()) != fold_name("kafer 1")
    assert (
        fold_name_loosely("A_b%20C.jpg") == fold_name_loosely("a  b c.jpg") and fold_name_loosely("100%.jpg") == "100%.jpg"
    )
    assert fold_name_loosely("\udcff") == "\udcff"


def test_a_path_of_two_spellings_is_none(tmp_path: Path) -> None:
    for name in ("Labels", "LABELS"):
        (tmp_path / name).mkdir()
    if len(os.listdir(tmp_path)) == 2:
        assert NearNames().path(str(tmp_path / "labels")) == "" and NearNames().path("/") == "/"
