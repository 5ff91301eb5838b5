"""What `train` prints: for people, for people who want little, and for programs."""

from __future__ import annotations

import ast
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from messages import check_text
from parsed import train_flags
from tiny_runs import TINY, command, train, without_report

import paceline
from paceline.cli.main import main
from paceline.config.recipes import RECIPES
from paceline.training.logging.events import read_events

PACKAGE = Path(paceline.__file__).parent


def test_quiet_prints_warnings_the_end_and_where_the_report_is(photos, tmp_path, capsys):
    said = train(capsys, photos, tmp_path / "run", "--quiet")
    assert (said.code, said.err) == (0, "")
    warning, end, report = said.out.splitlines()
    assert check_text(warning, "target top1 0.8", "shapes")
    assert end.startswith("stopped early: ") and report == f"report: {tmp_path / 'run' / 'report.html'}"


def test_a_run_ends_with_the_command_that_answers_with_it(photos, tmp_path, capsys):
    said = train(capsys, photos, tmp_path / "run")
    assert said.out.splitlines()[-1] == f"next:   paceline predict {tmp_path / 'run'} IMAGES"


def test_after_the_built_in_images_the_next_command_names_them(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("paceline.data.shapes.render.shapes_folder", lambda *_, **__: photos)
    said = command(capsys, "train", "classify-demo", "--output-dir", tmp_path / "run", *TINY, "--max-steps", 1)
    assert said.code == 0, said
    assert said.out.splitlines()[-1] == f"next:   paceline predict {tmp_path / 'run'} {photos / 'val'}"


def test_json_prints_the_events_on_stdout_and_all_else_on_stderr(photos, tmp_path, capsys, monkeypatch):
    without_report(monkeypatch)
    said = train(capsys, photos, tmp_path / "run", "--json")
    assert said.code == 0
    assert [json.loads(line) for line in said.out.splitlines()] == read_events(tmp_path / "run" / "events.jsonl")
    assert "stopped early: " in said.err
    said = train(capsys, photos, tmp_path / "run", "--json", "--quiet", steps=3)
    first, *_, last = (json.loads(line) for line in said.out.splitlines())
    assert (first["event"], last["event"]) == ("resume", "end") and len(said.err.splitlines()) == 2, said


def test_how_it_prints_is_no_part_of_what_a_run_repeats(photos, tmp_path, capsys, monkeypatch):
    without_report(monkeypatch)
    assert train(capsys, photos, tmp_path / "run", "--json", "--quiet").code == 0
    said = command(capsys, "train", tmp_path / "run" / "run.json", "--output-dir", tmp_path / "again")
    assert said.code == 0 and "saved step-" in said.out and "{" not in said.out, said


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_run_shows_what_goes_on_and_draws_nothing_below_its_end(photos, tmp_path, monkeypatch):
    without_report(monkeypatch)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    words = ["train", "classify-demo", "--data", photos, "--output-dir", tmp_path / "run", *TINY, "--max-steps", 3]
    assert main([str(word) for word in words]) == 0
    text = out.getvalue()
    shown = ["starting", "opening the data", "building the model", "first step", "evaluating 0/9", "computing metrics"]
    places = [text.index(what) for what in shown]
    assert places == sorted(places)
    during, _, after = text.partition("stopped early: ")
    assert "\x1b[2K" in during and "\x1b" not in after, text


def sentences(tree: ast.AST) -> Iterator[str]:
    """Every piece of text in a file that is no docstring."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and _opens_with_text(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def _opens_with_text(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> bool:
    first = node.body[0] if node.body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)


def test_every_flag_that_a_message_of_training_names_exists():
    known = {"--help", "--system", "--task-file", "--task"}
    known |= {"--shm-size", "--porcelain", "--untracked-files"}  # docker's and git's
    known |= {
        "--nproc-per-node",
        "--bind-to",
        "--cpu-bind",
        "--version",
        "--pty",
        "--overlap",
        "--ntasks",
    }  # torchrun's, mpirun's and srun's; of programs asked
    known |= {"--train", "--val"}  # of `paceline prepare`, which data in containers need first
    known |= {"--allow-code-execution"}  # of `paceline predict`, `eval` and `serve`
    known |= {"--format", "--resize-shorter-side"}  # of `paceline data pack`
    known |= {
        "--recipe",
        "--checkpoint",
        "--nodes",
        "--world-size",
        "--images-per-second",
    }  # of `paceline predict` and `eval`, which find a network; of `plan` and `launch`
    for name in RECIPES:
        known |= set(train_flags(RECIPES[name]()))
    parts = [flag.split(".") for flag in known]
    groups = {".".join(words[:count]) for words in parts for count in range(1, len(words))}
    checked, wrong = 0, []
    for room in (
        "config",
        "data/index",
        "data/storage",
        "data/loader",
        "data/transforms",
        "distributed",
        "models/*.py",
        "models/resnet",
        "models/ssd",
        "models/maskrcnn",
        "models/metrics",
        "training",
        "cli/commands/train.py",
    ):
        entries = list(PACKAGE.glob(room))
        assert entries, room
        for path in [found for entry in entries for found in ([entry] if entry.is_file() else entry.rglob("*.py"))]:
            if path.name == "foreign_flags.py":  # of every verb: test_menus looks at each
                continue
            for text in sentences(ast.parse(path.read_text())):
                for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*(?:\.[a-z0-9-]+)*", text):
                    checked += 1
                    if flag not in known | groups:
                        wrong.append(f"{path.relative_to(PACKAGE)}: {flag} in {text[:60]!r}")
    assert not wrong, "\n".join(wrong)
    assert checked > 100
