"""A run folder from somebody else: its run.json is data. No code that it names runs, and no value of it is believed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from by_night import ONE_MORE
from messages import check_line
from run_files import facts_of, unfinished
from tiny_runs import TINY, command, forge, refused

import paceline
from paceline._utils import user_code as python_file
from paceline._utils.errors import PacelineError

pytestmark = pytest.mark.usefixtures("no_report", "no_charts")
CANARY = """
from pathlib import Path
(Path(__file__).parent / "RAN").touch()
from dataclasses import replace
from paceline.config.recipes import RECIPES
from paceline.models.registry import WORKLOADS

def recipe():
    return replace(RECIPES["classify-demo"](), task=__file__ + ":workload")

workload = WORKLOADS["classification"]
"""


@pytest.fixture
def run(resnet_run, tmp_path) -> Path:
    """A copy that may be forged."""
    return shutil.copytree(resnet_run.folder, tmp_path / "run", symlinks=True)


@pytest.fixture
def evil(run) -> Path:
    """A Python file in the folder, that leaves RAN beside itself when it is imported."""
    file = run / "evil.py"
    file.write_text(CANARY)
    return file


def forgeries(file: Path) -> list[dict[str, object]]:
    spellings = [str(file), os.path.relpath(file), f"~/{os.path.relpath(file, Path.home())}"]
    return [
        *({"recipe.task": f"{spelt}:workload"} for spelt in spellings),
        {"recipe.task": f"{file}:workload", "name": f"{file}:recipe"},
        {"recipe.task": "nothing", "name": f"{file}:recipe"},
        {"name": f"{file}:recipe"},
        {"system_name": f"{file}:recipe"},
    ]


# By day one spelling of the file.
@pytest.mark.parametrize("number", [pytest.param(place, marks=ONE_MORE if place in (0, 1) else ()) for place in range(7)])
def test_no_verb_runs_code_that_a_run_names(run, evil, photos, tmp_path, capsys, number):
    forge(run, forgeries(evil)[number])
    commands = [
        ["eval", run], ["plan", run], ["plan", run / "run.json"], ["report", run], ["preview", run, "--output", tmp_path / "a.png"],
        ["predict", run, photos / "val" / "ant", "--output-dir", tmp_path / "found"],
        ["weights", "inspect", run / "checkpoints" / "last"],
        ["train", run / "run.json", "--output-dir", tmp_path / "again"],
        ["train", "classify-demo", "--data", photos, "--output-dir", run, *TINY, "--max-steps", 2],
    ]  # fmt: skip
    ended = [command(capsys, *words) for words in commands]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(run)
        ended.append(command(capsys, "eval", "."))
    assert not (run / "RAN").exists()
    assert all("Traceback" not in said.err and said.code in (0, 2) for said in ended), ended
    if number < 5:
        for said in (ended[0], ended[1], ended[7]):
            refused(said, "task")
    if number < 4:
        with pytest.raises(PacelineError, match="task"):
            paceline.load(run)
        assert not (run / "RAN").exists()


def test_the_command_that_a_refusal_prints_runs_the_file(run, evil, photos, tmp_path, capsys):
    forge(run, {"recipe.task": f"{evil}:workload", "name": f"{evil}:recipe"})
    more = {
        "eval": [], "plan": [], "train": ["--output-dir", tmp_path / "again"],
        "predict": [photos / "val" / "ant", "--output-dir", tmp_path / "found", "--checkpoint", "last"],
    }  # fmt: skip
    for verb, rest in more.items():
        named = run / "run.json" if verb == "train" else run
        said = command(capsys, verb, named, *rest)
        refused(said, "by default", f"--task-file {evil}:workload")
        offered = said.err.strip().splitlines()[-1].split()
        assert offered[:4] == ["paceline", verb, str(named), "--task-file"] and not (run / "RAN").exists()
        said = command(capsys, *offered[1:], *rest)
        assert said.code == 0 and (run / "RAN").exists(), said
        (run / "RAN").unlink()
        python_file._made.clear()  # a command has a process of its own


def test_a_name_that_would_move_the_terminals_cursor_is_not_printed(run, capsys):
    forge(run, {"recipe.task": "\x1b[2J.py:workload"})
    said = command(capsys, "eval", run)
    refused(said, "by default", r"\x1b[2J.py:workload")
    assert "\x1b" not in said.err


def test_naming_one_file_trusts_no_other(run, evil, tmp_path, capsys):
    other = tmp_path / "mine.py"
    other.write_text(CANARY)
    # What the command line names is taken in place of what the run names, for the recipe and for the workload.
    for forged in ({"recipe.task": f"{other}:workload", "name": f"{evil}:recipe"}, {"recipe.task": f"{evil}:workload"}):
        forge(run, forged)
        refused(command(capsys, "eval", run), "by default")
        assert not (run / "RAN").exists() and not (tmp_path / "RAN").exists()
        said = command(capsys, "eval", run, "--task-file", f"{other}:workload")
        assert said.code == 0 and "top1" in said.out and not (run / "RAN").exists()
        (tmp_path / "RAN").unlink()
        python_file._made.clear()
    refused(command(capsys, "eval", run, "--task-file", f"{other}:recipe"), "paceline.models.workload.WorkloadSpec")


def test_a_run_of_ones_own_file_goes_on_by_the_same_command(evil, photos, tmp_path, capsys):
    words = ["train", f"{evil}:recipe", "--data", photos, "--output-dir", tmp_path / "mine", *TINY, "--max-steps", 4]
    assert command(capsys, *words, "--save-every", 2).code == 0
    unfinished(tmp_path / "mine")
    said = command(capsys, *words)
    assert said.code == 0 and check_line(said.out, "resumed", "step-000004"), said


def test_a_path_that_a_run_names_is_said_to_come_from_it(run, tmp_path, capsys):
    (tmp_path / "private" / "letters").mkdir(parents=True)
    forge(run, {"options.data": str(tmp_path / "private")})
    refused(command(capsys, "eval", run), "dataset ... run.json", "--data", "letters", lines=6)
    said = command(capsys, "train", run / "run.json", "--output-dir", tmp_path / "again")
    refused(said, "letters", lines=6)
    assert f"--data {str(tmp_path / 'private')!r}: from {run / 'run.json'}" in said.out
    said = command(capsys, "train", run / "run.json", "--output-dir", tmp_path / "again", "--data", tmp_path / "private")
    assert ": from " not in said.out


ABSURD = {
    "world_size": "x", "world_size missing": None, "plan": [], "system": 5, "system.device": 3, "system.precision": "fp64",
    "system.prefetch_steps": 10**9, "system.intra_op_threads": 10**6, "system.num_workers": -1, "system.compile": "yes",
    "system.memory_gib": 10**400, "system.ranks_per_node": 1.5, "system.odd": 1, "threads.intra_op": 10**6, "format": 2,
}  # fmt: skip
# Refused as the flag of that name would be.
FLAGS = ("options.max_val_images", "system.intra_op_threads", "system.num_workers", "system.prefetch_steps")
ABSURD_TO_EVAL = {
    "recipe.task": 5, "recipe.model.width": 2**40, "recipe.model.depth": 51, "recipe.model": "x", "recipe.input.image_size": "x",
    "recipe.input.crop_scale": [0.1], "recipe.input.mean": ["a", 0, 0], "recipe.optim.lr": "fast", "recipe.global_batch_size": True,
    "recipe.target": [["top1", "high"]], "recipe.epochs": 10**400, "recipe.odd": 1, "plan.micro_batch_size": 0,
    "plan.micro_batch_size missing": None, "options.data": 5, "options.max_val_images": -1,
    "classes": "abc", "classes[]": [1, 2, 3],
    "data.category_ids": "x", **{name: value for name, value in ABSURD.items() if not name.startswith("threads")},
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [name if number % 3 == 0 else pytest.param(name, marks=ONE_MORE) for number, name in enumerate(ABSURD_TO_EVAL)]
)
def test_an_absurd_value_in_a_run_is_refused_by_its_name(run, photos, tmp_path, capsys, name):
    forge(run, {name.removesuffix(" missing").removesuffix("[]"): ABSURD_TO_EVAL[name]})
    last = name.removesuffix(" missing").removesuffix("[]").rpartition(".")[2]
    refused(command(capsys, "eval", run), "" if last == "width" else last.replace("_", "-") if name in FLAGS else last)
    if not name.startswith(("plan", "options")):
        refused(command(capsys, "predict", run, photos / "val" / "ant", "--output-dir", tmp_path / "found"))
    assert "Traceback" not in command(capsys, "plan", run).err
    assert "Traceback" not in command(capsys, "report", run).err
    assert (
        "Traceback" not in command(capsys, "train", run / "run.json", "--output-dir", tmp_path / "a", "--max-steps", 1).err
    )


@pytest.mark.parametrize("name", ABSURD)
def test_a_run_with_an_absurd_value_is_not_resumed(run, photos, capsys, name):
    unfinished(run)
    forge(run, {name.removesuffix(" missing"): ABSURD[name]})
    said = command(capsys, "train", "classify-demo", "--data", photos, "--output-dir", run, *TINY, "--max-steps", 2)
    last = name.removesuffix(" missing").rpartition(".")[2]
    refused(said, last.replace("_", "-") if name in FLAGS else last)


def test_a_run_json_that_was_edited_is_not_evaluated_but_can_be_trained_again_with_a_word(run, photos, tmp_path, capsys):
    facts = facts_of(run)
    facts["recipe"]["seed"] = 9
    (run / "run.json").write_text(json.dumps(facts, indent=4))
    unfinished(run)
    words = ["train", "classify-demo", "--data", photos, "--output-dir", run, *TINY, "--max-steps", 2]
    for refusal in (["eval", run], ["predict", run, photos / "val" / "ant"], words):
        refused(command(capsys, *refusal), "checksum", f"paceline train {run}/run.json --output-dir NEW_RUN")
    said = command(capsys, "train", run / "run.json", "--output-dir", tmp_path / "again")
    assert said.code == 0 and check_line(said.err, "run.json", "checksum", "edited settings"), said
    assert facts_of(tmp_path / "again")["recipe"]["seed"] == 9
    assert command(capsys, "eval", tmp_path / "again").code == 0
    assert command(capsys, "report", run).code == 0 and "checksum" in (run / "report.html").read_text()


def test_a_run_json_that_was_only_laid_out_anew_is_the_same(run, capsys):
    (run / "run.json").write_text(json.dumps(facts_of(run), sort_keys=True))
    assert command(capsys, "eval", run).code == 0


def test_what_is_no_text_file_in_a_run_gets_one_sentence(run, photos, capsys):
    unfinished(run)
    words = ["train", "classify-demo", "--data", photos, "--output-dir", run, *TINY, "--max-steps", 2]
    events, saved = (run / "events.jsonl").read_bytes(), (run / "run.json").read_bytes()
    (run / "STOP").mkdir()
    refused(command(capsys, *words), "STOP", "folder")
    (run / "STOP").rmdir()
    (run / "run.json").write_text("[" * 100_000)
    for refusal in (words, ["eval", run], ["report", run], ["plan", run]):
        refused(command(capsys, *refusal), "run.json", "nested")
    (run / "run.json").write_bytes(saved)
    (run / "events.jsonl").unlink()
    (run / "events.jsonl").mkdir()
    refused(command(capsys, *words), "events.jsonl", "a folder")
    refused(command(capsys, "report", run), "events.jsonl", "a folder")
    (run / "events.jsonl").rmdir()
    (run / "events.jsonl").write_bytes(events)
    (run / "mllog.txt").rename(run / "kept")
    (run / "mllog.txt").mkdir()
    refused(command(capsys, *words), "mllog.txt", "a folder ... a file")


def test_lines_that_no_run_writes_are_left_out_and_named(run, photos, capsys):
    unfinished(run)
    whole = (run / "events.jsonl").read_bytes()
    strange = ['{"event": "eval", "step": 6, "top1": "x"}', '{"event": "end", "step": 18}', "[" * 100_000, "\\udcff", ""]
    (run / "events.jsonl").write_bytes(whole + "\n".join(strange).encode() + b"\n")
    (run / "mllog.txt").write_bytes(
        (run / "mllog.txt").read_bytes() + b"\xff\xfe :::MLLOG\n:::MLLOG " + b"[" * 100_000 + b"\n"
    )
    assert command(capsys, "report", run).code == 0
    lines = whole.count(b"\n")
    assert f"lines {', '.join(str(lines + place) for place in range(1, 6))}" in (run / "report.html").read_text()
    said = command(capsys, "train", "classify-demo", "--data", photos, "--output-dir", run, *TINY, "--max-steps", 2)
    assert said.code == 0 and "events.jsonl: lines" in said.out and "mllog.txt: lines" in said.out, said
    assert (run / "events.jsonl").read_bytes().startswith(whole)


@pytest.mark.parametrize(
    "flags", [["--global-batch-size", 2**40, "--optim.lr", 1], ["--epochs", "1e300"], ["--input.image-size", 10**9]]
)
def test_a_flag_that_no_machine_could_follow_is_refused_by_its_name(photos, tmp_path, capsys, flags):
    words = ["train", "classify-demo", "--data", photos, "--output-dir", tmp_path / "run", "--eval.unit", "epochs"]
    refused(command(capsys, *words, *TINY, *flags), "eval.every" if "--epochs" in flags else str(flags[0]))
