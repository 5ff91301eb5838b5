"""Training steps beside their peers, eager, as whole-step CUDA graphs and compiled; and a profile of one step of each."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from against_cpu import mask_bench
from item import Item, run

from paceline.accelerators import synchronise
from paceline.bench.harness import possible
from paceline.bench.peers import peers
from paceline.bench.step import StepBench, our_step, run_step_bench
from paceline.bench.step_resnet import ResNetBench
from paceline.bench.step_ssd import SSDBench
from paceline.config.system import Precision
from paceline.machine.machine import make_exact

GPU_FORMATS: tuple[Precision, ...] = ("bf16", "fp16")
TINY: dict[str, Any] = {"rounds": 1, "seconds": 0.0, "matrix": 64, "block": 2}


def formats(item: Item, *, compile: bool) -> tuple[Precision, ...]:
    """The number formats that a step is taken in."""
    return ("fp32",) if item.cpu else ("bf16",) if compile else GPU_FORMATS


def resnet_bench(item: Item, batch: int, *, compile: bool = False) -> ResNetBench:
    """ResNet-50 at 224 pixels beside torchvision's."""
    full = ResNetBench(
        batch=batch, rounds=3, seconds=1.0, precisions=formats(item, compile=compile), system=item.system,
        compile=compile, matrix=8192, depth=50, size=224,
    )  # fmt: skip
    return replace(full, depth=18, batch=2, size=32, **TINY) if item.tiny else full


def ssd_bench(item: Item, *, compile: bool = False) -> SSDBench:
    """SSD-ResNet34 at 300 pixels, 128 images."""
    full = SSDBench(
        batch=128, rounds=3, seconds=1.0, precisions=formats(item, compile=compile), system=item.system,
        compile=compile, matrix=8192, part="step", depth=34, size=300, classes=80,
    )  # fmt: skip
    return replace(full, depth=18, batch=2, size=64, classes=3, **TINY) if item.tiny else full


def maskrcnn_bench(item: Item, batch: int) -> StepBench:
    """Mask R-CNN, ResNet-50, at 800 x 1344 pixels."""
    bench = mask_bench(item.tiny, min(batch, 2) if item.tiny else batch, item.device)
    # In the recipes' format alone: torchvision's step takes so long that a second one would not fit the limit.
    return replace(bench, system=item.system, precisions=("fp32",) if item.cpu else ("bf16",))


def measured(item: Item, bench: StepBench) -> None:
    """Each contender's img/s."""
    run_step_bench(bench, item.device, lambda known: item.tell(**known))


def resnet(item: Item, batch: int, *, compile: bool = False) -> None:
    """Of ResNet-50."""
    measured(item, resnet_bench(item, batch, compile=compile))


def ssd(item: Item, *, compile: bool = False) -> None:
    """Of SSD."""
    measured(item, ssd_bench(item, compile=compile))


def maskrcnn(item: Item, batch: int) -> None:
    """Of Mask R-CNN."""
    measured(item, maskrcnn_bench(item, batch))


def one_step(item: Item, workload: str) -> Callable[[], Any]:
    """Our step as the benchmark takes it, eager, bf16."""
    benches = {
        "resnet": partial(resnet_bench, batch=256),
        "ssd": ssd_bench,
        "maskrcnn": partial(maskrcnn_bench, batch=12),
    }
    bench: StepBench = benches[workload](item)
    *_, (_, scene) = bench.scenes(item.device)
    return our_step(bench, "fp32" if item.cpu else "bf16", scene, item.device).step


def profile(item: Item) -> None:
    """The operations of one step by their time, with the kernels that were chosen; the trace comes back packed."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if item.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    for workload in ("resnet", "ssd", "maskrcnn"):

        def work(workload: str = workload) -> dict[str, Any]:
            make_exact(False, varied=workload == "maskrcnn")
            take = one_step(item, workload)
            for _ in range(1 if item.tiny else 5):
                take()
            synchronise(item.device)
            with torch.profiler.profile(activities=activities, acc_events=True) as seen:
                take()
                synchronise(item.device)
            on_gpu = item.device.type == "cuda"
            rows = sorted(
                seen.key_averages(),
                key=lambda row: -(row.self_device_time_total if on_gpu else row.self_cpu_time_total),
            )
            trace = item.scratch / f"{workload}.json"
            seen.export_chrome_trace(str(trace))
            (item.keep / f"trace-{workload}.json.gz").write_bytes(gzip.compress(trace.read_bytes()))
            trace.unlink()
            return {
                "launches": sum(row.count for row in rows if row.key in ("cudaLaunchKernel", "cudaLaunchKernelExC")),
                "rows": [
                    {
                        "name": row.key[:160],
                        "count": row.count,
                        "device_ms": round(row.self_device_time_total / 1000, 3),
                        "cpu_ms": round(row.self_cpu_time_total / 1000, 3),
                    }
                    for row in rows[:60]
                ],
            }

        item.attempt(workload, work)


def fill(item: Item, workload: str, contender: str) -> None:
    """Compile one contender, so that its kernels are in inductor's cache; several such processes run side by side."""
    make_exact(False)
    bench = resnet_bench(item, 256, compile=True) if workload == "resnet" else ssd_bench(item, compile=True)
    *_, (_, scene) = bench.scenes(item.device)
    precision = bench.precisions[0]
    menu = bench.ours(precision, scene, item.device)
    menu |= peers(bench.task).contenders(bench, precision, scene, item.device)
    made = possible(menu, item.device, compile=True)[contender].make()
    item.tell(first_loss=float(made.step()))


FILL = {
    "fill-resnet": ("resnet", "paceline compiled"),
    "fill-torchvision": ("resnet", "torchvision compiled"),
    "fill-ssd": ("ssd", "paceline compiled"),
    "fill-ssd-fused": ("ssd", "paceline compiled, fused heads"),
    "fill-ssd-plain": ("ssd", "plain compiled"),
}

if __name__ == "__main__":
    if "--cpu" in sys.argv:
        # A CPU's forms of the losses follow the objects there are, and would be compiled anew each step, for minutes; that the
        # accelerator's forms are one graph is tested without one (tests/bench).
        torch._dynamo.config.disable = True  # pyright: ignore[reportPrivateImportUsage]
    run({
        "resnet-256": partial(resnet, batch=256),
        "resnet-32": partial(resnet, batch=32),
        "ssd-128": ssd,
        "maskrcnn-4": partial(maskrcnn, batch=4),
        "maskrcnn-12": partial(maskrcnn, batch=12),
        "profile": profile,
        "resnet-256-compiled": partial(resnet, batch=256, compile=True),
        "ssd-128-compiled": partial(ssd, compile=True),
        **{name: partial(fill, workload=workload, contender=who) for name, (workload, who) in FILL.items()},
    })  # fmt: skip
