"""One rank's part of `paceline check-performance`: what its device and cores reach in the work of training, all ranks at once.

Three small tests say what a core or a device is (`TESTS`; a CPU's per CPU-second, so that they are the same beside a busy
neighbor), then every part of training is timed in rounds: each workload's step on a made-up batch, its photos to batches, its step
on those batches, box scores. Last come the disk, with the kernel's cache of the photos dropped, and an all-reduce.
The photos are the built-in shapes, rendered at a photo's size where the user's data lie. On a CPU the steps are in fp32 and of
smaller batches, so that one table serves CPUs with and without bf16.
"""

from __future__ import annotations

import math
import os
import socket
import statistics
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paceline._utils.platform import count_cpus, get_allowed_cpus
from paceline.config.run import RunOptions
from paceline.config.system import System
from paceline.data.shapes.render import render_shapes
from paceline.distributed.comm.benchmark import OURS, CommMessage, measure
from paceline.distributed.comm.launcher import Launch
from paceline.distributed.comm.world import DistContext, all_min
from paceline.distributed.device.accelerators import get_device_name
from paceline.distributed.device.host_memory import set_malloc_trim_threshold
from paceline.distributed.device.provenance import get_cpu_name
from paceline.distributed.device.setup import TYPES, make_exact, set_threads
from paceline.distributed.device.timing import CallSeconds, measure_seconds
from paceline.models.metrics.coco import score_boxes
from paceline.models.registry import WORKLOADS, gradient_sizes
from paceline.tools.bench.harness import run_interleaved
from paceline.tools.bench.input_cases import task_loader
from paceline.tools.bench.input_stages import STEPS, StageSamples, bare_disk, bench_task_recipe, run_loader
from paceline.tools.bench.scoring import make_synthetic_detections
from paceline.tools.bench.step import StepBench, make_step, make_step_function, to_memory_format
from paceline.tools.bench.step_maskrcnn import MaskRCNNBench
from paceline.tools.bench.step_resnet import ResNetBench
from paceline.tools.bench.step_ssd import SSDBench
from paceline.training.open_data import open_task

ROUNDS = 3
# Of the time that is asked for, what remains for the rounds: the rest goes to rendering, compiling and first steps.
MEASURED = 0.7
PHOTOS, PHOTO_SIDE = 192, 480
SCORED = 200  # images, of 100 detections each
TEST_SECONDS, TEST_ROUNDS = 0.2, 5
ALL_REDUCE = "classification"  # whose gradient is exchanged
# An accelerator with less memory than this takes smaller batches.
ROOMY_GIB = 40
Say = Callable[[str], None]


