"""Packing boxes and masks: what is prepared from the pack is what was packed, or scaled with its photo."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from coco_sets import box, document, write_json
from messages import check_text, raises
from PIL import Image
from sets_to_pack import box_arrays, photo, photos_and_labels

from paceline._utils.errors import DataError
from paceline.data.containers.recordio import parse_detection_label, read_recordio
from paceline.data.containers.source import ContainerRequest, prepare_containers
from paceline.data.containers.tar import write_tar
from paceline.data.index.index import open_split
from paceline.data.index.manifest import Manifest
from paceline.data.pack.pack import pack
from paceline.data.pack.plan import PackRequest
from paceline.data.pack.write import detection_label
from paceline.data.prepare.box_source import prepare_boxes

WIDTH, HEIGHT = 40, 30
# Columns 10 to 19 of rows 6 to 11, as run lengths: column by column, background first.
RUNS = [10 * HEIGHT + 6, 6, *[HEIGHT - 6, 6] * 9, 20 * HEIGHT + HEIGHT - 12]


def boxed_set(root: Path, *, turned: bool = False) -> Path:
    """Photos 3, 1 and 9 (in this order), the last without objects: polygons, a crowd, boxes that end outside or have no area."""
    exif = Image.Exif()
    if turned:
        exif[0x0112] = 6
    objects = [
        box(1, 7, 1.25, 2, 10, 12.1, segmentation=[[1.25, 2, 11.25, 2, 11.25, 14.1], [3, 3, 4, 3, 4, 4]]),
        box(1, 3, 10, 6, 10, 6, iscrowd=1, segmentation={"counts": RUNS, "size": [HEIGHT, WIDTH]}),
        box(3, 3, 30, 20, 15, 15, area=77.7),
        box(3, 7, 5, 5, 0, 5),
        box(3, 7, 0, 0, 40, 30),
    ]
    for split in ("train", "val"):
        record = document([3, 1, 9], objects, {3: "dog", 7: "cat", 8: "unseen"})
        write_json(root, split, record)
        for number, image in enumerate(record["images"]):
            size = (HEIGHT, WIDTH) if turned else (WIDTH, HEIGHT)
            photo(root / f"{split}2017" / image["file_name"], size, seed=number, exif=exif.tobytes())
    return root


@pytest.fixture(scope="module", params=["upright", "turned"])
def source(request, tmp_path_factory) -> Manifest:
    root = boxed_set(tmp_path_factory.mktemp("boxes"), turned=request.param == "turned")
    return prepare_boxes(root, out=tmp_path_factory.mktemp("index"))


def test_every_box_and_mask_comes_back_bit_for_bit(source, tmp_path):
    packed, notes = pack(source, PackRequest("webdataset", num_shards=2), tmp_path)
    assert (packed.classes, packed.category_ids, notes) == (source.classes, source.category_ids, [])
    for split in ("train", "val"):
        mine, theirs = box_arrays(packed, split), box_arrays(source, split)
        assert [name for name in theirs if not np.array_equal(mine[name], theirs[name])] == []
        assert photos_and_labels(packed, split) == photos_and_labels(source, split)
        assert packed.splits[split].boxes.exif == source.splits[split].boxes.exif
    again, _ = pack(packed, PackRequest("webdataset"), tmp_path / "again")
    assert again.content_hash == packed.content_hash


def test_the_fields_are_cocos_words(source, tmp_path):
    pack(source, PackRequest("webdataset"), tmp_path)
    with tarfile.open(tmp_path / "train-00000.tar") as archive:
        names = archive.getnames()
        records = [json.load(archive.extractfile(name)) for name in names[1::2]]  # type: ignore[arg-type]
    assert names == ["3.jpg", "3.json", "1.jpg", "1.json", "9.jpg", "9.json"]
    assert [(record["image_id"], len(record["annotations"])) for record in records] == [(3, 3), (1, 2), (9, 0)]
    first = records[1]["annotations"][0]
    assert first["bbox"] == [1.25, 2, 10, 12.1] and (first["category_id"], first["category"]) == (7, "cat")
    assert (records[0]["height"], records[0]["width"]) == (HEIGHT, WIDTH)


def test_boxes_and_masks_shrink_with_their_photo(source, tmp_path):
    packed, _ = pack(source, PackRequest("webdataset", resize_shorter_side=20), tmp_path)
    mine, theirs = box_arrays(packed, "train"), box_arrays(source, "train")
    assert (mine["heights"][0], mine["widths"][0]) == (20, 26)
    scale = np.array([26 / 40, 20 / 30])
    np.testing.assert_allclose(mine["boxes"], theirs["boxes"] * np.tile(scale, 2), rtol=1e-15)
    np.testing.assert_allclose(mine["areas"], theirs["areas"] * scale.prod(), rtol=1e-15)
    points = theirs["polygon_points"].reshape(-1, 2) * scale
    np.testing.assert_allclose(mine["polygon_points"].reshape(-1, 2), points, rtol=1e-15)
    before = np.zeros((30, 40), np.uint8)
    before[6:12, 10:20] = 1
    wanted = np.asarray(Image.fromarray(before).resize((26, 20), Image.Resampling.NEAREST))
    runs = mine["rle_counts"]
    found = np.repeat(np.arange(len(runs)) % 2, runs).reshape(26, 20).T
    assert np.array_equal(found, wanted)
    for name in ("image_ids", "classes", "crowd", "annotation_ids", "usable", "object_starts"):
        assert np.array_equal(mine[name], theirs[name]), name


def test_recordio_has_the_boxes_that_training_uses(source, tmp_path):
    if source.splits["train"].boxes.exif == "apply":
        with raises(DataError, "6 images", "EXIF") as caught:
            pack(source, PackRequest("recordio"), tmp_path / "out")
        assert "--format webdataset" in str(caught.value) and not (tmp_path / "out").exists()
        return
    packed, notes = pack(source, PackRequest("recordio"), tmp_path)
    data = (tmp_path / "train.rec").read_bytes()
    labels = [np.asarray(record.labels) for record in read_recordio(io.BytesIO(data), len(data), "train.rec")]
    # MXNet's iterator cannot take a label without objects: one of class -1 stands for none.
    assert labels[2].tolist() == [2, 5, -1, 0, 0, 1, 1]
    assert len(parse_detection_label(labels[2], "9").classes) == 0
    objects = parse_detection_label(labels[0], "3")
    assert objects.classes.tolist() == [0, 1]
    np.testing.assert_allclose(objects.boxes, [[0.75, 20 / 30, 1, 1], [0, 0, 1, 1]], rtol=1e-6)
    assert packed.classes == ("dog", "cat", "unseen") and packed.category_ids == (0, 1, 2)
    found = box_arrays(packed, "train")
    assert found["classes"].tolist() == [1, 2, 2] and not found["crowd"].any()
    np.testing.assert_allclose(found["boxes"][2], [1.25, 2, 10, 12.1], rtol=1e-6)
    assert len(notes) == 1 and check_text(notes[0], "areas", "masks", "crowd", "4", "--format webdataset")


@pytest.mark.parametrize("wrong", ["class", "box", "object"])
def test_a_label_that_says_other_objects_is_noticed(tmp_path, monkeypatch, wrong):
    source = prepare_boxes(boxed_set(tmp_path / "set"), out=tmp_path / "index")

    def other(split, i):
        label = detection_label(split, i)
        if split.image_ids[i] == 1:
            label[2] += wrong == "class"
            label[3] -= 0.01 * (wrong == "box")
            label = np.append(label, label[2:7] if wrong == "object" else [])
        return label

    monkeypatch.setattr("paceline.data.pack.write.detection_label", other)
    with raises(DataError, "train", "packed", "delete"):
        pack(source, PackRequest("recordio", order="shuffled"), tmp_path / "out")


@pytest.mark.parametrize("short", [0, 20], ids=["as-it-is", "smaller"])
def test_photos_with_boxes_stay_turned_as_they_were(source, short, tmp_path):
    packed, _ = pack(source, PackRequest("webdataset", resize_shorter_side=short), tmp_path)
    mine, theirs = open_split(packed, "train"), open_split(source, "train")
    for i in range(3):
        equal = mine.read(i) == theirs.read(i)
        assert equal == (not short)
        assert mine.orientations[i] == theirs.orientations[i]


@pytest.mark.nightly("packs a real set")
def test_a_real_set_with_crowds_and_masks_comes_back(shared_data, tmp_path):
    source = prepare_boxes(shared_data / "coco_mini", out=tmp_path / "index")
    packed, _ = pack(source, PackRequest("webdataset", shard_bytes=20_000_000), tmp_path / "out")
    for split in ("train", "val"):
        mine, theirs = box_arrays(packed, split), box_arrays(source, split)
        assert [name for name in theirs if not np.array_equal(mine[name], theirs[name])] == []
    assert packed.classes == source.classes and len(source.classes) == 80
    assert len(list((tmp_path / "out").glob("train-*.tar"))) == 3


@pytest.mark.parametrize(
    "record, reason",
    [
        ({"annotations": [7]}, "object '7'"),
        ({"annotations": [{"bbox": [0, 0, 5, 5]}]}, "category_id"),
        ({"annotations": [{"category_id": 1, "bbox": [0, 0, 5]}]}, "'bbox'"),
        (
            {"annotations": [{"category_id": 1, "category": "b", "bbox": [0, 0, 5, 5]}]},
            "category 1 'b', but other samples name it 'a'",
        ),
        ({"annotations": [], "height": 31, "width": 40}, "has 40 x 31"),
        ({"annotations": {}}, "label, cls"),
        (3, "class ... boxes"),
    ],
    ids=["number", "no-category", "short-box", "two-names", "other-size", "no-list", "class"],
)
def test_a_strangers_json_is_refused_in_a_line(record, reason, tmp_path):
    good = {"annotations": [{"category_id": 1, "category": "a", "bbox": [0, 0, 5, 5]}]}
    files = []
    for number, label in enumerate((good, record)):
        photo(tmp_path / "photo.jpg", (WIDTH, HEIGHT), seed=number)
        files += [
            (b"%d.jpg" % number, (tmp_path / "photo.jpg").read_bytes()),
            (b"%d.json" % number, json.dumps(label).encode()),
        ]
    with open(tmp_path / "a.tar", "wb") as out:
        write_tar(out, files)
    with raises(DataError, reason) as caught:
        prepare_containers(ContainerRequest("webdataset", (str(tmp_path / "a.tar"),)), out=tmp_path / "index")
    assert "\n" not in str(caught.value)


def test_jsons_without_ids_or_sizes_are_taken(tmp_path):
    photo(tmp_path / "photo.jpg", (WIDTH, HEIGHT))
    data = (tmp_path / "photo.jpg").read_bytes()
    label = json.dumps({"annotations": [{"category_id": 4, "bbox": [1, 2, 3, 4]}]}).encode()
    with open(tmp_path / "a.tar", "wb") as out:
        write_tar(
            out, [(b"x/a.jpg", data), (b"x/a.json", label), (b"x/b.jpg", data), (b"x/b.json", b'{"annotations": []}')]
        )
    manifest = prepare_containers(ContainerRequest("webdataset", (str(tmp_path / "a.tar"),)), out=tmp_path / "index")
    found = box_arrays(manifest, "train")
    assert manifest.classes == ("class 4",) and manifest.category_ids == (4,)
    assert found["image_ids"].tolist() == [1, 2] and found["boxes"].tolist() == [[1, 2, 3, 4]]
    assert found["areas"].tolist() == [12] and found["object_starts"].tolist() == [0, 1, 1]
