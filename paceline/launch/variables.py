"""The environment variables of a job's ranks. No more than they need: the rest of this shell's environment stays here."""

from __future__ import annotations

import os
from collections.abc import Mapping

from paceline.config.printable import one_line
from paceline.config.system import System
from paceline.launch.job import Variable
from paceline.machine.detect import cpu_cores

# Variables of ours and of Python that a rank on another node must find as they are here.
CARRIED = {
    "PYTHONPATH": "where Python finds packages beside the installed ones",
    "PACELINE_CACHE": "paceline: where built-in data, downloads and weights are kept",
}
# What libraries of a network read: where the loader finds EFA's and InfiniBand's plugins, then libfabric, NCCL, UCX, Open MPI and
# PRRTE, rdma-core, Gaudi's HCCL and gloo. Slurm carries a shell's environment by itself; ssh and mpirun carry what is named.
NETWORK, NETWORK_PREFIXES = (
    "LD_LIBRARY_PATH",
    ("FI_", "NCCL_", "UCX_", "OMPI_MCA_", "PRTE_MCA_", "RDMAV_", "IBV_", "HCCL_", "GLOO_"),
)


def variables_of(
    system: System, port: int, *, local: bool, network: bool = False, environ: Mapping[str, str] = os.environ
) -> tuple[Variable, ...]:
    """What the job's ranks are given.

    port   where rank 0 listens; 0: nothing is said of it
    local  whether the ranks run on this machine, whose cores can be counted
    network  forward what a network's libraries read in this shell: nobody else does, and no image has its own
    """
    found = [Variable(name, environ[name], why) for name, why in CARRIED.items() if environ.get(name)]
    if not local and environ.get("MASTER_ADDR"):
        found.append(Variable("MASTER_ADDR", environ["MASTER_ADDR"], "where rank 0 is found, as this shell had it"))
    if threads := compute_threads(system, environ, local=local):
        # Each launcher has a default of its own, and the number of threads decides the bits of a sum.
        why = "--system.intra-op-threads" if system.intra_op_threads else "the same under every launcher"
        found.append(Variable("OMP_NUM_THREADS", str(threads), f"compute threads a rank, {why}"))
    if port:
        found.append(Variable("MASTER_PORT", str(port), "--port: where rank 0 listens"))
    for pair in system.env:
        name, _, value = pair.partition("=")
        found.append(Variable(name, environ.get(name, value), "--system.env"))
    if network:
        there = {variable.name for variable in found}
        why = "as in this shell: a network's libraries read it"
        found += [Variable(name, environ[name], why) for name in network_names(environ) if name not in there]
    return tuple(found)


def network_names(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Names of the variables set here that a network's libraries read; without those that do not stay on a line of a script, and
    without those that an mpirun around this process gave it."""
    own = "OMPI_COMM_WORLD_RANK" in environ
    return sorted(
        name
        for name, value in environ.items()
        if (name == NETWORK or name.startswith(NETWORK_PREFIXES))
        and name.isidentifier()
        and value
        and value == one_line(value)
        and not (own and name.startswith(("OMPI_MCA_", "PRTE_MCA_")))
    )


def compute_threads(system: System, environ: Mapping[str, str], *, local: bool) -> int:
    """The system's own number, which ranks obey before OMP_NUM_THREADS too; else that, where it is set; else the node's cores
    over its ranks; 0 where nobody knows the node's cores."""
    if system.intra_op_threads:
        return system.intra_op_threads
    if environ.get("OMP_NUM_THREADS", "").isdecimal():
        return int(environ["OMP_NUM_THREADS"])
    cores = system.sockets * system.cores_per_socket or (cpu_cores() if local else 0)
    return max(1, cores // system.per_node) if cores else 0
