"""Evaluation: every validation image once, over all ranks, with no collective inside the loop.

Each rank runs its contiguous share through the model (shares may differ by one image, so batch counts may differ too); what
scoring needs travels to rank 0 once, as compact bytes, and the metrics come back to all (scoring.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn

from paceline.config.system import System
from paceline.dist.stop import StopVote
from paceline.dist.world import World
from paceline.scoring import Scoring
from paceline.tasks.task import Evaluation, Place, Score, Task


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


def run_inference(
    model: nn.Module,
    task: Task,
    *,
    batch: int,
    system: System,
    place: Place,
    autocast: Callable[[], AbstractContextManager],
    vote: StopVote | None = None,
    passed: Callable[[int], None] = lambda _: None,
) -> Score | None:
    """This rank's share of the validation images through `model`; None on every rank when any rank was told to stop.

    batch   most images in one forward
    passed  told the number of images of each forward that is sent
    """
    score = task.new_score()
    stopped = False
    with inference(model), task.val_loader(batch, system, place) as loader:
        for _, batches in loader:
            for images in batches:
                with autocast():
                    score.add(images, model.predict(images))  # type: ignore[operator]
                passed(len(images))
            stopped = vote is not None and vote.stopping_here()
            if stopped:
                break
    # Ranks may have come to different places; all of them settle it here, so none waits for another in vain.
    stopped = vote is not None and vote.agree(stopped)
    return None if stopped else score


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
) -> Evaluation:
    """Score `model` on the task's validation images, and wait for the result; predictions are on rank 0.

    key    names this evaluation among those of the process
    batch  most images in one forward
    Raises RuntimeError on rank 0 when an image was scored twice or not at all.
    """
    score = run_inference(model, task, batch=batch, system=system, place=place, autocast=autocast)
    assert score is not None
    return Scoring(task, world, score, key).result()
