"""Losses and gradients of one step of each full network on the GPU, beside the same weights and batch on a CPU in fp32.

A gate: nothing that is measured afterwards means anything where these differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from item import Item, insist, run
from torch import Tensor, nn

from paceline.config.system import System
from paceline.distributed.device.setup import autocast_for
from paceline.tools.bench.step import StepBench
from paceline.tools.bench.step_maskrcnn import MaskRCNNBench
from paceline.tools.bench.step_resnet import ResNetBench
from paceline.tools.bench.step_ssd import SSDBench

CPU = torch.device("cpu")
# Most that loss and gradient may be off, relative to their size. Rounding to bf16 has 8 bits; a gradient through fifty layers of
# BatchNorms over 8 images adds that up.
LIMITS = {"fp32": (1e-3, 2e-2), "tf32": (5e-3, 0.1), "bf16": (5e-2, 0.3), "fp16": (2e-2, 0.2)}
Ready = tuple[nn.Module, Callable[[], Tensor]]  # a model in training, and its loss on a fixed batch


def ready(bench: StepBench, device: torch.device) -> Ready:
    """Our model of a benchmark, and its loss on the benchmark's batch."""
    *_, (_, scene) = bench.scenes(device)
    model = bench.trained(scene, device)
    calm(model)

    def loss() -> Tensor:
        found = model(scene.batch)
        return found["loss"] if "loss" in found else (found["sums"] / found["counts"].clamp(min=1)).sum()

    return model, loss


@torch.no_grad()
def calm(model: nn.Module) -> None:
    """Residual units add a tenth of what they begin with elsewhere.

    At 1, with noise for images, fifty layers multiply each rounding until a gradient in bf16 is another one (1.3 times its own size
    off, on a CPU), and a comparison of devices would compare that.
    """
    for unit in model.modules():
        last = getattr(unit, "bn3", getattr(unit, "bn2", None))
        if last is not None and getattr(last.weight, "requires_grad", False):
            last.weight.fill_(0.1)


def once(device: torch.device) -> dict[str, Any]:
    """A benchmark that is not timed."""
    return {"rounds": 1, "seconds": 0.0, "precisions": ("fp32",), "system": System(device.type)}  # type: ignore[arg-type]


def resnet(tiny: bool, device: torch.device) -> Ready:
    """ResNet-50, 8 images of 224 pixels."""
    depth, batch, size = (18, 2, 64) if tiny else (50, 8, 224)
    return ready(ResNetBench(depth=depth, batch=batch, size=size, **once(device)), device)


def ssd(tiny: bool, device: torch.device) -> Ready:
    """SSD, ResNet-34, 4 images of 300 pixels."""
    depth, batch, size, classes = (18, 2, 64, 3) if tiny else (34, 4, 300, 80)
    return ready(SSDBench(depth=depth, batch=batch, size=size, classes=classes, **once(device)), device)  # type: ignore[arg-type]


def maskrcnn(tiny: bool, device: torch.device) -> Ready:
    """Mask R-CNN, ResNet-50, one image of 800 x 1344 pixels, with given proposals: both devices sample the same regions."""
    return ready(mask_bench(tiny, 1, device), device)


def mask_bench(tiny: bool, batch: int, device: torch.device) -> MaskRCNNBench:
    """The benchmark's settings at the published size, with 30 positive regions an image, or at a tiny one."""
    bench = MaskRCNNBench(
        batch=batch, height=800, width=1344, classes=80, objects=7, positives=(30,), rounds=2, seconds=1.0,
        precisions=("bf16",), matrix=8192, threads=0, part="step", system=System(device.type),  # type: ignore[arg-type]
    )  # fmt: skip
    if not tiny:
        return bench
    rules = bench.net
    small = replace(
        rules,
        depth=18,
        rpn=replace(
            rules.rpn,
            pre_nms_topk_train=100,
            post_nms_topk_train=64,
            pre_nms_topk_test=60,
            post_nms_topk_test=30,
            samples_per_image=32,
        ),
        roi=replace(rules.roi, samples_per_image=32),
        mask=replace(rules.mask, target_buffer_size=24),
    )
    return replace(
        bench, height=64, width=96, classes=3, objects=2, positives=(6,), rounds=1, seconds=0.0, matrix=64, block=2, net=small,
        precisions=("fp32",),
    )  # fmt: skip


def found_on(
    make: Callable[[bool, torch.device], Ready], tiny: bool, device: torch.device, number: str
) -> tuple[float, dict[str, Tensor]]:
    """-> the loss, and the gradients by name, brought to the CPU in float32."""
    model, loss_of = make(tiny, device)
    # fp16 gradients would underflow without a scale.
    scale = 1024.0 if number == "fp16" else 1.0
    system = System(device.type, precision=number)  # type: ignore[arg-type]
    with autocast_for(system, device)():
        loss = loss_of()
    (scale * loss).backward()
    gradients = {
        name: weight.grad.float().cpu() / scale for name, weight in model.named_parameters() if weight.grad is not None
    }
    return float(loss), gradients


def compared(
    make: Callable[[bool, torch.device], Ready], item: Item, number: str, wanted_loss: float, wanted: dict[str, Tensor]
) -> dict[str, Any]:
    """How far this device in this number format is from the loss and the gradients wanted."""
    loss, gradients = found_on(make, item.tiny, item.device, number)
    off = {name: float((gradients[name] - value).norm()) for name, value in wanted.items()}
    size = {name: max(float(value.norm()), 1e-12) for name, value in wanted.items()}
    loss_off = abs(loss - wanted_loss) / abs(wanted_loss)
    gradient_off = math.hypot(*off.values()) / math.hypot(*size.values())
    most_loss, most_gradient = LIMITS[number]
    return {
        "loss": loss,
        "loss_on_cpu": wanted_loss,
        "loss_off": loss_off,
        "gradient_off": gradient_off,
        "worst": {name: off[name] / size[name] for name in sorted(off, key=lambda name: -off[name] / size[name])[:3]},
        "agrees": loss_off <= most_loss and gradient_off <= most_gradient and gradients.keys() == wanted.keys(),
    }


def compare(item: Item) -> None:
    """Each workload in each number format."""
    found = {}
    for make in (resnet, ssd, maskrcnn):
        wanted = found_on(make, item.tiny, CPU, "fp32")
        for number in ("fp32", "bf16") if item.cpu else LIMITS:  # CPUs emulate fp16
            what = f"{make.__name__} {number}"
            found[what] = item.attempt(what, partial(compared, make, item, number, *wanted))
            print(f"{what}: {found[what]}")
    insist(found)


if __name__ == "__main__":
    run({"against-cpu": compare})
