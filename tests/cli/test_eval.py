"""`paceline eval` as people use it: on a test set, on weights alone, with other thresholds; its tables."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from messages import check_line
from PIL import Image
from shared_runs import SharedRun
from tiny_runs import CLASSES, TINY, command, make_photos, refused

from paceline.cli.eval_table import MAX_CLASSES, format_evaluation
from paceline.models.task import EvalResult

pytestmark = pytest.mark.usefixtures("no_charts")

MY_RECIPE = """
from dataclasses import replace
from paceline.config.recipes import RECIPES
def recipe():
    whole = RECIPES["ssd-demo"]()
    model = replace(whole.model, depth=10, width=4, extra_channels=8)
    return replace(whole, model=model, input=replace(whole.input, image_size=96), global_batch_size=4, bn_batch_size=4)
"""


def numbers(capsys, *words: object) -> dict:
    """What `eval --json` prints."""
    said = command(capsys, "eval", *words, "--json")
    assert said.code == 0, said
    return json.loads(said.out.splitlines()[-1])


def metrics(found: dict) -> dict:
    return {name: value for name, value in found.items() if name.startswith(("box_", "mask_", "top")) or name == "images"}


def val_alone(data: Path, root: Path) -> Path:
    """The validation pictures of a set in COCO's layout, without its training part."""
    (json_file,) = (data / "annotations").glob("instances_val*.json")
    shutil.copytree(data / json_file.stem.removeprefix("instances_"), root / "test")
    (root / "annotations").mkdir()
    shutil.copyfile(json_file, root / "annotations" / "instances_test.json")
    return root


@pytest.mark.parametrize("which", ["ssd_run", "maskrcnn_run"])
def test_a_test_set_alone_scores_as_the_same_pictures_do_in_the_run_s_own_set(which, request, capsys, tmp_path):
    run: SharedRun = request.getfixturevalue(which)
    own = numbers(capsys, run.folder)
    alone = val_alone(run.data, tmp_path / "alone")
    held = numbers(capsys, run.folder, "--data", alone)
    assert metrics(held) == metrics(own) and held["per_class"] == own["per_class"]
    # Categories in another order, with other ids, and one fewer that has no objects: still the same classes.
    file = alone / "annotations" / "instances_test.json"
    record = json.loads(file.read_text())
    for entry in record["annotations"]:
        entry["category_id"] = 1000 - entry["category_id"]
    for entry in record["categories"]:
        entry["id"] = 1000 - entry["id"]
    file.write_text(json.dumps(record))
    other = numbers(
        capsys, run.folder, "--images-dir", alone / "test", "--annotations", file, "--output", tmp_path / "out.json"
    )
    assert metrics(other) == metrics(own)
    written = json.loads((tmp_path / "out.json").read_text())
    assert set(written["category_ids"]) >= {entry["id"] for entry in record["categories"]}


def test_a_test_set_is_scored_whole_although_the_run_took_a_part_of_its_own(resnet_run, capsys, tmp_path):
    shutil.copytree(resnet_run.data / "val", tmp_path / "test" / "test")
    assert numbers(capsys, resnet_run.folder, "--data", tmp_path / "test")["images"] == 9
    assert numbers(capsys, resnet_run.folder, "--data", tmp_path / "test", "--max-val-images", 3)["images"] == 3
    # One class alone, and readable names that came later.
    shutil.rmtree(tmp_path / "test" / "test" / "ant")
    (tmp_path / "test" / "classes.json").write_text(json.dumps({"bee": "Apis", "cat": "Felis"}))
    found = numbers(capsys, resnet_run.folder, "--data", tmp_path / "test")
    assert [(entry["name"], entry["photos"]) for entry in found["per_class"]] == [("ant", 0), ("bee", 3), ("cat", 3)]
    (tmp_path / "test" / "test" / "cat").rename(tmp_path / "test" / "test" / "dog")
    (tmp_path / "test" / "classes.json").unlink()
    refused(command(capsys, "eval", resnet_run.folder, "--data", tmp_path / "test"), "dog", "ant, bee, cat")


def test_readable_names_that_came_after_training_do_not_part_a_run_from_its_own_data(capsys, tmp_path):
    data = make_photos(tmp_path / "photos")
    run = tmp_path / "run"
    assert command(capsys, "train", "classify-demo", "--data", data, "--output-dir", run, *TINY, "--max-steps", 1).code == 0
    before = numbers(capsys, run)
    (data / "classes.json").write_text(json.dumps({name: name.title() for name in CLASSES}))
    assert metrics(numbers(capsys, run)) == metrics(before)
    assert metrics(numbers(capsys, run, "--data", data)) == metrics(before)


