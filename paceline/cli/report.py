"""`paceline report RUN [RUN...]`: write report.html again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from paceline.command.flags import parse
from paceline.command.printing import print_error, say
from paceline.config.errors import UserError
from paceline.config.python_file import is_in_file
from paceline.config.run import read_run


@dataclass(frozen=True)
class Flags:
    """Which runs."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()  # run folders
    workload: str = ""  # of a run whose workload is your own: its file, ./file.py:name, which is run as Python


def run(arguments: Sequence[str]) -> int:
    """Write each named run's report and print where it lies."""
    flags = parse(arguments, Flags(), prog="report", description="Write a run's report.html again.")
    if not flags.runs:
        raise UserError("name a run folder: paceline report runs/resnet50-tiny-001")
    if flags.workload and not is_in_file(flags.workload):
        raise UserError(f"--workload {flags.workload}: name the file and the workload in it: ./file.py:name")
    # What is wrong is named before anything is written.
    own = [is_in_file(str(read_run(folder, changed=print_error)["recipe"].get("task"))) for folder in flags.runs]
    from paceline.pages.page import write_report
    from paceline.tasks.workloads import workload_of

    workload = workload_of(flags.workload) if flags.workload else None

    for folder, is_own in zip(flags.runs, own):
        try:
            say(write_report(folder, workload if is_own else None))
        except OSError as problem:
            raise UserError(f"{folder}: the report cannot be written ({problem.strerror}).") from None
    return 0
