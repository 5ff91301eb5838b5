"""How the benchmarks take time: blocks of calls without a wait inside.

A GPU's host only sends work. A wait after every call would show each call's launches, which a training loop hides behind the
call before; so a block of calls is sent without a wait, and its time is taken between two events of the device.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from paceline.distributed.device.accelerators import synchronize

STEPS = 20  # of a block on a GPU, at least: enough that the first ones' launches do not show


class CallSeconds(NamedTuple):
    """Of one call: by the clock, and of all threads' computing, which a busy machine changes less."""

    wall: float
    cpu: float


def measure_seconds(work: Callable[[], Any], seconds: float, device: torch.device, least: int = 1) -> CallSeconds:
    """Seconds of one call, on average.

    seconds  at least one call, and as many as fill this time
    least    calls of a block on a GPU; there the CPU-seconds are those of sending the work, and one call more is made
             beforehand to know how many fill the time
    """
    if device.type == "cuda":
        alone, _ = measure_block(work, 1, device)
        return measure_block(work, max(least, math.ceil(seconds / max(alone, 1e-6))), device)
    synchronize(device)
    began, cpu, count = time.perf_counter(), time.process_time(), 0
    while count == 0 or time.perf_counter() - began < seconds:
        work()
        synchronize(device)  # of an accelerator without CUDA's events; a CPU has nothing to wait for
        count += 1
    return CallSeconds((time.perf_counter() - began) / count, (time.process_time() - cpu) / count)


def measure_block(work: Callable[[], Any], count: int, device: torch.device) -> CallSeconds:
    """Seconds by the device's own clock and CPU-seconds of one of `count` calls that are sent one after another."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    synchronize(device)
    cpu = time.process_time()
    first.record()
    for _ in range(count):
        work()
    last.record()
    sent = time.process_time() - cpu
    last.synchronize()
    return CallSeconds(first.elapsed_time(last) / 1000 / count, sent / count)


def find_host_wait(step: Callable[[], Any], device: torch.device) -> str:
    """Where a step makes the host wait for a GPU, "" where it never does. A CPU has nothing to wait for."""
    if device.type != "cuda":
        step()
        return ""
    synchronize(device)
    try:
        with warnings.catch_warnings():
            # torch calls the mode a prototype, which is no reason to leave it, nor to take it for a wait.
            warnings.filterwarnings("ignore", message="Synchronization debug mode", category=UserWarning)
            torch.cuda.set_sync_debug_mode("error")
        step()
    except RuntimeError as problem:
        return str(problem).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return ""
