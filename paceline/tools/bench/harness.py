"""How everything is compared: contenders take turns in rounds, do the same work, and stand beside ours by ratios within a round.

A round times every contender once, each round beginning with another one, so that a drifting clock speed or a busy neighbor hits
all alike. The first contender is ours: it must run wherever the command does; another that cannot is absent, with the reason.
Both times of a ratio come from one round; each ratio has the interval in which its median lies.
"""

from __future__ import annotations

import platform
import shlex
import statistics
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import comb
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from paceline._utils.errors import PacelineError
from paceline._utils.platform import count_cpus
from paceline.config.system import Precision
from paceline.distributed.device.accelerators import get_device_name
from paceline.distributed.device.provenance import collect_versions, get_cpu_name
from paceline.distributed.device.setup import TYPES
from paceline.distributed.device.timing import CallSeconds, find_host_wait, measure_seconds
from paceline.tools.bench.profile import ProfiledPart, profile_step
from paceline.tools.bench.roofline import ConvFlops, MachinePeak, describe_above_peak

if TYPE_CHECKING:
    from paceline.tools.bench.step import StepBench

OURS = "paceline"
WARM_UP_STEPS = 3  # on a GPU
NUMBERS = {"fp32": torch.float32, **TYPES}
T = TypeVar("T")
Step = Callable[[], Tensor]  # takes a training step, -> its loss, on the device


class ReadyCase(NamedTuple):
    """A contender that is ready."""

    step: Step
    parts: Sequence[ProfiledPart] = ()  # of its network, for a profile
    extra_facts: Callable[[], Mapping[str, float]] = dict  # known once it has taken a step: a fact's name -> its value


class Case(NamedTuple):
    """One that takes training steps."""

    make: Callable[[], ReadyCase]
    compiled: bool = False  # by torch.compile
    graph: bool = False  # replayed as one CUDA graph
    profiled: bool = False
    triton: bool = False  # with paceline's Triton kernels


Menu = dict[str, Case]


@dataclass(frozen=True)
class Operation:
    """The same work by several contenders, ours first."""

    name: str
    works: Mapping[str, Callable[[], Any]]
    # Peer -> how far its result (the second argument) lies from ours.
    differences: Mapping[str, Callable[[Any, Any], float]] = field(default_factory=dict)
    limit: float = 0.0  # of a difference that still is agreement


def list_variants(
    name: str, make: Callable[..., ReadyCase], detail: str = "", *, ours: bool = False, profiled: bool = False
) -> Menu:
    """A contender as it is, compiled, and as a CUDA graph; if it is ours, also compiled as a graph, and with Triton kernels.

    make    takes compile and graph; ours also takes kernels
    detail  said behind its form
    """
    result = {
        f"{name}{detail}": Case(make, profiled=profiled),
        f"{name} compiled{detail}": Case(partial(make, compile=True), compiled=True),
        f"{name} CUDA graph{detail}": Case(partial(make, graph=True), graph=True),
    }
    if ours:
        both, triton = partial(make, compile=True, graph=True), partial(make, kernels="triton")
        result[f"{name} compiled CUDA graph{detail}"] = Case(both, compiled=True, graph=True)
        result[f"{name} Triton{detail}"] = Case(triton, triton=True)
        result[f"{name} Triton CUDA graph{detail}"] = Case(partial(triton, graph=True), graph=True, triton=True)
    return result


def select_possible(menu: Mapping[str, Case], device: torch.device, *, compile: bool, only: Collection[str] = ()) -> Menu:
    """Those that are asked for and that the device can have.

    only  names of contenders; empty: all
    Graphs come last: a capture that fails may take the device's queue with it.
    """
    kept = {
        name: one
        for name, one in menu.items()
        if (compile or not one.compiled)
        and (device.type == "cuda" or not (one.graph or one.triton))
        and (not only or name in only)
    }
    return dict(sorted(kept.items(), key=lambda item: (item[1].graph, item[1].compiled)))


