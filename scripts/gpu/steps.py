"""Training steps beside their peers, eager, as whole-step CUDA graphs and compiled; and a profile of one step of each."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from against_cpu import mask_bench
from item import Item, run

from paceline.bench import step, step_maskrcnn, step_ssd
from paceline.bench.step_ssd_ops import synthetic_scene
from paceline.bench.timing import settle
from paceline.config.system import Precision
from paceline.machine import make_exact

GPU_FORMATS: tuple[Precision, ...] = ("bf16", "fp16")


def resnet_bench(item: Item, batch: int, *, compile: bool = False) -> step.StepBench:
    """ResNet-50 at 224 pixels beside torchvision's."""
    full = step.StepBench(
        50, batch, 224, 3, 1.0, compile, ("bf16",) if compile else GPU_FORMATS, item.system, ("torchvision",)
    )
    return replace(full, depth=18, batch=2, size=32, rounds=1, seconds=0.0, precisions=("fp32",)) if item.tiny else full


def ssd_bench(item: Item, *, compile: bool = False) -> step_ssd.SSDBench:
    """SSD-ResNet34 at 300 pixels, 128 images."""
    full = step_ssd.SSDBench(
        34, 128, 300, 80, 3, 1.0, compile, ("bf16",) if compile else GPU_FORMATS, 8192, "step", item.system
    )
    tiny = {"depth": 18, "batch": 2, "size": 64, "classes": 3, "rounds": 1, "seconds": 0.0, "precisions": ("fp32",)}
    return replace(full, **tiny, matrix=64) if item.tiny else full


def resnet(item: Item, batch: int, *, compile: bool = False) -> None:
    """Each contender's img/s."""
    step.run_step_bench(resnet_bench(item, batch, compile=compile), item.device, lambda known: item.tell(**known))


def ssd(item: Item, *, compile: bool = False) -> None:
    """Each contender's img/s."""
    step_ssd.run_ssd_bench(ssd_bench(item, compile=compile), item.device, lambda known: item.tell(**known))


def maskrcnn(item: Item, batch: int) -> None:
    """Each contender's img/s."""
    bench = mask_bench(item.tiny, min(batch, 2) if item.tiny else batch, item.device)
    step_maskrcnn.run_maskrcnn_bench(replace(bench, system=item.system), item.device, lambda known: item.tell(**known))


def one_step(item: Item, workload: str) -> Callable[[], Any]:
    """Our step as the benchmark takes it, eager, bf16."""
    precision: Precision = "fp32" if item.tiny else "bf16"
    if workload == "resnet":
        bench = resnet_bench(item, 256)
        return step.our_step(bench, precision, *step.synthetic_photos(bench, item.device), item.device)
    if workload == "ssd":
        bench = ssd_bench(item)
        scene = synthetic_scene(bench.batch, bench.classes, bench.size, item.device)
        return step_ssd.our_step(bench, precision, scene, item.device)[1]
    bench = replace(mask_bench(item.tiny, 2 if item.tiny else 12, item.device), system=item.system)
    scene = step_maskrcnn.scene_of(bench, max(bench.positives)).to(item.device)
    return step_maskrcnn.our_contender(bench, precision, scene, item.device).step


def profile(item: Item) -> None:
    """The operations of one step by their time, with the kernels that were chosen; the trace comes back packed."""
    make_exact(False)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if item.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    for workload in ("resnet", "ssd", "maskrcnn"):

        def work(workload: str = workload) -> dict[str, Any]:
            take = one_step(item, workload)
            for _ in range(1 if item.tiny else 5):
                take()
            settle(item.device)
            with torch.profiler.profile(activities=activities, acc_events=True) as seen:
                take()
                settle(item.device)
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
    makers: Mapping[str, Callable[[], Callable[[], Any]]]
    if workload == "resnet":
        bench = resnet_bench(item, 256, compile=True)
        photos = step.synthetic_photos(bench, item.device)
        makers = step.contenders(bench, bench.precisions[0], *photos, item.device)
    else:
        bench = ssd_bench(item, compile=True)
        scene = synthetic_scene(bench.batch, bench.classes, bench.size, item.device)
        makers = step_ssd.contenders(bench, bench.precisions[0], scene, item.device)
    item.tell(first_loss=float(makers[contender]()()))


FILL = {
    "fill-resnet": ("resnet", "paceline compiled"),
    "fill-torchvision": ("resnet", "torchvision compiled"),
    "fill-ssd": ("ssd", "paceline compiled"),
    "fill-ssd-fused": ("ssd", "paceline compiled, fused heads"),
    "fill-ssd-plain": ("ssd", "plain compiled"),
}

if __name__ == "__main__":
    if "--tiny" in sys.argv:
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
