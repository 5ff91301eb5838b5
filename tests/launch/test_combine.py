"""Which of the three axes go together, and the commands that they make: those of the published systems word by word."""

from __future__ import annotations

import itertools
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from messages import raises

from paceline._utils.errors import PacelineError
from paceline.config.system import System
from paceline.distributed.device.systems import SYSTEMS
from paceline.launch.containers.engines import CONTAINERS
from paceline.launch.job import BatchOptions, EnvVariable, LaunchJob
from paceline.launch.runner import SCHEDULERS, explain_conflict, make_command, make_files, write_files
from paceline.launch.starters import STARTERS

WORDS = ("train", "ssd-demo", "--output-dir", "/runs/a b")
# (through, start) -> containers that go with them; on one node.
THERE = {
    ("local", "torchrun"): {"none", "docker", "apptainer"},
    ("local", "mpirun"): {"none", "docker", "apptainer"},
    ("local", "srun"): set(),
    ("hostfile", "torchrun"): {"none", "docker", "apptainer"},
    ("hostfile", "mpirun"): {"none", "apptainer"},
    ("hostfile", "srun"): set(),
    ("slurm", "torchrun"): {"none", "docker", "pyxis", "apptainer"},
    ("slurm", "srun"): {"none", "pyxis", "apptainer"},
    ("slurm", "mpirun"): {"none", "apptainer"},
}


def job(**changes) -> LaunchJob:
    plain = LaunchJob(WORDS, Path("/runs/a b"), "ssd-demo", per_node=4, python=("/py",), workdir=Path("/work"))
    return replace(plain, **changes)


@pytest.mark.parametrize(
    ("through", "start", "container"),
    [
        *itertools.product(
            ("local", "hostfile", "slurm"), ("torchrun", "srun", "mpirun"), ("none", "docker", "pyxis", "apptainer")
        )
    ],
)
def test_each_combination_is_there_or_is_refused_with_another_way(through, start, container):
    why = explain_conflict(through, start, container, 1)
    assert (why == "") == (container in THERE[through, start]), why
    if why:
        assert "--" in why and why.endswith(".")


def test_several_nodes_are_no_matter_of_this_machine_alone():
    assert "--scheduler slurm" in explain_conflict("local", "torchrun", "none", 2)
    with pytest.raises(PacelineError, match="--scheduler local --launcher torchrun --container-runtime none: "):
        from paceline.launch.runner import check_combination

        check_combination(job(nodes=2))


def test_ranks_of_one_node_under_torchrun():
    assert make_command(job()) == (
        "/py", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "-m", "paceline", *WORDS
    )  # fmt: skip
    assert make_command(job(port=29511))[3:7] == ("--master-addr", "127.0.0.1", "--master-port", "29511")


def test_ranks_of_many_nodes_under_srun():
    assert make_command(job(through="slurm", start="srun", nodes=448, per_node=8)) == (
        "srun", "--nodes", "448", "--ntasks", "3584", "--ntasks-per-node", "8", "--export=ALL", "--label",
        "--cpu-bind=none", "--kill-on-bad-exit=0", "/py", "-m", "paceline", *WORDS,
    )  # fmt: skip


