"""Whether a run could write and read where it will: a probe of a megabyte, as large files find a full disk that small ones do not."""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from paceline.config.printable import short

MIB = 1 << 20
# A checkpoint of a full-size recipe is some 0.3 GB; elsewhere there are small files, indexes and sockets.
LEAST_RUN_MIB, LEAST_MIB = 1024, 100


def folder_troubles(run: Path, written: Iterable[tuple[str, Path]], read: Iterable[tuple[str, Path]]) -> list[str]:
    """What is wrong, a sentence each.

    run      the run's folder
    written  (what it is for, folder) of others that a run writes into
    read     (what it is for, file or folder) of what it only reads
    """
    found = [_full("run", run, LEAST_RUN_MIB), *(_full(what, folder, LEAST_MIB) for what, folder in written)]
    for what, path in read:
        if not path.exists():
            found.append(f"{what} {short(str(path), 200)}: is not there")
        elif not os.access(path, os.R_OK):
            found.append(f"{what} {short(str(path), 200)}: cannot be read")
    return [text for text in found if text]


def _full(what: str, folder: Path, least: int) -> str:
    there = next(path for path in (folder, *folder.parents) if path.exists())  # what is not there yet is made below it
    name = f"{what} folder {short(str(folder), 200)}"
    try:
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(bytes(MIB))
            probe.flush()
            os.fsync(probe.fileno())
        free = shutil.disk_usage(there).free / MIB
    except OSError as problem:
        return f"{name}: {problem.strerror}"
    return "" if free >= least else f"{name}: {free:.0f} MiB free, at least {least} are wanted"


# How fast each core of this node is: SHA-256 of one block over and over, on all cores at once, each by a thread bound to it.
#
# The standard library's hash lets other threads run meanwhile, needs no memory bandwidth, and is nothing but the core's clock and
# whoever else uses the core. What disturbs for a moment is passed over by the median of some rounds; a program that stays, a clock
# that is held down or a core that the host above a virtual machine takes away is in every round.


ROUNDS, ROUND_SECONDS = 7, 0.2
BLOCK = bytes(1 << 18)


def core_rates(cpus: Collection[int], *, rounds: int = ROUNDS, seconds: float = ROUND_SECONDS) -> dict[int, float]:
    """Hardware thread -> MB/s, the median of `rounds` of so many seconds."""
    found: dict[int, float] = {}
    together = threading.Barrier(len(cpus))

    def measure(cpu: int) -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {cpu})  # 0 is the calling thread
        together.wait()
        found[cpu] = statistics.median(_rate(seconds) for _ in range(rounds))

    threads = [threading.Thread(target=measure, args=(cpu,)) for cpu in cpus]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {cpu: round(found[cpu], 1) for cpu in sorted(found)}


def _rate(seconds: float) -> float:
    began, blocks = time.perf_counter(), 0
    while (taken := time.perf_counter() - began) < seconds or not blocks:
        hashlib.sha256(BLOCK).digest()
        blocks += 1
    return blocks * len(BLOCK) / taken / 1e6 if taken else 0.0