def qualify_benches(system: System) -> list[StepBench]:
    """Each workload's training step, as large as the published ones on an accelerator, smaller on a CPU."""
    common: dict[str, Any] = {"rounds": ROUNDS, "seconds": 0.0, "system": system, "precisions": (system.precision,)}
    small = system.device == "cpu"
    share = 1 if system.memory_gib >= ROOMY_GIB else 2 if system.memory_gib >= ROOMY_GIB / 2 else 4
    batches = (8, 2, 1) if small else (256 // share, 112 // share, 8 // share)
    height, width = (320, 512) if small else (800, 1216)
    return [
        ResNetBench(batch=batches[0], depth=50, size=224, **common),
        SSDBench(batch=batches[1], depth=34, size=300, classes=80, **common),
        MaskRCNNBench(batch=batches[2], height=height, width=width, classes=80, objects=7, positives=(30,), **common),
    ]


def measure_rank(
    world: DistContext, launch: Launch, system: System, *, minutes: float, folder: Path, say: Say
) -> dict[str, Any]:
    """This rank's facts for JSON; all ranks call it at the same time.

    minutes  that all of it may take, about: no round begins later
    folder   where the photos are, or are rendered to
    """
    until = time.monotonic() + 60 * minutes
    make_exact(False)  # as in training, like the next
    set_malloc_trim_threshold(world.device)
    cpu = world.device.type == "cpu"
    own: dict[str, Any] = {
        **{"rank": launch.rank, "node": launch.node, "host": socket.gethostname(), "cores": count_cpus()},
        **{"kind": world.device.type, "name": "CPU" if cpu else str(world.device)},
        "device": get_cpu_name() if cpu else get_device_name(world.device),
        "threads": (threads := set_threads(system, world)["intra_op"]),
        "cores_own": min(threads, count_cpus() / world.local_world),  # of the cores: more ranks than those crowd each other
    }
    say("tests")
    world.barrier()
    own["tests"] = {name: test(world.device) for name, test in TESTS.items()}
    works: dict[str, Callable[[float], Any]] = {}
    for bench in qualify_benches(system):
        say(f"{bench.task}: reading images, first steps")
        for name, work in _works(bench, world, system, folder):
            works[f"{bench.task}/{name}"] = work
    score = partial(score_boxes, *make_synthetic_detections(SCORED, 100, 80))
    works["scores"] = lambda seconds: _each(measure_seconds(score, seconds, torch.device("cpu")), SCORED)
    disk = works.pop("classification/disk")
    seconds = 60 * minutes * MEASURED / ROUNDS / len(works)

    def timed(name: str) -> CallSeconds:
        world.barrier()
        say(name)
        return works[name](seconds)

    before, spent = read_counters(), time.process_time()
    rounds: dict[str, list[CallSeconds]] = {}
    for rounds in run_interleaved({name: partial(timed, name) for name in works}, ROUNDS):  # noqa: B007
        if not all_min(world, int(time.monotonic() < until)):
            break
    own["measured"] = {
        name: {
            "rate": 1 / statistics.median(each.wall for each in taken),
            "cpu_seconds": statistics.median(each.cpu for each in taken),
            "rates": [1 / each.wall for each in taken],
        }
        for name, taken in rounds.items()
    }
    world.barrier()
    if launch.local_rank == 0:
        say("disk")
        rounds_of_it = [result["images_per_second"] for result in disk(0.0) if result]
        own["disk"] = max(rounds_of_it, default=0.0)  # what is read in a blink is easily held up by a neighbor
    world.barrier()
    own["comm"] = _all_reduce(world) if world.world > 1 else None
    world.barrier()
    own["cpu"] = time.process_time() - spent
    own["counters"] = counters_since(before)
    return own


def _works(
    bench: StepBench, world: DistContext, system: System, folder: Path
) -> Iterator[tuple[str, Callable[[float], Any]]]:
    """What is timed of a workload: (name, seconds -> of one image); of classification also its disk."""
    device, precision = world.device, system.precision
    compiled = system.compile == "on" and not WORKLOADS[bench.task].network.no_compile
    forms: dict[str, Any] = {"compile": compiled, "graph": system.cuda_graph == "on"}
    *_, (_, scene) = bench.scenes(device)
    made = make_step(bench, precision, scene, device, **forms)
    for _ in range(2):
        made.step()
    yield "step", lambda seconds: _each(measure_seconds(made.step, seconds, device), bench.batch)
    recipe = bench.recipe()
    if isinstance(bench, MaskRCNNBench) and bench.height < 800:
        recipe = replace(recipe, input=replace(recipe.input, min_size=(bench.height,), max_size=bench.height * 1333 // 800))
    recipe = replace(
        bench_task_recipe(recipe), global_batch_size=bench.batch, bn_batch_size=bench.batch, max_images=STEPS * bench.batch
    )
    kind = WORKLOADS[bench.task].kind
    path = render_test_images(world, folder, "classes" if kind == "class-folder" else "boxes")
    task = open_task(recipe, RunOptions(data=str(path)), world)
    threads = set_threads(system, world)["loader"]
    loader = partial(task_loader, task, system, threads, device)

    def photos_to_batches(seconds: float) -> CallSeconds:
        with loader() as batches:
            result = run_loader(batches, seconds, 0.0, system.prefetch_steps + 2)
        return CallSeconds(1 / result["images_per_second"], result["cpu_microseconds"] / 1e6)

    yield "input", photos_to_batches
    step = make_step_function(bench, precision, bench.model(device).train(), device, **forms)

    def on_photos(seconds: float) -> CallSeconds:
        with loader() as batches:
            take = lambda: step(to_memory_format(next(batches)[1][0], system))  # noqa: E731
            take()
            return _each(measure_seconds(take, seconds, device), bench.batch)

    yield "photos", on_photos
    if bench.task == "classification":
        samples = StageSamples(task, system)
        yield "disk", lambda _: [bare_disk(samples, task.data.train_index.records, threads) for _ in range(ROUNDS)]


def render_test_images(world: DistContext, folder: Path, kind: Any) -> Path:
    """The built-in shapes at a photo's size, rendered below `folder` by each node's first rank where they are not there."""
    path = folder / f"paceline-qualify-{kind}-{PHOTOS}-{PHOTO_SIDE}px"
    if world.local_rank == 0 and not path.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        render_shapes(kind, path, train=PHOTOS, val=16, side=PHOTO_SIDE)
    world.barrier()
    return path


def _each(taken: CallSeconds, images: int) -> CallSeconds:
    """Of one image."""
    return CallSeconds(taken.wall / images, taken.cpu / images)


def _all_reduce(world: DistContext) -> dict[str, Any]:
    sizes = sum(gradient_sizes(ALL_REDUCE))
    result = measure(world, [CommMessage("all-reduce", "gradient", (sizes,))], 1.0)
    (row,) = result["rows"]
    rate = row["seconds"][OURS]["bus_bandwidth"] / 1e9
    return {"backend": result["backend"], "bytes": row["bytes"], "right": result["sums_are_right"], "rate": rate}


def _best(work: Callable[[], Any], amount: float, device: torch.device) -> float:
    """The most of several rounds: `amount` of a call by a second of the device, of a CPU by a CPU-second."""
    work()
    rounds = [measure_seconds(work, TEST_SECONDS, device) for _ in range(TEST_ROUNDS)]
    return amount / min(taken.cpu if device.type == "cpu" else taken.wall for taken in rounds)


def _matmul(device: torch.device) -> float:
    """GFLOP/s of fp32 in the core's caches; of an accelerator TFLOP/s in half precision."""
    side, number = (512, torch.float32) if device.type == "cpu" else (8192, TYPES["fp16"])
    left, right = (torch.randn(side, side, device=device).to(number) for _ in range(2))
    return _best(lambda: left @ right, 2 * side**3 / (1e9 if device.type == "cpu" else 1e12), device)


def _copy(device: torch.device) -> float:
    """GB/s, read and written, of main memory; of an accelerator TB/s of its own."""
    numbers = 2**24 if device.type == "cpu" else 2**28
    source, target = (torch.ones(numbers, device=device) for _ in range(2))
    return _best(lambda: target.copy_(source), 2 * 4 * numbers / (1e9 if device.type == "cpu" else 1e12), device)


def _inflate(device: torch.device) -> float:
    """MB/s of zlib on one thread: bits, tables and branches, as a photo's decoding has them. Always of a core."""
    draws = torch.randint(0, 40, (2**19,), generator=torch.Generator().manual_seed(0))
    text = (draws**2 // 40).to(torch.uint8).numpy().tobytes()
    packed = zlib.compress(text, 6)
    return _best(lambda: zlib.decompress(packed), len(text) / 1e6, torch.device("cpu"))


TESTS = {"matmul": _matmul, "copy": _copy, "inflate": _inflate}


# What takes a machine's cores away from those who compute on it: other processes, a limit of the control group, the host above.
#
# Sources: Linux, proc_pid_stat(5) and proc_stat(5); Documentation/admin-guide/cgroup-v2.rst (cpu.max, cpu.stat) and
# scheduler/sched-bwc.rst (version 1: cpu.cfs_quota_us, cpu.stat).

CGROUPS, OWN, STAT = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/stat")
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100  # a second, of /proc/stat


def read_counters() -> dict[str, float]:
    """Counters of this process's cores and of its group that only grow, in seconds, except `throttled`.

    wall; busy: CPU-seconds of all processes there, NaN where that is unknown; stolen: CPU-seconds that a host gave to others;
    throttled: periods in which the group had used up its share; throttled_seconds: that its processes waited for that
    """
    result = {"wall": time.monotonic(), "busy": math.nan, "stolen": 0.0, "throttled": 0, "throttled_seconds": 0.0}
    own = {f"cpu{number}" for number in get_allowed_cpus()}
    with suppress(OSError, ValueError):  # a sandbox's has other lines, or there is none
        lines = [line.split() for line in STAT.read_text().splitlines()]
        # user nice system idle waiting hard soft stolen; a guest's time, further on, is in the user's.
        rows = [[int(word) / TICKS for word in line[1:9]] for line in lines if line and line[0] in own]
        if rows and all(len(row) == 8 for row in rows):
            result["busy"] = sum(sum(row[:3]) + sum(row[5:7]) for row in rows)
            result["stolen"] = sum(row[7] for row in rows)
    for folder in find_cgroups():
        with suppress(OSError, ValueError):
            counts = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
            result["throttled"] += int(counts.get("nr_throttled", 0))
            result["throttled_seconds"] += int(counts.get("throttled_usec", 0)) / 1e6
            result["throttled_seconds"] += int(counts.get("throttled_time", 0)) / 1e9
    return result


def counters_since(before: Mapping[str, float]) -> dict[str, float]:
    """What came since then, as facts for JSON, and the group's `read_cpu_quota`; `busy` is -1 where it is unknown."""
    result = {name: value - before[name] for name, value in read_counters().items()}
    return {**result, "busy": -1.0 if math.isnan(result["busy"]) else result["busy"], "quota": read_cpu_quota()}


def find_cgroups(root: Path = CGROUPS, own: Path = OWN) -> Iterator[Path]:
    """Folders of this process's group and of those around it, the innermost first, of either version.

    A container sees its own group as the root, whatever the path says.
    """
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, names, path = line.split(":", 2)
            if names and "cpu" not in names.split(","):
                continue
            for base in [root / names, root / "cpu"] if names else [root]:
                inner = base / path.strip("/")
                if base.is_dir():
                    yield from (
                        folder for folder in (inner, *inner.parents) if folder.is_relative_to(base) and folder.is_dir()
                    )
                    break


def read_cpu_quota(root: Path = CGROUPS, own: Path = OWN) -> float:
    """Cores that the tightest of the groups may use at a time; 0 where none is limited."""
    least = math.inf
    for folder in find_cgroups(root, own):
        with suppress(OSError, ValueError):
            if (folder / "cpu.max").is_file():
                most, period = (folder / "cpu.max").read_text().split()
            else:
                most, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
            if most not in ("max", "-1"):
                least = min(least, int(most) / int(period))
    return 0.0 if math.isinf(least) else least
