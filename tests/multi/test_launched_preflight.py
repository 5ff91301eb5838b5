"""`paceline launch --preflight` over a real Slurm of three nodes, one of which is really bad: named, and the job refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from messages import check_line
from small_run import PLAIN, ROOT, Trainer, last_event, told, wait_until

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("clock"), pytest.mark.nightly("starts nodes for minutes")]

FLAGS = "--max-steps 2 --save-every 2 --log-every 1"
CPU_GROUP = Path("/sys/fs/cgroup/cpu")


class Cluster:
    """Three slurmd of this machine; each can be started again inside something that makes it bad."""

    def __init__(self, folder: Path, trainer: Trainer, inside: Sequence[str] = ()):
        self.folder, self.trainer, self.inside = folder, trainer, list(inside)
        self.environ = {"SLURM_CONF": str(folder / "slurm.conf"), "MASTER_ADDR": "127.0.0.1"}

    def end(self, daemon: str) -> int:
        """End a daemon; -> what was its process."""
        old = int((self.folder / f"{daemon}.pid").read_text())
        os.kill(old, 15)
        wait_until(lambda: not Path(f"/proc/{old}").exists(), f"the end of {daemon}", seconds=20)
        return old

    def restart(self, name: str, *inside: str) -> None:
        """End a node's daemon and start it again by these words."""
        file, old = self.folder / f"slurmd-{name}.pid", self.end(f"slurmd-{name}")
        self.said(*inside, "slurmd", "-c", "-N", name)
        wait_until(lambda: file.exists() and int(file.read_text() or old) != old, name, seconds=60)
        wait_until(lambda: self.state(name).strip() == "idle", name, seconds=60)

    def said(self, *words: str) -> str:
        """What a command of this Slurm prints."""
        words = (*self.inside, *words) if words[0] != "nsenter" else words
        done = subprocess.run(
            words,
            env={**os.environ, **self.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def state(self, name: str) -> str:
        return self.said("sinfo", "--noheader", "--nodes", name, "--format", "%T")

    def launched(self, run: Path, words: str, **more: str) -> tuple[int, str]:
        """A launch to its end: exit code and all that it said."""
        command = ["launch", *self.trainer.train(run, FLAGS)[1:], "--scheduler", "slurm", "--preflight", *words.split()]
        process = self.trainer.launching([*self.inside, *PLAIN], command, **{**self.environ, **more})
        text = told(process, seconds=400)
        return process.returncode, text


@contextmanager
def three_nodes(folder: Path, trainer: Trainer, inside: Sequence[str] = ()) -> Iterator[Cluster]:
    """A running Slurm, by commands that run inside of something."""
    missing = [program for program in ("srun", "slurmd", "slurmctld", "munged") if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"a small Slurm needs root and Debian's slurmd, slurmctld, slurm-client, munge; not: {missing}")
    script = str(ROOT / "scripts" / "slurm_nodes.sh")
    try:
        words = [*inside, script, "start", str(folder), "3"]
        started = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
        assert started.returncode == 0, started.stderr
        yield Cluster(folder, trainer, inside)
    finally:
        subprocess.run([script, "stop", str(folder)], capture_output=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, trainer) -> Iterator[Cluster]:
    with three_nodes(tmp_path_factory.mktemp("slurm"), trainer) as started:
        yield started


@pytest.fixture
def cabled(tmp_path_factory, trainer) -> Iterator[tuple[Cluster, list[str], list[str]]]:
    """node1 and node3 on one network card, node2 on another, with a cable between; -> words that run a command at either end."""
    if shutil.which("ip") is None or subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
        pytest.skip("this container may not make network namespaces")
    holders = [subprocess.Popen(["unshare", "--net", "sleep", "3600"]) for _ in range(2)]
    try:
        ours = os.stat("/proc/self/ns/net").st_ino
        here, there = ([*("nsenter", "--target"), str(holder.pid), "--net"] for holder in holders)
        wait_until(lambda: all(os.stat(f"/proc/{one.pid}/ns/net").st_ino != ours for one in holders), "namespaces")
        subprocess.run([*here, *f"ip link add eth0 type veth peer name eth0 netns {holders[1].pid}".split()], check=True)
        for end, address in ((here, "10.78.0.1"), (there, "10.78.0.2")):
            lines = (
                "link set lo up",
                f"address add {address}/24 dev eth0",
                "link set eth0 up",
                "route add default dev eth0",
            )
            for line in lines:
                subprocess.run([*end, "ip", *line.split()], check=True)
        with three_nodes(tmp_path_factory.mktemp("cabled"), trainer, here) as cluster:
            file = cluster.folder / "slurm.conf"
            daemons = ("slurmctld", "slurmd-node1", "slurmd-node2", "slurmd-node3")
            for daemon in daemons:
                cluster.end(daemon)
            text = (
                file.read_text().replace("(127.0.0.1)", "(10.78.0.1)").replace("NodeAddr=127.0.0.1", "NodeAddr=10.78.0.1")
            )
            first, second = text.split("NodeName=node2 ")
            file.write_text(f"{first}NodeName=node2 {second.replace('10.78.0.1', '10.78.0.2', 1)}")
            cluster.said("slurmctld", "-c")
            for name, end in (("node1", here), ("node2", there), ("node3", here)):
                cluster.said(*end, "slurmd", "-c", "-N", name)
            wait_until(lambda: all(cluster.state(f"node{number}").strip() == "idle" for number in (1, 2, 3)), "nodes")
            yield cluster, here, there
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


def report(run: Path) -> dict:
    return json.loads((run / "launch" / "preflight.json").read_text())


def states(run: Path) -> dict[str, str]:
    return {node["name"]: node["state"] for node in report(run)["nodes"]}


def assert_refused(cluster: Cluster, tmp_path: Path, reason: str, words: str = "", **more: str) -> None:
    """A job on node1 and node2, of which the second is bad."""
    run = tmp_path / "refused"
    code, text = cluster.launched(run, f"--nodes 2 {words}", **more)
    assert code == 3, text
    assert states(run) == {"node1": "good", "node2": "excluded"}, text
    assert check_line(text, "preflight", "node2: ", reason), text
    assert not (run / "run.json").exists() and report(run)["good"] is False
    assert reason in (run / "launch" / "preflight.html").read_text()


@pytest.mark.parametrize("start", ["srun", "torchrun", "mpirun"])
def test_good_nodes_train(cluster, tmp_path, start):
    run = tmp_path / "run"
    code, text = cluster.launched(run, f"--nodes 3 --launcher {start}")
    assert code == 0, text
    assert states(run) == {"node1": "trains", "node2": "trains", "node3": "trains"}, text
    assert last_event(run)["status"] == "stopped_early"
    facts = json.loads((run / "run.json").read_text())
    assert (facts["world_size"], facts["plan"]["nodes"]) == (3, 3)
    assert report(run)["comm"]["world_size"] == 3 and "bench comm: 3 ranks on 3 nodes" in text


@pytest.mark.parametrize("start", ["srun", "torchrun", "mpirun"])
def test_a_node_with_a_full_disk(cluster, tmp_path, start):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    fill = f'mount -t tmpfs -o size=2m tmpfs {temporary} && head -c 2000000 /dev/zero >{temporary}/full; exec "$@"'
    cluster.restart("node2", "unshare", "--mount", "sh", "-c", fill, "sh")
    try:
        reason = f"temporary folder {temporary}: No space left on device"
        assert_refused(cluster, tmp_path, reason, f"--launcher {start}", TMPDIR=str(temporary))
    finally:
        cluster.restart("node2")


def test_a_node_whose_cores_are_slow(cluster, tmp_path):
    """It gets a tenth of one core's time for both, a real slowdown that no program of ours knows of."""
    group = CPU_GROUP / f"paceline-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text("10000")
    except OSError as problem:
        pytest.skip(f"this container may not limit a process's time ({problem})")
    try:
        cluster.restart("node2", "sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh")
        assert_refused(cluster, tmp_path, "hashes ")
    finally:
        cluster.restart("node2")
        for _ in range(50):
            if not (group / "cgroup.procs").read_text():
                break
            time.sleep(0.1)
        group.rmdir()


def test_a_node_between_which_and_the_others_a_port_is_blocked(cabled, tmp_path):
    """Rank 0's, in both directions, as a firewall on the node does."""
    cluster, here, there = cabled
    for end, other in ((here, "10.78.0.2"), (there, "10.78.0.1")):
        rule = f"ip rule add pref 10 to {other} ipproto tcp dport 29555 prohibit"
        subprocess.run([*end, *rule.split()], check=True)
    port = ":29555 (Permission denied)"
    assert_refused(cluster, tmp_path, port, "--master-port 29555")
