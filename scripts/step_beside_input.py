"""Measure the host's time for an eager step while the loader works at full speed, and without a loader.

    python tests/simulated/device.py scripts/step_beside_input.py FOLDER [--workers 1 2 4] [--rounds 5] [--out FILE.json]

The device is simulated, so a step takes only what the host does: it sends ResNet-50's kernels. FOLDER has JPEG files. The loader works
at full speed, since a thread takes its batches as they come. Rounds without and with each number of workers are interleaved.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from one_step import build

from paceline.config.plan import step_rates
from paceline.config.resnet import ImageInput
from paceline.data.loader.loader import Loader
from paceline.data.loader.sampler import batch_indices, stream_positions
from paceline.distributed.comm.launcher import read_launch
from paceline.distributed.comm.world import open_distributed
from paceline.tools.bench.harness import machine_facts
from paceline.tools.bench.input_cases import draw_unlabeled, open_file_records

IMAGES, SIZE, STEPS = 64, 224, 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    records = open_file_records(sorted(asked.folder.rglob("*.jpg"))[:2000])
    options = argparse.Namespace(
        recipe="resnet50", images=IMAGES, forwards=1, bn_batch_size=0, precision="bf16", graph=False, kernels="torch",
        exact=False, slots=32, before=3,
    )  # fmt: skip
    launch, found = read_launch(os.environ), dict[str, list[float]]()
    with open_distributed(launch, device=torch.device("cuda", launch.local_rank)) as world:
        recipe, _, plan, _, step, batches = build(options, world)

        def host_ms() -> float:
            took = []
            for number in range(STEPS):
                began = time.perf_counter()
                step(batches, step_rates(recipe, plan, number))
                took.append(time.perf_counter() - began)
            return 1e3 * statistics.median(took)

        host_ms()
        for _ in range(asked.rounds):
            found.setdefault("no loader", []).append(host_ms())
            for workers in asked.workers:
                with loader_of(records, workers, world.device) as loader:
                    taking = SimpleNamespace(on=True, images=0)
                    thread = threading.Thread(target=take, args=(loader, taking))
                    thread.start()
                    time.sleep(2)
                    before, began = taking.images, time.perf_counter()
                    found.setdefault(f"{workers} workers", []).append(host_ms())
                    rate = (taking.images - before) / (time.perf_counter() - began)
                    found.setdefault(f"{workers} workers, images/s", []).append(rate)
                    taking.on = False
                    thread.join()
    median = {name: statistics.median(values) for name, values in found.items()}
    for name, value in median.items():
        print(f"{name:28} {value:10,.1f}{'' if 'images' in name else ' ms a step'}")
    if asked.out:
        asked.out.write_text(
            json.dumps({"rounds": found, "median": median, **machine_facts(torch.device("cpu"))}, indent=1) + "\n"
        )


def take(loader: Loader, taking: SimpleNamespace) -> None:
    """Take batches as a consumer that needs no time for them."""
    while taking.on:
        taking.images += len(next(loader)[1][0])


def loader_of(records, workers: int, device: torch.device) -> Loader:
    """Random crops, copied to the device."""
    settings = ImageInput(image_size=SIZE)
    return Loader(
        records=records, draw=partial(draw_unlabeled, settings), threads=workers, processes=True,
        image_shape=(SIZE, SIZE, 3), device=device,
        schedule=lambda step: [batch_indices(len(records), stream_positions(step=step, global_batch_size=IMAGES), seed=0)],
    )  # fmt: skip


if __name__ == "__main__":
    main()
