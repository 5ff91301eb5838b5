"""How the ranks of a job find each other: one TCP store at rank 0, then a roll call that names who is missing.

Rank 0 listens at the Launch's address and port. A port that nobody named is derived from the job's name and may be
busy: rank 0 then takes the next one, and the others try the same few ports until a store there answers with the job's
name, so a foreign job's store is noticed. Under torchrun the agent already serves the store; every rank is its client.
"""

# torch documents TCPStore, PrefixStore and Store as public, but does not re-export them in a way checkers accept.
# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import resource
import socket
import threading
import time
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from paceline.config.errors import UserError
from paceline.dist.interfaces import describe_interfaces, is_address_of_this_host
from paceline.dist.launcher import THIS_HOST, Launch

NUM_PORTS_TRIED = 8
POLL_SECONDS = 0.1
# How long a store may take to tell its job's name before it is taken for a stranger's.
NAME_SECONDS = 3.0
# Two to the store, and some for gloo: how many files rank 0 may have to hold open.
CONNECTIONS_PER_RANK = 8
# One request to the store; longer silence means that its host is gone.
REQUEST_SECONDS = 300


@dataclass(frozen=True)
class Meeting:
    """What the roll call leaves behind.

    store    this rank's connection, under the job's own prefix
    address  host:port that was met at
    hosts    on rank 0: every rank's host name, by rank; empty on the others
    """

    store: dist.Store
    address: str
    port: int
    host: str
    hosts: tuple[str, ...]

    def second_connection(self, job: str) -> dist.Store:
        """Another connection to the same store, so that a thread's requests never wait behind the main thread's."""
        timeout = timedelta(seconds=REQUEST_SECONDS)
        client = dist.TCPStore(self.host, self.port, is_master=False, timeout=timeout, wait_for_workers=False)
        return dist.PrefixStore(_prefix(job), client)


def meet(launch: Launch, *, timeout_seconds: float) -> Meeting:
    """Find the other ranks; returns once all are there.

    raise UserError   after `timeout_seconds`; on rank 0 it names the ranks that never arrived
    """
    deadline = time.monotonic() + timeout_seconds
    serves = launch.rank == 0 and not launch.agent_store
    client, port = _serve(launch) if serves else _connect(launch, timeout_seconds)
    store = dist.PrefixStore(_prefix(launch.job), client)
    host = THIS_HOST if serves else launch.address
    hosts = _roll_call(store, launch, port, timeout_seconds, deadline)
    return Meeting(store, f"{launch.address}:{port}", port, host, hosts)


def _prefix(job: str) -> str:
    return f"paceline/{job}"


def _ports(launch: Launch) -> range:
    return range(launch.port, launch.port + (1 if launch.port_is_given else NUM_PORTS_TRIED))


