"""Evaluation: every validation image once, over all ranks, with no collective inside the loop.

Each rank scores a contiguous share (shares may differ by one image, so batch counts may differ too); what scoring needs
travels to rank 0 once, as compact bytes, and the metrics come back to all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn

from paceline.config.system import System
from paceline.dist.exchange import from_main
from paceline.dist.stop import StopVote
from paceline.dist.world import World
from paceline.tasks.task import Evaluation, Place, Task


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """eval() and inference_mode() for the block; each module's own mode comes back even on an exception."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, training in modes:
            module.training = training


def evaluate(
    model: nn.Module,
    task: Task,
    *,
    key: str,
    batch: int,
    system: System,
    place: Place,
    world: World,
    autocast: Callable[[], AbstractContextManager],
    vote: StopVote | None = None,
) -> Evaluation | None:
    """Score `model` on the task's validation images; None on every rank when any rank was told to stop.

    key    names this evaluation among those of the process
    batch  most images in one forward
    Raises RuntimeError when an image was scored twice or not at all.
    """
    score = task.new_score()
    stopped = False
    with inference(model), task.val_loader(batch, system, place) as loader:
        for _, batches in loader:
            for images in batches:
                with autocast():
                    score.add(images, model.predict(images))  # type: ignore[operator]
            stopped = vote is not None and vote.stopping_here()
            if stopped:
                break
    # Ranks may have come to different places; all of them settle it here, so none waits for another in vain.
    if vote is not None and vote.agree(stopped):
        return None
    packed = world.gather_bytes(score.pack())
    if packed is not None:
        evaluation = task.summarise(packed)
        from_main(world, json.dumps([dict(evaluation.metrics), evaluation.images]), f"evaluation/{key}")
        return evaluation
    metrics, images = json.loads(from_main(world, None, f"evaluation/{key}"))
    return Evaluation(metrics, images, {})
