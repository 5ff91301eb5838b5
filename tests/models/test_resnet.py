"""ResNet: shapes, number formats, and one whole graph for the compiler."""

from __future__ import annotations

import pytest
import torch
from by_night import ONE_MORE
from torch import nn

from paceline._utils.errors import RecipeError
from paceline.models.backbones.base import init_weights
from paceline.models.backbones.resnet import DEPTHS, BasicBlock, Bottleneck, EndMaxPool, ResNet
from paceline.models.layers.batch_norm import BatchNorm, configure_batch_norm, update_running_statistics


def tiny(depth: int = 18, seed: int = 0, **settings) -> ResNet:
    model = ResNet(depth, 7, width=8, **settings)
    init_weights(model, "torchvision", torch.Generator().manual_seed(seed))
    return model.to(memory_format=torch.channels_last)


@pytest.mark.parametrize("depth", DEPTHS)
def test_depth_counts_its_convolutions_and_the_classifier(depth):
    model = ResNet(depth, 3, width=2)
    convolutions = [m for name, m in model.named_modules() if isinstance(m, nn.Conv2d) and "downsample" not in name]
    assert len(convolutions) + 1 == depth
    blocks = [m for m in model.modules() if isinstance(m, (BasicBlock, Bottleneck))]
    assert len(blocks) == sum(DEPTHS[depth][0])


def test_resnet50_has_the_161_tensors_and_the_parameters_of_mlperf():
    model = ResNet(50, 1000)
    assert len(list(model.parameters())) == 161
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032
    assert sum(isinstance(module, BatchNorm) for module in model.modules()) == 53


def test_the_stride_of_v1_5_is_in_the_3x3_convolution():
    unit = ResNet(50, 10, width=8).layer2[0]
    assert isinstance(unit, Bottleneck)
    assert unit.conv1.stride == (1, 1)
    assert unit.conv2.stride == (2, 2)


def test_an_unknown_depth_names_the_known_ones():
    with pytest.raises(RecipeError, match=r"depth 51.*18, 34, 50"):
        ResNet(51, 10)


@pytest.mark.parametrize(("stem", "grid"), [("imagenet", 2), ("small", 4)])
@pytest.mark.parametrize("channels", [3, 4])
def test_stems_take_3_or_4_channels_and_give_their_grid(stem, grid, channels):
    model = tiny(stem=stem, input_channels=channels)
    seen = []
    model.layer4.register_forward_hook(lambda module, inputs, output: seen.append(output))
    logits = model.classify(torch.randn(2, channels, 64, 64).contiguous(memory_format=torch.channels_last))
    assert logits.shape == (2, 7)
    assert seen[0].shape[2:] == (grid, grid)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    first, second, other = tiny(seed=1), tiny(seed=1), tiny(seed=2)
    assert torch.equal(before, torch.random.get_rng_state())
    for (name, a), b, c in zip(first.named_parameters(), second.parameters(), other.parameters()):
        assert torch.equal(a, b)
        assert name.split(".")[-2].startswith("bn") or "downsample.1" in name or not torch.equal(a, c)


@pytest.mark.parametrize(("depth", "last"), [(18, "bn2"), (50, "bn3")])
def test_zero_init_last_gamma_makes_each_unit_its_shortcut(depth, last):
    model = ResNet(depth, 4, width=4)
    init_weights(model, "mlperf", torch.Generator().manual_seed(0), zero_init_residual=True)
    unit = model.layer1[1]
    assert not getattr(unit, last).weight.any()
    assert (unit.bn1.weight == 1).all()
    features = torch.rand(1, unit.conv1.in_channels, 5, 5)
    assert torch.equal(unit(features), features)


def test_bf16_autocast_gives_float32_logits_near_float32s():
    model = tiny()
    images = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model.classify(images)
    exact = model.classify(images)
    assert rounded.dtype == exact.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=ONE_MORE)])
def test_the_compiler_sees_one_whole_graph_that_computes_the_eager_step(precision):
    def step(forward, model):
        images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            logits = forward(images)
        logits.square().sum().backward()
        update_running_statistics(model)
        return logits.detach(), [parameter.grad for parameter in model.parameters()], list(model.buffers())

    eager, compiled = tiny(stem="small"), tiny(stem="small")
    for model in (eager, compiled):
        configure_batch_norm(model, groups=2, join_group=None, join=1, forwards=1)
    got = step(torch.compile(compiled.classify, backend="eager", fullgraph=True), compiled)
    torch.testing.assert_close(got, step(eager.classify, eager), rtol=0, atol=0)
    torch._dynamo.reset()


@pytest.mark.parametrize("stem", ["imagenet", "small"])
def test_strides_are_those_of_the_maps(stem):
    model = ResNet(18, classes=0, stem=stem)
    maps = model(torch.randn(1, 3, 64, 64))
    assert model.strides == [64 // part.shape[2] for part in maps]
    assert model.channels == [part.shape[1] for part in maps]


@pytest.mark.parametrize(("height", "width"), [(6, 7), (5, 4), (3, 3)])
def test_pooling_that_pads_at_the_end_is_tensorflow_s_same(height, width):
    """TensorFlow pads by what the last window lacks, the smaller half of it in front; a window takes the pixels it has."""
    input = -1 - torch.rand(1, 1, height, width)
    lacks = [max((-(-side // 2) - 1) * 2 + 3 - side, 0) for side in (height, width)]
    expected = [
        [
            max(
                float(input[0, 0, y, x])
                for y in range(2 * i - lacks[0] // 2, 2 * i - lacks[0] // 2 + 3)
                for x in range(2 * j - lacks[1] // 2, 2 * j - lacks[1] // 2 + 3)
                if 0 <= y < height and 0 <= x < width
            )
            for j in range(-(-width // 2))
        ]
        for i in range(-(-height // 2))
    ]
    assert EndMaxPool()(input)[0, 0].tolist() == expected
