"""A workload of one's own, as docs/extending/workload.md shows it, through every verb; and what the value of each of ours names."""

from __future__ import annotations

import importlib
import re
from dataclasses import fields
from pathlib import Path

import pytest
from tiny_runs import command, refused, without_report

import paceline
from paceline.workloads import WORKLOADS

ROOT = Path(paceline.__file__).parents[1]
SMALL = (
    "--input.size",
    32,
    "--input.eval-size",
    32,
    "--input.eval-resize",
    36,
    "--global-batch",
    8,
    "--bn-span",
    8,
    "--optim.lr",
    0.02,
)


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """The Python file that the page shows."""
    text = (ROOT / "docs" / "extending" / "workload.md").read_text()
    file = tmp_path_factory.mktemp("own") / "my_net.py"
    file.write_text(re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)[0])
    return file


def test_the_page_s_workload_trains_resumes_and_answers(page, class_photos, tmp_path, capsys, monkeypatch):
    without_report(monkeypatch)
    run, named = tmp_path / "run", ("--workload", f"{page}:MINE")
    train = ["train", f"{page}:recipe", "--data", class_photos, "--out", run, *SMALL, "--model.depth", 2]
    assert command(capsys, *train, "--steps", 2).code == 0
    said = command(capsys, *train, "--steps", 4)
    assert said.code == 0 and "resumed from step-000002" in said.out
    assert "top1" in command(capsys, "eval", run, *named).out
    said = command(capsys, "predict", run, class_photos / "val" / "ant", "--out", tmp_path / "found", *named)
    assert said.code == 0 and "images/s" in said.out
    assert "width=16 depth=2" in command(capsys, "show", run, *named).out
    weights = ["--weights", run / "checkpoints" / "last", "--out", tmp_path / "again"]
    said = command(capsys, *train[:4], *SMALL, "--model.depth", 2, *weights, "--steps", 1)
    assert said.code == 0 and "tensors used" in said.out
    assert "photos are shown by  paceline report RUN --workload" in _report(capsys, run)
    assert "Confidently wrong" in _report(capsys, run, *named)


def _report(capsys, run: Path, *named: str) -> str:
    assert command(capsys, "report", run, *named).code == 0
    return (run / "report.html").read_text()


def test_a_workload_without_a_recipe_takes_a_recipe_s_defaults(page, class_photos, capsys):
    said = command(capsys, "show", f"{page}:MINE", "--data", class_photos, *SMALL, "--epochs", 3)
    assert said.code == 0 and "width=16" in said.out and "3 epochs" in said.out
    refused(command(capsys, "show", f"{page}:MINE", "--data", class_photos, *SMALL), "--epochs")
    refused(command(capsys, "show", f"{page}:MyModel", "--data", class_photos), "returned MyModel, not a Recipe")


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_a_workload_names_is_there(name):
    parts = [getattr(WORKLOADS[name], field.name) for field in fields(WORKLOADS[name])]
    lazy = [
        part.__qualname__
        for part in (*parts, *WORKLOADS[name].bench.values())
        if ":" in getattr(part, "__qualname__", "")
    ]
    assert len(lazy) >= 12
    for where in lazy:
        module, _, function = where.partition(":")
        assert callable(getattr(importlib.import_module(module), function)), where
    assert (ROOT / "paceline" / "report" / WORKLOADS[name].template).is_file()
