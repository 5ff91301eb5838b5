"""What gloo needs around it: the interface towards rank 0, errors that name host and interface, and silence."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from paceline._utils.errors import RankError
from paceline._utils.text import escape_line
from paceline.distributed.comm.failure import is_secondary
from paceline.distributed.comm.interfaces import ANYWHERE, describe_interfaces, find_interface_towards
from paceline.distributed.comm.launcher import Launch

STDOUT = 1
PRINTS = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 11)


def choose_gloo_interface(launch: Launch) -> None:
    """Across hosts, gloo must use the interface that leads to rank 0.

    Left alone it takes the one that this host's name resolves to, which is the loopback on many a Debian machine.
    """
    if launch.nodes == 1 or os.environ.get("GLOO_SOCKET_IFNAME"):
        return
    name = find_interface_towards(launch.address)
    if name is None or name.startswith("lo"):
        name = find_interface_towards(ANYWHERE)
    if name is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name


@contextmanager
def explain_unreachable(launch: Launch) -> Iterator[None]:
    """The block joins this rank with ranks of other hosts: gloo connects all pairs, which met at rank 0's store alone.

    raise RankError   a broken connection inside: which interface was used, and which there are
    """
    try:
        yield
    except RuntimeError as problem:
        if launch.nodes == 1 or not is_secondary(problem):
            raise
        # "[enforce fail at .../socket.cc:142] rv != -1. -1 vs -1. connect: Network is unreachable"
        reason = escape_line(str(problem).partition("\n")[0].rsplit(" vs -1. ", 1)[-1])
        used = os.environ.get("GLOO_SOCKET_IFNAME")
        raise RankError(
            f"rank {launch.rank} (of {launch.world}) on {socket.gethostname()} reached the store at {launch.address}, but not the "
            f"other ranks over {f'network interface {used}' if used else 'the interface of its host name'} ({reason}).\n"
            f"Interfaces: {describe_interfaces()}. Set the one that reaches the other hosts:  --system.interface NAME"
        ) from None


@contextmanager
def suppress_gloo_output(backend: str, prints: bool = PRINTS) -> Iterator[None]:
    """Drop what is written to the process's stdout inside the block; what Python buffers meanwhile arrives later.

    In torch 2.9 and 2.10 gloo prints a line there for each group that it connects ("[Gloo] Rank 0 is connected to 1 peer ranks
    ..."), with no switch to turn it off (pytorch/gloo#462): between a command's own lines, and into its --json.

    backend  of the group that the block founds; another than gloo keeps what it prints (NCCL_DEBUG=INFO)
    prints   whether this torch's gloo prints; where it does not, nothing is done
    """
    if not prints or backend != "gloo":
        yield
        return
    try:
        kept = os.dup(STDOUT)
    except OSError:  # it is closed: nothing can arrive there
        yield
        return
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, STDOUT)
        os.close(nowhere)
        yield
    finally:
        os.dup2(kept, STDOUT)
        os.close(kept)
