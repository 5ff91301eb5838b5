"""How the ranks of a job find each other: one TCP store at rank 0, then a roll call that names who is missing.

Rank 0 listens at the Launch's address and port; where all ranks are on its host, at the loopback alone. The others
connect until the store there has this job's greeting, signed by rank 0, so a foreign store is noticed. Under torchrun
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
from paceline.ranks.interfaces import describe_interfaces, is_address_of_this_host
from paceline.ranks.launcher import THIS_HOST, Launch
from paceline.ranks.messages import NOTHING, Messages
from paceline.ranks.roll_call import answer_the_roll, call_the_roll
from paceline.ranks.secret import GREETING, HOW_TO_SET, NotOurs, OtherSecret, offered, own_secret, verified_greeting

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

    secret_folder  where rank 0 may leave a secret for other hosts (see paceline/ranks/secret.py)
    raise RankError   after `timeout_seconds`, on every rank; rank 0's names the ranks that never arrived
    """
    deadline = time.monotonic() + timeout_seconds
    own_secret(os.environ)  # one that cannot be used is refused at once, on every rank
    try:
        if launch.rank == 0:
            client = _client_within(timeout_seconds, launch) if launch.agent_store else _serve(launch)
            store = dist.PrefixStore(_prefix(launch.job), client)
            with offered(launch, secret_folder, os.environ) as (secret, greeting):
                messages = Messages(store, greeting.key(secret), launch.rank)
                hosts = call_the_roll(messages, launch, (secret, greeting), timeout_seconds, deadline)
        else:
            messages = _connect(launch, timeout_seconds)
            hosts = ()
            answer_the_roll(messages, launch, deadline + timeout_seconds)
    except (OSError, dist.DistError) as problem:
        raise RankError(
            f"rank {launch.rank} (of {launch.world}) on {socket.gethostname()}: the store at {launch.address}:{launch.port} "
            f"broke off before all ranks had met ({_first_line(problem)})."
        ) from None
    return Meeting(messages, f"{launch.address}:{launch.port}", launch.port, _host_of_store(launch), hosts)


def _prefix(job: str) -> str:
    return f"paceline/{job}"


def _all_here(launch: Launch) -> bool:
    """Whether all ranks are on this host, so that nobody else needs to reach the store."""
    return launch.nodes == 1 and is_address_of_this_host(launch.address)


def _host_of_store(launch: Launch) -> str:
    return THIS_HOST if not launch.agent_store and (launch.rank == 0 or _all_here(launch)) else launch.address


def _first_line(problem: BaseException) -> str:
    return one_line((str(problem) or type(problem).__name__).splitlines()[0])


def _serve(launch: Launch) -> dist.TCPStore:
    """Rank 0 opens the store."""
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
    try:
        listener = socket.create_server(
            (THIS_HOST if _all_here(launch) else "", launch.port), family=socket.AF_INET, backlog=4096
        )
    except OSError as reason:
        raise RankError(
            f"rank 0 cannot listen on port {launch.port}: {reason}.\n"
            "Another program has it. Set MASTER_PORT to a free one, the same for all ranks."
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
    why: str | NotOurs = ""
    others = 0
    while time.monotonic() < deadline:
        found = _greeted(launch, deadline)
        if isinstance(found, Messages):
            return found
        others = others + 1 if isinstance(found, OtherSecret) else 0
        if others == LOOKS_AT_ANOTHER_SECRET:
            raise RankError(
                f"rank {launch.rank} (of {launch.world}) on {socket.gethostname()} reached rank 0 at "
                f"{launch.address}:{launch.port}, but {found}.\n{HOW_TO_SET}."
            )
        # That somebody else's store is there tells more than that rank 0 has given up meanwhile.
        why = why if isinstance(why, NotOurs) and not isinstance(found, NotOurs) else found
        time.sleep(POLL_SECONDS)
    raise RankError(
        f"rank {launch.rank} (of {launch.world}) on {socket.gethostname()} did not reach rank 0 "
        f"within {timeout_seconds:g} s: {launch.address}:{launch.port} ({why}).\n"
        f"Interfaces here: {describe_interfaces()}. Is rank 0 running, and is this address reachable from here?"
    )


def _greeted(launch: Launch, deadline: float) -> Messages | NotOurs | str:
    """Messages over a connection to our job's store, or why there is none."""
    left = max(0.1, deadline - time.monotonic())
    why: NotOurs | str = "no greeting of this job's rank 0 there"
    try:
        # A bare socket first: TCPStore's own attempts print a warning for each refusal.
        socket.create_connection((_host_of_store(launch), launch.port), timeout=min(5.0, left)).close()
        store = dist.PrefixStore(_prefix(launch.job), _client_within(min(GREETING_SECONDS, left), launch))
        give_up = time.monotonic() + min(GREETING_SECONDS, left)
        while time.monotonic() < give_up:
            raw = store.compare_set(GREETING, NOTHING, NOTHING)
            try:
                if raw != NOTHING.encode():
                    return Messages(store, verified_greeting(raw, launch.job, os.environ), launch.rank)
            except NotOurs as problem:
                why = problem
            time.sleep(POLL_SECONDS)
        return why
    except (OSError, RuntimeError) as error:  # torch's DistError is a RuntimeError
        return why if isinstance(why, NotOurs) else _first_line(error)


def _client_within(seconds: float, launch: Launch) -> dist.TCPStore:
    """A TCPStore client, or TimeoutError: torch waits for ever on a listener that accepts and says nothing."""
    made: list[dist.TCPStore | Exception] = []

    def connect() -> None:
        try:
            timeout = timedelta(seconds=REQUEST_SECONDS)
            made.append(
                dist.TCPStore(
                    _host_of_store(launch), launch.port, is_master=False, timeout=timeout, wait_for_workers=False
                )
            )
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
