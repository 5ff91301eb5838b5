"""The two forms of a split and of a joined BatchNorm beside each other: R ranks in one process, and what a layer moves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paceline.models import batch_norm_spans

EPS = 1e-3
RANKS = 3
# (B, C, H, W) of one rank: odd ones, a single pixel an image, a multiple of what kernels read at once.
SHAPES = ((4, 5, 7, 9), (6, 16, 1, 1), (2, 64, 8, 8), (2, 130, 3, 5))
LAYOUTS = {"channels last": torch.channels_last, "channels first": torch.contiguous_format}
CASES = list(product(SHAPES, (torch.float32, torch.bfloat16), LAYOUTS))


class Found(NamedTuple):
    """What one forward and backward of a layer gave, on the CPU in fp32; the first of all is of the images' own type."""

    output: Tensor
    statistics: Tensor
    of_input: Tensor
    of_weight: Tensor
    of_bias: Tensor


def a_layer(shape: tuple[int, ...], dtype: torch.dtype, layout: str, device: str, seed: int = 0) -> list[Tensor]:
    """Images whose channels and whose images lie far apart, the gradient of the output, weight and bias."""
    generator = torch.Generator().manual_seed(seed)
    images, upstream = (torch.randn(shape, generator=generator) for _ in range(2))
    images = images * 2 + torch.arange(shape[0]).view(-1, 1, 1, 1) + torch.arange(shape[1]).view(1, -1, 1, 1) / 7 + seed
    weight, bias = torch.rand(2, shape[1], generator=torch.Generator().manual_seed(99)) + 0.5
    upstream = upstream + images / 5  # else its product with the images vanishes, and with it a part of the gradient
    laid = [values.to(device, dtype).contiguous(memory_format=LAYOUTS[layout]) for values in (images, upstream)]
    return [*laid, weight.to(device), bias.to(device)]


def taken(form: Callable[..., Any], layer: list[Tensor], *more: Any) -> Found:
    """A forward and backward of `form`."""
    images, upstream, weight, bias = layer
    leaves = [values.clone(memory_format=torch.preserve_format).requires_grad_() for values in (images, weight, bias)]
    output, statistics = form(*leaves, *more)
    assert output.dtype == images.dtype and output.stride() == images.stride()
    assert not statistics.requires_grad
    output.backward(upstream)
    assert leaves[0].grad is not None and leaves[0].grad.dtype == images.dtype
    return Found(*(values.detach().cpu().float() for values in (output, statistics, *(leaf.grad for leaf in leaves))))


def assert_close(found: Found, wanted: Found, dtype: torch.dtype) -> None:
    """Every number alike: images of bf16 to its last digit, sums of fp32 to the order in which they were added."""
    coarse = {"rtol": 2**-7, "atol": 1e-3} if dtype == torch.bfloat16 else {"rtol": 2e-5, "atol": 2e-5}
    for name in Found._fields:
        images = name in ("output", "of_input")
        limits = coarse if images else {"rtol": 2e-5, "atol": 1e-4}
        torch.testing.assert_close(
            getattr(found, name), getattr(wanted, name), **limits, msg=lambda why, name=name: f"{name}: {why}"
        )


class Ranks:
    """R ranks in one process. Each is run three times and reads what the others gave the time before: in the first round
    statistics are wrong, in the second the sums of the gradients still are, in the third nothing is.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before: list[list[Tensor]] = [[] for _ in range(RANKS)]
        self.now: list[Tensor] = []
        self.rank = 0
        monkeypatch.setattr(dist, "all_gather_into_tensor", self.gather)
        monkeypatch.setattr(dist, "all_reduce", self.reduce)

    def gather(self, every: Tensor, mine: Tensor, group: None) -> None:
        every.view(RANKS, -1).copy_(torch.stack(self.each(mine)))

    def reduce(self, values: Tensor, group: None) -> None:
        values.copy_(torch.stack(self.each(values)).sum(0))

    def each(self, mine: Tensor) -> list[Tensor]:
        call = len(self.now)
        self.now.append(mine.clone())
        before = [given[call] if given else mine for given in self.before]
        return [*before[: self.rank], mine, *before[self.rank + 1 :]]

    def run(self, form: Callable[..., Any], layers: list[list[Tensor]]) -> list[Found]:
        for _ in range(3):
            found, given = [], []
            for self.rank, layer in enumerate(layers):
                self.now = []
                found.append(taken(form, layer, EPS, RANKS, None))
                given.append(self.now)
            self.before = given
        assert [len(values) for values in self.before] == [2] * RANKS, "one exchange forward, one backward"
        return found


def check_joined(monkeypatch: pytest.MonkeyPatch, shape: tuple, dtype: torch.dtype, layout: str, device: str) -> None:
    """SyncBatchNorm's kernels on `device` beside the plain form on a CPU."""
    layers = [a_layer(shape, dtype, layout, "cpu", seed) for seed in range(RANKS)]
    wanted = Ranks(monkeypatch).run(batch_norm_spans._Joined.apply, layers)
    there = [[values.to(device) for values in layer] for layer in layers]
    found = Ranks(monkeypatch).run(batch_norm_spans._JoinedByKernels.apply, there)
    for one, other in zip(found, wanted):
        assert_close(one, other, dtype)


def check_split(shape: tuple, dtype: torch.dtype, layout: str, device: str) -> None:
    """Kernels that write into one output on `device` beside the plain form on a CPU."""
    wanted = taken(batch_norm_spans.split_batch_norm, a_layer(shape, dtype, layout, "cpu"), 2, EPS)
    found = taken(batch_norm_spans._Split.apply, a_layer(shape, dtype, layout, device), 2, EPS)
    assert_close(found, wanted, dtype)


class Moved(TorchDispatchMode):
    """How often all images were handed to operations or came from them, and operations by name."""

    def __init__(self, images: Tensor) -> None:
        super().__init__()
        self.whole, self.moved, self.names, self.types = images.numel(), 0.0, [], set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if not func.is_view and "empty" not in func.__name__ and func.__name__ != "detach.default":
            self.names.append(func._overloadpacket.__name__)
            handed = tree_leaves((args, kwargs or {}))
            came = [
                values
                for values in tree_leaves(found)
                if not any(isinstance(other, Tensor) and values.data_ptr() == other.data_ptr() for other in handed)
            ]
            big = [
                values
                for values in (*handed, *came)
                if isinstance(values, Tensor) and values.ndim == 4 and values.numel() > values.shape[1]
            ]
            self.moved += sum(values.numel() for values in big) / self.whole
            self.types |= {values.dtype for values in big}
        return found
