"""BatchNorm whose statistics span as many images as the recipe asks, however the batch is cut into ranks and forwards.

Letters: B images of one forward on one rank   C channels   H, W pixels   G groups   R ranks that share statistics
`bn_batch_size` images share one set of statistics. A forward of more images is split into G groups of consecutive images (ghost
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
            raise RecipeError(
                f"a micro-batch of {input.shape[0]} images is not divisible into {self.groups} BatchNorm groups"
            )
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
        raise RecipeError(f"BatchNorm can split a micro-batch ({groups} groups) or join {join} ranks, but not both")
    if (join > 1) != (join_group is not None):
        raise RecipeError(f"BatchNorm over {join} ranks: pass a process group if, and only if, ranks are joined")
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


# BatchNorm of a forward that is split into groups of images, and of one that is joined over ranks, in two forms each.
#
# Letters: B images of one forward on one rank   C channels   H, W pixels   G groups   R ranks that share statistics
# The plain form is written in torch's public operations: a CPU runs it, torch.compile reads it, and it is what the other form is
# tested against. On a GPU it reads and writes its images too often: 70 times a joined layer, forward and backward together, and
# twice more than its kernels do a split one. There the second form calls the kernels below torch's own BatchNorm and
# SyncBatchNorm, which read bf16 and fp16 as they are and compute in fp32. Nothing here reads a number on the host, so a CUDA
# graph can hold it; and every rank calls the same collectives in the same order.


def split_batch_norm(input: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """Normalize each of G groups of consecutive images by its own statistics; G divides B.

    -> output (B, C, H, W) of the input's type and layout
       statistics (2, C), fp32: sum over the groups of (mean, unbiased variance), without a gradient
    """
    # In fp32 and fp16 torch takes cuDNN's kernels, which read less at once: which form costs more there is not measured.
    if groups > 1 and input.dtype == torch.bfloat16 and _has_kernels(input):
        return _Split.apply(input, weight, bias, groups, eps)
    # Momentum 1 makes the kernel write the group's own mean and variance here: no second pass over the images.
    # Zeros, not empty: the kernel computes 1 * new + 0 * old, and 0 * NaN is NaN.
    statistics = weight.new_zeros((groups, 2, weight.numel()))
    outputs = [
        F.batch_norm(part, own[0], own[1], weight, bias, True, momentum=1.0, eps=eps)
        for part, own in zip(input.split(input.shape[0] // groups), statistics)
    ]
    return torch.cat(outputs) if groups > 1 else outputs[0], statistics.sum(0)


def joined_batch_norm(
    input: Tensor, weight: Tensor, bias: Tensor, eps: float, join: int, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor]:
    """Normalize the images of R ranks, B on each, by their joint statistics. Every rank of `group` must call it.

    -> output (B, C, H, W) of the input's type and layout
       statistics (2, C), fp32: (mean, unbiased variance) over the joined images, without a gradient
    Gradients of weight and bias stay this rank's share, to be summed with all other gradients.
    """
    form = _JoinedByKernels if _has_kernels(input) else _Joined
    return form.apply(input, weight, bias, eps, join, group)


def _has_kernels(input: Tensor) -> bool:
    """Whether torch's BatchNorm kernels are there to be called one by one; a compiler writes better ones from the plain form."""
    return input.is_cuda and not torch.compiler.is_compiling()


