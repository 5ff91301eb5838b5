"""A program: our Triton kernels of BatchNorm by Triton's interpreter, beside torch and float64; prints name -> failure or "" as JSON.

Triton reads TRITON_INTERPRET when it is imported, so this is a process of its own. Argument: examples of each property.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from itertools import product

import fused_batch_norm as fused
import torch
from fused_batch_norm import EPS, LAST, a_layer, check, taken
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paceline._utils.errors import RecipeError
from paceline.models.backbones.resnet import ResNet
from paceline.models.layers import batch_norm, triton_batch_norm
from paceline.models.layers.batch_norm import (
    BatchNorm,
    configure_batch_norm,
    list_batch_norms,
    norm_add_relu,
    update_running_statistics,
)
from paceline.models.layers.common import replace_norms
from paceline.models.layers.triton_batch_norm import FusedBatchNorm, batch_norm_backward, batch_norm_forward

OURS = FusedBatchNorm.apply
FORMS = ((False, False), (False, True), (True, True))  # (a shortcut, ReLU)


def every_shape_and_type() -> None:
    types = torch.float32, torch.float16, torch.bfloat16
    for number, (shape, groups) in enumerate(fused.SHAPES):
        for other, (shortcut, relu) in enumerate(FORMS):
            dtype = types[(number + other) % 3]
            layer = a_layer(shape, dtype, shortcut=shortcut)
            check(OURS, layer, groups, relu, rounds=dtype != torch.bfloat16)
    for (shape, groups), shortcut in zip(fused.WIDE, (True, False, True)):
        check(OURS, a_layer(shape, torch.float16, shortcut=shortcut), groups, True)


def parts_of_many_tiles_and_of_one() -> None:
    before = triton_batch_norm.PROGRAMS
    layer = a_layer((2, 70, 19, 23), torch.float32, shortcut=True)
    try:
        for triton_batch_norm.PROGRAMS in (1, 8, 1024):
            check(OURS, layer, 2, True)
            check(OURS, layer._replace(shortcut=None), 1, True)
    finally:
        triton_batch_norm.PROGRAMS = before


def the_same_bits_twice() -> None:
    for shortcut, relu in FORMS:
        layer = a_layer((4, 20, 19, 13), torch.bfloat16, shortcut=shortcut)
        assert all(torch.equal(*pair) for pair in zip(taken(OURS, layer, 2, relu), taken(OURS, layer, 2, relu)))


def channels_far_from_0_and_without_spread() -> None:
    layer = a_layer((4, 16, 9, 9), torch.float32, shortcut=False)
    images = (layer.images / 20 + 300).contiguous(memory_format=LAST)
    images[:, 3] = 7.25
    images[0, 5, 0, 0] = -4000  # the first number of all
    found = taken(OURS, layer._replace(images=images), 1, False)
    wanted = fused.in_float64(layer._replace(images=images), 1, False)
    torch.testing.assert_close(found.output.double(), wanted.output, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found.statistics.double(), wanted.statistics, rtol=1e-4, atol=1e-7)
    assert torch.equal(found.output[:, 3], layer.bias[3].expand(4, 9, 9)) and found.statistics[1, 3] == 0


def numbers_that_are_not_finite_stay_so() -> None:
    for bad, (shortcut, relu) in product((float("nan"), float("inf")), FORMS):
        layer = a_layer((4, 16, 9, 9), torch.float16, shortcut=shortcut)
        for place in (0, 8):  # in the first tile, and behind the first
            images = layer.images.clone(memory_format=torch.preserve_format)
            images[2, 1, place, place] = bad
            found, theirs = (taken(form, layer._replace(images=images), 2, relu) for form in (OURS, fused.of_torch))
            assert found.output[2:, 1].isnan().all() and found.output.isnan().sum() == 2 * 81
            assert found.statistics[1, 1].isnan() and found.statistics[1].isnan().sum() == 1
            for name in ("of_images", "of_weight"):
                own, other = getattr(found, name), getattr(theirs, name)
                assert torch.equal(own.isnan(), other.isnan()), name


def other_layouts() -> None:
    layer = a_layer((4, 6, 5, 7), torch.float32, shortcut=True)
    wanted = taken(OURS, layer, 2, True)
    other = layer._replace(shortcut=layer.shortcut.contiguous(), upstream=layer.upstream.contiguous())
    assert all(torch.equal(*pair) for pair in zip(taken(OURS, other, 2, True), wanted))
    check(OURS, layer._replace(upstream=layer.upstream[:, :, :1, :1].expand(4, 6, 5, 7)), 2, True)


@settings(max_examples=int(sys.argv[1]), deadline=None, database=None)
@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 150), st.integers(1, 9), st.integers(1, 9), st.sampled_from(FORMS),
    st.integers(0, 99), st.sampled_from((1, 3, 64)),
)  # fmt: skip
def any_sizes(groups, each, channels, height, width, form, seed, programs) -> None:
    if each * height * width < 2:
        return
    before, triton_batch_norm.PROGRAMS = triton_batch_norm.PROGRAMS, programs
    try:
        shape = groups * each, channels, height, width
        # Of two rows that are almost alike the least error is much beside what lies between them: only sizes and places count here.
        layer = a_layer(shape, torch.float32, shortcut=form[0], seed=seed)
        for name, own, other in zip(
            fused.Found._fields, taken(OURS, layer, groups, form[1]), fused.in_float64(layer, groups, form[1])
        ):
            torch.testing.assert_close(
                own.double(), other, rtol=1e-3, atol=2e-3, msg=lambda why, name=name: f"{name}: {why}"
            )
    finally:
        triton_batch_norm.PROGRAMS = before


def operators_are_what_they_declare() -> None:
    tests = ("test_schema", "test_faketensor")
    for shortcut, relu in FORMS:
        layer = a_layer((4, 6, 5, 7), torch.bfloat16, shortcut=shortcut)
        torch.library.opcheck(batch_norm_forward, (*layer[:4], 2, EPS, relu), test_utils=tests)
        _, kept, _, bits = batch_norm_forward(*layer[:4], 2, EPS, relu)
        given = layer.upstream, layer.images, layer.weight, layer.bias, kept, bits, relu
        torch.library.opcheck(batch_norm_backward, given, test_utils=tests)


def a_net(depth: int, groups: int, norm: str = "batch") -> nn.Module:
    net = ResNet(depth, width=8, stem="small", steps=(1, 2) if depth == 10 else (1,))
    net.draw("torchvision", torch.Generator().manual_seed(0), zero_init_residual=False)
    if norm != "batch":
        replace_norms(net, norm, 1e-5)  # type: ignore[arg-type]
    configure_batch_norm(net, groups=groups, join_group=None, join=1, forwards=1)
    return net.to(memory_format=LAST).train()


def stepped(net: nn.Module) -> list[Tensor]:
    """Outputs, gradients and running statistics of two steps."""
    found: list[Tensor] = []
    for seed in range(2):
        images = torch.randn(4, 3, 16, 24, generator=torch.Generator().manual_seed(seed)).contiguous(memory_format=LAST)
        outputs = net(images)
        sum(output.square().mean() for output in outputs).backward()
        update_running_statistics(net)
        found += [output.detach() for output in outputs]
    return found + [value for value in (*(one.grad for one in net.parameters()), *net.buffers()) if value is not None]


def with_kernels(net: nn.Module) -> tuple[list[Tensor], int]:
    """-> `stepped`, and how many forwards of a norm took our kernels."""
    calls, apply = [], FusedBatchNorm.apply
    batch_norm.uses_triton = lambda _: True
    FusedBatchNorm.apply = lambda *given: calls.append(1) or apply(*given)
    try:
        return stepped(net), len(calls)
    finally:
        batch_norm.uses_triton, FusedBatchNorm.apply = before, apply


before = batch_norm.uses_triton


def whole_networks() -> None:
    for depth, groups in ((10, 1), (10, 2), (50, 2)):
        found, calls = with_kernels(a_net(depth, groups))
        wanted = stepped(a_net(depth, groups))
        assert calls == 2 * len(list(list_batch_norms(a_net(depth, groups))))
        for one, other in zip(found, wanted, strict=True):
            assert (one - other).float().norm() <= 2e-3 * other.float().norm() + 1e-6, (depth, groups, one.shape)
    for norm in ("frozen", "group"):
        (found, calls), wanted = with_kernels(a_net(10, 1, norm)), stepped(a_net(10, 1, norm))
        assert calls == 0 and all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


def what_stays_with_torch() -> None:
    batch_norm.uses_triton = lambda _: True
    try:
        norm = BatchNorm(6).train()
        layer = a_layer((4, 6, 5, 7), torch.float32, shortcut=True)
        images, shortcut = layer.images, layer.shortcut
        assert norm.fuses(images) and norm.fuses(images, shortcut) and norm.fuses(images, shortcut.contiguous())
        assert not norm.fuses(images.contiguous()) and not norm.fuses(images[:0]) and not norm.fuses(images[:1, :, :1, :1])
        assert not norm.fuses(images, shortcut.half()) and not norm.fuses(images, shortcut[:1])
        assert not BatchNorm(6).eval().fuses(images) and not BatchNorm(6).double().fuses(images)
        norm.join = 2
        assert not norm.fuses(images)
        norm.join, norm.groups = 1, 3
        for call in (lambda: norm(images), lambda: norm_add_relu(norm, images, shortcut)):
            try:
                call()
            except RecipeError:
                continue
            raise AssertionError("4 images in 3 groups")
        norm.groups = 1
        compiled = torch.compile(lambda x, y: norm_add_relu(norm, x, y), fullgraph=True, backend="eager")(images, shortcut)
        batch_norm.uses_triton = before
        assert torch.equal(compiled, norm_add_relu(BatchNorm(6).train(), images, shortcut))
    finally:
        batch_norm.uses_triton = before


CASES: tuple[Callable[[], None], ...] = (
    every_shape_and_type, parts_of_many_tiles_and_of_one, the_same_bits_twice, channels_far_from_0_and_without_spread,
    numbers_that_are_not_finite_stay_so, other_layouts, any_sizes, operators_are_what_they_declare, whole_networks,
    what_stays_with_torch,
)  # fmt: skip

if __name__ == "__main__":
    found = {}
    for case in [case for case in CASES if case.__name__ in sys.argv[2:] or not sys.argv[2:]]:
        try:
            case()
            found[case.__name__] = ""
        except Exception:
            found[case.__name__] = traceback.format_exc()
    print(json.dumps(found))
