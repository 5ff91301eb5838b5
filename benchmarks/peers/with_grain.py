"""Grain: a MapDataset over files, read ahead by threads; the transform is libjpeg-turbo and Pillow."""

from __future__ import annotations

import random
from pathlib import Path

import grain  # pyright: ignore[reportMissingImports]
import numpy as np
from peer_protocol import Contender, Task, serve  # pyright: ignore[reportMissingImports]
from pillow_sample import sample  # pyright: ignore[reportMissingImports]


def make(task: Task) -> Contender:
    """As many threads as cores."""

    def transform(path: str, generator: np.random.Generator) -> np.ndarray:
        return sample(Path(path).read_bytes(), task.size, random.Random(int(generator.integers(1 << 62))))

    dataset = grain.MapDataset.source(task.photos).seed(0).shuffle().repeat().random_map(transform)
    options = grain.ReadOptions(num_threads=task.threads, prefetch_buffer_size=2 * task.batch)
    batches = iter(dataset.to_iter_dataset(options).batch(task.batch))

    def take() -> int:
        pixels = next(batches)
        assert pixels.shape == (task.batch, task.size, task.size, 3)
        return len(pixels)

    return Contender(take, f"{task.threads} threads, simplejpeg and Pillow", grain.__version__)


if __name__ == "__main__":
    serve(make)
