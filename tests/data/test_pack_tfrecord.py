"""Packing into TFRecord: the Examples of ImageNet's scripts and of the detection tools, and what is prepared from them."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from messages import check_text, raises
from PIL import Image
from sets_to_pack import box_arrays, class_set, photos_and_labels
from test_pack_boxes import HEIGHT, WIDTH, boxed_set

from paceline._utils.errors import DataError
from paceline.data.containers.source import ContainerRequest, prepare_containers
from paceline.data.containers.tfrecord import parse_example, tfrecord_spans
from paceline.data.index.manifest import Manifest
from paceline.data.pack import write
from paceline.data.pack.pack import pack
from paceline.data.pack.plan import PackRequest
from paceline.data.prepare.box_source import prepare_boxes

# Columns 10 to 19 of rows 6 to 11.
CROWD = np.zeros((HEIGHT, WIDTH), bool)
CROWD[6:12, 10:20] = True


@pytest.fixture(scope="module")
def boxed(tmp_path_factory) -> Manifest:
    return prepare_boxes(boxed_set(tmp_path_factory.mktemp("boxes")), out=tmp_path_factory.mktemp("index"))


def values_of(path: Path) -> list[dict[str, list]]:
    """Of each Example, name -> its values."""
    data, found = path.read_bytes(), []
    for span in tfrecord_spans(io.BytesIO(data), len(data), path.name):
        said = parse_example(span.data, path.name)
        found.append({n: one.texts(span.data) or one.ints.tolist() or one.floats.tolist() for n, one in said.items()})
    return found


def test_classes_are_written_as_imagenets_scripts_do(tmp_path):
    source = class_set(tmp_path / "set", tmp_path / "index")
    pack(source, PackRequest("tfrecord", num_shards=2), tmp_path / "out")
    files = sorted(path.name for path in (tmp_path / "out").glob("*.tfrecord"))
    assert files == ["train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord", "validation-00000-of-00001.tfrecord"]
    train = [one for name in files[:2] for one in values_of(tmp_path / "out" / name)]
    assert [one["image/encoded"][0] for one in train] == [data for data, _ in photos_and_labels(source, "train")]
    by_name = {(one["image/class/synset"][0], one["image/filename"][0]): one for one in train}
    png = by_name[b"sea lion", b"c.png"]
    del png["image/encoded"]
    assert png == {
        "image/filename": [b"c.png"],
        "image/format": [b"PNG"],
        "image/height": [33],
        "image/width": [33],
        "image/colorspace": [b"RGB"],
        "image/channels": [3],
        "image/class/label": [2],  # 0 is nothing's
        "image/class/synset": [b"sea lion"],
        "image/class/text": [b"Zalophus"],
    }
    assert by_name[b"cat", b"a_b.jpg"]["image/class/label"] == [1]


def test_objects_are_written_as_the_detection_tools_do(boxed, tmp_path):
    _, notes = pack(boxed, PackRequest("tfrecord"), tmp_path)
    first, second, none = values_of(tmp_path / "train-00000-of-00001.tfrecord")
    assert [one["image/source_id"] for one in (first, second, none)] == [[b"3"], [b"1"], [b"9"]]
    photo = second["image/encoded"][0]
    assert second["image/key/sha256"] == [hashlib.sha256(photo).hexdigest().encode()]
    assert second["image/format"] == [b"jpeg"]
    assert (second["image/height"], second["image/width"]) == ([HEIGHT], [WIDTH])
    # The data's own ids: the polygon of class 7, the crowd of class 3.
    assert second["image/object/class/label"] == [7, 3]
    assert second["image/object/class/text"] == [b"cat", b"dog"]
    assert second["image/object/is_crowd"] == [0, 1]
    corners = [second[f"image/object/bbox/{side}"] for side in ("xmin", "ymin", "xmax", "ymax")]
    expected = [[1.25 / 40, 10 / 40], [2 / 30, 6 / 30], [11.25 / 40, 20 / 40], [14.1 / 30, 12 / 30]]
    np.testing.assert_allclose(corners, expected, rtol=1e-6)
    with Image.open(io.BytesIO(second["image/object/mask"][1])) as mask:
        assert np.array_equal(np.asarray(mask).astype(bool), CROWD)
    # Outside the photo it is cut; without area it is left out.
    assert first["image/object/bbox/xmax"] == [1.0, 1.0] and first["image/object/area"][0] == pytest.approx(77.7)
    assert none["image/object/class/label"] == []
    assert len(notes) == 1 and check_text(notes[0], "2 boxes", "--format webdataset") and "--format webdataset" in notes[0]


def test_what_is_prepared_from_them_is_what_was_packed(boxed, tmp_path):
    packed, _ = pack(boxed, PackRequest("tfrecord", num_shards=2, order="shuffled"), tmp_path / "out")
    assert (packed.classes, packed.category_ids) == (boxed.classes, boxed.category_ids)
    mine, theirs = box_arrays(packed, "train"), box_arrays(boxed, "train")
    for photo in (1, 3, 9):
        a, b = (int(np.flatnonzero(found["image_ids"] == photo)[0]) for found in (mine, theirs))
        rows, others = (np.arange(*found["object_starts"][[at, at + 1]]) for found, at in ((mine, a), (theirs, b)))
        others = others[theirs["usable"][others] == 1]
        assert mine["classes"][rows].tolist() == theirs["classes"][others].tolist()
        assert mine["crowd"][rows].tolist() == theirs["crowd"][others].tolist()
        np.testing.assert_allclose(mine["areas"][rows], theirs["areas"][others], rtol=1e-6)


def test_photos_made_smaller_have_masks_of_their_size(boxed, tmp_path):
    packed, _ = pack(boxed, PackRequest("tfrecord", resize_shorter_side=20), tmp_path)
    second = values_of(tmp_path / "train-00000-of-00001.tfrecord")[1]
    assert (second["image/height"], second["image/width"]) == ([20], [26])
    with Image.open(io.BytesIO(second["image/object/mask"][1])) as mask:
        nearest = Image.fromarray(CROWD.astype(np.uint8)).resize((26, 20), Image.Resampling.NEAREST)
        assert np.array_equal(np.asarray(mask), np.asarray(nearest))
    assert second["image/object/area"][1] == pytest.approx(20 / 30 * 26 / 40)  # of 1
    assert packed.splits["train"].boxes is not None


@pytest.mark.parametrize("wrong", ["class", "box", "object"])
def test_examples_that_say_other_objects_are_noticed(boxed, tmp_path, monkeypatch, wrong):
    written = write.example_bytes

    def other(features):
        features, label = dict(features), "image/object/class/label"
        if wrong == "class":
            features[label] = [{3: 7, 7: 3}[one] for one in features[label]]
        elif wrong == "box":
            features["image/object/bbox/xmin"] = [one + 0.01 for one in features["image/object/bbox/xmin"]]
        else:
            features |= {name: values[:1] for name, values in features.items() if "image/object/" in name}
        return written(features)

    monkeypatch.setattr(write, "example_bytes", other)
    with pytest.raises(DataError, match=r"train split|named"):
        pack(boxed, PackRequest("tfrecord"), tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_photos_that_are_turned_are_refused(tmp_path):
    turned = prepare_boxes(boxed_set(tmp_path / "set", turned=True), out=tmp_path / "index")
    with raises(DataError, "EXIF", "Examples", "--format webdataset"):
        pack(turned, PackRequest("tfrecord"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def unnamed(boxed, tmp_path, monkeypatch) -> Path:
    """A folder with TFRecords whose objects have numbers alone, as scripts of some years wrote them."""
    written = write.example_bytes
    monkeypatch.setattr(
        write,
        "example_bytes",
        lambda features: written({n: v for n, v in features.items() if n != "image/object/class/text"}),
    )
    pack(boxed, PackRequest("tfrecord"), tmp_path / "out")
    monkeypatch.undo()
    return tmp_path / "out"


def again(folder: Path) -> Manifest:
    files = ContainerRequest("tfrecord", train=(str(folder / "train-*.tfrecord"),), val=(str(folder / "val-*.tfrecord"),))
    return prepare_containers(files, out=folder.parent / "again")


def test_class_names_are_the_examples_own(boxed, tmp_path):
    pack(boxed, PackRequest("tfrecord"), tmp_path / "out")
    assert again(tmp_path / "out").classes == ("dog", "cat")


@pytest.mark.parametrize("place", ["", "raw-data/annotations", "../annotations"])
def test_without_names_a_coco_json_beside_names_them(unnamed, place):
    assert again(unnamed).classes == ("class 3", "class 7")
    (unnamed / place).mkdir(parents=True, exist_ok=True)
    (unnamed / place / "instances_a.json").write_text("[")  # nobody named it
    (unnamed / place / "instances_b.json").write_text(json.dumps({"categories": [{"id": 3, "name": "other set"}]}))
    named = [{"id": number, "name": name} for number, name in ((3, "dog"), (5, "fox"), (7, "cat"))]
    (unnamed / place / "instances_val2017.json").write_text(json.dumps({"categories": named}))
    found = again(unnamed)
    assert (found.classes, found.category_ids) == (("dog", "fox", "cat"), (3, 5, 7))


def test_two_names_of_one_number_are_refused(boxed, tmp_path, monkeypatch):
    written, calls = write.example_bytes, iter(range(100))
    pack(boxed, PackRequest("tfrecord"), tmp_path / "out")
    monkeypatch.setattr(
        write,
        "example_bytes",
        lambda features: written(
            {n: [b"%d" % next(calls) for _ in v] if n == "image/object/class/text" else v for n, v in features.items()}
        ),
    )
    with raises(DataError, "class 7", "class list"):
        pack(boxed, PackRequest("tfrecord"), tmp_path / "other")
