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
    masks = scored(capsys, written(tmp_path / "masks.json", answers), data, "--no-confidence-intervals")
    # Without boxes, as detectron2 gives them to pycocotools, which else takes a box's area for its mask's.
    alone = [{name: value for name, value in one.items() if name != "bbox"} for one in answers]
    strings = [{**one, "segmentation": _encoded(one, truth)} for one in alone]
    wanted = official(truth, strings, "mask")
    assert {name: masks[name] for name in wanted} == wanted and "intervals" not in masks
    assert masks["box_ap50"] == found["box_ap50"]
    # Masks alone, as run lengths: the boxes are those around them.
    again = scored(capsys, written(tmp_path / "alone.json", strings), data, "--no-confidence-intervals")
    assert {name: again[name] for name in wanted} == wanted and abs(again["box_ap50"] - found["box_ap50"]) < 0.2


@pytest.mark.parametrize("flags", [("--val-subset", "test"), ("--max-val-images", 5)])
def test_answers_on_a_part_of_the_photos_score_as_theirs_alone(data, truth, answers, capsys, tmp_path, flags):
    found = scored(
        capsys, written(tmp_path / "all.json", boxes_of(answers)), data, "--output", tmp_path / "out.json", *flags
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
        command(capsys, "eval", "--predictions", written(tmp_path / "no.json", other), "--data", data, *flags), "images"
    )


def _encoded(one: dict[str, Any], truth: dict[str, Any]) -> dict[str, Any]:
    from pycocotools import mask

    (image,) = [image for image in truth["images"] if image["id"] == one["image_id"]]
    made = mask.merge(mask.frPyObjects(one["segmentation"], image["height"], image["width"]))
    return {"size": made["size"], "counts": made["counts"].decode()}


def test_every_form_says_the_same(data, truth, answers, capsys, tmp_path):
    wanted = scored(capsys, written(tmp_path / "boxes.json", boxes_of(answers)), data, "--no-confidence-intervals")
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
        "named": (written(tmp_path / "named.json", named), "--class-names", "class1", "class0", "--label-offset", 1),
        "mine": (written(tmp_path / "whole.json", {**truth, "annotations": boxes_of(answers)}),),
    }
    for name, (file, *flags) in forms.items():
        found = scored(capsys, file, data, "--no-confidence-intervals", *flags)
        assert all(abs(found[f"box_{one}"] - wanted[f"box_{one}"]) < 1e-9 for one in OFFICIAL), name
    masks = scored(capsys, written(tmp_path / "masks.json", answers), data, "--no-confidence-intervals")
    again = scored(capsys, outlines, data, "--no-confidence-intervals")
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
    head, *lines = (
        table.read_text().splitlines()
    )  # as `predict --save-formats csv` has classes, with empty columns of boxes
    table.write_text("\n".join([f"{head},left,top,width,height", *lines]))
    assert scored(capsys, table, root, "--no-confidence-intervals")["top1"] == found["top1"]
    for number, name in enumerate(("ant", "bee", "cat")):
        table.write_text(table.read_text().replace(f",{name},", f",{number},"))
    assert scored(capsys, table, root, "--no-confidence-intervals")["top1"] == found["top1"]
    table.write_text("file,name\nval/ant/0.jpg,ant\n1.jpg,bee\n")
    refused(command(capsys, "eval", "--predictions", table, "--data", root), "line 3", "'1.jpg'")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one.pop("score"), ("entry 2 ... score", "ground truth")),
        (lambda one: one.pop("image_id"), ("entry 2 ... image_id",)),
        (lambda one: one.update(image_id=999), ("entry 2 ... 999 ... 14 images", "(id 10)")),
        (lambda one: one.update(category_id=0), ("class 0 ... 3, 5", "--class-names")),
        (lambda one: one.update(category_name="dog"), ("class 'dog' ... class0, class1",)),
        (lambda one: one.update(score=float("nan")), ("entry 2 ... finite",)),
        (lambda one: one.update(bbox=[1, 2, 3]), ("entry 2 ... bbox ... 4 numbers",)),
        (lambda one: one.update(score="high"), ("entry 2 ... score ... 'high'",)),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_named(change, words, data, answers, capsys, tmp_path):
    entries = boxes_of(answers)
    change(entries[2])
    refused(
        command(capsys, "eval", "--predictions", written(tmp_path / "a.json", entries), "--data", data), "a.json", *words
    )


