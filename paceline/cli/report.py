"""`paceline report RUN [RUN...]`: write report.html again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from paceline.cli.flags import parse
from paceline.cli.voice import complain, say
from paceline.config.errors import UserError
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
    for folder in flags.runs:
        read_run(folder, changed=complain)  # names what is wrong before anything is written
    from paceline.report.page import write_report
    from paceline.workloads import workload_of

    workload = workload_of(flags.workload) if flags.workload else None

    for folder in flags.runs:
        try:
            say(write_report(folder, workload))
        except OSError as problem:
            raise UserError(f"{folder}: the report cannot be written ({problem.strerror}).") from None
    return 0
