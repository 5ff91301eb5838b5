"""Would the tests notice? Plants single changes in the numeric core, one at a time, and runs the tests that cover the line.

    python scripts/mutate.py --sample 300 --seed 1 --log mutants.jsonl       # again with the same log: goes on
    python scripts/mutate.py --rooms boxes optim --sample 50 --seed 2
    python scripts/mutate.py --only boxes/geometry.py:58 --only "training/step.py:73: False -> True"

Nothing in this tree is changed: each job has a copy of it. A first run gathers which test covers which line (kept in --covered, per
file of tests, until that file changes); tests that several processes, a CUDA device or --nightly belong to are not among them.
A change is tried on the covering tests of its room first, and, unless --tests-of room, then on all other tests of any file that
covers the line: the quick ones first, until one fails. Those that no test notices are printed; which of them are equivalent is for a
reader to judge. Needs `pip install coverage`, and fork (Linux, macOS).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import changes
import pytest
from changes import Change
from mutation_jobs import Chosen, Job, run_jobs, run_tests

ROOMS = ("boxes", "models", "optim", "engine", "metrics", "data", "config", "containers", "checkpoint", "dist")
# Folders of tests beside those of the rooms; no test there starts processes or needs a device.
WIDER = ("oracle", "tasks", "training", "recipes", "predict", "prepare", "pack")
UNCOVERED, SURVIVED, NOTICED = "not covered", "survived", "noticed"


@dataclass
class Covered:
    """Which test covers which line: of each file of tests its hash, {test: seconds}, {file: {line: [numbers of tests]}}."""

    root: Path
    kept_in: Path
    folders: tuple[str, ...]
    by_file: dict[str, dict[str, Any]] = field(default_factory=dict)

    def gather(self, places: list[Path]) -> None:
        """Read what is kept; run what has changed since."""
        self.kept_in.mkdir(parents=True, exist_ok=True)
        jobs = []
        for path in sorted((self.root / "tests").rglob("test_*.py")):
            name = path.relative_to(self.root).as_posix()
            if path.parent.name not in self.folders:
                continue
            kept = self.kept_in / f"{name.replace('/', '.')}.json"
            said = json.loads(kept.read_text()) if kept.exists() else {}
            if said.get("hash") == _hash(path):
                self.by_file[name] = said
            else:
                jobs.append(
                    Job(lambda place, name=name, kept=kept: self._run(place, name, kept), self._read(name, kept))
                )
        if jobs:
            print(f"gathering what {len(jobs)} files of tests cover ...", flush=True)
        run_jobs(jobs, places)

    def _read(self, name: str, kept: Path) -> Callable[[Path, int], None]:
        def ended(place: Path, code: int) -> None:
            if code not in (0, 5):
                print(f"{name}: pytest left with {code}; its failing tests are not used", flush=True)
            if kept.exists():
                self.by_file[name] = json.loads(kept.read_text())

        return ended

    def _run(self, place: Path, name: str, kept: Path) -> int:
        import coverage

        folders = [str(place / "paceline" / room / "*") for room in ROOMS]
        covering = coverage.Coverage(data_file=None, include=folders, config_file=False, messages=False)
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
            lines[file] = {
                str(line): [number[test] for test in tests if test in number] for line, tests in by_line.items()
            }
        hashes = {file: _hash(place / "paceline" / file) for file in lines}
        kept.write_text(json.dumps({"hash": _hash(place / name), "of": hashes, "seconds": good, "lines": lines}))
        return code

    def tests_of(self, change: Change) -> tuple[list[str], list[str]]:
        """-> (covering tests of the room, all other tests of files that cover the line), the quick ones first."""
        near, wide = dict[str, float](), dict[str, float]()
        now = _hash(self.root / "paceline" / change.file)
        folder = f"tests/{change.file.split('/')[0]}/"
        for name, said in self.by_file.items():
            lines = said["lines"].get(change.file)
            if lines is None:
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
                    (near if number in covering and name.startswith(folder) else wide)[test] = seconds
        return sorted(near, key=near.__getitem__), sorted(wide, key=wide.__getitem__)

    def seconds(self, tests: Iterable[str]) -> dict[str, float]:
        return {test: self.by_file[test.split("::")[0]]["seconds"][test] for test in tests}


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Planting:
    """One change after another, and what became of it, a line each in the log."""

    def __init__(
        self, root: Path, covered: Covered, log: Path | None, budget: float, wide: bool, also: list[str]
    ) -> None:
        self._root, self._covered, self._log = root, covered, log
        self._budget, self._wide, self._also = budget, wide, also
        self._stamp = int(time.time())
        self.results: list[dict[str, Any]] = []

    def job(self, change: Change) -> Job | None:
        near, wide = self._covered.tests_of(change)
        stages = [tests for tests in (near, wide if self._wide else []) if tests]
        if not stages and not self._also:
            return self._note(change, UNCOVERED, "", 0)
        return self._stage(change, stages, 0)

    def _stage(self, change: Change, stages: list[list[str]], ran: int) -> Job | None:
        if stages:
            tests, total = [], 0.0
            for test, seconds in self._covered.seconds(stages[0]).items():
                total += seconds
                if total > self._budget:
                    break
                tests.append(test)
            files, plugin_tests = sorted({test.split("::")[0] for test in tests}), tests
        else:
            files, plugin_tests, total = self._also, None, self._budget

        def work(place: Path) -> int:
            return run_tests(place, files, "-x", plugins=[Chosen(place, plugin_tests)])

        def ended(place: Path, code: int) -> Job | None:
            original = self._root / "paceline" / change.file
            shutil.copyfile(original, place / "paceline" / change.file)
            failed = place / "failed.txt"
            by = (
                failed.read_text()
                if failed.exists()
                else "no result: it ended, or ran for too long"
                if code != 2
                else "collecting"
            )
            failed.unlink(missing_ok=True)
            done = ran + len(plugin_tests or ())
            if code not in (0, 5):
                return self._note(change, NOTICED, by, done)
            if len(stages) > 1 or (stages and self._also):
                return self._stage(change, stages[1:], done)
            return self._note(change, SURVIVED, "", done)

        return Job(work, ended, lambda place: self._plant(place, change), 60 + 10 * total)

    def _plant(self, place: Path, change: Change) -> None:
        path = place / "paceline" / change.file
        path.write_text(change.planted((self._root / "paceline" / change.file).read_text()))
        self._stamp += 1  # bytecode is looked up by size and whole second
        os.utime(path, (self._stamp, self._stamp))

    def _note(self, change: Change, ended: str, by: str, tests: int) -> None:
        told = {"file": change.file, "line": change.start[0], "was": change.was, "became": change.became}
        self.results.append({**told, "ended": ended, "by": by, "tests": tests, "key": change.key})
        if self._log:
            with self._log.open("a") as log:
                log.write(json.dumps(self.results[-1]) + "\n")
        where = f"{change.file}:{change.start[0]}"
        print(f"{len(self.results):4} {ended:11} {where}: {change.was!r} -> {change.became!r}  {by}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=100, help="how many changes, by chance")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="+", default=ROOMS, help="folders of paceline/")
    parser.add_argument("--only", action="append", metavar="FILE:LINE", help="these instead of a sample; see above")
    parser.add_argument("--tests-of", choices=("room", "all"), default="all")
    parser.add_argument("--wider", nargs="*", default=WIDER, help="folders of tests beside the rooms' own")
    parser.add_argument(
        "--also", nargs="+", default=[], metavar="FILE", help="files of tests to run whole for what survives"
    )
    parser.add_argument("--log", type=Path, help="a line of JSON a change; what it holds already is not planted again")
    parser.add_argument("--covered", type=Path, default=Path(tempfile.gettempdir()) / "paceline-covered")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests a change and stage at most")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    asked = parser.parse_args()
    root, package = asked.root.resolve(), asked.root.resolve() / "paceline"
    os.environ.setdefault("PACELINE_TEST_DATA", str(root.parent / "shared" / "data"))
    with tempfile.TemporaryDirectory() as scratch:
        places = [Path(scratch) / f"job{number}" for number in range(asked.jobs)]
        for place in places:
            left_out = shutil.ignore_patterns(
                ".git", ".venv*", "__pycache__", ".hypothesis", ".ruff_cache", ".pytest_cache"
            )
            shutil.copytree(root, place, ignore=left_out, symlinks=True)
        covered = Covered(root, asked.covered, (*ROOMS, *(asked.wider if asked.tests_of == "all" else ())))
        covered.gather(places)
        if asked.only:
            chosen = [change for only in asked.only for change in changes.asked_for(only, package)]
        else:
            files = [path for room in asked.rooms for path in sorted((package / room).rglob("*.py"))]
            found = [
                c for path in files for c in changes.changes_of(path.relative_to(package).as_posix(), path.read_text())
            ]
            chosen = changes.sample(found, asked.sample, asked.seed, package)
        planting = Planting(root, covered, asked.log, asked.budget, asked.tests_of == "all", asked.also)
        if asked.log and asked.log.exists():
            known = {line["key"]: line for line in map(json.loads, asked.log.read_text().splitlines())}
            planting.results = [known[change.key] for change in chosen if change.key in known]
            chosen = [change for change in chosen if change.key not in known]
        run_jobs([job for change in chosen if (job := planting.job(change))], places)
    return report(planting.results)


def report(results: list[dict[str, Any]]) -> int:
    """Prints what no test noticed; 1 if there is any."""
    left = [result for result in results if result["ended"] != NOTICED]
    print(f"\n{len(results)} changes: {len(results) - len(left)} noticed, {len(left)} not")
    for one in sorted(left, key=lambda one: (one["file"], one["line"])):
        print(
            f"| {one['file']} | {one['line']} | `{one['was']}` | `{one['became']}` | {one['ended']}, {one['tests']} tests |"
        )
    return int(bool(left))


if __name__ == "__main__":
    raise SystemExit(main())
