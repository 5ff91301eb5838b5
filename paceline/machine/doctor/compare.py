"""Nodes side by side: what differs between them, and what is wrong with one. Pure: facts in, findings out."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from paceline.config.system import System
from paceline.machine.doctor.finding import Finding, Level, allowed, cpus, gpus
from paceline.machine.doctor.node import NodeFacts
from paceline.machine.doctor.troubles import troubles, unexpected
from paceline.machine.topology import listed, spelled

# A device, or a node's memory, below this share of the others'.
SLOW_SHARE, SMALL_SHARE = 0.9, 0.9


def merged(ranks: Sequence[NodeFacts]) -> list[NodeFacts]:
    """One entry a node, from one a rank by rank: the first rank's, with what the others of its node add."""
    nodes: dict[int, list[NodeFacts]] = {}
    for facts in ranks:
        nodes.setdefault(facts.node, []).append(facts)
    return [
        replace(
            own[0],
            ranks=len(own),
            allowed=spelled({cpu for facts in own for cpu in listed(facts.allowed)}),
            shares=tuple(share for facts in own for share in facts.shares),
            network_trouble=tuple(dict.fromkeys(trouble for facts in own for trouble in facts.network_trouble)),
            network_warnings=tuple(dict.fromkeys(text for facts in own for text in facts.network_warnings)),
            teraflops=tuple(rate for facts in own for rate in facts.teraflops),
        )
        for _, own in sorted(nodes.items())
    ]


def names(nodes: Sequence[NodeFacts]) -> list[str]:
    """A name for each node: its host's, with the node's number where two are on one host."""
    hosts = Counter(node.host for node in nodes)
    return [node.host if hosts[node.host] == 1 else f"{node.host}/{node.node}" for node in nodes]


class NodeFinding(NamedTuple):
    """What is wrong with some nodes, by their places in the list."""

    level: Level
    nodes: tuple[int, ...]
    text: str

    def named(self, called: Sequence[str]) -> Finding:
        """As a line: about the first few of them by name."""
        who = [called[place] for place in self.nodes]
        return Finding(
            self.level, ", ".join(who[:4]) + (f" and {len(who) - 4} more" if len(who) > 4 else ""), self.text
        )


def examine_nodes(nodes: Sequence[NodeFacts], expected: System | None = None) -> list[NodeFinding]:
    """Everything that is wrong with a node or differs between them; empty where all are alike and healthy.

    expected   what each node should be; None: nobody said
    """
    own = [
        NodeFinding(level, (place,), text)
        for place, node in enumerate(nodes)
        for level, text in (*troubles(node), *(unexpected(node, expected) if expected else ()))
    ]
    return [*own, *_differences(nodes), *_smaller(nodes)]


def worst(findings: Sequence[NodeFinding], place: int) -> Level:
    """Of one node."""
    own = {finding.level for finding in findings if place in finding.nodes}
    return "problem" if "problem" in own else "note" if "note" in own else "ok"


# Beside software, in which training allows no difference at all.
_COMPARED: tuple[tuple[Level, str, Callable[[NodeFacts], str]], ...] = (
    ("problem", "GPUs", gpus),
    ("note", "driver", lambda node: node.driver),
    ("problem", "links between GPUs", lambda node: node.links),
    ("problem", "processors", cpus),
    ("problem", "binding", allowed),
    ("problem", "ranks", lambda node: f"{node.ranks} rank{'s'[: node.ranks != 1]}"),
    ("problem", "network", lambda node: node.network),
    ("problem", "adapters", lambda node: ", ".join(node.adapters) or "none"),
    ("note", "huge pages", lambda node: node.huge_pages),
    ("note", "kernel", lambda node: node.kernel),
)


def _compared(nodes: Sequence[NodeFacts]) -> Iterator[tuple[Level, str, list[str]]]:
    """Level where nodes differ, what is compared, every node's value; "" is unknown and differs from nothing."""
    for level, what, value_of in _COMPARED:
        yield level, what, [value_of(node) for node in nodes]
    for name in sorted({name for node in nodes for name in node.versions}):
        yield "problem", name, [node.versions.get(name, "absent") for node in nodes]


def _differences(nodes: Sequence[NodeFacts]) -> list[NodeFinding]:
    """A finding for each value that fewer nodes have than another. Training refuses other software too (alike.py)."""
    found = []
    for level, what, values in _compared(nodes):
        counts = Counter(value for value in values if value)
        if not counts:
            continue
        usual, number = counts.most_common(1)[0]
        for other in (value for value in counts if value != usual):
            who = tuple(place for place, value in enumerate(values) if value == other)
            found.append(NodeFinding(level, who, f"{what}: {other}; {usual} on {number} of {len(nodes)}"))
    return found


def _smaller(nodes: Sequence[NodeFacts]) -> list[NodeFinding]:
    """Nodes with less memory than the others, and devices that are slower."""
    found = []
    memory = [node.memory_gib for node in nodes if node.memory_gib > 0]
    usual = statistics.median_high(memory) if memory else 0
    rates = [rate for node in nodes for rate in node.teraflops]
    median = statistics.median_high(rates) if rates else 0
    for place, node in enumerate(nodes):
        if 0 < node.memory_gib < SMALL_SHARE * usual:
            text = f"{node.memory_gib:.0f} GiB of memory, the others {usual:.0f}"
            found.append(NodeFinding("problem", (place,), text))
        for device, rate in enumerate(node.teraflops):
            if rate < SLOW_SHARE * median:
                text = f"GPU {device} multiplies matrices at {rate:.0f} TFLOP/s, the median is {median:.0f}: see its clocks"
                found.append(NodeFinding("problem", (place,), text))
    return found
