"""Which ranks train and which only evaluate, and what the two exchange.

Of all ranks the last few may only evaluate. The others train as if they were alone: their numbers, sums and votes are among
themselves. Rank 0 leaves orders in the store, one after another, where an evaluation rank waits in no collective, however
long that takes; the weights that it is to evaluate follow the order at once, in one broadcast. Scores come back through
the store.
Each of the DistContexts here counts its own ranks: `everyone` all, `peers` those of the same role.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from paceline.distributed.comm.world import DistContext

# Between two looks for what others leave in the store. Training waits for no longer than this at an evaluation.
LOOK_SECONDS = 0.1


@dataclass
class RankRoles:
    """The role of this rank, and of the others."""

    everyone: DistContext  # all ranks
    peers: DistContext  # those that do what this one does: that train, or that only evaluate
    evaluators: int = 0  # how many only evaluate; 0: the ranks that train evaluate too
    # Rank 0 and those that only evaluate, once `join_handover` has been called; None on the others.
    handover: DistContext | None = None
    orders: int = 0  # given or read so far

    def join_handover(self) -> None:
        """Found `handover`. Every rank calls it once, after all `DistContext.new_groups`.

        Of one rank that trains it makes a member of more groups than the others are, and before PyTorch's pull request 189073
        (its 2.11 lacks it) ranks find each other for a group of their own by how many they are in: they would wait for ever.
        """
        if self.evaluators:
            self.handover = self.everyone.part((0, *range(self.trainers, self.everyone.world)), "handover")

    @property
    def trainers(self) -> int:
        """How many ranks train: the first ones."""
        return self.everyone.world - self.evaluators

    @property
    def evaluates(self) -> bool:
        """Whether this rank only evaluates."""
        return self.everyone.rank >= self.trainers

    def order(self, **what: Any) -> None:
        """Give the evaluation ranks their next order; rank 0 does, the others only count along."""
        if self.evaluators and self.everyone.is_main:
            self.everyone.post(f"order/{self.orders}", json.dumps(what))
        self.orders += 1

    def next_order(self, meanwhile: Callable[[], object]) -> dict[str, Any]:
        """The next order, on an evaluation rank; `meanwhile` is called again and again until it is there."""
        text = self._wait(f"order/{self.orders}", meanwhile)
        self.orders += 1
        return json.loads(text)

    def broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        """Give the evaluation ranks rank 0's values, in place. Every rank may call it; those without a part in it go on."""
        if self.handover is not None:
            self.handover.broadcast_(tensors)

    def answer(self, step: int, scores: dict[str, Any] | None) -> None:
        """Post the scores of `step`'s evaluation, None where it was broken off; the first evaluation rank does."""
        if self.peers.is_main:
            self.everyone.post(f"scored/{step}", json.dumps(scores))

    def answer_of(self, step: int, meanwhile: Callable[[], object]) -> dict[str, Any] | None:
        """The scores that `answer` posts for `step`; `meanwhile` is called again and again until they are there."""
        return json.loads(self._wait(f"scored/{step}", meanwhile))

    def _wait(self, key: str, meanwhile: Callable[[], object]) -> str:
        while (text := self.everyone.posted(key)) is None:
            meanwhile()
            time.sleep(LOOK_SECONDS)
        return text


def assign_roles(world: DistContext, evaluators: int) -> RankRoles:
    """Of all ranks the last `evaluators` only evaluate; fewer than all. Every rank calls it."""
    if evaluators == 0:
        return RankRoles(world, world)
    assert evaluators < world.world, "config/plan.py, training_ranks, refuses this"
    first = world.world - evaluators
    training = world.part(range(first), "training")
    evaluating = world.part(range(first, world.world), "evaluation")
    peers = training or evaluating
    assert peers is not None
    return RankRoles(world, peers, evaluators)
