"""Following a job: its exit code, its log, Ctrl-C. The ranks are small shell scripts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from paceline.distributed.comm.exit_code import EXIT_CODE_FILE, leave_exit_code, read_exit_code
from paceline.launch.job import LaunchJob
from paceline.launch.runner import LogTail, _asked_to_stop, find_exit_code, follow
from paceline.launch.schedulers import slurm
from paceline.launch.schedulers.local import LocalProcess
from paceline.launch.schedulers.slurm import JOB_NUMBER
from paceline.training.logging.events import EventLog


def end(folder: Path, status: str, reason: str = "done") -> None:
    log = EventLog(folder / "events.jsonl")
    log.write("end", step=3, epoch=1.0, seconds=2.0, status=status, best={}, reason=reason)


def followed(tmp_path: Path, script: str, before=lambda folder: None) -> tuple[int, str]:
    """-> exit code and what was said of a job whose one rank is this script."""
    job = LaunchJob(("train",), tmp_path, "ssd-demo")
    job.launch_folder.mkdir(parents=True, exist_ok=True)
    before(tmp_path)
    said: list[str] = []
    code = follow(
        job, lambda: LocalProcess(("bash", "-c", script), job.log, signal.SIGTERM), say=lambda text: said.append(text)
    )
    return code, "\n".join(said)


# What it starts leaves its session and group, as torchrun's ranks do. The trap is there before the file that the test waits for.
HELD = """
trap 'echo asked > {0}/asked; exit 0' TERM
setsid sleep 600 & echo $! > {0}/pid.part; mv {0}/pid.part {0}/pid
while :; do sleep 0.05; done
"""
LAUNCHER = """
import signal, sys, time
from pathlib import Path
from paceline.launch.schedulers.local import LocalProcess
LocalProcess(("bash", "-c", sys.argv[2]), Path(sys.argv[1], "log"), signal.SIGTERM)
time.sleep(600)
"""


def begun(tmp_path: Path) -> int:
    """The number of the process that HELD leaves, once it is there."""
    until = time.monotonic() + 60
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    return int((tmp_path / "pid").read_text())


def ends(process: int) -> bool:
    """Whether it ends."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


def test_a_launcher_that_is_killed_leaves_nothing_running(tmp_path):
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, tmp_path, HELD.format(tmp_path)])
    left = begun(tmp_path)
    launcher.kill()
    launcher.wait()
    assert ends(left)
    assert (tmp_path / "asked").exists()  # it could have saved


def test_a_job_that_is_ended_at_once_leaves_nothing_running(tmp_path):
    process = LocalProcess(("bash", "-c", HELD.format(tmp_path)), tmp_path / "log", signal.SIGTERM)
    left = begun(tmp_path)
    process.kill()
    assert process.poll() is not None and ends(left)
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("status", "left", "code"),
    [
        ("success", 1, 0),  # the launcher made 1 of it
        ("stopped_early", None, 0),
        ("ran_out", 0, 1),
        ("interrupted", None, 75),
        ("failed", None, 3),
        ("failed", 3, 3),
        ("failed", 2, 2),  # bad input that was found while training
        ("", 0, 0),  # a verb without events
        ("", 2, 2),
        ("", None, 3),
    ],
)
def test_the_end_event_decides_then_rank_0s_own_code(tmp_path, status, left, code):
    assert find_exit_code(LaunchJob((), tmp_path, "x"), status, left, "", lambda text: None) == code


def test_a_stopped_job_promises_a_checkpoint_only_if_it_has_one(tmp_path):
    said: list[str] = []
    for name in ("step-000010", "last"):
        assert find_exit_code(LaunchJob((), tmp_path, "x"), "", None, "", said.append, stopped=True) == 75
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert find_exit_code(LaunchJob((), tmp_path, "x"), "", None, "", said.append, stopped=True) == 75
    assert ["checkpoint" in text for text in said] == [False, False, True]


def test_without_a_word_of_its_end_a_job_has_failed_and_its_last_lines_are_said(tmp_path):
    code, said = followed(tmp_path, "for i in $(seq 40); do echo line $i; done; exit 1")
    assert code == 3
    last = said.split("Last lines of ")[1]
    assert last.splitlines()[1:] == [f"line {number}" for number in range(21, 41)]


def test_an_end_event_of_an_earlier_start_says_nothing_of_this_one(tmp_path):
    assert followed(tmp_path, "exit 0", before=lambda folder: end(folder, "interrupted"))[0] == 3


