"""`paceline bench input --data DIR --latency MS`: photos from a store that answers late, with and without fetch threads.

Every read of a photo sleeps that long first, as an object store or a loaded network mount does; decoding and all else is
as in bench/input.py. "no latency" is the same loader on the files themselves, what fetch threads can bring back at most; "all kept"
is what `--system.cache` brings once it holds all photos.
"""

from __future__ import annotations

import platform
import shlex
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.bench.input import ROUNDS, measure_in_turn, photos_in, require_linux, versions, write_report
from paceline.bench.input_contenders import ours, records_of
from paceline.data.byte_cache import CachedRecords, Shelf
from paceline.data.records import Records
from paceline.systems.detect import cpu_cores

FETCH_THREADS = (0, 8, 32)
KEPT = "late, all kept in memory"


class LateRecords(Records):
    """Records that come so many seconds later."""

    def __init__(self, records: Records, seconds: float) -> None:
        super().__init__(records.places)
        self._records, self._seconds = records, seconds

    def name(self, i: int) -> str:
        """As the records have it."""
        return self._records.name(i)

    def read(self, i: int) -> bytes:
        """After a while."""
        time.sleep(self._seconds)
        return self._records.read(i)


def _kept(late: Records) -> Records:
    """As --system.cache has them from the second epoch on, where the room holds all of them."""
    room = int(late.places.lengths.sum())
    kept = CachedRecords(late, Shelf(-1, len(late), room), 0)
    with ThreadPoolExecutor(max(FETCH_THREADS)) as pool:
        list(pool.map(kept.read, range(len(kept))))
    return kept


def run_fetch_bench(
    data: Path, *, milliseconds: float, seconds: float, size: int, out: Path | None = None, rounds: int = ROUNDS
) -> dict[str, Any]:
    """Measure, print, write JSON to `out`, return what was written.

    milliseconds  that a read takes longer
    Raises DataError when the folder has no photos, UserError off Linux.
    """
    require_linux()
    records, cores, console = records_of(photos_in(data)), cpu_cores(), Console()
    late = LateRecords(records, milliseconds / 1e3)
    menu: dict[str, Any] = {"no latency": partial(ours, records, size, cores, "simplejpeg")}
    for threads in FETCH_THREADS:
        menu[f"late, {threads} fetch threads"] = partial(ours, late, size, cores, "simplejpeg", threads)
    menu[KEPT] = partial(ours, _kept(late), size, cores, "simplejpeg")
    measured = measure_in_turn(menu, rounds, seconds, console)
    rates = {name: [wall for wall, _ in found] for name, found in measured.items()}
    without = rates["late, 0 fetch threads"]
    report = {
        "photos": len(records),
        "latency_ms": milliseconds,
        "loader_threads": cores,
        "images_per_second": rates,
        "images_per_cpu_second": {name: [cpu for _, cpu in found] for name, found in measured.items()},
        "times_without_fetch_threads": {
            name: statistics.median(a / b for a, b in zip(found, without)) for name, found in rates.items()
        },
        "machine": platform.platform(),
        "versions": versions(),
        "command": shlex.join(["paceline", *sys.argv[1:]]),
    }
    for name, ratio in report["times_without_fetch_threads"].items():
        console.print(f"{name}: {statistics.median(rates[name]):.0f} images/s, {ratio:.2f} times")
    write_report(report, out)
    return report