def test_thresholds_and_suppression_are_flags(ssd_run, resnet_run, capsys, tmp_path):
    def found(*flags: object) -> list[int]:
        assert command(capsys, "eval", ssd_run.folder, "--output", tmp_path / "out.json", *flags).code == 0
        return [len(image["boxes"]) for image in json.loads((tmp_path / "out.json").read_text())["images"]]

    plain = found("--score-threshold", 0.0)
    assert min(plain) > 3
    assert set(found("--score-threshold", 0.0, "--max-detections", 3)) == {3}
    assert set(found("--score-threshold", 0.99)) == {0}
    few = ("--score-threshold", 0.0, "--topk-candidates", 10, "--max-detections", 100)
    assert sum(found(*few, "--nms-iou", 0.01)) < sum(found(*few, "--nms-iou", 1.0))
    assert sum(found("--score-threshold", 0.0, "--topk-candidates", 2)) < sum(plain)
    refused(command(capsys, "eval", ssd_run.folder, "--nms-iou", 2), "--nms-iou 2 ... (0, 1]")
    refused(command(capsys, "eval", resnet_run.folder, "--nms-iou", 0.5), "--nms-iou", "network")


def test_weights_alone_are_scored_in_the_network_of_a_recipe(ssd_run, capsys, tmp_path):
    (tmp_path / "my.py").write_text(MY_RECIPE)
    recipe = f"{tmp_path / 'my.py'}:recipe"
    best = ssd_run.folder / "checkpoints" / "best"
    (weights,) = [best / name for name in ("average.safetensors", "model.safetensors") if (best / name).exists()][:1]
    # A file of the weights and the running statistics, as a stranger would get it.
    from safetensors.torch import load_file, save_file

    tensors = {**load_file(best / "model.safetensors"), **load_file(weights)}
    save_file(tensors, tmp_path / "w.safetensors")
    own = numbers(capsys, ssd_run.folder)
    flags = ("--recipe", recipe, "--system", "cpu", "--batch-size", 4)
    found = numbers(capsys, tmp_path / "w.safetensors", *flags, "--data", ssd_run.data)
    assert found["images"] == own["images"]
    for name, value in metrics(own).items():
        assert found[name] == pytest.approx(value, abs=1e-3), name
    refused(command(capsys, "eval", tmp_path / "w.safetensors"), "score", "w.safetensors --data DIR")
    # Which output is which class is for who made the weights to know.
    said = command(capsys, "eval", tmp_path / "w.safetensors", *flags, "--data", ssd_run.data, "--max-val-images", 2)
    names = json.loads((ssd_run.folder / "run.json").read_text())["classes"]
    check_line(said.out, "class order", ", ".join(names[:2]))
    # Data of other classes would get new class heads, and a score of nothing.
    alone = val_alone(ssd_run.data, tmp_path / "alone")
    file = alone / "annotations" / "instances_test.json"
    record = json.loads(file.read_text())
    record["categories"].append({"id": 999, "name": "unknown"})
    file.write_text(json.dumps(record))
    refused(command(capsys, "eval", tmp_path / "w.safetensors", *flags, "--data", alone), "Missing", "--recipe", lines=6)


def test_json_leaves_stdout_to_objects(ssd_run, capsys, tmp_path):
    alone = val_alone(ssd_run.data, tmp_path / "alone")  # data that is new is verified, and that is said
    said = command(capsys, "eval", ssd_run.folder, "--data", alone, "--json", "--max-val-images", 2)
    assert [json.loads(line)["images"] for line in said.out.splitlines()] == [2]
    assert "verifying" in said.err


def test_flags_that_contradict_each_other_are_refused(ssd_run, resnet_run, capsys, tmp_path):
    refused(command(capsys, "eval", ssd_run.folder, "--split", "test"), "--split test", "--data DIR")
    refused(command(capsys, "eval"), "paceline eval RUN")
    refused(command(capsys, "eval", ssd_run.folder, "--recipe", "ssd"), "--recipe ssd", "recipe ... run.json")
    files = ("--images-dir", tmp_path, "--annotations", "x.json")
    refused(command(capsys, "eval", ssd_run.folder, *files, "--split", "test"), "without --data and --split")
    said = command(capsys, "eval", ssd_run.folder, "--output", tmp_path)
    refused(said, f"--output {tmp_path} ... a folder")
    assert said.out == ""  # before anything is scored
    refused(command(capsys, "eval", ssd_run.folder, "--images-dir", tmp_path), "--images-dir DIR and --annotations FILE")
    refused(command(capsys, "eval", resnet_run.folder, "--images-dir", tmp_path, "--annotations", "x"), "class folders")
    refused(command(capsys, "eval", ssd_run.folder, "--data", tmp_path / "none"), "--data", "folder")


