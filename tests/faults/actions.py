"""What a fault does to the process that it strikes; see faulty_rank.py for when. An action is named by its first word."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from fault_flags import outweigh

import paceline.distributed.comm.stop
import paceline.training.trainer
from paceline.training.loop import STOP_FILE

training = paceline.training.trainer

# Folders by name: run, cache, data. And the losses of the step that was just taken.
roots: dict[str, Path] = {}
losses: dict[str, torch.Tensor] = {}
_helpers: list[subprocess.Popen] = []


def carry_out(do: str, path: str) -> None:
    """`do`: an action's name and what it is told; `path`: of the file operation that it comes before."""
    name, _, told = do.partition(" ")
    ACTIONS[name](told, path)


def kill(told: str, path: str) -> None:
    """SIGKILL to this rank, or to "all"."""
    if told == "all":
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def tear(told: str, path: str) -> None:
    """SIGKILL while a file is being written: its second half never came; of a log, that of its last line."""
    content = Path(path).read_bytes()
    written = content.splitlines()[-1] if Path(path).name in ("events.jsonl", "mllog.txt") else content
    os.truncate(path, len(content) - len(written) // 2)
    os.killpg(0, signal.SIGKILL)


def ask(told: str, path: str) -> None:
    """The signal of this name; "TWICE": two of them."""
    name, _, twice = told.partition(" ")
    for _ in range(2 if twice else 1):
        os.kill(os.getpid(), signal.Signals[name])


def stop_file(told: str, path: str) -> None:
    """RUN/STOP, or a "folder" of that name. It is looked for at every step from now on."""
    paceline.distributed.comm.stop.FILE_SECONDS = 0.0
    stop = roots["run"] / STOP_FILE
    if told == "folder":
        stop.mkdir()
    else:
        stop.touch()


def freeze(told: str, path: str) -> None:
    """SIGSTOP for so many seconds, to this rank or to "all"."""
    seconds, _, who = told.partition(" ")
    whom = -os.getpgrp() if who == "all" else os.getpid()
    waker = f"sleep {seconds}; kill -s CONT -- {whom}"
    _helpers.append(subprocess.Popen(["sh", "-c", waker], start_new_session=True))
    os.kill(whom, signal.SIGSTOP)


def wait(told: str, path: str) -> None:
    """This step takes so many seconds longer."""
    time.sleep(float(told))


def patience(told: str, path: str) -> None:
    """A silent rank counts as lost after so many seconds."""
    training.open_distributed = partial(training.open_distributed, stale_seconds=float(told))


def fail(told: str, path: str) -> None:
    """An exception: an errno by its name, or one of these errors."""
    if number := getattr(errno, told, None):
        raise OSError(number, os.strerror(number), path)
    kinds: dict[str, type[BaseException]] = {kind.__name__: kind for kind in (MemoryError, RuntimeError, SystemExit)}
    raise kinds[told](*([] if told == "MemoryError" else ["planted"]))


def fill(told: str, path: str) -> None:
    """Take every free byte of the run folder's file system."""
    with open(roots["run"].parent / "filler", "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            with contextlib.suppress(OSError):  # no room for another piece of this size
                while True:
                    file.write(bytes(size))


def limit_file(told: str, path: str) -> None:
    """ulimit -f: no file grows beyond so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(told), int(told)))


def limit_memory(told: str, path: str) -> None:
    """ulimit -v, so many MiB above what the process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (int(told) << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def no_threads(told: str, path: str) -> None:
    """No further thread can be started."""

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threading.Thread.start = start


def not_a_number(told: str, path: str) -> None:
    """The loss of this step is NaN."""
    losses["loss"] = torch.full_like(losses["loss"], float("nan"))


def photos(told: str, path: str) -> None:
    """Every training photo is deleted, emptied, cut, grown, overwritten (same size), made a FIFO or a folder."""
    found = [*(roots["data"] / "train").rglob("*.jpg"), *(roots["data"] / "train2017").rglob("*.jpg")]
    for photo in found:
        size = photo.stat().st_size
        if told in ("deleted", "fifo", "folder"):
            photo.unlink()
        if told == "fifo":
            os.mkfifo(photo)
        elif told == "folder":
            photo.mkdir()
        elif told in ("emptied", "cut"):
            os.truncate(photo, 0 if told == "emptied" else size // 2)
        elif told in ("grown", "overwritten"):
            with open(photo, "ab" if told == "grown" else "r+b") as file:
                file.write(random.Random(size).randbytes(size))


def remove_run(told: str, path: str) -> None:
    """The run's folder is deleted."""
    shutil.rmtree(roots["run"], ignore_errors=True)


def clock(told: str, path: str) -> None:
    """The wall clock jumps by so many seconds."""
    now, jump = time.time, float(told)
    time.time = lambda: now() + jump


def stdout(told: str, path: str) -> None:
    """stdout goes to `head -2`, to nobody ("closed"), or to a "full" disk."""
    if told == "head":
        reader, target = os.pipe()
        _helpers.append(subprocess.Popen(["head", "-2"], stdin=reader, stdout=2))
        os.close(reader)
    elif told == "closed":
        reader, target = os.pipe()
        os.close(reader)
    else:
        target = os.open("/dev/full", os.O_WRONLY)
    sys.stdout.flush()
    os.dup2(target, 1)
    os.close(target)


def cores(told: str, path: str) -> None:
    """So many cores are left."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(told)])


def environ(told: str, path: str) -> None:
    """NAME=VALUE in the environment; without a value it is not there."""
    name, _, value = told.partition("=")
    os.environ.pop(name, None)
    if value:
        os.environ[name] = value


def flags(told: str, path: str) -> None:
    """This rank alone is started with these flags."""
    first = next(place for place, word in enumerate(sys.argv) if word.startswith("--"))
    sys.argv = [*sys.argv[:first], *outweigh(f"{' '.join(sys.argv[first:])} {told}")]


def forge(told: str, path: str) -> None:
    """A stranger writes into the store: KEY VALUE, under every prefix at which that key or a beat is."""
    key, _, value = told.partition(" ")
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    stranger = dist.TCPStore(address, port, is_master=False, wait_for_workers=False)
    prefixes = {name.partition("beat/")[0] for name in stranger.list_keys() if "beat/" in name}
    for prefix in prefixes:
        stranger.set(f"{prefix}{key}", value)


ACTIONS = {
    action.__name__.replace("_", "-"): action
    for action in (
        kill,
        tear,
        ask,
        stop_file,
        freeze,
        wait,
        patience,
        fail,
        fill,
        limit_file,
        limit_memory,
        no_threads,
        not_a_number,
        photos,
        remove_run,
        clock,
        stdout,
        cores,
        environ,
        flags,
        forge,
    )
}
