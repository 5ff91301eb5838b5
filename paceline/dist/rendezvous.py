"""How the ranks of a job find each other: one TCP store at rank 0, then a roll call that names who is missing.

Rank 0 listens at the Launch's address and port; where all ranks are on its host, at the loopback alone. A port that
nobody named is derived from the job's name and may be busy: rank 0 then takes the next one, and the others try the same
few ports until a store there has this job's greeting, signed by rank 0, so a foreign store is noticed. Under torchrun
the agent already serves the store; every rank is its client.
"""

# torch documents TCPStore, PrefixStore and Store as public, but does not re-export them in a way checkers accept.
# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import os
import resource
import socket
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from paceline.config.errors import RankError
from paceline.config.printable import one_line
from paceline.dist.interfaces import describe_interfaces, is_address_of_this_host
from paceline.dist.launcher import THIS_HOST, Launch
from paceline.dist.messages import NOTHING, Messages
from paceline.dist.roll_call import answer_the_roll, call_the_roll
from paceline.dist.secret import GREETING, NotOurs, believed, offered, own_secret

NUM_PORTS_TRIED = 8
POLL_SECONDS = 0.1
# How long a store may take to show its job's greeting before it is taken for a stranger's.
GREETING_SECONDS = 3.0
# Two to the store, and some for gloo: how many files rank 0 may have to hold open.
CONNECTIONS_PER_RANK = 8
# One request to the store; longer silence means that its host is gone.
REQUEST_SECONDS = 300


@dataclass(frozen=True)
class Meeting:
    """What the roll call leaves behind.

    messages  this rank's signed messages, over its own connection
    address   host:port that was met at
    hosts     on rank 0: every rank's host name, by rank; empty on the others
    """

    messages: Messages
    address: str
    port: int
    host: str
    hosts: tuple[str, ...]

    def second_connection(self, job: str) -> Messages:
        """The same messages over another connection, so that a thread's requests never wait behind the main thread's."""
        timeout = timedelta(seconds=REQUEST_SECONDS)
        client = dist.TCPStore(self.host, self.port, is_master=False, timeout=timeout, wait_for_workers=False)
        return self.messages.over(dist.PrefixStore(_prefix(job), client))


def meet(launch: Launch, *, timeout_seconds: float, secret_folder: Path | None = None) -> Meeting:
    """Find the other ranks; returns once all are there.

    secret_folder  where rank 0 may leave a secret for other hosts (see paceline/dist/secret.py)
    raise RankError   after `timeout_seconds`, on every rank; rank 0's names the ranks that never arrived
    """
    deadline = time.monotonic() + timeout_seconds
    own_secret(os.environ)  # one that cannot be used is refused at once, on every rank
    try:
        if launch.rank == 0:
            client, port = _join(launch, timeout_seconds) if launch.agent_store else _serve(launch)
            store = dist.PrefixStore(_prefix(launch.job), client)
            with offered(launch, secret_folder, os.environ) as (secret, greeting):
                messages = Messages(store, greeting.key(secret), launch.rank)
                hosts = call_the_roll(messages, launch, port, (secret, greeting), timeout_seconds, deadline)
        else:
            messages, port = _connect(launch, timeout_seconds)
            hosts = ()
            answer_the_roll(messages, launch, port, deadline + timeout_seconds)
    except (OSError, dist.DistError) as problem:
        raise RankError(
            f"rank {launch.rank} (of {launch.world}) on {socket.gethostname()}: the store at {launch.address}:{launch.port} "
            f"broke off before all ranks had met ({_first_line(problem)})."
        ) from None
    return Meeting(messages, f"{launch.address}:{port}", port, _host_of_store(launch), hosts)


def _prefix(job: str) -> str:
    return f"paceline/{job}"


def _all_here(launch: Launch) -> bool:
    """Whether all ranks are on this host, so that nobody else needs to reach the store."""
    return launch.nodes == 1 and is_address_of_this_host(launch.address)


def _host_of_store(launch: Launch) -> str:
    return THIS_HOST if not launch.agent_store and (launch.rank == 0 or _all_here(launch)) else launch.address


def _first_line(problem: BaseException) -> str:
    return one_line((str(problem) or type(problem).__name__).splitlines()[0])


def _ports(launch: Launch) -> range:
    return range(launch.port, launch.port + (1 if launch.port_is_given else NUM_PORTS_TRIED))


