"""torchrun: one on each node, which starts that node's ranks and serves the store in which they find each other."""

from __future__ import annotations

from signal import SIGTERM

from paceline.launch.axes import Starter
from paceline.launch.job import Job, Words


def command(job: Job, program: Words) -> Words:
    """One node's ranks. On several nodes torchrun reads NODE_VARIABLES; on one it finds a free port by itself.

    `program` starts with the interpreter, in whose place torchrun itself stands: it starts ranks with the one it runs in.
    """
    where: Words = ()
    if job.nodes == 1:
        where = ("--master-addr", "127.0.0.1", "--master-port", str(job.port)) if job.port else ("--standalone",)
    ranks = ("--nproc-per-node", str(job.per_node))
    words = program[len(job.python) :]
    return (*job.python, "-m", "torch.distributed.run", *where, *ranks, *words)


def check(job: Job) -> None:
    """torchrun comes with torch: there is nothing to lack."""


TORCHRUN = Starter(command, "node", SIGTERM, check)
