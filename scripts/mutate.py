"""Plant single errors in the package, one at a time, and report those that the tests do not notice.

    python scripts/mutate.py --out before.jsonl                        # 60 errors of seed 1 and 60 of seed 2; twice: continues
    python scripts/mutate.py --against before.jsonl --out after.jsonl  # the same errors; exit code 1 if one is not noticed any more
    python scripts/mutate.py --packages boxes optim --sample 50 --seeds 3
    python scripts/mutate.py --only models/ops/boxes.py:58 --only "training/step.py:73: False -> True"

This tree stays unchanged: each job has a copy of it. TESTS names the tests of each package. A first run records which of these
tests covers which line (in --covered, per test file, until that file changes). It leaves out tests of several processes, of a CUDA
device, and of --nightly. Each error then runs the tests of its package that cover its line, and after them the other tests of the
same files. In both groups the fast tests are first, and the first failure ends the run. The script prints the errors that no test
noticed: a reader judges which of them change no result. Requires `pip install coverage` and fork (Linux, macOS).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import changes
import pytest
from changes import Change
from mutation_jobs import Chosen, Job, run_jobs, run_tests

# Every package that computes something (and the files beside them) -> its tests: folders and files of tests/.
TESTS = {
    "_utils": ("_utils", "cli", "training"),
    "cli": ("cli",),
    "config": ("config", "tools"),
    "data": ("data", "oracle", "models"),
    "distributed": ("distributed", "training"),
    "inference": ("inference", "cli"),
    "models": ("models", "oracle", "training"),
    "tools": ("tools", "training/test_mlperf_rules.py", "training/test_mlperf_recipes.py", "cli"),
    "training": ("training", "oracle"),
}
# These compute nothing: a call of the training, and what starts processes.
NOT_COMPUTING = ("api.py", "launch")
UNCOVERED, SURVIVED, NOTICED = "not covered", "survived", "noticed"


@dataclass
class Covered:
    """Which test covers which line: of each file of tests its hash, {test: seconds}, {file: {line: [numbers of tests]}}."""

    root: Path
    kept_in: Path
    by_file: dict[str, dict[str, Any]] = field(default_factory=dict)

    def gather(self, tests: Iterable[str], places: list[Path]) -> None:
        """Read what is kept for these folders and files of tests/; run what has changed since."""
        self.kept_in.mkdir(parents=True, exist_ok=True)
        jobs = []
        chosen = [self.root / "tests" / entry for entry in tests]
        for path in sorted({file for one in chosen for file in ([one] if one.suffix else one.rglob("test_*.py"))}):
            name = path.relative_to(self.root).as_posix()
            kept = self.kept_in / f"{name.replace('/', '.')}.json"
            said = json.loads(kept.read_text()) if kept.exists() else {}
            if said.get("hash") == _hash(path):
                self.by_file[name] = said
            else:
                jobs.append(Job(lambda place, name=name, kept=kept: self._run(place, name, kept), self._read(name, kept)))
        if jobs:
            print(f"recording which lines {len(jobs)} test files cover ...", flush=True)
        run_jobs(jobs, places)

    def _read(self, name: str, kept: Path) -> Callable[[Path, int], None]:
        def ended(place: Path, code: int) -> None:
            if code not in (0, 5):
                print(f"{name}: pytest ended with exit code {code}; its failing tests are not used", flush=True)
            if kept.exists():
                self.by_file[name] = json.loads(kept.read_text())

        return ended

    def _run(self, place: Path, name: str, kept: Path) -> int:
        import coverage

        package = [str(place / "paceline" / "*")]
        covering = coverage.Coverage(data_file=None, include=package, config_file=False, messages=False)
        seconds: dict[str, float] = {}
        spoilt: set[str] = set()

        class Contexts:
            @pytest.hookimpl(wrapper=True, tryfirst=True)
            def pytest_runtest_protocol(self, item: pytest.Item):
                covering.switch_context(item.nodeid)
                return (yield)

            def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
                seconds[report.nodeid] = round(seconds.get(report.nodeid, 0.0) + report.duration, 3)
                if not report.passed:
                    spoilt.add(report.nodeid)

        covering.start()
        code = run_tests(place, [name], plugins=[Chosen(place, None), Contexts()])
        covering.stop()
        good = {test: took for test, took in seconds.items() if test not in spoilt}
        number = {test: n for n, test in enumerate(good)}
        data, lines = covering.get_data(), dict[str, dict[str, list[int]]]()
        for measured in data.measured_files():
            file = Path(measured).relative_to(place / "paceline").as_posix()
            by_line = data.contexts_by_lineno(measured)
            lines[file] = {str(line): [number[test] for test in tests if test in number] for line, tests in by_line.items()}
        hashes = {file: _hash(place / "paceline" / file) for file in lines}
        kept.write_text(json.dumps({"hash": _hash(place / name), "of": hashes, "seconds": good, "lines": lines}))
        return code

    def tests_of(self, change: Change) -> list[str]:
        """The package's tests that cover the line, then the other tests of their files; in both, the fast tests first."""
        near, wide = dict[str, float](), dict[str, float]()
        now = _hash(self.root / "paceline" / change.file)
        entries = [f"tests/{entry}" for entry in TESTS[change.file.split("/")[0]]]
        for name, said in self.by_file.items():
            lines = said["lines"].get(change.file)
            if lines is None or not any(name == entry or name.startswith(f"{entry}/") for entry in entries):
                continue
            if change.at_import:
                covering = set(range(len(said["seconds"])))
            elif said["of"][change.file] != now:  # the lines have moved
                covering = {test for tests in lines.values() for test in tests}
            else:
                span = range(change.start[0], change.end[0] + 1)
                covering = {test for line in span for test in lines.get(str(line), ())}
            if covering:
                for number, (test, seconds) in enumerate(said["seconds"].items()):
                    (near if number in covering else wide)[test] = seconds
        return sorted(near, key=near.__getitem__) + sorted(wide, key=wide.__getitem__)

    def seconds(self, tests: Iterable[str]) -> dict[str, float]:
        return {test: self.by_file[test.split("::")[0]]["seconds"][test] for test in tests}


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Planting:
    """One change after another, and its result, one line each in the file `out`."""

    def __init__(self, root: Path, covered: Covered, out: Path | None, budget: float) -> None:
        self._root, self._covered, self._out, self._budget = root, covered, out, budget
        self._stamp = int(time.time())
        self.results: list[dict[str, Any]] = []

    def job(self, change: Change) -> Job | None:
        """The run of the tests with this change; None if no test covers it."""
        tests, total, began = [], 0.0, {}
        for test, seconds in self._covered.seconds(self._covered.tests_of(change)).items():
            total += seconds
            if tests and total > self._budget:
                break
            tests.append(test)
        if not tests:
            self._note(change, UNCOVERED, "", 0, 0.0)
            return None
        files = sorted({test.split("::")[0] for test in tests})

        def plant(place: Path) -> None:
            began[place] = time.monotonic()
            self._plant(place, change)

        def work(place: Path) -> int:
            return run_tests(place, files, "-x", plugins=[Chosen(place, tests)])

        def ended(place: Path, code: int) -> None:
            shutil.copyfile(self._root / "paceline" / change.file, place / "paceline" / change.file)
            failed = place / "failed.txt"
            by = "collecting" if code == 2 else "the process ended or timed out"
            if failed.exists():
                by = failed.read_text()
                failed.unlink()
            found = (SURVIVED, "") if code in (0, 5) else (NOTICED, by)
            self._note(change, *found, len(tests), time.monotonic() - began[place])

        return Job(work, ended, plant, 60 + 10 * total)

    def _plant(self, place: Path, change: Change) -> None:
        path = place / "paceline" / change.file
        path.write_text(change.planted((self._root / "paceline" / change.file).read_text()))
        self._stamp += 1  # bytecode is looked up by size and whole second
        os.utime(path, (self._stamp, self._stamp))

    def _note(self, change: Change, ended: str, by: str, tests: int, seconds: float) -> None:
        result = {**identity(change), "ended": ended, "by": by, "tests": tests, "seconds": round(seconds, 1)}
        self.results.append({**result, "key": change.key})
        if self._out:
            with self._out.open("a") as out:
                out.write(json.dumps(self.results[-1]) + "\n")
        where = f"{change.file}:{change.start[0]}"
        print(f"{len(self.results):4} {ended:11} {where}: {change.was!r} -> {change.became!r}  {by}", flush=True)


