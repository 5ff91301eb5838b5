"""The oracles' first steps in fp32, bf16 and fp16 on the GPU, beside their float64 formulation on the CPU.

What tests/oracle holds to 1e-9 on a CPU in float64 (LARS with poly-2 and smoothing, SSD) or against torchvision (Mask R-CNN) is
taken here as a GPU takes it: same first weights, same batches, the real training step; fp16 under a static and a dynamic loss
scale. What differs is then the number format and the device's own kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from item import Item, insist, run
from torch import nn

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "oracle"), str(TESTS / "multi")]

from trajectories import apart, column, in_float64, take_steps  # noqa: E402

from paceline.config.recipe import Recipe  # noqa: E402
from paceline.data.batch import Batch  # noqa: E402

# Most that the first loss and that any of the first steps' may be off, relative. The first step's loss knows rounding alone;
# later ones know what rounding did to the weights, and where a sampled region is another one, a few percent.
LIMITS = {"fp32": (1e-4, 0.02), "bf16": (0.03, 0.2), "fp16 static": (0.01, 0.1), "fp16 dynamic": (0.01, 0.1)}
STATIC = 128.0
STEPS, TINY_STEPS = 10, 2


@dataclass(frozen=True)
class Oracle:
    """A recipe with its batches, and the losses that its steps have in float64."""

    recipe: Recipe
    build: Callable[[torch.device], nn.Module]
    batches: Sequence[Batch]
    wanted: list[float]
    train_images: int = 1000


def resnet(steps: int) -> Oracle:
    """resnet50-mlperf-3200 made small; the losses are those of the formulas."""
    import test_lars_trajectory as lars

    batches = lars.make_batches()[:steps]
    with in_float64():
        wanted = lars.plain(batches)[0]
        state = lars.first_model(lars.RECIPE).state_dict()
    return Oracle(lars.RECIPE, partial(loaded, lambda: lars.first_model(lars.RECIPE), state), batches, wanted, lars.TRAIN)


def ssd(steps: int) -> Oracle:
    """A small SSD; the losses are those of the plain formulation."""
    import test_ssd_trajectory as plain

    batches = plain.make_batches()[:steps]
    with in_float64():
        wanted = [row[0] for row in plain.plain(batches, "image")]
        state = plain.first_model(plain.RECIPE).state_dict()
    return Oracle(plain.RECIPE, partial(loaded, lambda: plain.first_model(plain.RECIPE), state), batches, wanted)


def maskrcnn(steps: int) -> Oracle:
    """A small Mask R-CNN; the losses are its own in float64."""
    import maskrcnn_rank as small

    from paceline.models.maskrcnn.model import init_mask_rcnn
    from paceline.models.registry import WORKLOADS

    recipe = small.small()
    batches = [small.forward_of("full", range(small.IMAGES)) for _ in range(steps)]

    def first_model() -> nn.Module:
        model = WORKLOADS["instance-segmentation"].network.build(recipe, small.CLASSES)
        init_mask_rcnn(model.network, torch.Generator().manual_seed(3))
        return model

    with in_float64():
        state = first_model().state_dict()
        wanted = column(take_steps(recipe, partial(loaded, first_model, state), batches)[0])
    return Oracle(recipe, partial(loaded, first_model, state), batches, wanted)


def loaded(make: Callable[[], nn.Module], state: dict[str, torch.Tensor], device: torch.device) -> nn.Module:
    """The model with these first weights, rounded to its own numbers: a generator draws others in another format."""
    model = make()
    model.load_state_dict(state)
    return model.to(device)


def compared(item: Item, oracle: Oracle, form: str) -> dict[str, Any]:
    """How far the first steps' losses are from float64's."""
    precision, _, scale = form.partition(" ")
    system = replace(item.system, precision=precision, loss_scale=STATIC if scale == "static" else 0.0, compile=False)
    losses, state = take_steps(
        oracle.recipe, oracle.build, oracle.batches, system=system, device=item.device, train_images=oracle.train_images
    )
    off = apart(column(losses), oracle.wanted)
    skipped = 0 if state.scaler is None else int(state.scaler.skipped)
    first, most = LIMITS[form]
    return {
        "losses": column(losses),
        "float64": oracle.wanted,
        "off": off,
        "skipped_steps": skipped,
        # A skipped step trains nothing: what follows is another trajectory than the oracle's.
        "agrees": off[0] <= first and (skipped > 0 or max(off) <= most),
    }


def compare(item: Item, make: Callable[[int], Oracle]) -> None:
    """Each number format beside float64."""
    oracle, found = make(TINY_STEPS if item.tiny else STEPS), {}
    for form in LIMITS:
        found[form] = item.attempt(f"{make.__name__} {form}", partial(compared, item, oracle, form))
        print(f"{make.__name__} {form}: {found[form]}")
    insist(found)


if __name__ == "__main__":
    run({f"oracle-{make.__name__}": partial(compare, make=make) for make in (resnet, ssd, maskrcnn)})
