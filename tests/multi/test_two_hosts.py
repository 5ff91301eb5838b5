"""`paceline launch --scheduler hostfile` on two hosts with a real network between them: to the end, cut off, and refused."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from messages import check_line, check_text
from small_run import ROOT, Trainer, events, last_event, step_reached, tensor_files, told, wait_until
from two_hosts import MISSING, SCRIPT, TwoHosts, port_holder

from paceline.distributed.comm.interfaces import find_free_port

NIGHT = pytest.mark.nightly("two hosts in network namespaces")
pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("clock"), NIGHT]

FLAGS = "--max-steps 10 --save-every 5 --log-every 5"
# Long enough to be cut off in the middle: an evaluation of some seconds every few steps.
LONG = "--bn-batch-size 4 --save-every 5 --log-every 2 --input.eval-crop-size 160 --input.eval-resize-size 176"
LONG += " --max-val-images 0 --eval-every 10"
STARTERS = ["torchrun", "mpirun"]
BOTH = ["torchrun", "mpirun"]
# Of the processes that a launch starts on a host; orted alone may wait for a cable that was cut.
OURS = ("paceline", "torch.distributed", "attend.py", "node.sh")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory, trainer: Trainer) -> Iterator[TwoHosts]:
    """node1 and node2, running."""
    programs = ("ip", "unshare", "nsenter", "ssh", "/usr/sbin/sshd")
    if os.geteuid() != 0 or any(shutil.which(name) is None for name in programs):
        pytest.skip(MISSING)
    if subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--uts", "true"], capture_output=True, check=False
    ).returncode:
        pytest.skip("this container may not make namespaces")
    folder = tmp_path_factory.mktemp("hosts")
    try:
        started = subprocess.run([SCRIPT, "start", str(folder)], capture_output=True, text=True, timeout=60, check=False)
        assert started.returncode == 0, started.stderr
        yield TwoHosts(folder, trainer)
    finally:
        subprocess.run([SCRIPT, "stop", str(folder)], capture_output=True, timeout=30, check=False)


@pytest.fixture(scope="module")
def unbroken(trainer: Trainer) -> Path:
    """Two ranks on one host that nothing happened to."""
    return trainer.finished(trainer.folder / "hosts-unbroken", LONG, ranks=2)


def left_over(hosts: TwoHosts, host: str) -> list[str]:
    return [line for line in hosts.processes(host) if any(word in line for word in OURS)]


def assert_nothing_left(hosts: TwoHosts, *, seconds: float) -> None:
    wait_until(lambda: not any(left_over(hosts, host) for host in ("node1", "node2")), "silence", seconds=seconds)


@pytest.mark.parametrize("start", STARTERS)
def test_two_hosts_train_to_the_end(hosts, trainer, tmp_path, need_program, start):
    if start == "mpirun":
        need_program("mpirun", "openmpi-bin")
    run = tmp_path / "run"
    code, said = hosts.launched(run, FLAGS, start=start)
    assert code == 0, said
    assert last_event(run)["status"] == "stopped_early"
    rank_0 = "node1: [0] " if start == "torchrun" else "[1,0]<stdout>:"
    assert any(line.startswith(f"{rank_0}step 10/10") for line in said.splitlines()), said
    assert tensor_files(run) == tensor_files(trainer.finished(tmp_path / "one-host", FLAGS, ranks=2))
    assert_nothing_left(hosts, seconds=10)


@pytest.mark.parametrize("start", BOTH)
def test_both_hosts_are_looked_at_before_they_train_and_one_behind_a_firewall_is_named(hosts, tmp_path, start):
    run, words = tmp_path / "run", f"{FLAGS} --master-port 29556 --preflight"
    code, said = hosts.launched(run, words, start=start)
    assert code == 0 and check_line(said, "preflight", "training", "node1, node2"), said
    assert "bench comm: 2 ranks on 2 nodes, gloo" in said and last_event(run)["status"] == "stopped_early"
    rules = {"node1": "10.77.0.2", "node2": "10.77.0.1"}
    rule = "to {} ipproto tcp dport 29556 prohibit"
    try:
        for host, other in rules.items():
            hosts.said(host, *f"ip rule add pref 10 {rule.format(other)}".split())
        code, said = hosts.launched(tmp_path / "refused", words, start=start)
    finally:
        for host, other in rules.items():
            hosts.said(host, *f"ip rule del {rule.format(other)}".split())
    assert code == 3, said
    reason = "node2: node1 does not reach this node at 10.77.0.2:29556 (Permission denied)"
    assert check_line(said, "preflight", reason, "1 of 2"), said
    assert not (tmp_path / "refused" / "run.json").exists()
    assert_nothing_left(hosts, seconds=10)


@pytest.mark.parametrize("start", BOTH)
def test_a_host_cut_off_is_named_within_the_set_time_and_the_pair_goes_on_when_it_is_back(hosts, unbroken, tmp_path, start):
    run = tmp_path / "run"
    process = hosts.launching(run, LONG, start=start)
    try:
        wait_until(lambda: step_reached(run) >= 6 or process.poll() is not None, "step 6", seconds=120)
        hosts.plug("cut", "node2")
        began = time.monotonic()
        said, _ = process.communicate(timeout=120)
        took = time.monotonic() - began
        # Ranks that were cut off end too, without a word from outside.
        wait_until(lambda: not left_over(hosts, "node2"), "node2 to be quiet", seconds=60)
    finally:
        hosts.plug("join", "node2")
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 3, said
    assert check_line(said, "rank 1 (of 2)", "no heartbeat"), said
    assert start == "mpirun" or check_line(said, "node2", "connection"), said
    assert took < 90
    assert (last_event(run)["event"], last_event(run)["status"]) == ("end", "failed")
    code, said = hosts.launched(run, LONG, start=start)
    assert code == 0, said
    assert tensor_files(run) == tensor_files(unbroken)
    assert events(run, without=("resume", "checkpoint", "end")) == events(unbroken, without=("checkpoint", "end"))


def ctrl_c(process: subprocess.Popen[str]) -> None:
    """To all processes of its group, as a terminal does; but to nsenter, which stands at its head and would not wait."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # one that has just ended
            number, group = int(status.parent.name), int(status.read_text().rpartition(")")[2].split()[2])
            if group == process.pid != number:
                os.kill(number, signal.SIGINT)


