"""The environment variables of a job's ranks. No more than they need: the rest of this shell's environment stays here."""

from __future__ import annotations

import os
from collections.abc import Mapping

from paceline.config.system import System
from paceline.launch.job import Variable
from paceline.systems.detect import cpu_cores

# Variables of ours and of Python that a rank on another node must find as they are here.
CARRIED = {
    "PYTHONPATH": "where Python finds packages beside the installed ones",
    "PACELINE_CACHE": "paceline: where built-in data, downloads and weights are kept",
}


def variables_of(
    system: System, port: int, *, local: bool, environ: Mapping[str, str] = os.environ
) -> tuple[Variable, ...]:
    """What the job's ranks are given.

    port   where rank 0 listens; 0: nothing is said of it
    local  whether the ranks run on this machine, whose cores can be counted
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
    return tuple(found)


def compute_threads(system: System, environ: Mapping[str, str], *, local: bool) -> int:
    """The system's own number, which ranks obey before OMP_NUM_THREADS too; else that, where it is set; else the node's cores
    over its ranks; 0 where nobody knows the node's cores."""
    if system.intra_op_threads:
        return system.intra_op_threads
    if environ.get("OMP_NUM_THREADS", "").isdecimal():
        return int(environ["OMP_NUM_THREADS"])
    cores = system.sockets * system.cores_per_socket or (cpu_cores() if local else 0)
    return max(1, cores // system.per_node) if cores else 0
