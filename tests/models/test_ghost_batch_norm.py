"""The kernels' forms of a split and of a joined BatchNorm beside the plain ones, and how often they pass over the images.

SyncBatchNorm's operations, which torch has for CUDA alone, are those of sync_batch_norm.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import batch_norm_forms as forms
import pytest
import torch
from sync_batch_norm import OPERATIONS

from paceline.models.layers import batch_norm
from paceline.models.layers.batch_norm import BatchNorm, configure_batch_norm


@pytest.fixture(autouse=True, scope="module")
def operations() -> Iterator[None]:
    """The five operations on a CPU, as long as this file's tests run."""
    library = torch.library.Library("aten", "IMPL")
    for name, operation in OPERATIONS.items():
        library.impl(name, operation, "CPU")
    yield
    library._destroy()


@pytest.mark.parametrize(("shape", "dtype", "layout"), forms.CASES)
def test_the_kernels_of_joined_ranks_equal_the_plain_form(monkeypatch, shape, dtype, layout):
    forms.check_joined(monkeypatch, shape, dtype, layout, "cpu")


@pytest.mark.parametrize(("shape", "dtype", "layout"), forms.CASES)
def test_the_kernels_of_split_forwards_equal_the_plain_form(shape, dtype, layout):
    forms.check_split(shape, dtype, layout, "cpu")


def test_joined_kernels_pass_over_the_images_8_times_and_copy_none_to_float32(monkeypatch):
    layer = forms.a_layer((4, 5, 7, 9), torch.bfloat16, "channels last", "cpu")
    forms.Ranks(monkeypatch)
    with forms.Moved(layer[0]) as moved:
        output, _ = batch_norm._JoinedByKernels.apply(
            *(layer[0].requires_grad_(), layer[2].requires_grad_(), layer[3], forms.EPS, forms.RANKS, None)
        )
        output.backward(layer[1])
    # Statistics 1, output 2, sums 2, gradient 3; and the images once more as an argument that is not read.
    assert moved.moved == 9
    assert moved.types == {torch.bfloat16}


def test_split_kernels_copy_no_output_and_sum_the_gradients_of_weights_once():
    layer = forms.a_layer((8, 5, 7, 9), torch.bfloat16, "channels last", "cpu")
    groups = 4
    with forms.Moved(layer[0]) as moved:
        output, _ = batch_norm._Split.apply(
            *(layer[0].requires_grad_(), layer[2].requires_grad_(), layer[3].requires_grad_(), groups, forms.EPS)
        )
        assert "cat" not in moved.names and moved.moved == 2
        output.backward(layer[1])
    assert moved.names.count("native_batch_norm") == moved.names.count("native_batch_norm_backward") == groups
    assert moved.names.count("cat") == 2 and "add" not in moved.names
    assert moved.moved == 2 + 3 + 2  # the gradient's parts are put together by a copy


def test_a_gradient_of_another_layout_is_laid_out_as_the_images(monkeypatch):
    layer = forms.a_layer((4, 5, 7, 9), torch.float32, "channels last", "cpu")
    for form, more in ((batch_norm._Split, (2, forms.EPS)), (batch_norm._JoinedByKernels, (forms.EPS, forms.RANKS, None))):
        forms.Ranks(monkeypatch)
        other = [layer[0], layer[1].contiguous(), *layer[2:]]
        assert all(
            torch.equal(a, b) for a, b in zip(forms.taken(form.apply, other, *more), forms.taken(form.apply, layer, *more))
        )
    found = batch_norm._laid_out_as(layer[0], layer[1].contiguous())
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert batch_norm._laid_out_as(layer[0], layer[1]) is layer[1]


def test_a_layer_takes_the_kernels_where_they_are(monkeypatch):
    module = BatchNorm(5)
    configure_batch_norm(module, groups=2, join_group=None, join=1, forwards=1)
    images = forms.a_layer((4, 5, 7, 9), torch.bfloat16, "channels last", "cpu")[0].requires_grad_()
    plain = module(images)
    monkeypatch.setattr(batch_norm, "_has_kernels", lambda images: True)
    own = module(images)
    assert [type(output.grad_fn).__name__ for output in (plain, own)] == ["CatBackward0", "_SplitBackward"]
    assert torch.equal(plain, own)


def test_a_cpu_and_a_compiler_have_no_such_kernels(monkeypatch):
    has = batch_norm._has_kernels
    assert has(SimpleNamespace(is_cuda=True)) and not has(SimpleNamespace(is_cuda=False))  # type: ignore[arg-type]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not has(SimpleNamespace(is_cuda=True))  # type: ignore[arg-type]
