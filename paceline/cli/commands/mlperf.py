"""`paceline mlperf check RUN|FILE...` and `paceline mlperf analyze FILES`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from paceline._utils.errors import PacelineError
from paceline._utils.text import escape_text
from paceline.cli.flags import parse, run_kind
from paceline.cli.printing import Printer, print_error
from paceline.config.constraints import Help
from paceline.models.registry import WORKLOADS
from paceline.tools.mlperf import compliance
from paceline.tools.mlperf.analysis import analyze_log, summarize_groups
from paceline.tools.mlperf.logs import LogSummary, find_logs, get_benchmark, get_value, read_mllog

KINDS = """usage: paceline mlperf KIND ...

  check RUN|FILE ...     run MLPerf's checkers on logs and print their output; exit code 0: passed, 1: failed, 2: no log to check
  analyze RUN|FILE ...   tabulate logs of any program: time to train, epochs, images per second, evaluations, quality

Both have --help. docs/how-to/write-mlperf-logs.md describes the contents of a log and how to make one that passes."""

CHECK = """Run MLPerf's checkers (mlperf-logging) on one log or on the runs of a submission, and print their output unchanged. Each
log must comply with the rules. In the closed division, they also check the seeds and, if MLPerf has reference points for this number
of runs, the convergence. With --system-desc, they also check a system description."""


@dataclass(frozen=True)
class MLPerfCheckFlags:
    """What to judge, and by which rules."""

    logs: Annotated[tuple[str, ...], tyro.conf.Positional, Help("runs, logs, or folders of trial-N/ or result_N.txt")] = ()
    ruleset: Annotated[str, Help("version of the rules, e.g. 3.0.0; empty: the latest with the benchmark of the log")] = ""
    system_desc: Annotated[str, Help("systems/NAME.json of a submission to check; empty: none")] = ""
    json: Annotated[bool, Help("print one JSON object instead of text")] = False


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Carry out one of them."""
    return run_kind(printer, arguments, KINDS, "mlperf", {"check": _check, "analyze": run_analyze})


def _check(printer: Printer, arguments: Sequence[str]) -> int:
    flags = parse(printer, arguments, MLPerfCheckFlags(), "mlperf check", CHECK)
    files = find_logs(flags.logs, "check")
    logs = {file: read_mllog(file) for file in files}
    benchmarks = {file: get_benchmark(file, lines) for file, lines in logs.items()}
    if len(set(benchmarks.values())) > 1:
        told = ", ".join(f"{file} has {benchmark}" for file, benchmark in list(benchmarks.items())[:3])
        raise PacelineError(f"the logs have multiple benchmarks: {told}. Pass logs of one benchmark.")
    benchmark = benchmarks[files[0]]
    ruleset = _ruleset(benchmark, flags.ruleset, files[0])
    verdicts = [compliance.check_compliance(file, ruleset) for file in files]
    if all(get_value(lines, "submission_division") == "open" for lines in logs.values()):
        verdicts += [compliance.skip_open_division(name, files) for name in ("seeds", "rcp")]
    else:
        verdicts += [compliance.check_seeds(files, ruleset), compliance.check_convergence(files, benchmark, ruleset)]
    if flags.system_desc:
        description = Path(flags.system_desc).expanduser()
        if not description.is_file():
            raise PacelineError(f"--system-desc {flags.system_desc}: not found. Use a systems/NAME.json file.")
        verdicts.append(compliance.check_system_description(description, ruleset))
    missed = [verdict for verdict in verdicts if verdict.passed is False]
    # As MLPerf's package checker has it: of the runs of a whole submission one may fail, which counts as its slowest.
    allowed = len(files) == compliance.count_required_runs(benchmark) and [verdict.judge for verdict in missed] == [
        "compliance"
    ]
    passed = allowed or not missed
    if flags.json:
        failed = [line for verdict in verdicts for line in verdict.failed]
        facts = {"ruleset": ruleset, "passed": passed, "failed": failed, "benchmark": benchmark}
        print(json.dumps({**facts, "verdicts": [verdict.facts() for verdict in verdicts]}, indent=1))
        return 0 if passed else 1
    for verdict in verdicts:
        said = {True: "passed", False: "FAILED", None: "skipped"}[verdict.passed]
        printer.say(f"== {verdict.judge} of {verdict.about}: {said}")
        print(escape_text(verdict.text.rstrip()))
    one = f", except {missed[0].about}; one of {len(files)} runs may fail" if allowed else ""
    printer.say(f"== {benchmark}, rules {ruleset}: {'passed' if passed else 'FAILED'}{one}")
    return 0 if passed else 1


