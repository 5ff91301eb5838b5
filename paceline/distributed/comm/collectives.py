"""Small agreements between ranks, on top of World's control channel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from paceline.distributed.comm.world import DistContext


def all_min(world: DistContext, value: int) -> int:
    """The smallest `value` of all ranks; every rank must call it."""
    if world.control is None:
        return value
    tensor = torch.tensor([value], dtype=torch.int64)
    dist.all_reduce(tensor, dist.ReduceOp.MIN, group=world.control)
    return int(tensor)


def all_min_and_gather(world: DistContext, value: int, own: Sequence[int]) -> tuple[int, list[list[int]]]:
    """The smallest `value` of all ranks, and each rank's `own` numbers, by rank, in one exchange; every rank must call it.

    own  as many on every rank, below 2^63 - 1
    """
    if world.control is None:
        return value, [list(own)]
    none = torch.iinfo(torch.int64).max
    table = torch.full((world.world, len(own)), none, dtype=torch.int64)
    table[world.rank] = torch.tensor(own, dtype=torch.int64)
    # Where all others have the largest number there is, the smallest is a rank's own.
    both = torch.cat((torch.tensor([value], dtype=torch.int64), table.flatten()))
    dist.all_reduce(both, dist.ReduceOp.MIN, group=world.control)
    return int(both[0]), both[1:].view(table.shape).tolist()


def broadcast_from_main(world: DistContext, text: str | None, key: str) -> str:
    """Rank 0's `text` on every rank, however long rank 0 takes to have it: the others wait on the store, in no collective.

    key  names this exchange; never used twice in one run
    """
    if world.world == 1:
        assert text is not None
        return text
    if world.is_main:
        assert text is not None
        world.post(key, text)
        return text
    return world.wait_for(key)
