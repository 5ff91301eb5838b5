"""`paceline launch --preflight` over a real Slurm of three nodes, one of which is really bad: named, replaced, or refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from small_run import PLAIN, ROOT, Trainer, free_port, last_event, told, wait_until

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("clock"), pytest.mark.nightly]

FLAGS = "--steps 2 --save-every 2 --log-every 1"
CPU_GROUP = Path("/sys/fs/cgroup/cpu")


class Cluster:
    """Three slurmd of this machine; each can be started again inside something that makes it bad."""

    def __init__(self, folder: Path, trainer: Trainer):
        self.folder, self.trainer = folder, trainer
        self.environ = {"SLURM_CONF": str(folder / "slurm.conf"), "MASTER_ADDR": "127.0.0.1"}

    def restart(self, name: str, *inside: str) -> None:
        """End a node's daemon and start it again by these words."""
        file = self.folder / f"slurmd-{name}.pid"
        old = int(file.read_text())
        os.kill(old, 15)
        wait_until(lambda: not Path(f"/proc/{old}").exists(), f"the end of {name}", seconds=20)
        started = subprocess.run(
            [*inside, "slurmd", "-c", "-N", name], env={**os.environ, **self.environ}, capture_output=True, check=False
        )
        assert started.returncode == 0, started.stderr
        wait_until(lambda: "idle" in self.state(name) and file.exists() and int(file.read_text()) != old, name, seconds=60)

    def state(self, name: str) -> str:
        words = ["sinfo", "--noheader", "--nodes", name, "--format", "%T"]
        return subprocess.run(words, env={**os.environ, **self.environ}, capture_output=True, text=True).stdout

    def launched(self, run: Path, words: str, **more: str) -> tuple[int, str]:
        """A launch to its end: exit code and all that it said."""
        command = ["launch", *self.trainer.train(run, FLAGS)[1:], "--through", "slurm", "--preflight", *words.split()]
        process = self.trainer.launching(PLAIN, command, **{**self.environ, **more})
        text = told(process, seconds=400)
        return process.returncode, text


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, trainer) -> Iterator[Cluster]:
    missing = [program for program in ("srun", "slurmd", "slurmctld", "munged") if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"a small Slurm needs root and Debian's slurmd, slurmctld, slurm-client, munge; not: {missing}")
    script, folder = str(ROOT / "scripts" / "slurm_nodes.sh"), tmp_path_factory.mktemp("slurm")
    try:
        started = subprocess.run(
            [script, "start", str(folder), "3"], capture_output=True, text=True, timeout=90, check=False
        )
        assert started.returncode == 0, started.stderr
        yield Cluster(folder, trainer)
    finally:
        subprocess.run([script, "stop", str(folder)], capture_output=True, timeout=60, check=False)


def report(run: Path) -> dict:
    return json.loads((run / "launch" / "preflight.json").read_text())


def states(run: Path) -> dict[str, str]:
    return {node["name"]: node["state"] for node in report(run)["nodes"]}


def assert_excluded_with_a_spare_and_refused_without(
    cluster: Cluster, tmp_path: Path, reason: str, name: str = "node2", start: str = "srun", **more: str
) -> None:
    """On node1 and node2 with node3 to spare, and on node1 and node2 alone."""
    run = tmp_path / "spare"
    code, text = cluster.launched(run, f"--nodes 2 --spares 1 --start {start}", **more)
    assert code == 0, text
    trains = [other for other in ("node1", "node2", "node3") if other != name]
    assert states(run) == {name: "excluded", **dict.fromkeys(trains, "trains")}, text
    assert f"preflight: trains on {', '.join(trains)}; excluded: {name}" in text and reason in text, text
    assert last_event(run)["status"] == "stopped_early"
    facts = json.loads((run / "run.json").read_text())
    assert (facts["world"], facts["plan"]["nodes"]) == (2, 2)
    assert report(run)["comm"]["world"] == 2 and "bench comm: 2 ranks on 2 nodes" in text
    run = tmp_path / "refused"
    code, text = cluster.launched(run, f"--nodes 2 --start {start}", **more)
    assert code == 3, text
    assert f"paceline: preflight refuses the job: {name}: " in text and reason in text, text
    assert not (run / "run.json").exists() and report(run)["chosen"] == []
    assert reason in (run / "launch" / "preflight.html").read_text()


@pytest.mark.parametrize("start", ["srun", "torchrun", "mpirun"])
def test_three_good_nodes_train_on_two_with_one_to_spare(cluster, tmp_path, start):
    run = tmp_path / "run"
    code, text = cluster.launched(run, f"--nodes 2 --spares 1 --start {start}")
    assert code == 0, text
    assert states(run) == {"node1": "trains", "node2": "trains", "node3": "spare"}, text
    assert last_event(run)["status"] == "stopped_early"


@pytest.mark.parametrize("start", ["srun", "torchrun", "mpirun"])
def test_a_node_with_a_full_disk(cluster, tmp_path, start):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    fill = f"mount -t tmpfs -o size=2m tmpfs {temporary} && head -c 2000000 /dev/zero >{temporary}/full; exec \"$@\""
    cluster.restart("node2", "unshare", "--mount", "sh", "-c", fill, "sh")
    try:
        reason = f"temporary folder {temporary}: No space left on device"
        assert_excluded_with_a_spare_and_refused_without(cluster, tmp_path, reason, start=start, TMPDIR=str(temporary))
    finally:
        cluster.restart("node2")


def test_a_node_whose_cores_are_slow(cluster, tmp_path):
    """It gets two fifths of a core's time, as a held clock or a busy neighbour leave them."""
    group = CPU_GROUP / f"paceline-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text("40000")
    except OSError as problem:
        pytest.skip(f"this container may not limit a process's time ({problem})")
    try:
        cluster.restart("node2", "sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh")
        assert_excluded_with_a_spare_and_refused_without(cluster, tmp_path, "hashes ")
    finally:
        cluster.restart("node2")
        for _ in range(50):
            if not (group / "cgroup.procs").read_text():
                break
            time.sleep(0.1)
        group.rmdir()
