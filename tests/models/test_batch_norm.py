"""BatchNorm against torch's, against a loop over chunks, against float64, and across cuts of one step."""

from __future__ import annotations

import pytest
import torch
from messages import raises
from torch import nn

from paceline._utils.errors import RecipeError
from paceline.models.layers.batch_norm import (
    BatchNorm,
    average_running_statistics,
    configure_batch_norm,
    discard_pending,
    restore_running_statistics,
    snapshot_running_statistics,
    update_running_statistics,
)

CHANNELS = 5


def filled(module: nn.BatchNorm2d, seed: int = 0) -> nn.BatchNorm2d:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        module.weight.normal_(1, 0.5, generator=generator)
        module.bias.normal_(0, 0.5, generator=generator)
        module.get_buffer("running_mean").normal_(0, 0.5, generator=generator)
        module.get_buffer("running_var").uniform_(0.5, 2, generator=generator)
    return module


def pair(groups: int = 1, forwards: int = 1, **settings) -> tuple[BatchNorm, nn.BatchNorm2d]:
    ours, theirs = BatchNorm(CHANNELS, **settings), nn.BatchNorm2d(CHANNELS, **settings)
    filled(ours)
    filled(theirs)
    configure_batch_norm(ours, groups=groups, join_group=None, join=1, forwards=forwards)
    return ours, theirs


def images(count: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, CHANNELS, 6, 7, generator=generator) * 2 + torch.arange(count).view(-1, 1, 1, 1) / 3
    return values.contiguous(memory_format=torch.channels_last)


def gradients(module: nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    batch = batch.clone().requires_grad_()
    output = module(batch)
    # A loss with a different gradient everywhere: BatchNorm's own sum has none.
    (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
    assert batch.grad is not None
    found = [batch.grad, *(parameter.grad.clone() for parameter in module.parameters())]
    module.zero_grad()
    return output.detach(), found


@pytest.mark.parametrize("settings", [{}, {"eps": 1e-3, "momentum": 0.3}])
def test_whole_batch_equals_torch_bit_for_bit(settings):
    ours, theirs = pair(**settings)
    for step in range(3):
        got, expected = gradients(ours, images(8, step)), gradients(theirs, images(8, step))
        update_running_statistics(ours)
        assert torch.equal(got[0], expected[0])
        assert all(torch.equal(a, b) for a, b in zip(got[1], expected[1]))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in ours.state_dict().items())
    ours.eval()
    theirs.eval()
    assert torch.equal(ours(images(3)), theirs(images(3)))


@pytest.mark.parametrize("groups", [2, 4])
def test_ghost_groups_equal_a_loop_over_chunks(groups):
    ours, theirs = pair(groups)
    old_mean, old_var = theirs.running_mean.clone(), theirs.running_var.clone()
    output, found = gradients(ours, images(8))
    assert torch.equal(ours.running_mean, old_mean), "nothing moves before the commit"
    update_running_statistics(ours)

    chunks, sums, means, variances = images(8).chunk(groups), None, [], []
    weights = torch.linspace(-1, 1, output.numel()).view_as(output).chunk(groups)
    outputs, input_gradients = [], []
    for chunk, weight in zip(chunks, weights):
        single = filled(nn.BatchNorm2d(CHANNELS, momentum=1.0))
        chunk = chunk.clone().requires_grad_()
        result = single(chunk)
        (result * weight).sum().backward()
        outputs.append(result.detach())
        input_gradients.append(chunk.grad)
        own = [single.weight.grad, single.bias.grad]
        sums = own if sums is None else [a + b for a, b in zip(sums, own)]
        means.append(single.running_mean)
        variances.append(single.running_var)
    assert torch.equal(output, torch.cat(outputs))
    assert output.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, [torch.cat(input_gradients), *sums], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.running_mean, 0.9 * old_mean + 0.1 * torch.stack(means).mean(0))
    torch.testing.assert_close(ours.running_var, 0.9 * old_var + 0.1 * torch.stack(variances).mean(0))


def test_one_step_of_64_equals_4_accumulations_and_16_equals_its_ghost_groups():
    whole, _ = pair(groups=4)
    parts, _ = pair(groups=1, forwards=4)
    for step in range(3):
        batch = images(64, step)
        output, found = gradients(whole, batch)
        update_running_statistics(whole)
        collected = [gradients(parts, part) for part in batch.chunk(4)]
        update_running_statistics(parts)
        assert torch.equal(output, torch.cat([part for part, _ in collected]))
        assert found[0].shape == batch.shape
        for name in ("running_mean", "running_var"):
            torch.testing.assert_close(parts.get_buffer(name), whole.get_buffer(name), rtol=1e-6, atol=1e-6)
    assert whole.num_batches_tracked == parts.num_batches_tracked == 3


