"""Environment variables, as each launcher was seen to set them, -> Launch or a refusal."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from paceline._utils.errors import PacelineError
from paceline.distributed.comm import interfaces
from paceline.distributed.comm.launcher import (
    SINGLE,
    Launch,
    derive_port,
    explain_pty_shell,
    parse_first_host,
    parse_tasks_per_host,
    read_launch,
)


def torchrun(rank=3, world=16, local_rank=3, local_world=8, **more) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_world),
        "GROUP_RANK": str(rank // local_world),
        "GROUP_WORLD_SIZE": str(world // local_world),
        "MASTER_ADDR": "node-a",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "run7",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        **more,
    }


def srun(rank=9, world=16, local_rank=1, node=1, tasks="8(x2)", hosts="gpu[07-08]", **more) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(world),
        "SLURM_STEP_NUM_TASKS": str(world),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_NODEID": str(node),
        "SLURM_STEP_NODELIST": hosts,
        "SLURM_JOB_NODELIST": hosts,
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_TASKS_PER_NODE": tasks,
        "SLURM_JOB_ID": "4242",
        "SLURM_STEP_ID": "0",
        **more,
    }


def mpirun(rank=9, world=16, local_rank=1, local_world=8, **more) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(world),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_world),
        "OMPI_COMM_WORLD_NODE_RANK": str(local_rank),
        "PMIX_NAMESPACE": "1281163265",
        "PMIX_RANK": str(rank),
        "OMPI_MCA_orte_hnp_uri": "1281163264.0;tcp://10.1.2.3,192.168.0.3:49165;tcp6://[fd00::2]:38553",
        **more,
    }


def hydra(rank=1, world=2, local_rank=1, local_world=2, **more) -> dict[str, str]:
    return {
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(world),
        "MPI_LOCALRANKID": str(local_rank),
        "MPI_LOCALNRANKS": str(local_world),
        "PMI_FD": "7",
        **more,
    }


BATCH_SCRIPT = {  # what sbatch's own script sees: a rank, but no step
    "SLURM_JOB_ID": "4242",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "16",
    "SLURM_TASKS_PER_NODE": "8(x2)",
    "SLURM_JOB_NODELIST": "gpu[07-08]",
}
SLURM_PORT = derive_port("4242.0")
OMPI_PORT = derive_port("openmpi-1281163265")
SLURM = Launch(9, 16, "slurm", 1, 8, 1, 2, "gpu07", SLURM_PORT, "4242.0")
OMPI = Launch(9, 16, "openmpi", 1, 8, 1, 2, "10.1.2.3", OMPI_PORT, "openmpi-1281163265")
TORCH = Launch(3, 16, "torchrun", 3, 8, 0, 2, "node-a", 29500, "run7.0", True)

LEGAL = {
    "nothing": ({}, SINGLE),
    "an address alone is no launcher": ({"MASTER_ADDR": "x", "MASTER_PORT": "29500"}, SINGLE),
    "torchrun": (torchrun(), TORCH),
    "torchrun, restarted": (
        torchrun(TORCHELASTIC_RESTART_COUNT="2"),
        Launch(3, 16, "torchrun", 3, 8, 0, 2, "node-a", 29500, "run7.2", True),
    ),
    "torchrun's variables set by hand": (
        {k: v for k, v in torchrun().items() if not k.startswith(("TORCHELASTIC", "GROUP"))},
        Launch(3, 16, "torchrun", 3, 8, 0, 2, "node-a", 29500, "node-a:29500.0"),
    ),
    "srun": (srun(), SLURM),
    "srun, uneven hosts": (
        srun(rank=4, world=5, local_rank=0, node=2, tasks="2(x2),1", hosts="a,b[1-2]"),
        Launch(4, 5, "slurm", 0, 1, 2, 3, "a", SLURM_PORT, "4242.0"),
    ),
    "srun on one host": (
        srun(rank=1, world=2, local_rank=1, node=0, tasks="2", hosts="gpu07"),
        Launch(1, 2, "slurm", 1, 2, 0, 1, "127.0.0.1", SLURM_PORT, "4242.0"),
    ),
    "srun, address and port given": (
        srun(MASTER_ADDR="10.0.0.9", MASTER_PORT="12345"),
        Launch(9, 16, "slurm", 1, 8, 1, 2, "10.0.0.9", 12345, "4242.0"),
    ),
    "srun takes part of the job": (
        srun(rank=1, world=2, local_rank=0, node=1, tasks="1(x2)", SLURM_NTASKS="16", SLURM_TASKS_PER_NODE="8(x2)"),
        Launch(1, 2, "slurm", 0, 1, 1, 2, "gpu07", SLURM_PORT, "4242.0"),
    ),
    "srun without the step's task list": (
        {k: v for k, v in srun(SLURM_NTASKS_PER_NODE="8").items() if k != "SLURM_STEP_TASKS_PER_NODE"},
        SLURM,
    ),
    "sbatch's script": (BATCH_SCRIPT, SINGLE),
    "salloc's interactive step": (srun(rank=0, world=1, SLURM_STEP_ID=str(0xFFFFFFFA)), SINGLE),
    "mpirun": (mpirun(), OMPI),
    "mpirun on one host": (
        mpirun(rank=1, world=2, local_rank=1, local_world=2),
        Launch(1, 2, "openmpi", 1, 2, 0, 1, "127.0.0.1", OMPI_PORT, "openmpi-1281163265"),
    ),
    "mpirun, port given: it names no job, as another may have it too": (
        {
            name: value
            for name, value in mpirun(MASTER_PORT="29511", OMPI_MCA_ess_base_jobid="1281163265").items()
            if name != "PMIX_NAMESPACE"  # which newer ones have in its place
        },
        Launch(9, 16, "openmpi", 1, 8, 1, 2, "10.1.2.3", 29511, "openmpi-1281163265"),
    ),
    "mpirun, address given": (
        mpirun(MASTER_ADDR="ib-3"),
        Launch(9, 16, "openmpi", 1, 8, 1, 2, "ib-3", OMPI_PORT, "openmpi-1281163265"),
    ),
    "Open MPI 5 names mpirun's host in its namespace": (
        {k: v for k, v in mpirun(PMIX_NAMESPACE="prterun-my-node-3-811@1").items() if "hnp" not in k},
        Launch(9, 16, "openmpi", 1, 8, 1, 2, "my-node-3", derive_port(j := "openmpi-prterun-my-node-3-811@1"), j),
    ),
    "mpirun in sbatch's script": (BATCH_SCRIPT | mpirun(), OMPI),
    "mpirun starts its daemons through srun": (srun(rank=0, world=2, local_rank=0, tasks="1(x2)") | mpirun(), OMPI),
    "torchrun from one srun task a host": (srun(rank=0, world=2, node=0, local_rank=0, tasks="1(x2)") | torchrun(), TORCH),
    "torchrun in an interactive srun shell": (
        srun(rank=0, world=1, node=0, local_rank=0, tasks="1", hosts="gpu07") | torchrun(),
        TORCH,
    ),
    "a wrapper exports what srun says": (srun(RANK="9", WORLD_SIZE="16", LOCAL_RANK="1"), SLURM),
    "a wrapper exports the local rank alone": (srun(LOCAL_RANK="1"), SLURM),
    "ranks by hand inside an srun of one task": (
        srun(rank=0, world=1, node=0, local_rank=0, tasks="1", hosts="gpu07")
        | {k: v for k, v in torchrun().items() if not k.startswith("TORCHELASTIC")},
        Launch(3, 16, "torchrun", 3, 8, 0, 2, "node-a", 29500, "node-a:29500.0"),
    ),
    "srun --mpi=pmi2": (srun(PMI_RANK="9", PMI_SIZE="16", PMI_FD="11", PMI_JOBID="4242.0"), SLURM),
    "mpiexec of MPICH": (hydra(MASTER_PORT="29511"), Launch(1, 2, "pmi", 1, 2, 0, 1, "127.0.0.1", 29511, "pmi-29511")),
    "mpiexec of Cray on two hosts": (
        {
            "PMI_RANK": "5",
            "PMI_SIZE": "8",
            "PMI_LOCAL_RANK": "1",
            "PMI_LOCAL_SIZE": "4",
            "PALS_APID": "ab-cd",
            "MASTER_ADDR": "x1",
        },
        Launch(5, 8, "pmi", 1, 4, 1, 2, "x1", derive_port("pmi-ab-cd"), "pmi-ab-cd"),
    ),
}

REFUSED = {
    "RANK alone": ({"RANK": "0"}, ("RANK", "WORLD_SIZE not set")),
    "WORLD_SIZE alone": ({"WORLD_SIZE": "2"}, ("RANK not set",)),
    "LOCAL_RANK alone": ({"LOCAL_RANK": "0"}, ("RANK, WORLD_SIZE not set", "LOCAL_RANK is")),
    "no local ranks": (
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
        ("LOCAL_RANK, LOCAL_WORLD_SIZE not set",),
    ),
    "rank = world": (torchrun(rank=16), ("RANK and WORLD_SIZE", "16 of 16")),
    "negative rank": (mpirun(rank=-1), ("OMPI_COMM_WORLD_RANK", "-1")),
    "local rank too high": (torchrun(local_rank=8), ("local rank 8 of 8",)),
    "more local ranks than ranks": (mpirun(rank=0, world=2, local_world=8), ("local rank 1 of 8", "world 2")),
    "no number": (torchrun(RANK="three"), ("RANK='three'", "integer")),
    "port 0": (torchrun(MASTER_PORT="0"), ("MASTER_PORT=0",)),
    "port too high": (srun(MASTER_PORT="70000"), ("MASTER_PORT=70000",)),
    "srun's counts disagree": (srun(tasks="8(x3)"), ("SLURM_STEP_TASKS_PER_NODE=8(x3)", "SLURM_STEP_NUM_TASKS=16")),
    "srun's node does not exist": (srun(node=2), ("SLURM_NODEID=2",)),
    "srun's task list is no list": (srun(tasks="many"), ("SLURM_STEP_TASKS_PER_NODE='many'",)),
    "srun without its hosts": (
        {k: v for k, v in srun().items() if "NODELIST" not in k},
        ("SLURM_STEP_NODELIST, SLURM_JOB_NODELIST", "SLURM_PROCID"),
    ),
    "mpirun's size is missing": (
        {k: v for k, v in mpirun().items() if k != "OMPI_COMM_WORLD_SIZE"},
        ("OMPI_COMM_WORLD_SIZE not set",),
    ),
    "mpirun on several hosts, nobody says where": (
        {k: v for k, v in mpirun().items() if "hnp" not in k},
        ("mpirun -x MASTER_ADDR",),
    ),
    "old RANK inside mpirun": (mpirun(RANK="0", WORLD_SIZE="2"), ("RANK", "OMPI_COMM_WORLD_SIZE", "Unset")),
    "old world of one inside srun": (srun(RANK="0", WORLD_SIZE="1"), ("WORLD_SIZE", "SLURM_PROCID", "of 16")),
    "torchrun in each of srun's tasks": (srun() | torchrun(), ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "per host")),
    "mpirun in each of srun's tasks": (srun() | mpirun(world=8, rank=1), ("OMPI_COMM_WORLD_SIZE", "SLURM_PROCID")),
    "torchrun in each of mpirun's ranks": (mpirun() | torchrun(world=8), ("OMPI_COMM_WORLD_SIZE", "WORLD_SIZE")),
    "mpiexec without job or port": (hydra(), ("MASTER_PORT",)),
    "mpiexec on two hosts without address": (hydra(world=4, MASTER_PORT="29511"), ("MASTER_ADDR",)),
    "mpiexec without local ranks": ({"PMI_RANK": "0", "PMI_SIZE": "2"}, ("MPI_LOCALRANKID", "PMI_RANK")),
}


@pytest.mark.parametrize("case", LEGAL)
def test_one_launchers_variables_give_the_launch(case):
    environ, expected = LEGAL[case]
    assert read_launch(environ) == expected


@pytest.mark.parametrize("case", REFUSED)
def test_contradicting_variables_are_refused_by_name(case):
    environ, named = REFUSED[case]
    with pytest.raises(PacelineError) as error:
        read_launch(environ)
    for text in named:
        assert text in str(error.value)


@pytest.mark.parametrize("text, counts", [("2", [2]), ("2(x3),1", [2, 2, 2, 1]), ("4,4", [4, 4])])
def test_slurm_task_lists_are_spelled_out(text, counts):
    assert parse_tasks_per_host("X", text) == counts


@pytest.mark.parametrize(
    "nodelist, host",
    [("vm", "vm"), ("a,b", "a"), ("n[01-16,20]", "n01"), ("n[7,9-11],x", "n7"), ("rack[2-3]n[01-16]-ib", "rack2n01-ib")],
)
def test_the_first_host_of_a_slurm_list(nodelist, host):
    assert parse_first_host(nodelist) == host


@pytest.mark.parametrize("job", ["1.0", "4242.0", "openmpi-77", "pmi-x"])
def test_derived_ports_stay_below_the_ephemeral_range(job):
    assert 20_000 <= derive_port(job) <= 29_999


def test_a_free_port_is_free_and_no_outgoing_connection_gets_it(monkeypatch):
    spare = interfaces.find_free_port()
    with socket.socket() as other:
        other.bind(("", taken := interfaces.find_free_port()))
        ports = iter([taken, spare])
        monkeypatch.setattr(interfaces, "derive_port", lambda _: next(ports))
        assert interfaces.find_free_port() == spare
    assert 20_000 <= min(taken, spare) <= max(taken, spare) <= 29_999


def test_reading_the_launcher_imports_no_torch():
    code = "import sys, paceline.distributed.comm.launcher; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


PTY = {"SLURM_PTY_PORT": "40123"}


def pty(**more: str) -> dict[str, str]:
    return srun(rank=0, world=8, local_rank=0, node=0, tasks="8", hosts="gpu07", **PTY, **more)


def test_the_shell_of_srun_pty_is_one_process():
    assert read_launch(pty()) == SINGLE
    assert "srun --overlap --ntasks 8" in explain_pty_shell(pty(), 1)
    assert (
        explain_pty_shell(srun(), 1) == ""
        and explain_pty_shell(pty(), 8) == ""
        and explain_pty_shell({**pty(), "SLURM_NTASKS": "1"}, 1) == ""
    )
    # torchrun in it starts its own ranks.
    both = {**pty(), **torchrun(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")}
    assert read_launch(both).kind == "torchrun" and read_launch(both).world == 2


def test_the_ranks_of_an_srun_in_such_a_shell_are_ranks():
    """They inherit SLURM_PTY_PORT; other processes of their step run, or their number is not 0."""
    inner = {**pty(), "SLURM_STEP_ID": "1"}
    rank = {**inner, "SLURM_PROCID": "3", "SLURM_LOCALID": "3"}
    assert read_launch(rank).world == 8 and read_launch(rank).rank == 3
    program = [sys.executable, "-c", "print(flush=True); input()"]
    other = subprocess.Popen(program, env=rank, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None and other.stdout.readline()
        assert read_launch(inner).world == 8 and read_launch(inner).kind == "slurm"
        assert read_launch(pty()) == SINGLE  # another step's
    finally:
        other.communicate(b"\n")


def test_one_task_per_host_is_a_shell_only_at_a_terminal(monkeypatch):
    one = srun(rank=0, world=2, local_rank=0, node=0, tasks="1(x2)", hosts="gpu[07-08]", **PTY)
    for terminal, world in ((False, 2), (True, 1)):
        monkeypatch.setattr("os.isatty", lambda _, terminal=terminal: terminal)
        assert read_launch(one).world == world
