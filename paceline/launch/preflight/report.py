"""What a preflight found, as lines for the launch's log, and as preflight.json and preflight.html beside it."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline._utils.atomic_write import KEY, atomic_write
from paceline._utils.text import escape_line
from paceline.launch.doctor.compare import MachineFact, format_node
from paceline.launch.doctor.preflight import LocalChecks, NetworkChecks, has_problem

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
        if has_problem(self.found[number]):
            return "excluded"
        return "trains" if self.good else "good"


def write_report(result: Preflight, folder: Path) -> str:
    """preflight.json and preflight.html in `folder`; -> the lines."""
    text = "\n".join(_lines(result))
    atomic_write(folder / "preflight.json", json.dumps(_facts(result), indent=1) + "\n")
    atomic_write(folder / "preflight.html", _page(result))
    return f"{text}\npreflight: the report is {folder / 'preflight.html'}"


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
            f"bench comm: {comm['world']} ranks on {comm['nodes']} node{'s'[: comm['nodes'] != 1]}, {comm['backend']}: "
            f"all-reduce alpha {1e6 * fit['alpha_seconds']:,.1f} us{bus}"
        )
    return [escape_line(text) for text in (*results, _verdict(result))]


def _verdict(result: Preflight) -> str:
    if result.good:
        return f"preflight: trains on {', '.join(result.names)}"
    if result.failure:
        return f"paceline: preflight refuses the job: {result.failure}"
    bad_ones = (finding for own in result.found.values() for finding in own if finding.level == "problem")
    why = "; ".join(f"{finding.about}: {finding.text}" for finding in bad_ones)
    good = sum(not has_problem(own) for own in result.found.values())
    return f"paceline: preflight refuses the job: {why}. {good} of {len(result.names)} nodes are good"


def _measured(result: Preflight, number: int) -> str:
    if number not in result.looks:
        return ""
    look, reach = result.looks[number], result.reaches.get(number)
    slowest = f"slowest core {min(reach.cores.values()):.0f} MB/s of SHA-256; " if reach and reach.cores else ""
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
        f"<p>{html.escape(_verdict(result))}</p><table><tr><th>state<th>node<th>what it is<th>found</tr>{''.join(rows)}</table>"
        + (f"<h2>bench comm</h2><table><tr><th>message<th>bytes<th>us, median</tr>{comm}</table>" if comm else "")
        + "\n"
    )