def test_groups_within_accumulations_are_weighted_alike():
    one, _ = pair(groups=4, forwards=1)
    two, _ = pair(groups=2, forwards=2)
    batch = images(16)
    one(batch)
    for part in batch.chunk(2):
        two(part)
    update_running_statistics(one)
    update_running_statistics(two)
    torch.testing.assert_close(one.running_var, two.running_var)
    torch.testing.assert_close(one.running_mean, two.running_mean)


@pytest.mark.parametrize("groups", [1, 2])
def test_training_output_and_gradients_agree_with_float64_formulas(groups):
    ours, _ = pair(groups)
    output, (input_gradient, weight_gradient, bias_gradient) = gradients(ours, images(6))
    weight, bias = ours.weight.detach().double(), ours.bias.detach().double()
    upstream = torch.linspace(-1, 1, output.numel()).view_as(output).double()
    expected_weight, expected_bias = torch.zeros(CHANNELS).double(), torch.zeros(CHANNELS).double()
    for chunk, up, out, grad in zip(
        images(6).double().chunk(groups), upstream.chunk(groups), output.chunk(groups), input_gradient.chunk(groups)
    ):
        for channel in range(CHANNELS):
            x, dy = chunk[:, channel], up[:, channel]
            scale = 1 / (((x - x.mean()) ** 2).mean() + 1e-5).sqrt()
            normalized = (x - x.mean()) * scale
            expected_weight[channel] += (dy * normalized).sum()
            expected_bias[channel] += dy.sum()
            dx = weight[channel] * scale * (dy - dy.mean() - normalized * (dy * normalized).mean())
            expected = normalized * weight[channel] + bias[channel]
            torch.testing.assert_close(out[:, channel].double(), expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(grad[:, channel].double(), dx, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(weight_gradient.double(), expected_weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(bias_gradient.double(), expected_bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_bf16_input_keeps_type_layout_and_float32_statistics(groups):
    ours, _ = pair(groups)
    output = ours(images(4).bfloat16())
    update_running_statistics(ours)
    assert output.dtype == torch.bfloat16
    assert output.is_contiguous(memory_format=torch.channels_last)
    assert ours.running_mean.dtype == ours.pending.dtype == torch.float32
    assert torch.isfinite(output).all()


def test_a_discarded_warm_up_leaves_no_trace():
    for groups in (1, 2):
        ours, theirs = pair(groups)
        saved = snapshot_running_statistics(ours)
        ours(images(4, seed=9) * 100)
        restore_running_statistics(ours, saved)
        update_running_statistics(ours)
        if groups == 1:
            assert torch.equal(ours.running_mean, theirs.running_mean)
        ours(images(4, seed=9) * 100)
        if groups == 2:
            discard_pending(ours)
            assert not ours.pending.any()


def test_statistics_of_one_process_need_no_average():
    ours, theirs = pair()
    average_running_statistics(ours)
    assert torch.equal(ours.running_mean, theirs.running_mean)


@pytest.mark.parametrize(
    ("groups", "join", "forwards", "says"), [(2, 2, 1, "not both"), (0, 1, 1, "at least 1"), (1, 2, 1, "process group")]
)
def test_impossible_spans_are_refused(groups, join, forwards, says):
    with pytest.raises(RecipeError, match=says):
        configure_batch_norm(BatchNorm(2), groups=groups, join_group=None, join=join, forwards=forwards)


def test_a_forward_that_does_not_split_is_refused():
    ours, _ = pair(groups=3)
    with raises(RecipeError, "4 images", "3"):
        ours(images(4))


@pytest.mark.parametrize(("groups", "forwards"), [(1, 1), (2, 1), (1, 3)])
def test_compiled_whole_graph_equals_eager(groups, forwards):
    eager, _ = pair(groups, forwards)
    compiled, _ = pair(groups, forwards)
    whole = torch.compile(compiled, backend="eager", fullgraph=True)
    got, expected = gradients(whole, images(4)), gradients(eager, images(4))
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    assert torch.equal(compiled.pending, eager.pending)
    assert torch.equal(compiled.running_mean, eager.running_mean)
    torch._dynamo.reset()
