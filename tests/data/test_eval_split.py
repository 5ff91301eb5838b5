"""Sets that are only scored on: what is read of a folder that holds one split, in every layout, and in whose classes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from coco_sets import make_set, write_json
from label_formats import put, voc_xml
from messages import check_text, raises
from PIL import Image
from tiny_runs import make_photos

from paceline._utils.errors import DataError, PacelineError
from paceline._utils.reporter import Lines
from paceline.config.run import RunRecord
from paceline.data.index.box_split import BoxSplit, open_boxes
from paceline.data.index.index import open_split
from paceline.data.index.manifest import Manifest
from paceline.data.index.splits import map_classes
from paceline.data.prepare.auto_prepare import EvalSplit, prepare_eval_split, prepare_if_needed
from paceline.data.prepare.class_source import prepare_folder
from paceline.data.prepare.val_split import ValSplit

LAYOUTS = [
    "official",
    "test",
    "roboflow",
    "roboflow test",
    "one folder",
    "own name",
    "named files",
    "yolo",
    "voc",
    "voc set",
]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """train2017 and val2017 with their annotations; boxes of val begin and end on whole pixels."""
    return make_set(tmp_path / "whole")


def val_of(whole: Path) -> dict:
    return json.loads((whole / "annotations" / "instances_val2017.json").read_text())


def lay_out(whole: Path, root: Path, layout: str) -> EvalSplit:
    """The validation pictures of `whole` and what is annotated on them, alone, in one of the layouts."""
    record, photos = val_of(whole), whole / "val2017"
    names = {entry["id"]: entry["name"] for entry in record["categories"]}
    coco = {
        "official": ("annotations/instances_val2017.json", "val2017"),
        "test": ("annotations/instances_test2017.json", "test2017"),
        "roboflow": ("valid/_annotations.coco.json", "valid"),
        "roboflow test": ("test/_annotations.coco.json", "test"),
        "one folder": ("_annotations.coco.json", "."),
        "own name": ("labels.json", "images"),
        "named files": ("my/labels.json", "pictures"),
    }
    if layout in coco:
        file, folder = coco[layout]
        shutil.copytree(photos, root / folder, dirs_exist_ok=True)
        put(root / file, json.dumps(record))
        if layout == "named files":
            return EvalSplit(images=str(root / folder), annotations=str(root / file))
        return EvalSplit(str(root))
    if layout == "yolo":
        shutil.copytree(photos, root / "test" / "images")
        put(root / "data.yaml", f"names: {list(names.values())}\ntest: test/images\n")
    else:
        shutil.copytree(photos, root / "JPEGImages")
        put(root / "ImageSets/Main/test.txt", "1\n2\n") if layout == "voc set" else None
    for image in record["images"]:
        stem, (width, height) = Path(image["file_name"]).stem, (image["width"], image["height"])
        mine = [entry for entry in record["annotations"] if entry["image_id"] == image["id"]]
        if layout == "yolo":
            rows = []
            for entry in mine:
                x, y, w, h = entry["bbox"]
                place = list(names).index(entry["category_id"])
                rows.append(f"{place} {(x + w / 2) / width} {(y + h / 2) / height} {w / width} {h / height}")
            put(root / "test" / "labels" / f"{stem}.txt", "\n".join(rows))
        else:
            objects = []
            for entry in mine:
                x, y, w, h = entry["bbox"]
                objects.append((names[entry["category_id"]], (x + 1, y + 1, x + w, y + h), 0))
            put(root / "Annotations" / f"{stem}.xml", voc_xml(image["file_name"], (height, width), objects))
    return EvalSplit(str(root))


def named_boxes(split: BoxSplit) -> dict[str, list[tuple[str, list[float]]]]:
    """File name -> its objects: class name and box."""
    found = {}
    for i in range(len(split)):
        objects = split.objects(i)
        name = Path(split.index.name(i)).name
        found[name] = sorted(
            (split.names[label - 1], box.round(4).tolist()) for label, box in zip(objects.classes, objects.boxes)
        )
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_split_that_is_alone_is_read_as_it_is_beside_the_training_images(whole, tmp_path, layout):
    expected = named_boxes(open_boxes(Manifest.load(prepare_if_needed(whole, kind="boxes")), "val"))
    assert expected["1.jpg"] == [("dog", [1, 1, 9, 9])] and expected["2.jpg"] == [("cat", [2, 2, 9, 9])]
    wanted = lay_out(whole, tmp_path / "alone", layout)
    before = sorted(tmp_path.rglob("alone/**/*"))
    said: list[str] = []
    folder = prepare_eval_split(wanted, "boxes", reporter=Lines(said.append))
    manifest = Manifest.load(folder)
    assert list(manifest.splits) == ["val"] and named_boxes(open_boxes(manifest, "val")) == expected
    assert sorted(tmp_path.rglob("alone/**/*")) == before, "the folder itself was written to"
    assert said and "2 images" in said[0]
    said.clear()
    assert prepare_eval_split(wanted, "boxes", reporter=Lines(said.append)) == folder and not said, (
        "prepared again for nothing"
    )
    with raises(DataError, "split", "scored"):
        prepare_if_needed(folder, kind="boxes")


def test_of_a_set_with_several_splits_the_asked_one_is_read(whole, tmp_path):
    record = val_of(whole)
    record["annotations"] = record["annotations"][:1]
    put(whole / "annotations" / "instances_test2017.json", json.dumps(record))
    shutil.copytree(whole / "val2017", whole / "test2017")
    objects = {
        split: Manifest.load(prepare_eval_split(EvalSplit(str(whole), split), "boxes")).splits["val"].boxes.objects
        for split in ("", "val", "test", "train")
    }
    assert objects == {"": 2, "val": 2, "test": 1, "train": 4}


def test_changed_annotations_are_read_again(whole, tmp_path):
    wanted = lay_out(whole, tmp_path / "alone", "official")
    prepare_eval_split(wanted, "boxes")
    record = val_of(whole)
    record["annotations"] = record["annotations"][:1]
    write_json(tmp_path / "alone", "val", record)
    assert Manifest.load(prepare_eval_split(wanted, "boxes")).splits["val"].boxes.objects == 1


def test_a_validation_split_that_comes_later_is_the_one_that_is_scored(whole, tmp_path):
    wanted = lay_out(whole, tmp_path / "boxes", "roboflow")
    shutil.move(tmp_path / "boxes" / "valid", tmp_path / "boxes" / "test")
    prepare_eval_split(wanted, "boxes")
    shutil.copytree(tmp_path / "boxes" / "test", tmp_path / "boxes" / "valid")
    now = Manifest.load(prepare_eval_split(wanted, "boxes"))
    assert open_boxes(now, "val").index.relative_name(0).startswith(b"valid/")


def test_advice_on_photos_that_cannot_be_scored_names_no_flag_of_another_command(whole, tmp_path):
    def refusal(root: Path, kind) -> str:
        with pytest.raises(DataError) as problem:
            prepare_eval_split(EvalSplit(str(root)), kind)
        return str(problem.value)

    lay_out(whole, tmp_path / "boxes", "roboflow test")
    photo = sorted(tmp_path.glob("boxes/test/*.[jp][pn]g"))[0]
    photo.write_bytes(b"")
    broken = refusal(tmp_path / "boxes", "boxes")
    photo.unlink()
    missing = refusal(tmp_path / "boxes", "boxes")
    shutil.copytree(make_photos(tmp_path / "whole photos") / "val", tmp_path / "classes" / "test")
    sorted(tmp_path.glob("classes/test/*/*.[jp][pn]g"))[0].write_bytes(b"")
    classes = refusal(tmp_path / "classes", "class-folder")
    assert "empty" in broken and "empty" in classes and "annotations" in missing and photo.name in missing
    assert not any(" --" in text or "paceline " in text.replace(str(tmp_path), "") for text in (broken, missing, classes))


def test_the_training_part_of_photos_that_prepare_divided_is_not_scored_as_all_of_them(tmp_path):
    photos = make_photos(tmp_path / "whole") / "train"
    prepare_folder(photos, out=tmp_path / "out", val=ValSplit(val_fraction=0.5))
    assert prepare_eval_split(EvalSplit(str(tmp_path / "out")), "class-folder") == tmp_path / "out"
    with raises(PacelineError, "--split train", "validation"):
        prepare_eval_split(EvalSplit(str(tmp_path / "out"), "train"), "class-folder")


def run_of(classes: list[str], **data: object) -> RunRecord:
    return RunRecord(classes=classes, data=data)


def test_boxes_count_for_the_run_s_class_of_the_same_name_whatever_ids_and_order(whole, tmp_path):
    wanted = lay_out(whole, tmp_path / "alone", "official")
    manifest = Manifest.load(prepare_eval_split(wanted, "boxes"))
    assert manifest.classes == ("dog", "cat") and manifest.category_ids == (3, 7)
    plain = named_boxes(open_boxes(manifest, "val"))
    run = run_of(["ape", "cat", "dog"], category_ids=[1, 2, 7])
    split = open_boxes(map_classes(manifest, run), "val")
    assert split.names == ("ape", "cat", "dog") and named_boxes(split) == plain
    ids = split.category_ids.tolist()
    assert ids[1:] == [7, 3] and ids[0] not in (3, 7), "results are in the ids of the file that is scored on"
    with raises(DataError, "dog", "cat, ape"):
        map_classes(manifest, run_of(["cat", "ape"], category_ids=[1, 2]))


def test_classes_that_the_scored_set_lacks_have_ids_of_nobody(whole, tmp_path):
    manifest = Manifest.load(prepare_eval_split(lay_out(whole, tmp_path / "alone", "official"), "boxes"))
    for of_run in ([1, 2, 5, 8], None):
        mapped = map_classes(manifest, run_of(["cat", "ape", "emu", "dog"], category_ids=of_run))
        cat, ape, emu, dog = mapped.category_ids or ()
        assert (cat, dog) == (7, 3) and ape != emu
        assert not {ape, emu} & {3, 7, *(of_run or ())}, "an id of the set's own, or of the run's"


def test_a_category_without_objects_that_the_run_lacks_does_no_harm(whole, tmp_path):
    record = val_of(whole)
    record["categories"].insert(0, {"id": 0, "name": "animals"})
    write_json(whole, "val", record)
    manifest = Manifest.load(prepare_eval_split(lay_out(whole, tmp_path / "alone", "official"), "boxes"))
    split = open_boxes(map_classes(manifest, run_of(["cat", "dog"], category_ids=[1, 2])), "val")
    assert sorted(split.classes.tolist()) == [1, 2] and split.names == ("cat", "dog")


@pytest.mark.parametrize("folder", ["val", "test", "validation", "."])
def test_class_folders_alone_are_read_as_they_are_beside_train(tmp_path, folder):
    whole = make_photos(tmp_path / "whole")
    expected = open_split(Manifest.load(prepare_if_needed(whole)), "val")
    shutil.copytree(whole / "val", tmp_path / "alone" / folder)
    manifest = Manifest.load(prepare_eval_split(EvalSplit(str(tmp_path / "alone")), "class-folder"))
    split = open_split(manifest, "val")
    assert split.labels.tolist() == expected.labels.tolist()
    assert [split.read(i) for i in range(len(split))] == [expected.read(i) for i in range(len(expected))]
    with raises(DataError, "split", "scored"):
        prepare_if_needed(manifest.folder)


def test_photos_count_for_the_run_s_class_of_the_same_folder_or_readable_name(tmp_path):
    root = make_photos(tmp_path / "some", ("bee", "cat"), train=0)
    shutil.rmtree(root / "train", ignore_errors=True)
    held = EvalSplit(str(root))

    def labels(run: RunRecord) -> list[int]:
        manifest = map_classes(Manifest.load(prepare_eval_split(held, "class-folder")), run)
        assert manifest.class_names == tuple(run.classes)
        return open_split(manifest, "val").labels.tolist()

    # By the folders, though the readable names are others; a class of the run has no photo.
    assert labels(run_of(["Ant", "Bee", "Cat"], class_folders=["ant", "bee", "cat"])) == [1, 1, 1, 2, 2, 2]
    # The run's folders are numbers, its readable names are the folders here.
    assert labels(run_of(["cat", "bee"], class_folders=["n01", "n02"])) == [1, 1, 1, 0, 0, 0]
    numbers = run_of(["a dog", "a cat", "a bee"], class_folders=["n00", "n01", "n02"])
    with raises(DataError, "bee, cat", "n00, n01, n02"):
        labels(numbers)
    # Readable names on both sides agree; they came after the set was prepared.
    (root / "classes.json").write_text(json.dumps({"bee": "a bee", "cat": "a cat"}))
    assert labels(numbers) == [2, 2, 2, 1, 1, 1]
    # Two classes of one readable name tell nothing.
    with raises(DataError, "bee, cat", "n00, n01, n02"):
        labels(run_of(["a bee", "a bee", "a cat"], class_folders=["n00", "n01", "n02"]))


def test_a_training_set_follows_its_classes_json(tmp_path):
    root = make_photos(tmp_path / "photos")
    assert Manifest.load(prepare_if_needed(root)).class_names is None
    (root / "classes.json").write_text(json.dumps({"ant": "Ant", "bee": "Bee", "cat": "Cat"}))
    assert Manifest.load(prepare_if_needed(root)).class_names == ("Ant", "Bee", "Cat")


def test_what_cannot_be_scored_on_is_refused_with_a_way_out(whole, tmp_path):
    def refused(wanted: EvalSplit, kind, *said: str) -> None:
        with pytest.raises(PacelineError) as problem:
            prepare_eval_split(wanted, kind)
        check_text(str(problem.value), *said)

    refused(EvalSplit("/nowhere"), "boxes", "--data /nowhere")
    refused(EvalSplit(images=str(whole)), "boxes", "--images-dir DIR and --annotations FILE")
    refused(EvalSplit(images="/nowhere", annotations="x.json"), "boxes", "--images-dir /nowhere")
    refused(EvalSplit(images=str(whole), annotations="x.json"), "class-folder", "class folders ... --data")
    refused(EvalSplit(str(whole), "test"), "boxes", "annotations", "--images-dir DIR --annotations FILE")
    put(whole / "annotations" / "instances_val2014.json", "{}")
    put(whole / "annotations" / "instances_val2012.json", "{}")
    assert prepare_eval_split(EvalSplit(str(whole), "val"), "boxes")  # 2017 is the one that is meant
    photos = make_photos(tmp_path / "photos")
    shutil.rmtree(photos / "val")
    refused(EvalSplit(str(photos)), "class-folder", "no val/", "--split train")
    shutil.move(photos / "train", photos / "test")
    refused(EvalSplit(str(photos), "val"), "class-folder", "no val/", "only test")
    (tmp_path / "flat").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "flat" / "a.jpg")
    refused(EvalSplit(str(tmp_path / "flat")), "class-folder", "Expected ROOT/val/CLASS")


def test_numbers_of_classes_are_those_of_the_run_in_every_row(whole, tmp_path):
    manifest = Manifest.load(prepare_eval_split(EvalSplit(str(whole), "train"), "boxes"))
    plain, mapped = (
        open_boxes(found, "val") for found in (manifest, map_classes(manifest, run_of(["cat", "dog"], category_ids=[1, 2])))
    )
    np.testing.assert_array_equal(mapped.classes, 3 - plain.classes)
