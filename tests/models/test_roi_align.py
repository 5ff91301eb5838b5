"""Levels and pooled regions: both forms against torchvision, float64 and an obvious loop."""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import partial

import pytest
import torch
import torchvision
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchvision.ops.poolers import LevelMapper

from paceline.models.ops import dispatch, roi_align
from paceline.models.ops.roi_align import assign_levels, pool_regions, sample_axis

HEIGHT, WIDTH = 128, 192
STRIDES = [4, 8, 16, 32]


with_static_shapes = dispatch.static_shapes()(pool_regions)  # what an accelerator runs, on the CPU
FORMS = [pool_regions, with_static_shapes]
POOL_FORMS = [partial(form, mode="pool", sampling_ratio=0, aligned=False) for form in FORMS]


def pyramid(images: int, channels: int, dtype=torch.float64, seed: int = 0) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [
        torch.randn(images, channels, HEIGHT // s, WIDTH // s, generator=random).to(dtype).requires_grad_() for s in STRIDES
    ]


def some_boxes(count: int, seed: int = 0) -> Tensor:
    """From tiny to larger than the canonical side, many across the border."""
    random = torch.Generator().manual_seed(seed)
    side = torch.exp(torch.rand(count, 2, generator=random) * 5.5)
    low = torch.rand(count, 2, generator=random) * torch.tensor([WIDTH, HEIGHT]) - 0.3 * side
    boxes = torch.cat((low, low + side), dim=1)
    boxes[0] = torch.tensor([-20.0, -3.0, 300.0, 250.0])
    return boxes


def slow_pool(feature: Tensor, box: list[float], scale: float, side: int, ratio: int, aligned: bool) -> Tensor:
    """(C, H, W) -> (C, side, side): four pixels for each sample, one sample after the other, float64."""
    height, width = feature.shape[1:]
    left, top, right, bottom = (edge * scale - (0.5 if aligned else 0.0) for edge in box)
    across, down = right - left, bottom - top
    if not aligned:
        across, down = max(across, 1.0), max(down, 1.0)
    result = torch.zeros(feature.shape[0], side, side, dtype=torch.float64)
    for row in range(side):
        for column in range(side):
            for i in range(ratio):
                for j in range(ratio):
                    y = top + (row + (i + 0.5) / ratio) * down / side
                    x = left + (column + (j + 0.5) / ratio) * across / side
                    if y < -1 or y > height or x < -1 or x > width:
                        continue
                    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
                    for yy in {math.floor(y), math.ceil(y)}:
                        for xx in {math.floor(x), math.ceil(x)}:
                            weight = (1 - abs(y - yy)) * (1 - abs(x - xx)) / ratio**2
                            result[:, row, column] += weight * feature[:, yy, xx].double()
    return result


edge = st.integers(-300, 1100).map(lambda x: x / 4)


@examples(200)
@given(st.lists(st.tuples(edge, edge, st.integers(0, 4000), st.integers(0, 4000)), max_size=20), st.integers(2, 3))
def test_levels_are_torchvisions_to_the_bit(rows, first) -> None:
    boxes = torch.tensor([(x, y, x + w / 4, y + h / 4) for x, y, w, h in rows]).reshape(-1, 4)
    expected = LevelMapper(first, 5)([boxes])
    assert torch.equal(assign_levels(boxes, levels=6 - first, law="torchvision", first=first), expected)


def test_levels_change_at_the_powers_of_two_of_224() -> None:
    sides = torch.tensor([0.0, 1.0, 111.9, 112.0, 223.9, 224.0, 447.9, 448.0, 5000.0])
    boxes = torch.stack((sides * 0, sides * 0, sides, sides), dim=1)
    assert assign_levels(boxes, levels=4, law="torchvision", first=2).tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3]
    assert assign_levels(boxes, levels=3, law="torchvision", first=3).tolist() == [0, 0, 0, 0, 0, 1, 1, 2, 2]
    # GluonCV's sides are longer by 1.
    boxes = torch.stack((sides * 0, sides * 0, sides - 1, sides - 1), dim=1)
    assert assign_levels(boxes, levels=4, law="gluoncv", first=2).tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3]
    assert assign_levels(torch.zeros(2, 0, 4), levels=4, law="gluoncv", first=2).shape == (2, 0)


