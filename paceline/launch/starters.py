"""Who starts ranks, by name.

torchrun  one on each node, which starts that node's ranks and serves the store in which they find each other
srun      Slurm starts every rank itself, and gives each its place
mpirun    Open MPI starts every rank, over Slurm's daemons, over ssh (a hostfile), or on this machine
"""

from __future__ import annotations

import os
from signal import SIGTERM

from paceline._utils.platform import SIGUSR1
from paceline.distributed.comm.launcher import SECRET_VARIABLE
from paceline.distributed.device.topology import Topology, count_processing_elements, read_topology, topology_from_sheet
from paceline.launch.containers.engines import CONTAINERS
from paceline.launch.job import LaunchJob, ProcessStarter, Words, make_environment, require_programs


def _torchrun(job: LaunchJob, program: Words) -> Words:
    """One node's ranks. On several nodes torchrun reads NODE_VARIABLES; on one it finds a free port by itself.

    `program` starts with the interpreter, in whose place torchrun itself stands: it starts ranks with the one it runs in.
    """
    where: Words = ()
    if job.nodes == 1:
        where = ("--master-addr", "127.0.0.1", "--master-port", str(job.port)) if job.port else ("--standalone",)
    ranks = ("--nproc-per-node", str(job.per_node))
    return (*job.python, "-m", "torch.distributed.run", *where, *ranks, *program[len(job.python) :])


def _srun(job: LaunchJob, program: Words) -> Words:
    """All ranks of all nodes; variables travel with --export=ALL, which is srun's default and written all the same.

    --cpu-bind=none: each rank binds itself (--system.cpu-bind), and Slurm's one core a task would leave it no choice.
    --kill-on-bad-exit=0: ranks end each other by name, and one that has saved (75) must not cut off rank 0's last words.
    """
    ranks = ("--nodes", str(job.nodes), "--ntasks", str(job.ranks), "--ntasks-per-node", str(job.per_node))
    words = ("--export=ALL", "--label", "--cpu-bind=none", "--kill-on-bad-exit=0")
    return ("srun", *ranks, *words, *CONTAINERS[job.container].srun(job), *program)


def _mpirun(job: LaunchJob, program: Words) -> Words:
    """All ranks of all nodes, each line of output with its rank, and only the variables that ranks need."""
    hosts: Words = ()
    if job.through == "hostfile":
        hosts = ("--hostfile", str(job.launch_folder / "hostfile"))
    elif job.through == "local":
        hosts = ("--host", f"localhost:{job.per_node}")
    forwarded = [word for name in list_forwarded_names(job) for word in ("-x", name)]
    ranks = ("-np", str(job.ranks), *_binding(job), "--tag-output")
    root: Words = ("--allow-run-as-root",) if os.geteuid() == 0 else ()  # mpirun refuses it otherwise
    return ("mpirun", *root, *hosts, *ranks, *forwarded, *program)


def _binding(job: LaunchJob) -> Words:
    """mpirun's words for where ranks go (the first node's first, as many as it has) and which cores they may use.

    Ranks of one device each know best which cores are near it, and bind themselves (--system.cpu-bind); so do those that share. Only
    ranks with cores of their own and no adapter that could be near are bound by mpirun too: PE whole cores each, counted over.
    """
    system = job.system
    topology = Topology(())
    if system.device != "cuda" and system.cpu_bind in ("exclusive", "no-smt"):
        if job.through == "local":
            topology = read_topology()
        elif system.sockets and system.cores_per_socket:
            topology = topology_from_sheet(system.sockets, system.cores_per_socket)
    if not topology.cores:
        return ("--map-by", f"ppr:{job.per_node}:node", "--bind-to", "none")
    sockets = len({core.socket for core in topology.cores})
    location = f"{job.per_node // sockets}:socket" if job.per_node % sockets == 0 else f"{job.per_node}:node"
    return ("--map-by", f"ppr:{location}:PE={count_processing_elements(topology, job.per_node)}", "--bind-to", "core")


def _mpirun_notes(job: LaunchJob) -> str:
    """A comment line where sockets and cores are known: whole cores a rank, as mpirun's PE counts them."""
    system = job.system
    if not (system.sockets and system.cores_per_socket):
        return ""
    each = count_processing_elements(topology_from_sheet(system.sockets, system.cores_per_socket), job.per_node)
    bound = "" if "core" in _binding(job) else "; mpirun does not bind, ranks bind themselves (--system.cpu-bind)"
    return (
        f"# {job.per_node} ranks on {system.sockets} sockets with {system.cores_per_socket} cores each: the share of a rank is "
        f"--map-by socket:PE={each}{bound}\n"
    )


def list_forwarded_names(job: LaunchJob) -> tuple[str, ...]:
    """Names of the variables that mpirun hands to ranks, on other hosts too. The rest of the environment stays behind."""
    # By name alone: its value stands in no file.
    secret = (SECRET_VARIABLE,) if os.environ.get(SECRET_VARIABLE) else ()
    names = [variable.name for variable in make_environment(job)]
    if job.through == "hostfile" and "MASTER_ADDR" not in names:  # run.sh sets it
        names.append("MASTER_ADDR")
    return (*names, *secret)


_no_mpirun = require_programs(
    "--launcher mpirun: mpirun not found on this machine. Install Open MPI (Debian: openmpi-bin), or use --launcher torchrun.",
    "mpirun",
    here=lambda job: job.through != "slurm" and job.container != "docker",
)
STARTERS: dict[str, ProcessStarter] = {
    "torchrun": ProcessStarter(_torchrun, "node", SIGTERM),
    "srun": ProcessStarter(_srun, "job", SIGUSR1),
    "mpirun": ProcessStarter(_mpirun, "job", SIGUSR1, notes=_mpirun_notes, missing=_no_mpirun),
}
