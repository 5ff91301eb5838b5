"""How the ranks of a job find each other: one TCP store at rank 0, then a roll call that names who is missing.

Rank 0 listens at the Launch's address and port; where all ranks are on its host, at the loopback alone. The others
connect until the store there has this job's greeting, signed by rank 0, so a foreign store is noticed. Under torchrun
the agent already serves the store; every rank is its client.
"""

# torch documents TCPStore, PrefixStore and Store as public, but does not re-export them in a way checkers accept.
# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from paceline._utils.errors import RankError
from paceline._utils.platform import allow_open_files
from paceline._utils.text import escape_line
from paceline.distributed.comm.interfaces import describe_interfaces, is_address_of_this_host
from paceline.distributed.comm.launcher import THIS_HOST, Launch
from paceline.distributed.comm.messages import (
    GREETING,
    HOW_TO_SET,
    NOTHING,
    ForeignPeer,
    Handshake,
    Messages,
    SecretMismatch,
    offer_token,
    read_secret,
    verify_handshake,
)

POLL_SECONDS = 0.1
# How long a store may take to show its job's greeting before it is taken for a stranger's.
GREETING_SECONDS = 3.0
# So often in a row another secret must greet before nobody waits for it to change: rank 0 greets anew all the while, so no
# stranger's greeting lasts, and the store of a start that has just ended is gone by then.
LOOKS_AT_ANOTHER_SECRET = 2
# Two to the store, and some for gloo: how many files rank 0 may have to hold open.
CONNECTIONS_PER_RANK = 8
# One request to the store; longer silence means that its host is gone.
REQUEST_SECONDS = 300
# How long rank 0 lingers for the others to read which ranks are missing: the store ends with it.
READ_SECONDS = 5.0


PTY = " SLURM_PTY_PORT is set. In a shell of `srun --pty`, start the ranks with `srun --overlap`."


@dataclass(frozen=True)
class Rendezvous:
    """What the roll call leaves behind."""

    messages: Messages  # this rank's signed messages, over its own connection
    address: str  # host:port that was met at
    port: int
    host: str
    hosts: tuple[str, ...]  # on rank 0: every rank's host name, by rank; empty on the others

    def second_connection(self, job: str) -> Messages:
        """The same messages over another connection, so that a thread's requests never wait behind the main thread's."""
        return self.messages.over(dist.PrefixStore(_prefix(job), _client(self.host, self.port)))


def rendezvous(launch: Launch, *, timeout_seconds: float, secret_folder: Path | None = None) -> Rendezvous:
    """Find the other ranks; returns once all are there.

    secret_folder  where rank 0 may leave a secret for other hosts (see paceline/distributed/comm/messages.py)
    raise RankError   after `timeout_seconds`, on every rank; rank 0's names the ranks that never arrived
    """
    deadline = time.monotonic() + timeout_seconds
    read_secret(os.environ)  # one that cannot be used is refused at once, on every rank
    try:
        if launch.rank == 0:
            client = _client_within(timeout_seconds, launch) if launch.agent_store else _serve(launch)
            store = dist.PrefixStore(_prefix(launch.job), client)
            with offer_token(launch, secret_folder, os.environ) as (secret, greeting):
                messages = Messages(store, greeting.key(secret), launch.rank)
                hosts = _call_the_roll(messages, launch, (secret, greeting), timeout_seconds, deadline)
        else:
            messages = _connect(launch, timeout_seconds)
            hosts = ()
            _answer_the_roll(messages, launch, deadline + timeout_seconds)
    except (OSError, dist.DistError) as problem:
        raise RankError(
            f"rank {launch.rank} (of {launch.world}) on {socket.gethostname()}: the store at {launch.address}:{launch.port} "
            f"closed the connection before all ranks had connected ({_first_line(problem)})."
        ) from None
    return Rendezvous(messages, f"{launch.address}:{launch.port}", launch.port, _host_of_store(launch), hosts)


def _client(host: str, port: int) -> dist.TCPStore:
    timeout = timedelta(seconds=REQUEST_SECONDS)
    return dist.TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)


def _prefix(job: str) -> str:
    return f"paceline/{job}"


def _all_here(launch: Launch) -> bool:
    """Whether all ranks are on this host, so that nobody else needs to reach the store."""
    return launch.nodes == 1 and is_address_of_this_host(launch.address)


