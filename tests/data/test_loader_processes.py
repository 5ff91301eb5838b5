"""Worker processes: the same batches as threads give, faults that are named, and nothing left behind."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from stand_ins import InMemory, drawn, tiny_photo

import paceline.data.loader.slots as overdue
from paceline._utils.errors import DataError, ResourceError
from paceline.data.loader.loader import Loader
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.loader.sampler import batch_indices, stream_positions
from paceline.data.loader.slots import MicroBatch
from paceline.data.transforms.decode import SampleSpec
from paceline.data.transforms.image_io import Header
from paceline.data.workers import template as template_module

CPU = torch.device("cpu")
SHAPES = [(5, 7), (3, 4), (6, 6)]
pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux's memfd")


class Photos(InMemory):
    """Records that other processes can have."""

    def __init__(self, portable: bool = True) -> None:
        super().__init__([tiny_photo()])
        self.portable, self.at_once = portable, 3
        self.places = Lengths()

    def __reduce__(self):
        return Photos, (self.portable,)

    def read(self, i: int) -> bytes:
        assert self.portable or os.getpid() == OWNER, "only this process can read them"
        return super().read(i)


class Lengths:
    lengths = np.full(100, len(tiny_photo()))


OWNER = os.getpid()


class Task:
    """Draws, with an array that must not travel with every step."""

    def __init__(self, fault: str = "") -> None:
        self.labels, self.fault = np.arange(100), fault

    def draw(self, shape: tuple[int, int], epoch: int, index: int, header: Header, name: str) -> SampleSpec:
        if self.fault and index == 17:
            if self.fault == "broken":
                raise DataError(f"{name}: broken.")
            if self.fault == "bug":
                raise KeyError("bug")
            time.sleep(1000)
        return drawn(epoch, index, header, name, int(self.labels[index]) % 10 + 100 * shape[0])


def paint(_data: bytes, draw: SampleSpec, out: np.ndarray) -> None:
    random = SampleRng(11, draw.window.top, draw.window.left)
    out[...] = np.frombuffer(random.bits().to_bytes(8, "little") * 14, np.uint8)[: out.size].reshape(out.shape)


def schedule_of(task: Task):
    def schedule(step: int) -> list[MicroBatch]:
        if step == 2:
            return [MicroBatch(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        shape = SHAPES[step % 3]
        epochs, indices = batch_indices(23, stream_positions(step=step, global_batch_size=12, forwards=2), seed=4)
        draw = partial(task.draw, shape)
        return [MicroBatch(e, i, shape, draw) for e, i in zip(np.split(epochs, 2), np.split(indices, 2))]

    return schedule


def loader(task: Task | None = None, *, records: InMemory | None = None, **more) -> Loader:
    task = task or Task()
    options = {
        "records": records or Photos(), "draw": partial(task.draw, (6, 7)), "render": paint, "schedule": schedule_of(task),
        "device": CPU, "image_shape": (6, 7, 3), "last_step": 9, "threads": 2, "processes": True,
    }  # fmt: skip
    return Loader(**{**options, **more})


def collected(made: Loader) -> list[list[tuple[torch.Tensor, ...]]]:
    with made:
        return [[(b.images.clone(), b.labels, b.indices) for b in batches] for _, batches in made]


def equal(left, right) -> bool:
    assert all(
        torch.equal(a, b)
        for ours, theirs in zip(left, right, strict=True)
        for one, other in zip(ours, theirs, strict=True)
        for a, b in zip(one, other, strict=True)
    )
    return True


def workers(count: int = 2) -> list[int]:
    """Processes of the template, once so many are alive: those of the loader before may not have been waited for yet."""
    made = template_module._template
    assert made is not None
    for _ in range(1000):
        found = Path(f"/proc/{made.process}/task/{made.process}/children").read_text().split()
        found = [int(pid) for pid in found if not gone([int(pid)], 0)]
        if len(found) == count:
            return found
        time.sleep(0.02)
    raise AssertionError(found)


def gone(pids: list[int], seconds: float = 20.0) -> bool:
    """Whether they end; of a process that has ended and not been waited for, nothing is left but its number."""
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


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(("portable", "io_threads"), [(True, 0), (True, 2), (False, 0), (False, 3)])
def test_processes_give_the_batches_of_threads(count: int, portable: bool, io_threads: int) -> None:
    expected = collected(loader(processes=False, threads=1))
    made = loader(threads=count, records=Photos(portable), io_threads=io_threads)
    assert made._workers is not None
    assert len(expected) == 9 and equal(collected(made), expected)


def test_a_run_can_go_on_with_another_number_of_processes() -> None:
    expected = collected(loader(processes=False, threads=1))
    found = collected(loader(threads=3, last_step=4)) + collected(loader(threads=2, first_step=4))
    assert equal(found, expected)


def test_what_cannot_be_sent_is_rendered_by_threads_and_the_loader_says_why() -> None:
    made = loader(render=lambda data, draw, out: paint(data, draw, out))
    assert made._workers is None and "lambda" in made.why_threads
    assert equal(collected(made), collected(loader(processes=False)))


def test_one_image_s_fault_is_named() -> None:
    with pytest.raises(DataError, match="photo 17: broken"):
        collected(loader(Task("broken")))
    with pytest.raises(RuntimeError, match="KeyError: 'bug'"):
        collected(loader(Task("bug")))


def test_a_hanging_sample_is_named_and_given_up(monkeypatch, capfd) -> None:
    monkeypatch.setattr(overdue, "SAY_SECONDS", 0.2)
    monkeypatch.setattr(overdue, "FAIL_SECONDS", 1.0)
    with pytest.raises(DataError, match="photo 17"):
        collected(loader(Task("hang")))
    assert "photo 17" in capfd.readouterr().err and workers(0) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_that_is_killed_ends_the_loader_and_says_so(number: int) -> None:
    with loader(last_step=None) as made:
        next(made)
        pids = workers()
        os.kill(pids[0], number)
        with pytest.raises(ResourceError, match=signal.Signals(number).name):
            for _ in made:
                pass
    assert gone(pids)


def test_a_template_that_is_killed_takes_its_workers_along_and_is_started_again() -> None:
    expected = collected(loader(processes=False))
    with loader(last_step=None) as made:
        next(made)
        pids, before = workers(), template_module._template
        assert before is not None
        os.kill(before.process, signal.SIGKILL)
        with pytest.raises(ResourceError):
            for _ in made:
                pass
    assert gone(pids) and equal(collected(loader()), expected)


def test_a_process_with_thousands_of_open_descriptors_gets_workers_too() -> None:
    expected = collected(loader(processes=False))
    if (before := template_module._template) is not None and before.alive():
        os.kill(before.process, signal.SIGKILL)  # so that a new one gets the next descriptors
        while before.alive():
            time.sleep(0.01)
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(most, min(hard, 4096)), hard))
    opened = []
    try:
        while not opened or opened[-1] < 1100:  # select.select takes none from 1024 on
            opened.append(os.open(os.devnull, os.O_RDONLY))
        assert equal(collected(loader()), expected)
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def test_closing_gives_back_processes_descriptors_and_threads() -> None:
    collected(loader())

    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        made = loader(last_step=None, threads=4)
        next(made)
        pids = workers(4)
        made.close()
        made.close()
        del made
        assert gone(pids)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


PARENT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # where these tests run in a shell's background, it is ignored
sys.path[:0] = [{here!r}, {tests!r}]
from test_loader_processes import loader, workers
made = loader(last_step=None)
next(made)
print(*workers(), flush=True)
{then}
"""