@examples(60)
@given(st.tuples(edge, edge, st.integers(1, 4000), st.integers(1, 4000)))
def test_gluoncvs_law_is_its_formula(row) -> None:
    x, y, width, height = row[0], row[1], row[2] / 4, row[3] / 4
    exponent = 4 + math.log2(math.sqrt((width + 1) * (height + 1)) / 224 + 1e-6)
    if abs(exponent - round(exponent)) > 1e-5:
        level = assign_levels(torch.tensor([x, y, x + width, y + height]), levels=4, law="gluoncv", first=2)
        assert int(level) == min(max(math.floor(exponent), 2), 5) - 2


@examples(40)
@given(
    st.tuples(edge, edge, st.integers(0, 800), st.integers(0, 800)),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 3]),
    st.booleans(),
    st.integers(0, 3),
)
def test_a_region_anywhere_is_the_obvious_loop(row, side, ratio, aligned, level) -> None:
    box = [row[0], row[1], row[0] + row[2] / 4, row[1] + row[3] / 4]
    features = pyramid(2, 2, torch.float32)
    expected = slow_pool(features[level][1], box, 1 / STRIDES[level], side, ratio, aligned)
    for form in FORMS:
        found = form(
            features, STRIDES, torch.tensor([1]), torch.tensor([box]), torch.tensor([level]),
            side=side, sampling_ratio=ratio, aligned=aligned,
        )  # fmt: skip
        torch.testing.assert_close(found[0].double(), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("extent", [1, 2, 5])
def test_no_sample_reads_beyond_the_map(extent) -> None:
    """The next pixel would be another row's, or another image's."""
    low = torch.linspace(-3, extent + 2, 25)
    pixels, weights = sample_axis(low, low + 2, extent, 3, 2, False)
    assert (int(pixels.min()), int(pixels.max())) == (0, extent - 1)
    assert (weights >= 0).all() and (weights.sum(dim=2) <= 1 + 1e-6).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("side", [7, 14])
def test_pooling_and_its_gradient_are_torchvisions(form, channels_last, side) -> None:
    features = pyramid(2, 3, torch.float32)
    if channels_last:
        features = [f.detach().to(memory_format=torch.channels_last).requires_grad_() for f in features]
    boxes = some_boxes(40)
    levels = assign_levels(boxes, levels=4, law="torchvision", first=2)
    assert set(levels.tolist()) == {0, 1, 2}, "one level stays without regions"
    oracle = torchvision.ops.MultiScaleRoIAlign(["0", "1", "2", "3"], side, 2)
    named = OrderedDict((str(place), feature) for place, feature in enumerate(features))
    expected = oracle(named, [boxes[:25], boxes[25:]], [(HEIGHT, WIDTH), (HEIGHT, WIDTH - 7)])
    image = (torch.arange(40) >= 25).long()
    found = form(features, STRIDES, image, boxes, levels, side=side, sampling_ratio=2, aligned=False)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    gradients = torch.autograd.grad((found * weight).sum(), features)
    for ours, theirs in zip(gradients, torch.autograd.grad((expected * weight).sum(), features)):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_rows_without_a_region_are_zeros_and_give_no_gradient(form) -> None:
    features, boxes = pyramid(1, 2, torch.float32), some_boxes(6)
    levels = torch.tensor([0, 1, 2, 3, 0, 1])
    image = torch.tensor([0, -1, 0, -1, -1, 0])
    rules = {"side": 3, "sampling_ratio": 2, "aligned": False}
    found = form(features, STRIDES, image, boxes, levels, **rules)
    assert not found[image < 0].any()
    alone = form(features, STRIDES, image[image >= 0], boxes[image >= 0], levels[image >= 0], **rules)
    assert torch.equal(found[image >= 0], alone)
    gradients = torch.autograd.grad(found[image < 0].sum(), features)
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("image", [[], [-1, -1]])
def test_no_region_at_all_keeps_every_level_in_the_graph(form, image) -> None:
    features = pyramid(2, 3, torch.float32)
    found = form(
        features, STRIDES, torch.tensor(image, dtype=torch.int64), torch.zeros(len(image), 4),
        torch.zeros(len(image), dtype=torch.int64), side=7, sampling_ratio=2, aligned=False,
    )  # fmt: skip
    assert found.shape == (len(image), 3, 7, 7)
    for feature, gradient in zip(features, torch.autograd.grad(found.sum(), features)):
        assert gradient.shape == feature.shape and not gradient.any()


@pytest.mark.parametrize("form", FORMS)
def test_bf16_features_are_pooled_in_float32(form) -> None:
    features, boxes = pyramid(1, 4, torch.bfloat16), some_boxes(20)
    levels, image = assign_levels(boxes, levels=4, law="torchvision", first=2), torch.zeros(20, dtype=torch.int64)
    rules = {"side": 7, "sampling_ratio": 2, "aligned": True}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = form(features, STRIDES, image, boxes, levels, **rules)
    exact = form([f.float() for f in features], STRIDES, image, boxes, levels, **rules)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, exact.to(torch.bfloat16))
    assert all(gradient.dtype == torch.bfloat16 for gradient in torch.autograd.grad(found.sum(), features))


