"""BatchNorm whose statistics span as many images as the recipe asks, however the batch is cut into ranks and forwards.

Letters: B images of one forward on one rank   C channels   H, W pixels   G groups   R ranks that share statistics
`bn_span` images share one set of statistics. A forward of more images is split into G groups of consecutive images (ghost
BatchNorm, Hoffer et al. 2017); a forward of fewer is joined over R ranks (group BatchNorm, as MLPerf submissions call it).
Parameter and buffer names are torch's, so any ResNet's weights fit.

Running statistics move once an optimizer step. The mean over all groups of all the step's forwards is collected in `pending`, and
`update_running_statistics` folds it in with one exponential-moving-average update. That update is linear, so ranks may commit on
their own and be averaged later (`average_running_statistics`): 1 x 64, 4 x 16 and 2 ranks x 32 with a span of 16 end with the same
running statistics, provided that they cut the global batch into the same groups.
Data parallel wrappers must not broadcast buffers: set `broadcast_buffers=False`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from paceline._utils.errors import RecipeError
from paceline.models.layers.ghost_batch_norm import joined_batch_norm, split_batch_norm
from paceline.models.ops.dispatch import uses_triton


class BatchNorm(nn.BatchNorm2d):
    """torch's BatchNorm2d plus the span of its statistics; with the default span its results are torch's, bit for bit.

    `num_batches_tracked` counts commits (optimizer steps), not forwards.
    """

    pending: Tensor
    momentum: float  # pyright: ignore[reportIncompatibleVariableOverride] (torch's None, a plain average, is not offered)

    def __init__(self, channels: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(channels, eps=eps, momentum=momentum)
        # (2, C): sum over the step's groups of (mean, unbiased variance), each weighted by 1 / number of groups.
        self.register_buffer("pending", torch.zeros(2, channels), persistent=False)
        self.groups = 1
        self.forwards = 1
        self.join = 1
        self.join_group: dist.ProcessGroup | None = None

    @property
    def collects(self) -> bool:
        """Whether a forward's statistics wait in `pending`; if not, a forward updates the running buffers itself."""
        return self.groups * self.forwards * self.join > 1

    def fuses(self, input: Tensor, shortcut: Tensor | None = None) -> bool:
        """Whether this forward takes our kernels in Triton; a compiler reads the plain form, joined ranks need collectives."""
        return (
            not torch.compiler.is_compiling()
            and (uses_triton(input) and self.training and self.join == 1 and self.weight.dtype == torch.float32)
            and input.is_contiguous(memory_format=torch.channels_last)
            # What torch refuses, and what it answers for no images, stays torch's.
            and (input.shape[0] % self.groups == 0 and input.numel() > self.groups * self.num_features)
            and (shortcut is None or (shortcut.shape == input.shape and shortcut.dtype == input.dtype))
        )

    def forward(self, input: Tensor, shortcut: Tensor | None = None, relu: bool = False) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W) of the same type and memory format. In training, G must divide B.
        A shortcut and ReLU only where `fuses`: call `norm_add_relu`."""
        own = self.running_mean, self.running_var, self.weight, self.bias
        if not self.training:
            return F.batch_norm(input, *own, training=False, eps=self.eps)
        if self.fuses(input, shortcut):
            from paceline.models.layers.triton_batch_norm import FusedBatchNorm

            output, statistics = FusedBatchNorm.apply(input, shortcut, *own[2:], self.groups, self.eps, relu)
            if not self.collects:
                torch._foreach_lerp_(_running([self]), statistics.unbind(0), self.momentum)  # pyright: ignore[reportPrivateImportUsage]
                return output
        elif not self.collects:
            return F.batch_norm(input, *own, training=True, momentum=self.momentum, eps=self.eps)
        elif self.join > 1:
            shared = self.join, self.join_group
            output, statistics = joined_batch_norm(input, self.weight, self.bias, self.eps, *shared)
        elif input.shape[0] % self.groups:
            raise RecipeError(f"a forward of {input.shape[0]} images cannot be split into {self.groups} BatchNorm groups")
        else:
            output, statistics = split_batch_norm(input, self.weight, self.bias, self.groups, self.eps)
        self.pending.add_(statistics, alpha=1 / (self.groups * self.forwards))
        return output


def norm_add_relu(norm: nn.Module, input: Tensor, shortcut: Tensor | None = None) -> Tensor:
    """relu(norm(input) + shortcut) for a norm of any kind, (B, C, H, W) each; what the norm returns is overwritten."""
    if isinstance(norm, BatchNorm) and norm.fuses(input, shortcut):
        return norm(input, shortcut, relu=True)
    output = norm(input)
    if shortcut is not None:
        output += shortcut
    return F.relu(output, inplace=True)


def list_batch_norms(model: nn.Module) -> Iterator[BatchNorm]:
    """Every BatchNorm of a model, in module order."""
    return (module for module in model.modules() if isinstance(module, BatchNorm))


def _running(modules: list[BatchNorm]) -> list[Tensor]:
    """Mean and variance of each, one after the other."""
    return [module.get_buffer(name) for module in modules for name in ("running_mean", "running_var")]


def configure_batch_norm(
    model: nn.Module, *, groups: int, join_group: dist.ProcessGroup | None, join: int, forwards: int
) -> None:
    """Set how the statistics of every BatchNorm in `model` are shared; anything pending is dropped.

    groups      parts of consecutive images into which a forward is split
    join_group  the process group of the `join` ranks that share statistics, each with equally many images; None for 1
    join        ranks that share one set of statistics
    forwards    forwards per optimizer step on one rank
    Raises RecipeError for a forward that would be both split and joined.
    """
    if min(groups, join, forwards) < 1:
        raise RecipeError(f"BatchNorm groups={groups}, join={join}, forwards={forwards}: each must be at least 1")
    if groups > 1 and join > 1:
        raise RecipeError(f"BatchNorm can split a forward ({groups} groups) or join {join} ranks, not both")
    if (join > 1) != (join_group is not None):
        raise RecipeError(f"joining BatchNorm statistics over {join} ranks needs their process group, and only then")
    for module in list_batch_norms(model):
        module.groups, module.join, module.forwards = groups, join, forwards
        module.join_group = join_group
    discard_pending(model)


@torch.no_grad()
def update_running_statistics(model: nn.Module) -> None:
    """End of an optimizer step: fold what its forwards collected into the running statistics. No host sync."""
    modules = [module for module in list_batch_norms(model) if module.training]  # frozen ones collected nothing
    if not modules:
        return
    torch._foreach_add_([module.get_buffer("num_batches_tracked") for module in modules], 1)  # pyright: ignore[reportPrivateImportUsage]
    collecting = [module for module in modules if module.collects]
    for momentum, same in groupby(collecting, key=lambda module: module.momentum):
        part = list(same)
        pending = [row for module in part for row in module.pending.unbind(0)]
        torch._foreach_lerp_(_running(part), pending, momentum)  # pyright: ignore[reportPrivateImportUsage]
    if collecting:
        torch._foreach_zero_([module.pending for module in collecting])  # pyright: ignore[reportPrivateImportUsage]


@torch.no_grad()
def discard_pending(model: nn.Module) -> None:
    """Drop the statistics collected since the last commit."""
    for module in list_batch_norms(model):
        module.pending.zero_()


@torch.no_grad()
def snapshot_running_statistics(model: nn.Module) -> list[Tensor]:
    """Copies of every BatchNorm buffer, to undo a discarded warm-up step with `restore_running_statistics`."""
    return [buffer.clone() for module in list_batch_norms(model) for buffer in module.buffers(recurse=False)]


@torch.no_grad()
def restore_running_statistics(model: nn.Module, snapshot: list[Tensor]) -> None:
    """Put the buffers of `snapshot_running_statistics` back, in place."""
    buffers = [buffer for module in list_batch_norms(model) for buffer in module.buffers(recurse=False)]
    assert len(buffers) == len(snapshot), "the snapshot belongs to another model"
    for buffer, saved in zip(buffers, snapshot):
        buffer.copy_(saved)


@torch.no_grad()
def average_running_statistics(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Make the running statistics the mean over all ranks of `group` (default: all), in one all-reduce.

    Exact, not an approximation: every commit is linear. Call it before an evaluation and before saving.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) == 1:
        return
    buffers = _running(list(list_batch_norms(model)))
    if not buffers:
        return
    flat = torch.cat(buffers)
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    torch._foreach_copy_(buffers, list(flat.split([buffer.numel() for buffer in buffers])))  # pyright: ignore[reportPrivateImportUsage]
