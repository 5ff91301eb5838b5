"""Over which images a loss is normalized, and how a cut batch reaches that.

Letters: B global batch   W ranks   f images per forward   A forwards of a step on a rank   g images of a loss group
Some losses are a sum over places divided by how many places count (sampled anchors, sampled regions, pixels of masks). Such
a recipe says over how many images both sums go: published systems took the images of one GPU, the default is the global
batch. The step's loss is the mean over its B/g groups. A forward of f images holds f/g groups whole, or is a part of one:
then the counts of its f*A or B images must be known before the first backward, from a counting pass or from all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from paceline.config.recipe import Recipe


@runtime_checkable
class LossNormalization(Protocol):
    """What the model's part of a recipe has where its losses are normalized over groups of images."""

    @property
    def loss_group(self) -> int:
        """Images over which losses are normalized together; 0 = the global batch."""
        ...


@dataclass(frozen=True)
class LossGroups:
    """How a cut batch makes up loss groups; groups * f images, or f * forwards * join, are g."""

    groups: int  # whole groups in one forward
    forwards: int  # consecutive forwards of a rank that make up one group
    join: int  # ranks whose forwards make up one group: 1 or all


def recipe_loss_group(recipe: Recipe) -> int:
    """Images of one loss group of this recipe; 0 for a task whose losses are plain sums over images."""
    settings = recipe.model
    if not isinstance(settings, LossNormalization):
        return 0
    return settings.loss_group or recipe.global_batch


def split_loss_groups(group: int, *, images: int, forwards: int, world: int, bn_join: int) -> LossGroups | None:
    """How `world` ranks with `forwards` forwards of `images` images make up groups of `group`; None where they cannot.

    group    0 = the losses need no groups
    bn_join  ranks that share BatchNorm statistics: they take turns in the sample stream, so only a forward, and the whole
             batch, hold neighboring images there
    """
    if not group or images % group == 0:
        return LossGroups(images // group if group else 1, 1, 1)
    share = images * forwards
    if bn_join == 1 and group % images == 0 and share % group == 0:
        return LossGroups(1, group // images, 1)
    if group == share * world:
        return LossGroups(1, forwards, world)
    return None


def explain_impossible_group(group: int, cuts: Sequence[tuple[int, int, int]], *, world: int, most: int) -> str:
    """Why no cut reaches a loss group, and both ways out.

    cuts  (images, forwards, ranks joined for BatchNorm) of every cut that the ranks, the memory and --bn-span allow
    most  images that one forward may hold
    """
    share = cuts[0][0] * cuts[0][1]
    reachable = {
        size
        for images, forwards, bn_join in cuts
        for size in range(1, share + 1)
        if share % size == 0
        and split_loss_groups(size, images=images, forwards=forwards, world=world, bn_join=bn_join) is not None
    }
    nearest = sorted(sorted(reachable, key=lambda size: max(size, group) / min(size, group))[:3])
    return (
        f"--model.loss-group {group} cannot be reached with {share} images a rank on {world} ranks, {most} images at most in "
        f"one forward: a rank must hold whole groups, or one group be the global batch of {share * world}.\n"
        f"Nearest groups that can: {', '.join(map(str, nearest))}, or 0 for the global batch. Or use another number of ranks, "
        f"or give each forward more room (--system.images-per-forward)."
    )