def _host_of_store(launch: Launch) -> str:
    return THIS_HOST if not launch.agent_store and (launch.rank == 0 or _all_here(launch)) else launch.address


def _first_line(problem: BaseException) -> str:
    return escape_line((str(problem) or type(problem).__name__).splitlines()[0])


def _serve(launch: Launch) -> dist.TCPStore:
    """Rank 0 opens the store."""
    # mpirun names its own host, which need not be rank 0's; the others would wait there in vain.
    if launch.kind == "openmpi" and launch.nodes > 1 and not is_address_of_this_host(launch.address):
        raise RankError(
            f"rank 0 runs on {socket.gethostname()}, but the other ranks would connect to {launch.address}.\n"
            f"Set the address of rank 0:  mpirun -x MASTER_ADDR=... ...   Interfaces: {describe_interfaces()}"
        )
    # Each rank holds two connections, and a process may have 1024 by default.
    allow_open_files(CONNECTIONS_PER_RANK * launch.world)
    try:
        listener = socket.create_server(
            (THIS_HOST if _all_here(launch) else "", launch.port), family=socket.AF_INET, backlog=4096
        )
    except OSError as reason:
        raise RankError(
            f"rank 0 failed to listen on port {launch.port}: {reason}.\n"
            "Another program uses the port. Set MASTER_PORT to a free port, the same for all ranks."
        ) from None
    return dist.TCPStore(
        THIS_HOST,
        launch.port,
        is_master=True,
        timeout=timedelta(seconds=REQUEST_SECONDS),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def _connect(launch: Launch, timeout_seconds: float) -> Messages:
    """Find rank 0's greeting, until `timeout_seconds` have passed."""
    deadline = time.monotonic() + timeout_seconds
    why: str | ForeignPeer = ""
    others = 0
    while time.monotonic() < deadline:
        result = _greeted(launch, deadline)
        if isinstance(result, Messages):
            return result
        others = others + 1 if isinstance(result, SecretMismatch) else 0
        if others == LOOKS_AT_ANOTHER_SECRET:
            raise RankError(
                f"rank {launch.rank} (of {launch.world}) on {socket.gethostname()} reached rank 0 at "
                f"{launch.address}:{launch.port}, but {result}.\n{HOW_TO_SET}."
            )
        # That another job's store is there explains more than that rank 0 has given up meanwhile.
        why = why if isinstance(why, ForeignPeer) and not isinstance(result, ForeignPeer) else result
        time.sleep(POLL_SECONDS)
    raise RankError(
        f"rank {launch.rank} (of {launch.world}) on {socket.gethostname()} did not reach rank 0 "
        f"within {timeout_seconds:g} s: {launch.address}:{launch.port} ({why}).\n"
        f"Interfaces: {describe_interfaces()}. Check that rank 0 is running and that this host can reach the address."
    )


def _greeted(launch: Launch, deadline: float) -> Messages | ForeignPeer | str:
    """Messages over a connection to our job's store, or why there is none."""
    left = max(0.1, deadline - time.monotonic())
    why: ForeignPeer | str = "no handshake from rank 0 of this job"
    try:
        # A bare socket first: TCPStore's own attempts print a warning for each refusal.
        socket.create_connection((_host_of_store(launch), launch.port), timeout=min(5.0, left)).close()
        store = dist.PrefixStore(_prefix(launch.job), _client_within(min(GREETING_SECONDS, left), launch))
        give_up = time.monotonic() + min(GREETING_SECONDS, left)
        while time.monotonic() < give_up:
            raw = store.compare_set(GREETING, NOTHING, NOTHING)
            try:
                if raw != NOTHING.encode():
                    return Messages(store, verify_handshake(raw, launch.job, os.environ), launch.rank)
            except ForeignPeer as problem:
                why = problem
            time.sleep(POLL_SECONDS)
        return why
    except (OSError, RuntimeError) as error:  # torch's DistError is a RuntimeError
        return why if isinstance(why, ForeignPeer) else _first_line(error)


def _client_within(seconds: float, launch: Launch) -> dist.TCPStore:
    """A TCPStore client, or TimeoutError: torch waits for ever on a listener that accepts and never answers."""
    made: list[dist.TCPStore | Exception] = []

    def connect() -> None:
        try:
            made.append(_client(_host_of_store(launch), launch.port))
        except Exception as error:  # handed to the caller below
            made.append(error)

    thread = threading.Thread(target=connect, name="paceline-connect", daemon=True)
    thread.start()
    thread.join(seconds)
    if not made:
        raise TimeoutError("the service at this address is not a torch store")
    if isinstance(made[0], Exception):
        raise made[0]
    return made[0]


def _sign_in(messages: Messages, launch: Launch) -> None:
    """Leave in the store that this rank is here, and on which host."""
    messages.set(f"beat/{launch.rank}", "0")  # what paceline.distributed.comm.failure then counts up
    mine = json.dumps([socket.gethostname(), secrets.token_hex(8)])
    if messages.claim(f"here/{launch.rank}", mine) != mine:
        raise RankError(
            f"another process is already rank {launch.rank} of job {launch.job} at {launch.address}:{launch.port}.\n"
            "Two jobs use the same port, or one job was started twice. Set MASTER_PORT to another free port for this job."
        )


def _call_the_roll(
    messages: Messages, launch: Launch, offer: tuple[bytes, Handshake], timeout_seconds: float, deadline: float
) -> tuple[str, ...]:
    """Rank 0's part: greet, wait for all, leave for all whether a rank is missing. -> host names by rank.

    offer     the secret, and the greeting that names where the others find it
    deadline  time.monotonic() at which whoever has not come is missing
    raise RankError   naming the ranks that are missing
    """
    secret, greeting = offer
    opened = Messages(messages.store, secret, launch.rank)
    opened.set(GREETING, greeting.text())
    _sign_in(messages, launch)
    names = [f"here/{rank}" for rank in range(launch.world)]
    while True:
        opened.set(GREETING, greeting.text())  # again, should a stranger have written over it
        # All at once, and one by one only when it is too late: there may be thousands.
        late = time.monotonic() > deadline
        signed = messages.get_all(names) if late or messages.are_there(names) else [None]
        hosts = [json.loads(text)[0] for text in signed if text is not None]
        if len(hosts) == launch.world:
            messages.set("roll call", "all")
            return tuple(hosts)
        if late:
            break
        time.sleep(POLL_SECONDS)
    text = _missing(signed, launch, timeout_seconds)
    messages.set("roll call", text)
    readers = [f"read/{rank}" for rank, result in enumerate(signed) if result is not None and rank > 0]
    give_up = time.monotonic() + READ_SECONDS
    while readers and not messages.are_there(readers) and time.monotonic() < give_up:
        time.sleep(POLL_SECONDS)
    raise RankError(text)


def _answer_the_roll(messages: Messages, launch: Launch, deadline: float) -> None:
    """Every other rank's part.

    deadline  time.monotonic() at which rank 0 has kept silent for too long
    raise RankError   a rank is missing; rank 0 never closed it; another process has this rank
    """
    _sign_in(messages, launch)
    try:
        # Rank 0 may have begun its own waiting later than this rank did.
        verdict = messages.wait("roll call", until=deadline, poll_seconds=POLL_SECONDS)
    except TimeoutError:
        raise RankError(
            f"rank {launch.rank} reached rank 0 at {launch.address}:{launch.port}, which did not complete the check-in of all ranks."
        ) from None
    if verdict != "all":
        messages.set(f"read/{launch.rank}", "1")
        raise RankError(f"rank {launch.rank} had connected, but {verdict}")


def _missing(signed: Sequence[str | None], launch: Launch, timeout_seconds: float) -> str:
    missing = [rank for rank, text in enumerate(signed) if text is None]
    present = [rank for rank, text in enumerate(signed) if text is not None]
    hosts = sorted({escape_line(json.loads(text)[0]) for text in signed if text is not None})
    return (
        f"{format_ranks(missing)} (of {launch.world}) did not connect within {timeout_seconds:g} s; "
        f"address {launch.address}:{launch.port}; connected: {format_ranks(present)} on {', '.join(hosts)}.\n"
        f"Interfaces of rank 0's host {socket.gethostname()}: {describe_interfaces()}. "
        "Check that the launcher started all ranks, and that they can reach this address (firewall, interface)."
        f"{PTY if 'SLURM_PTY_PORT' in os.environ else ''}"
    )


def format_ranks(ranks: list[int]) -> str:
    """[1, 3, 4, 5] -> 'ranks 1, 3-5'; [2] -> 'rank 2'."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return f"rank{'s' if len(ranks) != 1 else ''} {text or 'none'}"