def test_the_memory_estimate_pools_without_data() -> None:
    features = [feature.detach().to("meta").float().requires_grad_() for feature in pyramid(2, 3)]
    found = pool_regions(
        features, STRIDES, torch.empty(9, dtype=torch.int64, device="meta"), torch.empty(9, 4, device="meta"),
        torch.empty(9, dtype=torch.int64, device="meta"), side=7, sampling_ratio=2, aligned=False,
    )  # fmt: skip
    assert found.shape == (9, 3, 7, 7)
    largest = pool_regions(
        features, STRIDES, torch.empty(9, dtype=torch.int64, device="meta"), torch.empty(9, 4, device="meta"),
        torch.empty(9, dtype=torch.int64, device="meta"), side=7, sampling_ratio=2, aligned=False, mode="pool",
    )  # fmt: skip
    assert largest.shape == (9, 3, 7, 7)
    found.sum().backward()
    assert all(feature.grad is not None and feature.grad.shape == feature.shape for feature in features)


def slow_largest(feature: Tensor, box: list[float], scale: float, side: int) -> Tensor:
    """RoIPool as Girshick 2015 and Caffe have it: whole pixels, both ends within; a cell without a pixel is 0."""
    height, width = feature.shape[1:]
    left, top, right, bottom = (math.floor(abs(edge * scale) + 0.5) * (1 if edge >= 0 else -1) for edge in box)
    down, across = (torch.tensor(max(b - a + 1, 1), dtype=torch.float32) / side for a, b in ((top, bottom), (left, right)))
    result = torch.zeros(feature.shape[0], side, side, dtype=feature.dtype)
    for row in range(side):
        for column in range(side):
            rows = [math.floor(row * down) + top, math.ceil((row + 1) * down) + top]
            columns = [math.floor(column * across) + left, math.ceil((column + 1) * across) + left]
            (y0, y1), (x0, x1) = [min(max(y, 0), height) for y in rows], [min(max(x, 0), width) for x in columns]
            if y1 > y0 and x1 > x0:
                result[:, row, column] = feature[:, y0:y1, x0:x1].amax((1, 2))
    return result


