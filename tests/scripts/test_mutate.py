"""scripts/mutate.py plants changes that stay Python, by a seed, in copies, and knows which of them a test notices."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "mutate.py"
TOY = '''
"""A docstring with 1 + 1."""
FACTOR = 2


def scaled(x: float, most: int = 100) -> float:
    if x < 0 or not x:
        raise ValueError(f"{x + 1}: -1")
    return min(x * FACTOR, most)


def never(x):
    return -x
'''
TOY_TEST = """
import pytest
from paceline.boxes.toy import scaled

def test_scaled_doubles():
    assert scaled(3) == 6

def test_nothing_is_refused():
    with pytest.raises(ValueError):
        scaled(0)
"""


@pytest.fixture
def changes(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    monkeypatch.delitem(sys.modules, "changes", raising=False)
    import changes

    return changes


@pytest.fixture
def toy(tmp_path):
    for path, text in (
        ("paceline/boxes/toy.py", TOY),
        ("paceline/__init__.py", ""),
        ("tests/boxes/test_toy.py", TOY_TEST),
    ):
        (tmp_path / "toy" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "toy" / path).write_text(text)
    return tmp_path / "toy"


def test_each_kind_of_change_is_found_and_messages_are_left_alone(changes):
    found = changes.changes_of("boxes/toy.py", TOY)
    assert [(change.start[0], change.was, change.became, change.at_import) for change in found] == [
        (3, "2", "1", True),
        (3, "2", "3", True),
        (6, "100", "101", True),
        (6, "100", "99", True),
        (7, "<", "<=", False),
        (7, "0", "1", False),
        (7, "or", "and", False),
        (7, "not ", "", False),
        (9, "min", "max", False),
        (9, "*", "+", False),
        (13, "-", "", False),
    ]
    for change in found:
        ast.parse(change.planted(TOY))


@pytest.mark.parametrize(
    ("line", "became"),
    [
        ("f(a, b)", "f(b, a)"),
        ("for a, b in c: pass", "for b, a in c: pass"),
        ("a is not b", "a is b"),
        ("f(key=True)", "f(key=False)"),
        ("a |= 0.5", "a &= 0.5"),
        ("(a) // (b)", "(a) / (b)"),
        ("a - b + c", "a + b + c"),
        ("x.argmax(0)", "x.argmin(0)"),
        ("return_ = 1.5", "return_ = 1.65"),
    ],
)
def test_a_change_replaces_its_own_text_alone(changes, line, became):
    assert became in [change.planted(line) for change in changes.changes_of("boxes/toy.py", line)]


def test_a_sample_follows_from_its_seed_and_not_from_other_lines(changes, toy):
    package = toy / "paceline"
    found = changes.changes_of("boxes/toy.py", TOY)
    drawn = [change.key for change in changes.sample(found, 4, 1, package)]
    assert drawn == [change.key for change in changes.sample(found, 9, 1, package)][:4]
    assert drawn != [change.key for change in changes.sample(found, 4, 2, package)]
    moved = TOY.replace("FACTOR = 2\n", "FACTOR = 2\n\n# A comment.\n")
    (package / "boxes/toy.py").write_text(moved)
    assert drawn == [change.key for change in changes.sample(changes.changes_of("boxes/toy.py", moved), 4, 1, package)]


def test_what_a_test_notices_and_what_none_does(changes, toy, tmp_path):
    pytest.importorskip("coverage", reason="needs coverage: pip install coverage")
    before = {path: path.read_bytes() for path in toy.rglob("*.py")}
    log, known = tmp_path / "log", changes.asked_for("boxes/toy.py:3: 2 -> 3", toy / "paceline")[0]
    log.write_text(json.dumps({"key": known.key, "ended": "noticed"}) + "\n")  # of an earlier run: not planted again
    asked = ["3: 2 -> 3", "6: 100 -> 99", "7: not  -> ", "9: min -> max", "13: - -> ", "9: FACTOR -> never"]
    command = [
        sys.executable,
        str(SCRIPT),
        "--root",
        str(toy),
        "--covered",
        str(tmp_path / "covered"),
        "--log",
        str(log),
    ]
    done = subprocess.run(
        [*command, *(f"--only=boxes/toy.py:{one}" for one in asked)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "6 changes: 4 noticed, 2 not" in done.stdout
    said = [json.loads(line) for line in log.read_text().splitlines()][1:]
    assert {(one["line"], one["was"]): one["ended"] for one in said} == {
        (6, "100"): "survived",
        (7, "not "): "noticed",
        (9, "min"): "noticed",
        (9, "FACTOR"): "noticed",
        (13, "-"): "not covered",
    }
    assert {path: path.read_bytes() for path in toy.rglob("*.py")} == before
