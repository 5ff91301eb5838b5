"""Measure how the loader's rate grows with its workers, next to torchvision's DataLoader with as many, interleaved.

    PYTHONPATH=. python scripts/loader_scaling.py FOLDER --workers 1 2 4 8 16 --rounds 3 --seconds 5 --out FILE.json

FOLDER has JPEG files, which become random crops of 224 pixels. Nothing else should run. For each number of workers, the table has
the median over the rounds: images per second, CPU-ms and voluntary context switches per image, and the proportional set size of all
processes together.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from benchmarks.input_torchvision import photo_loader
from paceline.bench.harness import machine_facts
from paceline.bench.input_contenders import ours, records_of

SIZE, MOST_PHOTOS = 224, 2000
TICKS = 100  # of a second, in /proc


def processes() -> Iterator[Path]:
    """This process and all below it."""
    waiting = [Path("/proc/self").resolve()]
    while waiting:
        process = waiting.pop()
        try:
            children = [
                child for task in (process / "task").iterdir() for child in (task / "children").read_text().split()
            ]
        except OSError:  # it ended
            continue
        yield process
        waiting += [Path("/proc") / child for child in children]


def counters() -> tuple[float, int]:
    """CPU seconds and voluntary context switches of all processes so far."""
    seconds, switches = 0.0, 0
    for process in processes():
        seconds += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:13])) / TICKS
        for task in (process / "task").iterdir():
            switches += int((task / "status").read_text().rpartition("nonvoluntary")[0].split()[-1])
    return seconds, switches


def pss_mib() -> float:
    """Proportional set size of all processes together."""
    lines = [line for process in processes() for line in (process / "smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def measured(make: Callable[[], AbstractContextManager[Callable[[], int]]], seconds: float) -> dict[str, float]:
    """One contender, once it is warm."""
    with make() as take:
        began = time.perf_counter()
        take()
        first = time.perf_counter() - began
        for _ in range(9):
            take()
        (cpu, switches), images, began = counters(), 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            images += take()
        wall, (cpu_after, switches_after) = time.perf_counter() - began, counters()
        return {
            "images_per_second": images / wall,
            "cpu_ms": 1e3 * (cpu_after - cpu) / images,
            "voluntary_switches": (switches_after - switches) / images,
            "pss_mib": pss_mib(),
            "first_batch_seconds": first,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    paths = sorted(asked.folder.rglob("*.jpg"))[:MOST_PHOTOS]
    records = records_of(paths)
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(asked.rounds):
        for workers in asked.workers:
            contenders: dict[str, Any] = {
                "paceline": lambda count=workers: ours(records, SIZE, count, "simplejpeg"),
                "torchvision": lambda count=workers: photo_loader(paths, SIZE, count, "tensor"),
            }
            for name, make in contenders.items():
                found.setdefault(f"{name} {workers}", []).append(measured(make, asked.seconds))
    names = ("images_per_second", "cpu_ms", "voluntary_switches", "pss_mib", "first_batch_seconds")
    table = {key: {name: statistics.median(row[name] for row in rows) for name in names} for key, rows in found.items()}
    print(f"{'':16}" + "".join(f"{name:>22}" for name in names))
    for key, row in table.items():
        print(
            f"{key:16}"
            + "".join(
                f"{row[name]:>22.3g}" if name != "images_per_second" else f"{row[name]:>22,.0f}" for name in names
            )
        )
    if asked.out:
        facts = {"folder": asked.folder.name, "photos": len(paths), **machine_facts(torch.device("cpu"))}
        asked.out.write_text(json.dumps({**facts, "rounds": found, "median": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
