"""--help is a screen of what most use; a group and everything are asked for; a verb's whole help is its fields' comments."""

from __future__ import annotations

import pytest
from tiny_runs import command, refused

from paceline.cli.main import VERBS
from paceline.command import flags
from paceline.config.run import Controls
from paceline.config.system import System
from paceline.recipes import RECIPES

KINDS = {"prepare": "coco", "pack": "", "download": "", "list": "recipes", "weights": "get", "mlperf": "check", "image": "build",
         "bench": "input", "data": "info"}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_fits_a_screen(capsys, monkeypatch, verb):
    monkeypatch.setenv("COLUMNS", "80")
    for words in [
        [],
        [KINDS[verb]] if KINDS.get(verb) else [],
        ["ssd-tiny"] if verb in ("train", "show", "preview", "launch") else [],
    ]:
        said = command(capsys, verb, *words, "--help")
        lines = said.out.splitlines()
        assert said.code == 0 and "usage" in lines[0] and f"paceline {verb}" in lines[0], said
        assert len(lines) <= 25, (verb, words, len(lines))


def test_a_recipe_s_help_has_what_most_use_and_says_where_the_others_are(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = command(capsys, "train", "ssd-custom-cpu", "-h").out
    for flag in ("--data", "--out", "--weights", "--epochs", "--images-seen", "--global-batch", "--system", "--seed"):
        assert f"\n  {flag} " in text, text
    assert "--help-all" in text and "model|input|optim" in text and "resumes it" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_group_and_a_part_of_a_name_and_everything_are_shown_in_full(capsys):
    text = command(capsys, "train", "ssd-tiny", "--help", "model").out
    assert text.count("\n  --model.") == text.count("\n  --") > 25 and "--model.detect.keep N" in text
    assert command(capsys, "train", "ssd-tiny", "--help", "warmup").out.count("\n  --schedule.warmup") == 3
    refused(command(capsys, "train", "ssd-tiny", "--help", "nothing"), "--help nothing", "schedule")
    text = command(capsys, "train", "ssd-tiny", "--help-all").out
    recipe = RECIPES["ssd-tiny"]()
    known = {*flags._flags_of(recipe), *flags._flags_of(System(), "system."), *flags._flags_of(Controls())}
    assert not [flag for flag in known if f"{flag} " not in text.replace("\n", " ") and "no-" not in flag]
    assert "--tensorboard | --no-tensorboard" in text or "tensorboard" not in vars(Controls())
