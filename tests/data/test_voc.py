"""Pascal VOC: the boxes that were written come back, in every layout, and what is broken is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from label_formats import link, objects_of, put, read_coco, voc_xml
from messages import check_text, raises
from photo_folders import paint

from paceline._utils.errors import DataError
from paceline.data.formats.layouts import DetectionLayout
from paceline.data.formats.voc import find_voc, read_voc, read_voc_file
from paceline.data.prepare.box_checks import check_splits
from paceline.data.prepare.box_source import BoxRequest, prepare_boxes

ONE = [("cat", (2, 3, 10, 12), 0)]


def official(root: Path, files: dict[str, str], sets: dict[str, list[str]]) -> Path:
    for stem, text in files.items():
        put(root / "Annotations" / f"{stem}.xml", text)
        paint(root / "JPEGImages" / f"{stem}.jpg")
    for name, stems in sets.items():
        put(root / "ImageSets" / "Main" / f"{name}.txt", "\n".join(stems) + "\n")
    return root


def test_real_boxes_written_as_voc_come_back_unchanged(shared_data: Path, tmp_path: Path) -> None:
    wanted = {}
    for split in ("train", "val"):
        truths = read_coco(shared_data / "bccd3", split)
        for truth in truths:
            rows = [(n, (b[0] + 1, b[1] + 1, b[0] + b[2], b[1] + b[3]), 0) for n, b, _, _ in truth.objects]
            xml = voc_xml(truth.path.name, (truth.height, truth.width), rows)
            put(tmp_path / "Annotations" / f"{truth.path.stem}.xml", xml)
            link(truth.path, tmp_path / "JPEGImages" / truth.path.name)
        put(tmp_path / f"ImageSets/Main/{split}.txt", "".join(f"{truth.path.stem}\n" for truth in truths))
        wanted[split] = truths
    assert find_voc(tmp_path)
    splits, notes = read_voc(tmp_path)
    assert notes == [] and list(splits) == ["train", "val"]
    for split, truths in wanted.items():
        got = splits[split]
        assert got.file_names == [truth.path.name for truth in truths]
        assert got.heights.tolist() == [truth.height for truth in truths]
        assert got.widths.tolist() == [truth.width for truth in truths]
        for row, truth in enumerate(truths):
            assert objects_of(got, row) == [(name, box, 0) for name, box, _, _ in truth.objects]
        assert got.names == {1: "Platelets", 2: "RBC", 3: "WBC"}
        assert (got.images_folder / got.file_names[0]).is_file()
        np.testing.assert_array_equal(got.areas, got.boxes[:, 2] * got.boxes[:, 3])
    ids = np.concatenate([splits[split].annotation_ids for split in splits])
    assert sorted(ids.tolist()) == list(range(1, len(ids) + 1))
    assert not set(splits["train"].image_ids.tolist()) & set(splits["val"].image_ids.tolist())


def test_pixels_count_from_one_and_the_last_one_is_inside(tmp_path: Path) -> None:
    official(tmp_path, {"a": voc_xml("a.jpg", (12, 16), [("dog", (1, 1, 16, 12), 0), ("dog", (5, 6, 5, 6), 0)])}, {})
    (got,) = read_voc(tmp_path)[0].values()
    assert got.boxes.tolist() == [[0, 0, 16, 12], [4, 5, 1, 1]]


def test_a_set_with_pixel_zero_is_read_as_counted_from_zero_in_all_its_splits(tmp_path: Path) -> None:
    files = {"a": voc_xml("a.jpg", (12, 16), [("dog", (0, 2, 8, 9), 0)]), "b": voc_xml("b.jpg", (12, 16), ONE)}
    splits, notes = read_voc(official(tmp_path, files, {"train": ["b"], "val": ["a"]}))
    assert splits["val"].boxes.tolist() == [[0, 2, 8, 7]] and splits["train"].boxes.tolist() == [[2, 3, 8, 9]]
    assert "counted from 0" in notes[0]


def test_difficult_objects_become_crowd_regions_and_parts_are_no_objects(tmp_path: Path) -> None:
    rows = [("cat", (1, 1, 4, 4), 1), ("dog", (2.5, 2.5, 9, 9), 0)]
    splits, notes = read_voc(official(tmp_path, {"a": voc_xml("a.jpg", (12, 16), rows)}, {}))
    assert objects_of(splits["train"], 0) == [("cat", [0, 0, 4, 4], 1), ("dog", [1.5, 1.5, 7.5, 7.5], 0)]
    check_text(notes[0], "1 objects", "difficult")


def test_an_image_without_objects_stays_and_one_without_a_file_is_left_out_and_counted(tmp_path: Path) -> None:
    files = {"a": voc_xml("a.jpg", (12, 16), ONE), "b": voc_xml("b.jpg", (12, 16), [])}
    official(tmp_path, files, {})
    paint(tmp_path / "JPEGImages" / "never.jpg")
    splits, notes = read_voc(tmp_path)
    assert splits["train"].file_names == ["a.jpg", "b.jpg"] and splits["train"].object_rows.tolist() == [0]
    check_text(notes[0], "1 images", "XML")


@pytest.mark.parametrize(
    ("sets", "wanted"),
    [
        ({"train": ["a"], "val": ["b"], "trainval": ["a", "b"], "test": ["c"]}, {"train": "a", "val": "b"}),
        ({"trainval": ["a", "b"], "test": ["c"]}, {"train": "ab", "val": "c"}),
        ({"trainval": ["b"]}, {"train": "b"}),
        ({"train": ["a  1", "c -1"]}, {"train": "ac"}),
        ({}, {"train": "abc"}),
    ],
)
def test_sets_name_the_splits(tmp_path: Path, sets: dict[str, list[str]], wanted: dict[str, str]) -> None:
    official(tmp_path / "VOCdevkit" / "VOC2012", {s: voc_xml(f"{s}.jpg", (12, 16), ONE) for s in "abc"}, sets)
    splits, _ = read_voc(tmp_path)
    assert {name: "".join(n[0] for n in got.file_names) for name, got in splits.items()} == wanted


@pytest.mark.parametrize("folders", [("",), ("train", "valid"), ("train", "val")])
def test_flat_folders_hold_xml_beside_the_images(tmp_path: Path, folders: tuple[str, ...]) -> None:
    for folder in folders:
        put(tmp_path / folder / "a.b.xml", voc_xml("a.b.png", (12, 16), ONE))
        paint(tmp_path / folder / "a.b.png", kind="PNG")
    assert find_voc(tmp_path)
    splits, _ = read_voc(tmp_path)
    assert list(splits) == ["train", "val"][: len(folders)]
    for got in splits.values():
        assert got.file_names == ["a.b.png"] and objects_of(got, 0) == [("cat", [1, 2, 9, 10], 0)]


def test_small_letter_folders_of_images_and_annotations_are_the_same_layout(tmp_path: Path) -> None:
    put(tmp_path / "annotations" / "x.xml", voc_xml("x.png", (12, 16), ONE))
    paint(tmp_path / "images" / "x.png", kind="PNG")
    assert find_voc(tmp_path)
    assert read_voc(tmp_path)[0]["train"].images_folder == tmp_path / "images"


@pytest.mark.parametrize("said", ["../../secret.jpg", "/etc/passwd", "..", "C:\\photos\\b.jpg", "b.jpg", ""])
def test_the_file_name_inside_never_leads_out_of_the_folder(tmp_path: Path, said: str) -> None:
    put(tmp_path / "set" / "a.xml", voc_xml(said, (12, 16), ONE))
    paint(tmp_path / "secret.jpg")
    (got,) = read_voc(tmp_path / "set")[0].values()
    assert got.file_names[0] in ("secret.jpg", "a.jpg", "b.jpg")  # in the folder, where no such file is
    paint(tmp_path / "set" / "a.jpg")
    (got,) = read_voc(tmp_path / "set")[0].values()
    assert got.file_names == ["a.jpg"]


def test_two_files_of_one_image_are_refused(tmp_path: Path) -> None:
    for stem in "xy":
        put(tmp_path / f"{stem}.xml", voc_xml("photo.jpg", (12, 16), ONE))
    paint(tmp_path / "photo.jpg")
    with pytest.raises(DataError, match=r"y\.xml: describes photo\.jpg, which x\.xml also describes"):
        read_voc(tmp_path)


BOMB = '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY x "ha"><!ENTITY y "&x;&x;">]><annotation>&y;</annotation>'
EMPTY = "<annotation><size><width>16</width><height>12</height></size>{}</annotation>"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (BOMB.encode(), "document type"),
        (BOMB.encode("utf-16"), "document type"),
        (BOMB.replace('"1.0"', '"1.0" encoding="cp037"', 1).encode(), "not valid XML"),
        (b"<annotation><object></annotation>", r"not valid XML \(mismatched tag: line 1"),
        (b"", "not valid XML"),
        (b"<annotation>\xff\xfe\xfa</annotation>", "not utf-8 text"),
        (b"<html></html>", "<html>"),
        (EMPTY.format("<object><bndbox/></object>").encode(), "object 1 has no <name>"),
        (EMPTY.format("<object><name>a</name></object>").encode(), r"object 1 \(a\): <xmin> is missing"),
        (voc_xml("a", (12, 16), [("a", (1, 1, "nan", 2), 0)]).encode(), "<xmax>.*'nan'"),
        (voc_xml("a", (12, 16), [("a", (1, "two", 1, 2), 0)]).encode(), "<ymin>.*'two'"),
        (EMPTY.replace("16", "-3").encode(), "width.*'-3'"),
    ],
)
def test_a_broken_file_is_named_with_the_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "bad.xml").write_bytes(data)
    with pytest.raises(DataError, match=rf"bad\.xml: .*{reason}"):
        read_voc_file(tmp_path / "bad.xml")
    with pytest.raises(DataError, match=r"bad\.xml: (.|\n)*prepare` again"):
        read_voc(tmp_path)


def test_many_broken_files_are_named_up_to_five_and_counted(tmp_path: Path) -> None:
    for i in range(8):
        put(tmp_path / f"{i}.xml", "<annotation>")
    with pytest.raises(DataError) as caught:
        read_voc(tmp_path)
    assert str(caught.value).count("not valid XML") == 5 and "and 3 more" in str(caught.value)


def test_a_declared_encoding_is_read(tmp_path: Path) -> None:
    text = '<?xml version="1.0" encoding="gb2312"?>' + voc_xml("a.jpg", (12, 16), [("\u732b", (1, 1, 2, 2), 0)])
    (tmp_path / "a.xml").write_bytes(text.encode("gb2312"))
    assert read_voc_file(tmp_path / "a.xml").objects[0].name == "\u732b"


def test_a_file_too_large_for_one_image_is_not_opened(tmp_path: Path) -> None:
    with open(tmp_path / "a.xml", "wb") as file:
        file.truncate((8 << 20) + 1)
    with raises(DataError, "8,388,608"):
        read_voc_file(tmp_path / "a.xml")


def test_a_size_that_is_not_said_is_zero(tmp_path: Path) -> None:
    read = read_voc_file(put(tmp_path / "a.xml", "<annotation></annotation>"))
    assert (read.height, read.width, read.objects) == (0, 0, [])


def test_no_xml_no_images_no_objects_and_sets_that_lie_are_refused(tmp_path: Path) -> None:
    paint(tmp_path / "a" / "x.jpg")
    assert not find_voc(tmp_path / "a") and not find_voc(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no XML file of Pascal VOC found"):
        read_voc(tmp_path / "a")
    put(tmp_path / "b" / "Annotations" / "x.xml", voc_xml("x.jpg", (12, 16), ONE))
    with pytest.raises(DataError, match=r"no JPEGImages/"):
        read_voc(tmp_path / "b")
    official(tmp_path / "c", {"x": voc_xml("x.jpg", (12, 16), [])}, {})
    with raises(DataError, "XML", "<object>"):
        read_voc(tmp_path / "c")
    official(tmp_path / "d", {"x": voc_xml("x.jpg", (12, 16), ONE)}, {"train": ["x", "gone", "../x"]})
    with raises(DataError, "2 lines", "XML", "'gone'"):
        read_voc(tmp_path / "d")
    for year in ("VOC2007", "VOC2012"):
        official(tmp_path / "e" / year, {"x": voc_xml("x.jpg", (12, 16), ONE)}, {})
    with pytest.raises(DataError, match=r"years found \(VOC2007, VOC2012\)"):
        read_voc(tmp_path / "e")


def test_without_validation_images_the_way_that_voc_has_is_named_and_leads_on(tmp_path: Path) -> None:
    files = {f"{number}": voc_xml(f"{number}.jpg", (12, 16), ONE) for number in range(3)}
    root = official(tmp_path / "set", files, {"train": ["0", "1"]})
    request = BoxRequest("voc")
    with raises(DataError, "validation") as refusal:
        prepare_boxes(root, request, out=tmp_path / "out", workers=1)
    assert "ImageSets/Main/val.txt" in str(refusal.value) and "--val-images-dir" not in str(refusal.value)
    put(root / "ImageSets" / "Main" / "val.txt", "2\n")
    assert prepare_boxes(root, request, out=tmp_path / "out", workers=1).splits["val"].images == 1


@pytest.mark.parametrize(
    ("request_", "wanted"),
    [
        (BoxRequest("yolo"), "data.yaml"),
        (BoxRequest("coco"), "instances_val2017.json"),
        (BoxRequest("coco", images_dir="photos", annotations="a.json"), "--val-images-dir and --val-annotations"),
    ],
)
def test_so_it_is_for_the_other_forms(tmp_path: Path, request_: BoxRequest, wanted: str) -> None:
    source = DetectionLayout(request_.layout or "coco", tmp_path, {"train": None}, [], {})  # type: ignore[dict-item]
    with pytest.raises(DataError) as refusal:
        check_splits(source, request_, "paceline prepare ...")
    assert wanted in str(refusal.value) and "--val-fraction 0.2" in str(refusal.value)
    assert ("--val-images-dir" in str(refusal.value)) == bool(request_.images_dir)
