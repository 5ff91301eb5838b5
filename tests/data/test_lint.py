"""`paceline data lint`: each planted fault is found, sound sets have none, and only what spoils a result makes the exit code 1."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_night import ONE_MORE
from instance_sets import json_file, make_instances
from messages import check_lines, check_text
from PIL import Image, ImageOps
from shared_runs import SharedRun
from tiny_runs import TINY, command, refused

from paceline._utils.errors import DataError
from paceline.data.checks import near_duplicates
from paceline.data.checks.lint import find_label_errors

pytestmark = pytest.mark.usefixtures("no_charts")


def photo(seed: int, side: int = 96) -> Image.Image:
    """Blobs of random colors: as different from another seed's as photos are."""
    noise = np.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((side, side), Image.Resampling.BICUBIC)


@pytest.fixture
def folders(tmp_path) -> Path:
    for split, first, count in (("train", 0, 6), ("val", 50, 3)):
        for place, name in enumerate(("ant", "bee")):
            folder = tmp_path / "set" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                photo(100 * place + first + number).save(folder / f"{number}.jpg", quality=95)
    return tmp_path / "set"


def found(capsys, root: Path, *words: object) -> tuple[int, dict[str, Any]]:
    said = command(capsys, "data", "lint", root, "--json", *words)
    assert not said.err, said
    return said.code, {one["key"]: one for one in json.loads(said.out)["findings"]}


def test_a_sound_set_has_nothing(folders, capsys):
    assert found(capsys, folders) == (0, {})
    said = command(capsys, "data", "lint", folders)
    assert said.code == 0 and check_text(said.out.splitlines()[-2], folders, "12 images", "train", "6 images", "val")


