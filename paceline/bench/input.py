"""`paceline bench input`: photos to training batches, beside torchvision in a torch DataLoader and the bare decoder.

All contenders run in one process, one after the other, round after round, so a machine that slows down slows them all.
Each is started, warmed up, and only then measured over whole batches; importing, starting and stopping are outside the
measured interval. CPU-seconds are user plus system of this process and all its living descendants.
The ratios are medians over rounds of ratios within a round.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from paceline.bench.input_contenders import contenders, make_sample
from paceline.bench.peers.peer_protocol import tree_cpu_seconds
from paceline.config.classification import PhotoInput
from paceline.config.errors import DataError, RecipeError, UserError
from paceline.data.decode import Decoder, require_decoder
from paceline.data.header import read_header
from paceline.data.randomness import SampleRandom
from paceline.systems.detect import cpu_cores

ROUNDS = 5
WARM_UP_BATCHES = 3
_EXTRA_DECODERS: tuple[Decoder, ...] = ("nvimgcodec",)
_SUFFIXES = {".jpg", ".jpeg", ".jpe"}
_LIBRARIES = ("paceline", "torch", "torchvision", "pillow", "simplejpeg", "nvidia-nvimgcodec-cu12", "numpy")


def run_input_bench(
    data: Path,
    *,
    seconds: float = 3.0,
    size: int = 224,
    decoders: list[Decoder] | None = None,
    out: Path | None = None,
    rounds: int = ROUNDS,
) -> dict[str, Any]:
    """Measure, print a table, write JSON to `out`, return what was written.

    data      a folder with JPEG photos, at any depth
    seconds   measured per contender and round
    decoders  ours to run; None: the default and every extra that is installed
    Raises DataError when the folder has no photos, RecipeError when a decoder is missing, UserError off Linux.
    """
    require_linux()
    paths = photos_in(data)
    chosen = installed_decoders() if decoders is None else decoders
    for decoder in chosen:
        require_decoder(decoder)
    cores = cpu_cores()
    menu = contenders(paths, size, cores, chosen)
    console = Console()
    console.print(f"{len(paths)} photos, {len(menu)} contenders, {rounds} rounds of {seconds:g} s each")
    measured = measure_in_turn(menu, rounds, seconds, console)
    report = summary(measured, paths, size, seconds, cores)
    report["python_microseconds_per_image"] = {decoder: python_microseconds(decoder) for decoder in chosen}
    show(report, "decode + RandomResizedCrop + flip into a batch (medians over rounds)", console, out)
    return report


def photos_in(data: Path) -> list[Path]:
    """The JPEG files in a folder, at any depth, sorted. Raises DataError where there are none."""
    paths = sorted(path for path in data.rglob("*") if path.suffix.lower() in _SUFFIXES)
    if not paths:
        raise DataError(f"{data}: no JPEG photos in this folder or below it.\nGive a folder with photos:  --data DIR")
    return paths


def measure_in_turn(
    menu: dict[str, Callable[[], Any]], rounds: int, seconds: float, console: Console
) -> dict[str, list[tuple[float, float]]]:
    """contender -> of each round (images a second, images a CPU-second); each round begins with another contender."""
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in menu}
    for turn in range(rounds):
        order = list(menu)
        order = order[turn % len(order) :] + order[: turn % len(order)]
        for name in order:
            measured[name].append(_measure(menu[name], seconds))
        console.print(f"round {turn + 1} of {rounds} done")
    return measured


def show(report: dict[str, Any], title: str, console: Console, out: Path | None) -> None:
    """Print the report's table, and write the report as JSON to `out`."""
    console.print(_table(report, title))
    write_report(report, out)


