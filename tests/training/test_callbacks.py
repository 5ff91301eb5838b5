"""Sinks of somebody's own: told everything, in a thread of their own; slow or failing, they stop no run."""

from __future__ import annotations

import json
import sys
import threading
import time

import pytest
from messages import check_lines, check_text, raises
from tiny_runs import command, refused, train, without_report

import paceline.training.logging.callbacks as sinks
from paceline._utils.commands import EXTRAS
from paceline._utils.errors import PacelineError
from paceline._utils.reporter import Lines
from paceline.config.run import RunOptions
from paceline.training.logging import trackers
from paceline.training.logging.callbacks import AsyncLogger
from paceline.training.logging.events import read_events
from paceline.training.logging.trackers import tracker_makers

MINE = """
import json

class Mine:
    def __init__(self, run, resumed_at):
        self.file = open(run / "mine.txt", "a")
        name = json.loads((run / "run.json").read_text())["name"]
        self.file.write(json.dumps([name, resumed_at]) + "\\n")

    def write(self, event):
        self.file.write(json.dumps(event) + "\\n")
        event.clear()  # its own copy

    def close(self):
        self.file.close()

class Fails(Mine):
    def write(self, event):
        raise SystemExit("enough")

def refuses(run, resumed_at):
    (run / "half").mkdir()
    raise ConnectionError("nobody home\\nand more")

number = 7
"""


@pytest.fixture(scope="module")
def photos(class_photos):
    return class_photos


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    return f"{tmp_path}/mine.py"


class Noted:
    """A sink that notes what it is told, and in which threads."""

    def __init__(self, act=lambda event: None) -> None:
        self.events, self.act = [], act
        self.threads = {threading.current_thread()}

    def write(self, event) -> None:
        self.threads.add(threading.current_thread())
        self.act(event)
        self.events.append(event["step"])

    def close(self) -> None:
        self.threads.add(threading.current_thread())
        self.events.append("closed")


def test_a_run_tells_its_sinks_every_event_and_one_that_fails_is_named_once(photos, file, tmp_path, capsys, monkeypatch):
    without_report(monkeypatch)
    run = tmp_path / "run"
    said = train(capsys, photos, run, "--quiet", "--log-every", 1, "--logger", f"{file}:Fails", f"--logger={file}:Mine")
    assert said.code == 0 and said.out.count(f"--logger {file}:Fails: SystemExit: enough") == 1
    lines = [json.loads(line) for line in (run / "mine.txt").read_text().splitlines()]
    assert [line for line in lines if isinstance(line, list)] == [["classify-demo", None]] * 2
    assert lines[2:] == read_events(run / "events.jsonl")
    said = train(capsys, photos, run, "--quiet", "--no-tensorboard", "--logger", f"{file}:Mine", steps=3)
    lines = [json.loads(line) for line in (run / "mine.txt").read_text().splitlines()]
    gone_on = lines.index(["classify-demo", 2])
    assert lines[gone_on + 1]["event"] == "resume" and lines[-1]["event"] == "end"
    written = json.loads((run / "run.json").read_text())["options"]
    assert written["logger"] == [f"{file}:Mine"] and written["tensorboard"] is False
    assert command(capsys, "train", run / "run.json", "--output-dir", tmp_path / "again").code == 0
    assert not (tmp_path / "again" / "mine.txt").exists()  # a file's words run nobody's code


@pytest.mark.parametrize(
    ("sinks", "words"),
    [
        (["foo"], "--logger foo ... wandb, mlflow"),
        (["FILE:Mine", "FILE:Mine"], "more than once"),
        (["FILE:missing"], "'missing'"),
        (["FILE:number"], "int ... function"),
        (["no-such.py:Mine"], "no-such.py"),
        (["FILE:Mine", "FILE:refuses"], "ConnectionError: nobody home"),
    ],
    ids=["unknown", "twice", "no name", "no function", "no file", "refuses"],
)
@pytest.mark.parametrize("made", [False, True], ids=["new folder", "empty folder"])
def test_what_cannot_be_a_sink_refuses_the_run_and_leaves_nothing(photos, file, tmp_path, capsys, sinks, words, made):
    run = tmp_path / "runs" / "run"
    if made:
        run.mkdir(parents=True)
    named = [word for sink in sinks for word in ("--logger", sink.replace("FILE", file))]
    said = train(capsys, photos, run, *named)
    assert said.code == 2 and check_text(said.err, words) and len(said.err.splitlines()) == 1, said.err
    left = [path.name for path in run.iterdir() if path.name != ".lock"] if run.exists() else []
    assert run.exists() == made and left == []


