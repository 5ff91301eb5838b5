"""Barrier, broadcast and all-reduce between the ranks of a run, timed beside plain torch.distributed.

Ours is the run's own World, whose gradients travel in data parallel's group; the peer is a group of torch.distributed with
nothing of ours. Both are gloo on a CPU and NCCL on CUDA, and are timed in turn. A repetition is one call on a CPU and the mean of
a block of calls by the device's clock on CUDA, and takes as long as its slowest rank. Sums are of zeros, which stay zeros however
often they are added; sums are checked before and after with numbers that are exact in any order of addition.

Messages have the sizes of the three networks' gradients (counted on torch's meta device), as one message and in data parallel's
buckets, and those of the published systems' health checks: two int64 by MPI's all-reduce (the SSD's latency test) and 120,000 B
of float32 (its weights' second group).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.distributed.comm.gloo import suppress_gloo_output
from paceline.distributed.comm.world import DistContext, all_min
from paceline.distributed.device.accelerators import get_device_name, synchronize
from paceline.distributed.device.timing import measure_block

OURS, PEER = "paceline", "torch"
MIN_REPETITIONS, MAX_REPETITIONS, WARM_UP = 5, 10_000, 3
CALLS_OF_A_BLOCK = 20
Call = Callable[[], object]


def measure(
    world: DistContext, messages: Sequence[CommMessage], seconds: float, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Time every message on every rank; all ranks call it.

    seconds  a contender's share of a message's time; at least MIN_REPETITIONS repetitions are made
    return   facts for the table and JSON: times in seconds, bandwidths in bytes a second
    """
    assert world.control is not None
    with suppress_gloo_output(dist.get_backend()):
        peer = dist.new_group(backend=dist.get_backend(), group_desc="bench-peer")
    assert isinstance(peer, dist.ProcessGroup)
    results = []
    for message in messages:
        say(f"{message.kind} {message.about}")
        results.append(_row(world, peer, message, seconds))
    return {
        "world_size": world.world,
        "backend": dist.get_backend(),
        "device": get_device_name(world.device),
        "torch": torch.__version__,
        "rows": results,
        "fit": {name: _fitted(results, name, world.world) for name in (OURS, PEER)},
        "sums_are_right": all(row["right"][name] for row in results for name in (OURS, PEER)),
    }


def _row(world: DistContext, peer: dist.ProcessGroup, message: CommMessage, seconds: float) -> dict[str, Any]:
    parts = [torch.zeros(size, dtype=TYPES[message.number], device=world.device) for size in message.sizes]
    calls = _contenders(world, peer, message, parts)
    right = {name: _is_right(world, message, parts, call) for name, call in calls.items()}
    for part in parts:
        part.zero_()
    taken = _times(world, calls, seconds, message)
    right = {name: right[name] and _is_right(world, message, parts, call) for name, call in calls.items()}
    return {
        "kind": message.kind,
        "about": message.about,
        "bytes": message.bytes,
        "number": message.number if message.sizes else "",
        "messages": len(message.sizes),
        "right": right,
        "seconds": {name: _summary(message, times, world.world) for name, times in taken.items()},
    }


def _contenders(world: DistContext, peer: dist.ProcessGroup, message: CommMessage, parts: list[Tensor]) -> dict[str, Call]:
    """The same work by the run's World and by plain torch.distributed."""

    def exchange(group: dist.ProcessGroup | None) -> None:
        """As data parallel: all buckets are sent, then all are waited for."""
        for work in [dist.all_reduce(part, group=group, async_op=True) for part in parts]:
            assert work is not None
            work.wait()

    if message.kind == "barrier":
        return {OURS: world.barrier, PEER: lambda: dist.barrier(group=peer)}
    if message.kind == "broadcast":
        return {OURS: lambda: world.broadcast_(parts), PEER: lambda: dist.broadcast(parts[0], 0, group=peer)}
    if message.kind == "buckets":
        return {OURS: lambda: exchange(None), PEER: lambda: exchange(peer)}
    return {OURS: lambda: world.sum_(parts[0]), PEER: lambda: dist.all_reduce(parts[0], group=peer)}


