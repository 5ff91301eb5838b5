"""Small agreements between ranks, on top of World's control channel."""

from __future__ import annotations

import torch
import torch.distributed as dist

from paceline.dist.world import World


def smallest(world: World, value: int) -> int:
    """The smallest `value` of all ranks; every rank must call it."""
    if world.control is None:
        return value
    tensor = torch.tensor([value], dtype=torch.int64)
    dist.all_reduce(tensor, dist.ReduceOp.MIN, group=world.control)
    return int(tensor)


def from_main(world: World, text: str | None, key: str) -> str:
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