def test_mpirun_forwards_what_ranks_need_and_nothing_else(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    asked = job(start="mpirun", per_node=8, environ=(EnvVariable("FI_PROVIDER", "efa", "fabric"),))
    command = make_command(asked)
    assert command[:3] == ("mpirun", "--host", "localhost:8")
    forwarded = {command[at + 1] for at, word in enumerate(command) if word == "-x"}
    assert forwarded == {"FI_PROVIDER", "PACELINE_EXIT_CODE_FILE", "PYTHONUNBUFFERED", "TERM"}
    assert command[-len(WORDS) - 3 :] == ("/py", "-m", "paceline", *WORDS)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert make_command(asked)[1] == "--allow-run-as-root"


@pytest.mark.parametrize(
    ("system", "words"),
    [
        # Published: 8 ranks on two sockets of 28 cores, mpirun --bind-to core --map-by socket:PE=7 (Gaudi).
        (
            System("hpu", ranks_per_node=8, sockets=2, cores_per_socket=28, cpu_bind="exclusive"),
            "ppr:4:socket:PE=7 --bind-to core",
        ),
        (
            System("cpu", ranks_per_node=3, sockets=2, cores_per_socket=8, cpu_bind="no-smt"),
            "ppr:3:node:PE=4 --bind-to core",
        ),
        # Published: -bind-to none -map-by slot, and a script that binds each rank near its GPU (24 p3dn).
        (
            System("cuda", ranks_per_node=8, sockets=2, cores_per_socket=24, cpu_bind="exclusive"),
            "ppr:8:node --bind-to none",
        ),
        (System("hpu", ranks_per_node=8, sockets=2, cores_per_socket=28), "ppr:8:node --bind-to none"),
        (System("hpu", ranks_per_node=8, cpu_bind="exclusive"), "ppr:8:node --bind-to none"),  # nobody knows its cores
    ],
)
def test_mpirun_is_told_the_cores_of_a_rank_that_were_computed(system, words):
    asked = job(through="slurm", start="mpirun", nodes=2, per_node=system.ranks_per_node, system=system)
    assert f"--map-by {words} --tag-output" in " ".join(make_command(asked))


@pytest.mark.parametrize("start", ["srun", "mpirun", "torchrun"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_an_sbatch_script_says_all_that_was_asked_and_is_one_that_bash_reads(tmp_path, start, nodes):
    asked = job(
        through="slurm",
        start=start,
        nodes=nodes,
        folder=tmp_path / "a run",
        walltime_minutes=90,
        between="echo 3 > /proc/sys/vm/drop_caches",
        environ=(EnvVariable("NCCL_DEBUG", "WARN it's", "what NCCL says"),),
        batch=BatchOptions(partition="big", account="me", qos="high", gres="gpu:4", reservation="mine",
            constraint="h100", grace_seconds=60, extra=("--comment=two words",)),
    )  # fmt: skip
    (file,) = make_files(asked)
    (path,) = write_files(asked, (file,))
    assert subprocess.run(["bash", "-n", str(path)], capture_output=True, check=False).stderr == b""
    asked_of_slurm = [line for line in file.text.splitlines() if line.startswith("#SBATCH ")]
    assert asked_of_slurm == [
        "#SBATCH --job-name=ssd-demo",
        f"#SBATCH --nodes={nodes}",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --chdir=/work",
        f"#SBATCH '--output={tmp_path}/a run/launch/output.txt'",
        "#SBATCH --open-mode=append",
        "#SBATCH --time=90",
        "#SBATCH --signal=B:USR1@60",
        "#SBATCH --requeue",
        "#SBATCH --exclusive",
        "#SBATCH --partition=big",
        "#SBATCH --account=me",
        "#SBATCH --qos=high",
        "#SBATCH --gres=gpu:4",
        "#SBATCH --reservation=mine",
        "#SBATCH --constraint=h100",
        "#SBATCH '--comment=two words'",
    ]
    exported = [line for line in file.text.splitlines() if line.startswith("export ")]
    assert exported and all("  # " in line for line in exported)
    assert "export NCCL_DEBUG='WARN it'\"'\"'s'  # what NCCL says" in exported
    assert ("PET_NODE_RANK" in file.text) == (start == "torchrun")
    assert ("PET_MASTER_ADDR" in file.text) == (start == "torchrun" and nodes > 1)


def test_every_entry_of_the_tables_is_known_to_the_refusals():
    assert {through for through, _ in THERE} >= set(SCHEDULERS)
    assert {start for _, start in THERE} == set(STARTERS)
    assert set().union(*THERE.values()) >= set(CONTAINERS)


def test_files_that_cannot_be_written_are_one_line(tmp_path):
    (tmp_path / "in-the-way").write_text("")
    with raises(PacelineError, "in-the-way/launch", "Not a directory"):
        write_files(job(folder=tmp_path / "in-the-way"), make_files(job(folder=tmp_path / "in-the-way")))


def test_ranks_of_a_cpu_share_its_cores():
    from paceline.launch.config import choose_threads_per_rank

    assert choose_threads_per_rank(System(ranks_per_node=8, sockets=2, cores_per_socket=28), {}, local=False) == 7
    assert choose_threads_per_rank(System(ranks_per_node=8), {}, local=False) == 0
    assert choose_threads_per_rank(System(ranks_per_node=8), {"OMP_NUM_THREADS": "3"}, local=False) == 3
    assert choose_threads_per_rank(System(ranks_per_node=4096), {}, local=True) == 1
    # The system's own number, as the ranks take it (paceline/distributed/device/setup.py): before the shell's and before the cores.
    assert choose_threads_per_rank(SYSTEMS["p3dn"](), {}, local=False) == 2
    assert choose_threads_per_rank(SYSTEMS["dgx-h100"](), {"OMP_NUM_THREADS": "7"}, local=False) == 1


@pytest.mark.parametrize("through", ["local", "slurm", "hostfile"])
def test_a_ranks_share_of_the_cores_stands_beside_every_mpirun_line(tmp_path, through):
    (tmp_path / "hosts").write_text("node1 slots=8\n")
    # Published: 7 for 8 ranks on two sockets of 28 cores (Gaudi).
    system = System("cuda", ranks_per_node=8, sockets=2, cores_per_socket=28)
    asked = job(through=through, start="mpirun", per_node=8, system=system, hostfile=tmp_path / "hosts")
    for one, share in ((asked, True), (replace(asked, system=replace(system, sockets=0)), False)):
        lines = make_files(one)[0].text.splitlines()
        before = lines[next(at for at, line in enumerate(lines) if line.removeprefix("exec ").startswith("mpirun")) - 1]
        assert before.startswith("# 8 ranks on 2 sockets with 28 cores each: ") == share
