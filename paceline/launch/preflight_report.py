"""What a preflight found, as lines for the launch's log, and as preflight.json and preflight.html beside it."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.config.printable import one_line
from paceline.config.whole import KEY, write_whole
from paceline.machine.doctor.compare import Finding, line
from paceline.machine.doctor.preflight import Look, Reach, bad

STYLE = (
    "body{font:15px sans-serif;margin:2em;max-width:80em}td,th{padding:.3em .8em;text-align:left;vertical-align:top}"
)
STYLE += "tr.excluded{background:#fdd}tr.trains{background:#dfd}pre{white-space:pre-wrap}"


@dataclass(frozen=True)
class Preflight:
    """All of it."""

    names: Sequence[str]  # of the nodes, in the order of their numbers
    looks: Mapping[int, Look]  # number of a node -> what it says of itself
    reaches: Mapping[int, Reach]  # number of a node -> which others it reaches
    found: Mapping[int, Sequence[Finding]]  # number of a node -> what is wrong there
    chosen: Sequence[str]  # names of the nodes that train; none = the job is refused
    comm: Mapping[str, Any]  # what `bench comm` measured over them
    failure: str  # of the ranks together; '' = none
    seconds: float  # that it all took
    wanted: int  # nodes that are to train

    def state(self, number: int) -> str:
        """What becomes of a node."""
        if bad(self.found[number]):
            return "excluded"
        return "trains" if self.names[number] in self.chosen else "spare" if self.chosen else "good"


def write_report(told: Preflight, folder: Path) -> str:
    """preflight.json and preflight.html in `folder`; -> the lines."""
    text = "\n".join(_lines(told))
    write_whole(folder / "preflight.json", json.dumps(_facts(told), indent=1) + "\n")
    write_whole(folder / "preflight.html", _page(told))
    return f"{text}\npreflight: the report is {folder / 'preflight.html'}"


def _lines(told: Preflight) -> list[str]:
    many = f"{len(told.names)} node{'s'[: len(told.names) != 1]}"
    found = [f"preflight of {many}, {told.wanted} to train, {told.seconds:.0f} s"]
    width = max(map(len, told.names))
    for number, name in enumerate(told.names):
        found.append(f"{told.state(number):<9}{name:<{width}}  {_measured(told, number)}")
    for number in range(len(told.names)):
        found += [f"{finding.level:<9}{finding.about:<{width}}  {finding.text}" for finding in told.found[number]]
    if fit := (told.comm.get("fit") or {}).get("paceline"):
        comm = told.comm
        bus = f", bus {fit['bus_bandwidth'] / 1e9:,.3f} GB/s" if fit["bus_bandwidth"] else ""
        found.append(
            f"bench comm: {comm['world']} ranks on {comm['nodes']} node{'s'[: comm['nodes'] != 1]}, {comm['backend']}: "
            f"all-reduce alpha {1e6 * fit['alpha_seconds']:,.1f} us{bus}"
        )
    return [one_line(text) for text in (*found, _verdict(told))]


def _verdict(told: Preflight) -> str:
    out = [name for number, name in enumerate(told.names) if told.state(number) == "excluded"]
    if told.chosen:
        left = f"; excluded: {', '.join(out)}" if out else ""
        return f"preflight: trains on {', '.join(told.chosen)}{left}"
    if told.failure:
        return f"paceline: preflight refuses the job: {told.failure}"
    bad_ones = (finding for own in told.found.values() for finding in own if finding.level == "problem")
    why = "; ".join(f"{finding.about}: {finding.text}" for finding in bad_ones)
    good = len(told.names) - len(out)
    return f"paceline: preflight refuses the job: {why}. {good} of {told.wanted} wanted nodes are good; spare ones: --spares N"


def _measured(told: Preflight, number: int) -> str:
    if number not in told.looks:
        return ""
    look, reach = told.looks[number], told.reaches.get(number)
    slowest = f"slowest core {min(reach.cores.values()):.0f} MB/s of SHA-256; " if reach and reach.cores else ""
    sends = f"sends {max(reach.rates.values()):.0f} MB/s; " if reach and reach.rates else ""
    return f"{slowest}{sends}{line(look.facts)}"


def _facts(told: Preflight) -> dict[str, Any]:
    nodes = [
        {
            "name": name,
            "state": told.state(number),
            "findings": [asdict(finding) for finding in told.found[number]],
            "look": asdict(told.looks[number]) if number in told.looks else None,
            "reach": asdict(told.reaches[number]) if number in told.reaches else None,
        }
        for number, name in enumerate(told.names)
    ]
    facts = {"chosen": list(told.chosen), "failure": told.failure, "seconds": told.seconds, "wanted": told.wanted}
    return {KEY: "preflight", **facts, "nodes": nodes, "comm": dict(told.comm)}


def _page(told: Preflight) -> str:
    """A table of nodes, their findings, and the lines as they stand in the log."""
    rows = []
    for number, name in enumerate(told.names):
        found = "<br>".join(html.escape(f"{finding.level}: {finding.text}") for finding in told.found[number])
        state = told.state(number)
        cells = (state, name, _measured(told, number))
        rows.append(
            f'<tr class="{state}">'
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
            + f"<td>{found}</td></tr>"
        )
    comm = "".join(
        f"<tr><td>{html.escape(row['kind'])} {html.escape(row['about'])}</td><td>{row['bytes']:,}</td>"
        f"<td>{1e6 * row['seconds']['paceline']['median']:,.1f}</td></tr>"
        for row in told.comm.get("rows", ())
    )
    return (
        f'<!doctype html><meta charset="utf-8"><title>preflight</title><style>{STYLE}</style><h1>Preflight</h1>'
        f"<p>{html.escape(_verdict(told))}</p><table><tr><th>state<th>node<th>what it is<th>found</tr>{''.join(rows)}</table>"
        + (f"<h2>bench comm</h2><table><tr><th>message<th>bytes<th>us, median</tr>{comm}</table>" if comm else "")
        + "\n"
    )