def test_an_end_event_that_came_meanwhile_decides(tmp_path):
    end(tmp_path, "ran_out")
    line = (tmp_path / "events.jsonl").read_text().strip()
    (tmp_path / "events.jsonl").unlink()
    code, said = followed(tmp_path, f"echo working; echo '{line}' > {tmp_path}/events.jsonl; exit 7")
    assert code == 1 and "working" in said


def test_a_terminals_signs_in_the_log_are_harmless(tmp_path):
    _, said = followed(tmp_path, r"printf 'a\033[2Jb\n'")
    assert "\033" not in said and "b" in said


def test_the_first_ctrl_c_asks_the_second_ends(tmp_path):
    asks = "trap 'echo asked' TERM; echo ready; for i in $(seq 400); do sleep 0.05; done"

    def twice() -> None:
        log = tmp_path / "launch" / "output.txt"
        for sign in ("ready", "asked"):
            until = time.monotonic() + 20
            while sign not in (log.read_text() if log.exists() else "") and time.monotonic() < until:
                time.sleep(0.02)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=twice)
    thread.start()
    code, said = followed(tmp_path, asks)
    thread.join()
    assert code == 75
    assert said.index("stop request") < said.index("killed")


def test_a_growing_file_is_read_on_from_where_it_stood(tmp_path):
    file = tmp_path / "log"
    file.write_text("old\n")
    tail = LogTail(file)
    with file.open("a") as out:
        out.write("new\nhalf")
        out.flush()
        assert tail.more() == "new\n"
        out.write(" a line\n")
        out.flush()
        assert tail.more() == "half a line\n"
    assert LogTail(tmp_path / "not there").more() == ""


@pytest.mark.parametrize(
    ("environ", "left"),
    [
        ({}, 75),
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, 2),  # no place in a job can be read from these
        (
            {name: "1" for name in ("RANK", "LOCAL_RANK", "GROUP_RANK")}
            | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "9"},
            None,
        ),
    ],
)
def test_rank_0_alone_leaves_its_code(tmp_path, environ, left):
    file = tmp_path / "exit-code"
    leave_exit_code(0 if left == 2 else 75, {EXIT_CODE_FILE: str(file), **environ})
    assert read_exit_code(file) == left
    assert [path.name for path in tmp_path.iterdir()] == (["exit-code"] if left is not None else [])


@pytest.mark.parametrize("kind", ["pipe", "link", "large"])
def test_what_stands_in_a_runs_folder_in_place_of_our_files_is_not_waited_for_followed_or_read_whole(tmp_path, kind):
    victim = tmp_path / "victim"
    victim.write_text("75\n")
    files = [tmp_path / name for name in ("exit-code", "output.txt", JOB_NUMBER)]
    tail = LogTail(files[1])
    for file in files:
        if kind == "pipe":
            os.mkfifo(file)
        elif kind == "link":
            file.symlink_to(victim)
        else:
            with file.open("wb") as content:
                content.truncate(1 << 30)
    assert read_exit_code(files[0]) is None and slurm._text(files[2]) == ""
    assert len(tail.more(all_of_it=True)) <= 1 << 24 and victim.read_text() == "75\n"


def test_the_reason_of_a_failed_run_is_said_last(tmp_path):
    end(tmp_path, "failed", "rank 1 is gone")
    line = (tmp_path / "events.jsonl").read_text().strip()
    (tmp_path / "events.jsonl").unlink()
    code, said = followed(tmp_path, f"echo '{line}' > {tmp_path}/events.jsonl; echo a launcher talks; exit 7")
    assert code == 3 and said.splitlines()[-1].endswith("rank 1 is gone")


@pytest.mark.parametrize(
    ("through", "before", "handled"),
    [
        ("local", signal.SIG_DFL, True),
        ("hostfile", signal.SIG_DFL, True),
        ("local", signal.SIG_IGN, False),  # under nohup
        ("slurm", signal.SIG_DFL, False),  # the scheduler's job goes on
    ],
)
def test_a_terminal_that_is_closed_asks_the_ranks_that_nobody_else_looks_after(tmp_path, through, before, handled):
    kept = signal.signal(signal.SIGHUP, before)
    try:
        with _asked_to_stop(LaunchJob((), tmp_path, "x", through=through)) as asked:
            assert (signal.getsignal(signal.SIGHUP) != before) == handled
            if handled:
                signal.raise_signal(signal.SIGHUP)
                assert asked == [signal.SIGHUP]
        assert signal.getsignal(signal.SIGHUP) == before
    finally:
        signal.signal(signal.SIGHUP, kept)