def test_wrong_files_and_flags_are_refused(data, answers, capsys, tmp_path):
    file = written(tmp_path / "a.json", boxes_of(answers))

    def no(*words: object) -> Any:
        return command(capsys, "eval", "--predictions", *words)

    refused(no(tmp_path / "gone.json", "--data", data), "gone.json ... folder")
    refused(no(json_file(data, "val"), "--data", data), "entry 0 ... ground truth")
    refused(no(file), "--data DIR")
    refused(no(file, "--data", data, "--nms-iou", 0.5), "--nms-iou")
    refused(no(file, "--data", data, "--class-names", "dog"), "--class-names ... dog")
    refused(command(capsys, "eval", tmp_path, "--predictions", file, "--data", data), "--predictions")
    refused(no(written(tmp_path / "n.json", 7), "--data", data), "n.json ... list")
    (tmp_path / "b.json").write_text("[{")
    refused(no(tmp_path / "b.json", "--data", data), "b.json: not valid JSON")
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00")
    refused(no(tmp_path / "b.json", "--data", data), "b.json ... UTF-16")
    (tmp_path / "b.csv").write_text("photo,score\n")
    refused(no(tmp_path / "b.csv", "--data", data), "b.csv ... class")
    (tmp_path / "labels").mkdir()
    refused(no(tmp_path / "labels", "--data", data), ".txt")
    (tmp_path / "labels" / "000.txt").write_text("0 0.5 0.5 0.1 0.1\n")
    refused(no(tmp_path / "labels", "--data", data), "000.txt, line 1: ... 5 numbers", "save_conf=True")
    entries = [{**answers[0], "segmentation": {"size": [9, 9], "counts": "abc"}}]
    refused(no(written(tmp_path / "m.json", entries), "--data", data), "RLE ... [9, 9]")
    for shape in ([["x"] * 6], "text", None, 7, {"x": 1}, {"size": [9, 9]}, [{"x": 1, "y": 2}]):
        entries = [answers[1], {**answers[0], "segmentation": shape}]
        refused(no(written(tmp_path / "m.json", entries), "--data", data), "m.json: entry 1")


@pytest.mark.parametrize("counts", ["!!!!", "\u00e9", "a", "", [5, 5], [5, -5], ["5"], 7, "P" * 30, "11"])
def test_run_lengths_that_do_not_fill_their_photo_are_reported_by_entry(counts, data, truth, answers, capsys, tmp_path):
    good = [{**one, "segmentation": _encoded(one, truth)} for one in answers[:3]]
    size = good[2]["segmentation"]["size"]
    entries = [*good[:2], {**good[2], "segmentation": {"size": size, "counts": counts}}]
    said = command(capsys, "eval", "--predictions", written(tmp_path / "m.json", entries), "--data", data)
    refused(said, "m.json: entry 2: its RLE mask")


@pytest.fixture(scope="module")
def crossed(data, tmp_path_factory) -> Path:
    """The same photos as 1.jpg, 2.jpg, ... in val2017/, with ids that are another photo's name."""
    root = tmp_path_factory.mktemp("crossed")
    record = json.loads(json_file(data, "val").read_text())
    count = len(record["images"])
    for number, image in enumerate(record["images"], 1):
        photo = next(data.rglob(image["file_name"]))
        for split in ("val2017", "train2017"):
            (root / split).mkdir(exist_ok=True)
            (root / split / f"{number}.jpg").write_bytes(photo.read_bytes())
        for entry in record["annotations"]:
            if entry["image_id"] == image["id"]:
                entry["renamed"] = number % count + 1
        image.update(id=number % count + 1, file_name=f"{number}.jpg")
    for entry in record["annotations"]:
        entry["image_id"] = entry.pop("renamed")
    (root / "annotations").mkdir()
    written(root / "annotations" / "instances_val2017.json", record)
    written(root / "annotations" / "instances_train2017.json", record)
    return root


@pytest.fixture(scope="module")
def crossed_answers(crossed) -> list[dict[str, Any]]:
    """All boxes of all objects but every fourth."""
    record = json.loads((crossed / "annotations" / "instances_val2017.json").read_text())
    entries = [one for one in record["annotations"] if not one["iscrowd"]]
    return [
        {"image_id": one["image_id"], "category_id": one["category_id"], "bbox": one["bbox"], "score": 1 - place / 1000}
        for place, one in enumerate(entries)
        if place % 4
    ]


IDS = {
    "numbers": lambda one: one,
    "texts": lambda one: {**one, "image_id": str(one["image_id"])},
    "fractions": lambda one: {**one, "image_id": float(one["image_id"]), "category_id": float(one["category_id"])},
    "categories as texts": lambda one: {**one, "category_id": str(one["category_id"])},
    "everything as texts": lambda one: {
        **{key: str(value) for key, value in one.items()}, "bbox": [str(value) for value in one["bbox"]],
    },
}  # fmt: skip


