"""How fast each core of this node is: SHA-256 of one block over and over, on all cores at once, each by a thread bound to it.

The standard library's hash lets other threads run meanwhile, needs no memory bandwidth, and is nothing but the core's clock and
whoever else uses the core. What disturbs for a moment is passed over by the median of some rounds; a program that stays, a clock
that is held down or a core that the host above a virtual machine takes away is in every round.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import threading
import time
from collections.abc import Collection

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
