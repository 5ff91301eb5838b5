"""Flags of other tools set ours where they mean the same, and none of them is the name of another setting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli.flags import parse_run_args
from paceline.cli.printing import Printer
from paceline.config.foreign_flags import ACCEPTED, FOREIGN, OTHERWISE, SAME, SWITCHES, accept_foreign
from paceline.config.run import RunOptions

FLAGS = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "flags.json").read_text())
TRAIN = [flag for flag, commands in FLAGS.items() if any(command.startswith("train") for command in commands)]
# Images of one step or call, and processes that read: another command's flag of this name is the same setting of that command.
SHARED = {"batch-size", "workers"}


def test_the_tables_name_flags_that_exist_and_each_word_once():
    known = {*FLAGS, "--system"}
    assert {flag for flags in SAME for flag in flags} | {flag for flags, _ in SWITCHES.values() for flag in flags} <= known
    assert {flag for flag, _ in OTHERWISE.values()} <= known
    accepted = [word for words in SAME.values() for word in words.split() if word[0] != "~"] + list(SWITCHES)
    assert len(accepted) == len(set(accepted)) and len({*FOREIGN, *SWITCHES, *OTHERWISE}) >= 133


def test_no_accepted_name_is_another_settings_name():
    names = {flag.removeprefix("--") for flag in FLAGS}
    # --iou-like names of detection and the device, which the system includes, have one meaning for users.
    settings = {word: flags for word, flags in ACCEPTED.items() if not any(flag.endswith(f".{word}") for flag in flags)}
    assert {word for word in {*settings, *SWITCHES} if word in names} - SHARED == set()
    ends = {flag.rpartition(".")[2]: flag for flag in FLAGS if "." in flag}
    assert not [
        word
        for word, flags in ACCEPTED.items()
        if word in ends and ends[word] not in flags and word not in ("nms", "device")
    ]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("--lr 0.01 --momentum=0.8", "--optim.lr 0.01 --optim.momentum 0.8"),
        ("--batch_size 8 -j 4", "--global-batch-size 8 --system.num-workers 4"),
        ("--device cuda:0 --half", "--system gpu --system.precision fp16"),
        ("--optimizer AdamW --cos-lr", "--optim.name adamw --schedule.name cosine"),
        ("--imgsz=320 --dtype bfloat16", "--input.image-size 320 --system.precision bf16"),
    ],
)
def test_a_tools_flag_sets_ours_and_a_note_names_both(theirs, ours):
    words, notes = accept_foreign(theirs.split(), [*TRAIN, "--system"])
    assert words == ours.split()
    names = [word.partition("=")[0] for word in theirs.split() if word[0] == "-"]
    settings = [f"--{setting}" for setting in f" {ours}".split(" --")[1:]]
    assert notes == [f"{name} sets {setting}" for name, setting in zip(names, settings, strict=True)]


def test_other_words_stay_as_they_are():
    words = ["--lrf", "0.1", "--nothing", "1", "--data", "A", "--optim.lr", "-1", "--epochs=2"]
    assert accept_foreign(words, TRAIN) == (words, [])
    assert accept_foreign([], TRAIN) == ([], [])


def test_a_flag_whose_unit_differs_is_never_accepted():
    for word in ("lrf", "warmup-epochs", "mixup", "fraction", "save-period", "freeze", "lr-steps"):
        assert accept_foreign([f"--{word}", "1"], TRAIN) == ([f"--{word}", "1"], [])


def test_the_note_is_printed_on_stderr_unless_quiet(capsys):
    words = ["ssd-demo", "--lr", "0.02", "--device", "cpu"]
    parsed = parse_run_args(words, RunOptions(), verb="train", printer=Printer())
    assert parsed.recipe.optim.lr == 0.02 and parsed.system_name == "cpu" and {"optim.lr", "system"} <= parsed.given
    assert capsys.readouterr() == ("", "note: --lr sets --optim.lr 0.02\nnote: --device sets --system cpu\n")
    printer = Printer()
    printer.quiet = True
    parse_run_args(words, RunOptions(), verb="train", printer=printer)
    assert capsys.readouterr() == ("", "")


def test_one_flag_is_one_setting():
    """The help of two commands may have other words for a flag, but no two flags have one text: they would be one setting."""
    texts: dict[str, set[str]] = {}
    for flag, commands in FLAGS.items():
        for text in commands.values():
            texts.setdefault(text, set()).add(flag.replace("--no-", "--").replace(".no-", "."))
    parts = {".rpn.", ".roi.", ".mask."}
    assert not [
        flags
        for flags in texts.values()
        if len(flags) > 1 and not all(any(part in flag for part in parts) for flag in flags)
    ]