@pytest.mark.parametrize("start", BOTH)
def test_ctrl_c_saves_ends_both_hosts_and_the_same_command_goes_on(hosts, unbroken, tmp_path, start):
    run = tmp_path / "run"
    process = hosts.launching(run, LONG, start=start)
    wait_until(lambda: step_reached(run) >= 6 or process.poll() is not None, "step 6", seconds=120)
    ctrl_c(process)
    said = told(process, seconds=90)
    assert process.returncode == 75, said
    assert_nothing_left(hosts, seconds=20)
    code, said = hosts.launched(run, LONG, start=start)
    assert code == 0, said
    assert tensor_files(run) == tensor_files(unbroken)


@pytest.mark.parametrize("start", BOTH)
def test_killing_what_holds_the_connections_leaves_no_process_on_any_host(hosts, tmp_path, start):
    run = tmp_path / "run"
    process = hosts.launching(run, LONG, start=start)
    holder = "paceline.launch.schedulers.ssh" if start == "torchrun" else "mpirun --"
    wait_until(lambda: step_reached(run) >= 2 or process.poll() is not None, "step 2", seconds=120)
    hosts.said("node1", "pkill", "-KILL", "-f", "--", holder)
    told(process, seconds=90)
    assert_nothing_left(hosts, seconds=60)


def test_a_rank_that_dies_on_the_other_host_ends_both(hosts, tmp_path):
    run = tmp_path / "run"
    process = hosts.launching(run, LONG)
    wait_until(lambda: step_reached(run) >= 2 or process.poll() is not None, "step 2", seconds=120)
    hosts.said("node2", "pkill", "-KILL", "-f", "--", "-m paceline launch|-m paceline train")
    said = told(process, seconds=90)
    assert process.returncode == 3, said
    assert "rank 1 (of 2) failed" in said
    assert_nothing_left(hosts, seconds=30)


