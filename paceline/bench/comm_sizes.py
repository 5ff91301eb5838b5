"""What ranks send each other, by size: the gradients of the three networks, as one message and in data parallel's buckets.

Parameters are counted on torch's meta device, which holds shapes only. The small sizes are those of the published systems' own
health checks: two int64 by MPI's all-reduce (the SSD's latency test) and 120,000 B of float32 (its weights' second group).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch

from paceline.config.recipe import Recipe
from paceline.tasks.workloads import WORKLOADS

MIB = 2**20
# Data parallel's buckets where nobody asks for a size: the first, of the gradients that are ready first, is small.
USUAL_BUCKET_MIB, FIRST_BUCKET_BYTES = 25, MIB
TYPES = {"int64": torch.int64, "fp32": torch.float32, "fp16": torch.float16}
Kind = Literal["barrier", "broadcast", "all-reduce", "buckets"]


class Message(NamedTuple):
    """One thing to time.

    about   what it is, in words
    sizes   numbers (not bytes) of each part; several only in buckets, none in a barrier
    number  number format, a key of TYPES
    """

    kind: Kind
    about: str
    sizes: tuple[int, ...]
    number: str = "fp32"

    @property
    def bytes(self) -> int:
        """Of all parts."""
        return sum(self.sizes) * TYPES[self.number].itemsize


def messages(bucket_mib: float) -> list[Message]:
    """Everything to time, the small first.

    bucket_mib  size of data parallel's buckets
    """
    networks = {name: gradient_sizes(name) for name in WORKLOADS}
    largest = max(networks.values(), key=sum)
    found = [
        Message("barrier", "barrier", ()),
        Message("broadcast", "one number", (1,), "int64"),
        Message("broadcast", "largest network's weights", (sum(largest),)),
        Message("all-reduce", "one number", (1,), "int64"),
        Message("all-reduce", "two numbers", (2,), "int64"),
        Message("all-reduce", "1,024 numbers", (1024,)),
        Message("all-reduce", "30,000 numbers", (30_000,)),
        Message("all-reduce", "1 MiB", (MIB // 4,)),
    ]
    for name, sizes in networks.items():
        # A size that is asked for is the first bucket's too (torch.nn.parallel.DistributedDataParallel, bucket_cap_mb).
        first = FIRST_BUCKET_BYTES if bucket_mib == USUAL_BUCKET_MIB else round(bucket_mib * MIB)
        parts = buckets(sizes, round(bucket_mib * MIB), first=first)
        found += [
            Message("all-reduce", f"{name} gradient", (sum(sizes),), "fp16"),
            Message("all-reduce", f"{name} gradient", (sum(sizes),)),
            Message("buckets", f"{name} in {len(parts)} bucket{'s'[: len(parts) > 1]}", tuple(parts)),
        ]
    return found


def gradient_sizes(workload: str) -> list[int]:
    """Numbers in each trained parameter of a workload's usual network, in the network's order."""
    parts = WORKLOADS[workload]
    recipe = Recipe(task=workload, model=parts.model, input=parts.input)
    with torch.device("meta"):
        network = parts.build(recipe, parts.classes)
    return [parameter.numel() for parameter in network.parameters() if parameter.requires_grad]


def buckets(sizes: Sequence[int], limit: int, *, first: int = FIRST_BUCKET_BYTES, itemsize: int = 4) -> list[int]:
    """Numbers in each bucket that data parallel sends, in the order in which it sends them.

    sizes  of the parameters, in the network's order; gradients are ready in about the reverse of it
    limit  bytes; a bucket is closed by the parameter that reaches it. The first bucket's is `first`, where that is less
    """
    found, filled, most = [], 0, min(first, limit)
    for size in reversed(sizes):
        filled += size
        if filled * itemsize >= most:
            found.append(filled)
            filled, most = 0, limit
    return [*found, filled] if filled else found
