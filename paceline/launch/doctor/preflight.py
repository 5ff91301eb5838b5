"""Which nodes of a job may train, by what each reported of itself and of the others. Pure: facts in, sentences out.

A node is bad that never answered; has a problem by `paceline doctor`; has a folder that is full, or cannot be written or read;
is not reached, or reaches nobody; has a core slower than SLOW_CORE of the other nodes' slowest cores, or links all slower than
SLOW_LINK of the median link; or a clock further off than doctor's bound. Medians are of the others: with two nodes, of the other one.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.config.system import System
from paceline.launch.doctor.compare import FAR_SECONDS, Level, MachineFact, examine_nodes
from paceline.launch.doctor.node import NodeFacts

SLOW_CORE, SLOW_LINK = 0.7, 0.5


@dataclass(frozen=True)
class LocalChecks:
    """One node's own part. ports: of its choice, then rank 0's where that is known."""

    number: int
    name: str
    address: str
    ports: tuple[int, ...]
    free_port: int
    facts: NodeFacts
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True)
class NetworkChecks:
    """What one node measured when all were there. cores: hardware thread -> MB/s, on all nodes at the same time; of the others by
    their numbers: why not reached; MB/s to it; (how far ahead of it, +-), seconds."""

    number: int
    cores: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    clocks: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def judge_nodes(
    names: Sequence[str], looks: Mapping[int, LocalChecks], reaches: Mapping[int, NetworkChecks], expected: System | None
) -> dict[int, list[MachineFact]]:
    """Node's number -> what was found of it; one with a finding of level problem is bad.

    names     of all nodes, by number
    expected  what each node should be
    """
    result: dict[int, list[MachineFact]] = {number: [] for number in range(len(names))}

    def add(number: int, text: str, level: Level = "problem") -> None:
        result[number].append(MachineFact(level, names[number], text))

    for number in result:
        if number not in looks:
            add(number, "did not answer")
        elif number not in reaches:
            add(number, "fell silent while nodes tried each other")
    for look in looks.values():
        for text in look.troubles:
            add(look.number, text)
    order = sorted(looks)
    for one in examine_nodes([looks[number].facts for number in order], expected):
        for index in one.nodes:
            add(order[index], one.text, one.level)
    unreached = _unreached(names, reaches).items()
    for number, text in (*unreached, *_slow_cores(reaches), *_slow_links(reaches), *_far_clocks(reaches)):
        add(number, text)
    return result


def has_problem(findings: Sequence[MachineFact]) -> bool:
    """Whether they keep a node from training."""
    return any(finding.level == "problem" for finding in findings)


def _unreached(names: Sequence[str], reaches: Mapping[int, NetworkChecks]) -> dict[int, str]:
    """The fewest nodes without which all others reach each other, by taking away the one with the most failures first.

    Between two that failed once the one that was not reached is named: its port is closed as far as anybody can tell.
    """
    edges = [(reach.number, int(peer), text) for reach in reaches.values() for peer, text in reach.failures.items()]
    result: dict[int, str] = {}
    while edges:
        count = Counter(end for source, target, _ in edges for end in (source, target))
        targets = Counter(target for _, target, _ in edges)
        worst = max(count, key=lambda number: (count[number], targets[number], number))
        incoming = [(source, text) for source, target, text in edges if target == worst]
        outgoing = [(target, text) for source, target, text in edges if source == worst]
        words = [f"{names[source]} does not reach it at {text}" for source, text in incoming[:1]]
        words += [f"it does not reach {names[target]} at {text}" for target, text in outgoing[:1] if not incoming]
        more = len(incoming or outgoing) - 1
        result[worst] = words[0] + (f", nor {'do' if incoming else 'does it'} {more} more" if more else "")
        edges = [edge for edge in edges if worst not in edge[:2]]
    return result


def _slow_cores(reaches: Mapping[int, NetworkChecks]) -> Iterator[tuple[int, str]]:
    slowest = {
        number: min(reach.cores.items(), key=lambda core: core[1]) for number, reach in reaches.items() if reach.cores
    }
    for number, (core, rate) in slowest.items():
        others = [own for other, (_, own) in slowest.items() if other != number]
        usual = statistics.median_high(others) if others else 0
        if rate < SLOW_CORE * usual:
            text = (
                f"core {core} hashes {rate:.0f} MB/s, the slowest core of the other nodes {usual:.0f} (bound "
                f"{SLOW_CORE:g} of it): another program, heat, or a held clock"
            )
            yield number, text


def _slow_links(reaches: Mapping[int, NetworkChecks]) -> Iterator[tuple[int, str]]:
    links: dict[int, list[float]] = defaultdict(list)
    for reach in reaches.values():
        for peer, rate in reach.rates.items():
            links[reach.number].append(rate)
            links[int(peer)].append(rate)
    every = [rate for reach in reaches.values() for rate in reach.rates.values()]
    median = statistics.median_high(every) if every else 0
    for number, own in sorted(links.items()):
        if (best := max(own)) < SLOW_LINK * median:
            yield (number, f"its best link carries {best:.0f} MB/s, the median is {median:.0f} (bound {SLOW_LINK:g} of it)")


def _far_clocks(reaches: Mapping[int, NetworkChecks]) -> Iterator[tuple[int, str]]:
    """A clock against the median of the others': of two nodes neither can tell who is right, and both are named."""
    for number, reach in sorted(reaches.items()):
        if not reach.clocks:
            continue
        own = [offset for offset, _ in reach.clocks.values()]
        # Its own, which is no way off itself, counts too.
        offset = statistics.median([*own, 0.0] if len(own) > 1 else own)
        error = max(error for _, error in reach.clocks.values())
        if abs(offset) > FAR_SECONDS + error:
            ahead = "ahead of" if offset > 0 else "behind"
            text = f"its clock is {abs(offset):.3g} s {ahead} the other nodes': is a time service running (chrony, ntpd)?"
            yield number, text
