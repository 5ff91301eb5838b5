"""Whole processes by turns, a contender each: python measure.py SECONDS ROUNDS; one alone: python measure.py SECONDS 0 NAME PRECISION.

ours         paceline's step as `bench step` takes it, with memory kept as in a run
torchvision  its ResNet-50 in the loop that a careful user writes, with glibc as it is
kept         the same loop with memory kept
mxnet        MXNet's own loop in fp32, where the variable MXNET_PYTHON names a Python that has it
"""

import os
import statistics
import subprocess
import sys
import time

NAMES, PRECISIONS, BATCH = ("ours", "torchvision", "kept"), ("bf16", "fp32"), 8
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # for all alike (results/openmp-waiting)


def alone(name: str, precision: str, seconds: float) -> None:
    """Print images/s, system seconds and pages handed out a step."""
    import resource

    import torch

    from benchmarks.classification import plain_step
    from paceline.config.system import System
    from paceline.distributed.device.host_memory import set_malloc_trim_threshold
    from paceline.tools.bench.step import make_step
    from paceline.tools.bench.step_resnet import ResNetBench

    device, system = torch.device("cpu"), System(device="cpu", channels_last=True)
    bench = ResNetBench(batch=BATCH, rounds=1, seconds=seconds, precisions=(precision,), system=system, depth=50, size=224)
    if name != "torchvision":
        set_malloc_trim_threshold(device)
    ((_, scene),) = bench.scenes(device)
    step = (
        make_step(bench, precision, scene, device)
        if name == "ours"
        else plain_step(bench, precision, "torchvision", scene, device)
    ).step
    for _ in range(3):
        step()
    before, began, steps = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        step()
        steps += 1
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    print(
        BATCH * steps / wall, (after.ru_stime - before.ru_stime) / steps, (after.ru_minflt - before.ru_minflt) / steps,
        after.ru_maxrss / 1024,
    )  # fmt: skip


def main(seconds: str, rounds: int) -> None:
    """A table of medians, and the ratios to torchvision's of the same round."""
    mxnet = os.environ.get("MXNET_PYTHON")
    for precision in PRECISIONS:
        names = (*NAMES, "mxnet") if mxnet and precision == "fp32" else NAMES
        found: dict[str, list[list[float]]] = {name: [] for name in names}
        for turn in range(rounds):
            first = turn % len(names)
            for name in (*names[first:], *names[:first]):
                command = [sys.executable, __file__, seconds, "0", name, precision]
                if name == "mxnet":
                    command = [mxnet, os.path.join(os.path.dirname(__file__), "mxnet_loop.py"), seconds]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found[name].append([float(word) for word in done.stdout.split()])
        for name, runs in found.items():
            rate, system, pages, memory = (statistics.median(values) for values in zip(*runs))
            ratios = sorted(run[0] / theirs[0] for run, theirs in zip(runs, found["torchvision"]))
            print(
                f"{precision} {name:12} {rate:6.2f} images/s, {statistics.median(ratios):.3f} of torchvision's "
                f"({ratios[0]:.3f} to {ratios[-1]:.3f}), a step: {system:.3f} s of the system, {pages:,.0f} pages; {memory:,.0f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[2] == "0":
        alone(sys.argv[3], sys.argv[4], float(sys.argv[1]))
    else:
        main(sys.argv[1], int(sys.argv[2]))
