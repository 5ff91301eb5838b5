"""Commands inside messages: quoted, and short where the working folder allows it."""

from __future__ import annotations

import shlex
from pathlib import Path

from paceline._utils.commands import format_command, format_path, resume_command


def test_words_are_quoted_for_a_shell_and_paths_begin_at_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "my runs" / "it's"
    text = resume_command(run)
    assert shlex.split(text) == [
        "paceline", "train", "my runs/it's/run.json", "--output-dir", "my runs/it's",
    ]  # fmt: skip
    assert shlex.split(format_command("data", "clear", Path("/elsewhere/a b"))) == [
        "paceline",
        "data",
        "clear",
        "/elsewhere/a b",
    ]


def test_a_path_that_would_read_as_a_flag_or_as_nothing_stays_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert format_path(tmp_path) == tmp_path and format_path(tmp_path / "--out") == tmp_path / "--out"


def test_a_workload_of_ones_own_is_named_where_it_can_be_typed(tmp_path):
    assert shlex.split(resume_command(tmp_path, "./my.py:mine"))[3:5] == ["--task-file", "./my.py:mine"]
    assert "--task-file" not in resume_command(tmp_path, "./my\n.py:mine") and "--task-file" not in resume_command(
        tmp_path, "ssd"
    )
