"""`paceline translate` accounts for every flag that a program knows, in every mode: each has a row that names it and is true."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from paceline.cli import main as front_door
from paceline.cli.commands.predict import PredictFlags
from paceline.cli.eval_flags import EvalFlags, check_flags
from paceline.cli.flags import parse
from paceline.cli.printing import Printer
from paceline.tools.migrate import ORIGINALS
from paceline.tools.migrate.table import FlagTranslation, ReferenceProgram
from paceline.tools.migrate.translate import Translation, translate

VALUES = {
    "int": "2", "ints": "3 4", "float": "0.5", "number": "3", "list of numbers": "8,10", "pow2 or list of epochs": "30,60",
    "channels and two equal sides": "3,192,192", "str": "x.y", "bool": "",
}  # fmt: skip
# Flags that accept only some values.
CHOICES = {"--optimizer": "sgd", "--num-layers": "101", "--norm-layer": "gn", "--profile": "2", "--gpus": "0,1"}
# A program's modes other than its usual one.
MODES = {
    "ssd": ("--mode eval", "--inference photo.jpg"),
    "ssd_main": ("--mode val",),
    "evaluate": ("--eval-all", "--save-json --pretrained model.params"),
    "train_imagenet": ("--use-dali --data-root /data",),
}
PROGRAMS = [(original, program) for original in ORIGINALS for program in original.programs if program.files]
LINES = [
    (f"python {program.files[0]} {mode}".strip(), program)
    for _, program in PROGRAMS
    for mode in ("", *MODES.get(program.code, ()))
]
KINDS = {"dead", "fixed", "automatic", "none", "left out"}


def typed(entry: FlagTranslation, name: str, program: ReferenceProgram) -> str:
    default = entry.default if isinstance(entry.default, str) else ""
    value = "0,5" if name == "--profile" and program.code == "ssd" else CHOICES.get(entry.names[0], "")
    return f"{name} {value or (default if entry.kind == 'str' and default else VALUES[entry.kind])}".strip()


def rows(found: Translation) -> dict[str, dict[str, str]]:
    return {row["theirs"].split(" ")[0]: row for row in (*found.carries, *found.dead)}


def check(found: Translation, name: str) -> None:
    row = rows(found)[name]
    if "kind" in row:
        assert row["kind"] in KINDS and row["why"], row
        return
    assert row["ours"], row
    if not row["ours"].startswith("paceline "):  # a command of its own
        missing = {word for word in shlex.split(row["ours"]) if word.startswith("--")} - {*found.words}
        assert not missing, (row, found.command)


@pytest.mark.parametrize(("line", "program"), LINES, ids=[line for line, _ in LINES])
def test_each_flag_of_a_program_has_a_true_row(line, program):
    for entry in program.flags:
        if " " in entry.names[0]:  # the absence of a flag
            continue
        for name in entry.names:
            text = typed(entry, name, program)
            if name in line.split():  # the mode itself
                text = ""
            check(translate(f"{line} {text}", system_of=program.of), entry.names[0])


@pytest.mark.parametrize("line", [line for line, _ in LINES])
def test_a_line_without_other_flags_names_those_of_its_mode(line):
    found = translate(line, system_of="mxnet-ssd" if " train.py" in line else "")
    assert set(re.findall(r"--[\w-]+", line)) <= rows(found).keys()
    check_command(found)


def check_command(found: Translation) -> None:
    """The command's own parser accepts an evaluation or a prediction."""
    if found.words[0] == "eval":
        check_flags(parse(Printer(), found.words[1:], EvalFlags(), "eval"))
    elif found.words[0] == "predict":
        parse(Printer(), found.words[1:], PredictFlags(), "predict")


def printed(capsys, line: str) -> str:
    check_command(translate(line))
    assert front_door.main(["translate", line]) == 0
    text = capsys.readouterr().out
    assert front_door.main(["translate", line, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    for row in (*shown["carries"], *shown["dead"]):
        assert row["theirs"] in " ".join(text.split()), row
    return text


def test_an_evaluation_uses_the_numbers_from_the_line_and_prints_each_flag(capsys):
    line = "python ssd.py --mode eval --model_dir runs/a --data_dir /d --batch_size 64 --eval_samples 100 -e 3"
    text = printed(capsys, line)
    assert text.startswith("paceline eval runs/a --checkpoint all --data /d --batch-size 64 --max-val-images 100\n")
    assert "--epochs 3" in text


def test_gluoncvs_evaluation_uses_the_file_the_network_and_the_name(capsys):
    line = "python eval_mask_rcnn.py --network resnet101_v1d -j 8 --pretrained m.params --save-json --save-prefix a/"
    text = printed(capsys, line)
    assert text.startswith(
        "paceline eval m.params --recipe 'maskrcnn-gluoncv --model.depth 101' --data DIR --output a/predictions.json\n"
    )
    text = printed(capsys, "python eval_mask_rcnn.py --eval-all --save-json --save-prefix runs/a")
    assert text.startswith("paceline eval runs/a --checkpoint all\n") and "left out" in text


def test_records_and_synthetic_batches_are_reported():
    unread = translate("python train_imagenet.py --data-train x.rec")
    assert "--synthetic" in unread.words and "--data" not in unread.words
    assert rows(unread)["without"]["ours"] == "--synthetic"
    assert "synthetic" in rows(unread)["--data-train"]["why"]
    read = translate("python train_imagenet.py --use-dali --data-train x.rec")
    assert "--synthetic" not in read.words and "--data" in read.words
    assert rows(read)["--data-train"]["ours"].startswith("paceline prepare recordio x.rec ")
    assert "nvjpeg" in rows(translate("train_imagenet.py --dali-hw-decoder-load 0.99"))["--dali-hw-decoder-load"]["why"]
    tfrecord = translate("python ssd_main.py --use-tfrecord --tfrecord-root /t --coco-root /c")
    assert "--data /t " in tfrecord.command


def test_a_flag_that_a_variable_changes_keeps_its_row_and_its_value():
    found = translate("DISABLE_CG=1 TIME_TAGS=1 train_imagenet.py --use-dali --e2e-cuda-graphs 1 --num-epochs 30")
    assert "--system.cuda-graph" not in found.words
    assert rows(found)["--e2e-cuda-graphs"]["theirs"] == "--e2e-cuda-graphs 1"
    assert rows(found)["--num-epochs"] == {"theirs": "--num-epochs 30", "ours": "--epochs 4", "remark": ""}


def test_flags_of_a_program_without_a_table_are_left_out_by_name():
    found = translate("python im2rec.py --resize 256 --quality 95 train /data")
    assert [row["theirs"] for row in found.dead] == ["--resize", "--quality"]
