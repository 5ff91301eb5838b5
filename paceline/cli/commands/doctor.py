"""`paceline doctor`: what this machine has, what is missing, what to do about it; under a launcher, of all its nodes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

from paceline._utils.atomic_write import check_output
from paceline._utils.errors import UserError
from paceline._utils.text import WORDS, columns, one_line
from paceline.cli.flags import parse
from paceline.cli.on_nodes import Elsewhere, is_launched, launch_verb
from paceline.cli.printing import Printer, write_answer
from paceline.config.constraints import Help
from paceline.config.system import System
from paceline.distributed.comm.launcher import SINGLE, read_launch
from paceline.training.select import choose_system

if TYPE_CHECKING:
    from paceline.distributed.comm.launcher import Launch
    from paceline.launch.doctor.compare import Finding

MARKS = {"ok": "[green]ok[/]     ", "note": "[yellow]note[/]   ", "problem": "[red]problem[/]"}
ABOUT = """Say what this machine has for training and what is missing. Under torchrun, srun or mpirun, or started with --nodes N
--through ... --start ... as a launch is: a line a node, and what differs between nodes or is wrong with one (docs/health.md).
Exit code 0 without a problem, 2 with one."""


@dataclass(frozen=True)
class Flags(Elsewhere):
    """Where runs will go, how to answer, and which nodes to start on."""

    folder: Annotated[str, Help("folder of the runs, whose disk is looked at on every node")] = "."
    system: Annotated[str, Help("with several ranks: what each node should be; empty: not known")] = ""
    ranks: Annotated[int, Help("with --nodes and the like: ranks a node; 0: the system's")] = 0
    json: Annotated[bool, Help("print one JSON object instead of lines")] = False
    out: Annotated[str, Help("also write the JSON here")] = ""
    facts: Annotated[bool, Help("print this machine's facts in a line, for a container's doctor")] = False


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Print the findings; 0 without a problem, 2 with one."""
    flags = parse(printer, arguments, Flags(), "doctor", ABOUT)
    check_output(flags.out)
    if flags.facts:
        from paceline.launch.containers.host_facts import facts

        print(json.dumps(facts(), separators=(",", ":")))
        return 0
    launch = read_launch(os.environ)
    if is_launched(arguments) or flags.ranks:
        if launch.kind != SINGLE.kind:
            raise UserError(f"--nodes and the like: {launch.kind} has started this process already. Leave them out.")
        folder = str(Path(flags.folder).expanduser().absolute())
        return launch_verb(
            "doctor",
            ("doctor", "--folder", folder),
            flags,
            system_name=flags.system,
            ranks=flags.ranks,
            json=flags.json,
            out=flags.out,
            writes=(folder,),
        )
    if launch.world > 1:
        return run_nodes(flags, launch)
    from paceline.launch.doctor.compare import problems
    from paceline.launch.doctor.here import examine

    findings = examine(Path(flags.folder), flags.system)
    summary = {"findings": [asdict(finding) for finding in findings], "problems": problems(findings)}
    write_answer(summary, out=flags.out, printed=flags.json)
    if not flags.json:
        print_findings(findings)
        print(in_number(findings) or "ready: paceline train ssd-tiny")
    return 2 if problems(findings) else 0


def print_findings(findings: Sequence[Finding], width: int = 14) -> None:
    """A finding a line; on a terminal its text is wrapped beside its head."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(soft_wrap=True)
    for finding in findings:
        text, indent = one_line(finding.text), " " * (width + 9)
        if console.is_terminal:
            text = f"\n{indent}".join(wrap(text, columns() - len(indent), **WORDS))
        head = f"{MARKS[finding.level]} {escape(one_line(finding.about)):<{width}}"
        console.print(f"{head} {escape(text)}", highlight=False)


def in_number(findings: Sequence[Finding]) -> str:
    """As "2 problems"; "" where there is none."""
    from paceline.launch.doctor.compare import problems

    count = problems(findings)
    return f"{count} problem{'s'[: count != 1]}" if count else ""


# `paceline doctor` on the nodes of a job: a line a node, then what differs between them or is wrong with one.


def run_nodes(flags: Flags, launch: Launch) -> int:
    """One rank's part. Rank 0 prints; -> 2 with a problem, else 0; the other ranks always 0."""
    from paceline.distributed.comm.environment import environment
    from paceline.launch.doctor.compare import Finding, examine_nodes, line, names, problems, worst
    from paceline.launch.doctor.multi_node import examine_together

    system = choose_system(flags.system) if flags.system else None
    with environment(system or System(), launch, named=False) as notes:
        nodes = examine_together(launch, Path(flags.folder).expanduser().absolute())
    if nodes is None:
        return 0  # rank 0 answers for all
    for note in notes:
        print(note, file=sys.stderr)
    called, found = names(nodes), examine_nodes(nodes, system)
    findings = [finding.with_names(called) for finding in found]
    summary = {
        "nodes": [{"name": name, **asdict(node)} for node, name in zip(nodes, called)],
        "findings": [{**finding._asdict(), "nodes": [called[place] for place in finding.nodes]} for finding in found],
        "problems": problems(findings),
    }
    write_answer(summary, out=flags.out, printed=flags.json)
    if not flags.json:
        lines = [Finding(worst(found, place), called[place], line(node)) for place, node in enumerate(nodes)]
        print_findings([*lines, *findings], max(map(len, called)))
        print(in_number(findings) or f"{len(nodes)} node{'s'[: len(nodes) != 1]} alike and healthy")
    return 2 if problems(findings) else 0