def started(then: str) -> tuple[subprocess.Popen[str], list[int]]:
    here = Path(__file__).parent
    program = PARENT.format(here=str(here), tests=str(here.parent), then=then)
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    return parent, list(map(int, parent.stdout.readline().split()))


def test_workers_end_with_a_parent_that_is_killed() -> None:
    parent, pids = started("time.sleep(1000)")
    assert len(pids) == 2
    parent.kill()
    parent.communicate()
    assert gone(pids)


def test_ctrl_c_reaches_the_parent_alone_and_nothing_stays() -> None:
    """Twice to the whole group, as a terminal sends it: workers go on until the loader is closed."""
    then = """
caught = 0
while caught < 2:
    try:
        print("waiting", flush=True)
        while True:
            next(made)
    except KeyboardInterrupt:
        caught += 1
        print("caught", flush=True)
made.close()
print("closed", flush=True)
"""
    parent, pids = started(then)
    assert parent.stdout is not None and parent.stderr is not None
    with parent:  # closes the pipes
        for _ in range(2):
            assert parent.stdout.readline() == "waiting\n"
            os.killpg(parent.pid, signal.SIGINT)
            assert parent.stdout.readline() == "caught\n"
        # Not communicate(): "closed" may have come with "caught", and then lies in a buffer that it does not read.
        out = parent.stdout.read()
        assert (out, parent.wait(timeout=60)) == ("closed\n", 0), parent.stderr.read()
    assert gone(pids)