class _Split(torch.autograd.Function):
    """G groups by kernels that write into one output: without a copy of every output, and with one sum of the gradients of
    weight and bias instead of G - 1 each.

    torch's own kernels, which F.batch_norm takes for bf16 too: cuDNN's operation with `out=` puts another tensor in the place of
    the reserve that it is given, which PyTorch 2.11 refuses.
    """

    @staticmethod
    def forward(ctx, input: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        output = torch.empty_like(input)
        statistics = weight.new_zeros((groups, 2, weight.numel()))  # momentum 1, so zeros: as in the plain form
        saved = torch.empty_like(statistics)  # each group's mean and 1 / standard deviation
        for part, positions, own, kept in zip(input.chunk(groups), output.chunk(groups), statistics, saved):
            torch.ops.aten.native_batch_norm.out(
                *(part, weight, bias, own[0], own[1], True, 1.0, eps), out=positions, save_mean=kept[0], save_invstd=kept[1]
            )
        ctx.save_for_backward(input, weight, saved)
        ctx.groups, ctx.eps = groups, eps
        statistics = statistics.sum(0)
        ctx.mark_non_differentiable(statistics)
        return output, statistics

    @staticmethod
    def backward(ctx, grad_output: Tensor, _: Tensor):  # type: ignore[override]
        input, weight, saved = ctx.saved_tensors
        grad_output = _laid_out_as(input, grad_output)
        grads = [
            torch.ops.aten.native_batch_norm_backward(
                grad, part, weight, None, None, kept[0], kept[1], True, ctx.eps, [True] * 3
            )
            for grad, part, kept in zip(grad_output.chunk(ctx.groups), input.chunk(ctx.groups), saved)
        ]
        # No kernel of torch's writes the input's gradient where it is asked to: this copy stays.
        of_input, of_weight, of_bias = zip(*grads)
        sums = torch.cat((*of_weight, *of_bias)).view(2, ctx.groups, -1).sum(1)
        return torch.cat(of_input), sums[0], sums[1], None, None


class _Joined(torch.autograd.Function):
    """The joined images' plain form. Forward exchanges each rank's (mean, variance), backward the two sums that the input's
    gradient needs. Everything is computed in fp32, whatever the input's type.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx, input: Tensor, weight: Tensor, bias: Tensor, eps: float, join: int, group: dist.ProcessGroup
    ) -> tuple[Tensor, Tensor]:
        count = input.numel() // input.shape[1] * join
        variance, mean = torch.var_mean(input.float(), dim=(0, 2, 3), correction=0)
        means, variances = _of_every_rank(mean, variance, join, group)
        # Chan et al. 1983 for equal counts: squares of sums never appear, so nothing cancels.
        mean = means.mean(0)
        variance = (variances + (means - mean).square()).mean(0)
        scale = torch.rsqrt(variance + eps)
        output = (input.float() - _over_channels(mean)) * _over_channels(scale * weight) + _over_channels(bias)
        ctx.save_for_backward(input, weight, mean, scale)
        ctx.count, ctx.group = count, group
        statistics = torch.stack((mean, variance * (count / max(1, count - 1))))
        ctx.mark_non_differentiable(statistics)
        return _of_type(output, input.dtype), statistics

    @staticmethod
    def backward(ctx, grad_output: Tensor, _: Tensor):  # type: ignore[override]
        input, weight, mean, scale = ctx.saved_tensors
        grad = grad_output.float()
        normalized = (input.float() - _over_channels(mean)) * _over_channels(scale)
        sums = torch.cat((grad.sum((0, 2, 3)), (grad * normalized).sum((0, 2, 3))))
        grad_bias, grad_weight = sums.clone().chunk(2)
        dist.all_reduce(sums, group=ctx.group)
        mean_grad, mean_product = (sums / ctx.count).chunk(2)
        grad_input = grad - _over_channels(mean_grad) - normalized * _over_channels(mean_product)
        grad_input = _of_type(grad_input * _over_channels(scale * weight), input.dtype)
        return grad_input, _of_type(grad_weight, weight.dtype), _of_type(grad_bias, weight.dtype), None, None, None


class _JoinedByKernels(torch.autograd.Function):
    """The joined images by SyncBatchNorm's kernels: 8 passes over the images, forward and backward together.

    Forward exchanges each rank's (mean, 1 / standard deviation), from which its kernel takes the variance again.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx, input: Tensor, weight: Tensor, bias: Tensor, eps: float, join: int, group: dist.ProcessGroup
    ) -> tuple[Tensor, Tensor]:
        means, scales = _of_every_rank(*torch.batch_norm_stats(input, eps), join, group)
        counts = means.new_full((join,), input.numel() // input.shape[1])
        # Momentum 1 writes the joint statistics here; zeros, as in the split form: 0 * NaN is NaN.
        statistics = means.new_zeros((2, means.shape[1]))
        mean, scale = torch.batch_norm_gather_stats_with_counts(
            input, means, scales, statistics[0], statistics[1], 1.0, eps, counts
        )
        output = torch.batch_norm_elemt(input, weight, bias, mean, scale, eps)
        ctx.save_for_backward(input, weight, mean, scale, counts)
        ctx.group = group
        ctx.mark_non_differentiable(statistics)
        return output, statistics

    @staticmethod
    def backward(ctx, grad_output: Tensor, _: Tensor):  # type: ignore[override]
        input, weight, mean, scale, counts = ctx.saved_tensors
        grad_output = _laid_out_as(input, grad_output)
        grad_sum, product_sum, grad_weight, grad_bias = torch.batch_norm_backward_reduce(
            grad_output, input, mean, scale, weight, True, True, True
        )
        sums = torch.cat((grad_sum, product_sum))
        dist.all_reduce(sums, group=ctx.group)
        grad_sum, product_sum = sums.chunk(2)
        grad_input = torch.batch_norm_backward_elemt(
            grad_output, input, mean, scale, weight, grad_sum, product_sum, counts.to(torch.int32)
        )
        return grad_input, grad_weight, grad_bias, None, None, None


def _of_every_rank(first: Tensor, second: Tensor, join: int, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """This rank's (C,) and (C,) -> (R, C) and (R, C), in one exchange."""
    mine = torch.cat((first, second))
    every = torch.empty((join * mine.numel(),), dtype=mine.dtype, device=mine.device)
    dist.all_gather_into_tensor(every, mine, group=group)
    firsts, seconds = every.view(join, 2, -1).unbind(1)
    return firsts, seconds


def _laid_out_as(input: Tensor, grad: Tensor) -> Tensor:
    """The gradient in the memory format of its input, which the kernels take for granted; a copy only where it differs."""
    last = input.is_contiguous(memory_format=torch.channels_last)
    return grad.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def _of_type(values: Tensor, dtype: torch.dtype) -> Tensor:
    """`values.to(dtype)`, not called where it would do nothing: where an autograd.Function returns one tensor under two names,
    PyTorch 2.11's compiler computes wrong gradients (its issue 180642).
    """
    return values if values.dtype == dtype else values.to(dtype)


def _over_channels(values: Tensor) -> Tensor:
    """(C,) -> (1, C, 1, 1)."""
    return values.view(1, -1, 1, 1)