def _ruleset(benchmark: str, requested: str, file: Path) -> str:
    known = compliance.known_rulesets()
    if requested:
        if requested not in known:
            raise PacelineError(f"--ruleset {requested}: not supported by the checker. Known: {', '.join(known)}.")
        return requested
    parts = [workload.reporting for workload in WORKLOADS.values()]
    last = {reporting.benchmark: reporting.ruleset for reporting in parts if reporting.ruleset}
    if benchmark not in last:
        raise PacelineError(f"{file}: {benchmark} is unknown ({', '.join(last)} are known). Add --ruleset {known[-1]}")
    return last[benchmark]


ABOUT = """Tabulate logs of MLPerf, GluonCV, Habana's TensorFlow SSD, NVIDIA's DLLogger, Horovod, and MXNet. Multiple runs of one
system in one folder also get a summary line: the mean time without the fastest and the slowest run, and medians of the other values.
The steady rate is the rate of the median epoch, without the first epoch."""
WORDS = ("system", "benchmark", "status", "quality")  # columns that are no numbers


@dataclass(frozen=True)
class MLPerfAnalyzeFlags:
    """Which logs, and how the table is written."""

    logs: Annotated[tuple[str, ...], tyro.conf.Positional, Help("runs, logs, or folders of trial-N/ or result_N.txt")] = ()
    accelerators: Annotated[int, Help("number of accelerators of each log; 0: from the log or its systems/NAME.json")] = 0
    json: Annotated[bool, Help('print JSON: {"runs": [...], "summaries": [...]}')] = False
    csv: Annotated[bool, Help("print comma-separated values")] = False


def run_analyze(printer: Printer, arguments: Sequence[str]) -> int:
    """Print the table; logs that cannot be read are named after it."""
    flags = parse(printer, arguments, MLPerfAnalyzeFlags(), "mlperf analyze", ABOUT)
    if flags.json and flags.csv:
        raise PacelineError("--json and --csv: use only one of them.")
    if flags.accelerators < 0:
        raise PacelineError(f"--accelerators {flags.accelerators}: must be 0 (from the log) or more.")
    rows: list[LogSummary] = []
    problems: list[str] = []
    for file in find_logs(flags.logs, "analyze"):
        try:
            rows.append(analyze_log(file, flags.accelerators))
        except PacelineError as problem:
            problems.append(str(problem))
    if problems and not rows:
        raise PacelineError("\n".join(problems))
    means = summarize_groups(rows)
    if flags.json:
        print(json.dumps({"runs": [row.facts() for row in rows], "summaries": [row.facts() for row in means]}, indent=1))
    elif flags.csv:
        _print_csv([*rows, *means])
    else:
        _print_table(printer, rows, means)
    for problem in problems:
        print_error(f"skipped: {problem}")
    return 2 if problems else 0


def _print_csv(rows: Sequence[LogSummary]) -> None:
    flat = [{name: value for name, value in row.facts().items() if name != "quality"} | row.quality for row in rows]
    names = list(dict.fromkeys(name for facts in flat for name in facts))
    writer = csv.DictWriter(sys.stdout, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)


def _print_table(printer: Printer, rows: Sequence[LogSummary], means: Sequence[LogSummary]) -> None:
    cells = [{"#": str(number), **_cells(row)} for number, row in enumerate((*rows, *means), start=1)]
    widths = {name: max(len(row[name]) for row in ({name: name}, *cells)) for name in cells[0]}
    for row in ({name: name for name in widths}, *cells):
        words = (f"{row[name]:<{width}}" if name in WORDS else f"{row[name]:>{width}}" for name, width in widths.items())
        printer.say("  ".join(words).rstrip())
    for number, row in enumerate((*rows, *means), start=1):
        printer.say(f"{number:>3}: {row.file}  ({row.written_by})")


def _cells(row: LogSummary) -> dict[str, str]:
    """Column -> cell."""

    def number(value: float | None, digits: int = 0) -> str:
        return "-" if value is None else f"{value:,.{digits}f}"

    return {
        "system": row.system or "-",
        "benchmark": row.benchmark or "-",
        "acc": number(row.accelerators),
        "batch": number(row.global_batch_size),
        "status": row.status or "-",
        "minutes": number(row.minutes, 2),
        "epochs": "-" if row.epochs is None else f"{row.epochs:g}",
        "img/s": number(row.images_per_second),
        "img/s/acc": number(row.per_accelerator),
        "evals": number(row.evaluations),
        "eval s": number(row.eval_seconds, 1),
        "quality": "  ".join(f"{name} {value:.4f}" for name, value in row.quality.items()) or "-",
    }