def _serve(launch: Launch) -> tuple[dist.TCPStore, int]:
    """Rank 0 opens the store at the first free port."""
    # mpirun tells its own host, which need not be rank 0's; the others would wait there in vain.
    if launch.kind == "openmpi" and launch.nodes > 1 and not is_address_of_this_host(launch.address):
        raise RankError(
            f"rank 0 runs on {socket.gethostname()}, but the others would look for it at {launch.address}.\n"
            f"Name its address:  mpirun -x MASTER_ADDR=... ...   Interfaces here: {describe_interfaces()}"
        )
    # Each rank holds two connections, and a process may have 1024 by default.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, CONNECTIONS_PER_RANK * launch.world)), hard))
    reason = None
    for port in _ports(launch):
        try:
            listener = socket.create_server(
                (THIS_HOST if _all_here(launch) else "", port), family=socket.AF_INET, backlog=4096
            )
        except OSError as error:
            reason = error
            continue
        store = dist.TCPStore(
            THIS_HOST,
            port,
            is_master=True,
            timeout=timedelta(seconds=REQUEST_SECONDS),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        return store, port
    ports = _ports(launch)
    raise RankError(
        f"rank 0 cannot listen on port {ports[0]}{f' to {ports[-1]}' if len(ports) > 1 else ''}: {reason}.\n"
        "Another program has it. Set MASTER_PORT to a free one, the same for all ranks."
    )


def _join(launch: Launch, timeout_seconds: float) -> tuple[dist.TCPStore, int]:
    """Rank 0's connection to the store that torchrun's agent serves."""
    return _client_within(timeout_seconds, launch.address, launch.port), launch.port


def _connect(launch: Launch, timeout_seconds: float) -> tuple[Messages, int]:
    """Find rank 0's greeting among the job's ports, until `timeout_seconds` have passed."""
    deadline = time.monotonic() + timeout_seconds
    met: dict[int, str | NotOurs] = {}
    while time.monotonic() < deadline:
        for port in _ports(launch):
            messages = _try_port(launch, port, met, deadline)
            if messages is not None:
                return messages, port
        time.sleep(POLL_SECONDS)
    tried = "; ".join(f"{launch.address}:{port} ({what})" for port, what in met.items())
    raise RankError(
        f"rank {launch.rank} (of {launch.world}) on {socket.gethostname()} did not reach rank 0 "
        f"within {timeout_seconds:g} s: {tried}.\n"
        f"Interfaces here: {describe_interfaces()}. Is rank 0 running, and is this address reachable from here?"
    )


def _try_port(launch: Launch, port: int, met: dict[int, str | NotOurs], deadline: float) -> Messages | None:
    """A connection to our job's store at `port`, or None with the reason in `met`."""
    # A bare socket first: TCPStore's own attempts print a warning for each refusal.
    left = max(0.1, deadline - time.monotonic())
    host = _host_of_store(launch)
    try:
        socket.create_connection((host, port), timeout=min(5.0, left)).close()
        store = dist.PrefixStore(_prefix(launch.job), _client_within(min(GREETING_SECONDS, left), host, port))
        give_up = time.monotonic() + min(GREETING_SECONDS, left)
        while time.monotonic() < give_up:
            raw = store.compare_set(GREETING, NOTHING, NOTHING)
            try:
                if raw != NOTHING.encode():
                    return Messages(store, believed(raw, launch.job, os.environ), launch.rank)
                met.setdefault(port, "no greeting of this job's rank 0 there")
            except NotOurs as why:
                met[port] = why
            time.sleep(POLL_SECONDS)
    except (OSError, RuntimeError) as error:  # torch's DistError is a RuntimeError
        if not isinstance(met.get(port), NotOurs):  # which tells more than that rank 0 has given up meanwhile
            met[port] = _first_line(error)
    return None


def _client_within(seconds: float, address: str, port: int) -> dist.TCPStore:
    """A TCPStore client, or TimeoutError: torch waits for ever on a listener that accepts and says nothing."""
    made: list[dist.TCPStore | Exception] = []

    def connect() -> None:
        try:
            timeout = timedelta(seconds=REQUEST_SECONDS)
            made.append(dist.TCPStore(address, port, is_master=False, timeout=timeout, wait_for_workers=False))
        except Exception as error:  # handed to the caller below
            made.append(error)

    thread = threading.Thread(target=connect, name="paceline-connect", daemon=True)
    thread.start()
    thread.join(seconds)
    if not made:
        raise TimeoutError("something listens there that is no store")
    if isinstance(made[0], Exception):
        raise made[0]
    return made[0]
