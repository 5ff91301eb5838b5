"""`paceline mlperf check RUN|FILE...` and `paceline mlperf analyse FILES`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from paceline.command.flags import parse
from paceline.command.printing import say
from paceline.config.errors import UserError
from paceline.config.printable import printable
from paceline.mlperf import judge
from paceline.mlperf.logs import benchmark_of, find_logs, read_mllog, value_of
from paceline.tasks.workloads import WORKLOADS

KINDS = """usage: paceline mlperf KIND ...

  check RUN|FILE ...     MLPerf's own checkers on logs, their verdict unedited; exit code 0 passed, 1 failed, 2 nothing to judge
  analyse RUN|FILE ...   one table of logs, ours and others': time to train, epochs, images a second, evaluations, quality

Each answers --help. docs/mlperf.md says what a log holds and how to make one that passes."""

CHECK = """MLPerf's own checkers (mlperf-logging) on one log or on the runs of a submission: compliance of each log, in the
closed division seeds and reference convergence points where there are some for as many runs as they judge, and a system description.
What they print is shown as it is."""


@dataclass(frozen=True)
class CheckFlags:
    """What to judge, and by which rules."""

    logs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()  # runs, logs, folders of trial-N/ or of result_N.txt
    ruleset: str = ""  # rules to judge by, e.g. 3.0.0; empty = the last of the log's benchmark
    system_desc: str = ""  # a submission's systems/NAME.json, to be judged too; empty = none
    json: bool = False  # print one JSON object instead of text


def run(arguments: Sequence[str]) -> int:
    """Carry out one of them."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(KINDS)
        return 0 if arguments else 2
    kind, rest = arguments[0], arguments[1:]
    if kind == "check":
        return _check(rest)
    if kind == "analyse":
        from paceline.mlperf.analyse_verb import run_analyse

        return run_analyse(rest)
    raise UserError(f"mlperf {kind!r}: there is no such thing. Known: check, analyse.")


def _check(arguments: Sequence[str]) -> int:
    flags = parse(arguments, CheckFlags(), prog="mlperf check", description=CHECK)
    files = find_logs(flags.logs, "check")
    logs = {file: read_mllog(file) for file in files}
    benchmarks = {file: benchmark_of(file, lines) for file, lines in logs.items()}
    if len(set(benchmarks.values())) > 1:
        told = ", ".join(f"{file} is of {benchmark}" for file, benchmark in list(benchmarks.items())[:3])
        raise UserError(f"these logs are of several benchmarks: {told}. Name those of one.")
    benchmark = benchmarks[files[0]]
    ruleset = _ruleset(benchmark, flags.ruleset, files[0])
    verdicts = [judge.compliance(file, ruleset) for file in files]
    if all(value_of(lines, "submission_division") == "open" for lines in logs.values()):
        verdicts += [judge.not_of_open(name, files) for name in ("seeds", "rcp")]
    else:
        verdicts += [judge.seeds(files, ruleset), judge.convergence(files, benchmark, ruleset)]
    if flags.system_desc:
        description = Path(flags.system_desc).expanduser()
        if not description.is_file():
            raise UserError(f"--system-desc {flags.system_desc}: there is no such file. Name a systems/NAME.json.")
        verdicts.append(judge.system_description(description, ruleset))
    missed = [verdict for verdict in verdicts if verdict.passed is False]
    # As MLPerf's package checker has it: of the runs of a whole submission one may fail, which counts as its slowest.
    allowed = len(files) == judge.runs_needed(benchmark) and [verdict.judge for verdict in missed] == ["compliance"]
    passed = allowed or not missed
    if flags.json:
        failed = [line for verdict in verdicts for line in verdict.failed]
        facts = {"ruleset": ruleset, "passed": passed, "failed": failed, "benchmark": benchmark}
        print(json.dumps({**facts, "verdicts": [verdict.facts() for verdict in verdicts]}, indent=1))
        return 0 if passed else 1
    for verdict in verdicts:
        said = {True: "passed", False: "FAILED", None: "not asked"}[verdict.passed]
        say(f"== {verdict.judge} of {verdict.about}: {said}")
        print(printable(verdict.text.rstrip()))
    one = f", though not {missed[0].about}: of {len(files)} runs one may fail" if allowed else ""
    say(f"== {benchmark}, rules {ruleset}: {'passed' if passed else 'FAILED'}{one}")
    return 0 if passed else 1


def _ruleset(benchmark: str, asked: str, file: Path) -> str:
    known = judge.known_rulesets()
    if asked:
        if asked not in known:
            raise UserError(f"--ruleset {asked}: the checker has no such rules. Known: {', '.join(known)}.")
        return asked
    last = {workload.benchmark: workload.ruleset for workload in WORKLOADS.values() if workload.ruleset}
    if benchmark not in last:
        raise UserError(
            f"{file}: a log of {benchmark}, which is none of ours ({', '.join(last)}). Name its rules: --ruleset {known[-1]}"
        )
    return last[benchmark]
