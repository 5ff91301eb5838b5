"""Training steps: all forms of a network compared with trials and peers in one process; and profiles of one step."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import trials
from against_cpu import mask_bench
from item import Item, insist, run

from paceline.config.system import Precision
from paceline.distributed.device.accelerators import synchronize
from paceline.distributed.device.compiler import set_recompile_limit
from paceline.distributed.device.setup import make_exact
from paceline.tools.bench import find_peers
from paceline.tools.bench.harness import OURS, Menu, select_possible
from paceline.tools.bench.step import StepBench, run_step_bench
from paceline.tools.bench.step_resnet import ResNetBench
from paceline.tools.bench.step_ssd import SSDBench

TINY: dict[str, Any] = {"rounds": 1, "seconds": 0.0, "matrix": 64, "block": 2}
SLOWEST = 10.0  # a peer that is this many times slower than ours is measured before the rounds only
MAX_OFF = 0.02  # of a trial's first loss, relative to the form that it changes: rounding to bf16 and fp16
FUSED, GRAPH = trials.FUSED, trials.GRAPH
# What all-NETWORK measures: paceline's forms (the first is required) and the peers.
FORMS = {
    "resnet": (
        OURS, "paceline Triton", "paceline CUDA graph", "paceline Triton CUDA graph", "paceline compiled", f"paceline {GRAPH}",
        "torchvision", "torchvision compiled", "timm",
    ),
    "ssd": (
        OURS, f"paceline{FUSED}", f"paceline Triton{FUSED}", f"paceline CUDA graph{FUSED}",
        f"paceline Triton CUDA graph{FUSED}", f"paceline compiled{FUSED}", f"paceline {GRAPH}{FUSED}",
        "plain eager channels_last",
    ),
    "maskrcnn": (
        OURS, "paceline Triton", "paceline CUDA graph", "paceline Triton CUDA graph", "torchvision",
    ),
}  # fmt: skip
BEST = {
    "resnet": "paceline compiled",
    "ssd": f"paceline compiled{FUSED}",
    "maskrcnn": f"paceline compiled backbone {trials.PARTS}",
}
# Compilations, in processes that run side by side.
FILL = {
    "fill-resnet": ("resnet", ("paceline compiled", "paceline products compiled CUDA graph")),
    "fill-resnet-more": ("resnet", ("paceline fp16 compiled CUDA graph", "paceline combined compiled CUDA graph")),
    "fill-torchvision": ("resnet", ("torchvision compiled",)),
    "fill-ssd": ("ssd", (f"paceline compiled{FUSED}", f"paceline compiled network {trials.PARTS}{FUSED}")),
    "fill-ssd-fp16": ("ssd", (f"paceline fp16 {GRAPH}{FUSED}",)),
}  # fmt: skip


def resnet(item: Item, batch: int = 256) -> ResNetBench:
    """ResNet-50 at 224 pixels."""
    full = ResNetBench(batch=batch, depth=50, size=224, **common(item))
    return replace(full, depth=18, batch=2, size=32, **TINY) if item.tiny else full


def ssd(item: Item, batch: int = 128) -> SSDBench:
    """SSD-ResNet34 at 300 pixels."""
    full = SSDBench(batch=batch, depth=34, size=300, classes=80, **common(item))
    return replace(full, depth=18, batch=2, size=64, classes=3, **TINY) if item.tiny else full


def maskrcnn(item: Item, batch: int = 12) -> StepBench:
    """Mask R-CNN, ResNet-50, at 800 x 1344 pixels."""
    bench = mask_bench(item.tiny, min(batch, 2) if item.tiny else batch, item.device)
    return replace(bench, **(common(item) | (TINY if item.tiny else {})))


def common(item: Item) -> dict[str, Any]:
    """Settings of each benchmark."""
    precisions: tuple[Precision, ...] = ("fp32" if item.cpu else "bf16",)
    return {
        "rounds": 2, "seconds": 0.5, "precisions": precisions, "system": item.system, "compile": True, "matrix": 8192,
        "part": "step", "slowest": SLOWEST,
    }  # fmt: skip


BENCHES: dict[str, Any] = {"resnet": resnet, "ssd": ssd, "maskrcnn": maskrcnn}


def with_trials(item: Item, bench: StepBench, network: str, *, alone: bool = False) -> StepBench:
    """The benchmark with the network's trials as further contenders: those of an item of their own, or the others."""
    chosen = tuple(trial for trial in trials.TRIALS[network] if trial.alone == alone)
    kept = (OURS, f"paceline {GRAPH}") if alone else FORMS[network]

    class WithTrials(type(bench)):
        def ours(self, precision: Precision, scene: Any, device: torch.device) -> Menu:
            menu = super().ours(precision, scene, device)
            return menu | trials.contenders(chosen, bench, precision, scene, device)

    names = [*kept, *(trial.name for trial in chosen)]
    if not item.triton:
        names = [name for name in names if "Triton" not in name]
    if not item.values and network != "resnet":  # the peers' steps follow values
        names = [name for name in names if name.startswith(OURS)]
    return WithTrials(**vars(replace(bench, only=tuple(names))))


