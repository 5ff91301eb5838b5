"""`paceline bench input --data DIR --latency-ms MS`: photos from a store that answers late, with and without fetch threads.

Every read of a photo sleeps that long first, as an object store or a loaded network mount does; decoding and all else is
as in tools/bench/input.py. "no latency" is the same loader on the files themselves, what fetch threads can bring back at most; "all
kept" is what `--system.ram-cache` brings once it holds all photos.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from paceline._utils.platform import count_cpus
from paceline.data.index.records import CachedRecords, RecordReader
from paceline.data.storage.cache import SharedMemoryCache
from paceline.tools.bench.harness import format_ratio, machine_facts, ratio_interval, run_all_rounds
from paceline.tools.bench.input import measure_rates, photos_in, require_linux, steady_rates
from paceline.tools.bench.input_cases import open_file_records, paceline_loader

FETCH_THREADS = (0, 8, 32)
KEPT = "late, all kept in memory"


class LateRecords(RecordReader):
    """Records that come so many seconds later."""

    def __init__(self, records: RecordReader, seconds: float) -> None:
        super().__init__(records.places)
        self._records, self._seconds = records, seconds

    def name(self, i: int) -> str:
        """As the records have it."""
        return self._records.name(i)

    def read(self, i: int) -> bytes:
        """After a while."""
        time.sleep(self._seconds)
        return self._records.read(i)


def _kept(late: RecordReader) -> RecordReader:
    """As --system.ram-cache has them from the second epoch on, where the room holds all of them."""
    room = int(late.places.lengths.sum())
    kept = CachedRecords(late, SharedMemoryCache(-1, len(late), room), 0)
    with ThreadPoolExecutor(max(FETCH_THREADS)) as pool:
        list(pool.map(kept.read, range(len(kept))))
    return kept


def run_fetch_bench(data: Path, *, milliseconds: float, seconds: float, size: int, rounds: int) -> dict[str, Any]:
    """Measure, print, -> JSON facts.

    milliseconds  that a read takes longer
    Raises DataError when the folder has no photos, PacelineError off Linux.
    """
    require_linux()
    records, cores, console = open_file_records(photos_in(data)), count_cpus(), Console()
    late = LateRecords(records, milliseconds / 1e3)
    menu: dict[str, Any] = {"no latency": partial(paceline_loader, records, size, cores, "simplejpeg")}
    for threads in FETCH_THREADS:
        menu[f"late, {threads} fetch threads"] = partial(paceline_loader, late, size, cores, "simplejpeg", threads)
    menu[KEPT] = partial(paceline_loader, _kept(late), size, cores, "simplejpeg")
    works = {name: partial(steady_rates, make, seconds) for name, make in menu.items()}
    found = measure_rates(run_all_rounds(works, rounds, console.print))
    wall = found["images_per_second"]
    report = {
        "photos": len(records),
        "latency_ms": milliseconds,
        "num_workers": cores,
        **found,
        "times_without_fetch_threads": {name: ratio_interval(wall[name], wall["late, 0 fetch threads"]) for name in wall},
        "machine": machine_facts(torch.device("cpu")),
    }
    for name, times in report["times_without_fetch_threads"].items():
        console.print(f"{name}: {statistics.median(wall[name]):.0f} images/s, {format_ratio(times)}", markup=False)
    return report