def test_the_table_has_boxes_and_masks_side_by_side_and_every_class():
    names = ("box_ap", "box_ap_small", "mask_ap", "mask_ap_small")
    classes = [
        {"name": "cat" * 20, "objects": 1234, "ap": 0.5, "ap50": 0.75, "ar100": 0.6, "mask_ap": 0.25, "mask_ap50": 1.0}
    ]
    classes += [{"name": "dog", "objects": 0, "ap": -1, "ap50": -1, "ar100": -1, "mask_ap": -1, "mask_ap50": -1}]
    found = EvalResult(dict(zip(names, (0.5, -1, 0.25, 0.125))), 7, {"kind": "instances", "per_class": classes})
    lines = format_evaluation(found)
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == ["AP", "50.0", "25.0"] and lines[2].split() == ["AP", "small", "n/a", "12.5"]
    assert lines[-2].split()[1:] == ["1,234", "50.0", "75.0", "60.0", "25.0", "100.0"]
    assert lines[-1].split() == ["dog", "0", "n/a", "n/a", "n/a", "n/a", "n/a"]


def test_of_very_many_classes_the_worst_and_the_best_are_printed():
    classes = [
        {"name": f"class {k}", "objects": 1, "ap": k / 1000, "ap50": 0.5, "ar100": 0.5} for k in range(MAX_CLASSES + 20)
    ]
    lines = format_evaluation(EvalResult({"box_ap": 0.5}, 7, {"kind": "boxes", "per_class": classes}))
    assert len(lines) < 30 and any("100 classes between" in line for line in lines)
    assert "class 0 " in lines[4] and f"class {MAX_CLASSES + 19}" in lines[-1]


def test_photos_are_counted_by_class():
    def photo(label: int, *best: int) -> dict:
        return {"label": label, "top5": [{"class": k, "score": 0.1} for k in best]}

    images = [photo(0, 0, 1), photo(0, 1, 0), photo(0, 1, 2), photo(1, 1, 0)]
    described = {"kind": "classification", "classes": ["ant", "bee", "cat"], "images": images}
    lines = format_evaluation(EvalResult({"top1": 0.5}, 4, described))
    rows = [line.split() for line in lines[-3:]]
    assert rows == [["ant", "3", "33.3", "66.7"], ["bee", "1", "100.0", "100.0"], ["cat", "0", "n/a", "n/a"]]


@pytest.mark.parametrize("kind", ["resnet_run", "ssd_run"])
def test_what_training_scored_are_the_weights_that_are_averaged_as_eval_scores_them(kind, request, tmp_path, capsys):
    run: SharedRun = request.getfixturevalue(kind)
    (scored,) = (run.folder / "predictions").iterdir()
    assert (run.folder / "checkpoints" / "last" / "average.safetensors").is_file()
    said = command(capsys, "eval", run.folder, "--checkpoint", "last", "--output", tmp_path / "found.json")
    assert said.code == 0, said
    then, now = (json.loads(file.read_text())["images"] for file in (scored, tmp_path / "found.json"))
    assert now == then and "score" in str(now)


def test_the_split_that_was_scored_is_named(resnet_run, tmp_path, capsys):
    own = command(capsys, "eval", resnet_run.folder)
    assert own.code == 0 and f"9 images from {resnet_run.data}, val/" in own.out, own
    other = tmp_path / "other"
    shutil.copytree(resnet_run.data / "val", other / "test")
    said = command(capsys, "eval", resnet_run.folder, "--data", other)
    assert said.code == 0 and f"9 images from {other}, test/" in said.out, said


def test_a_split_that_lies_in_no_folder_of_its_own_is_named_too(ssd_run, tmp_path, capsys):
    names = json.loads((ssd_run.folder / "run.json").read_text())["classes"]
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (tmp_path / "voc" / folder).mkdir(parents=True)
    objects = "".join(
        f"<object><name>{name}</name><bndbox><xmin>2</xmin><ymin>3</ymin><xmax>30</xmax><ymax>40</ymax></bndbox></object>"
        for name in names
    )
    for split, photo in zip(("train", "val", "test"), sorted((ssd_run.data / "train2017").iterdir())):
        shutil.copy(photo, tmp_path / "voc" / "JPEGImages")
        with Image.open(photo) as picture:
            width, height = picture.size
        size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
        xml = f"<annotation><filename>{photo.name}</filename>{size}{objects}</annotation>"
        (tmp_path / "voc" / "Annotations" / f"{photo.stem}.xml").write_text(xml)
        (tmp_path / "voc" / "ImageSets" / "Main" / f"{split}.txt").write_text(photo.stem)
    for words, split in (((), "val"), (("--split", "test"), "test")):
        said = command(capsys, "eval", ssd_run.folder, "--data", tmp_path / "voc", *words)
        assert said.code == 0 and f"1 image from {tmp_path / 'voc'}, {split}\n" in said.out, said


def test_scoring_shows_how_far_it_is_on_a_terminal(resnet_run, capsys, monkeypatch):
    from paceline.training.logging.live_line import LiveLine

    seen: list[tuple[str, int, int]] = []
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(LiveLine, "draw", lambda self: seen.append((self.now.what, self.now.done, self.now.of)))
    assert command(capsys, "eval", resnet_run.folder).code == 0
    assert any(what.startswith("scoring") and of == 9 for what, done, of in seen), seen


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path, capsys):
    refused(command(capsys, "eval", tmp_path / "w.safetensors", "--recipe", "ssd-demo"), "w.safetensors")
