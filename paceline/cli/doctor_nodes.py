"""`paceline doctor` on the nodes of a job: a line a node, then what differs between them or is wrong with one."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.answer import answer
from paceline.cli.choose import choose_system
from paceline.cli.doctor import Flags, in_number, tell
from paceline.config.system import System

if TYPE_CHECKING:
    from paceline.ranks.launcher import Launch


def run_nodes(flags: Flags, launch: Launch) -> int:
    """One rank's part. Rank 0 prints; -> 2 with a problem, else 0; the other ranks always 0."""
    from paceline.machine.doctor.compare import examine_nodes, names, worst
    from paceline.machine.doctor.finding import Finding, problems
    from paceline.machine.doctor.node_line import line
    from paceline.machine.doctor.together import examine_together
    from paceline.ranks.environment import environment

    system = choose_system(flags.system) if flags.system else None
    with environment(system or System(), launch, named=False) as notes:
        nodes = examine_together(launch, Path(flags.folder).expanduser().absolute())
    if nodes is None:
        return 0  # rank 0 answers for all
    for note in notes:
        print(note, file=sys.stderr)
    called, found = names(nodes), examine_nodes(nodes, system)
    findings = [finding.named(called) for finding in found]
    told = {
        "nodes": [{"name": name, **asdict(node)} for node, name in zip(nodes, called)],
        "findings": [{**finding._asdict(), "nodes": [called[place] for place in finding.nodes]} for finding in found],
        "problems": problems(findings),
    }
    answer(told, out=flags.out, printed=flags.json)
    if not flags.json:
        lines = [Finding(worst(found, place), called[place], line(node)) for place, node in enumerate(nodes)]
        tell([*lines, *findings], max(map(len, called)))
        print(in_number(findings) or f"{len(nodes)} node{'s'[: len(nodes) != 1]} alike and healthy")
    return 2 if problems(findings) else 0
