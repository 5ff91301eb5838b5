"""The loader without pictures: how close threads come to the ideal rate, and whether memory stays flat.

`simulate` puts a sleep in the decoder's place, so it measures the loader's own cost with more threads than this machine
has cores. `memory` walks a long way through an index as large as ImageNet's.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console

from paceline.batch.batch import Batch, labelled_batch
from paceline.config.errors import UserError
from paceline.data.crop import Window
from paceline.data.draw import Draw
from paceline.data.header import Header
from paceline.data.loader import Loader
from paceline.data.randomness import SampleRandom
from paceline.data.records import Records
from paceline.data.stream import batch_indices

# About what a full-size photo takes on a slow core, read and resize included.
SLEEP_SECONDS = 0.004
RECORDS = 1_300_000


_WHOLE = Window(0, 0, 16, 16, 16, 16)


class OnePhoto(Records):
    """The same photo of 16 x 16 pixels under RECORDS numbers."""

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


def simulate(threads: int = 16, *, seconds: float = 5.0, sleep_seconds: float = SLEEP_SECONDS) -> dict[str, Any]:
    """Rate of the loader with a sleeping stand-in for the decoder, against threads / sleep_seconds.

    -> {"threads", "sleep_seconds", "images_per_second", "ideal_images_per_second", "fraction"}; it is printed too.
    """

    def draw(epoch: int, index: int, header: Header, name: str) -> Draw:
        return Draw(name, header, _WHOLE, SampleRandom(0, epoch, index).integer(0, 1000))

    def decode(data: bytes, drawn: Draw, out: np.ndarray) -> None:
        time.sleep(sleep_seconds)

    def schedule(step: int) -> list[tuple[np.ndarray, np.ndarray]]:
        return [batch_indices(RECORDS, seed=0, step=step, global_batch=256)]

    with Loader(
        records=OnePhoto(),
        draw=draw,
        render=decode,
        schedule=schedule,
        threads=threads,
        image_shape=(224, 224, 3),
        device=torch.device("cpu"),
    ) as loader:
        for _ in range(4):  # the first permutation, and the ring's memory
            next(loader)
        images, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            images += len(next(loader)[1][0])
        rate = images / (time.perf_counter() - began)
    ideal = threads / sleep_seconds
    Console().print(
        f"{threads} threads, {sleep_seconds * 1e3:g} ms an image: {rate:,.0f} images/s of {ideal:,.0f}, {rate / ideal:.1%}"
    )
    return {
        "threads": threads,
        "sleep_seconds": sleep_seconds,
        "images_per_second": rate,
        "ideal_images_per_second": ideal,
        "fraction": rate / ideal,
    }


def memory(*, steps: int = 20_000, batch: int = 512, threads: int = 2) -> dict[str, Any]:
    """Resident memory over many steps on an index of 1.3 million records, memory-mapped as a prepared data set's.

    Each epoch sorts a new permutation. Sampling starts with the third, when the ring, the index and both kept
    permutations are in and the allocator knows their size.
    -> {"steps", "records", "first_mib", "last_mib", "most_mib", "growth_mib"}; it is printed too. Linux only.
    """
    if not Path("/proc/self/statm").exists():
        raise UserError("the memory measurement reads /proc/self/statm: it runs on Linux only.")
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        offsets = _mapped(Path(folder) / "offsets.npy", np.arange(RECORDS, dtype=np.int64) * 110_000)
        labels = _mapped(Path(folder) / "labels.npy", (np.arange(RECORDS) % 1000).astype(np.int32))

        def draw(epoch: int, index: int, header: Header, name: str) -> Draw:
            return Draw(name, header, _WHOLE, (int(labels[index]), int(offsets[index]) & 0xFF))

        def decode(data: bytes, drawn: Draw, out: np.ndarray) -> None:
            out[0, 0] = drawn.label[1]

        def make_batch(images: torch.Tensor, found: list[tuple[int, int]], indices: torch.Tensor) -> Batch:
            return labelled_batch(images, [label for label, _ in found], indices)

        def schedule(step: int) -> list[tuple[np.ndarray, np.ndarray]]:
            return [batch_indices(RECORDS, seed=0, step=step, global_batch=batch)]

        sampled: list[float] = []
        with Loader(
            records=OnePhoto(),
            draw=draw,
            render=decode,
            make_batch=make_batch,
            schedule=schedule,
            last_step=steps,
            threads=threads,
            image_shape=(32, 32, 3),
            device=torch.device("cpu"),
        ) as loader:
            for step, _ in loader:
                if step * batch > 2 * RECORDS and step % max(1, steps // 20) == 0:
                    sampled.append(_resident_mib())
                    console.print(f"step {step:,}  {sampled[-1]:.1f} MiB")
        sampled.append(_resident_mib())
    growth = sampled[-1] - sampled[0]
    console.print(
        f"{steps:,} steps of {batch} over {RECORDS:,} records: {sampled[0]:.1f} -> {sampled[-1]:.1f} MiB, {growth:+.1f}"
    )
    return {
        "steps": steps,
        "records": RECORDS,
        "first_mib": sampled[0],
        "last_mib": sampled[-1],
        "most_mib": max(sampled),
        "growth_mib": growth,
    }


def _mapped(path: Path, values: np.ndarray) -> np.ndarray:
    np.save(path, values)
    return np.load(path, mmap_mode="r")


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
