"""`paceline mlperf analyse RUN|FILE...`: one table of logs, ours and others'."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from paceline.command.flags import parse
from paceline.command.printing import complain, say
from paceline.config.errors import UserError
from paceline.mlperf.analysis import analyse, summaries
from paceline.mlperf.logs import Row, find_logs

ABOUT = """One table of logs: MLPerf's (published ones, and ours), GluonCV's, Habana's TensorFlow SSD, NVIDIA's DLLogger, Horovod's and
MXNet's. Several runs of one system in one folder get a line of their own: the mean of their times without the fastest and the slowest,
medians of the rest. The steady rate is of the median epoch, the first left out."""
COLUMNS = (
    "#",
    "system",
    "benchmark",
    "acc",
    "batch",
    "status",
    "minutes",
    "epochs",
    "img/s",
    "img/s/acc",
    "evals",
    "eval s",
    "quality",
)
WORDS = (1, 2, 5, 12)  # columns that are no numbers


@dataclass(frozen=True)
class AnalyseFlags:
    """Which logs, and how the table is written."""

    logs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()  # runs, logs, folders of trial-N/ or of result_N.txt
    accelerators: int = 0  # of each log; 0 = as it says, or as the systems/NAME.json of its submission says
    json: bool = False  # print JSON: {"runs": [...], "summaries": [...]}
    csv: bool = False  # print comma-separated values


def run_analyse(arguments: Sequence[str]) -> int:
    """Print the table; logs that cannot be read are named after it."""
    flags = parse(arguments, AnalyseFlags(), prog="mlperf analyse", description=ABOUT)
    if flags.json and flags.csv:
        raise UserError("--json and --csv: name one of them.")
    if flags.accelerators < 0:
        raise UserError(f"--accelerators {flags.accelerators}: must be 0 (as the log says) or more.")
    rows: list[Row] = []
    problems: list[str] = []
    for file in find_logs(flags.logs, "analyse"):
        try:
            rows.append(analyse(file, flags.accelerators))
        except UserError as problem:
            problems.append(str(problem))
    if problems and not rows:
        raise UserError("\n".join(problems))
    means = summaries(rows)
    if flags.json:
        print(
            json.dumps({"runs": [row.facts() for row in rows], "summaries": [row.facts() for row in means]}, indent=1)
        )
    elif flags.csv:
        _print_csv([*rows, *means])
    else:
        _print_table(rows, means)
    for problem in problems:
        complain(f"left out: {problem}")
    return 2 if problems else 0


def _print_csv(rows: Sequence[Row]) -> None:
    flat = []
    for row in rows:
        facts = row.facts()
        flat.append({**{name: value for name, value in facts.items() if name != "quality"}, **row.quality})
    names = list(dict.fromkeys(name for facts in flat for name in facts))
    writer = csv.DictWriter(sys.stdout, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)


def _print_table(rows: Sequence[Row], means: Sequence[Row]) -> None:
    table = [COLUMNS, *((str(number), *_cells(row)) for number, row in enumerate((*rows, *means), start=1))]
    widths = [max(len(line[column]) for line in table) for column in range(len(COLUMNS))]
    for line in table:
        say(
            "  ".join(
                f"{cell:<{width}}" if number in WORDS else f"{cell:>{width}}"
                for number, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
        )
    for number, row in enumerate((*rows, *means), start=1):
        say(f"{number:>3}: {row.file}  ({row.written_by})")


def _cells(row: Row) -> tuple[str, ...]:
    def number(value: float | None, digits: int = 0) -> str:
        return "-" if value is None else f"{value:,.{digits}f}"

    quality = "  ".join(f"{name} {value:.4f}" for name, value in row.quality.items())
    return (
        row.system or "-",
        row.benchmark or "-",
        number(row.accelerators),
        number(row.global_batch),
        row.status or "-",
        number(row.minutes, 2),
        "-" if row.epochs is None else f"{row.epochs:g}",
        number(row.images_per_second),
        number(row.per_accelerator),
        number(row.evaluations),
        number(row.eval_seconds, 1),
        quality or "-",
    )
