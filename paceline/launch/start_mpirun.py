"""mpirun: Open MPI starts every rank, over Slurm's daemons, over ssh (a hostfile), or on this machine."""

from __future__ import annotations

import os
import shutil
from signal import SIGUSR1

from paceline.launch.axes import Starter
from paceline.launch.chosen import hostfile
from paceline.launch.job import Job, Words
from paceline.launch.shell import environment
from paceline.machine.placement import processing_elements
from paceline.machine.topology import Topology, described, read_topology

SECRET = "PACELINE_SECRET"  # as ranks/secret.py reads it, which loads torch


def command(job: Job, program: Words) -> Words:
    """All ranks of all nodes, each line of output with its rank, and only the variables that ranks need."""
    hosts: Words = ()
    if job.preflight and job.through != "local":
        hosts = ("--hostfile", str(hostfile(job)))
    elif job.through == "hostfile":
        hosts = ("--hostfile", str(job.launch_folder / "hostfile"))
    elif job.through == "local":
        hosts = ("--host", f"localhost:{job.per_node}")
    forwarded = [word for name in forwarded_names(job) for word in ("-x", name)]
    ranks = ("-np", str(job.ranks), *binding(job), "--tag-output")
    root: Words = ("--allow-run-as-root",) if os.geteuid() == 0 else ()  # mpirun refuses it otherwise
    return ("mpirun", *root, *hosts, *ranks, *forwarded, *program)


def binding(job: Job) -> Words:
    """Where ranks go: the first node's first, as many as it has; and which cores they may use.

    Ranks of one device each know best which cores are near it, and bind themselves (--system.bind); so do those that share. Only
    ranks with cores of their own and no adapter that could be near are bound by mpirun too: PE whole cores each, counted over.
    """
    system = job.system
    if (
        system.accelerator == "cuda"
        or system.bind not in ("exclusive", "no-smt")
        or not (cores := topology_of(job)).cores
    ):
        return ("--map-by", f"ppr:{job.per_node}:node", "--bind-to", "none")
    sockets = len({core.socket for core in cores.cores})
    place = f"{job.per_node // sockets}:socket" if job.per_node % sockets == 0 else f"{job.per_node}:node"
    return ("--map-by", f"ppr:{place}:PE={processing_elements(cores, job.per_node)}", "--bind-to", "core")


def notes(job: Job) -> str:
    """Where the system's sockets and cores are known: whole cores a rank, as mpirun's PE counts them. A comment line."""
    system = job.system
    if not (system.sockets and system.cores_per_socket):
        return ""
    each = processing_elements(described(system.sockets, system.cores_per_socket), job.per_node)
    bound = "" if "core" in binding(job) else "; mpirun binds nothing here, ranks bind themselves (--system.bind)"
    return (
        f"# {job.per_node} ranks on {system.sockets} sockets of {system.cores_per_socket} cores: --map-by socket:PE={each} is "
        f"a rank's share{bound}\n"
    )


def topology_of(job: Job) -> Topology:
    """The cores of a node: this machine's where it is the node, else as the system says; none where it says nothing."""
    if job.through == "local":
        return read_topology()
    sockets, each = job.system.sockets, job.system.cores_per_socket
    return described(sockets, each) if sockets and each else Topology(())


def forwarded_names(job: Job) -> tuple[str, ...]:
    """Names of the variables that mpirun hands to ranks, on other hosts too. The rest of the environment stays behind."""
    # By name alone: its value stands in no file.
    secret = (SECRET,) if os.environ.get(SECRET) else ()
    names = [variable.name for variable in environment(job)]
    if job.through == "hostfile" and "MASTER_ADDR" not in names:  # run.sh sets it
        names.append("MASTER_ADDR")
    return (*names, *secret)


def missing(job: Job) -> str:
    """mpirun, where this machine would run it."""
    if job.through == "slurm" or job.container == "docker" or shutil.which("mpirun") is not None:
        return ""
    return (
        "--start mpirun: there is no mpirun on this machine. Install Open MPI (Debian: openmpi-bin), or use "
        "--start torchrun."
    )


MPIRUN = Starter(command, "job", SIGUSR1, check=lambda job: None, notes=notes, missing=missing)
