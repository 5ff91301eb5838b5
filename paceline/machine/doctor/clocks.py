"""How far the nodes' clocks are apart, by round trips to rank 0: NTP's four times, of which the middle two are one here.

A node asks, rank 0 answers with its clock, and the node notes both ends of the trip. The answer was written somewhere between
them, so the offset is known to half the trip's length; of several trips the shortest tells most. Source: RFC 5905, section 8.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist

from paceline.ranks.world import World

TRIPS = 16


def offset(trips: Iterable[tuple[float, float, float]]) -> tuple[float, float]:
    """-> (how far this clock is ahead of the other, by how much that may be wrong), seconds.

    trips  (this clock when it asked, the other's when it answered, this clock when the answer came); at least one
    """
    asked, theirs, came = min(trips, key=lambda trip: trip[2] - trip[0])
    return (asked + came) / 2 - theirs, max(0.0, (came - asked) / 2)


def own_offset(world: World, askers: Sequence[int]) -> tuple[float, float]:
    """This rank's clock against rank 0's, as `offset`; (0, 0) on rank 0 and on ranks that do not ask. All ranks call it.

    askers  ranks that ask, one of each node, without rank 0; they take turns, so that no answer waits behind another's
    """
    time_of_other = torch.zeros(1, dtype=torch.float64)
    if world.rank == 0:
        for asker in askers:
            for _ in range(TRIPS):
                dist.recv(time_of_other, asker, group=world.control)
                dist.send(torch.tensor([time.time()], dtype=torch.float64), asker, group=world.control)
        return 0.0, 0.0
    if world.rank not in askers:
        return 0.0, 0.0
    trips = []
    for _ in range(TRIPS):
        asked = time.time()
        dist.send(torch.tensor([asked], dtype=torch.float64), 0, group=world.control)
        dist.recv(time_of_other, 0, group=world.control)
        trips.append((asked, float(time_of_other), time.time()))
    return offset(trips)
