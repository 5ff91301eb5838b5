"""Where a step's time goes, part of the network by part, forward and backward, and what an update takes.

A part is a function or a method that is called by its name from elsewhere; for a profile another one takes its place that
marks the time until it returns. Backward work is its forward part's: autograd gives both the same sequence number.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from paceline.bench.timing import STEPS, seconds_of, settle

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
MARK = "part: "
NODE = re.compile("^autograd::engine::evaluate_function: ")
UPDATE, REST = "update", "rest"


class Contender(NamedTuple):
    """One that takes training steps.

    step       takes a step, -> its loss
    parts      (owner, attribute, part's name): where each part is called; an inner part counts for itself
    sampled    (owner, attribute) of what samples regions, and how to count the positives of what that returns
    optimiser  its `step` is the update
    """

    step: Callable[[], Tensor]
    parts: Sequence[tuple[Any, str, str]]
    sampled: tuple[Any, str, Callable[[Any], Tensor]]
    optimiser: Any


class Seconds(NamedTuple):
    """Of one step: wall and CPU time of all threads, the update's part in both (0 where it was not looked at), and its loss."""

    wall: float
    cpu: float
    update_wall: float
    update_cpu: float
    loss: float


@contextmanager
def replaced(owner: Any, name: str, wrap: Wrap) -> Iterator[None]:
    """Inside, `owner.name` is wrap(owner.name)."""
    before = getattr(owner, name)
    own = name in vars(owner)
    setattr(owner, name, wrap(before))
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


def seconds_of_steps(contender: Contender, seconds: float, device: torch.device) -> Seconds:
    """Of a step, on average over at least one and as many as fill `seconds`.

    On a GPU the update is not timed: the host would have to wait for it.
    """
    updates: list[tuple[float, float]] = []
    losses: list[Tensor] = []

    def timed(update: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            began, cpu = time.perf_counter(), time.process_time()
            result = update(*args, **kwargs)
            updates.append((time.perf_counter() - began, time.process_time() - cpu))
            return result

        return call

    def step() -> None:
        losses[:] = [contender.step()]

    with ExitStack() as stack:
        if device.type == "cpu":
            stack.enter_context(replaced(contender.optimiser, "step", timed))
        wall, cpu = seconds_of(step, seconds, device, STEPS)
    of_update = [sum(part) / len(updates) for part in zip(*updates)] or [0.0, 0.0]
    return Seconds(wall, cpu, of_update[0], of_update[1], float(losses[0]))


def watched_step(contender: Contender) -> tuple[float, int, float]:
    """Take a step; -> its loss, the positive regions that it sampled, and its GFLOP by torch's count, backward included."""
    counts: list[Tensor] = []
    owner, name, count = contender.sampled

    def counted(sampler: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = sampler(*args, **kwargs)
            counts.append(count(result))
            return result

        return call

    with replaced(owner, name, counted), FlopCounterMode(display=False) as counter:
        loss = contender.step()
    return float(loss), int(sum(counts)), counter.get_total_flops() / 1e9


def where_time_goes(contender: Contender, device: torch.device) -> dict[str, float]:
    """One profiled step: -> milliseconds of each part, largest first; of the device where it is a GPU."""
    on_gpu = device.type == "cuda"
    activities = [torch.profiler.ProfilerActivity.CPU] + [torch.profiler.ProfilerActivity.CUDA] * on_gpu
    with ExitStack() as stack:
        for owner, name, part in (*contender.parts, (contender.optimiser, "step", UPDATE)):
            stack.enter_context(replaced(owner, name, _marked(part)))
        profile = stack.enter_context(torch.profiler.profile(activities=activities, acc_events=True))
        contender.step()
        settle(device)
    events = [
        event
        for event in profile.events() or []
        # A GPU's kernels are counted on the operations that sent them.
        if event.device_type == torch.autograd.DeviceType.CPU  # pyright: ignore[reportPrivateImportUsage]
    ]
    part_of = {}
    for event in events:
        part, backward = _part_around(event)
        if part and not backward and event.sequence_nr >= 0:
            part_of.setdefault(event.sequence_nr, part)
    spent: Counter[str] = Counter()
    for event in events:
        part, backward = _part_around(event)
        if backward is not None:
            found = part_of.get(backward.sequence_nr)
            part = f"{found}, backward" if found else f"{REST}, backward"
        microseconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        spent[part or REST] += microseconds / 1000
    return {part: round(milliseconds, 3) for part, milliseconds in spent.most_common()}


def _marked(part: str) -> Wrap:
    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with torch.profiler.record_function(MARK + part):
                return function(*args, **kwargs)

        return wraps(function)(call) if hasattr(function, "__name__") else call

    return wrap


def _part_around(event: Any) -> tuple[str, Any]:
    """The innermost part around an event, "" where there is none; and the autograd node around it, or None."""
    while event is not None:
        if event.name.startswith(MARK):
            return event.name.removeprefix(MARK), None
        if NODE.search(event.name):
            return "", event
        event = event.cpu_parent
    return "", None
