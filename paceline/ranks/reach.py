"""Ranks that have met in the store and cannot reach each other directly: told by host and interface, not by a library's traceback.

The store is reached by rank 0's address; gloo then joins all pairs, over the interface that GLOO_SOCKET_IFNAME names.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.config.errors import RankError
from paceline.config.printable import one_line
from paceline.ranks.failure import is_echo
from paceline.ranks.interfaces import describe_interfaces
from paceline.ranks.launcher import Launch


@contextmanager
def reaching_each_other(launch: Launch) -> Iterator[None]:
    """The block joins this rank with ranks of other hosts.

    raise RankError   a broken connection inside: which interface was used, and which there are
    """
    try:
        yield
    except RuntimeError as problem:
        if launch.nodes == 1 or not is_echo(problem):
            raise
        # "[enforce fail at .../socket.cc:142] rv != -1. -1 vs -1. connect: Network is unreachable"
        reason = one_line(str(problem).partition("\n")[0].rsplit(" vs -1. ", 1)[-1])
        used = os.environ.get("GLOO_SOCKET_IFNAME")
        raise RankError(
            f"rank {launch.rank} (of {launch.world}) on {socket.gethostname()} met the others at {launch.address}, and does not "
            f"reach them over {f'network interface {used}' if used else 'the interface that its host name stands for'} ({reason}).\n"
            f"Interfaces here: {describe_interfaces()}. Name the one that leads to the other hosts:  --system.interface"
        ) from None
