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

from paceline._utils.atomic_write import check_user_file
from paceline._utils.errors import PacelineError
from paceline._utils.text import WORDS, escape_line, text_width
from paceline.cli.flags import parse
from paceline.cli.printing import Printer, write_answer
from paceline.cli.remote_command import RemoteFlags, is_launched, launch_command
from paceline.config.constraints import Help
from paceline.config.system import System
from paceline.distributed.comm.launcher import SINGLE, read_launch
from paceline.distributed.device.systems import choose_system

if TYPE_CHECKING:
    from paceline.distributed.comm.launcher import Launch
    from paceline.launch.doctor.compare import MachineFact

MARKS = {"ok": "[green]ok[/]     ", "note": "[yellow]note[/]   ", "problem": "[red]problem[/]"}
ABOUT = """Report what this machine has for training and what is missing. With torchrun, srun, or mpirun, or with the launch flags
--nodes N --scheduler ... --launcher ..., print one line per node, and report differences and problems.
See docs/how-to/cluster/check-nodes.md. Exit code 0: no problem; 2: problems."""


@dataclass(frozen=True)
class DoctorFlags(RemoteFlags):
    """Where runs will go, how to answer, and which nodes to start on."""

    check_dir: Annotated[str, Help("folder of the runs, whose disk is checked on every node")] = "."
    system: Annotated[str, Help("expected system of each node, with multiple ranks; empty: unknown")] = ""
    nproc_per_node: Annotated[int, Help("ranks per node, with launch flags; 0: as in the system")] = 0
    json: Annotated[bool, Help("print one JSON object instead of lines")] = False
    output: Annotated[str, Help("JSON file to write the results to")] = ""
    print_host_info: Annotated[bool, Help("print this machine's hardware in one line, for `doctor` in a container")] = False


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Print the findings; 0 without a problem, 2 with one."""
    flags = parse(printer, arguments, DoctorFlags(), "doctor", ABOUT)
    check_user_file(flags.output)
    if flags.print_host_info:
        from paceline.launch.containers.host_facts import collect_host_facts

        print(json.dumps(collect_host_facts(), separators=(",", ":")))
        return 0
    launch = read_launch(os.environ)
    if is_launched(arguments) or flags.nproc_per_node:
        if launch.kind != SINGLE.kind:
            raise PacelineError(f"--nodes: not supported in a process that {launch.kind} started. Remove the flag.")
        folder = str(Path(flags.check_dir).expanduser().absolute())
        return launch_command(
            "doctor",
            ("doctor", "--check-dir", folder),
            flags,
            system_name=flags.system,
            ranks=flags.nproc_per_node,
            json=flags.json,
            out=flags.output,
            writes=(folder,),
        )
    if launch.world > 1:
        return run_nodes(flags, launch)
    from paceline.data.transforms.decode import require_decoder
    from paceline.launch.doctor.compare import count_problems
    from paceline.launch.doctor.local_checks import check_node

    findings = check_node(Path(flags.check_dir), flags.system, require_decoder=require_decoder)
    summary = {"findings": [asdict(finding) for finding in findings], "problems": count_problems(findings)}
    write_answer(summary, out=flags.output, printed=flags.json)
    if not flags.json:
        print_findings(findings)
        print(format_problem_count(findings) or "ready: paceline train ssd-demo")
    return 2 if count_problems(findings) else 0


def print_findings(findings: Sequence[MachineFact], width: int = 14) -> None:
    """A finding a line; on a terminal its text is wrapped beside its head."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(soft_wrap=True)
    for finding in findings:
        text, indent = escape_line(finding.text), " " * (width + 9)
        if console.is_terminal:
            text = f"\n{indent}".join(wrap(text, text_width() - len(indent), **WORDS))
        head = f"{MARKS[finding.level]} {escape(escape_line(finding.about)):<{width}}"
        console.print(f"{head} {escape(text)}", highlight=False)


def format_problem_count(findings: Sequence[MachineFact]) -> str:
    """As "2 problems"; "" where there is none."""
    from paceline.launch.doctor.compare import count_problems

    count = count_problems(findings)
    return f"{count} problem{'s'[: count != 1]}" if count else ""


# `paceline doctor` on the nodes of a job: a line a node, then what differs between them or is wrong with one.


def run_nodes(flags: DoctorFlags, launch: Launch) -> int:
    """One rank's part. Rank 0 prints; -> 2 with a problem, else 0; the other ranks always 0."""
    from paceline.distributed.comm.environment import apply_environment
    from paceline.launch.doctor.compare import (
        MachineFact,
        count_problems,
        examine_nodes,
        format_node,
        name_nodes,
        worst_level,
    )
    from paceline.launch.doctor.multi_node import examine_together

    system = choose_system(flags.system) if flags.system else None
    with apply_environment(system or System(), launch, named=False) as notes:
        nodes = examine_together(launch, Path(flags.check_dir).expanduser().absolute())
    if nodes is None:
        return 0  # rank 0 answers for all
    for note in notes:
        print(note, file=sys.stderr)
    called, results = name_nodes(nodes), examine_nodes(nodes, system)
    findings = [finding.with_names(called) for finding in results]
    summary = {
        "nodes": [{"name": name, **asdict(node)} for node, name in zip(nodes, called)],
        "findings": [{**finding._asdict(), "nodes": [called[index] for index in finding.nodes]} for finding in results],
        "problems": count_problems(findings),
    }
    write_answer(summary, out=flags.output, printed=flags.json)
    if not flags.json:
        lines = [
            MachineFact(worst_level(results, index), called[index], format_node(node)) for index, node in enumerate(nodes)
        ]
        print_findings([*lines, *findings], max(map(len, called)))
        print(format_problem_count(findings) or f"{len(nodes)} node{'s'[: len(nodes) != 1]}: identical and healthy")
    return 2 if count_problems(findings) else 0
