"""One function for many calls: by processes and by threads the same results, in order, with errors in their places."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from paceline._utils.errors import DataError, ResourceError
from paceline.data.workers.crew import WORTH_PROCESSES, WorkerCrew, map_ordered
from paceline.data.workers.template import start_template

OWNER = os.getpid()
pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux's memfd")


def power(base: int, exponent: int) -> tuple[int, int]:
    if exponent == 13:
        raise DataError("thirteen")
    return base**exponent, os.getpid()


def slowly(number: int) -> int:
    time.sleep(0.02)
    return number


def content_of(name: str) -> tuple[str, bool]:
    return Path(name).read_text(), os.getpid() == OWNER


def process_of(_: int) -> int:
    return os.getpid()


@pytest.mark.parametrize("processes", [True, False])
def test_results_come_in_the_calls_order_and_an_error_in_its_place(processes: bool) -> None:
    with WorkerCrew(partial(power, 3), 3, processes=processes) as crew:
        results = crew.map_ordered(((exponent,) for exponent in range(20)), ahead=4)
        found = [next(results) for _ in range(13)]
        assert [value for value, _ in found] == [3**exponent for exponent in range(13)]
        assert (os.getpid() in {pid for _, pid in found}) != processes
        with pytest.raises(DataError, match="thirteen"):
            next(results)
        assert crew.submit(2).result()[0] == 9  # the crew goes on
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("paceline-crew")]


def test_a_long_list_is_sent_to_processes_and_a_short_one_is_not() -> None:
    ask = partial(map_ordered, work=process_of, size=2, ahead=8)
    assert set(ask(list(range(WORTH_PROCESSES - 1)), processes=True)) == {os.getpid()}
    assert os.getpid() not in set(ask(list(range(WORTH_PROCESSES)), processes=True))
    assert set(ask(list(range(WORTH_PROCESSES)))) == {os.getpid()}
    assert set(ask(iter(range(WORTH_PROCESSES)), processes=True)) == {os.getpid()}
    assert list(ask([], processes=True)) == []


def test_files_are_named_from_where_this_process_is(tmp_path: Path, monkeypatch) -> None:
    with WorkerCrew(slowly, 2) as crew:  # the template is there, and stays where it began
        crew.submit(1).result()
    monkeypatch.chdir(tmp_path)
    Path("here").write_text("found")
    assert set(map_ordered(["here"] * WORTH_PROCESSES, content_of, size=2, ahead=4, processes=True)) == {("found", False)}


def test_what_cannot_be_pickled_is_called_by_threads() -> None:
    with WorkerCrew(lambda number: (number, os.getpid()), 2) as crew:
        assert list(crew.map_ordered([(5,), (6,)], ahead=1)) == [(5, os.getpid()), (6, os.getpid())]


def test_only_so_many_calls_are_begun_ahead_and_leaving_early_leaves_no_process() -> None:
    taken: list[int] = []
    with WorkerCrew(slowly, 2) as crew:
        results = crew.map_ordered(((taken.append(n) or n,) for n in range(1000)), ahead=5)
        assert next(results) == 0 and len(taken) <= 7
        children = children_of(crew)
        assert len(children) == 2
    assert gone(children)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_worker_is_named_to_whoever_waits(number: int) -> None:
    with WorkerCrew(slowly, 2) as crew:
        waiting = [crew.submit(call) for call in range(200)]
        waiting[0].result()
        os.kill(children_of(crew)[0], number)
        with pytest.raises(ResourceError, match=signal.Signals(number).name):
            for future in waiting:
                future.result(timeout=20)
        with pytest.raises(ResourceError):  # calls after it too
            crew.submit(1)


def children_of(crew: WorkerCrew) -> list[int]:
    process, found = start_template().process, list[int]()
    for _ in range(500):
        words = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        found = [int(word) for word in words if not gone([int(word)], 0)]
        if len(found) == 2:
            break
        time.sleep(0.01)
    return found


def gone(pids: list[int], seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while any(_alive(pid) for pid in pids):
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)
    return True


def _alive(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False
