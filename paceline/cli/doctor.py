"""`paceline doctor`: what this machine has, what is missing, what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.cli.flags import parse

MARKS = {"ok": "[green]ok[/]     ", "note": "[yellow]note[/]   ", "problem": "[red]problem[/]"}


@dataclass(frozen=True)
class Flags:
    """No flags beside --help."""


def run(arguments: Sequence[str]) -> int:
    """Print the findings; 0 without a problem, 2 with one."""
    parse(arguments, Flags(), prog="doctor", description="Say what this machine has for training and what is missing.")
    from rich.console import Console
    from rich.markup import escape

    from paceline.doctor.finding import problems
    from paceline.doctor.here import examine

    findings = examine()
    console = Console(soft_wrap=True)
    for finding in findings:
        console.print(f"{MARKS[finding.level]} {finding.about:<14} {escape(finding.text)}", highlight=False)
    count = problems(findings)
    console.print(f"{count} problem{'s' if count != 1 else ''}" if count else "ready: paceline train ssd-tiny")
    return 2 if count else 0
