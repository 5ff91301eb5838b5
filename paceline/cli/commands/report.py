"""`paceline report RUN [RUN...]`: write a run's report.html again, or one page that compares several runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from paceline._utils.atomic_write import check_user_file, write_user_file
from paceline._utils.errors import PacelineError
from paceline._utils.user_code import is_in_file
from paceline.cli.flags import parse
from paceline.cli.printing import Printer, print_error
from paceline.config.constraints import Help
from paceline.config.run import read_run
from paceline.tools.compare import summarize_run


@dataclass(frozen=True)
class ReportFlags:
    """Which runs."""

    runs: Annotated[
        tuple[Path, ...], tyro.conf.Positional, Help("run folders; multiple runs are compared in one page")
    ] = ()
    html: Annotated[str, Help("HTML file of the comparison; empty: comparison.html next to the first run")] = ""
    task_file: Annotated[str, Help("custom task of the run, ./file.py:name, which is executed as Python")] = ""


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Write the report of one run, or the comparison of several, and print where it lies."""
    description = "Write the report.html of a run again, or one page that compares multiple runs of one task."
    flags = parse(printer, arguments, ReportFlags(), "report", description)
    if not flags.runs:
        raise PacelineError("a run folder is required: paceline report runs/classify-demo-001")
    if flags.task_file and not is_in_file(flags.task_file):
        raise PacelineError(f"--task-file {flags.task_file}: must be ./file.py:name.")
    folder, *others = flags.runs
    if others:
        return _compare(printer, flags)
    if flags.html:
        raise PacelineError(
            f"--html {flags.html}: requires two or more runs. The report of one run is {folder / 'report.html'}."
        )
    # What is wrong is named before anything is written.
    is_own = is_in_file(str(read_run(folder, changed=print_error).recipe.get("task")))
    from paceline.models.registry import get_workload
    from paceline.tools.report.run_report import write_report

    try:
        with printer.waiting(f"writing the report of {folder}"):
            page = write_report(folder, get_workload(flags.task_file) if flags.task_file and is_own else None)
        printer.say(page)
        printer.facts = {"file": page}
    except OSError as problem:
        raise PacelineError(f"{folder}: failed to write the report ({problem.strerror}).") from None
    return 0


def _compare(printer: Printer, flags: ReportFlags) -> int:
    out = Path(flags.html) if flags.html else flags.runs[0].resolve().parent / "comparison.html"
    check_user_file(out, "--html")
    damaged: list[str] = []
    results = [summarize_run(folder, damaged) for folder in flags.runs]
    tasks = {str(one.facts.recipe.get("task")): one.folder for one in results}
    if len(tasks) > 1:
        named = ", ".join(f"{folder} {task}" for task, folder in tasks.items())
        raise PacelineError(f"all runs must have the same task: {named}.")
    from paceline.tools.report.runs_page import runs_page

    write_user_file(out, runs_page(results, out, compared=True), "--html")
    for problem in damaged:
        print_error(f"damaged: {problem}")
    printer.say(out)
    printer.facts = {"file": out}
    return 0