def identity(change: Change) -> dict[str, Any]:
    """File, line, column, and operator: what finds a change again in the same package."""
    line, column = change.start
    return {"file": change.file, "line": line, "column": column, "was": change.was, "became": change.became}


def rows_of(file: Path) -> list[dict[str, Any]]:
    """The lines of a file that --out wrote."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def problems_of_tables(root: Path, packages: Iterable[str]) -> list[str]:
    """What is wrong with TESTS and NOT_COMPUTING for this tree and these packages."""
    package = root / "paceline"
    present = {path.name for path in package.iterdir() if (path / "__init__.py").is_file() or path.suffix == ".py"}
    unlisted = sorted(present - {*TESTS, *NOT_COMPUTING, "__init__.py", "__main__.py"})
    problems = [f"paceline/{name}: not listed. Add it to TESTS or to NOT_COMPUTING." for name in unlisted]
    for name in packages:
        if name not in TESTS:
            problems.append(f"--packages {name}: must be one of {', '.join(TESTS)}")
        elif name not in present:
            problems.append(f"paceline/{name}: not found. Remove it from TESTS.")
        for entry in TESTS.get(name, ()):
            if not (root / "tests" / entry).exists():
                problems.append(f"tests/{entry}: not found. Correct the tests of {name} in TESTS.")
    return problems


def chosen_changes(flags: argparse.Namespace, package: Path) -> list[Change]:
    """The changes that --against, --only, or the seeds choose. Raise SystemExit if the package has one of them no more."""
    if flags.only:
        if unlisted := [only for only in flags.only if only.split(":")[0].split("/")[0] not in TESTS]:
            stop(*(f"--only {only}: TESTS does not list this package" for only in unlisted))
        return [change for only in flags.only for change in changes.asked_for(only, package)]
    texts = {
        path.relative_to(package).as_posix(): path.read_text()
        for name in flags.packages
        for path in ([package / name] if name.endswith(".py") else sorted((package / name).rglob("*.py")))
    }
    found = [change for file, text in texts.items() for change in changes.changes_of(file, text)]
    if flags.against is None:
        drawn = [change for seed in flags.seeds for change in changes.sample(found, flags.sample, seed, package)]
        return list({change.key: change for change in drawn}.values())
    known = {tuple(identity(change).values()): change for change in found}
    wanted = [tuple(row[name] for name in ("file", "line", "column", "was", "became")) for row in rows_of(flags.against)]
    for one in wanted:
        if one not in known:
            file, line, _, was, _ = one
            stop(f"--against {flags.against}: {file}:{line} has no {was!r} at that place. Use the package of that file.")
    return [known[one] for one in wanted]


def stop(*problems: str) -> NoReturn:
    """Print the problems and exit with 2."""
    print(*problems, sep="\n", file=sys.stderr)
    raise SystemExit(2)


def main() -> int:
    """Plant the chosen changes; return 1 if no test noticed one of them (--against: if a test noticed it before)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=60, metavar="N", help="changes per seed, from all packages in turn")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--packages", nargs="+", default=list(TESTS), help="packages of paceline/ to change")
    parser.add_argument("--only", action="append", metavar="FILE:LINE", help="these changes instead of a sample")
    parser.add_argument("--against", type=Path, metavar="FILE", help="repeat the changes of an earlier --out and compare")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="one JSON line per change; changes it has are not repeated"
    )
    parser.add_argument("--covered", type=Path, default=Path(tempfile.gettempdir()) / "paceline-covered-lines")
    parser.add_argument("-n", "--jobs", type=int, default=2)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests per change at most")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    flags = parser.parse_args()
    root = flags.root.resolve()
    if problems := problems_of_tables(root, flags.packages):
        stop(*problems)
    if flags.against is not None and not flags.against.is_file():
        stop(f"--against {flags.against}: file not found")
    if flags.against is not None and flags.out is not None and flags.out.resolve() == flags.against.resolve():
        stop(f"--out {flags.out}: --against names this file too, so no change would be planted. Choose another --out.")
    chosen = chosen_changes(flags, root / "paceline")
    os.environ.setdefault("PACELINE_TEST_DATA", str(root.parent / "shared" / "data"))
    with tempfile.TemporaryDirectory() as scratch:
        places = [Path(scratch) / f"job{number}" for number in range(flags.jobs)]
        for place in places:
            left_out = shutil.ignore_patterns(
                ".git", ".venv*", "__pycache__", ".hypothesis", ".ruff_cache", ".pytest_cache"
            )
            shutil.copytree(root, place, ignore=left_out, symlinks=True)
        covered = Covered(root, flags.covered)
        planting = Planting(root, covered, flags.out, flags.budget)
        if flags.out and flags.out.exists():
            known = {row["key"]: row for row in rows_of(flags.out)}
            planting.results = [known[change.key] for change in chosen if change.key in known]
            chosen = [change for change in chosen if change.key not in known]
        covered.gather({entry for change in chosen for entry in TESTS[change.file.split("/")[0]]}, places)
        run_jobs([job for change in chosen if (job := planting.job(change))], places)
    left = report(planting.results)
    if flags.against is None:
        return int(left)
    return int(report_lost(rows_of(flags.against), planting.results))


def report_lost(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> bool:
    """Print the changes that a test noticed before and none notices now; return True if there is one."""
    ended = {row["key"]: row["ended"] for row in now}
    lost = [row for row in before if row["ended"] == NOTICED != ended[row["key"]]]
    print(f"{len(lost)} of {sum(row['ended'] == NOTICED for row in before)} changes noticed before are not noticed now")
    for row in lost:
        print(f"{row['file']}:{row['line']}: {row['was']!r} -> {row['became']!r}: {row['by']} noticed it")
    return bool(lost)


def report(results: list[dict[str, Any]]) -> bool:
    """Print the changes that no test noticed; return True if there is one."""
    left = [result for result in results if result["ended"] != NOTICED]
    print(f"\n{len(results)} changes: {len(results) - len(left)} noticed, {len(left)} not")
    for one in sorted(left, key=lambda one: (one["file"], one["line"])):
        print(
            f"| {one['file']} | {one['line']} | `{one['was']}` | `{one['became']}` | {one['ended']}, {one['tests']} tests |"
        )
    return bool(left)


if __name__ == "__main__":
    raise SystemExit(main())
