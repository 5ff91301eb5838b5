"""Names in annotations mean the file whose name differs least. Ambiguous names, or those of another split, do not match."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from coco_sets import edit, make_set
from label_formats import voc_xml
from messages import check_text, raises
from photo_folders import paint

from paceline._utils.errors import DataError
from paceline.data.formats.class_folders import check_classes, list_class_folders
from paceline.data.formats.file_matching import match_names
from paceline.data.formats.voc import read_voc
from paceline.data.prepare.box_source import BoxRequest, prepare_boxes

NFC, NFD = (unicodedata.normalize(form, "K\u00e4fer 01.jpg") for form in ("NFC", "NFD"))


def matched(names: list[str], paths: list[str], folder: str = "photos") -> tuple[list[str], list[str]]:
    return match_names(names, Path("/data", folder), Path("x.json"), lambda i: f"image {i}", paths)


@pytest.mark.parametrize(
    ("name", "path", "differs"),
    [
        (NFC, NFD, "Unicode form or spaces"),
        (NFD, NFC, "Unicode form or spaces"),
        ("a\u202fb.jpg", "a b.jpg", "Unicode form or spaces"),
        (" a.jpg", "a.jpg", "Unicode form or spaces"),
        ("IMG_01.JPG", "img_01.jpg", "case"),
        ("Left/A.jpg", "left/a.jpg", "case"),
        ("a.png", "a.jpg", "suffix"),
        ("a.JPEG", "a.jpg", "suffix"),
        ("1.2.3.png", "1.2.3.jpg", "suffix"),
        ("Foto%20A.jpg", "Foto A.jpg", "URL encoding"),
        ("foto%20a.JPG", "Foto A.jpg", "case, URL encoding"),
        ("images/Foto%20A.jpg", "Foto A.jpg", "URL encoding, folder"),
        ("http://host/data/Foto%20A.jpg", "Foto A.jpg", "URL encoding, folder"),
        ("train/a.jpg", "a.jpg", "folder"),
        ("/home/ann/a.jpg", "a.jpg", "folder"),
        ("C:\\set\\A.JPG", "a.jpg", "case, folder"),
        ("a.jpg", "deep/er/a.jpg", "folder"),
    ],
)
def test_a_name_means_the_file_that_differs_least(name: str, path: str, differs: str) -> None:
    found, notes = matched([name], ["z.jpg", path])
    assert found == [path] and len(notes) == 1 and check_text(notes[0], "1 name", f"in {differs}")


@pytest.mark.parametrize(
    ("names", "paths", "folder"),
    [
        (["a.jpg"], ["b.jpg"], "photos"),
        (["IMG.JPG", "img.jpg"], ["img.jpg"], "photos"),  # the file has its own name
        (["a.jpg", "b.jpg"], ["a.jpg", "masks/b.jpg"], "photos"),  # photos lie above, one of them is missing
        (["train/a.jpg"], ["train/b.jpg", "a.jpg"], "photos"),  # its folder is there
        (["train/a.jpg"], ["a.jpg"], "val"),
        (["train2017/a.jpg"], ["val2017/a.jpg"], "photos"),
        (["a.jpg"], ["masks/a.png"], "photos"),
    ],
)
def test_what_may_be_another_file_is_missing(names: list[str], paths: list[str], folder: str) -> None:
    assert matched(names, paths, folder) == (names, [])


@pytest.mark.parametrize(
    ("names", "paths"),
    [
        (["IMG.JPG"], ["img.jpg", "Img.jpg"]),
        (["a.jpg"], ["a.png", "a.bmp"]),
        (["a.jpg"], ["x/a.jpg", "y/a.jpg"]),
        (["A.jpg", "a.JPG"], ["a.jpg"]),
        (["/home/ann/a.jpg", "/home/bob/a.jpg"], ["a.jpg"]),
    ],
)
def test_an_ambiguous_name_is_rejected_with_its_entry(names: list[str], paths: list[str]) -> None:
    with raises(DataError, f"image {len(names) - 1}", f"'{names[-1]}'", *paths):
        matched(names, paths)


def test_each_kind_of_difference_is_counted_once(tmp_path: Path) -> None:
    found, notes = matched(["A.jpg", "B.jpg", "c.png"], ["a.jpg", "b.jpg", "c.jpg"])
    assert found == ["a.jpg", "b.jpg", "c.jpg"] and ["2 names" in notes[0], len(notes)] == [True, 2]


def test_photos_of_other_names_are_prepared_and_hidden_ones_are_none(tmp_path: Path) -> None:
    root = make_set(tmp_path / "set")
    for name in (".Spotlight/1.JPG", "__MACOSX/1.JPG", "@eaDir/1.JPG"):
        paint(root / "train2017" / name)
    edit(root, lambda record: record["images"][0].update(file_name="1.JPG"))
    edit(root, lambda record: record["images"][1].update(file_name="train2017/2.jpeg"))
    manifest = prepare_boxes(root)
    assert manifest.splits["train"].images == 3 and manifest.splits["train"].boxes.objects == 4  # type: ignore[union-attr]
    assert ["in case" in manifest.notes[0], "in suffix, folder" in manifest.notes[1]] == [True, True]


def test_one_file_of_two_images_is_there_twice(tmp_path: Path) -> None:
    root = edit(make_set(tmp_path / "set"), lambda record: record["images"][1].update(file_name="./1.jpg"))
    manifest = prepare_boxes(root)
    train = manifest.splits["train"]
    assert train.images == 3 and train.boxes is not None and train.boxes.objects == 4
    check_text(manifest.notes[0], "another entry: 1", "1.jpg")


def test_annotations_of_deleted_images_are_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    root = edit(make_set(tmp_path / "set"), lambda record: record["images"].pop(1))
    with raises(DataError, "annotation 1", "image id 2", "2 in total", "--on-missing skip"):
        prepare_boxes(root)
    manifest = prepare_boxes(root, BoxRequest(on_missing="skip"))
    train = manifest.splits["train"]
    assert train.images == 2 and train.boxes is not None and train.boxes.objects == 2
    check_text(manifest.notes[0], "annotation 1", "image id 2", "ignored")


def voc_set(root: Path, photo: str, xml: str, lines: list[str]) -> Path:
    for place in (1, 2, 3):
        paint(root / "JPEGImages" / photo.format(place))
        path = root / "Annotations" / xml.format(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(voc_xml(f"{place}.jpg", (12, 16), [("cat", (2, 3, 10, 12), 0)]), encoding="utf-8")
    if lines:
        (root / "ImageSets" / "Main").mkdir(parents=True)
        (root / "ImageSets" / "Main" / "train.txt").write_text("".join(f"{line}\n" for line in lines[:2]))
        (root / "ImageSets" / "Main" / "val.txt").write_text("".join(f"{line}\n" for line in lines[2:]))
    return root


@pytest.mark.parametrize(
    "line",
    [
        "a b.1{}.jpg",
        "a b.1{}.xml",
        "JPEGImages/a b.1{}.jpg",
        "/content/data/JPEGImages/a b.1{}.png",
        "C:\\data\\a b.1{}.jpg",
        "./JPEGImages/a b.1{0}.jpg ./Annotations/a b.1{0}.xml",
        "A B.1{}",
        "a b.1{}  1",
        "a b.1{}.jpg -1",
        "a%20b.1{}.jpg",
    ],
)
def test_lines_of_sets_may_be_paths_and_names_of_images(line: str, tmp_path: Path) -> None:
    root = voc_set(tmp_path, "a b.1{}.jpg", "a b.1{}.xml", [line.format(place) for place in (1, 2, 3)])
    splits, notes = read_voc(root)
    assert [splits[split].file_names for split in splits] == [["a b.11.jpg", "a b.12.jpg"], ["a b.13.jpg"]]
    assert [split.boxes.tolist() for split in splits.values()] == [[[1, 2, 9, 10]] * 2, [[1, 2, 9, 10]]]
    assert ("2 names" in "".join(notes)) == (line != "a b.1{}  1")


@pytest.mark.parametrize(
    ("photo", "xml", "lines"),
    [
        ("{}.jpg", "{}.XML", ["1", "2", "3"]),
        (NFD.replace("1.", "{}."), NFC.replace("1.jpg", "{}.xml"), []),
        ("IMG_{}.JPG", "img_{}.xml", ["img_1", "img_2", "img_3"]),
    ],
)
def test_files_of_a_voc_set_belong_together_in_other_forms(photo, xml, lines, tmp_path: Path) -> None:
    splits, notes = read_voc(voc_set(tmp_path, photo, xml, lines))
    names = [name for split in splits.values() for name in split.file_names]
    assert names == [photo.format(place) for place in (1, 2, 3)] and notes


def test_a_line_that_fits_no_file_says_what_a_line_is(tmp_path: Path) -> None:
    with raises(DataError, "train.txt", "1 lines", "'9.jpg'", "XML"):
        read_voc(voc_set(tmp_path, "{}.jpg", "{}.xml", ["1", "9.jpg", "3"]))


def test_classes_in_another_unicode_form_are_named_with_the_way_to_rename_them(tmp_path: Path) -> None:
    for split, form in (("train", "NFC"), ("val", "NFD")):
        for label in ("\u00c4pfel", "N\u00fcsse", "z"):
            paint(tmp_path / split / unicodedata.normalize(form, label) / "0.jpg")
    with raises(DataError, "2 classes", "val/", "train/", "Unicode") as caught:
        check_classes(list_class_folders(tmp_path))
    move = f"mv {tmp_path}/val/A\u0308pfel {tmp_path}/val/\u00c4pfel"
    assert move in str(caught.value).replace("'", "")