@pytest.mark.parametrize("form", IDS)
def test_ids_are_compared_as_numbers_before_they_are_names_of_files(form, crossed, crossed_answers, capsys, tmp_path):
    record = json.loads((crossed / "annotations" / "instances_val2017.json").read_text())
    wanted = official(record, crossed_answers, "box")
    assert 0.5 < wanted["box_ap"] < 0.9
    file = written(tmp_path / "a.json", [IDS[form](one) for one in crossed_answers])
    found = scored(capsys, file, crossed, "--no-confidence-intervals")
    assert {name: found[name] for name in wanted} == wanted
    said = command(capsys, "eval", "--predictions", file, "--data", crossed, "--no-confidence-intervals")
    assert "image_id is read" in said.out
    # The same numbers in a column for names are names.
    named = [{"file_name": str(one["image_id"]), **one} for one in crossed_answers]
    for one in named:
        del one["image_id"]
    found = scored(capsys, written(tmp_path / "b.json", named), crossed, "--no-confidence-intervals")
    assert found["box_ap"] < wanted["box_ap"]


FOLDERS = {
    "val2017/{}.jpg": True, "set/val2017/{}.jpg": True, "/home/ann/val2017/{}.jpg": True, "C:\\ann\\val\\{}.jpg": True,
    "val2017\\{}.jpg": True, "./{}.jpg": True, "images/{}.png": True, "VAL2017/{}.JPG": True, "val2017%2F{}.jpg": True,
    "train2017%2F{}.jpg": False,
    "train2017/{}.jpg": False, "/home/ann/train/{}.jpg": False, "C:\\ann\\train2017\\{}.jpg": False, "test/{}.jpg": False,
    "annotations/{}.v2": False,
}  # fmt: skip


@pytest.mark.parametrize("form", FOLDERS)
def test_a_folder_of_another_split_is_another_photo(form, crossed, crossed_answers, capsys, tmp_path):
    record = json.loads((crossed / "annotations" / "instances_val2017.json").read_text())
    stems = {image["id"]: Path(image["file_name"]).stem for image in record["images"]}
    named = [{**one, "image_id": form.format(stems[one["image_id"]])} for one in crossed_answers]
    file = written(tmp_path / "a.json", named)
    if FOLDERS[form]:
        wanted = official(record, crossed_answers, "box")
        found = scored(capsys, file, crossed, "--no-confidence-intervals")
        assert {name: found[name] for name in wanted} == wanted
    else:
        refused(command(capsys, "eval", "--predictions", file, "--data", crossed), "entry 0", "images")


ENCODINGS = ("utf-8-sig", "utf-16", "utf-16-le", "utf-32")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_byte_order_marks_are_read(encoding, data, answers, capsys, tmp_path):
    wanted = scored(capsys, written(tmp_path / "a.json", boxes_of(answers)), data, "--no-confidence-intervals")
    (tmp_path / "b.json").write_text(json.dumps(boxes_of(answers)), encoding=encoding)
    found = scored(capsys, tmp_path / "b.json", data, "--no-confidence-intervals")
    assert {**found, "checkpoint": ""} == {**wanted, "checkpoint": ""}


TABLES = {
    "commas": (",", ".", "utf-8", ""), "semicolons": (";", ",", "utf-8-sig", ""), "tabs": ("\t", ".", "utf-16", ""),
    "bars": ("|", ".", "utf-8", " "), "blanks": (",", ".", "utf-8", " "), "sep": (";", ",", "utf-8", "sep=;\r\n"),
}  # fmt: skip


@pytest.mark.parametrize("form", TABLES)
def test_tables_in_each_form_score_alike(form, data, truth, answers, capsys, tmp_path):
    separator, point, encoding, more = TABLES[form]
    names = {image["id"]: image["file_name"] for image in truth["images"]}
    blank = more if more == " " else ""
    rows = [["file_name", "category_id", "score", "x", "y", "w", "h"]]
    rows += [[names[one["image_id"]], one["category_id"], one["score"], *one["bbox"]] for one in boxes_of(answers)]
    cells = [[str(cell).replace(".", point if isinstance(cell, float) else ".") for cell in row] for row in rows]
    lines = [separator.join(f"{blank}{cell}{blank}" for cell in row) for row in cells]
    text = (more if more != " " else "") + "\r\n".join(lines) + "\r\n\r\n"
    file = tmp_path / ("a.tsv" if form == "tabs" else "a.csv")
    file.write_bytes(text.encode(encoding))
    wanted = scored(capsys, written(tmp_path / "a.json", boxes_of(answers)), data, "--no-confidence-intervals")
    found = scored(capsys, file, data, "--no-confidence-intervals")
    assert all(found[f"box_{one}"] == wanted[f"box_{one}"] for one in OFFICIAL)
    # A wrong cell is reported with its line.
    lines[2] = lines[2].replace(cells[2][3], "left", 1)
    file.write_bytes("\r\n".join(lines).encode(encoding))
    refused(command(capsys, "eval", "--predictions", file, "--data", data), "line 3 ... 'left'")


