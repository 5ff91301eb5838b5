"""Which nodes of a job may train, by what each reported of itself and of the others; and the report of it.

A node is bad that never answered; has a problem by `paceline doctor`; has a folder that is full, or cannot be written or read;
is not reached, or reaches nobody; has a core slower than SLOW_CORE of the other nodes' slowest cores, or links all slower than
SLOW_LINK of the median link; or a clock further off than doctor's bound. Medians are of the others: with two nodes, of the other one.
The report: lines for the launch's log, and preflight.json and preflight.html beside it.
"""

from __future__ import annotations

import html
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline._utils.atomic_write import KEY, atomic_write
from paceline._utils.text import escape_line
from paceline.config.system import System
from paceline.launch.doctor.compare import FAR_SECONDS, Level, MachineFact, count_problems, examine_nodes, format_node
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
            add(number, "did not respond")
        elif number not in reaches:
            add(number, "stopped responding during the connection tests")
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
        words = [f"{names[source]} does not reach this node at {text}" for source, text in incoming[:1]]
        words += [f"this node does not reach {names[target]} at {text}" for target, text in outgoing[:1] if not incoming]
        more = len(incoming or outgoing) - 1
        result[worst] = words[0] + (f" (failed connections: {more + 1})" if more else "")
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
                f"core {core} hashes {rate:.0f} MB/s, the slowest core of the other nodes {usual:.0f} MB/s (minimum: "
                f"{SLOW_CORE:g} of it). Check for another program, heat, or a limited clock"
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
            yield (
                number,
                f"the best link has {best:.0f} MB/s, the median is {median:.0f} MB/s (minimum: {SLOW_LINK:g} of it)",
            )


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
            text = f"the clock is {abs(offset):.3g} s {ahead} the other nodes. Check that a time service is running (chrony, ntpd)"
            yield number, text


STYLE = "body{font:15px sans-serif;margin:2em;max-width:80em}td,th{padding:.3em .8em;text-align:left;vertical-align:top}"
STYLE += "tr.excluded{background:#fdd}tr.trains{background:#dfd}pre{white-space:pre-wrap}"


@dataclass(frozen=True)
class Preflight:
    """The result of a preflight."""

    names: Sequence[str]  # of the nodes, in the order of their numbers
    looks: Mapping[int, LocalChecks]  # number of a node -> what it reported of itself
    reaches: Mapping[int, NetworkChecks]  # number of a node -> which others it reaches
    found: Mapping[int, Sequence[MachineFact]]  # number of a node -> what is wrong there
    good: bool  # whether the job trains
    comm: Mapping[str, Any]  # what `bench comm` measured over them
    failure: str  # of the ranks together; '' = none
    seconds: float  # that it all took

    def state(self, number: int) -> str:
        """What becomes of a node."""
        if count_problems(self.found[number]):
            return "excluded"
        return "trains" if self.good else "good"


def write_report(result: Preflight, folder: Path) -> str:
    """preflight.json and preflight.html in `folder`; -> the lines."""
    text = "\n".join(_lines(result))
    atomic_write(folder / "preflight.json", json.dumps(_facts(result), indent=1) + "\n")
    atomic_write(folder / "preflight.html", _page(result))
    return f"{text}\npreflight: report: {folder / 'preflight.html'}"


def _lines(result: Preflight) -> list[str]:
    many = f"{len(result.names)} node{'s'[: len(result.names) != 1]}"
    results = [f"preflight of {many}, {result.seconds:.0f} s"]
    width = max(map(len, result.names))
    for number, name in enumerate(result.names):
        results.append(f"{result.state(number):<9}{name:<{width}}  {_measured(result, number)}")
    for number in range(len(result.names)):
        results += [f"{finding.level:<9}{finding.about:<{width}}  {finding.text}" for finding in result.found[number]]
    if fit := (result.comm.get("fit") or {}).get("paceline"):
        comm = result.comm
        bus = f", bus {fit['bus_bandwidth'] / 1e9:,.3f} GB/s" if fit["bus_bandwidth"] else ""
        results.append(
            f"bench comm: {comm['world_size']} ranks on {comm['nodes']} node{'s'[: comm['nodes'] != 1]}, {comm['backend']}: "
            f"all-reduce alpha {1e6 * fit['alpha_seconds']:,.1f} us{bus}"
        )
    return [escape_line(text) for text in (*results, _verdict(result))]


def _verdict(result: Preflight) -> str:
    if result.good:
        return f"preflight: training on {', '.join(result.names)}"
    if result.failure:
        return f"paceline: preflight failed: {result.failure}"
    bad_ones = (finding for own in result.found.values() for finding in own if finding.level == "problem")
    why = "; ".join(f"{finding.about}: {finding.text}" for finding in bad_ones)
    good = sum(not count_problems(own) for own in result.found.values())
    return f"paceline: preflight failed: {why}. {good} of {len(result.names)} nodes passed"


def _measured(result: Preflight, number: int) -> str:
    if number not in result.looks:
        return ""
    look, reach = result.looks[number], result.reaches.get(number)
    slowest = f"slowest core {min(reach.cores.values()):.0f} MB/s SHA-256; " if reach and reach.cores else ""
    sends = f"sends {max(reach.rates.values()):.0f} MB/s; " if reach and reach.rates else ""
    return f"{slowest}{sends}{format_node(look.facts)}"


def _facts(result: Preflight) -> dict[str, Any]:
    nodes = [
        {
            "name": name,
            "state": result.state(number),
            "findings": [asdict(finding) for finding in result.found[number]],
            "look": asdict(result.looks[number]) if number in result.looks else None,
            "reach": asdict(result.reaches[number]) if number in result.reaches else None,
        }
        for number, name in enumerate(result.names)
    ]
    results = {name: getattr(result, name) for name in ("good", "failure", "seconds")}
    return {KEY: "preflight", **results, "nodes": nodes, "comm": dict(result.comm)}


def _page(result: Preflight) -> str:
    """A table of nodes, their findings, and the lines as they stand in the log."""
    rows = []
    for number, name in enumerate(result.names):
        match = "<br>".join(html.escape(f"{finding.level}: {finding.text}") for finding in result.found[number])
        state = result.state(number)
        cells = (state, name, _measured(result, number))
        rows.append(
            f'<tr class="{state}">' + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + f"<td>{match}</td></tr>"
        )
    comm = "".join(
        f"<tr><td>{html.escape(row['kind'])} {html.escape(row['about'])}</td><td>{row['bytes']:,}</td>"
        f"<td>{1e6 * row['seconds']['paceline']['median']:,.1f}</td></tr>"
        for row in result.comm.get("rows", ())
    )
    return (
        f'<!doctype html><meta charset="utf-8"><title>preflight</title><style>{STYLE}</style><h1>Preflight</h1>'
        f"<p>{html.escape(_verdict(result))}</p><table><tr><th>state<th>node<th>hardware<th>findings</tr>{''.join(rows)}</table>"
        + (f"<h2>bench comm</h2><table><tr><th>message<th>bytes<th>median (us)</tr>{comm}</table>" if comm else "")
        + "\n"
    )
