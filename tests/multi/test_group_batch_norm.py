"""Two processes that join their BatchNorm statistics act as one process with the joined batch."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from paceline.models.batch_norm import (
    BatchNorm,
    average_running_statistics,
    commit_running_statistics,
    configure_batch_norm,
)

pytestmark = pytest.mark.multi

RANKS = 2
SHARE = 4
STEPS = 2


def net() -> nn.Sequential:
    layers = nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2), BatchNorm(6), nn.ReLU(inplace=True), nn.Conv2d(6, 4, 1), BatchNorm(4)
    )
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.normal_(0.3, 0.5, generator=generator)
    return layers.to(memory_format=torch.channels_last)


def batch(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    values = torch.randn(RANKS * SHARE, 3, 9, 9, generator=generator)
    # Ranks whose means lie far apart: a net that did not join them would be wrong by a lot.
    return (values + torch.arange(RANKS * SHARE).view(-1, 1, 1, 1)).contiguous(memory_format=torch.channels_last)


def train(model: nn.Module, part: slice) -> dict[str, torch.Tensor]:
    """Outputs, gradients and running statistics of a few steps on this part of the batch."""
    found: dict[str, torch.Tensor] = {}
    for step in range(STEPS):
        model.zero_grad()
        own = batch(step)[part].requires_grad_()
        output = model(own)
        # A gradient that differs everywhere: that of a plain sum vanishes in BatchNorm.
        upstream = torch.linspace(-1, 1, output[0].numel() * RANKS * SHARE).view(-1, *output.shape[1:])
        ((output * upstream[part]).sum() / (RANKS * SHARE)).backward()
        commit_running_statistics(model)
        found[f"{step}.output"] = output.detach()
        assert own.grad is not None
        found[f"{step}.input"] = own.grad
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        found[f"grad.{name}"] = parameter.grad
    for name, buffer in model.named_buffers():
        found[name] = buffer
    return found


def joined(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    model = net()
    configure_batch_norm(model, groups=1, join_group=dist.group.WORLD, join=RANKS, forwards=1)
    torch.save(train(model, slice(rank * SHARE, (rank + 1) * SHARE)), os.path.join(folder, f"joined{rank}.pt"))
    compiled = net()
    configure_batch_norm(compiled, groups=1, join_group=dist.group.WORLD, join=RANKS, forwards=1)
    compiled.compile(backend="eager", fullgraph=True)
    torch.save(train(compiled, slice(rank * SHARE, (rank + 1) * SHARE)), os.path.join(folder, f"compiled{rank}.pt"))
    apart = net()
    configure_batch_norm(apart, groups=2, join_group=None, join=1, forwards=1)
    train(apart, slice(rank * SHARE, (rank + 1) * SHARE))
    average_running_statistics(apart)
    torch.save(dict(apart.named_buffers()), os.path.join(folder, f"apart{rank}.pt"))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> dict[str, list[dict[str, torch.Tensor]]]:
    folder = str(tmp_path_factory.mktemp("ranks"))
    mp.spawn(joined, (folder,), nprocs=RANKS)
    return {
        kind: [torch.load(os.path.join(folder, f"{kind}{rank}.pt"), weights_only=True) for rank in range(RANKS)]
        for kind in ("joined", "compiled", "apart")
    }


@pytest.mark.parametrize("kind", ["joined", "compiled"])
def test_two_joined_ranks_equal_one_process_with_the_joined_batch(ranks, kind):
    model = net()
    alone = train(model, slice(None))
    first, second = ranks[kind]
    for name, expected in alone.items():
        if name.endswith((".output", ".input")):
            got = torch.cat((first[name], second[name]))
        elif name.startswith("grad."):
            got = first[name] + second[name]
        elif name.endswith("pending"):
            continue
        else:
            got = first[name]
            assert torch.equal(first[name], second[name]), f"ranks disagree about {name}"
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_ranks_that_split_and_are_averaged_equal_one_process_that_splits(ranks):
    model = net()
    configure_batch_norm(model, groups=4, join_group=None, join=1, forwards=1)
    train(model, slice(None))
    for rank in range(RANKS):
        for name, expected in model.named_buffers():
            torch.testing.assert_close(ranks["apart"][rank][name], expected, rtol=1e-6, atol=1e-6)
