"""--help is a screen of what most use; a group and everything are asked for; a verb's whole help is its fields' comments."""

from __future__ import annotations

import io
import json
import re

import pytest
from parsed import train_flags
from tiny_runs import command, refused

from paceline.cli.main import VERBS
from paceline.config.recipes import RECIPES
from paceline.config.run import RunOptions
from paceline.models.weights.download import PUBLISHED
from paceline.training.logging.live_line import LiveLine, RunStatus

KINDS = {"prepare": "coco", "download": "", "list": "recipes", "weights": "download", "mlperf": "check", "container": "build",
         "bench": "input", "data": "info"}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_fits_a_screen(capsys, monkeypatch, verb):
    monkeypatch.setenv("COLUMNS", "80")
    for words in [
        [],
        [KINDS[verb]] if KINDS.get(verb) else [],
        ["ssd-demo"] if verb in ("train", "plan", "preview", "launch") else [],
    ]:
        said = command(capsys, verb, *words, "--help")
        lines = said.out.splitlines()
        assert said.code == 0 and "usage" in lines[0] and f"paceline {verb}" in lines[0], said
        assert len(lines) <= 25, (verb, words, len(lines))


def test_a_recipe_s_help_has_what_most_use_and_says_where_the_others_are(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = command(capsys, "train", "ssd-finetune-cpu", "-h").out
    for flag in (
        "--data",
        "--output-dir",
        "--weights",
        "--epochs",
        "--max-images",
        "--global-batch-size",
        "--system",
        "--seed",
    ):
        assert f"\n  {flag} " in text, text
    assert "--help-all" in text and "model|input|optim" in text and "resumed" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_group_and_a_part_of_a_name_and_everything_are_shown_in_full(capsys):
    text = command(capsys, "train", "ssd-demo", "--help", "model").out
    assert text.count("\n  --model.") == text.count("\n  --") > 20 and "--model.detect.max-detections N" in text
    assert command(capsys, "train", "ssd-demo", "--help", "warmup").out.count("\n  --schedule.warmup") == 3
    refused(command(capsys, "train", "ssd-demo", "--help", "nothing"), "--help nothing", "schedule")
    text = command(capsys, "train", "ssd-demo", "--help-all").out
    recipe = RECIPES["ssd-demo"]()
    known = set(train_flags(recipe))
    assert not [
        flag
        for flag in known
        if f"{flag} " not in text.replace("\n", " ") and "no-" not in flag and flag != "--target-data"
    ]
    assert "--tensorboard | --no-tensorboard" in text or "tensorboard" not in vars(RunOptions())


@pytest.mark.parametrize("width", ["40", "80", "120"])
def test_the_longest_flag_is_apart_from_its_text(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    for kind in ("coco", "photos", "tfrecord"):
        text = command(capsys, "prepare", kind, "--help-all").out
        assert "--on-class-mismatch NAME  " in text or "--on-class-mismatch {error,warn}\n" in text, text


def test_every_verb_has_json_and_quiet(capsys):
    for verb in sorted(VERBS.keys() - {"completion"}):
        kind = KINDS.get(verb, "ssd-demo" if verb in ("train", "plan", "preview", "launch") else "")
        text = command(capsys, verb, *([kind] if kind else []), "--help-all").out
        assert "\n  --json " in text and "\n  --quiet " in text, verb


def test_where_json_is_no_flag_of_the_verb_what_it_says_is_one_object_and_quiet_leaves_messages_out(
    capsys, ssd_run, tmp_path, class_photos
):
    said = command(capsys, "weights", "download", "--json")
    facts = json.loads(said.out)
    assert (facts["verb"], facts["exit_code"], len(facts["said"])) == ("weights", 0, len(PUBLISHED))
    assert said.err.splitlines() == facts["said"]
    said = command(capsys, "report", tmp_path, "--json")
    assert json.loads(said.out) == {"verb": "report", "exit_code": 2, "said": []} and said.err.startswith("paceline: ")
    assert command(capsys, "weights", "download").out.splitlines() == facts["said"]  # the next command is asked for nothing
    words = ["plan", "ssd-demo", "--data", class_photos.parent / "none"]
    refused(command(capsys, *words, "--quiet"), "folder")
    words = ["plan", "ssd-demo", "--data", ssd_run.data, "--auto-config"]
    assert "to train:" in command(capsys, *words).out and "auto:" not in command(capsys, *words, "--quiet").out


def test_a_person_who_wants_no_colour_gets_none(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    out = io.StringIO()
    live = LiveLine(out, RunStatus(what="evaluating", total=10), redirect_stdout=False)
    live.print("a line", "bold red")
    live.close()
    assert not re.search(r"\x1b\[(?:\d+;)*(?:3|4|9)\d", out.getvalue())
