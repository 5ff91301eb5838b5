"""A file of weights with a card that somebody else wrote: refused in one sentence, by every verb, and nothing in it is executed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from card_files import card_in, parts, put, with_facts, with_text
from tiny_runs import command, refused

import paceline
from paceline.config.model_card import MAX_HEADER, read_card

ESCAPE = "cat\x1b[31m"


@pytest.fixture(scope="module")
def good(ssd_run, tmp_path_factory) -> Path:
    """Of the run's evaluated weights."""
    place = tmp_path_factory.mktemp("good") / "good.safetensors"
    return Path(shutil.copy(ssd_run.folder / "checkpoints" / "best" / "average.safetensors", place))


@pytest.fixture
def file(good, tmp_path) -> Path:
    return Path(shutil.copy(good, tmp_path / "w.safetensors"))


FACTS = {
    "another schema": ({"schema": 2}, "schema 2 is not supported. This paceline reads schema 1"),
    "a schema that is a text": ({"schema": "1" * 9999}, "metadata schema"),
    "classes that are a text": ({"classes": "cats"}, "invalid metadata: classes"),
    "classes that are numbers": ({"classes": [1] * 8}, "invalid metadata: classes"),
    "no class": ({"classes": []}, "invalid metadata: classes"),
    "a class that a terminal would obey": ({"classes": [ESCAPE] * 8}, "invalid metadata: classes"),
    "a class of a million letters": ({"classes": ["a" * 10**6] * 8}, "invalid metadata: classes"),
    "a class less than rows": ({"classes": ["a"] * 7, "data.category_ids": [1] * 7}, "do not match the model"),
    "too few ids": ({"data.category_ids": [1, 2]}, "classes and category_ids must be"),
    "ids that are fractions": ({"data.category_ids": [0.5] * 8}, "invalid metadata: data"),
    "ids that are true": ({"data.category_ids": [True] * 8}, "invalid metadata: data"),
    "folders that are numbers": ({"data.class_folders": [1] * 8}, "invalid metadata: data"),
    "data that are a list": ({"data": []}, "invalid metadata: data"),
    "a threshold that is no number": ({"best_f1": {"threshold": float("nan")}}, "invalid metadata: best_f1"),
    "a threshold above one": ({"best_f1": {"threshold": 2}}, "invalid metadata: best_f1"),
    "a metric without end": ({"metrics": {"box_ap": float("inf")}}, "invalid metadata: metrics"),
    "a metric that a terminal would obey": ({"metrics": {ESCAPE: 0.5}}, "invalid metadata: metrics"),
    "a step below 0": ({"step": -1}, "invalid metadata: step is -1"),
    "a name that a terminal would obey": ({"name": ESCAPE}, "invalid metadata: name"),
    "versions that are numbers": ({"versions": {"torch": 2}}, "invalid metadata: versions"),
    "colours of another order": ({"color_order": "bgr"}, "invalid metadata: color_order is bgr"),
    "a recipe that is a list": ({"recipe": []}, "invalid metadata: recipe"),
    "a recipe with an unknown field": ({"recipe.model.wings": 2}, "recipe.model: unknown key 'wings'"),
    "a recipe with a field of another type": ({"recipe.model.depth": "ten"}, "recipe.model.depth"),
    "a recipe of a network without end": ({"recipe.model.width": 10**9}, "w.safetensors"),
    "a recipe with a score that is none": ({"recipe.model.detect.score_threshold": float("nan")}, "score"),
    "a number format that is none": ({"system.precision": "fp1"}, "system.precision"),
    "no recipe": (lambda card: card.pop("recipe"), "invalid metadata: recipe is missing"),
    "no classes": (lambda card: card.pop("classes"), "invalid metadata: classes is missing"),
    "a task that is none": ({"recipe.task": "chess"}, "its task 'chess' is not a task"),
}


@pytest.mark.parametrize("case", FACTS)
def test_a_card_with_an_impossible_fact_is_refused(case, file, ssd_run, tmp_path, capsys):
    changes, wanted = FACTS[case]
    with_facts(file, changes)
    out = tmp_path / "out"
    refused(command(capsys, "predict", file, ssd_run.data, "--output-dir", out), "w.safetensors", wanted)
    assert not out.exists() and len(wanted) < 200
    refused(command(capsys, "eval", file, "--data", ssd_run.data), lines=2)
    with pytest.raises(paceline.PacelineError):
        paceline.load(file)


def deep_card(file: Path) -> None:
    with_text(file, '{"schema":1,"recipe":' + "[" * 10**5 + "]" * 10**5 + "}")


def deep_header(file: Path) -> None:
    header, tensors = parts(file)
    put(file, json.dumps(header)[:-1] + ',"x":' + "[" * 10**5 + "]" * 10**5 + "}", tensors)


def huge_header(file: Path) -> None:
    """Its length is true, and the file has so many bytes on no disk."""
    with file.open("r+b") as opened:
        opened.write((100 << 20).to_bytes(8, "little"))
        opened.truncate((100 << 20) + 1000)


def cut_in_the_header(file: Path) -> None:
    os.truncate(file, 500)


def cut_in_the_tensors(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 100)


DAMAGES = {
    "a card that is no JSON": (lambda file: with_text(file, "{"), "metadata ... damaged"),
    "a card that is nested without end": (deep_card, "metadata ... damaged"),
    "a header that is nested without end": (deep_header, "damaged, truncated, or not a weight file"),
    "a header of 100 MB": (huge_header, f"at most {MAX_HEADER:,}"),
    "a file that is cut in its header": (cut_in_the_header, "damaged, truncated, or not a weight file"),
    "a file that is cut in its tensors": (cut_in_the_tensors, "damaged, truncated, or not a weight file"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_file_is_refused_by_every_verb(case, file, ssd_run, tmp_path, capsys):
    damage, wanted = DAMAGES[case]
    damage(file)
    for words in (
        ["predict", file, ssd_run.data, "--output-dir", tmp_path / "out"],
        ["eval", file, "--data", ssd_run.data],
        ["weights", "inspect", file],
        ["export", file, "--output", tmp_path / "b.safetensors"],
        ["train", "ssd-demo", "--weights", file, "--data", ssd_run.data, "--output-dir", tmp_path / "run"],
    ):
        refused(command(capsys, *words), "w.safetensors", wanted)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_workload_of_its_own_is_named_and_not_run(file, ssd_run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("open('PWNED', 'w')\n")
    with_facts(file, {"recipe.task": "./evil.py:EVIL"})
    for verb in (["predict", file, ssd_run.data], ["eval", file, "--data", ssd_run.data], ["plan", file]):
        refused(command(capsys, *verb), "by default", "--task-file ./evil.py:EVIL")
    command(capsys, "weights", "inspect", file)
    assert not Path("PWNED").exists()


def test_what_is_not_known_on_a_card_is_left_out(file):
    with_facts(file, {"data.manifest": "/etc", "more": 1, "options": {"data": "/etc", "synthetic": 1}})
    card = read_card(file)
    assert card["data"].keys() == {"hash", "category_ids"} and "more" not in card
    assert card["options"] == {"synthetic": False} and "more" in card_in(file)
