"""`plan` for people: what comes first, units, lines that fit a terminal, what differs; and --weights, seen as training sees them."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from messages import check_line, check_text
from shared_runs import SSD
from tiny_runs import TINY, command, refused

from paceline._utils.names import flatten
from paceline._utils.text import format_definitions
from paceline.cli.recipe_text import base_recipe, differing_cells, list_cells
from paceline.config.recipe import differing_fields, override
from paceline.config.recipes import RECIPES, find_base
from paceline.config.recipes.published_rows import ROWS
from paceline.models.weights.download import PUBLISHED, pretrained_for

FEW = ("--train-images", "900", "--val-images", "9")
HEADS = ["recipe", "batch", "length", "schedule", "input", "target", "ranks", "system", "memory"]


@pytest.mark.parametrize("width", [60, 200])
@pytest.mark.parametrize("more", [(), ("--verbose",), ("--compare-with", "resnet50")], ids=str)
def test_every_line_fits_and_nothing_is_written_as_python_writes_it(capsys, monkeypatch, width, more):
    monkeypatch.setenv("COLUMNS", str(width))
    said = command(capsys, "plan", "ssd-demo", *more)
    assert said.code == 0, said
    for line in said.out.splitlines():
        assert len(line) <= width or " paceline " in line, line  # a command is pasted
    assert not re.search(r"[{}]|\bTrue\b|\bFalse\b|\bNone\b|\(\d", said.out), said.out


def test_what_is_wanted_first_comes_first_and_the_rest_only_differs(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = command(capsys, "plan", "ssd-demo", "--optim.lr", "0.003").out
    heads = [line.split()[0] for line in text.partition("\n\n")[0].splitlines() if line[0] != " "]
    assert heads == [*HEADS, "estimate"]
    assert "40,000 images" in text and "192 x 192 px" in text and text.count("\n") <= 24
    *_, names, value = text.splitlines()
    assert names.split() == ["changed", "ssd-demo"] and value.split() == ["optim", "lr", "0.003", "0.0025"]


def test_a_recipe_s_base_follows_from_its_name_and_every_value_that_it_has_otherwise_is_marked():
    known = {
        "ssd-finetune-cpu": "ssd-finetune",
        "classify-demo": "resnet50",
        "resnet50-mlperf-3200-4x8": "resnet50-mlperf-3200",
        "fasterrcnn": "maskrcnn",
    }
    assert {name: find_base(name, RECIPES[name]().task) for name in known} == known
    assert find_base("ssd@dell-dgx1-1024", "detection") == "ssd" and find_base("./my-own.py:net", "classification") == ""
    for name, make in RECIPES.items():
        recipe = make()
        other_name, other = base_recipe(name, recipe)
        assert other_name == find_base(name, recipe.task) or (
            other_name == "the defaults" and name in ("resnet50", "ssd", "maskrcnn")
        )
        changed = {field for field in differing_fields(recipe, other) if field != "pretrained"}
        assert len(differing_cells(recipe, other)) == len(changed)
        marked = [label for _, label, _ in list_cells(recipe, other) if label.startswith("* ")]
        assert len(marked) == len(changed) and len(list_cells(recipe, other)) == len(flatten(recipe)) - 1


def test_units_ranges_and_numbers_are_a_person_s():
    found = {
        (group, name): texts
        for group, name, texts in differing_cells(RECIPES["ssd-finetune-cpu"](), RECIPES["ssd-finetune"]())
    }
    assert found["input", "image-size"] == ["416 px", "300 px"] and found["input", "crop-scale"] == ["0.6 to 1", "0.3 to 1"]
    assert found["schedule", "warmup"] == ["0.05 of the run", "1 epoch"] and found["model", "extra-norm"] == ["yes", "no"]
    assert found["recipe", "global-batch-size"] == ["8 images", "32 images"]
    assert found["model", "scales"][0] == "0.027, 0.06, 0.14, 0.3, 0.5, 0.75, 0.95"


def test_items_are_broken_where_they_alone_are_too_long():
    rows = [("head", ["one two", "three four five", "six"]), "a command that is pasted and so never broken"]
    assert format_definitions(rows, 26) == ["head       one two", " " * 11 + "three four five", " " * 11 + "six", rows[1]]
    assert format_definitions([("a", ["one two three four"])], 22) == ["a          one two", f"{'':11}three four"]


def test_a_run_and_a_recipe_are_compared_in_words_and_in_json(capsys, ssd_run):
    said = command(capsys, "plan", ssd_run.folder, "--compare-with", "ssd-demo")
    assert said.code == 0 and re.search(r"model +width +4 +32\n", said.out), said.out
    facts = json.loads(command(capsys, "plan", "ssd-demo", "--compare-with", ssd_run.folder, "--json").out)
    assert facts["differences"]["model.width"] == [32, 4] and facts["recipes"] == ["ssd-demo", str(ssd_run.folder)]
    check_text(command(capsys, "plan", "ssd", "--compare-with", "ssd").out, "ssd", "same values")
    refused(command(capsys, "plan", "ssd", "--compare-with", "sdd"), "'sdd'")


def test_weights_are_tried_as_training_tries_them(capsys, ssd_run, resnet_run, tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.api.report_run", lambda *_: None)
    own, other = ssd_run.folder / "checkpoints" / "best", resnet_run.folder / "checkpoints" / "best"
    words = ["ssd-demo", "--data", ssd_run.data, *SSD.split()]
    said = command(capsys, "plan", *words, "--weights", own)
    assert said.code == 0 and "tensors used" in said.out and f"weights    {own}"[:60] in said.out, said
    for weights in (tmp_path / "none.pth", other):
        shown = command(capsys, "plan", *words, "--weights", weights)
        trained = command(
            capsys, "train", *words, "--weights", weights, "--max-steps", "1", "--output-dir", tmp_path / "run"
        )
        assert shown.code == trained.code == 2 and shown.err == trained.err, (shown.err, trained.err)
    said = command(capsys, "plan", "ssd-demo", "--data", ssd_run.data, "--auto-config", "--weights", "none")
    (line,) = [line for line in said.out.splitlines() if line.startswith("to train:")]
    assert shlex.split(line)[-2:] != ["--weights", "none"] and "--weights none" in line and "--auto-config" not in line


def test_weights_of_another_trunk_are_named_by_show_and_by_train(capsys, class_photos):
    for name, make in {**RECIPES, **{name: row.make for name, row in ROWS.items()}}.items():
        assert pretrained_for(make()) == make().pretrained, name
    made = RECIPES["ssd-finetune-cpu"]()
    for trunk, wanted in (("timm/tf_efficientnet_lite0", "efficientnet-lite0"), ("timm/resnet26d", "timm/resnet26d")):
        assert pretrained_for(override(made, {"model.backbone": trunk})) == wanted
    assert pretrained_for(override(RECIPES["classify-finetune"](), {"model.depth": 200})) == "FILE"
    words = ["classify-finetune", "--model.depth", "34"]
    text = " ".join(command(capsys, "plan", *words, *FEW).out.split())
    assert f"training requires --weights resnet34 ({PUBLISHED['resnet34'].about}); resnet50" in text
    refused(command(capsys, "train", *words, "--data", class_photos), "--weights resnet34 ")
    text = command(capsys, "plan", *words, *FEW, "--weights", "resnet34").out
    assert check_line(text, "--weights resnet34", "cache") and "weights    resnet34: torchvision" in text
    shown = command(capsys, "plan", "classify-demo", *TINY).out
    assert "weights" not in shown
