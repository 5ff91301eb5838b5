"""Cases of interpreted_kernels.py: our Triton kernels of RoIAlign on a CPU by Triton's interpreter, beside the torch form."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from paceline.models.ops import dispatch, roi_align, triton_roi_align
from paceline.models.ops.roi_align import pool_regions
from paceline.models.ops.triton_roi_align import align_levels, align_levels_backward

of_torch = dispatch.static_shapes()(pool_regions)
STRIDES = [4, 8, 16, 32]
BY_TYPE = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-7}  # the interpreter cuts bf16 off
# In image 0 and 1 by turns: within, many pixels wide, beyond each border and both, outside of all, without area, a part of a pixel.
BOXES = torch.tensor([
    [3.3, 5.1, 30.7, 41.9], [1.0, 2.0, 90.0, 50.0], [-20.0, -7.0, 12.0, 9.0], [40.0, 30.0, 200.0, 90.0],
    [-30.0, -30.0, 150.0, 100.0], [400.0, 10.0, 420.0, 30.0], [20.0, 20.0, 20.0, 20.0], [16.4, 16.4, 17.1, 18.3],
    [-4.0, -4.0, 0.0, 0.0],
])  # fmt: skip


@contextmanager
def constants(**values: int):
    """Inside, programs of other sizes: large ones are fewer, which is what an interpreter takes long for."""
    before = {name: getattr(triton_roi_align, name) for name in values}
    for name, value in values.items():
        setattr(triton_roi_align, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(triton_roi_align, name, value)


FEW = {"CELLS": 256, "PIXELS": 32, "ROWS": 16, "MEMBERS": 16}


def pyramid(dtype: torch.dtype, *, channels: int = 3, count: int = 4, height: int = 45, width: int = 77) -> list[Tensor]:
    random = torch.Generator().manual_seed(channels)
    sizes = [(-(-height // stride), -(-width // stride)) for stride in STRIDES[:count]]
    maps = [torch.randn(2, channels, *size, generator=random).to(dtype) for size in sizes]
    return [map.contiguous(memory_format=torch.channels_last).requires_grad_() for map in maps]


def scene(levels: int) -> tuple[Tensor, Tensor, Tensor]:
    image = torch.arange(len(BOXES)) % 2
    image[4] = -1
    image[5] = 0
    place = torch.tensor([0, 3, 0, 1, 0, 0, 1, 0, 2]).clamp(max=levels - 1)
    return image, BOXES, place


def check(
    features: list[Tensor], where: tuple[Tensor, ...], strides: list[int] = STRIDES, **rules: Any
) -> tuple[Tensor, ...]:
    """Cells to the bit; of gradients what rounding may change: in fp32 sums of as many numbers as a pixel gets."""
    strides = strides[: len(features)]
    found = align_levels(features, strides, *where, **named(rules))
    whole = [feature.detach().float().requires_grad_() for feature in features]
    wanted = of_torch(whole, strides, *where, **rules)
    dtype = features[0].dtype
    assert found.dtype == dtype and found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, rounded(wanted, dtype)), "cells"
    upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    gradients = torch.autograd.grad(found, features, upstream)
    theirs = torch.autograd.grad(wanted, whole, upstream.float(), retain_graph=True)
    sizes = torch.autograd.grad(wanted, whole, upstream.float().abs())
    for level, (own, other, size) in enumerate(zip(gradients, theirs, sizes, strict=True)):
        assert own.dtype == dtype and own.is_contiguous(memory_format=torch.channels_last)
        least = 2.0**-19 * size + BY_TYPE[dtype] * other.abs() + 2.0**-26
        assert ((own.float() - other).abs() <= least).all(), (level, (own.float() - other).abs().max())
    return found.detach(), *gradients


def named(rules: dict[str, Any]) -> dict[str, Any]:
    return {name: rules[name] for name in ("side", "sampling_ratio", "aligned")}


def rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """To nearest, but bf16 as the interpreter does it: cut off."""
    if dtype != torch.bfloat16:
        return values.to(dtype)
    return (values.contiguous().view(torch.int32) & -65536).view(torch.float32).to(dtype)


def box_head() -> None:
    with constants(**FEW):
        check(pyramid(torch.float32), scene(4), side=7, sampling_ratio=2, aligned=False)


def mask_head_in_bf16() -> None:
    with constants(**FEW):
        check(pyramid(torch.bfloat16, channels=2), scene(4), side=14, sampling_ratio=2, aligned=True)


def other_rules_and_types() -> None:
    with constants(**FEW):
        check(pyramid(torch.float16, channels=1), scene(4), side=2, sampling_ratio=3, aligned=True)
        check(pyramid(torch.bfloat16, count=3), scene(3), side=7, sampling_ratio=1, aligned=False)
        check(pyramid(torch.float32, channels=9, height=32, width=32), scene(4), side=1, sampling_ratio=2, aligned=True)
        check(pyramid(torch.float32, count=1), scene(1), side=3, sampling_ratio=2, aligned=False, strides=[1])


def programs_of_every_size_give_the_same_bits() -> None:
    features = pyramid(torch.float32, channels=5, height=20, width=33)
    rules = {"side": 3, "sampling_ratio": 2, "aligned": False}
    with constants(**FEW):
        wanted = check(features, scene(4), **rules)
    for sizes in ({}, {"CELLS": 4, "PIXELS": 8, "ROWS": 2, "MEMBERS": 2, "WIDEST": 8}):
        with constants(**sizes):
            assert all(torch.equal(*pair) for pair in zip(check(features, scene(4), **rules), wanted, strict=True))


def no_region_and_one() -> None:
    features, rules = pyramid(torch.float32, height=9, width=33), {"side": 2, "sampling_ratio": 2, "aligned": False}
    with constants(**FEW):
        image, boxes, levels = scene(4)
        for rows in (slice(0, 0), slice(4, 5), slice(2, 3)):
            found, *gradients = check(features, (image[rows], boxes[rows], levels[rows]), **rules)
            assert found.any() == any(map(torch.any, gradients)) == (rows.start == 2)


def other_layouts() -> None:
    rules = {"side": 2, "sampling_ratio": 2, "aligned": False}
    with constants(**FEW):
        wanted = check(pyramid(torch.float32, height=20, width=33), scene(4), **rules)
        plain = [map.detach().contiguous().requires_grad_() for map in pyramid(torch.float32, height=20, width=33)]
        found = check(plain, tuple(part.flip(0).contiguous().flip(0) for part in scene(4)), **rules)
        assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


def operators_are_what_they_declare() -> None:
    features, rules = pyramid(torch.bfloat16, height=9, width=9), (2, 2, False)
    with constants(**FEW):
        given = features, STRIDES, *(part[:3] for part in scene(4)), *rules
        torch.library.opcheck(
            align_levels, given, test_utils=("test_schema", "test_autograd_registration", "test_faketensor")
        )
        upstream = align_levels(*given).detach()
        shapes = [2, *(length for map in features for length in map.shape[2:])]
        given = upstream, shapes, STRIDES, *(part[:3] for part in scene(4)), *rules[1:]
        torch.library.opcheck(align_levels_backward, given, test_utils=("test_schema", "test_faketensor"))


def what_takes_them() -> None:
    calls, before = [], roi_align.uses_triton
    rules = {"side": 2, "sampling_ratio": 2, "aligned": False}
    features = pyramid(torch.bfloat16, height=9, width=9)
    roi_align.uses_triton = lambda _: True
    own = triton_roi_align.align_levels
    triton_roi_align.align_levels = lambda *given: calls.append(1) or own(*given)
    try:
        with constants(**FEW), dispatch.static_shapes():
            assert pool_regions(features, STRIDES, *scene(4), **rules).dtype == torch.bfloat16 and len(calls) == 1
            pool_regions(features, STRIDES, *scene(4), mode="pool", **rules)
            pool_regions([features[0].float(), *features[1:]], STRIDES, *scene(4), **rules)
            pool_regions([map.double() for map in features], STRIDES, *scene(4), **rules)
            pool_regions([*features, features[-1]], [*STRIDES, 32], *scene(4), **rules)
            assert len(calls) == 1
    finally:
        roi_align.uses_triton, triton_roi_align.align_levels = before, own


CASES: tuple[Callable[[], None], ...] = (
    box_head, mask_head_in_bf16, other_rules_and_types, programs_of_every_size_give_the_same_bits, no_region_and_one, other_layouts,
    operators_are_what_they_declare, what_takes_them,
)  # fmt: skip