def _is_right(world: DistContext, message: CommMessage, parts: list[Tensor], call: Call) -> bool:
    """Whether one call leaves on every rank what it has to: sums of (place + rank) mod 3, or rank 0's values.

    Exact in float16 up to a thousand ranks: sums stay below 2048.
    """
    sent = message.kind == "broadcast"
    right = True
    for part in parts:
        _filled(part, [(index + world.rank) % 3 for index in range(3)])
    call()
    triples, rest = divmod(world.world, 3)  # of three neighboring ranks each adds another of 0, 1, 2
    added = [3 * triples + sum((index + rank) % 3 for rank in range(rest)) for index in range(3)]
    for part in parts:
        right = right and torch.equal(part, _filled(torch.empty_like(part), [0, 1, 2] if sent else added))
        part.zero_()
    return bool(all_min(world, int(right)))


def _filled(part: Tensor, values: Sequence[int]) -> Tensor:
    """`part` (N,) with three values repeated, in place: a pattern that is copied, for messages have 50 million numbers."""
    whole = part.numel() // 3
    pattern = torch.tensor(values, dtype=part.dtype, device=part.device)
    part[: 3 * whole].view(whole, 3).copy_(pattern)
    part[3 * whole :].copy_(pattern[: part.numel() - 3 * whole])
    return part


