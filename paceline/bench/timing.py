"""How the benchmarks take time: blocks of calls without a wait inside, contenders that fail alone, a peer's step as one CUDA graph.

A GPU's host only sends work. A wait after every call would show each call's launches, which a training loop hides behind the
call before; so a block of calls is sent without a wait, and its time is taken between two events of the device.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from paceline.accelerators import synchronise
from paceline.config.errors import UserError

Step = Callable[[], Tensor]  # takes a training step, -> its loss, on the device
STEPS = 20  # of a block on a GPU, at least: enough that the first ones' launches do not show
WARM_UP_STEPS = 3


def settle(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    synchronise(device)


def seconds_of(work: Callable[[], Any], seconds: float, device: torch.device, least: int = 1) -> tuple[float, float]:
    """Seconds of one call, and CPU-seconds of all threads, which a busy machine changes less.

    seconds  at least one call, and as many as fill this time
    least    calls of a block on a GPU; there the CPU-seconds are those of sending the work, and one call more is made
             beforehand to know how many fill the time
    """
    if device.type == "cuda":
        alone, _ = seconds_of_block(work, 1, device)
        return seconds_of_block(work, max(least, math.ceil(seconds / max(alone, 1e-6))), device)
    settle(device)
    began, cpu, count = time.perf_counter(), time.process_time(), 0
    while count == 0 or time.perf_counter() - began < seconds:
        work()
        settle(device)  # of an accelerator without CUDA's events; a CPU has nothing to wait for
        count += 1
    return (time.perf_counter() - began) / count, (time.process_time() - cpu) / count


def seconds_of_block(work: Callable[[], Any], count: int, device: torch.device) -> tuple[float, float]:
    """Seconds by the device's own clock and CPU-seconds of one of `count` calls that are sent one after another."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    settle(device)
    cpu = time.process_time()
    first.record()
    for _ in range(count):
        work()
    last.record()
    sent = time.process_time() - cpu
    last.synchronize()
    return first.elapsed_time(last) / 1000 / count, sent / count


def ready(
    makers: Mapping[str, Callable[[], Step]], ours: str, absent: dict[str, str]
) -> Iterator[tuple[str, Step, float]]:
    """Make one contender after another: -> its name, its step, and the loss of its first one, which is taken here.

    ours    must run wherever the command does: what it raises is raised
    absent  gets the reason of each other one that cannot run here
    """
    for name, make in makers.items():
        try:
            step = make()
            loss = float(step())
        except (RuntimeError, ImportError, UserError) as problem:
            if name == ours:
                raise
            absent[name] = f"{type(problem).__name__}: {problem}".splitlines()[0]
        else:
            yield name, step, loss


def as_graph(step: Step, device: torch.device) -> Step:
    """A peer's whole step as one CUDA graph, replayed on the same inputs; its learning rate is a constant of the graph.

    Ours is replayed by the package itself: `--system.graph`, paceline/graph.py.
    """
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_STEPS):
            step()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay() -> Tensor:
        graph.replay()
        return loss

    return replay


def first_wait(step: Callable[[], Any], device: torch.device) -> str:
    """Where a step makes the host wait for a GPU, "" where it never does. A CPU has nothing to wait for."""
    if device.type != "cuda":
        step()
        return ""
    settle(device)
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
