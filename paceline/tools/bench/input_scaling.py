"""`paceline bench input --data DIR --scaling 1 2 4`: the rate by number of workers, compared with torchvision's DataLoader.

Contenders of each number of workers take turns, round after round, as in tools/bench/input.py. Each is warmed up before it is
measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from paceline._utils.errors import RecipeError
from paceline._utils.platform import count_cpus
from paceline.tools.bench.baselines import WHERE, find_peers
from paceline.tools.bench.harness import machine_facts, run_all_rounds
from paceline.tools.bench.input import InputBenchmark, describe_images, require_linux
from paceline.tools.bench.process_tree import cpu_seconds, memory_mib, voluntary_switches

WARM_UP_SECONDS, MAX_WORKERS = 2.0, 1024
# Name of a measured value -> its column, and how it is printed.
COLUMNS = {
    "images_per_second": ("images/s", ",.0f"),
    "cpu_ms": ("CPU-ms an image", ".2f"),
    "voluntary_switches": ("switches an image", ".2f"),
    "memory_mib": ("memory, MiB", ",.0f"),
    "first_batch_seconds": ("first batch, s", ".2f"),
}
Measured = dict[str, float]


def parse_worker_counts(requested: Sequence[int]) -> list[int]:
    """What --scaling names; 0: 1, 2, 4, ... up to twice the usable cores. Raises RecipeError for a number that cannot be."""
    if any(not 0 <= count <= MAX_WORKERS for count in requested):
        raise RecipeError(
            f"--scaling {' '.join(map(str, requested))}: numbers from 1 to {MAX_WORKERS}, or 0 for 1, 2, 4, ..."
        )
    powers = [2**power for power in range((2 * count_cpus()).bit_length())] if 0 in requested else []
    return sorted({*requested, *powers} - {0})


def run_scaling(
    find: Callable[..., InputBenchmark], data: Path, *, workers: Sequence[int], seconds: float, rounds: int, size: int = 0
) -> dict[str, Any]:
    """Measure, print a table, -> JSON facts. Raises DataError for data that cannot be used, PacelineError off Linux.

    find     the task's contest: of tools/bench/input.py's CONTESTS
    seconds  measured for each contender and round
    """
    require_linux()
    contest, console, theirs = (find(data, size=size, decoders=["simplejpeg"]), Console(), find_peers("input_torchvision"))
    if theirs is None:
        console.print(f"{WHERE}: only ours is measured", markup=False)
    menu: dict[str, Callable[[], Any]] = {}
    for count in workers:
        menu[f"paceline {count}"] = partial(contest.with_workers, count)
        if theirs is not None:
            menu[f"torchvision {count}"] = partial(theirs.loader_of(contest), count, "tensor")
    console.print(f"{len(contest.paths)} photos, {len(menu)} contenders, {rounds} rounds of {seconds:g} s each")
    result = run_all_rounds(
        {name: partial(measure_contender, make, seconds) for name, make in menu.items()}, rounds, console.print
    )
    median = {name: {key: statistics.median(row[key] for row in rows) for key in COLUMNS} for name, rows in result.items()}
    report = {
        "photos": describe_images(contest.paths),
        "seconds_per_round": seconds,
        "rounds": result,
        "median": median,
        "machine": machine_facts(torch.device("cpu")),
    }
    console.print(_table(median, f"{contest.title} into a batch, {count_cpus()} cores (medians over rounds)"))
    return report


def measure_contender(make: Callable[[], Any], seconds: float) -> Measured:
    """One contender in steady state."""
    began = time.perf_counter()
    with make() as take:
        take()
        first = time.perf_counter() - began
        while time.perf_counter() - began - first < WARM_UP_SECONDS:  # then every process has touched its memory
            take()
        cpu, switches, images, began = cpu_seconds(), voluntary_switches(), 0, time.perf_counter()
        while (wall := time.perf_counter() - began) < seconds or not images:
            images += take()
        return {
            "images_per_second": images / wall,
            "cpu_ms": 1e3 * (cpu_seconds() - cpu) / images,
            "voluntary_switches": (voluntary_switches() - switches) / images,
            "memory_mib": memory_mib(),
            "first_batch_seconds": first,
        }


def _table(median: Mapping[str, Measured], title: str) -> Table:
    """A row for each contender; of the first number of workers, rates are also shown as multiples."""
    table = Table(
        Column("loader, workers", width=15),
        *(Column(name, width=8, justify="right") for name, _ in COLUMNS.values()),
        Column("x the first", width=6, justify="right"),
        title=title, title_style="none", title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True,
    )  # fmt: skip
    least: dict[str, float] = {}
    for name, row in median.items():
        first = least.setdefault(name.split()[0], row["images_per_second"])
        cells = [format(row[key], form) for key, (_, form) in COLUMNS.items()]
        table.add_row(name, *cells, f"{row['images_per_second'] / first:.2f}")
    return table
