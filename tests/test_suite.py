"""The suite's own promises: nothing vanishes in CI, and the long form is there when asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from by_night import ONE_MORE
from messages import raises
from shards import UNKNOWN, seconds_of, shards
from shared_runs import made_once, untouched

TESTS = """
import pytest
from hypothesis import settings

def test_photos(shared_data): ...

def test_library(): pytest.importorskip("no_such_library")

@pytest.mark.skipif(True, reason="of no good reason")
def test_marked(): ...

@pytest.mark.parametrize("photo", [])
def test_nothing_to_try(photo): ...

@pytest.mark.skipif(True, reason="needs a CUDA device")
def test_gpu(): ...

@pytest.mark.nightly("long")
def test_long(): ...

@pytest.mark.xfail(strict=True)
def test_known(): assert False

def test_form(nightly): assert settings.default.max_examples == (2000 if nightly else 100)
"""
MODULE = "import pytest\npytest.importorskip('no_such_library')\n"


@pytest.mark.parametrize(
    ("ci", "flags", "ended"),
    [
        pytest.param("", [], "1 passed, 7 skipped, 1 xfailed", marks=ONE_MORE),
        ("true", [], "1 failed, 1 passed, 2 skipped, 1 xfailed, 4 errors"),
        pytest.param("true", ["--nightly"], "2 passed, 6 deselected, 1 error", marks=ONE_MORE),
    ],
)
def test_in_ci_a_skip_is_a_failure_unless_nothing_could_be_installed(tmp_path, ci, flags, ended):
    (tmp_path / "test_all.py").write_text(TESTS)
    (tmp_path / "test_module.py").write_text(MODULE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    nightly: long\n")
    flags = [*flags, "-p", "no:xdist", "--continue-on-collection-errors"]
    said = run_pytest(tmp_path, *flags, CI=ci, PACELINE_TEST_DATA="/nowhere")
    assert ended in said, said


def test_a_mark_for_the_night_says_why(tmp_path):
    (tmp_path / "test_all.py").write_text("import pytest\n\n@pytest.mark.nightly\ndef test_long(): ...\n")
    said = run_pytest(tmp_path, "-p", "no:xdist")
    assert "test_long: a nightly mark" in said


VISITED = """
def pytest_collect_file(file_path, parent):
    print("visited", file_path)
"""


def test_every_file_of_tests_is_collected_by_the_suites_own_configuration(tmp_path):
    # What pytest leaves out by itself has names that a room may get: "dist", "build".
    root = Path(__file__).parents[1]
    (tmp_path / "visited.py").write_text(VISITED)
    # Without the plugin that would import them, the files are only found.
    flags = ["-p", "visited", "-p", "no:python", "-p", "no:xdist", "-p", "no:cacheprovider", "--collect-only"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *flags],
        env=environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        cwd=root,
        check=False,
    )
    found = {Path(line.removeprefix("visited ")) for line in done.stdout.splitlines() if line.startswith("visited ")}
    assert set((root / "tests").rglob("test_*.py")) <= found, done.stdout + done.stderr


def run_pytest(folder: Path, *flags: str, **more: str) -> str:
    """What pytest says of the tests in a folder, with this suite's conftest.py."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ |= {"PYTHONPATH": str(Path(__file__).parent), **more}
    plugins = ["-p", "conftest", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command = [sys.executable, "-m", "pytest", *plugins, "--rootdir", folder, *flags]
    done = subprocess.run([*command, folder], env=environ, capture_output=True, text=True, cwd=folder, check=False)
    return done.stdout + done.stderr


WHERE = """
import os
import pytest

{mark}

@pytest.mark.parametrize("number", range(8))
def test_where(number):
    with open("where.txt", "a") as file:
        file.write(f"{{__name__}} {{os.environ['PYTEST_XDIST_WORKER']}}\\n")
"""


@pytest.mark.nightly("starts pytest once more")
@pytest.mark.parametrize("group", ["clock"])
def test_a_file_stays_in_one_process_and_so_do_the_files_of_a_group(tmp_path, group):
    for number in range(6):
        mark = f'pytestmark = pytest.mark.xdist_group("{group}")' if number in (0, 2, 5) else ""
        (tmp_path / f"test_{number}.py").write_text(WHERE.format(mark=mark))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    nightly: long\n")
    said = run_pytest(tmp_path, "-n", "2", "--dist", "loadgroup")
    assert "48 passed" in said, said
    places = set((tmp_path / "where.txt").read_text().splitlines())
    assert len(places) == 6  # a file, a place
    assert len({place.split()[1] for place in places if place.split()[0] in ("test_0", "test_2", "test_5")}) == 1
    assert len({place.split()[1] for place in places}) == 2


def test_a_shared_run_that_a_test_changed_is_named(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with raises(AssertionError, "copy"), untouched(tmp_path):
        (tmp_path / "run.json").write_text("{ }")


def test_what_is_shared_is_made_once(tmp_path_factory):
    made = []
    first, second = (made_once(tmp_path_factory, "once", lambda folder: made.append(folder)) for _ in range(2))
    assert first == second and len(made) == 1


def test_shards_have_each_test_once_and_equal_times():
    tests = [f"tests/test_{file}.py::test_{number}" for file in "abcdef" for number in range(10)]
    seconds = {"tests/test_a.py": 1000.0, "tests/test_b.py": 60.0, "tests/test_c.py": 40.0}
    part = shards(tests, seconds, 3)
    assert set(part) == set(tests) and set(part.values()) == {1, 2, 3}
    assert len({part[test] for test in tests if "test_a" in test}) == 3  # too large for one shard
    assert all(len({part[test] for test in tests if f"test_{file}" in test}) == 1 for file in "bcdef")
    times = [sum(100.0 for test in tests if "test_a" in test and part[test] == number) for number in (1, 2, 3)]
    for file in "bcdef":
        times[part[f"tests/test_{file}.py::test_0"] - 1] += seconds.get(f"tests/test_{file}.py", UNKNOWN)
    assert max(times) - min(times) <= 100
    assert shards(tests[::-1], seconds, 3) == part
    alone = shards(tests, {**seconds, tests[10]: 900.0}, 3)  # a long test of a file whose others stay together
    assert [test for test in tests if alone[test] == alone[tests[10]]] == [tests[10]]
    assert len({alone[test] for test in tests[11:20]}) == 1


def test_the_table_of_seconds_names_files_and_tests_that_exist():
    for row in {*seconds_of(night=False), *seconds_of(night=True)}:
        file, _, test = row.partition("::")
        path = Path(__file__).parents[1] / file
        assert path.is_file() and (not test or f"def {test.split('[')[0]}(" in path.read_text()), row


def test_by_night_only_longer_tests_run_and_a_shard_has_its_part(tmp_path):
    (tmp_path / "test_all.py").write_text(TESTS.replace("test_form(nightly)", "test_form(nightly, seed)"))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    nightly: long\n")
    night = [*("-p", "no:xdist", "--nightly"), "--times", tmp_path / "times.tsv"]
    assert "2 passed, 6 deselected" in (said := run_pytest(tmp_path, *night)), said
    lines = [line.split("\t") for line in (tmp_path / "times.tsv").read_text().splitlines()]
    assert [line[:2] for line in lines] == [["test_all.py::test_long", "ended"], ["test_all.py::test_form", "ended"]]
    assert all(float(line[2]) >= 0 <= float(line[3]) for line in lines)
    assert "deselected" in run_pytest(tmp_path, *night, "--shard", "2/2")
