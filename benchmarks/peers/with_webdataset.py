"""webdataset: tar shards of the same JPEG bytes, in worker processes; the transform is libjpeg-turbo and Pillow."""

from __future__ import annotations

import random
import tarfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import webdataset as wds  # pyright: ignore[reportMissingImports]
from peer_protocol import Contender, Task, measured, serve, whole  # pyright: ignore[reportMissingImports]
from pillow_sample import sample  # pyright: ignore[reportMissingImports]

SHARDS = 8
TRIAL_SECONDS = 1.0


def make(task: Task) -> Contender:
    """The number of workers, 1 or a core each, that made more images of a CPU-second in a short trial."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    shards = [Path(task.scratch) / f"photos-{number}.tar" for number in range(SHARDS)]
    for number, shard in enumerate(shards):
        with whole(shard) as part, tarfile.open(part, "w") as archive:
            for path in task.photos[number::SHARDS]:
                archive.add(path, arcname=Path(path).with_suffix(".jpg").name)
    tried = []
    for workers in sorted({1, task.threads}):
        take = _batches(task, [str(shard) for shard in shards], workers)
        found = measured(take, TRIAL_SECONDS)
        tried.append((found["images"] / found["cpu_seconds"], workers, take))
    _, workers, take = max(tried, key=lambda entry: entry[0])
    return Contender(take, f"{workers} worker processes, simplejpeg and Pillow", version("webdataset"))


def _batches(task: Task, shards: list[str], workers: int) -> Any:
    draw = random.Random(0)

    def transform(found: dict[str, Any]) -> Any:
        return (sample(found["jpg"], task.size, draw),)

    dataset = (
        wds.WebDataset(shards, resampled=True, shardshuffle=False, empty_check=False, nodesplitter=wds.split_by_node)
        .shuffle(200)
        .map(transform)
        .batched(task.batch, partial=False)
    )
    batches = iter(wds.WebLoader(dataset, batch_size=None, num_workers=workers))

    def take() -> int:
        (pixels,) = next(batches)
        assert tuple(pixels.shape) == (task.batch, task.size, task.size, 3)
        return len(pixels)

    return take


if __name__ == "__main__":
    serve(make)
