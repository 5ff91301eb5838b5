"""Processes for scripts/mutate.py: each runs tests in a copy of the tree, and starts with what tests import already loaded."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ["OMP_NUM_THREADS"] = "1"  # before torch: jobs run beside each other, and bits are those of one thread

os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
os.environ.pop("PYTEST_ADDOPTS", None)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # jobs are many, and import much
sys.dont_write_bytecode = False

import pytest  # noqa: E402
from _pytest.runner import runtestprotocol  # noqa: E402

# Modules of other packages that tests import.
PRELOADED = (
    "torchvision", "torch.nn.parallel", "hypothesis.strategies", "safetensors.torch", "hotcoco", "pycocotools.mask", "simplejpeg",
    "PIL.Image", "tyro", "rich.console", "yaml", "coverage",
)  # fmt: skip
MARKS = ("multi", "slow", "nightly")


@dataclass
class Job:
    """What a process is forked for. `plant` prepares its copy of the tree, `work` runs there, `ended` is told the exit code."""

    work: Callable[[Path], int]
    ended: Callable[[Path, int], Job | None]
    plant: Callable[[Path], None] = lambda place: None
    seconds: float = 600.0


def preload() -> None:
    """Import once what the tests of all jobs import."""
    for module in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()  # pytest collects garbage several times per run: it skips these objects
    atexit.register(gc.unfreeze)


def run_jobs(jobs: list[Job], places: list[Path]) -> None:
    """All of them, one at a time in each copy of the tree; a job that follows from another one's end is next."""
    if not jobs:
        return
    preload()
    free, running = list(places), dict[int, tuple[Job, Path, float]]()
    waiting = list(reversed(jobs))
    while waiting or running:
        while waiting and free:
            job, place = waiting.pop(), free.pop()
            job.plant(place)
            running[_fork(job.work, place)] = (job, place, time.monotonic() + job.seconds)
        for pid, (job, place, until) in list(running.items()):
            late = time.monotonic() > until
            if late:
                os.killpg(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, 0 if late else os.WNOHANG)
            if ended:
                del running[pid]
                end_what_it_started(pid)
                following = job.ended(place, os.waitstatus_to_exitcode(status))
                free.append(place)
                waiting += [following] if following else []
        time.sleep(0.01)


def _fork(work: Callable[[Path], int], place: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        os.setpgid(0, 0)
        with open(place / "out.txt", "w") as out:
            for number in (1, 2):
                os.dup2(out.fileno(), number)
        os.chdir(place)
        os.environ["PYTHONPATH"] = str(place)
        sys.path[:] = [str(place), *(path for path in sys.path if path != str(Path(__file__).resolve().parent))]
        code = work(place)
    finally:
        sys.stdout.flush()
        os._exit(code)


def end_what_it_started(group: int) -> None:
    """Ends what a job's tests left running."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


class Chosen:
    """A plugin of pytest: runs only `wanted`, in that order (None: all), and writes down which test failed first."""

    def __init__(self, place: Path, wanted: list[str] | None) -> None:
        self._failed = place / "failed.txt"
        self._order = None if wanted is None else {test: number for number, test in enumerate(wanted)}

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        from hypothesis import Phase, settings

        settings.register_profile(  # no example is kept from one change to the next, and none is made smaller
            "planted", settings.default, database=None, derandomize=True, phases=(Phase.explicit, Phase.generate)
        )
        settings.load_profile("planted")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        order = self._order
        if order is None:
            items[:] = [item for item in items if not any(item.get_closest_marker(mark) for mark in MARKS)]
        else:
            items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if self._order is None:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, log=False, nextitem=item)
        if any(report.failed for report in reports):  # by the change, or by chance on a busy machine?
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self._failed.exists():
            self._failed.write_text(report.nodeid)


def run_tests(place: Path, files: Iterable[str], *options: str, plugins: list[Any]) -> int:
    temporary = place.parent / f"{place.name}-tests"
    return int(
        pytest.main(
            ["-q", "-p", "no:cacheprovider", "--tb=short", f"--basetemp={temporary}", "-o", "norecursedirs=",
             "-W", "ignore:This process:DeprecationWarning", f"--rootdir={place}", *options, *files],
            plugins=plugins,
        )
    )  # fmt: skip
