"""A torch that the suite has not run on is named once; the tested ones are those of the table, and of pyproject.toml."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tiny_runs import train

from paceline.distributed.device import provenance

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("version", "named"),
    [
        ("2.9.0", False),
        ("2.15.1+cu132", False),
        ("2.8.0", True),
        ("2.16.0a0+git1", True),
        ("3.0", True),
        ("", False),
        ("main", False),
    ],
)
def test_a_version_outside_of_those_tested_has_a_line(version, named):
    line = provenance.warn_untested_torch(version)
    assert bool(line) is named and line.count("\n") == 0
    assert not named or (version in line and "2.9 to 2.15" in line)


def test_the_bounds_are_the_tables_and_the_suite_runs_inside_them():
    table = (ROOT / "docs/tutorials/install.md").read_text()
    rows = [(int(major), int(minor)) for major, minor in re.findall(r"^\| (\d+)\.(\d+) \| 0\.\d+ \|", table, flags=re.M)]
    assert (min(rows), max(rows)) == provenance.TESTED_TORCH
    assert '"torch>={}.{}"'.format(*provenance.TESTED_TORCH[0]) in (ROOT / "pyproject.toml").read_text()
    # Where this fails the suite runs on a newer torch: once all of it passes, the table and the bound name that.
    assert provenance.warn_untested_torch(torch.__version__) == ""


def test_train_says_it_once(monkeypatch, class_photos, tmp_path, capsys):
    monkeypatch.setattr(provenance, "TESTED_TORCH", ((2, 0), (2, 1)))
    said = train(capsys, class_photos, tmp_path / "run")
    assert said.code == 0 and (said.out + said.err).count("tested: 2.0 to 2.1") == 1
