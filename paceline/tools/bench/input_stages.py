"""`paceline bench input RECIPE --data DIR`: what a recipe's own input costs, stage by stage, and whether it feeds an accelerator.

Each stage is measured alone: by one worker (what an image costs) and by all at once (what they reach together). Then
all of it together, as training does it: the loader. Beside them stand two bare limits, the decoder on whole photos from memory, and
the disk with the kernel's cache of these photos dropped first. With `--emulate` an accelerator stands at the end that takes a batch,
sleeps as long as its step would take, and takes the next one: its utilisation is the share of the time that it computes, as
MLPerf Storage defines it.

Letters: B images of a forward   H, W pixels of the network's input
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch

from paceline._utils.platform import count_cpus
from paceline.config.recipe import Evaluation, Recipe
from paceline.config.system import System
from paceline.data.batch import Batch
from paceline.data.index.records import RecordReader
from paceline.data.loader.device_buffers import DeviceBuffer, get_stream_module
from paceline.data.loader.sampler import permutation
from paceline.data.storage.store import get_scheme
from paceline.data.transforms.decode import SampleSpec, decode_alone
from paceline.data.transforms.image_io import read_header
from paceline.data.transforms.sample import decode_and_transform, with_partners
from paceline.data.workers.crew import WorkerCrew
from paceline.distributed.device.accelerators import synchronize
from paceline.models.datamodule import open_configured_records
from paceline.models.task import Task
from paceline.tools.bench.input_advice import Demand
from paceline.tools.bench.input_cases import cpu_seconds, task_loader

# A forward has about so many pixels, and at most so many images: enough that handing a batch over costs nothing.
FORWARD_PIXELS, MAX_IMAGES = 2**23, 64
SAMPLES = 256  # photos that the stages are measured on, again and again
STEPS = 20_000  # of the recipe's order that the loader could bring; no measurement lasts so long
MIN_STEPS = 6  # of the loader that are measured
READY_SECONDS = 2e-4  # a batch that comes so soon was ready
Work = Callable[[int, np.ndarray], Any]  # (number of a sample, memory (H, W, 3) of the worker's own)


class StageSamples:
    """The first samples of a run, at each stage of their way, in memory."""

    def __init__(self, task: Task, system: System) -> None:
        epochs, indices = task.data.samples(0)
        numbers = task.data.train_numbers[indices]
        self.fit = task.data.shapes.of_step(0, numbers)
        # Read as training reads: through the caches that the system has.
        self.records = open_configured_records(task.data.train_index, system)
        self.exif = task.recipe.input.exif
        self.draw_with = partial(task.data.draw_train, self.fit)
        self.epochs, self.indices = (result.tolist()[:SAMPLES] for result in (epochs, numbers))
        self.data = [self.records.read(index) for index in self.indices]
        self.draws = [self._drawn(position) for position in range(len(self))]
        self.mean_bytes = statistics.fmean(map(len, self.data))
        self.mean_megapixels = statistics.fmean(draw.header.height * draw.header.width / 1e6 for draw in self.draws)

    def __len__(self) -> int:
        return len(self.indices)

    def _drawn(self, position: int, _: Any = None) -> SampleSpec:
        index, data = self.indices[position], self.data[position]
        name = self.records.name(index)
        draw = self.draw_with(self.epochs[position], index, read_header(data, name, self.exif), name)
        return with_partners(draw, self.records.read_many, self.exif)

    def stages(self) -> dict[str, Work]:
        """What is done to one sample at each stage, given what the stage before it left."""
        return {"read": self._read, "draw": self._drawn, "decode": self._decode, "decode and augment": self._render}

    def _read(self, index: int, _: Any = None) -> bytes:
        return self.records.read(self.indices[index])

    def _render(self, index: int, out: np.ndarray) -> None:
        decode_and_transform(self.data[index], self.draws[index], out)

    def _decode(self, index: int, _: Any = None) -> None:
        draw = self.draws[index]
        for data, each in ((self.data[index], draw), *((other.data, other.draw) for other in draw.others)):
            decode_alone(data, each)


def bench_task_recipe(recipe: Recipe) -> Recipe:
    """The recipe's data treatment, with a batch and a length of the benchmark's own."""
    from paceline.models.registry import get_workload

    pixels = prod(get_workload(recipe.task).network.largest(recipe))
    batch = 1
    while batch * 2 <= MAX_IMAGES and batch * 2 * pixels <= FORWARD_PIXELS:
        batch *= 2
    model = (
        replace(recipe.model, loss_normalizer_images=0) if hasattr(recipe.model, "loss_normalizer_images") else recipe.model
    )
    return Recipe(
        task=recipe.task, model=model, input=recipe.input, target_data=recipe.target_data, seed=recipe.seed,
        global_batch_size=batch, bn_batch_size=batch, max_images=STEPS * batch, eval=Evaluation(unit="fraction"),
    )  # fmt: skip


def measure_stages(
    task: Task,
    system: System,
    *,
    bare: RecordReader,
    threads: int,
    device: torch.device,
    seconds: float,
    wanted: Demand | None,
) -> dict[str, Any]:
    """All of it, for a task that was opened with `bench_task_recipe`.

    bare     the training photos without `system.ram_cache`, for the disk's own speed
    threads  of the loader
    seconds  for each measurement
    -> what `paceline bench input RECIPE --output` writes, but for the machine's and the command's name
    """
    samples = StageSamples(task, system)
    alone = {name: measure_stage(work, samples, threads, seconds) for name, work in samples.stages().items()}
    batch, device_seconds = _batch_costs(task, samples, device, seconds)
    with task_loader(task, system, threads, device) as loader:
        together = run_loader(loader, seconds, 0.0, system.prefetch_steps + 2)
    busy = None
    if wanted is not None:
        with task_loader(task, system, threads, device) as loader:
            busy = run_loader(loader, seconds, task.recipe.global_batch_size / wanted.rate, system.prefetch_steps + 2)
    return {
        "photos": {
            "train_images": task.data.train_images,
            "mean_bytes": samples.mean_bytes,
            "mean_megapixels": samples.mean_megapixels,
        },
        "input": [*samples.fit.shape],
        "decoder": task.recipe.input.decoder,
        "batch": task.recipe.global_batch_size,
        "num_workers": threads,
        "io_threads": system.io_threads,
        "cores": count_cpus(),
        "alone": alone | {"batch": {"cpu_microseconds": batch}},
        "transfer_microseconds": device_seconds,
        "together": together,
        "limits": {"decoder": bare_decoder(samples, threads, seconds), "disk": bare_disk(samples, bare, threads)},
        "emulated": None
        if wanted is None or busy is None
        else {
            "accelerators": wanted.name,
            "images_per_second": wanted.rate,
            "delivered_images_per_second": busy["images_per_second"],
            "utilisation": busy["busy"],
            "cores_needed": wanted.rate * together["cpu_microseconds"] / 1e6,
        },
    }


def measure_stage(work: Work, samples: StageSamples, threads: int, seconds: float) -> dict[str, float]:
    """A stage by one worker, then by all.

    -> microseconds of an image: alone_microseconds of one worker by the clock, alone_cpu_microseconds of them computing (the rest it
    waited), cpu_microseconds while all workers work, whose cores share units and memory; images_per_second of all together
    """
    walk = partial(_walk, work, samples.fit.shape, len(samples), seconds / 2)
    wall, cpu, images = walk(1, 0)
    with WorkerCrew(partial(walk, threads), threads, processes=samples.records.portable) as crew:
        parts = list(crew.map_ordered(((part,) for part in range(threads)), ahead=threads))
    busy = sum(cpu for _, cpu, _ in parts) / sum(count for _, _, count in parts)
    rate = sum(count / took for took, _, count in parts)
    return {
        "alone_microseconds": wall / images * 1e6,
        "alone_cpu_microseconds": cpu / images * 1e6,
        "cpu_microseconds": busy * 1e6,
        "images_per_second": rate,
    }


def _walk(
    work: Work, shape: tuple[int, int], samples: int, seconds: float, step: int, first: int
) -> tuple[float, float, int]:
    """Go round the samples that long; -> seconds, CPU-seconds of this thread, images."""
    out = np.empty((*shape, 3), np.uint8)
    work(first % samples, out)  # what a worker makes once
    index, images = first, 0
    began, cpu = time.perf_counter(), time.thread_time()
    while time.perf_counter() - began < seconds or not images:
        work(index % samples, out)
        index, images = index + step, images + 1
    return time.perf_counter() - began, time.thread_time() - cpu, images


def _batch_costs(task: Task, samples: StageSamples, device: torch.device, seconds: float) -> tuple[float, float | None]:
    """Microseconds an image of putting a batch together once its pixels are there, of this thread's CPU, and of its way to the
    device by the clock (None: it stays here).
    """
    pinned = device.type == "cuda"
    count = len(samples)
    images = torch.zeros((count, *samples.fit.shape, 3), dtype=torch.uint8, pin_memory=pinned).permute(0, 3, 1, 2)
    labels, indices = [draw.label for draw in samples.draws], torch.tensor(samples.indices)
    make = partial(task.workload.data().batch, images, labels, indices)
    batch: Batch = make()
    assembling = _repeated(make, seconds / 4, time.thread_time) / count * 1e6
    if device.type == "cpu":
        return assembling, None

    streams = get_stream_module(device)
    landing = None if streams is None else DeviceBuffer(device, streams)  # as a slot of the loader's ring has

    def copy() -> None:
        batch.to(device) if landing is None else landing.copy_async([batch])
        synchronize(device)

    copy()
    return assembling, _repeated(copy, seconds / 4, time.perf_counter) / count * 1e6


def _repeated(work: Callable[[], Any], seconds: float, clock: Callable[[], float]) -> float:
    """Seconds of one call, by this clock."""
    began, calls = clock(), 0
    while clock() - began < seconds or not calls:
        work()
        calls += 1
    return (clock() - began) / calls


def run_loader(loader: Any, seconds: float, step_seconds: float, warm_up: int) -> dict[str, float]:
    """Take batches that long, and sleep `step_seconds` after each as an accelerator would compute.

    warm_up  steps taken first, without sleep: then no batch is ready beforehand, and all memory has been touched
    -> images_per_second; cpu_microseconds an image, workers' included; busy, the share of the time that the accelerator computed
    """
    for _ in range(warm_up):
        next(loader)
    began, cpu, steps, images = time.perf_counter(), cpu_seconds(), 0, 0
    computes_until = requested = began
    while requested - began < seconds or steps < MIN_STEPS:
        images += sum(map(len, next(loader)[1]))
        steps += 1
        came = time.perf_counter()
        # A sleep ends late, which an accelerator does not: where the batch was there, the step began when the last one ended.
        computes_until = step_seconds + (computes_until if came - requested < READY_SECONDS else max(came, computes_until))
        if step_seconds:
            time.sleep(max(0.0, computes_until - came))
        requested = time.perf_counter()
    wall = max(requested, computes_until) - began
    return {
        "images_per_second": images / wall,
        "cpu_microseconds": (cpu_seconds() - cpu) / images * 1e6,
        "busy": steps * step_seconds / wall,
    }


def bare_decoder(samples: StageSamples, threads: int, seconds: float) -> dict[str, float] | None:
    """libjpeg-turbo on whole photos, from memory, nothing else; None where no photo is a plain JPEG."""
    plain = [data for data, draw in zip(samples.data, samples.draws) if draw.header.plain_jpeg]
    if not plain:
        return None
    return measure_stage(partial(_decode_whole, plain), samples, threads, seconds)


def _decode_whole(photos: list[bytes], index: int, _: Any) -> None:
    import simplejpeg

    simplejpeg.decode_jpeg(photos[index % len(photos)])


def bare_disk(samples: StageSamples, records: RecordReader, threads: int) -> dict[str, float] | None:
    """Reading each sample once in an order of no meaning, its pages dropped from the kernel's cache before; None for a far store.

    A disk with a cache of its own, as that of a virtual machine, may still not be asked.
    """
    files = {records.path(index) for index in samples.indices}
    if not hasattr(os, "posix_fadvise") or any(get_scheme(name) for name in files):
        return None
    for name in files:
        descriptor = os.open(name, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    order = [samples.indices[location] for location in permutation(len(samples), seed=1, epoch=0)]
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        read = sum(map(len, pool.map(records.read, order)))
    took = time.perf_counter() - began
    return {"images_per_second": len(order) / took, "mib_per_second": read / took / 2**20}