def test_a_refusal_leaves_an_older_run_as_it_was(photos, file, tmp_path, capsys, monkeypatch):
    without_report(monkeypatch)
    run = tmp_path / "run"
    assert train(capsys, photos, run).code == 0
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "run.json"}
    assert train(capsys, photos, run, "--logger", f"{file}:refuses", steps=3).code == 2
    assert all(path.read_bytes() == content for path, content in before.items())
    assert train(capsys, photos, run, steps=3).code == 0


def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setitem(EXTRAS, "nosuchpackage", ("nosuchpackage>=2",))
    monkeypatch.setattr(trackers, "TRACKERS", (*trackers.TRACKERS, "nosuchpackage"))
    for _ in range(2):
        with pytest.raises(PacelineError, match=r"pip install 'nosuchpackage>=2'"):
            tracker_makers(RunOptions(logger=("nosuchpackage",)))
        (tmp_path / "nosuchpackage").mkdir(exist_ok=True)  # a folder of that name is no package
        monkeypatch.syspath_prepend(tmp_path)


def test_training_without_tensorboard_says_so_once_and_is_refused_where_it_was_asked_for(
    monkeypatch, photos, tmp_path, capsys
):
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    run = tmp_path / "run"
    said = train(capsys, photos, run)
    assert said.code == 0 and not (run / "tensorboard").exists()
    assert (said.out + said.err).count("TensorBoard") == 1 and "pip install 'tensorboard>=2.17'" in said.out + said.err
    said = train(capsys, photos, tmp_path / "quiet", "--no-tensorboard")
    assert said.code == 0 and "TensorBoard" not in said.out + said.err
    refused(train(capsys, photos, tmp_path / "no", "--tensorboard"), "--tensorboard", "pip install 'tensorboard>=2.17'")
    assert not (tmp_path / "no").exists()


def test_a_slow_sink_keeps_nothing_waiting_and_is_told_everything_in_one_thread():
    gate, lines = threading.Event(), []
    noted = []
    sink = AsyncLogger("slow", lambda: noted.append(Noted(lambda event: gate.wait())) or noted[0], Lines(lines.append))
    for step in range(50):
        sink.write({"step": step})
        sink.passed(step, 0.0)
    assert noted[0].events == []
    gate.set()
    sink.close()
    assert noted[0].events == [*range(50), "closed"] and lines == []
    assert len(noted[0].threads) == 1 and threading.current_thread() not in noted[0].threads
    sink.close()
    assert noted[0].events[-2:] == [49, "closed"]


def test_a_sink_that_fails_is_closed_and_told_nothing_more():
    lines, made, closing = [], [], threading.Event()

    class Failing(Noted):
        def write(self, event) -> None:
            raise KeyError("oops")

        def close(self) -> None:
            closing.set()
            time.sleep(0.05)  # what it holds is not cut off by the end of the process
            super().close()

    sink = AsyncLogger("bad", lambda: made.append(Failing()) or made[0], Lines(lines.append))
    for step in range(3):
        sink.write({"step": step})
    assert closing.wait(10)
    sink.close()
    sink.close()
    assert made[0].events == ["closed"]
    assert check_lines(lines, ("--logger bad", "KeyError: 'oops'"))


def test_a_sink_that_hangs_is_left_behind(monkeypatch):
    monkeypatch.setattr(sinks, "CLOSE_SECONDS", 0.05)
    monkeypatch.setattr(sinks, "MAX_WAITING", 3)
    gate, lines = threading.Event(), []
    sink = AsyncLogger("stuck", lambda: Noted(lambda event: gate.wait()), Lines(lines.append))
    sink.write({"step": 0})
    sink.close()
    assert check_lines(lines, ("--logger stuck", "0.05 s"))
    lines.clear()
    sink = AsyncLogger("behind", lambda: Noted(lambda event: gate.wait()), Lines(lines.append))
    for step in range(9):
        sink.write({"step": step})
    sink.close()
    gate.set()
    assert len(lines) == 1 and "3 events" in lines[0]


def test_what_is_no_sink_is_refused_where_it_was_made():
    with raises(PacelineError, "--logger x", "dict", "write(event)", "close()"):
        AsyncLogger("x", dict, Lines(print))  # type: ignore[arg-type]