def write_report(report: dict[str, Any], out: Path | None) -> None:
    """As JSON, where a file is named."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def installed_decoders() -> list[Decoder]:
    """The default decoder and every extra that can be imported here."""
    return ["simplejpeg", *filter(_installed, _EXTRA_DECODERS)]


def require_linux() -> None:
    """Raises UserError elsewhere."""
    if not Path("/proc/self/stat").exists():
        raise UserError("bench input counts the CPU time of worker processes through /proc: it runs on Linux only.")


def _installed(decoder: Decoder) -> bool:
    try:
        require_decoder(decoder)
    except RecipeError:
        return False
    return True


def _measure(make: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """-> (images a second, images a CPU-second) in steady state."""
    with make() as take:
        for _ in range(WARM_UP_BATCHES):
            take()
        cpu, began = tree_cpu_seconds(), time.perf_counter()
        images = take()
        while (wall := time.perf_counter() - began) < seconds:
            images += take()
        return images / wall, images / (tree_cpu_seconds() - cpu)


def summary(
    measured: dict[str, list[tuple[float, float]]], paths: list[Path], size: int, seconds: float, cores: int
) -> dict[str, Any]:
    """Rates of every contender, the ratios of ours to the best and the tuned peer and to bare decoding, and where."""
    efficiency = {name: [cpu for _, cpu in rounds] for name, rounds in measured.items()}
    peers = [name for name in measured if name.startswith("torchvision")]
    best_peer = max(peers, key=lambda name: statistics.median(efficiency[name]))
    tuned = next(name for name in measured if name.startswith("tuned"))
    bare = next(name for name in measured if name.startswith("bare"))
    ratios = {}
    for name in (name for name in measured if name.startswith("paceline")):
        against = {"best peer": best_peer, "tuned peer": tuned, "bare decode": bare}
        ratios[name] = {
            what: statistics.median(a / b for a, b in zip(efficiency[name], efficiency[other]))
            for what, other in against.items()
        }
    photos = [path.read_bytes() for path in paths]
    headers = [read_header(photo, str(path)) for photo, path in zip(photos, paths)]
    return {
        "photos": {
            "count": len(paths),
            "mean_bytes": statistics.fmean(len(photo) for photo in photos),
            "mean_megapixels": statistics.fmean(header.height * header.width for header in headers) / 1e6,
        },
        "output_size": size,
        "seconds_per_round": seconds,
        "images_per_second": {name: [wall for wall, _ in rounds] for name, rounds in measured.items()},
        "images_per_cpu_second": efficiency,
        "best_peer": best_peer,
        "ratio_of_images_per_cpu_second": ratios,
        "machine": {"cpu": cpu_model(), "cores": cores, "system": platform.platform()},
        "versions": {"python": platform.python_version(), **versions()},
        "command": shlex.join(["paceline", *sys.argv[1:]]),
    }


def python_microseconds(decoder: Decoder, images: int = 2000) -> float:
    """Our CPU time for a sample when there are almost no pixels (8 x 8 from 16 x 16): Python and the calls' own cost.

    It bounds what one process can do, since the interpreter runs in one thread at a time.
    """
    file = io.BytesIO()
    Image.fromarray(np.full((16, 16, 3), 128, np.uint8)).save(file, "JPEG")
    jpeg, out, settings = file.getvalue(), np.empty((8, 8, 3), np.uint8), PhotoInput(size=8, decoder=decoder)
    began = time.process_time()
    for index in range(images):
        make_sample(jpeg, "tiny", SampleRandom(0, 0, index), out, settings)
    return (time.process_time() - began) / images * 1e6


def _table(report: dict[str, Any], title: str) -> Table:
    table = Table(title=title)
    for column in ("contender", "images/s", "images/CPU-s", "x best peer", "x tuned peer", "x bare decode"):
        table.add_column(column, justify="left" if column == "contender" else "right")
    for name, rounds in report["images_per_cpu_second"].items():
        ratio = report["ratio_of_images_per_cpu_second"].get(name, {})
        table.add_row(
            name + (" (best peer)" if name == report["best_peer"] else ""),
            f"{statistics.median(report['images_per_second'][name]):.0f}",
            f"{statistics.median(rounds):.0f}",
            *(f"{ratio[what]:.2f}" if ratio else "" for what in ("best peer", "tuned peer", "bare decode")),
        )
    return table


def cpu_model() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def versions() -> dict[str, str]:
    """Of the libraries that take part."""
    found = {}
    for library in _LIBRARIES:
        try:
            found[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            found[library] = "not installed"
    return found
