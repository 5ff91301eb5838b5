"""`paceline launch` as a user types it: a real Slurm of two nodes, real Open MPI and torchrun, and what a run is afterwards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from messages import check_text
from small_run import (
    PLAIN,
    ROOT,
    UNTIL_STOPPED,
    Trainer,
    assert_same_end,
    events,
    kinds,
    last_event,
    step_reached,
    told,
    wait_until,
)

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("clock")]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory) -> Iterator[dict[str, str]]:
    """A running Slurm of two nodes; -> the variables that lead to it. Its nodes' names are known to no name server."""
    missing = [program for program in ("srun", "slurmd", "slurmctld", "munged") if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"a small Slurm needs root and Debian's slurmd, slurmctld, slurm-client, munge; not: {missing}")
    script, folder = str(ROOT / "scripts" / "slurm_nodes.sh"), tmp_path_factory.mktemp("slurm")
    try:
        started = subprocess.run(
            [script, "start", str(folder), "2"], capture_output=True, text=True, timeout=90, check=False
        )
        assert started.returncode == 0, started.stderr
        yield {"SLURM_CONF": str(folder / "slurm.conf")}
    finally:
        subprocess.run([script, "stop", str(folder)], capture_output=True, timeout=60, check=False)


def launch(trainer: Trainer, run: Path, words: str, flags: str = UNTIL_STOPPED) -> list[str]:
    """The words of a launch of the small training."""
    return ["launch", *trainer.train(run, flags)[1:], *words.split()]


def test_ranks_on_both_slurm_nodes_find_the_host_of_rank_0(slurm):
    program = """
import os, socket
from paceline.distributed.comm.launcher import read_launch
launch = read_launch(os.environ)
print(os.environ["SLURMD_NODENAME"], launch.rank, launch.nodes, socket.gethostbyname(launch.address))
"""
    done = subprocess.run(
        ["srun", "--nodes", "2", "--ntasks", "2", sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT), **slurm},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["node1 0 2 127.0.0.1", "node2 1 2 127.0.0.1"]


@pytest.mark.nightly("Slurm with live ranks; by day its script is read, and mpirun's ranks train on two hosts")
def test_a_launch_through_slurm_on_two_nodes_is_stopped_by_ctrl_c_and_goes_on(trainer, undisturbed, tmp_path, slurm):
    run = tmp_path / "run"
    command = launch(trainer, run, "--scheduler slurm --nodes 2")
    process = trainer.launching(PLAIN, command, **slurm)
    wait_until(lambda: step_reached(run) >= 4 or process.poll() is not None, "step 4", seconds=120)
    process.send_signal(signal.SIGINT)
    text = told(process, seconds=300)
    assert process.returncode == 75, text
    assert "#SBATCH --nodes=2" in text and "0: " in text
    assert (last_event(run)["event"], last_event(run)["status"]) == ("end", "interrupted")
    facts = json.loads((run / "run.json").read_text())
    assert (facts["launcher"], facts["world_size"], facts["plan"]["nodes"]) == ("slurm", 2, 2)
    trainer.finished(run, UNTIL_STOPPED, ranks=2)
    assert_same_end(run, undisturbed)
    assert len(kinds(run)) > len(events(run))  # there was a resume


@pytest.mark.nightly("Slurm or a starter with live ranks for half a minute")
@pytest.mark.parametrize("start", ["srun", "mpirun", "torchrun"])
def test_a_job_that_is_requeued_in_the_middle_ends_with_the_same_bytes(trainer, undisturbed, tmp_path, slurm, start):
    run = tmp_path / "run"
    # On a busy machine Slurm may kill the ranks before they have written the checkpoint of their end.
    command = launch(trainer, run, f"--scheduler slurm --nodes 2 --launcher {start}", UNTIL_STOPPED.replace("100", "2"))
    process = trainer.launching(PLAIN, command, **slurm)
    wait_until(lambda: step_reached(run) >= 2 or process.poll() is not None, "step 2", seconds=120)
    number = (run / "launch" / "job-number").read_text().strip()
    asked = subprocess.run(
        ["scontrol", "requeue", number], env={**os.environ, **slurm}, capture_output=True, text=True, check=False
    )
    assert asked.returncode == 0, asked.stderr
    text = told(process, seconds=300)
    assert process.returncode == 0, text
    # That it waits is told where the queue is asked meanwhile; a busy machine asks too late.
    assert "resumed from" in text
    assert_same_end(run, undisturbed)


