"""What the whole suite has: --nightly, where real photos lie, and a skip that becomes a failure in CI."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import resource
import secrets
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import differences
import pytest
import shards
from hypothesis import settings

if TYPE_CHECKING:
    from servers import S3Bucket
    from shared_runs import SharedRun

# Before torch is loaded: see paceline/cli/main.py. Several test processes share few cores.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # without a network c10d warns that a host has no name
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Its assertions, too, show what they compared; before anybody imports it.
pytest.register_assert_rewrite("small_run")

ROOT = Path(__file__).resolve().parents[1]
# A skip for one of these reasons stays a skip in CI, where everything else that the suite needs is installed.
NOT_INSTALLABLE = ("CUDA device", "--nightly", "cannot mount", "names no interpreter", "no /dev/shm")
# What tests draw their photos and weights by: 0 in the suite; by night another one each time, said where such a test fails.
SEED = "PACELINE_SEED"
FAILED = pytest.StashKey[bool]()  # whether a phase of the test has failed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nightly",
        action="store_true",
        help="the tests that are longer by night, and only these: marked nightly, with 20 times as many generated examples, or "
        "with another seed",
    )
    parser.addoption("--shard", default="1/1", metavar="K/N", help="part K of N, by the times in tests/seconds.tsv")
    parser.addoption("--times", type=Path, metavar="FILE", help="write each test's outcome, seconds and CPU seconds")
    parser.addoption(
        "--simulated",
        choices=("values", "counts"),
        help="on a CUDA device that computes nothing (tests/simulated), for tests/gpu where there is no GPU: with right values, which "
        "CPU kernels write, or with none, fast and at full size",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Before any test module is imported: tests/example_counts.py multiplies by max_examples / 100.
    settings.register_profile("suite", max_examples=100, deadline=None)
    settings.register_profile("nightly", max_examples=2000, deadline=None)
    settings.load_profile("nightly" if config.getoption("--nightly") else "suite")
    if config.getoption("--nightly"):
        os.environ.setdefault(SEED, str(secrets.randbelow(10**6)))  # before other processes start, which have it from here


def pytest_cmdline_main(config: pytest.Config) -> None:
    """With --simulated the same words go to another Python, since a library comes before CUDA's only as a process starts."""
    if config.getoption("--simulated") is None or "SIMULATED_VALUES" in os.environ:
        return
    sys.path.insert(0, str(ROOT / "tests" / "simulated"))
    import device

    os.execve(
        sys.executable,
        [sys.executable, "-m", "pytest", *config.invocation_params.args],
        device.environment(SIMULATED_VALUES=str(int(config.getoption("--simulated") == "values"))),
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """--dist loadgroup: the tests of a file stay together and share what its fixtures made; so do the files of a group.

    By night, a long test is alone. A group is read from the files: pytest-xdist 3.8 writes it into test ids, which pytest 9.2 takes
    no notice of.
    """
    from xdist.scheduler import LoadScopeScheduling

    class GroupsAndFiles(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid, config)

    if config.getvalue("dist") != "loadgroup":
        return None
    config.option.loadscopereorder = False  # as pytest_collection_modifyitems ordered them
    return GroupsAndFiles(config, log)


def scope_of(test: str, config: pytest.Config) -> str:
    """What one process runs in one go: the group that marks of the test's file name, or the long test, or the file."""
    file = test.split("::", maxsplit=1)[0]
    return group_in(config.rootpath / file) or (
        test if test in shards.seconds_of(night=config.getoption("--nightly")) else file
    )


@cache
def group_in(file: Path) -> str | None:
    """The group that marks of the file name."""
    marked = re.search(r'xdist_group\("(\w+)"\)', file.read_text())
    return marked[1] if marked else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays to the end: no search for what is free goes through it again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    night = config.getoption("--nightly")
    for item in items:
        mark = item.get_closest_marker("nightly")
        if mark is not None and not mark.args:
            raise pytest.UsageError(f'{item.nodeid}: a nightly mark says why: @pytest.mark.nightly("reason")')
        if mark is not None and not night:
            item.add_marker(pytest.mark.skip(reason=f"only with --nightly: {mark.args[0]}"))
    kept = [item for item in items if not night or longer_by_night(item)]
    seconds = shards.seconds_of(night=night)
    number, count = map(int, config.getoption("--shard").split("/"))
    part = shards.shards([item.nodeid for item in kept], seconds, count)
    kept = [item for item in kept if part[item.nodeid] == number]
    config.hook.pytest_deselected(items=list(set(items) - set(kept)))
    # The most expensive groups come first, so that no process is left with one of them at the end.
    spent: Counter[str] = Counter()
    scopes = {item.nodeid: scope_of(item.nodeid, config) for item in kept}
    for unit, scope in {(test if test in seconds else test.split("::")[0], scope) for test, scope in scopes.items()}:
        spent[scope] += seconds.get(unit, 0.0)
    items[:] = sorted(kept, key=lambda item: -spent[scopes[item.nodeid]])


def longer_by_night(item: pytest.Item) -> bool:
    """Whether --nightly changes what a test does; all others have run by day."""
    generated = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return (
        generated
        or item.get_closest_marker("nightly") is not None
        or not {"nightly", "seed"}.isdisjoint(getattr(item, "fixturenames", ()))
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """With --times, one line per test: name, outcome, seconds, and CPU seconds of this process and of those that it waited for."""
    if (file := item.config.getoption("--times")) is None:
        return (yield)
    began, cpu = time.monotonic(), cpu_seconds()
    result = yield
    outcome = "failed" if item.stash.get(FAILED, False) else "ended"
    with file.open("a") as lines:
        lines.write(
            f"{item.nodeid.splitlines()[0]}\t{outcome}\t{time.monotonic() - began:.2f}\t{cpu_seconds() - cpu:.2f}\n"
        )
    return result


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(who.ru_utime + who.ru_stime for who in used)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = in_ci_a_failure((yield))
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    if call.excinfo is not None and (lines := differences.explain(call.excinfo.value)):
        report.sections.append(("difference", lines))
    if report.failed and "seed" in getattr(item, "fixturenames", ()):
        report.sections.append(("seed", f"drawn by {SEED}={seed_of(os.environ)}, which repeats it"))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    return in_ci_a_failure((yield))


def in_ci_a_failure(report: Any) -> Any:
    """The same report; where CI is set, a skip has failed unless what is missing cannot be installed."""
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr)
        if not any(word in reason for word in NOT_INSTALLABLE):
            report.outcome, report.longrepr = "failed", f"CI must have what this test needs. {reason}"
    return report


def seed_of(environ: Mapping[str, str]) -> int:
    """Any whole number from 0."""
    return int(environ.get(SEED) or 0)


@pytest.fixture(scope="session")
def seed() -> int:
    """What a test draws its photos, weights or samples by; it must pass whatever this is."""
    return seed_of(os.environ)


@pytest.fixture(scope="session")
def nightly(request: pytest.FixtureRequest) -> bool:
    """Whether the long form was asked for."""
    return bool(request.config.getoption("--nightly"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with the small real data sets (imagenette224, coco_mini, ...)."""
    folder = Path(os.environ.get("PACELINE_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():  # with CI=true this skip is a failure, and so is that of need_program
        pytest.skip(f"no real photos at {folder}: set PACELINE_TEST_DATA")
    return folder


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Instead of the bytes of checkpoints, print which of their tensors differ, and by how much."""
    import differences

    lines = differences.file_differences(left, right) if op == "==" else []
    return ["the left and the right files of tensors differ", *lines] if lines else None


@pytest.fixture
def need_program():
    """Call it with a program's name; the test skips where the program is not installed."""

    def need(program: str, package: str) -> str:
        path = shutil.which(program)
        if path is None:
            pytest.skip(f"{program} is not installed (Debian package {package})")
        assert path is not None
        return path

    return need


@pytest.fixture(scope="session")
def timm() -> Any:
    """timm, whose import takes a seventh of the time in which all tests are collected."""
    return pytest.importorskip("timm")


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    """Every test has a cache of its own, so none depends on what an earlier run left behind."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def no_report(monkeypatch) -> None:
    """Runs write no report: it takes longer than the run, and has tests of its own. A finished run that is refused writes it still."""
    import tiny_runs

    tiny_runs.without_report(monkeypatch)


@pytest.fixture(scope="session")
def process_locks() -> None:
    """Skips where Python makes no locks between processes, which its pools and torch's DataLoader have."""
    try:
        multiprocessing.Lock()
    except OSError:
        pytest.skip("no /dev/shm, where locks between processes lie")


@pytest.fixture
def no_charts(monkeypatch) -> None:
    """Reports without charts, as of runs whose values are not finite: drawing takes most of a report's time."""
    monkeypatch.setattr("paceline.tools.report.curves.draw_chart", lambda *_, **__: None)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """URL of a server on the loopback that speaks S3."""
    import servers

    with servers.s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3_bucket(s3_endpoint, monkeypatch) -> S3Bucket:
    """An empty bucket; this process, and those that it starts, find it by their environment."""
    import servers

    bucket = servers.new_bucket(s3_endpoint)
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    return bucket


@pytest.fixture(scope="session")
def class_photos(tmp_path_factory) -> Iterator[Path]:
    """Photos in three class folders, as tests of whole commands train on; whoever changes them makes his own."""
    import shared_runs  # loads torch, which many tests do without

    with shared_runs.untouched(shared_runs.class_photos(tmp_path_factory)) as folder:
        yield folder


def finished_run(workload: str) -> Any:
    """A fixture: a finished tiny run, for all tests; whoever changes it copies it first."""

    @pytest.fixture(scope="session", name=f"{workload}_run")
    def run(tmp_path_factory) -> Iterator[SharedRun]:
        import shared_runs

        made = getattr(shared_runs, f"{workload}_run")(tmp_path_factory)
        with shared_runs.untouched(made.folder):
            yield made

    return run


resnet_run = finished_run("resnet")
ssd_run = finished_run("ssd")
maskrcnn_run = finished_run("maskrcnn")
