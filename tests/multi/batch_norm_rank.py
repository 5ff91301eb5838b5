"""One rank of test_group_batch_norm.py: a net and batches that every process makes alike, and `steps FOLDER`, what joined ranks do."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn

from paceline.models.layers.batch_norm import (
    BatchNorm,
    average_running_statistics,
    configure_batch_norm,
    update_running_statistics,
)

RANKS = 2
SHARE = 4
STEPS = 2
# What PyTorch 2.11's compiler says of its own doing (message, category, module): of a tensor that it looks at, which it hides
# where warnings are printed but not from -W error, and of an autograd.Function that it makes itself.
OF_THE_COMPILER = (
    (r"The \.grad attribute of a Tensor that is not a leaf", UserWarning, r"torch\._(dynamo|subclasses)\."),
    (r".*should not be instantiated", DeprecationWarning, r"torch\._dynamo\."),
)


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
        update_running_statistics(model)
        found[f"{step}.output"] = output.detach()
        assert own.grad is not None
        found[f"{step}.input"] = own.grad
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        found[f"grad.{name}"] = parameter.grad
    for name, buffer in model.named_buffers():
        found[name] = buffer
    return found


def joined(rank: int, folder: Path) -> None:
    """Everything that two ranks do; what this one found of each kind is in FOLDER/RANK.pt."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    part, found = slice(rank * SHARE, (rank + 1) * SHARE), {}
    for kind in ("joined", "compiled"):
        model = net()
        configure_batch_norm(model, groups=1, join_group=dist.group.WORLD, join=RANKS, forwards=1)
        if kind == "compiled":
            model.compile(backend="eager", fullgraph=True, dynamic=False)
        with warnings.catch_warnings():
            for told in OF_THE_COMPILER:
                warnings.filterwarnings("ignore", *told)
            found[kind] = train(model, part)
    apart = net()
    configure_batch_norm(apart, groups=2, join_group=None, join=1, forwards=1)
    train(apart, part)
    average_running_statistics(apart)
    found["apart"] = dict(apart.named_buffers())
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


def main() -> int:
    joined(int(os.environ["RANK"]), Path(sys.argv[2]))
    return 0