@pytest.mark.nightly("Slurm or a starter with live ranks for half a minute")
def test_a_job_whose_walltime_is_up_ends_with_75_and_the_next_one_goes_on(trainer, tmp_path, slurm):
    """The two signs that a job has ended before its time: its exit code 75, and its being queued again by itself."""
    run, flags = tmp_path / "run", f"{UNTIL_STOPPED} --epochs 2000 --eval-every 5000 --log-every 20"
    words = "--scheduler slurm --nodes 2 --walltime 2m --slurm.grace-seconds 20 --slurm.no-requeue"
    process = trainer.launching(PLAIN, launch(trainer, run, words, flags), **slurm)
    text = told(process, seconds=300)
    assert process.returncode == 75, text
    check_text(text, "walltime", "same command")
    stopped_at = last_event(run)["step"]
    process = trainer.launching(PLAIN, launch(trainer, run, words.replace("no-requeue", "requeue"), flags), **slurm)
    wait_until(lambda: log(run).count("resumes from here.\n") == 2, "requeue", seconds=200)
    wait_until(lambda: step_reached(run) > stopped_at and log(run).count("resumed from") >= 2, "the next job", seconds=120)
    process.send_signal(signal.SIGINT)
    text = told(process, seconds=300)
    assert process.returncode == 75, text
    assert last_event(run)["step"] > stopped_at


def log(run: Path) -> str:
    """What all ranks of all starts printed."""
    return (run / "launch" / "output.txt").read_text(errors="replace")


@pytest.mark.nightly("Slurm or a starter with live ranks for half a minute")
@pytest.mark.parametrize("start", ["torchrun", "mpirun"])
def test_ctrl_c_reaches_local_ranks_as_a_wish_to_stop(trainer, undisturbed, tmp_path, start, need_program):
    if start == "mpirun":
        need_program("mpirun", "openmpi-bin")
    run = tmp_path / "run"
    command = launch(trainer, run, f"--launcher {start} --system.ranks-per-node 2")
    process = trainer.launching(PLAIN, command)
    wait_until(lambda: step_reached(run) >= 4 or process.poll() is not None, "step 4", seconds=200)
    process.send_signal(signal.SIGINT)
    text = told(process, seconds=300)
    assert process.returncode == 75, text
    assert last_event(run)["status"] == "interrupted"
    process = trainer.launching(PLAIN, command)
    text = told(process, seconds=300)
    assert process.returncode == 0, text
    assert_same_end(run, undisturbed)


@pytest.mark.nightly("Slurm or a starter with live ranks for half a minute")
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("start", ["torchrun", "mpirun"])
def test_local_ranks_train_to_the_end_alike_under_either_starter(trainer, tmp_path, start, ranks, need_program):
    if start == "mpirun":
        need_program("mpirun", "openmpi-bin")
    run, by_hand = tmp_path / "run", tmp_path / "by-hand"
    process = trainer.launching(PLAIN, launch(trainer, run, f"--launcher {start} --system.ranks-per-node {ranks}"))
    text = told(process, seconds=300)
    assert process.returncode == 0, text
    assert json.loads((run / "run.json").read_text())["world_size"] == ranks
    trainer.finished(by_hand, UNTIL_STOPPED, ranks=ranks)
    assert_same_end(run, by_hand)


@pytest.mark.nightly("Slurm or a starter with live ranks for half a minute")
@pytest.mark.parametrize("start", ["srun", "mpirun"])
def test_doctor_and_bench_comm_look_at_both_slurm_nodes(trainer, slurm, start, need_program, tmp_path, monkeypatch):
    if start == "mpirun":
        need_program("mpirun", "openmpi-bin")
    monkeypatch.chdir(tmp_path)
    words = ["--nodes", "2", "--scheduler", "slurm", "--launcher", start, "--system", "cpu"]
    found = trainer.launched(PLAIN, ["doctor", *words], **slurm)
    assert found.returncode == 0 and check_text(found.stdout, "2 nodes", "healthy"), found.stdout
    short = ["--seconds", "0.01", "--max-message-mib", "0.2", "--output", str(tmp_path / "comm.json")]
    timed = trainer.launched(PLAIN, ["bench", "comm", *words, *short], **slurm)
    assert timed.returncode == 0, timed.stdout
    facts = json.loads((tmp_path / "comm.json").read_text())
    assert facts["nodes"] == facts["world_size"] == 2 and facts["sums_are_right"]