def test_copies_are_found_by_bytes_and_by_look_across_splits_and_classes(folders, capsys, tmp_path):
    shutil.copyfile(folders / "train" / "ant" / "0.jpg", folders / "val" / "ant" / "equal.jpg")
    photo(101).resize((64, 64)).save(folders / "val" / "bee" / "small.jpg", quality=50)
    ImageOps.mirror(photo(2)).save(folders / "train" / "ant" / "mirrored.png")
    shutil.copyfile(folders / "train" / "bee" / "3.jpg", folders / "train" / "ant" / "other.jpg")
    code, kinds = found(capsys, folders)
    assert code == 1 and set(kinds) == {"equal_across", "near_across", "near_within", "equal_classes"}
    assert kinds["equal_across"]["found"] == ["val/ant/equal.jpg: duplicate of train/ant/0.jpg"]
    assert kinds["near_across"]["found"] == ["val/bee/small.jpg: duplicate of train/bee/1.jpg"]
    assert kinds["near_within"]["found"] == ["train/ant/mirrored.png: duplicate of train/ant/2.jpg"]
    assert kinds["near_within"]["colour"] == "fair" and kinds["equal_classes"]["colour"] == "bad"
    said = command(capsys, "data", "lint", folders, "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert said.code == 1 and "across splits" in page and "of train/bee/1.jpg" in page


def test_classes_with_two_names_without_photos_or_unequal(folders, capsys):
    for number in range(24):
        (folders / "train" / "Ants_").mkdir(exist_ok=True)
        photo(500 + number).save(folders / "train" / "Ants_" / f"{number}.jpg")
    shutil.copytree(folders / "val" / "ant", folders / "val" / "Ants_")
    shutil.rmtree(folders / "val" / "ant")
    (folders / "val" / "ant").mkdir()
    photo(900).save(folders / "val" / "ant" / "0.jpg")
    for number in range(1, 6):
        (folders / "train" / "bee" / f"{number}.jpg").unlink()
    code, kinds = found(capsys, folders)
    assert code == 1 and kinds["class_twice"]["found"] == ["Ants_ and ant"]
    assert kinds["unequal"]["found"] == ["Ants_ 24, bee 1"]


def test_boxes_are_judged_as_the_check_page_judges_them(capsys, tmp_path):
    data = make_instances(tmp_path / "set", train=4, val=3)
    record = json.loads(json_file(data, "train").read_text())
    record["annotations"][0]["bbox"] = [500, 500, 10, 10]
    json_file(data, "train").write_text(json.dumps(record))
    code, kinds = found(capsys, data)
    assert code == 1 and kinds["outside"]["colour"] == "bad"
    assert kinds["outside"]["found"] == ["train2017/000.jpg: at 500, 500, 80 x 60 px"]


def boxes(*images: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "boxes", "classes": ["cat", "dog"], "best_f1": {"threshold": 0.5}, "images": list(images)}


def image(
    truth: list[tuple[list[float], int]], shown: list[tuple[list[float], int, float]], crowd: int = 0
) -> dict[str, Any]:
    return {
        "file": "a.jpg",
        "boxes": [box for box, _, _ in shown], "labels": [label for _, label, _ in shown], "scores": [score for *_, score in shown],
        "truth": {"boxes": [box for box, _ in truth], "labels": [label for _, label in truth], "crowd": [crowd] * len(truth)},
    }  # fmt: skip


CAT, NEAR, FAR, BESIDE = [10.0, 10, 40, 40], [12.0, 10, 40, 40], [200.0, 200, 40, 40], [25.0, 15, 40, 40]


@pytest.mark.parametrize(
    ("truth", "shown", "crowd", "kinds"),
    [
        ([(CAT, 1)], [(NEAR, 1, 0.9)], 0, []),
        ([(CAT, 1)], [(NEAR, 2, 0.9)], 0, [("class", 0)]),
        ([(CAT, 1)], [(NEAR, 2, 0.4)], 0, []),  # below the best threshold
        ([(CAT, 1)], [(NEAR, 2, 0.9), (CAT, 1, 0.6)], 0, []),  # its own class is there
        ([(CAT, 1)], [(BESIDE, 1, 0.9)], 0, [("place", 0)]),
        ([(CAT, 1)], [(BESIDE, 1, 0.9), (CAT, 1, 0.6)], 0, []),
        ([(CAT, 1)], [(CAT, 1, 0.9), (FAR, 2, 0.7)], 0, [("missing", None)]),
        ([(CAT, 1)], [(CAT, 1, 0.9), (FAR, 2, 0.55)], 0, []),
        ([(CAT, 1)], [(NEAR, 2, 0.9)], 1, []),  # a crowd is nobody's object, and what lies on it is no missing one
        ([], [(FAR, 2, 0.9)], 0, [("missing", None)]),
        ([(CAT, 1)], [], 0, []),
        ([], [], 0, []),
    ],
)
def test_objects_that_answers_contradict(truth, shown, crowd, kinds):
    assert [(one.kind, one.object) for one in find_label_errors(boxes(image(truth, shown, crowd)))] == kinds


def test_photos_that_answers_contradict_by_confident_learning():
    def one(label: int, *scores: float) -> dict[str, Any]:
        return {"file": "a.jpg", "label": label, "top5": [{"class": k, "score": score} for k, score in enumerate(scores)]}

    images = [one(0, 0.9, 0.1), one(0, 0.7, 0.3), one(1, 0.2, 0.8), one(1, 0.85, 0.15), one(0, 0.4, 0.6)]
    found = find_label_errors({"kind": "classification", "classes": ["ant", "bee"], "images": images})
    # ant's photos have 0.667 on average, bee's 0.475: both photos that are above their other class's are named, the surest first.
    assert [one.note for one in found] == [
        "labeled bee, predicted ant with score 0.85",
        "labeled ant, predicted bee with score 0.60",
    ]
    images[4] = one(0, 0.53, 0.47)
    assert len(find_label_errors({"kind": "classification", "classes": ["ant", "bee"], "images": images})) == 1
    assert find_label_errors({"kind": "classification", "classes": ["ant"], "images": []}) == []


def test_a_runs_answers_are_taken_from_its_folder_or_from_eval_s_file(ssd_run, resnet_run, capsys, tmp_path):
    code, kinds = found(capsys, ssd_run.data, "--predictions", ssd_run.folder)
    assert code in (0, 1) and all(one["colour"] == "fair" for key, one in kinds.items() if key.startswith("label_"))
    assert command(capsys, "eval", ssd_run.folder, "--output", tmp_path / "out.json", "--no-confidence-intervals").code == 0
    assert found(capsys, ssd_run.data, "--predictions", tmp_path / "out.json")[1].keys() == kinds.keys()
    lint = "data", "lint", ssd_run.data, "--predictions"
    refused(command(capsys, *lint, resnet_run.folder), "--predictions", "classification", "paceline eval")
    for content, reason in (("{}", "out.json"), ('{"kind": "boxes", "classes": []}', "field 'images'")):
        (tmp_path / "out.json").write_text(content)
        refused(command(capsys, *lint, tmp_path / "out.json"), "--predictions", reason)


def sure(capsys, run: SharedRun, tmp_path: Path, digests: bool = True) -> tuple[Path, Path]:
    """A copy of the run's data, and predictions that are its labels, as `eval --output` writes them."""
    data, out = tmp_path / "data", tmp_path / "out.json"
    shutil.copytree(run.data, data)
    if (data / "annotations").is_dir():  # one object a photo
        record = json.loads(json_file(data, "val").read_text())
        objects = sorted(record["annotations"], key=lambda one: (not one.get("iscrowd"), one["area"]))
        largest = {one["image_id"]: one for one in objects}
        json_file(data, "val").write_text(json.dumps({**record, "annotations": [*largest.values()]}))
    assert command(capsys, "eval", run.folder, "--data", data, "--output", out, "--no-confidence-intervals").code == 0
    content = json.loads(out.read_text())
    content.get("best_f1", {}).update(threshold=0.5)
    for image in content["images"]:
        if "top5" in image:
            image["top5"] = [{"class": image["label"], "score": 0.9}, {"class": (image["label"] + 1) % 3, "score": 0.1}]
        else:
            image |= {name: image["truth"][name] for name in ("boxes", "labels")}
            image["scores"] = [0.9] * len(image["labels"])
        if not digests:
            del image["digest"]
    out.write_text(json.dumps(content))
    return data, out


def named(capsys, data: Path, out: Path) -> dict[str, list[str]]:
    """What is named of labels, by kind."""
    kinds = found(capsys, data, "--predictions", out)[1]
    return {key: one["found"] for key, one in kinds.items() if key.startswith(("label_", "not_"))}


def test_photos_are_compared_with_their_present_folders(resnet_run, capsys, tmp_path):
    data, out = sure(capsys, resnet_run, tmp_path)
    assert named(capsys, data, out) == {}
    first, second = data / "val" / "ant" / "0.jpg", data / "val" / "bee" / "moved.jpg"
    first.rename(second)  # a label that is wrong now
    assert named(capsys, data, out) == {"label_class": ["val/bee/moved.jpg: labeled bee, predicted ant with score 0.90"]}
    second.rename(second := data / "val" / "ant" / "again.jpg")  # and corrected, under another name
    assert named(capsys, data, out) == {}
    gone, changed = data / "val" / "ant" / "1.jpg", data / "val" / "cat" / "2.jpg"
    gone.unlink()
    Image.open(changed).save(changed, quality=40)
    wanted = [f"{path}: missing or changed" for path in (gone, changed)]
    assert named(capsys, data, out) == {"not_compared": wanted}
    for label in ("ant", "bee", "cat"):
        shutil.rmtree(data / "val" / label)
        shutil.copytree(data / "train" / label, data / "val" / label)
    refused(command(capsys, "data", "lint", data, "--predictions", out), "--predictions", "image", "paceline eval")


def test_photos_without_checksums_are_found_by_their_paths(resnet_run, capsys, tmp_path):
    data, out = sure(capsys, resnet_run, tmp_path, digests=False)
    (data / "val" / "ant" / "0.jpg").rename(data / "val" / "bee" / "moved.jpg")
    moved = f"{data}/val/ant/0.jpg: missing or changed"
    assert named(capsys, data, out) == {"not_compared": [moved]}


def test_classes_are_matched_by_their_names(resnet_run, capsys, tmp_path):
    data, out = sure(capsys, resnet_run, tmp_path)
    (data / "val" / "cat" / "0.jpg").rename(data / "val" / "bee" / "moved.jpg")
    wanted = {"label_class": ["val/bee/moved.jpg: labeled bee, predicted cat with score 0.90"]}
    assert named(capsys, data, out) == wanted
    for split in ("train", "val"):  # another class comes first, and every number changes
        shutil.copytree(data / split / "ant", data / split / "aardvark")
        shutil.rmtree(data / split / "ant")
    ants = {"not_compared": ["aardvark: class not in the run"]}
    assert named(capsys, data, out) == wanted | ants
    (data / "classes.json").write_text(json.dumps({"aardvark": "Aardvark", "bee": "Bee", "cat": "Cat"}))
    assert named(capsys, data, out)["label_class"][0].startswith("val/bee/moved.jpg: labeled bee, predicted cat")


@pytest.mark.parametrize(
    ("which", "digests"),
    [
        ("ssd_run", True),
        ("maskrcnn_run", False),
        pytest.param("ssd_run", False, marks=ONE_MORE),
        pytest.param("maskrcnn_run", True, marks=ONE_MORE),
    ],
)
def test_objects_are_compared_with_their_present_labels(which, digests, request, capsys, tmp_path):
    data, out = sure(capsys, request.getfixturevalue(which), tmp_path, digests)
    files = {split: json_file(data, split) for split in ("train", "val")}
    sets = {split: json.loads(file.read_text()) for split, file in files.items()}

    def kinds_now() -> dict[str, list[str]]:
        for split, file in files.items():
            file.write_text(json.dumps(sets[split]))
        return named(capsys, data, out)

    assert kinds_now() == {}
    categories, objects = sets["val"]["categories"], sets["val"]["annotations"]
    names = {one["id"]: one["name"] for one in categories}
    other, moved, gone = [one for one in objects if not one.get("iscrowd")][:3]
    was, kept = other["category_id"], json.dumps(objects)
    other["category_id"] = next(number for number in names if number != was)
    moved["bbox"][0] += 0.4 * moved["bbox"][2]
    objects.remove(gone)
    kinds = kinds_now()
    assert {key: len(listed) for key, listed in kinds.items()} == dict.fromkeys(
        ("label_class", "label_place", "label_missing"), 1
    )
    assert f"labeled {names[other['category_id']]}, predicted {names[was]} with score 0.90" in kinds["label_class"][0]
    for one in sets.values():  # the same classes in another order
        for entry, key in [(entry, "id") for entry in one["categories"]] + [
            (entry, "category_id") for entry in one["annotations"]
        ]:
            entry[key] = 1000 - entry[key]
    assert kinds_now() == kinds
    for one in sets.values():
        for entry in one["categories"]:
            entry["name"] = "other" if entry["name"] == names[was] else entry["name"]
    kinds = kinds_now()  # neither objects nor detections of a class that one side lacks count
    assert "label_class" not in kinds and [one.split(":")[0] for one in kinds["not_compared"]] == ["other"]
    for one in sets.values():
        for entry in one["categories"]:
            entry["id"], entry["name"] = 1000 - entry["id"], names[1000 - entry["id"]]
        for entry in one["annotations"]:
            entry["category_id"] = 1000 - entry["category_id"]
    sets["val"]["annotations"] = json.loads(kept)
    assert kinds_now() == {}, "corrected labels are not named"


def test_train_lint_ends_where_a_result_would_be_spoilt(folders, capsys, tmp_path):
    words = (
        "train",
        "classify-demo",
        "--data",
        folders,
        "--lint",
        *TINY,
        "--max-steps",
        "1",
        "--output-dir",
        tmp_path / "run",
    )
    said = command(capsys, *words)
    assert said.code == 0 and "lint: no issues" in said.out, said
    shutil.copyfile(folders / "train" / "ant" / "0.jpg", folders / "val" / "ant" / "equal.jpg")
    said = command(capsys, *words[:-1], tmp_path / "other")
    assert "of train/ant/0.jpg" in said.out
    refused(said, "--lint ... across splits ... 1", "paceline data lint")
    assert not (tmp_path / "other" / "checkpoints").exists()
    refused(command(capsys, "train", "classify-demo", "--synthetic", "--lint"), "--synthetic")


def test_a_photo_that_others_decode_otherwise_is_named(folders, capsys):
    slope = np.linspace(0, 65_535, 96 * 96).reshape(96, 96).astype(np.uint16)
    Image.fromarray(slope).save(folders / "train" / "bee" / "deep.png")
    photo(7).convert("CMYK").save(folders / "train" / "bee" / "printed.jpg")
    faint = photo(8).convert("RGBA")
    faint.putalpha(90)
    faint.save(folders / "train" / "bee" / "faint.png")
    code, kinds = found(capsys, folders)
    assert code == 0 and set(kinds) == {"decoded_apart"}, "CMYK and alpha are read alike"
    (note,) = kinds["decoded_apart"]["found"]
    assert note.startswith("train/bee/deep.png: Pillow's convert('RGB') differs by")


def test_a_truncated_photo_is_named_and_one_that_changed_ends_the_look(folders, capsys, monkeypatch):
    photo = folders / "train" / "bee" / "2.jpg"
    photo.write_bytes(photo.read_bytes()[:-400])
    said = command(capsys, "data", "lint", folders, "--json")
    assert said.code in (1, 2) and "2.jpg" in said.out + said.err
    whole = near_duplicates.open_rgb
    photo.write_bytes((folders / "train" / "bee" / "1.jpg").read_bytes() + b"\0")

    def damaged(data, *words, **named):
        if data == (folders / "val" / "ant" / "1.jpg").read_bytes():
            raise SyntaxError("broken PNG file")
        return whole(data, *words, **named)

    monkeypatch.setattr(near_duplicates, "open_rgb", damaged)
    code, kinds = found(capsys, folders)
    assert code == 1 and kinds["damaged"]["found"] == ["val/ant/1.jpg"]

    def gone(*_):
        raise DataError("val/ant/1.jpg: it has changed")

    monkeypatch.setattr("paceline.data.index.index.Index.read", gone)
    refused(command(capsys, "data", "lint", folders), "val/ant/1.jpg")


def test_no_photo_and_one_have_no_copies():
    assert near_duplicates.find_near_duplicates({}) == ([], [], [])


def test_what_cannot_be_looked_at_is_refused(tmp_path, capsys, monkeypatch, folders):
    refused(command(capsys, "data", "lint"), "paceline data lint DIR")
    refused(command(capsys, "data", "lint", tmp_path / "gone"), "folder")
    refused(command(capsys, "data", "lint", folders, "--predictions", tmp_path), "predictions")
    monkeypatch.setattr("paceline.data.checks.near_duplicates.MAX_PHOTOS", 3)
    monkeypatch.setattr("paceline.data.checks.lint.MAX_PHOTOS", 3)
    assert check_lines(found(capsys, folders)[1]["near"]["found"], ("3 images",))
