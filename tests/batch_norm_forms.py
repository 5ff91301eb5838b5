"""The two forms of a split and of a joined BatchNorm beside each other: R ranks in one process, and what a layer moves."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple, cast

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paceline.models.layers import batch_norm

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


class Exact(NamedTuple):
    """The values of a layer in float64, and per channel what rounding of the mean is multiplied by in the images' gradient."""

    values: Found
    terms: Tensor


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
    made = (output, statistics, *(cast(Tensor, leaf.grad) for leaf in leaves))
    return Found(*(values.detach().cpu().float() for values in made))


def in_float64(layers: list[list[Tensor]], groups: int = 1) -> list[Exact]:
    """What each of the layers' `taken` would be without rounding: F.batch_norm over all images in groups."""
    images = torch.cat([layer[0] for layer in layers]).cpu().double().requires_grad_()
    upstream = torch.cat([layer[1] for layer in layers]).cpu().double()
    weights = [[values.cpu().double().requires_grad_() for values in layer[2:]] for layer in layers]
    statistics = [torch.zeros(2, images.shape[1], dtype=torch.float64) for _ in range(groups)]
    normed = [
        F.batch_norm(part, *own, training=True, momentum=1.0, eps=EPS)
        for part, own in zip(images.chunk(groups), statistics)
    ]
    places = torch.cat(normed).chunk(len(layers))
    outputs = [x * w.view(1, -1, 1, 1) + b.view(1, -1, 1, 1) for x, (w, b) in zip(places, weights)]
    of_images, *rest = torch.autograd.grad(torch.cat(outputs), [images, *itertools.chain(*weights)], upstream)
    whole = torch.stack(statistics).sum(0)
    # The gradient is weight / deviation * (upstream - its mean - normed * mean(upstream * normed)). A mean that is off by one
    # step of fp32 moves every normed value by images / deviation such steps, and with it the last term.
    deviation = torch.stack([own[1] for own in statistics]).amin(0).add(EPS).sqrt()
    largest = [values.detach().abs().amax((0, 2, 3)) / deviation for values in (images, upstream)]
    terms = (1 + largest[0]) * largest[1]
    return [
        Exact(Found(output.detach(), whole, part, of_weight, of_bias), (terms * w.detach()).view(1, -1, 1, 1))
        for output, part, (w, _), of_weight, of_bias in zip(
            outputs, of_images.chunk(len(layers)), weights, rest[::2], rest[1::2]
        )
    ]


def assert_rounded(found: Found, exact: Exact, dtype: torch.dtype) -> None:
    """Images are right to half a step of their type, sums to fp32's rounding next to the largest of what they add up."""
    for name in Found._fields:
        images = name in ("output", "of_input")
        own, wanted = getattr(found, name).double(), getattr(exact.values, name)
        step = 1.01 * torch.finfo(dtype).eps / 2 if images else 0.0
        sums = 3e-6 * wanted.abs().max() * (1 if images else max(1.0, exact.values.output[:, 0].numel() ** 0.5))
        if name == "of_input":
            sums = torch.maximum(sums, 4 * torch.finfo(torch.float32).eps * exact.terms)
        far = (own - wanted).abs() - step * wanted.abs() - sums.clamp_min(3e-6)
        worst = ((own - wanted).abs() / wanted.abs().clamp_min(1e-6)).max()
        assert far.max() <= 0, f"{name}: off by {worst:.2g} of the value in float64, {far.max():.2g} more than rounding"


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
        found: list[Found] = []
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
    """SyncBatchNorm's kernels on `device` and the plain form on a CPU, each compared with float64."""
    layers = [a_layer(shape, dtype, layout, "cpu", seed) for seed in range(RANKS)]
    there = [[values.to(device) for values in layer] for layer in layers]
    exact = in_float64(layers)
    for form, given in ((batch_norm._Joined.apply, layers), (batch_norm._JoinedByKernels.apply, there)):
        for found, wanted in zip(Ranks(monkeypatch).run(form, given), exact):
            assert_rounded(found, wanted, dtype)


def check_split(shape: tuple, dtype: torch.dtype, layout: str, device: str) -> None:
    """Kernels that write into one output on `device`, compared with float64."""
    layer = a_layer(shape, dtype, layout, device)
    assert_rounded(taken(batch_norm._Split.apply, layer, 2, EPS), in_float64([layer], 2)[0], dtype)


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
