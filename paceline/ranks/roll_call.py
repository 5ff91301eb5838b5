"""The roll call: every rank signs in at rank 0's store, and rank 0 names whoever is missing."""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Sequence

from paceline.config.errors import RankError
from paceline.config.printable import one_line
from paceline.ranks.interfaces import describe_interfaces
from paceline.ranks.launcher import Launch
from paceline.ranks.messages import Messages
from paceline.ranks.secret import GREETING, Greeting

POLL_SECONDS = 0.1
# How long rank 0 lingers for the others to read who is missing: the store ends with it.
READ_SECONDS = 5.0


def _sign_in(messages: Messages, launch: Launch) -> None:
    """Say that this rank is here, and where."""
    messages.set(f"beat/{launch.rank}", "0")  # what paceline.ranks.failure then counts up
    mine = json.dumps([socket.gethostname(), secrets.token_hex(8)])
    if messages.claim(f"here/{launch.rank}", mine) != mine:
        raise RankError(
            f"another process already is rank {launch.rank} of job {launch.job} at {launch.address}:{launch.port}.\n"
            "Two jobs share a port, or one was started twice: set MASTER_PORT to another free port for this one."
        )


def call_the_roll(
    messages: Messages,
    launch: Launch,
    offer: tuple[bytes, Greeting],
    timeout_seconds: float,
    deadline: float,
) -> tuple[str, ...]:
    """Rank 0's part: greet, wait for all, tell all whether somebody is missing. -> host names by rank.

    offer     the secret, and the greeting that tells the others where to find it
    deadline  time.monotonic() at which whoever has not come is missing
    raise RankError   somebody is missing, by name
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
    readers = [f"read/{rank}" for rank, found in enumerate(signed) if found is not None and rank > 0]
    give_up = time.monotonic() + READ_SECONDS
    while readers and not messages.are_there(readers) and time.monotonic() < give_up:
        time.sleep(POLL_SECONDS)
    raise RankError(text)


def answer_the_roll(messages: Messages, launch: Launch, deadline: float) -> None:
    """Every other rank's part.

    deadline  time.monotonic() at which rank 0 has kept silent for too long
    raise RankError   somebody is missing; rank 0 never said; another process has this rank
    """
    _sign_in(messages, launch)
    try:
        # Rank 0 may have begun its own waiting later than this rank did.
        verdict = messages.wait("roll call", until=deadline, poll_seconds=POLL_SECONDS)
    except TimeoutError:
        raise RankError(
            f"rank {launch.rank} met rank 0 at {launch.address}:{launch.port}, which never closed the roll call."
        ) from None
    if verdict != "all":
        messages.set(f"read/{launch.rank}", "1")
        raise RankError(f"rank {launch.rank} was there, but {verdict}")


def _missing(signed: Sequence[str | None], launch: Launch, timeout_seconds: float) -> str:
    missing = [rank for rank, text in enumerate(signed) if text is None]
    present = [rank for rank, text in enumerate(signed) if text is not None]
    hosts = sorted({one_line(json.loads(text)[0]) for text in signed if text is not None})
    return (
        f"{name_ranks(missing)} (of {launch.world}) never arrived within {timeout_seconds:g} s; "
        f"address {launch.address}:{launch.port}; here: {name_ranks(present)} on {', '.join(hosts)}.\n"
        f"Interfaces of rank 0's host {socket.gethostname()}: {describe_interfaces()}. "
        "Were as many started as the launcher says, and do they reach this address (firewall, interface)?"
    )


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
