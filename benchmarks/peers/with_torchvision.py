"""torchvision.transforms.v2 in a torch DataLoader: the best of its worker counts and decoders, or one tuned process."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torchvision
from peer_protocol import Contender, Task, measured, serve  # pyright: ignore[reportMissingImports]

from benchmarks.input_torchvision import photo_loader
from paceline.tools.bench.input_cases import BATCH

TRIAL_SECONDS = 1.5
_open = ExitStack()  # until the process ends


def make(task: Task) -> Contender:
    """option "tuned": no workers, one intra-op thread; else what made the most images of a CPU-second in a short trial."""
    assert task.batch == BATCH
    paths = [Path(path) for path in task.photos]
    if task.options.get("tuned"):
        take = _open.enter_context(photo_loader(paths, task.size, 0, "tensor", 1))
        return Contender(take, "tensor decode, no workers, 1 intra-op thread", torchvision.__version__)
    tried = []
    for decode in ("pil", "tensor"):
        for workers in sorted({0, 1, task.threads}):
            with photo_loader(paths, task.size, workers, decode) as take:
                found = measured(take, TRIAL_SECONDS)
            tried.append((found["images"] / found["cpu_seconds"], decode, workers))
    _, decode, workers = max(tried)
    take = _open.enter_context(photo_loader(paths, task.size, workers, decode))
    return Contender(take, f"{decode} decode, {workers} workers", torchvision.__version__)


if __name__ == "__main__":
    serve(make)