def machine_facts(device: torch.device) -> dict[str, Any]:
    """What every report says of the machine."""
    return {
        "device": get_cpu_name() if device.type == "cpu" else get_device_name(device),
        "threads": torch.get_num_threads(),
        "cores": count_cpus(),
        "system": platform.platform(),
        "versions": collect_versions(),
        "command": shlex.join(["paceline", *sys.argv[1:]]),
    }


def run_interleaved(
    works: Mapping[str, Callable[[], T]], rounds: int, absent: dict[str, str] | None = None
) -> Iterator[dict[str, list[T]]]:
    """Each contender once a round: yields, after each round, what every one has given in each.

    absent  gets the reason of one that fails, which then is left out of all rounds; None: it is raised
    """
    result: dict[str, list[T]] = {name: [] for name in works}
    for turn in range(rounds):
        order = list(result)
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            try:
                result[name].append(works[name]())
            except (RuntimeError, OSError) as problem:
                if absent is None:
                    raise
                absent[name] = str(problem)
                del result[name]
        yield result


def run_all_rounds(
    works: Mapping[str, Callable[[], T]], rounds: int, say: Callable[[str], Any], absent: dict[str, str] | None = None
) -> dict[str, list[T]]:
    """The same, said as it goes on."""
    result: dict[str, list[T]] = {}
    for turn, taken in enumerate(run_interleaved(works, rounds, absent)):
        result = taken
        say(f"round {turn + 1} of {rounds} done")
    return result


def compare_operation(
    operation: Operation, rounds: int, seconds: float, device: torch.device, *, warm: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Time an operation's contenders -> JSON facts (seconds of each round, ratios, whether the results are the same), and results.

    seconds  a contender's share of a round, at least one call
    warm     each is called once before the rounds
    """
    results: dict[str, Any] = {}

    def timed(name: str) -> CallSeconds:
        def work() -> None:
            results[name] = operation.works[name]()

        return measure_seconds(work, seconds, device)

    if warm:
        for work in operation.works.values():
            work()
    *_, taken = run_interleaved({name: partial(timed, name) for name in operation.works}, rounds)
    ours = next(iter(operation.works))
    apart = {name: far(results[ours], results[name]) for name, far in operation.differences.items()}
    facts = {
        "operation": operation.name,
        **summarize_times(taken),
        "difference": apart,
        "agrees": {name: value <= operation.limit for name, value in apart.items()},
    }
    return facts, results


def summarize_times(taken: Mapping[str, Sequence[CallSeconds]]) -> dict[str, Any]:
    """Times of every round, their medians, and ours beside each peer's by the clock and by CPU time."""
    ours, *peers = taken
    seconds, cpu = ({name: [one[which] for one in result] for name, result in taken.items()} for which in (0, 1))
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "median_seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "median_cpu_seconds": {name: statistics.median(values) for name, values in cpu.items()},
        "times_faster": {name: ratio_interval(seconds[name], seconds[ours]) for name in peers},
        "times_faster_cpu": {name: ratio_interval(cpu[name], cpu[ours]) for name in peers},
    }