@examples(40)
@given(st.tuples(edge, edge, st.integers(0, 800), st.integers(0, 800)), st.sampled_from([1, 2, 3, 7]), st.integers(0, 3))
def test_the_largest_pixel_of_each_cell_is_the_obvious_loop_s(row, side, level) -> None:
    box = [row[0], row[1], row[0] + row[2] / 4, row[1] + row[3] / 4]
    features = pyramid(2, 2, torch.float32)
    expected = slow_largest(features[level][1], box, 1 / STRIDES[level], side)
    for form in POOL_FORMS:
        found = form(
            features, STRIDES, torch.tensor([1]), torch.tensor([box]), torch.tensor([level]), side=side
        )  # fmt: skip
        assert torch.equal(found[0], expected)


@pytest.mark.parametrize("form", POOL_FORMS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_largest_pixels_and_their_gradient_are_torchvision_s_roi_pool(form, channels_last) -> None:
    features = pyramid(2, 3, torch.float32)
    if channels_last:
        features = [f.detach().to(memory_format=torch.channels_last).requires_grad_() for f in features]
    boxes, image = some_boxes(40), (torch.arange(40) >= 25).long()
    image[7] = -1
    levels = assign_levels(boxes, levels=4, law="torchvision", first=2)
    found = form(features, STRIDES, image, boxes, levels, side=7)
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    gradients = torch.autograd.grad((found * weight).sum(), features)
    expected = torch.zeros_like(found)
    twins = [feature.detach().contiguous().requires_grad_() for feature in features]
    for row in [row for row in range(40) if row != 7]:
        level, of = int(levels[row]), torch.cat((image[row : row + 1].float(), boxes[row])).unsqueeze(0)
        expected[row] = torchvision.ops.roi_pool(twins[level], of, 7, 1 / STRIDES[level])[0]
    assert torch.equal(found, expected) and not found[7].any()
    theirs = torch.autograd.grad((expected * weight).sum(), twins, allow_unused=True)
    for ours, other in zip(gradients, theirs):
        torch.testing.assert_close(ours, torch.zeros_like(ours) if other is None else other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", POOL_FORMS)
@pytest.mark.parametrize("image", [[], [-1, -1]])
def test_no_region_at_all_keeps_every_level_in_roi_pool_s_graph(form, image) -> None:
    features = pyramid(2, 3, torch.float32)
    found = form(
        features, STRIDES, torch.tensor(image, dtype=torch.int64), torch.zeros(len(image), 4),
        torch.zeros(len(image), dtype=torch.int64), side=7,
    )  # fmt: skip
    assert found.shape == (len(image), 3, 7, 7) and not found.any()
    for feature, gradient in zip(features, torch.autograd.grad(found.sum(), features)):
        assert gradient.shape == feature.shape and not gradient.any()


@pytest.mark.parametrize("mode", ["align", "pool"])
def test_an_accelerators_kernel_is_given_each_level_in_float32_and_in_its_own_layout(monkeypatch, mode) -> None:
    """It would copy any other layout once more."""
    given = []

    def seen(kernel, features: Tensor, *args, **kwargs) -> Tensor:
        given.append(features)
        return kernel(features, *args, **kwargs)

    for name in ("roi_align", "roi_pool"):
        monkeypatch.setattr(roi_align, name, partial(seen, getattr(roi_align, name)))
    levels = [level.detach().contiguous(memory_format=torch.channels_last) for level in pyramid(2, 3, torch.bfloat16)]
    where = torch.tensor([0, 1]), some_boxes(2), torch.tensor([0, 2])
    rules = {"side": 3, "sampling_ratio": 2, "aligned": False, "mode": mode}
    found = with_static_shapes(levels, STRIDES, *where, **rules)
    assert [features.dtype for features in given] == [torch.float32] * len(STRIDES)
    assert all(features.is_contiguous() for features in given)
    plain = [level.contiguous() for level in levels]
    assert torch.equal(found, with_static_shapes(plain, STRIDES, *where, **rules))
