"""What holds the hosts of a launch together, with shell scripts in place of torchrun and this machine as every host."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from messages import check_text

from paceline.launch import process_guard
from paceline.launch.schedulers import ssh
from paceline.launch.schedulers.ssh import LIKE_A_LOGIN, find_ssh_reason, make_host_environment, wrap_for_host

ROOT = Path(__file__).resolve().parents[2]
# Two addresses of this machine, which need no ssh.
HOSTS = ("127.0.0.1", "127.0.0.2")
# A process that leaves its parent, its session and its group, as torchrun's ranks do.
STRAY = "setsid sleep 987 & echo $! > {folder}/stray-$1"


@pytest.fixture
def handlers() -> Iterator[None]:
    """The signal handlers of this process come back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def scripted(folder: Path, text: str) -> Path:
    """A launch folder whose node script is `text`."""
    (folder / "node.sh").write_text(text.replace("{folder}", str(folder)))
    shutil.copy(process_guard.__file__, folder / "attend.py")
    return folder


def started(folder: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "paceline.launch.schedulers.ssh", str(folder), sys.executable, *HOSTS]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def until(condition: Callable[[], bool], *, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def runs(folder: Path, number: int) -> bool:
    """Whether a host's stray process is alive."""
    try:
        text = Path(f"/proc/{int((folder / f'stray-{number}').read_text())}/stat").read_text()
    except (FileNotFoundError, ValueError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def test_each_line_carries_its_host_and_the_first_failure_is_the_exit_code(tmp_path, capfd, handlers):
    folder = scripted(tmp_path, 'echo "step $1"; printf "\\033[2Jlast"; exit $((7 * $1))')
    assert ssh.run_on_hosts(folder, (sys.executable,), HOSTS) == 7
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == ["127.0.0.1: \\x1b[2Jlast", "127.0.0.1: step 0", "127.0.0.2: \\x1b[2Jlast", "127.0.0.2: step 1"]


def test_a_wish_to_stop_reaches_every_host_and_nothing_is_left(tmp_path):
    text = f"trap 'echo saved; exit 75' TERM; {STRAY}; echo ready; while :; do sleep 0.05; done"
    process = started(scripted(tmp_path, text))
    until(lambda: runs(tmp_path, 0) and runs(tmp_path, 1))
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 75
    assert said.count("saved") == 2
    assert not runs(tmp_path, 0) and not runs(tmp_path, 1)


def test_what_holds_the_connections_may_be_killed_and_nothing_is_left(tmp_path):
    process = started(scripted(tmp_path, f"{STRAY}; echo ready; exec sleep 986"))
    until(lambda: runs(tmp_path, 0) and runs(tmp_path, 1))
    process.kill()
    process.communicate(timeout=30)
    until(lambda: not runs(tmp_path, 0) and not runs(tmp_path, 1))


def test_the_others_are_ended_when_one_host_has_failed_and_they_do_not_notice(tmp_path, capfd, handlers, monkeypatch):
    monkeypatch.setattr(ssh, "OTHERS_SECONDS", 0.3)
    text = f"{STRAY}; [ $1 = 1 ] && {{ until [ -e {{folder}}/stray-0 ]; do sleep 0.01; done; exit 4; }}; exec sleep 985"
    assert ssh.run_on_hosts(scripted(tmp_path, text), (sys.executable,), HOSTS) == 4
    until(lambda: not runs(tmp_path, 0) and not runs(tmp_path, 1))


def test_this_machine_needs_no_ssh_and_words_for_others_are_quoted():
    assert wrap_for_host("127.0.0.1", ("echo", "a b")) == ("echo", "a b")
    *options, address, command = wrap_for_host("203.0.113.9", ("echo", "a b", "$HOME"))
    assert (address, command, options[-1]) == ("203.0.113.9", "echo 'a b' '$HOME'", "--")
    assert "BatchMode=yes" in options


def test_a_host_that_is_this_machine_gets_no_more_variables_than_a_login_gives_the_others(tmp_path, monkeypatch, handlers):
    monkeypatch.setenv("PACELINE_SECRET", "of this terminal alone")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/tmp/agent")
    assert ssh.run_on_hosts(scripted(tmp_path, "env > {folder}/env-$1"), (sys.executable,), HOSTS) == 0
    found = {line.partition("=")[0] for line in (tmp_path / "env-1").read_text().splitlines()}
    assert found <= {*LIKE_A_LOGIN, "PWD", "SHLVL", "_", "OLDPWD", "LC_CTYPE"} and "PATH" in found
    assert make_host_environment(wrap_for_host("203.0.113.9", ("true",)))["SSH_AUTH_SOCK"] == "/tmp/agent"


def test_the_reason_is_what_ssh_says_last_and_a_terminal_obeys_none_of_it():
    assert find_ssh_reason("Warning: added\nssh: connect to host a port 22: \x1b[2JNo route to host\r\n\n") == (
        "ssh: connect to host a port 22: \\x1b[2JNo route to host"
    )
    assert check_text(find_ssh_reason("\n"), "ssh")