def _times(world: DistContext, calls: Mapping[str, Call], seconds: float, message: CommMessage) -> dict[str, list[float]]:
    """Seconds of each repetition on its slowest rank, the contenders taking turns."""
    block = CALLS_OF_A_BLOCK if world.device.type == "cuda" and message.kind != "barrier" else 1

    def timed(call: Call) -> float:
        if block > 1:
            return measure_block(call, block, world.device)[0]
        began = time.perf_counter()
        call()
        synchronize(world.device)
        return time.perf_counter() - began

    first = 0.0
    for _ in range(WARM_UP):
        first = max(timed(call) for call in calls.values())
    wanted = int(seconds / max(first * block, 1e-7))
    count = all_min(world, max(MIN_REPETITIONS, min(MAX_REPETITIONS, wanted)))
    for _ in range(min(count // 10, 1000)):
        for call in calls.values():
            call()
    own = torch.tensor([[timed(call) for call in calls.values()] for _ in range(count)], dtype=torch.float64)
    dist.all_reduce(own, dist.ReduceOp.MAX, group=world.control)
    return {name: own[:, column].tolist() for column, name in enumerate(calls)}


def _summary(message: CommMessage, times: list[float], world: int) -> dict[str, float]:
    median = statistics.median(times)
    result = {"min": min(times), "median": median, "max": max(times), "repetitions": len(times)}
    if message.sizes:
        result["algorithm_bandwidth"] = message.bytes / median
        share = bus_factor(world) if message.kind in ("all-reduce", "buckets") else 1.0
        result["bus_bandwidth"] = result["algorithm_bandwidth"] * share
    return result


def _fitted(rows: list[dict[str, Any]], name: str, world: int) -> dict[str, float] | None:
    """alpha and beta of this contender's single all-reduces, by the median times.

    Without float16, in which gloo adds several times slower.
    """
    fitted = [row for row in rows if row["kind"] == "all-reduce" and row["number"] != "fp16"]
    points = [(row["bytes"], row["seconds"][name]["median"]) for row in fitted]
    result = fit_latency(points)
    if result is None:
        return None
    bus = bus_factor(world) / result.beta if result.beta else None
    return {
        "alpha_seconds": result.alpha,
        "beta_seconds_per_byte": result.beta,
        "bus_bandwidth": bus,  # type: ignore[dict-item]
        "worst_relative_error": result.worst,
    }


# The alpha-beta model of an all-reduce, fitted to measured times: t(bytes) = alpha + bytes * beta.
#
# alpha is what an all-reduce costs however small it is (s); 1 / beta is its algorithm bandwidth (B/s), the message's bytes by its
# time. Of W ranks each has to send at least 2 (W - 1) / W times the message, so the bandwidth of the links, the bus bandwidth, is
# the algorithm bandwidth times that: it can be compared between numbers of ranks and with what the network is sold as.
# Sources: Hockney 1994 for the model; NVIDIA's nccl-tests, doc/PERFORMANCE.md, for the two bandwidths.


class LatencyFit(NamedTuple):
    """A fitted model."""

    alpha: float  # seconds of the smallest message
    beta: float  # seconds a byte
    worst: (
        float  # largest relative error over the points it was fitted to: 0.5 is a time half as large again as the model's
    )

    def seconds(self, count: float) -> float:
        """The model's time of an all-reduce of `count` bytes."""
        return self.alpha + count * self.beta


def fit_latency(points: Sequence[tuple[float, float]]) -> LatencyFit | None:
    """Least squares of the relative errors over (bytes, seconds); None for fewer than two sizes.

    Relative, because times span five orders of magnitude: absolute errors would leave alpha to chance.
    Neither alpha nor beta is ever below 0.
    """
    points = [(size, seconds) for size, seconds in points if seconds > 0]
    if len({size for size, _ in points}) < 2:
        return None
    # Minimize the sum of ((alpha + beta x) / t - 1)^2, that is of (alpha u + beta v - 1)^2 with u = 1/t, v = x/t.
    uu = sum(1 / t**2 for _, t in points)
    uv = sum(x / t**2 for x, t in points)
    vv = sum((x / t) ** 2 for x, t in points)
    u, v = sum(1 / t for _, t in points), sum(x / t for x, t in points)
    determinant = uu * vv - uv * uv
    alpha, beta = (u * vv - v * uv) / determinant, (v * uu - u * uv) / determinant
    if beta < 0:
        alpha, beta = u / uu, 0.0
    elif alpha < 0:
        alpha, beta = 0.0, v / vv
    result = LatencyFit(alpha, beta, 0.0)
    return result._replace(worst=max(abs(t / max(result.seconds(x), 1e-12) - 1) for x, t in points))


def bus_factor(world: int) -> float:
    """Bus bandwidth over algorithm bandwidth of an all-reduce: 2 (W - 1) / W."""
    return 2 * (world - 1) / world


MIB = 2**20
# Data parallel's buckets where nobody asks for a size: the first, of the gradients that are ready first, is small.
USUAL_BUCKET_MIB, FIRST_BUCKET_BYTES = 25, MIB
TYPES = {"int64": torch.int64, "fp32": torch.float32, "fp16": torch.float16}
Kind = Literal["barrier", "broadcast", "all-reduce", "buckets"]


class CommMessage(NamedTuple):
    """One thing to time."""

    kind: Kind
    about: str  # what it is, in words
    sizes: tuple[int, ...]  # numbers (not bytes) of each part; several only in buckets, none in a barrier
    number: str = "fp32"  # number format, a key of TYPES

    @property
    def bytes(self) -> int:
        """Of all parts."""
        return sum(self.sizes) * TYPES[self.number].itemsize


def make_messages(ddp_bucket_mib: float, networks: Mapping[str, Sequence[int]]) -> list[CommMessage]:
    """Everything to time, the small first.

    ddp_bucket_mib  size of data parallel's buckets
    networks    name -> numbers in each trained parameter, in the network's order
    """
    largest = max(networks.values(), key=sum)
    results = [
        CommMessage("barrier", "barrier", ()),
        CommMessage("broadcast", "one value", (1,), "int64"),
        CommMessage("broadcast", "weights of the largest network", (sum(largest),)),
        CommMessage("all-reduce", "one value", (1,), "int64"),
        CommMessage("all-reduce", "two values", (2,), "int64"),
        CommMessage("all-reduce", "1,024 values", (1024,)),
        CommMessage("all-reduce", "30,000 values", (30_000,)),
        CommMessage("all-reduce", "1 MiB", (MIB // 4,)),
    ]
    for name, sizes in networks.items():
        # A size that is asked for is the first bucket's too (torch.nn.parallel.DistributedDataParallel, bucket_cap_mb).
        first = FIRST_BUCKET_BYTES if ddp_bucket_mib == USUAL_BUCKET_MIB else round(ddp_bucket_mib * MIB)
        parts = gradient_buckets(sizes, round(ddp_bucket_mib * MIB), first=first)
        results += [
            CommMessage("all-reduce", f"{name} gradient", (sum(sizes),), "fp16"),
            CommMessage("all-reduce", f"{name} gradient", (sum(sizes),)),
            CommMessage("buckets", f"{name} in {len(parts)} bucket{'s'[: len(parts) > 1]}", tuple(parts)),
        ]
    return results


def gradient_buckets(sizes: Sequence[int], limit: int, *, first: int = FIRST_BUCKET_BYTES, itemsize: int = 4) -> list[int]:
    """Numbers in each bucket that data parallel sends, in the order in which it sends them.

    sizes  of the parameters, in the network's order; gradients are ready in about the reverse of it
    limit  bytes; a bucket is closed by the parameter that reaches it. The first bucket's is `first`, where that is less
    """
    results, filled, most = [], 0, min(first, limit)
    for size in reversed(sizes):
        filled += size
        if filled * itemsize >= most:
            results.append(filled)
            filled, most = 0, limit
    return [*results, filled] if filled else results
