"""BatchNorm of a forward that is split into groups of images, and of one that is joined over ranks, in two forms each.

Letters: B images of one forward on one rank   C channels   H, W pixels   G groups   R ranks that share statistics
The plain form is written in torch's public operations: a CPU runs it, torch.compile reads it, and it is what the other form is
tested against. On a GPU it reads and writes its images too often: 70 times a joined layer, forward and backward together, and
twice more than its kernels do a split one. There the second form calls the kernels below torch's own BatchNorm and
SyncBatchNorm, which read bf16 and fp16 as they are and compute in fp32. Nothing here reads a number on the host, so a CUDA
graph can hold it; and every rank calls the same collectives in the same order.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


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
