"""What MLPerf's own tools say of logs, word for word: compliance, seeds, reference convergence points, system description.

Each tool runs in a process of its own, as its authors meant it to: its text is kept as it is, and where it breaks down, that is
what is said. Source: mlperf-logging (extra `mlperf`), the modules that its package_checker runs over a submission.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline._utils.commands import install_command
from paceline._utils.errors import PacelineError
from paceline._utils.text import format_count

TIMEOUT = 600  # seconds; the longest published logs take a few
# Neither has an exit code of its own.
SEEDS = """import logging, sys
logging.basicConfig(level=logging.INFO, format="%(levelname)s - %(message)s")
from mlperf_logging.package_checker.seed_checker import SeedChecker
sys.exit(not SeedChecker(sys.argv[1]).check_seeds(sys.argv[2:]))"""
SYSTEM = """import logging, sys
logging.basicConfig(level=logging.INFO, format="%(levelname)s - %(message)s")
from mlperf_logging.system_desc_checker.system_desc_checker import check_system_desc
sys.exit(not check_system_desc(sys.argv[2], "training", sys.argv[1])[0])"""


@dataclass(frozen=True)
class ComplianceResult:
    """What one tool said."""

    judge: str  # compliance, seeds, rcp, system
    about: str  # the file, or how many
    passed: bool | None  # None: it was not asked, and text says why
    text: str  # as the tool printed it
    failed: tuple[str, ...] = ()  # a line for each thing that it objects to

    def facts(self) -> dict[str, object]:
        """For JSON."""
        return {name: getattr(self, name) for name in ("judge", "about", "passed", "failed", "text")}


def package_folder() -> Path:
    """Where mlperf_logging lies. Raises PacelineError where it is not installed."""
    result = importlib.util.find_spec("mlperf_logging")
    if result is None or not result.submodule_search_locations:
        raise PacelineError(f"MLPerf's checkers are not installed. Run:  {install_command('mlperf')}")
    return Path(next(iter(result.submodule_search_locations)))


def known_rulesets() -> list[str]:
    """Every ruleset of training that the checker has, oldest first."""
    names = [path.name for path in (package_folder() / "compliance_checker").glob("training_*")]
    results = [name.removeprefix("training_") for name in names if re.fullmatch(r"training_\d+\.\d+\.\d+", name)]
    return sorted(results, key=lambda name: [int(part) for part in name.split(".")])


def check_compliance(file: Path, ruleset: str) -> ComplianceResult:
    """The compliance checker on one log."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--usage", "training", "--ruleset", ruleset, "--log_output", f"{folder}/checker.log"]
        code, text = _run(["-m", "mlperf_logging.compliance_checker", *options, str(file.absolute())], folder)
    return ComplianceResult("compliance", str(file), code == 0, text, () if code == 0 else _objections(text))


def check_seeds(files: Sequence[Path], ruleset: str) -> ComplianceResult:
    """The seed checker: each run logs a seed, and no two the same."""
    code, text = _run(["-c", SEEDS, ruleset, *(str(file.absolute()) for file in files)])
    return ComplianceResult("seeds", format_count(len(files), "log"), code == 0, text, () if code == 0 else _last(text))


def check_convergence(files: Sequence[Path], benchmark: str, ruleset: str) -> ComplianceResult:
    """The RCP checker: the runs together converged no faster than the reference does at this batch."""
    about = format_count(len(files), "log")
    points = package_folder() / "rcp_checker" / f"training_{ruleset}" / f"rcps_{benchmark}.json"
    if not points.exists():
        return ComplianceResult("rcp", about, None, f"not run: rules {ruleset} have no reference points for {benchmark}")
    needed = count_required_runs(benchmark)
    if len(files) != needed:
        return ComplianceResult("rcp", about, None, f"not run: expected {needed} runs, got {len(files)}")
    with tempfile.TemporaryDirectory() as folder:
        for number, file in enumerate(files):
            shutil.copyfile(file, Path(folder) / f"result_{number}.txt")
        options = ["--rcp_version", ruleset, "--log_output", f"{folder}/checker.log"]
        code, text = _run(["-m", "mlperf_logging.rcp_checker", folder, *options], folder)
    return ComplianceResult("rcp", about, code == 0, text, () if code == 0 else _last(text))


def skip_open_division(judge: str, files: Sequence[Path]) -> ComplianceResult:
    """Seeds and convergence are the closed division's alone: MLPerf's package checker asks neither of open submissions."""
    return ComplianceResult(judge, format_count(len(files), "log"), None, "not run: open division")


def check_system_description(file: Path, ruleset: str) -> ComplianceResult:
    """The checker of system descriptions on a submission's systems/NAME.json."""
    code, text = _run(["-c", SYSTEM, ruleset, str(file.absolute())])
    return ComplianceResult("system", str(file), code == 0, text, () if code == 0 else _last(text))


def count_required_runs(benchmark: str) -> int:
    """How many runs make a submission."""
    from mlperf_logging.benchmark_meta import get_result_file_counts  # pyright: ignore[reportMissingImports]

    return get_result_file_counts("training").get(benchmark, 5)


def _run(words: Sequence[str], folder: str | None = None) -> tuple[int, str]:
    """-> (exit code, what was printed, on both streams in their order)."""
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            timeout=TIMEOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    except subprocess.TimeoutExpired:
        return 1, f"no result within {TIMEOUT} seconds\n"
    return done.returncode, done.stdout.decode("utf-8", "replace")


def _objections(text: str) -> tuple[str, ...]:
    """A line for each message of the compliance checker: its first, and the test that failed."""
    if crash := _crash(text):
        return crash
    body = text.partition("WARNING -")[2].rpartition("ERROR - FAILED")[0]
    results = []
    for message in re.split(r"\n-{30}\n|WARNING -", body):
        lines = [line for line in message.strip().splitlines() if line.strip()]
        if not lines:
            continue
        test = next((line.removeprefix("failed test:").strip() for line in lines if line.startswith("failed test:")), "")
        first = "" if lines[0].startswith("failed test:") else lines[0].strip().rstrip(":")
        results.append(": ".join(part for part in (first, " ".join(test.split())) if part)[:400])
    return tuple(results) or _last(text)


def _last(text: str) -> tuple[str, ...]:
    """The lines in which a tool says what it objects to, else its last one."""
    if crash := _crash(text):
        return crash
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return tuple(errors or lines[-1:] or ["no output"])


def _crash(text: str) -> tuple[str, ...]:
    if "Traceback (most recent call last)" not in text:
        return ()
    return (f"the checker failed: {text.strip().splitlines()[-1].strip()}",)
