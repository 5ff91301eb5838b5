"""`paceline report RUN [RUN...]`: write a run's report.html again, or one page that compares several runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from paceline._utils.atomic_write import check_output, write_output
from paceline._utils.errors import UserError
from paceline._utils.user_code import is_in_file
from paceline.cli.commands.runs import describe
from paceline.cli.flags import parse
from paceline.cli.printing import Printer, print_error
from paceline.config.constraints import Help
from paceline.config.run import read_run


@dataclass(frozen=True)
class Flags:
    """Which runs."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, Help("run folders; several are compared in one page")] = ()
    out: Annotated[str, Help("page of several runs; empty: comparison.html in the folder of the first")] = ""
    workload: Annotated[str, Help("file of the run's own workload, ./file.py:name, which is run as Python")] = ""


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Write the report of one run, or the comparison of several, and print where it lies."""
    description = "Write a run's report.html again, or one page that compares several runs of one task."
    flags = parse(printer, arguments, Flags(), "report", description)
    if not flags.runs:
        raise UserError("name a run folder: paceline report runs/resnet50-tiny-001")
    if flags.workload and not is_in_file(flags.workload):
        raise UserError(f"--workload {flags.workload}: name the file and the workload in it: ./file.py:name")
    folder, *others = flags.runs
    if others:
        return _compare(printer, flags)
    if flags.out:
        raise UserError(
            f"--out {flags.out}: the report of one run is {folder / 'report.html'}. Name several runs for a page."
        )
    # What is wrong is named before anything is written.
    is_own = is_in_file(str(read_run(folder, changed=print_error).recipe.get("task")))
    from paceline.models.registry import workload_of
    from paceline.tools.report.run_report import write_report

    try:
        with printer.waiting(f"writing the report of {folder}"):
            page = write_report(folder, workload_of(flags.workload) if flags.workload and is_own else None)
        printer.say(page)
        printer.facts = {"file": page}
    except OSError as problem:
        raise UserError(f"{folder}: the report cannot be written ({problem.strerror}).") from None
    return 0


def _compare(printer: Printer, flags: Flags) -> int:
    out = Path(flags.out) if flags.out else flags.runs[0].resolve().parent / "comparison.html"
    check_output(out)
    damaged: list[str] = []
    found = [(folder, *describe(folder, damaged)) for folder in flags.runs]
    tasks = {str(facts.recipe.get("task")): folder for folder, _, facts, _ in found}
    if len(tasks) > 1:
        named = ", ".join(f"{folder} {task}" for task, folder in tasks.items())
        raise UserError(f"runs of different tasks are not compared: {named}. Name runs of one task.")
    from paceline.tools.report.runs_page import Described, runs_page

    write_output(out, runs_page([Described(*one) for one in found], out, compared=True))
    for problem in damaged:
        print_error(f"damaged: {problem}")
    printer.say(out)
    printer.facts = {"file": out}
    return 0
