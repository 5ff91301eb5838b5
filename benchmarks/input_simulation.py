"""The loader without pictures: how close threads come to the ideal rate, and whether memory stays flat.

`simulate` has sleeps in the place of work on pixels, so it measures the loader's own cost with more workers than this machine has
cores. All of an image's Python is carried out, and the interpreter's lock is released and taken as often as for a real photo.
`memory` walks two epochs (or further) through an index as large as ImageNet's. `boundary` crosses from one of its epochs into the
next at an accelerator's pace, and looks for a pause.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from rich.console import Console

from paceline.config.system import System
from paceline.data.batch import Batch, labeled_batch
from paceline.data.index.records import RecordReader
from paceline.data.loader.loader import Loader
from paceline.data.loader.sample_rng import SampleRng
from paceline.data.loader.sampler import batch_indices, stream_positions
from paceline.data.transforms.crop import CropWindow
from paceline.data.transforms.decode import SampleSpec
from paceline.data.transforms.image_io import Header
from paceline.data.transforms.sample import decode_and_transform
from paceline.data.workers import crew
from paceline.tools.bench.input import require_linux
from paceline.tools.bench.input_cases import memory_mib

# About what a full-size photo takes on a slow core, read and resize included.
SLEEP_SECONDS = 0.004
# How often an image's calls release the lock: read, digest, decode, resize and their like.
RELEASES = 8
RECORDS = 1_300_000
# An H100's share of a step, and how long it computes on it (tools/bench/input_advice.py).
SHARE, STEP_SECONDS = 400, 400 / 7165
BOUNDARY_STEPS = 60  # watched before a boundary, and after it


_WHOLE = CropWindow(0, 0, 16, 16, 16, 16)


class OnePhoto(RecordReader):
    """The same photo of 16 x 16 pixels under RECORDS numbers."""

    portable = True

    def __init__(self) -> None:
        file = io.BytesIO()
        Image.new("RGB", (16, 16)).save(file, "JPEG")
        self.photo = file.getvalue()

    def __len__(self) -> int:
        return RECORDS

    def name(self, i: int) -> str:
        """For messages."""
        return f"photo {i}"

    def read(self, i: int) -> bytes:
        """The photo."""
        return self.photo


def _draw(label: Callable[[int, int], Any], epoch: int, index: int, header: Header, name: str) -> SampleSpec:
    return SampleSpec(name, header, _WHOLE, label(epoch, index))


def _loader(batch: int, workers: int, render: Callable[..., Any], label: Callable[[int, int], Any], **more: Any) -> Loader:
    """Of RECORDS records that are one photo; render stands in for the decoder, label gives (epoch, index) one."""

    def schedule(step: int) -> list[tuple[np.ndarray, np.ndarray]]:
        return [batch_indices(RECORDS, stream_positions(step=step, global_batch_size=batch), seed=0)]

    return Loader(
        records=OnePhoto(), draw=partial(_draw, label), render=render, schedule=schedule, threads=workers, device=torch.device("cpu"),
        **{"image_shape": (32, 32, 3), "processes": True, **more},
    )  # fmt: skip


def _sleeping(seconds: float, data: bytes, drawn: SampleSpec, out: np.ndarray) -> None:
    """A photo of few pixels is rendered, and the time that a large one takes without the lock is slept in parts."""
    decode_and_transform(data, drawn, out[:16, :16])
    for _ in range(RELEASES):
        time.sleep(seconds / RELEASES)


def _drawn_class(epoch: int, index: int) -> int:
    return SampleRng(0, epoch, index).integer(0, 1000)


def simulate(
    workers: int = 16, *, seconds: float = 5.0, sleep_seconds: float = SLEEP_SECONDS, processes: bool = True
) -> dict[str, Any]:
    """Rate of the loader with a sleeping stand-in for pixels, against workers / (sleep_seconds and an image's own Python).

    processes  False: by threads, as the loader works where nothing can be sent to processes
    -> {"workers", "sleep_seconds", "images_per_second", "ideal_images_per_second", "fraction"}; it is printed too.
    """
    stand_in = partial(_sleeping, sleep_seconds)

    def rate(count: int) -> float:
        shape = {"image_shape": (224, 224, 3), "processes": processes}
        # Workers that sleep need no core: as many as are asked for, not as many as this machine's cores can use.
        most = patch.object(crew, "MAX_A_CORE", count)
        with most, _loader(256, count, stand_in, _drawn_class, **shape) as loader:
            for _ in range(4):  # the first permutation, and the ring's memory
                next(loader)
            images, began = 0, time.perf_counter()
            while time.perf_counter() - began < seconds:
                images += len(next(loader)[1][0])
            return images / (time.perf_counter() - began)

    ideal, reached = workers * rate(1), rate(workers)
    Console().print(
        f"{workers} workers, {sleep_seconds * 1e3:g} ms of pixels an image: {reached:,.0f} images/s, {reached / ideal:.1%} of "
        f"{workers} times one worker's {ideal / workers:,.0f}"
    )
    return {
        "workers": workers,
        "sleep_seconds": sleep_seconds,
        "images_per_second": reached,
        "ideal_images_per_second": ideal,
        "fraction": reached / ideal,
    }


class _Labels:
    """(class, some byte) of each record, from arrays as large as a prepared data set's."""

    def __init__(self, labels: np.ndarray, offsets: np.ndarray) -> None:
        self.labels, self.offsets = labels, offsets

    def __call__(self, epoch: int, index: int) -> tuple[int, int]:
        return int(self.labels[index]), int(self.offsets[index]) & 0xFF


def _marked(data: bytes, drawn: SampleSpec, out: np.ndarray) -> None:
    out[0, 0] = drawn.label[1]


def _nothing(data: bytes, drawn: SampleSpec, out: np.ndarray) -> None:
    pass


def _zero(epoch: int, index: int) -> int:
    return 0


def memory(*, epochs: float = 3.0, batch: int = 512, workers: int = 2) -> dict[str, Any]:
    """Memory of all processes over three epochs of an index of 1.3 million records, memory-mapped as a prepared data set's.

    Each epoch sorts a new permutation, and keeps the last one. What the processes have a quarter of an epoch after that has happened
    twice is compared with what they have in the end: up to then the allocator's pools still fill.
    -> {"epochs", "steps", "records", "first_mib", "last_mib", "most_mib", "growth"}, the last a share; it is printed too. Linux only.
    """
    require_linux()
    steps = int(epochs * RECORDS / batch)
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        offsets = _mapped(Path(folder) / "offsets.npy", np.arange(RECORDS, dtype=np.int64) * 110_000)
        labels = _mapped(Path(folder) / "labels.npy", (np.arange(RECORDS) % 1000).astype(np.int32))

        def make_batch(images: torch.Tensor, found: list[tuple[int, int]], indices: torch.Tensor) -> Batch:
            return labeled_batch(images, [label for label, _ in found], indices)

        sampled: list[float] = []
        with _loader(batch, workers, _marked, _Labels(labels, offsets), make_batch=make_batch, last_step=steps) as loader:
            for step, _ in loader:
                if step * batch > 2.25 * RECORDS and step % max(1, steps // 20) == 0:
                    sampled.append(memory_mib())
                    console.print(f"step {step:,}  {sampled[-1]:.1f} MiB")
            sampled.append(memory_mib())  # before the workers end
    growth = sampled[-1] / sampled[0] - 1
    console.print(
        f"{epochs:g} epochs of {RECORDS:,} records in {steps:,} steps of {batch}: {sampled[0]:.1f} -> {sampled[-1]:.1f} MiB, "
        f"{growth:+.2%}"
    )
    return {
        "epochs": epochs,
        "steps": steps,
        "records": RECORDS,
        "first_mib": sampled[0],
        "last_mib": sampled[-1],
        "most_mib": max(sampled),
        "growth": growth,
    }


def boundary(*, workers: int = 2, step_seconds: float = STEP_SECONDS, steps: int = BOUNDARY_STEPS) -> dict[str, Any]:
    """How long an accelerator waits for each of the steps around the end of an epoch of 1.3 million records.

    Between two steps it sleeps as long as an H100 computes on its share of a batch.
    -> {"share", "step_seconds", "waits_at_boundary_ms", "waits_elsewhere_ms"}, the longest of each, where the boundary's are the
    steps that the loader made while the epoch changed; it is printed too.
    """
    last = RECORDS // SHARE  # the step that the epoch ends in
    waits: dict[int, float] = {}

    around = {"first_step": max(0, last - steps), "last_step": last + steps, "prefetch": System().prefetch_steps}
    with _loader(SHARE, workers, _nothing, _zero, **around) as loader:
        before = 0.0
        for step, _ in loader:
            waits[step], before = loader.wait_seconds - before, loader.wait_seconds
            time.sleep(step_seconds)
    first = min(waits)
    # The loader is ahead by its ring; the very first steps wait for the first permutation.
    near = {step for step in waits if last - 1 <= step <= last + 2 * System().prefetch_steps}
    found = {
        "share": SHARE,
        "step_seconds": step_seconds,
        "waits_at_boundary_ms": 1e3 * max(waits[step] for step in near),
        "waits_elsewhere_ms": 1e3 * max(waited for step, waited in waits.items() if step > first + 5 and step not in near),
    }
    Console().print(
        f"an accelerator of {SHARE / step_seconds:,.0f} images/s waits {found['waits_at_boundary_ms']:.1f} ms at most for a step "
        f"at the end of an epoch, {found['waits_elsewhere_ms']:.1f} ms elsewhere"
    )
    return found


def _mapped(path: Path, values: np.ndarray) -> np.ndarray:
    np.save(path, values)
    return np.load(path, mmap_mode="r")