def run_steps(
    menu: Mapping[str, Case], bench: StepBench, precision: Precision, device: torch.device
) -> Iterator[dict[str, Any]]:
    """Training steps in one number format: yields the facts known so far, after each contender's first steps and each round, and at
    last with a profile.
    """
    images, seconds, block = bench.batch, bench.seconds, bench.block
    facts: dict[str, Any] = {
        "absent": {}, "first_losses": {}, "before_the_rounds": {}, "gflop": {}, "waits_for_the_device": None,
    }  # fmt: skip
    made: dict[str, ReadyCase] = {}
    works: dict[str, ConvFlops] = {}
    for name, contender in menu.items():
        if contender.graph and facts["waits_for_the_device"]:
            facts["absent"][name] = f"a step synchronizes with the device: {facts['waits_for_the_device']}"
            continue
        try:
            ready = contender.make()
            with nullcontext() if contender.compiled or contender.graph else ConvFlops() as work:
                facts["first_losses"][name] = float(ready.step())
        except (RuntimeError, ImportError, PacelineError) as problem:
            if name == OURS:
                raise
            said = "" if isinstance(problem, PacelineError) else f"{type(problem).__name__}: "
            facts["absent"][name] = f"{said}{problem}".splitlines()[0]
            continue
        made[name] = ready
        if work is not None:
            works[name], facts["gflop"][name] = work, work.gflop
        for fact, value in ready.extra_facts().items():
            facts.setdefault(fact, {})[name] = value
        if device.type == "cuda":
            for _ in range(WARM_UP_STEPS - 1):
                ready.step()
            if name == OURS:
                facts["waits_for_the_device"] = find_host_wait(ready.step, device)
        # Told at once: a contender that takes the device down later leaves what others have shown.
        rates = facts["before_the_rounds"]
        rates[name] = round(images / measure_seconds(ready.step, 0.0, device, block).wall, 3)
        if rates[OURS] > bench.slowest * rates[name]:
            del made[name]
            facts["absent"][name] = f"{rates[OURS] / rates[name]:.1f} times slower than {OURS}, so its rounds end"
        yield facts
    ceiling = MachinePeak(works[OURS], bench.matrix, NUMBERS[precision], device)
    timed = {name: lambda step=ready.step: measure_seconds(step, seconds, device, block) for name, ready in made.items()}
    for taken in run_interleaved(timed, bench.rounds):
        ceiling.measure(seconds / 5)
        facts |= summarize_times(taken)
        facts["images_per_second"] = {name: images / wall for name, wall in facts["median_seconds"].items()}
        facts["ceiling"] = limit = ceiling.facts()
        # A compiled or replayed step does the work of ours.
        facts["share_of_ceiling"] = share = {
            name: facts["gflop"].get(name, facts["gflop"][OURS]) / wall / limit["gflops"]
            for name, wall in facts["median_seconds"].items()
        }
        facts["above_the_ceiling"] = describe_above_peak(share, limit)
        yield facts
    facts["where_milliseconds"] = {
        name: profile_step(ready.step, device, ready.parts) for name, ready in made.items() if menu[name].profiled
    }
    yield facts


CONFIDENCE = 0.95


def ratio_interval(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """theirs / ours of each round: -> their "median", and "low", "high" and "coverage" of its interval."""
    each = [other / max(own, 1e-9) for other, own in zip(theirs, ours)]
    low, high, coverage = median_interval(each)
    return {"median": statistics.median(each), "low": low, "high": high, "coverage": coverage}


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """-> two of the values between which the median of what they are drawn from lies, and the probability that it does.

    The innermost pair of order statistics x[k], x[n-1-k] that reaches CONFIDENCE, else the least and the largest (of five
    rounds: 0.94; of one: 0). No distribution is assumed: each side is wrong where at most k of n fair coins fall on it, so
    coverage is 1 - 2 P(Binomial(n, 1/2) <= k). Source: Conover, Practical Nonparametric Statistics, 3.2.
    """
    ordered, count = sorted(values), len(values)
    outside = [sum(comb(count, i) for i in range(k + 1)) / 2**count for k in range((count + 1) // 2)]
    index = max((k for k, share in enumerate(outside) if 1 - 2 * share >= CONFIDENCE), default=0)
    return ordered[index], ordered[-1 - index], max(0.0, 1 - 2 * outside[index])


def format_ratio(result: Mapping[str, float] | None) -> str:
    """A ratio in a table: "1.25 x (1.21 to 1.30)", of one round "1.25 x (one round)", "" where there is none."""
    if not result:
        return ""
    spread = f"{result['low']:.2f} to {result['high']:.2f}" if result["coverage"] else "one round"
    return f"{result['median']:.2f} x ({spread})"