def test_an_interface_that_leads_nowhere_is_named_with_those_that_there_are(hosts, tmp_path):
    for number in (1, 2):
        host = f"node{number}"
        hosts.said(host, "ip", "link", "add", "nowhere0", "type", "veth", "peer", "name", "nowhere1")
        hosts.said(host, "ip", "address", "add", f"10.88.{number}.1/24", "dev", "nowhere0")
        for end in ("nowhere0", "nowhere1"):
            hosts.said(host, "ip", "link", "set", end, "up")
    try:
        code, said = hosts.launched(tmp_path / "run", "--system.env GLOO_SOCKET_IFNAME=nowhere0")
    finally:
        for host in ("node1", "node2"):
            hosts.said(host, "ip", "link", "delete", "nowhere0")
    assert code in (2, 3), said  # rank 0 ends because of rank 1, and before there is a run
    assert check_text(said, "nowhere0", "(connect: Network is unreachable)"), said
    assert "Interfaces: lo 127.0.0.1, eth0 10.77.0." in said
    assert_nothing_left(hosts, seconds=30)


def test_every_host_that_cannot_take_part_is_named_in_a_line_of_its_own_before_anything_starts(hosts):
    # `locked` is node2 for a user whom its sshd does not let in. Each host has a folder DIR/local to itself.
    with (hosts.folder / "ssh" / "ssh_config").open("a") as file:
        file.write("Host locked\n    HostName node2\n    User nobody\n")
    hosts.hostfile.write_text("node1\nnowhere\n10.77.0.9\nlocked\nnode2\n")
    port = find_free_port()
    holder = subprocess.Popen(hosts.command("node1", *port_holder(port)), stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline()
        code, said = hosts.launched(
            hosts.folder / "local" / "run", f"--master-port {port} --global-batch-size 20 --optim.lr 0.05", nodes=5
        )
    finally:
        hosts.said("node1", "pkill", "-KILL", "-f", "--", f"create_server.*{port}")
        holder.communicate(timeout=10)
        hosts.hostfile.write_text("node1\nnode2\n")
    assert code == 2, said
    lines = said.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("paceline: "))
    taken, nowhere, absent, locked, unseen = lines[first : first + 5]
    assert check_text(taken, "paceline: node1", "rank 0", "(Address already in use)"), said
    assert check_text(nowhere, "nowhere: ssh", "(ssh: Could not resolve hostname")
    assert check_text(absent, "10.77.0.9: ssh", "port 22: No route to host")
    assert check_text(locked, "locked: ssh", "(nobody@node2: Permission denied (publickey")
    assert check_text(unseen, "node2", f"{hosts.folder}/local/run/launch")
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("hidden", "instead", "expected"),
    [
        (Path(sys.prefix), None, f"node2 ... {sys.executable}"),
        (
            ROOT / "paceline" / "__init__.py",
            "raise ModuleNotFoundError('no paceline')",
            f"node2 ... {sys.executable} ... ModuleNotFoundError: no paceline",
        ),
        (ROOT / "paceline" / "__init__.py", '__version__ = "9.9"\n', "node2: paceline 9.9"),
    ],
    ids=["no-python", "no-paceline", "other-version"],
)
def test_a_host_with_another_environment_is_named_with_what_it_has(hosts, tmp_path, hidden, instead, expected):
    other = tmp_path / "other"
    if instead is None:
        other.mkdir()
    else:
        other.write_text(instead)
    hosts.said("node2", "mount", "--bind", str(other), str(hidden))
    try:
        code, said = hosts.launched(tmp_path / "run")
    finally:
        hosts.said("node2", "umount", str(hidden))
    assert code == 2, said
    assert check_text(said.splitlines()[-1], expected), said
