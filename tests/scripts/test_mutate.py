"""scripts/mutate.py plants changes that stay Python, by a seed, in copies, and knows which of them a test notices."""

from __future__ import annotations

import ast
import json
import shutil
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
from paceline.models.ops.toy import scaled

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


# What the toy's tests import is little: nothing is loaded before them.
LIGHT = f"""
import sys
sys.path.insert(0, {str(SCRIPT.parent)!r})
import mutation_jobs
mutation_jobs.PRELOADED = ()
import mutate
sys.exit(mutate.main())
"""


def mutate(toy, *words):
    """Run the script on the toy's package."""
    command = [sys.executable, "-c", LIGHT, "--root", str(toy), "--packages", "models", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def toy(tmp_path):
    for path, text in (
        ("paceline/models/ops/toy.py", TOY),
        ("paceline/__init__.py", ""),
        ("paceline/models/__init__.py", ""),
        ("paceline/models/ops/__init__.py", ""),
        ("tests/models/test_toy.py", TOY_TEST),
        ("tests/oracle/readme", ""),
        ("tests/training/readme", ""),
    ):
        (tmp_path / "toy" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "toy" / path).write_text(text)
    return tmp_path / "toy"


def test_each_kind_of_change_is_found_and_messages_are_left_alone(changes):
    found = changes.changes_of("models/ops/toy.py", TOY)
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
    assert became in [change.planted(line) for change in changes.changes_of("models/ops/toy.py", line)]


def test_a_sample_follows_from_its_seed_and_not_from_other_lines(changes, toy):
    package = toy / "paceline"
    found = changes.changes_of("models/ops/toy.py", TOY)
    drawn = [change.key for change in changes.sample(found, 4, 1, package)]
    assert drawn == [change.key for change in changes.sample(found, 9, 1, package)][:4]
    assert drawn != [change.key for change in changes.sample(found, 4, 2, package)]
    moved = TOY.replace("FACTOR = 2\n", "FACTOR = 2\n\n# A comment.\n")
    (package / "models/ops/toy.py").write_text(moved)
    assert drawn == [change.key for change in changes.sample(changes.changes_of("models/ops/toy.py", moved), 4, 1, package)]


def test_a_sample_takes_changes_from_each_package_in_turn(changes, tmp_path):
    found = []
    for name, lines in (("models", 40), ("optim", 2), ("tasks", 1)):
        (tmp_path / name).mkdir()
        text = "".join(f"a{line} = {line} + 1.5\n" for line in range(lines))
        (tmp_path / name / "one.py").write_text(text)
        found += changes.changes_of(f"{name}/one.py", text)
    drawn = [change.file.split("/")[0] for change in changes.sample(found, 6, 1, tmp_path)]
    assert sorted(drawn[:3]) == sorted(drawn[3:]) == ["models", "optim", "tasks"]


def test_what_a_test_notices_and_what_none_does(changes, toy, tmp_path):
    pytest.importorskip("coverage", reason="needs coverage: pip install coverage")
    before = {path: path.read_bytes() for path in toy.rglob("*.py")}
    out, known = tmp_path / "out", changes.asked_for("models/ops/toy.py:3: 2 -> 3", toy / "paceline")[0]
    out.write_text(json.dumps({"key": known.key, "ended": "noticed"}) + "\n")  # of an earlier run: not planted again
    given = ["3: 2 -> 3", "6: 100 -> 99", "7: not  -> ", "9: min -> max", "13: - -> ", "9: FACTOR -> never"]
    options = ["--covered", tmp_path / "covered", "--out", out]
    done = mutate(toy, *options, *(f"--only=models/ops/toy.py:{one}" for one in given))
    assert done.returncode == 1, done.stderr
    assert "6 changes: 4 noticed, 2 not" in done.stdout
    rows = [json.loads(line) for line in out.read_text().splitlines()][1:]
    assert {(one["line"], one["was"]): one["ended"] for one in rows} == {
        (6, "100"): "survived",
        (7, "not "): "noticed",
        (9, "min"): "noticed",
        (9, "FACTOR"): "noticed",
        (13, "-"): "not covered",
    }
    assert {path: path.read_bytes() for path in toy.rglob("*.py")} == before


@pytest.mark.nightly("plants 15 changes twice, each in a process")
def test_the_same_changes_are_planted_again_after_tests_are_deleted(toy, tmp_path):
    pytest.importorskip("coverage", reason="needs coverage: pip install coverage")
    options = ["--covered", tmp_path / "covered"]
    mutate(toy, *options, "--sample", 60, "--seeds", 1, "--out", tmp_path / "before")
    first = [json.loads(line) for line in (tmp_path / "before").read_text().splitlines()]
    assert {one["ended"] for one in first} == {"noticed", "survived", "not covered"}
    assert all(one["by"].startswith("tests/models/test_toy.py::") for one in first if one["ended"] == "noticed")
    test = toy / "tests/models/test_toy.py"
    test.write_text(test.read_text().replace("assert scaled(3) == 6", "scaled(3)"))
    less = mutate(toy, *options, "--against", tmp_path / "before", "--out", tmp_path / "after")
    assert less.returncode == 1, less.stderr
    assert "models/ops/toy.py:9: '*' -> '+'" in less.stdout.split("are not noticed now")[1]
    names = ("file", "line", "column", "was", "became")
    second = [json.loads(line) for line in (tmp_path / "after").read_text().splitlines()]
    assert sorted([one[name] for name in names] for one in first) == sorted([one[name] for name in names] for one in second)
    shutil.copyfile(tmp_path / "after", tmp_path / "equal")
    assert mutate(toy, *options, "--against", tmp_path / "after", "--out", tmp_path / "equal").returncode == 0

    (toy / "paceline/models/ops/toy.py").write_text("\n" + TOY)
    moved = mutate(toy, *options, "--against", tmp_path / "before")
    assert moved.returncode == 2
    assert "models/ops/toy.py" in moved.stderr and "Traceback" not in moved.stderr


@pytest.fixture
def tables(changes, monkeypatch):
    """The script as a module: importing it in this process would fix its threads and its plugins."""
    code = (
        "import json, mutate; print(json.dumps([mutate.TESTS, mutate.problems_of_tables(mutate.Path(ROOT), mutate.TESTS)]))"
    )
    root = SCRIPT.parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code.replace("ROOT", repr(str(root)))], cwd=SCRIPT.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_table_names_every_computing_package_and_tests_that_exist(tables):
    tests, problems = tables
    assert problems == []
    assert {"data", "models", "training"} <= tests.keys()
    assert all(tests.values())


def test_a_folder_that_does_not_exist_is_an_error(toy):
    for words in (
        ["--packages", "engine"],
        ["--packages", "training"],
        ["--against", toy / "none.jsonl"],
        ["--only", "launch/a.py:1"],
    ):
        done = mutate(toy, *words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert str(words[1]).split(":")[0] in done.stderr and "Traceback" not in done.stderr
    same = mutate(toy, "--against", SCRIPT, "--out", SCRIPT)
    assert same.returncode == 2 and "--out" in same.stderr
    (toy / "tests/oracle/readme").unlink()
    (toy / "tests/oracle").rmdir()
    done = mutate(toy)
    assert done.returncode == 2 and "tests/oracle" in done.stderr


def test_a_package_that_no_table_lists_is_an_error(toy):
    (toy / "paceline/sums").mkdir()
    (toy / "paceline/sums/__init__.py").touch()
    done = mutate(toy)
    assert done.returncode == 2 and "paceline/sums" in done.stderr
