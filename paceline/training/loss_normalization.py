"""Losses that are normalized by counts over a group of images, which may be in several forwards and on several ranks.

Letters: G loss groups of one forward   T terms of the loss   g images of a loss group   B global batch
A model with such losses returns sums and counts; a group's loss is the sum over terms of sums / max(counts, 1). Where a
forward holds whole groups, that is all. Where it is a part of one, the group's counts must be known before the first
backward, because each term has its own: a pass that only counts comes first, and ranks that make up a group add their counts.
Counts travel between devices; the host never reads one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline._utils.errors import RecipeError
from paceline.config.plan import BatchPlan
from paceline.data.batch import Batch
from paceline.models.layers.batch_norm import discard_pending
from paceline.training.logging.events import COUNT


@runtime_checkable
class LossGroupModel(Protocol):
    """A network with its losses; a forward returns "sums" (G, T) float32 with gradient and "counts" (G, T) float32.

    It may return "accuracies" too, without gradient: name -> (2,) float32, a sum and the count that it is to be divided by; and
    "unsettled" (): a number of boxes, which goes to the train event.
    """

    terms: tuple[str, ...]  # the columns' names
    loss_groups: int  # G: how many groups of neighboring images a forward is made of; set by `configure_loss_groups`

    def count(self, batch: Batch) -> Tensor:
        """-> (1, T) float32: the counts that the forward of this batch will have."""
        ...


def configure_loss_groups(model: nn.Module, plan: BatchPlan) -> None:
    """Set how many loss groups a model's forwards hold. Raises RecipeError for a model without loss groups."""
    if not isinstance(model, LossGroupModel):
        raise RecipeError(
            f"{type(model).__name__}: the recipe's model has the field loss_normalizer_images, but the network does not define "
            "`terms`, `loss_groups`, and `count` (see paceline/training/loss_normalization.py). Rename the field, or define them."
        )
    model.loss_groups = plan.loss_groups


@torch.no_grad()
def count_ahead(
    model: nn.Module,
    batches: Sequence[Batch],
    plan: BatchPlan,
    autocast: Callable[[], AbstractContextManager],
    ranks: dist.ProcessGroup | None = None,
) -> list[Tensor | None]:
    """Each forward's (1, T) counts of its group, counted before any backward; None where its own forward has them in time.

    batches  this rank's forwards of one step; groups are `plan.loss_micro_batches` neighbors
    ranks    those that train; None: all
    The model counts without data parallel. BatchNorm's statistics are left as they were.
    """
    if plan.loss_micro_batches == 1:
        return [None] * len(batches)
    counted = []
    for batch in batches:
        with autocast():
            counted.append(cast(LossGroupModel, model).count(batch))
    discard_pending(model)  # with several forwards a step, no forward touches the running statistics themselves
    groups = torch.cat(counted).unflatten(0, (-1, plan.loss_micro_batches)).sum(1, keepdim=True)
    _add_over_ranks(groups, plan, ranks)
    return [groups[number // plan.loss_micro_batches] for number in range(len(batches))]


def group_losses(
    outputs: Mapping[str, Any],
    terms: Sequence[str],
    plan: BatchPlan,
    counted: Tensor | None,
    ranks: dist.ProcessGroup | None = None,
) -> dict[str, Tensor]:
    """The loss (with gradient) and each term of one forward, times g: summed over images, as other tasks' losses are.

    outputs  what the model returned
    counted  (1, T) counts of the group that this forward is a part of, where they are known already
    ranks    those that train; None: all
    A group without a single count has loss 0 and a gradient of zeros.
    """
    counts = counted
    if counts is None:
        counts = outputs["counts"].detach().clone()
        _add_over_ranks(counts, plan, ranks)
    parts = (outputs["sums"] / counts.clamp(min=1)).sum(0) * plan.loss_normalizer_images
    losses = {"loss": parts.sum(), **dict(zip(terms, parts.unbind()))}
    for name, (total, count) in outputs.get("accuracies", {}).items():
        losses |= {name: total, name + COUNT: count}
    if "unsettled" in outputs:
        losses["unsettled"] = outputs["unsettled"]
    return losses


def _add_over_ranks(counts: Tensor, plan: BatchPlan, ranks: dist.ProcessGroup | None) -> None:
    if plan.loss_ranks > 1:
        dist.all_reduce(counts, group=ranks)
