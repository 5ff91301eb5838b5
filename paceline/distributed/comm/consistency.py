"""What must be alike on all ranks is compared before anything is built on it, and the first difference is named.

Each rank leaves a digest of its facts, rank 0 compares them all in one request, and only where one differs are facts
themselves sent: rank 0's to the first rank that differs, which names the field for everybody. No collective is used, so
ranks that differ in what they would do next still meet here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from paceline._utils.errors import RankMismatchError
from paceline._utils.hashing import json_sha256
from paceline._utils.text import join_names, shorten
from paceline.distributed.comm.messages import Messages
from paceline.distributed.comm.rendezvous import format_ranks

# By name, in the order in which a difference is looked for; values of which JSON knows.
Facts = Mapping[str, Any]
POLL_SECONDS = 0.02
# How long the rank that is asked may take to name the field.
ANSWER_SECONDS = 4.0
MAX_FIELDS, LONGEST_VALUE = 5, 60
ABSENT = "absent"


def assert_equal_on_ranks(messages: Messages, world: int, facts: Facts, name: str) -> None:
    """Compare `facts` over all ranks, each of which calls this at the same point.

    world  how many ranks there are
    name   of this comparison; never used twice in one run
    Waits for all ranks; one that died meanwhile ends this process through its Watch.
    raise RankMismatchError   on every rank, with the same text: the first field that differs, both values and their ranks
    """
    if world == 1:
        return
    messages.set(f"{name} digest/{messages.rank}", hash_facts(facts))
    if messages.rank == 0:
        digests = _collected(messages, [f"{name} digest/{peer}" for peer in range(world)])
        other = next((peer for peer in range(world) if digests[peer] != digests[0]), 0)
        if other:
            messages.set(f"{name} facts", json.dumps({"facts": facts, "ranks": _parted(digests, other)}))
        messages.set(f"{name} verdict", str(other))
    else:
        other = int(messages.wait(f"{name} verdict"))
    if other == 0:
        return
    if messages.rank == other:
        first = json.loads(messages.wait(f"{name} facts"))
        messages.set(f"{name} text", format_difference(first["facts"], facts, *first["ranks"]))
    try:
        text = messages.wait(f"{name} text", until=time.monotonic() + ANSWER_SECONDS)
    except TimeoutError:
        text = f"rank {other} and rank 0 have different settings, and rank {other} did not report which ones."
    raise RankMismatchError(text)


def hash_facts(facts: Facts) -> str:
    """SHA-256 of the facts, names included."""
    return json_sha256(facts)


def format_difference(first: Facts, other: Facts, first_ranks: str, other_ranks: str, further: str) -> str:
    """The text of the error: the first field that differs, with both values and their ranks, and the names of some more.

    further  ranks that differ from both
    """
    names = [*first, *(name for name in other if name not in first)]
    differ = [name for name in names if name not in first or name not in other or _text(first[name]) != _text(other[name])]
    values = [shorten(_text(facts[differ[0]]), LONGEST_VALUE) if differ[0] in facts else ABSENT for facts in (first, other)]
    lines = [
        f"the ranks have different settings: {differ[0]} is {values[0]} on {first_ranks} and {values[1]} on {other_ranks}."
    ]
    if len(differ) > 1:
        lines.append(f"Other differences: {join_names(differ[1:], MAX_FIELDS)}.")
    if further:
        lines.append(f"Further ranks that differ: {further}.")
    lines.append("Start all ranks with the same command, data, weights, and version of paceline.")
    return "\n".join(lines)


def _collected(messages: Messages, names: list[str]) -> list[str]:
    while True:
        results = messages.get_all(names) if messages.are_there(names) else []
        if results and None not in results:
            return [text for text in results if text is not None]
        time.sleep(POLL_SECONDS)


def _parted(digests: list[str], other: int) -> tuple[str, str, str]:
    """Names of the ranks that are as rank 0, as rank `other`, and neither."""
    kinds = (digests[0], digests[other])
    neither = [rank for rank, one in enumerate(digests) if one not in kinds]
    alike = [format_ranks([rank for rank, one in enumerate(digests) if one == kind]) for kind in kinds]
    return alike[0], alike[1], format_ranks(neither) if neither else ""


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
