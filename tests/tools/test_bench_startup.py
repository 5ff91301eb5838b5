"""The start-up bench: what it times, and how it reads Python's own account of the imports."""

from __future__ import annotations

import json
import sys

import pytest
from tiny_runs import command, refused

from benchmarks import startup
from benchmarks.startup import ALONE, Command, heaviest, measure

LINES = """\
import time: self [us] | cumulative | imported package
import time:       250 |        250 |   numpy.core
import time:      1000 |       1250 | numpy
import time:      2000 |       2000 |   torch.nn.modules
import time:      3000 |       5000 | torch.nn
import time:       500 |        500 | torch
a warning of somebody's
import time:       100 |        100 | json
"""


def test_imports_are_added_up_by_package_and_torchs_by_part():
    found = heaviest(LINES.splitlines())
    assert found["modules"] == 6 and found["seconds"] == pytest.approx(0.00685)
    assert [name for name, _ in found["heaviest"]] == ["torch.nn", "numpy", "torch", "json"]
    assert dict(map(tuple, found["heaviest"])) == pytest.approx(
        {"torch.nn": 0.005, "numpy": 0.00125, "torch": 0.0005, "json": 0.0001}
    )


@pytest.fixture
def stand_ins(monkeypatch, tmp_path):
    """Commands that need no torch: one that sleeps, one that is refused, one that trains for ever."""
    run = tmp_path / "run"
    trains = f"""
import json, os, pathlib, time
pathlib.Path({str(run)!r}).mkdir()
time.sleep(0.2)
pathlib.Path({str(run)!r}, "events.jsonl").write_text(json.dumps({{"event": "train"}}))
time.sleep(60)
"""
    made = [
        Command("sleeps", ("-c", "import time; time.sleep(0.3)")),
        Command("refuses", ("-c", "import sys; sys.exit(2)"), code=2),
        Command("trains", ("-c", trains), run=run),
    ]
    monkeypatch.setattr(startup, "_commands", lambda workload, folder: made)
    plain = Command
    monkeypatch.setattr(
        startup, "Command", lambda name, words: plain(name, ("-c", "pass")) if name == ALONE else plain(name, words)
    )
    return made


def test_each_command_is_timed_to_its_end_or_to_its_first_training_step(stand_ins, tmp_path):
    said = []
    facts = measure(["detection"], 2, tmp_path, said.append)
    found = facts["commands"]
    assert list(found) == [ALONE, "sleeps", "refuses", "trains"] and facts["rounds"] == 2
    assert all(len(entry["seconds"]) == 2 for entry in found.values())
    assert 0.3 < found["sleeps"]["median_seconds"] < 30 > found["trains"]["median_seconds"] > 0.2
    assert found[ALONE]["times_import_torch"]["median"] == 1 and found[ALONE]["beyond_import_torch"] == 0
    assert found["sleeps"]["times_import_torch"]["median"] > 1 and found["sleeps"]["beyond_import_torch"] > 0.2
    assert found["trains"]["imports"]["modules"] > 5
    assert 0 < found["sleeps"]["median_cpu_seconds"] < 0.3 and found[ALONE]["times_import_torch_cpu"]["median"] == 1
    assert "ssd-demo" in said[0] and "round 2 of 2 done" in said


def test_a_command_that_ends_otherwise_is_named_with_what_it_said(stand_ins, tmp_path):
    stand_ins[1] = Command("refuses", ("-c", "import sys; print('why', file=sys.stderr); sys.exit(3)"), code=2)
    with pytest.raises(RuntimeError, match=r"(?s)exit code 3.*why"):
        measure(["detection"], 1, tmp_path)
    stand_ins[1] = Command("ends", ("-c", "import sys; sys.exit('no data')"), run=tmp_path / "run")
    with pytest.raises(RuntimeError, match=r"(?s)step.*no data"):
        measure(["detection"], 1, tmp_path)


def test_the_table_and_the_json_hold_every_command(stand_ins, tmp_path, capsys):
    out = tmp_path / "startup.json"
    said = command(capsys, "bench", "startup", "--tasks", "detection", "--rounds", "1", "--output", out)
    assert said.code == 0 and "sleeps" in said.out and "x torch" in said.out
    assert list(json.loads(out.read_text())["commands"]) == [ALONE, "sleeps", "refuses", "trains"]
    said = command(capsys, "bench", "startup", "--tasks", "detection", "--rounds", "1", "--json")
    assert json.loads(said.out)["machine"]["versions"]["python"] == sys.version.split()[0]
    refused(command(capsys, "bench", "startup", "--rounds", "0"), "--rounds")


def test_a_first_time_has_an_empty_cache_each_time(tmp_path):
    program = "import os, pathlib; pathlib.Path(os.environ['PACELINE_CACHE']).mkdir()"  # fails where it is there already
    first = Command("first", ("-c", program), cache=tmp_path / "cache")
    for _ in range(2):
        startup._timed(first)
    assert (tmp_path / "cache").is_dir()
