"""`paceline eval --predictions`: any model's answers, in each form that tools write, beside pycocotools to the last bit."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from instance_sets import json_file, make_instances
from official_coco import judge, loaded
from tiny_runs import command, make_photos, refused

OFFICIAL = (
    "ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large", "ar1", "ar10", "ar100", "ar_small", "ar_medium", "ar_large",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_instances(tmp_path_factory.mktemp("set"), train=6, val=14)


@pytest.fixture(scope="module")
def truth(data) -> dict[str, Any]:
    return json.loads(json_file(data, "val").read_text())


@pytest.fixture(scope="module")
def answers(truth) -> list[dict[str, Any]]:
    """Some objects found, about where they are, some as the other class, and some of nothing; masks are polygons."""
    random = np.random.default_rng(1)
    found = []
    for entry in truth["annotations"]:
        if entry["iscrowd"]:
            continue
        for _ in range(random.integers(0, 3)):
            shift = random.integers(-3, 4, 2)
            box = [entry["bbox"][0] + int(shift[0]), entry["bbox"][1] + int(shift[1]), *entry["bbox"][2:]]
            polygon = (np.array(entry["segmentation"][0]).reshape(-1, 2) + shift).reshape(-1).tolist()
            category = entry["category_id"] if random.random() < 0.8 else 8 - entry["category_id"]
            found.append(
                {
                    "image_id": entry["image_id"],
                    "category_id": category,
                    "bbox": box,
                    "segmentation": [polygon],
                    "score": round(random.random(), 3),
                }
            )
    return found


def written(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def scored(capsys, file: Path, data: Path, *flags: object) -> dict[str, Any]:
    said = command(capsys, "eval", "--predictions", file, "--data", data, "--json", *flags)
    assert said.code == 0, said
    return json.loads(said.out)


def boxes_of(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in one.items() if name != "segmentation"} for one in answers]


def official(truth: dict[str, Any], found: list[dict[str, Any]], kind: str) -> dict[str, float]:
    judged = judge(loaded(truth), [dict(one) for one in found], "bbox" if kind == "box" else "segm")
    return {f"{kind}_{name}": value for name, value in zip(OFFICIAL, judged.stats.tolist())}


def test_coco_s_results_score_as_pycocotools_scores_them_boxes_and_masks(data, truth, answers, capsys, tmp_path):
    found = scored(capsys, written(tmp_path / "boxes.json", boxes_of(answers)), data)
    wanted = official(truth, boxes_of(answers), "box")
    assert {name: found[name] for name in wanted} == wanted and 0.2 < wanted["box_ap50"] < 0.9
    low, high = found["intervals"]["box_ap50"]
    assert low < wanted["box_ap50"] < high and "mask_ap" not in found
    masks = scored(capsys, written(tmp_path / "masks.json", answers), data, "--no-intervals")
    # Without boxes, as detectron2 gives them to pycocotools, which else takes a box's area for its mask's.
    alone = [{name: value for name, value in one.items() if name != "bbox"} for one in answers]
    strings = [{**one, "segmentation": _encoded(one, truth)} for one in alone]
    wanted = official(truth, strings, "mask")
    assert {name: masks[name] for name in wanted} == wanted and "intervals" not in masks
    assert masks["box_ap50"] == found["box_ap50"]
    # Masks alone, as run lengths: the boxes are those around them.
    again = scored(capsys, written(tmp_path / "alone.json", strings), data, "--no-intervals")
    assert {name: again[name] for name in wanted} == wanted and abs(again["box_ap50"] - found["box_ap50"]) < 0.2


@pytest.mark.parametrize("flags", [("--val-half", "test"), ("--limit-val", 5)])
def test_answers_on_a_part_of_the_photos_score_as_theirs_alone(data, truth, answers, capsys, tmp_path, flags):
    found = scored(
        capsys, written(tmp_path / "all.json", boxes_of(answers)), data, "--out", tmp_path / "out.json", *flags
    )
    here = {image["image_id"] for image in json.loads((tmp_path / "out.json").read_text())["images"]}
    part = {
        **truth,
        **{
            name: [one for one in truth[name] if one[key] in here]
            for name, key in (("images", "id"), ("annotations", "image_id"))
        },
    }
    wanted = official(part, [one for one in boxes_of(answers) if one["image_id"] in here], "box")
    assert 0 < len(here) < len(truth["images"]) and {name: found[name] for name in wanted} == wanted
    other = [{**one, "image_id": 10**9} for one in boxes_of(answers)]
    refused(
        command(capsys, "eval", "--predictions", written(tmp_path / "no.json", other), "--data", data, *flags),
        "none of the data's",
    )


def _encoded(one: dict[str, Any], truth: dict[str, Any]) -> dict[str, Any]:
    from pycocotools import mask

    (image,) = [image for image in truth["images"] if image["id"] == one["image_id"]]
    made = mask.merge(mask.frPyObjects(one["segmentation"], image["height"], image["width"]))
    return {"size": made["size"], "counts": made["counts"].decode()}


def test_every_form_says_the_same(data, truth, answers, capsys, tmp_path):
    wanted = scored(capsys, written(tmp_path / "boxes.json", boxes_of(answers)), data, "--no-intervals")
    images = {image["id"]: image for image in truth["images"]}
    # YOLO: numbers from 0 in the order of the ids, fractions of the photo, a photo without answers has no file.
    folder, outlines = tmp_path / "labels", tmp_path / "outlines"
    folder.mkdir()
    outlines.mkdir()
    with (tmp_path / "table.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "label", "confidence", "xmin", "ymin", "xmax", "ymax"])
        for one in answers:
            image, (x, y, width, height) = images[one["image_id"]], one["bbox"]
            sides = np.array([image["width"], image["height"]])
            k, stem = (3, 5).index(one["category_id"]), Path(image["file_name"]).stem
            row = [k, *((x + width / 2, y + height / 2) / sides), *((width, height) / sides), one["score"]]
            with (folder / f"{stem}.txt").open("a") as text:
                text.write(" ".join(map(repr, map(float, row))).replace(f"{float(k)!r} ", f"{k} ", 1) + "\n")
            corners = (np.array(one["segmentation"][0]).reshape(-1, 2) / sides).reshape(-1)
            with (outlines / f"{stem}.txt").open("a") as text:
                text.write(" ".join(map(repr, [k, *corners.tolist(), one["score"]])) + "\n")
            table.writerow([f"/elsewhere/{image['file_name']}", f"class{k}", one["score"], x, y, x + width, y + height])
    named = [
        {
            **one,
            "image_id": Path(images[one["image_id"]]["file_name"]).stem,
            "category_id": 1 + (5, 3).index(one["category_id"]),
        }
        for one in boxes_of(answers)
    ]
    forms = {
        "yolo": (folder,),
        "csv": (tmp_path / "table.csv",),
        # Photos by their names, classes by the model's own numbers.
        "named": (written(tmp_path / "named.json", named), "--class-names", "class1", "class0", "--first-class", 1),
        "mine": (written(tmp_path / "whole.json", {**truth, "annotations": boxes_of(answers)}),),
    }
    for name, (file, *flags) in forms.items():
        found = scored(capsys, file, data, "--no-intervals", *flags)
        assert all(abs(found[f"box_{one}"] - wanted[f"box_{one}"]) < 1e-9 for one in OFFICIAL), name
    masks = scored(capsys, written(tmp_path / "masks.json", answers), data, "--no-intervals")
    again = scored(capsys, outlines, data, "--no-intervals")
    assert all(abs(again[f"mask_{one}"] - masks[f"mask_{one}"]) < 1e-9 for one in OFFICIAL)


def test_no_answers_at_all_score_zero(data, capsys, tmp_path):
    found = scored(capsys, written(tmp_path / "none.json", []), data)
    assert found["box_ap50"] == 0 and found["intervals"]["box_ap50"] == [0, 0]
    said = command(capsys, "eval", "--predictions", tmp_path / "none.json", "--data", data)
    assert said.code == 0 and "0.0 [0.0, 0.0]" in said.out and "14 images" in said.out


def test_classes_of_photos_by_name_or_number_best_first(capsys, tmp_path):
    root = make_photos(tmp_path / "photos")
    rows = ["file,name,score"]
    for name in ("ant", "bee", "cat"):
        for photo in range(3):
            best = name if photo else "bee"
            rows += [
                f"val/{name}/{photo}.png,{best},0.6",
                f"val/{name}/{photo}.png,{'ant' if best != 'ant' else 'cat'},0.3",
            ]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(rows).replace(".png", ".jpg"))
    found = scored(capsys, table, root)
    assert found["top1"] == pytest.approx(7 / 9) and found["top5"] == pytest.approx(8 / 9)
    head, *lines = table.read_text().splitlines()  # as `predict --write csv` has classes, with empty columns of boxes
    table.write_text("\n".join([f"{head},left,top,width,height", *lines]))
    assert scored(capsys, table, root, "--no-intervals")["top1"] == found["top1"]
    for number, name in enumerate(("ant", "bee", "cat")):
        table.write_text(table.read_text().replace(f",{name},", f",{number},"))
    assert scored(capsys, table, root, "--no-intervals")["top1"] == found["top1"]
    table.write_text("file,name\nval/ant/0.jpg,ant\n1.jpg,bee\n")
    refused(
        command(capsys, "eval", "--predictions", table, "--data", root),
        "line 3",
        "'1.jpg' is the name of several photos",
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one.pop("score"), ("entry 2 has no score", "ground truth has none")),
        (lambda one: one.pop("image_id"), ("entry 2 has no image_id",)),
        (lambda one: one.update(image_id=999), ("entry 2: 999 is none of the data's 14 photos", "(id 10)")),
        (lambda one: one.update(category_id=0), ("entry 2: class 0 is no number of a class here; these are 3, 5", "--class-names")),
        (lambda one: one.update(category_name="dog"), ("class 'dog' is no name of a class here; these are class0, class1",)),
        (lambda one: one.update(score=float("nan")), ("entry 2: its box or score is not finite",)),
        (lambda one: one.update(bbox=[1, 2, 3]), ("entry 2: bbox must be 4 numbers",)),
        (lambda one: one.update(score="high"), ("entry 2: score must be a number, not 'high'",)),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_named(change, words, data, answers, capsys, tmp_path):
    entries = boxes_of(answers)
    change(entries[2])
    refused(
        command(capsys, "eval", "--predictions", written(tmp_path / "a.json", entries), "--data", data),
        "a.json",
        *words,
    )


def test_wrong_files_and_flags_are_refused(data, answers, capsys, tmp_path):
    file = written(tmp_path / "a.json", boxes_of(answers))

    def no(*words: object) -> Any:
        return command(capsys, "eval", "--predictions", *words)

    refused(no(tmp_path / "gone.json", "--data", data), "there is no such file or folder")
    refused(no(json_file(data, "val"), "--data", data), "entry 0 has no score: ground truth has none")
    refused(no(file), "answers on which photos? Name them with --data DIR")
    refused(no(file, "--data", data, "--iou", 0.5), "--iou: for a model")
    refused(no(file, "--data", data, "--class-names", "dog"), "--class-names: dog: none of the data's classes")
    refused(command(capsys, "eval", tmp_path, "--predictions", file, "--data", data), "which of them is to be scored?")
    refused(no(written(tmp_path / "n.json", 7), "--data", data), "n.json: wanted a list of")
    (tmp_path / "b.json").write_text("[{")
    refused(no(tmp_path / "b.json", "--data", data), "b.json: it is no JSON")
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00")
    refused(no(tmp_path / "b.json", "--data", data), "b.json: it is no text in UTF-8")
    (tmp_path / "b.csv").write_text("photo,score\n")
    refused(no(tmp_path / "b.csv", "--data", data), "its first line names no column of class: one of name")
    (tmp_path / "labels").mkdir()
    refused(no(tmp_path / "labels", "--data", data), "no .txt file in it")
    (tmp_path / "labels" / "000.txt").write_text("0 0.5 0.5 0.1 0.1\n")
    refused(no(tmp_path / "labels", "--data", data), "000.txt, line 1: 5 numbers", "save_conf=True")
    entries = [{**answers[0], "segmentation": {"size": [9, 9], "counts": "abc"}}]
    refused(no(written(tmp_path / "m.json", entries), "--data", data), "its mask is of [9, 9] pixels")
    entries = [{**answers[0], "segmentation": [["x"]]}]
    refused(
        no(written(tmp_path / "m.json", entries), "--data", data),
        "its segmentation is neither run lengths nor polygons",
    )
