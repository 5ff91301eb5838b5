"""list, runs, the help of verbs, and what other tools' flags are called here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import get_args

import pytest
from messages import check_text
from run_files import unfinished
from shared_runs import SSD
from tiny_runs import TINY, Said, command, forge, refused, without_report

from paceline.cli.commands.list import DECODERS, is_installed
from paceline.config.recipe import DATA_CLASSES, DATA_IMAGES
from paceline.config.recipes import GROUPS, RECIPES
from paceline.config.recipes.published_rows import ROWS
from paceline.config.resnet import Decoder
from paceline.data.shapes.outlines import CLASSES
from paceline.distributed.device.systems import SYSTEMS
from paceline.models.registry import WORKLOADS
from paceline.training.logging.event_logger import EventLogger

# list -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "names"),
    [("tasks", WORKLOADS), ("recipes", RECIPES), ("configs", ROWS), ("systems", SYSTEMS), ("decoders", DECODERS)],
)
def test_list_names_every_entry_of_a_menu_in_a_line_and_in_json(capsys, kind, names):
    lines = command(capsys, "list", kind).out.splitlines()
    lines = [line for line in lines if line and not line.endswith(":")]
    assert sorted(line.split()[0] for line in lines) == sorted(names)
    assert all(len(line.split()) > 3 for line in lines)
    rows = json.loads(command(capsys, "list", kind, "--json").out)
    assert [row["name"] for row in rows] == [line.split()[0] for line in lines]


def test_the_list_of_recipes_begins_with_what_own_data_need(capsys):
    heads = [line for line in command(capsys, "list", "recipes").out.splitlines() if not line.startswith("  ")]
    assert [head for head in heads if head] == [f"{group}:" for group in GROUPS.values()]
    names = [row["name"] for row in json.loads(command(capsys, "list", "recipes", "--json").out)]
    assert names[:2] == ["classify-finetune", "ssd-finetune"] and [name for name in names if "-demo" in name] == names[8:11]


def test_list_of_tasks_names_their_recipes_and_a_small_one_to_begin_with(capsys):
    rows = json.loads(command(capsys, "list", "tasks", "--json").out)
    assert [name for row in rows for name in row["recipes"]] == list(RECIPES)
    assert "maskrcnn-demo" in rows[2]["about"] and rows[1]["headline"] == "box_ap"


def test_list_of_decoders_knows_each_one_and_says_how_to_install_what_is_missing(capsys, monkeypatch):
    assert list(DECODERS) == list(get_args(Decoder))
    assert is_installed("PIL") and not is_installed("nothing.of_this_name")
    monkeypatch.setattr("paceline.cli.commands.list.is_installed", lambda module: module != "simplejpeg")
    lines = command(capsys, "list", "decoders").out.splitlines()
    assert check_text(lines[1], "not installed", "pip install simplejpeg") and "  installed" in lines[3]


def test_list_refuses_what_it_does_not_have(capsys):
    refused(command(capsys, "list", "models"), "tasks, recipes, configs, systems, decoders")
    assert command(capsys, "list").code == 2 and command(capsys, "list", "--help").code == 0


def test_a_workload_is_in_every_menu():
    assert all(RECIPES[workload.start]().task == name for name, workload in WORKLOADS.items())
    assert DATA_CLASSES.keys() == DATA_IMAGES.keys()
    assert DATA_CLASSES["shapes"] == DATA_CLASSES["shapes-boxes"] == len(CLASSES)


# runs -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path, resnet_run, ssd_run) -> Path:
    """Two finished runs, one that never ended, and two damaged ones."""
    folder = tmp_path / "runs"
    for name, run in {"photos-001": resnet_run, "boxes-001": ssd_run, "cut-001": ssd_run}.items():
        shutil.copytree(run.folder, folder / name, symlinks=True)
    unfinished(folder / "cut-001")
    for name, text in {"torn-001": '{"format": 1', "other-001": "{}"}.items():
        (folder / name).mkdir()
        (folder / name / "run.json").write_text(text)
    (folder / "no-run").mkdir()
    return folder


def test_runs_tells_each_run_in_a_line_of_80_columns_and_names_the_damaged_ones(capsys, monkeypatch, runs):
    monkeypatch.setenv("COLUMNS", "80")
    said = command(capsys, "runs", runs)
    assert said.code == 0 and all(len(line) <= 80 for line in said.out.splitlines())
    rows = {line.split()[0]: line for line in said.out.splitlines()}
    assert set(rows) == {"name", "photos-001", "boxes-001", "cut-001"}
    assert "classify-demo" in rows["photos-001"] and " 2/" in rows["photos-001"] and "top1" in rows["photos-001"]
    assert "box AP" in rows["boxes-001"] and "unfinished" in rows["cut-001"]
    assert "unfinished" not in rows["boxes-001"]
    long = "a name of thirty characters ..."
    (runs / "photos-001").rename(runs / long)
    for columns, whole in ((80, False), (120, True)):  # what short words leave of a line is the long ones'
        monkeypatch.setenv("COLUMNS", str(columns))
        assert (f"{long}  classify-demo  " in command(capsys, "runs", runs).out) == whole
    complaints = said.err.splitlines()
    assert len(complaints) == 2 and all(line.startswith("damaged: ") for line in complaints)
    assert "torn-001" in said.err and "other-001" in said.err


def test_runs_gives_the_numbers_of_the_events_in_json(capsys, runs):
    found = json.loads(command(capsys, "runs", runs, "--json").out)
    for row in found:
        events = [json.loads(line) for line in (runs / row["name"] / "events.jsonl").read_text().splitlines()]
        scores = [event[row["headline"]] for event in events if event["event"] == "eval"]
        assert row["best"] == max(scores) and row["step"] == events[-1]["step"]
        assert row["seconds"] == events[-1]["seconds"]
    assert [row["status"] == "unfinished" for row in found].count(True) == 1
    assert command(capsys, "runs", runs / "boxes-001", "--json").out.count('"name"') == 1


def test_runs_shows_the_steps_done_of_the_recipes_whatever_ended_the_run(class_photos, tmp_path, capsys, monkeypatch):
    without_report(monkeypatch)
    ends = {
        "whole": [],
        "cut": ["--max-steps", 2],
        "lengthened": ["--max-steps", 1],
        "patient": ["--patience", 1, "--eval-every", 1, "--optim.lr", 1e-9],
        "stopped": [],
        "killed": [],
    }
    words = ["train", "classify-demo", "--data", class_photos, *TINY, "--max-images", 48, "--target"]
    passed = EventLogger.passed
    stop = tmp_path / "runs" / "stopped" / "STOP"
    for name, more in ends.items():
        run = tmp_path / "runs" / name
        with monkeypatch.context() as patch:
            if name == "stopped":
                patch.setattr(EventLogger, "passed", lambda self, *facts: (stop.touch(), passed(self, *facts)))
            assert command(capsys, *words, "--output-dir", run, *more).code == (75 if name == "stopped" else 0)
    assert command(capsys, *words, "--output-dir", tmp_path / "runs/lengthened", "--max-steps", 3).code == 0
    unfinished(tmp_path / "runs/killed")
    found = {row["name"]: row for row in json.loads(command(capsys, "runs", tmp_path / "runs", "--json").out)}
    assert found.keys() == ends.keys() and {row["steps"] for row in found.values()} == {6}
    steps = {name: row["step"] for name, row in found.items()}
    assert (steps["whole"], steps["cut"], steps["lengthened"]) == (6, 2, 3) and steps["patient"] < 6 > steps["stopped"]
    shown = {line.split()[0]: line for line in command(capsys, "runs", tmp_path / "runs").out.splitlines()[1:]}
    assert all(f" {step}/6 " in shown[name] for name, step in steps.items()), shown


def test_runs_of_an_edited_run_json_is_not_believed(capsys, runs):
    facts = json.loads((runs / "boxes-001" / "run.json").read_text())
    facts["name"] = "another"
    (runs / "boxes-001" / "run.json").write_text(json.dumps(facts))
    said = command(capsys, "runs", runs)
    assert "another" not in said.out and "checksum" in said.err


def test_runs_says_where_there_are_none(capsys, tmp_path, monkeypatch):
    assert "runs" in command(capsys, "runs", tmp_path).out
    monkeypatch.chdir(tmp_path)
    refused(command(capsys, "runs"), "runs")


# Help -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verb", "flag"), [("plan", "--train-images"), ("preview", "--columns")])
def test_help_of_a_verb_that_wants_a_recipe_needs_none(capsys, verb, flag):
    for word in ("--help", "-h"):
        said = command(capsys, verb, word)
        assert said.code == 0 and said.err == ""
        assert f"usage: paceline {verb} RECIPE" in said.out and flag in said.out
        assert f"paceline {verb} RECIPE --help" in " ".join(said.out.split())
    assert command(capsys, verb).code == 2


def test_the_main_help_and_doctor_end_in_the_same_next_command(capsys):
    text, found = command(capsys, "--help").out, command(capsys, "doctor").out
    assert text.strip().endswith("paceline train ssd-demo") and found.strip().endswith("paceline train ssd-demo")
    assert "soon" not in text and "cache" in found


# Other tools' words ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["train", "ssd-demo", "--lrf", "0.1"], "--schedule.min-lr"),
        (["train", "ssd-demo", "--gpus", "2"], "--system"),
        (["train", "ssd-demo", "--resume"], "same --output-dir"),
        (["train", "ssd-demo", "--name", "x"], "--output-dir"),
        (["train", "ssd-demo", "--project", "x"], "--output-dir"),
        (["train", "maskrcnn-demo", "--imgsz", "320"], "--input.min-size"),
        (["train", "ssd-demo", "--amp"], "--system.precision"),
        (["train", "ssd-demo", "--pretrained"], "--weights"),
        (["train", "ssd-demo", "--model", "yolo11n.pt"], "paceline list recipes"),
    ],
)
def test_a_flag_of_another_tool_is_answered_with_ours(capsys, words, wanted):
    refused(command(capsys, *words), words[-2] if words[-1][:2] != "--" else words[-1], wanted)


def test_only_flags_that_the_verb_has_are_suggested(capsys):
    said = command(capsys, "eval", "RUN", "--lr", "1")
    refused(said, "--lr")
    assert "--optim.lr" not in said.err and "same --output-dir" not in command(capsys, "runs", "--resume").err


# A file without its function ------------------------------------------------------------------------------------------


def test_a_python_file_without_a_function_is_told_its_functions_and_is_not_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "open('ran', 'w')\ndef mine(): ...\ndef other(x=1): ...\ndef needs(x): ...\ndef _hidden(): ...\n"
    Path("my.py").write_text(source)
    said = command(capsys, "train", "./my.py")
    refused(said, "function", "./my.py:mine or ./my.py:other")
    assert "needs" not in said.err and "_hidden" not in said.err and not Path("ran").exists()
    Path("empty.py").write_text("x = 1\n")
    refused(command(capsys, "plan", "empty.py"), "empty.py:function")
    refused(command(capsys, "plan", "./none.py"), "./none.py")
    refused(command(capsys, "train", "./missing"), "./missing", "./file.py:function")
    refused(command(capsys, "train", "ssd-demo", "--system", "./my.py"), "./my.py:mine")


def test_a_recipes_name_is_the_recipe_though_a_folder_is_called_so(capsys, tmp_path, monkeypatch, ssd_run):
    monkeypatch.chdir(tmp_path)
    usual = command(capsys, "plan", "ssd-demo").out
    shutil.copytree(ssd_run.folder, "ssd-demo", symlinks=True)
    assert command(capsys, "plan", "ssd-demo").out == usual
    assert command(capsys, "plan", "./ssd-demo", "--json").code == 0
    refused(command(capsys, "train", "ssd-demo", "--data", "none"), "--data none")
    refused(command(capsys, "train", "./ssd-demo"), "a folder", "./ssd-demo/run.json")


def test_a_run_that_is_not_there_is_said_to_be_missing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for verb in ("plan", "train", "preview"):
        refused(command(capsys, verb, "runs/none"), "runs/none", "./file.py:function")


@pytest.mark.parametrize("flag", ["--max-steps", "--rescale-schedule", "--max-time"])
def test_a_flag_of_train_alone_is_named_as_one_and_no_other_is_suggested_for_it(capsys, flag):
    for verb in ("plan", "preview"):
        said = command(capsys, verb, "ssd-demo", flag, "5")
        refused(said, flag, "`paceline train`")
        assert "Did you mean" not in said.err


# Data that are not there ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["train", "plan", "preview"])
@pytest.mark.parametrize(
    ("recipe", "layout"), [("classify-demo", "train/CLASS/"), ("ssd-demo", "data.yaml"), ("maskrcnn-demo", "polygons")]
)
def test_a_missing_data_folder_is_answered_with_the_workloads_layout(capsys, tmp_path, monkeypatch, verb, recipe, layout):
    monkeypatch.chdir(tmp_path)
    refused(command(capsys, verb, recipe, "--data", "/nope"), "--data /nope", layout)
    assert not any(tmp_path.iterdir())


# show with ranks that only evaluate -----------------------------------------------------------------------------------


def test_show_tells_ranks_that_train_from_those_that_only_evaluate(capsys):
    words = ("plan", "maskrcnn-nvidia-256-48nodes", "--system", "h100x8", "--nodes", "48", "--dedicated-eval-ranks")
    said = command(capsys, *words, "128")
    assert said.code == 0 and check_text(" ".join(said.out.split()), "256 ranks", "48 nodes", "128")
    refused(command(capsys, *words, "100"), "284 ranks", "284 of 384 ranks train")
    refused(command(capsys, *words, "384"), "--dedicated-eval-ranks 384 ... 384 ranks")


# show --data ----------------------------------------------------------------------------------------------------------


def described(said: Said) -> dict:
    assert said.code == 0, said
    return json.loads(said.out)


def test_show_with_data_plans_what_the_run_does(capsys, ssd_run):
    run = json.loads((ssd_run.folder / "run.json").read_text())
    found = described(command(capsys, "plan", "ssd-demo", "--data", ssd_run.data, *SSD.split(), "--json"))
    assert found["memory"] == run["memory_estimate"]
    assert found["plan"] == {
        **run["plan"],
        "stop_after": found["plan"]["total_steps"],
        "eval_steps": found["plan"]["eval_steps"],
    }
    assert found["plan"]["train_images"] == run["plan"]["train_images"]
    assert found["recipe"]["target"] == []  # set for other data
    usual = described(command(capsys, "plan", "ssd-demo", *SSD.split(), "--json"))
    assert usual["plan"]["train_images"] == 1_600 and usual["recipe"]["target"]


def test_show_of_a_run_on_other_data_counts_those_data_within_the_runs_own_limits(capsys, ssd_run, tmp_path):
    run = shutil.copytree(ssd_run.folder, tmp_path / "run", symlinks=True)
    counts = {"plan.train_images": 2, "plan.val_images": 1}  # of the data that the run had
    forge(run, {**counts, "options.max_train_images": 0, "options.max_val_images": 0})
    whole = described(command(capsys, "plan", "ssd-demo", "--data", ssd_run.data, *SSD.split(), "--json"))["plan"]
    found = described(command(capsys, "plan", run, "--data", ssd_run.data, "--json"))["plan"]
    assert (found["train_images"], found["val_images"]) == (whole["train_images"], whole["val_images"]) != (2, 1)
    assert described(command(capsys, "plan", run, "--json"))["plan"]["train_images"] == 2
    forge(run, {"options.max_train_images": 3})
    assert described(command(capsys, "plan", run, "--data", ssd_run.data, "--json"))["plan"]["train_images"] == 3


def test_show_of_a_run_counts_the_classes_of_the_run(capsys, ssd_run, tmp_path):
    run = shutil.copytree(ssd_run.folder, tmp_path / "run", symlinks=True)
    parameters = described(command(capsys, "plan", run, "--json"))["memory"]["parameters"]
    assert parameters == json.loads((run / "run.json").read_text())["memory_estimate"]["parameters"]
    forge(run, {"classes": [str(number) for number in range(40)], "data.category_ids": list(range(40))})
    assert described(command(capsys, "plan", run, "--json"))["memory"]["parameters"] > parameters


def test_show_with_data_takes_as_many_images_as_asked(capsys, ssd_run):
    words = ["plan", "ssd-demo", "--data", ssd_run.data, *SSD.split(), "--train-images", 5, "--val-images", 2, "--json"]
    plan = described(command(capsys, *words))["plan"]
    assert (plan["train_images"], plan["val_images"]) == (5, 2)


@pytest.mark.parametrize(
    ("word", "ours"),
    [("resume", "train RUN/run.json --output-dir RUN"), ("track", "predict"), ("benchmark", "bench"), ("pack", "data pack")],
)  # fmt: skip
def test_a_verb_of_other_tools_is_answered_with_ours(word, ours, capsys):
    said = command(capsys, word)
    assert said.code == 2 and ours in said.err and "Did you mean" not in said.err, said
