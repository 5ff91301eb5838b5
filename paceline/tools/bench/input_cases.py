"""Our contenders of `bench input`: each turns photo files into batches, and is asked for one at a time.

A contender is a context manager around `take() -> images in the batch`; only `bare_decode` makes none. Each starts with the data
in the page cache and draws its samples without end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.config.plan import make_plan
from paceline.config.resnet import ImageInput
from paceline.config.system import System
from paceline.data.index.index import file_per_record_arrays, make_index
from paceline.data.index.records import RecordReader, record_digest
from paceline.data.loader.loader import Loader
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.loader.sampler import batch_indices, stream_positions
from paceline.data.transforms.decode import Decoder, SampleSpec
from paceline.data.transforms.image_io import Header, read_header
from paceline.data.transforms.sample import sample_training_spec
from paceline.models.task import InputRank, Task

BATCH = 64
Take = Callable[[], int]


def open_file_records(paths: list[Path]) -> RecordReader:
    """These files, read as those of a prepared data set: their bytes are compared."""
    zeros, lengths = np.zeros(len(paths)), np.array([path.stat().st_size for path in paths])
    names = [os.fsencode(path.absolute()) for path in paths]
    digests = {"digests": np.array([record_digest(path.read_bytes()) for path in paths], np.uint64)}
    arrays = file_per_record_arrays(names, lengths=lengths, labels=zeros, heights=zeros, widths=zeros, extra=digests)
    return make_index(arrays, Path("/"), "train").records


def draw_unlabeled(settings: ImageInput, epoch: int, index: int, header: Header, name: str) -> SampleSpec:
    """A training image of class 0."""
    return sample_training_spec(header, name, 0, SampleRng(0, epoch, index), settings)


@contextmanager
def paceline_loader(
    records: RecordReader, size: int, threads: int, decoder: Decoder, io_threads: int = 0, numbers: np.ndarray | None = None
) -> Iterator[Take]:
    """paceline's loader on the CPU, with this many workers; on the records of these numbers, None: on all."""
    chosen = np.arange(len(records)) if numbers is None else numbers

    def schedule(step: int) -> list[tuple[np.ndarray, np.ndarray]]:
        epochs, indices = batch_indices(len(chosen), stream_positions(step=step, global_batch_size=BATCH), seed=0)
        return [(epochs, chosen[indices])]

    with Loader(
        records=records,
        draw=partial(draw_unlabeled, ImageInput(image_size=size, decoder=decoder)),
        schedule=schedule,
        threads=threads,
        processes=True,
        io_threads=io_threads,
        image_shape=(size, size, 3),
        device=torch.device("cpu"),
    ) as loader:
        yield lambda: len(next(loader)[1][0])


@contextmanager
def task_batches(task: Task, threads: int, check: bool = True) -> Iterator[Take]:
    """The batches of a training run on the CPU, with so many threads; check: `--system.verify-checksums`."""
    with task_loader(task, System("cpu", verify_checksums=check), threads, torch.device("cpu")) as loader:
        yield lambda: len(next(loader)[1][0])


def task_loader(task: Task, system: System, threads: int, device: torch.device) -> Any:
    """A training run's own loader, a batch a forward."""
    recipe = task.recipe
    system = replace(system, micro_batch_size=recipe.global_batch_size)
    images = {"train_images": task.data.train_images, "val_images": task.data.val_images}
    plan = make_plan(recipe, system, world=1, most=recipe.global_batch_size, **images)
    return task.data.train_loader(plan, system, InputRank(0, 1, device, threads), first=0, one_batch=False)


@contextmanager
def bare_decode(paths: list[Path], threads: int) -> Iterator[Take]:
    """libjpeg-turbo through simplejpeg, whole photos at full size, bytes in memory, nothing else: the usual ceiling.

    Decoding less than the whole photo goes past it.
    """
    jpegs = [data for data in (path.read_bytes() for path in paths) if read_header(data, "photo").plain_jpeg]
    photos = cycle(jpegs)
    with ThreadPoolExecutor(threads) as pool:

        def take() -> int:
            some = [next(photos) for _ in range(BATCH)]
            for _ in pool.map(_decode_all, [some[i::threads] for i in range(threads)]):
                pass
            return len(some)

        yield take


def _decode_all(jpegs: list[bytes]) -> None:
    import simplejpeg

    for jpeg in jpegs:
        simplejpeg.decode_jpeg(jpeg)


# What this process and all processes below it take together. Linux only: it is read from /proc.


def processes() -> Iterator[Path]:
    """The folders in /proc of this process and of all below it."""
    waiting = [Path("/proc/self").resolve()]
    while waiting:
        process = waiting.pop()
        try:
            tasks = [(task / "children").read_text().split() for task in (process / "task").iterdir()]
        except OSError:  # it ended
            continue
        yield process
        waiting += [Path("/proc") / child for children in tasks for child in children]


def cpu_seconds() -> float:
    """User and system time so far, of processes that were waited for too."""
    import resource

    reaped, ticks = resource.getrusage(resource.RUSAGE_CHILDREN), 0
    for process in list(processes())[1:]:
        with suppress(OSError):
            # After "(name)": state, parent, ...; user, system and those of its reaped children are fields 14 to 17.
            ticks += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:15]))
    return time.process_time() + reaped.ru_utime + reaped.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def voluntary_switches() -> int:
    """How often a thread gave its core up so far: it slept, or waited for a lock."""
    switches = 0
    for process in processes():
        with suppress(OSError):
            for task in (process / "task").iterdir():
                switches += int((task / "status").read_text().rpartition("nonvoluntary")[0].split()[-1])
    return switches


def memory_mib() -> float:
    """Proportional set size: memory that several processes share counts once."""
    lines: list[str] = []
    for process in processes():
        with suppress(OSError):
            lines += (process / "smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