def measured(item: Item, bench: StepBench, network: str) -> None:
    """Measure each contender. Fails if a trial's first loss is not that of the form which it changes."""
    set_recompile_limit(len(bench.only))
    facts = run_step_bench(bench, item.device, lambda known: item.tell(**known))
    (scene,) = facts["step"].values()
    losses, found = scene["first_losses"], {}
    for trial in trials.TRIALS[network]:
        # A CPU has no form as a graph to compare with.
        plain = trial.plain if trial.plain in losses else f"{OURS}{FUSED}" if network == "ssd" else OURS
        if item.values and trial.name in losses and plain in losses:
            off = abs(losses[trial.name] / losses[plain] - 1)
            found[trial.name] = {"first_loss_off": off, "agrees": off <= MAX_OFF or item.simulated}
    item.tell(what="trials", found=found)
    insist(found)


def everything(item: Item, network: str, batch: int = 0, *, alone: bool = False) -> None:
    """All forms of a network, its trials, and its peers. A small batch is for the forms that do not compile."""
    bench = BENCHES[network](item, **({"batch": batch} if batch else {}))
    measured(item, with_trials(item, replace(bench, compile=not batch), network, alone=alone), network)


def search(item: Item) -> None:
    """ResNet-50's steps if cuDNN may try all of its algorithms for a convolution, and not torch's ten.

    The choices are kept for a whole process, so that this is not a contender of another item.
    """
    torch.backends.cudnn.benchmark_limit = 0
    only = (OURS, "paceline CUDA graph", f"paceline {GRAPH}")
    measured(item, replace(resnet(item), only=only), "resnet")


def menu_of(item: Item, network: str) -> Menu:
    """The contenders of a network by name."""
    make_exact(False, varied=network == "maskrcnn")
    set_recompile_limit(16)
    bench = with_trials(item, BENCHES[network](item), network)
    *_, (_, scene) = bench.scenes(item.device)
    menu = bench.ours(bench.precisions[0], scene, item.device)
    if theirs := find_peers(bench.task):
        menu |= theirs.contenders(bench, bench.precisions[0], scene, item.device)
    return select_possible(menu, item.device, compile=True, only=bench.only)


def profiles(item: Item) -> None:
    """The operations of one step by their time, eager and in the best compiled form; the traces come back packed."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if item.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    for network in BENCHES:
        menu = menu_of(item, network)
        for form, name in (("eager", OURS), ("best", BEST[network] if BEST[network] in menu else OURS)):

            def work(network: str = network, form: str = form, name: str = name, menu: Menu = menu) -> Mapping[str, Any]:
                take = menu[name].make().step
                for _ in range(1 if item.tiny else 5):
                    take()
                synchronize(item.device)
                with torch.profiler.profile(activities=activities, acc_events=True) as seen:
                    take()
                    synchronize(item.device)
                return {"contender": name, **kept(item, seen, f"{network}-{form}")}

            item.attempt(f"{network} {form}", work)


def kept(item: Item, seen: Any, name: str) -> dict[str, Any]:
    """Keep the trace. -> launches, and the operations by their time"""
    on_gpu = item.device.type == "cuda"
    rows = sorted(seen.key_averages(), key=lambda row: -(row.self_device_time_total if on_gpu else row.self_cpu_time_total))
    trace = item.scratch / f"{name}.json"
    seen.export_chrome_trace(str(trace))
    (item.keep / f"trace-{name}.json.gz").write_bytes(gzip.compress(trace.read_bytes()))
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


def fill(item: Item, network: str, names: tuple[str, ...]) -> None:
    """Compile contenders, so that their kernels are in inductor's cache; several such processes run side by side."""
    menu = menu_of(item, network)
    for name in filter(menu.get, names):
        item.tell(what=name, first_loss=float(menu[name].make().step()))


if __name__ == "__main__":
    if "--cpu" in sys.argv:
        # A CPU's forms of the losses follow the objects there are, and would be compiled anew each step, for minutes; that the
        # accelerator's forms are one graph is tested without one (tests/bench).
        torch._dynamo.config.disable = True  # pyright: ignore[reportPrivateImportUsage]
    run({
        **{f"all-{network}": partial(everything, network=network) for network in BENCHES},
        "autotune": partial(everything, network="resnet", alone=True),
        "resnet-32": partial(everything, network="resnet", batch=32),
        "maskrcnn-4": partial(everything, network="maskrcnn", batch=4),
        "search": search,
        "profiles": profiles,
        **{name: partial(fill, network=network, names=names) for name, (network, names) in FILL.items()},
    })  # fmt: skip