def test_a_table_without_rows_scores_zero_and_one_that_is_none_is_refused(data, capsys, tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("file_name,class,score,x1,y1,x2,y2\n")
    found = scored(capsys, file, data, "--no-confidence-intervals")
    assert found["box_ap"] == 0 and found["box_ar100"] == 0
    file.write_text("file_name,class,score,x1,y1,x2,y2\n" + '"' + "x" * 200_000)
    refused(command(capsys, "eval", "--predictions", file, "--data", data), "a.csv")
    file.write_bytes("name,class,Käfer".encode("latin-1"))
    refused(command(capsys, "eval", "--predictions", file, "--data", data), "UTF-8", "Save ... UTF-8")


def test_yolo_folders_as_label_tools_leave_them(data, truth, answers, capsys, tmp_path):
    images = {image["id"]: image for image in truth["images"]}
    root = tmp_path / "predict"
    labels = root / "labels"
    labels.mkdir(parents=True)
    forms = ("{} {!r} {!r} {!r} {!r} {}", "{},{!r},{!r},{!r},{!r},{}", "{}; {!r}; {!r}; {!r}; {!r}; {}")
    texts: dict[str, list[str]] = {}
    for one in answers:
        image, (x, y, width, height) = images[one["image_id"]], one["bbox"]
        w, h = image["width"], image["height"]
        form = forms[one["image_id"] % 3]
        values = ((x + width / 2) / w, (y + height / 2) / h, width / w, height / h)
        line = form.format((3, 5).index(one["category_id"]), *map(float, values), one["score"])
        texts.setdefault(Path(image["file_name"]).stem, []).append(line)
    for place, (stem, lines) in enumerate(texts.items()):
        (labels / f"{stem}{'.TXT' if place % 2 else '.txt'}").write_text("\n".join(lines), encoding="utf-8-sig")
    (labels / "classes.txt").write_text("class0\nclass1\n")
    (labels / "README.dataset.txt").write_text("Exported\n")
    (labels / "._000.txt").write_bytes(b"\0\5\x16\7" * 10)
    (labels / ".ipynb_checkpoints").mkdir()
    wanted = scored(capsys, written(tmp_path / "a.json", boxes_of(answers)), data, "--no-confidence-intervals")
    found = scored(capsys, root, data, "--no-confidence-intervals")
    assert all(abs(found[f"box_{one}"] - wanted[f"box_{one}"]) < 1e-9 for one in OFFICIAL)
    said = command(capsys, "eval", "--predictions", labels, "--data", data, "--no-confidence-intervals")
    assert "ignoring README.dataset.txt, classes.txt" in said.out
    (labels / "plain.txt").write_text("0 0.5 0.5 0.1 0.1 0.9 7\n")
    refused(command(capsys, "eval", "--predictions", labels, "--data", data), "plain.txt, line 1: ... 7 numbers")


def test_boxes_that_look_like_corners_are_reported(data, truth, answers, capsys, tmp_path):
    entries = boxes_of(answers)
    for one in entries:
        x, y, width, height = one["bbox"]
        one["bbox"] = [x, y, x + width, y + height]
    said = command(
        capsys, "eval", "--predictions", written(tmp_path / "a.json", entries), "--data", data, "--no-confidence-intervals"
    )
    assert said.code == 0 and "x1 y1 x2 y2" in said.out, said
    wanted = official(truth, entries, "box")
    found = scored(capsys, tmp_path / "a.json", data, "--no-confidence-intervals")
    assert {name: found[name] for name in wanted} == wanted
    for value in ([], None):
        entries[3]["bbox"] = value
        said = command(capsys, "eval", "--predictions", written(tmp_path / "a.json", entries), "--data", data)
        refused(said, "entry 3 ... bbox ... 4 numbers")
    entries[3]["bbox"] = [5, 5, 0, -2]
    said = command(
        capsys, "eval", "--predictions", written(tmp_path / "a.json", entries), "--data", data, "--no-confidence-intervals"
    )
    assert said.code == 0 and "Zero-area boxes: 1 of" in said.out


def test_classes_whose_names_are_digits(capsys, tmp_path):
    """Sorted as texts, 10 comes before 2: as numbers, most would be scored as another class."""
    names = ("1", "10", "2")
    root = make_photos(tmp_path / "photos", names)
    table = tmp_path / "table.csv"
    rows = [f"val/{name}/{photo}.jpg,{name},0.6" for name in names for photo in range(3)]
    table.write_text("\n".join(["file,name,score", *rows]))
    assert scored(capsys, table, root, "--no-confidence-intervals")["top1"] == 1
    table.write_text("\n".join(["file,name,score", *rows]).replace("val/1/", "train/1/"))
    refused(command(capsys, "eval", "--predictions", table, "--data", root), "line 2", "9 images")