def _serve(launch: Launch) -> tuple[dist.TCPStore, int]:
    """Rank 0 opens the store at the first free port."""
    # mpirun tells its own host, which need not be rank 0's; the others would wait there in vain.
    if launch.kind == "openmpi" and launch.nodes > 1 and not is_address_of_this_host(launch.address):
        raise UserError(
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
            listener = socket.create_server(("", port), family=socket.AF_INET, backlog=4096)
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
        store.set(f"{_prefix(launch.job)}/job", launch.job)
        return store, port
    ports = _ports(launch)
    raise UserError(
        f"rank 0 cannot listen on port {ports[0]}{f' to {ports[-1]}' if len(ports) > 1 else ''}: {reason}.\n"
        "Another program has it. Set MASTER_PORT to a free one, the same for all ranks."
    )


def _connect(launch: Launch, timeout_seconds: float) -> tuple[dist.TCPStore, int]:
    """Find rank 0's store among the job's ports, until `timeout_seconds` have passed."""
    deadline = time.monotonic() + timeout_seconds
    met: dict[int, str] = {}
    while time.monotonic() < deadline:
        for port in _ports(launch):
            store = _try_port(launch, port, met, deadline)
            if store is not None:
                return store, port
        time.sleep(POLL_SECONDS)
    tried = "; ".join(f"{launch.address}:{port} {what}" for port, what in met.items())
    raise UserError(
        f"rank {launch.rank} (of {launch.world}) on {socket.gethostname()} did not reach rank 0 "
        f"within {timeout_seconds:g} s: {tried}.\n"
        f"Interfaces here: {describe_interfaces()}. Is rank 0 running, and is this address reachable from here?"
    )


def _try_port(launch: Launch, port: int, met: dict[int, str], deadline: float) -> dist.TCPStore | None:
    """A connection to our job's store at `port`, or None with the reason in `met`."""
    # A bare socket first: TCPStore's own attempts print a warning for each refusal.
    left = max(0.1, deadline - time.monotonic())
    try:
        socket.create_connection((launch.address, port), timeout=min(5.0, left)).close()
        store = _client_within(min(NAME_SECONDS, left), launch.address, port)
    except (OSError, RuntimeError) as error:  # torch's DistError is a RuntimeError
        met[port] = f"({str(error).splitlines()[0]})"
        return None
    if launch.agent_store:
        return store
    name = f"{_prefix(launch.job)}/job"
    give_up = time.monotonic() + min(NAME_SECONDS, left)
    while time.monotonic() < give_up:
        if store.check([name]):
            return store
        time.sleep(POLL_SECONDS)
    met[port] = "(another job's store)"
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


def _roll_call(
    store: dist.Store, launch: Launch, port: int, timeout_seconds: float, deadline: float
) -> tuple[str, ...]:
    """Every rank signs in; rank 0 tells all whether somebody is missing. -> host names on rank 0."""
    if store.add(f"here/{launch.rank}", 1) > 1:
        raise UserError(
            f"another process already is rank {launch.rank} of job {launch.job} at {launch.address}:{port}.\n"
            "Two jobs share a port, or one was started twice: set MASTER_PORT to another free port for this one."
        )
    store.set(f"host/{launch.rank}", socket.gethostname())
    store.set(f"beat/{launch.rank}", "0")  # what paceline.dist.failure then counts up
    arrived = store.add("arrived", 1)
    if launch.rank == 0:
        while arrived < launch.world and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            arrived = store.add("arrived", 0)
        if arrived < launch.world:
            text = _missing(store, launch, port, timeout_seconds)
            store.set("roll call", text)
            time.sleep(1.0)  # the store ends with this process: let those who came read it
            raise UserError(text)
        store.set("roll call", "all")
        return tuple(host.decode() for host in store.multi_get([f"host/{rank}" for rank in range(launch.world)]))
    # Rank 0 may have begun its own waiting later than this rank did.
    while not store.check(["roll call"]):
        if time.monotonic() > deadline + timeout_seconds:
            raise UserError(
                f"rank {launch.rank} met rank 0 at {launch.address}:{port}, which never closed the roll call."
            )
        time.sleep(POLL_SECONDS)
    verdict = store.get("roll call").decode()
    if verdict != "all":
        raise UserError(f"rank {launch.rank} was there, but {verdict}")
    return ()


def _missing(store: dist.Store, launch: Launch, port: int, timeout_seconds: float) -> str:
    missing = [rank for rank in range(launch.world) if not store.check([f"here/{rank}"])]
    present = [rank for rank in range(launch.world) if rank not in set(missing)]
    hosts = sorted({store.get(f"host/{rank}").decode() for rank in present if store.check([f"host/{rank}"])})
    return (
        f"{name_ranks(missing)} (of {launch.world}) never arrived within {timeout_seconds:g} s; "
        f"address {launch.address}:{port}; here: {name_ranks(present)} on {', '.join(hosts)}.\n"
        f"Interfaces of rank 0's host {socket.gethostname()}: {describe_interfaces()}. "
        "Were as many started as the launcher says, and do they reach this address (firewall, interface)?"
    )


def describe_hosts(hosts: tuple[str, ...]) -> list[str]:
    """One line per host, in the order of their first ranks: 'gpu07: ranks 0-7'."""
    ranks: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks.setdefault(host, []).append(rank)
    return [f"{host}: {name_ranks(own)}" for host, own in ranks.items()]


def name_ranks(ranks: list[int]) -> str:
    """[1, 3, 4, 5] -> 'ranks 1, 3-5'; [2] -> 'rank 2'."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    said = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return f"rank{'s' if len(ranks) != 1 else ''} {said or 'none'}"
