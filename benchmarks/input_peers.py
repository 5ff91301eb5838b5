"""`paceline bench input --baselines all --data DIR`: the same JPEG bytes through other libraries' input and ours, interleaved.

Every contender is a process of its own (peers/), because no environment holds all these libraries. All are started first; then they
take turns, round after round, each taking batches for a few seconds while the others wait, so a machine that slows down slows
them all. CPU-seconds are user plus system of a contender's process and all its descendants.
"""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import paceline
from benchmarks.peer_installs import python_of
from paceline._utils.errors import DataError
from paceline._utils.platform import count_cpus
from paceline.data.index.index import open_split
from paceline.data.index.manifest import FILE_NAME, Manifest
from paceline.data.transforms.decode import Decoder
from paceline.tools.bench.harness import format_ratio, machine_facts, ratio_interval, run_all_rounds
from paceline.tools.bench.input import describe_images, installed_decoders, measure_rates, photos_in, require_linux
from paceline.tools.bench.input_cases import BATCH

PROGRAMS = Path(__file__).parent / "peers"
START_SECONDS = 240  # FFCV compiles its pipeline first
MAX_PHOTOS = 1000  # each other container holds them once more
MAX_RECORDS = 50_000  # of a prepared set, which is read whole to find those photos in it
BARE = "bare decode"


class Process:
    """A contender's program."""

    def __init__(self, name: str, python: Path, program: str, task: dict[str, Any], folder: Path) -> None:
        self.name, self._said = name, folder / "stderr.txt"
        folder.mkdir()
        file = folder / "task.json"
        file.write_text(json.dumps({**task, "scratch": str(folder)}))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if str(python) == sys.executable:
            here = str(Path(paceline.__file__).parents[1])
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (here, environment.get("PYTHONPATH"))))
        else:
            environment.pop("PYTHONPATH", None)  # of this environment: its packages are not the peer's
        with self._said.open("w") as said:
            self._process = subprocess.Popen(
                [str(python), str(PROGRAMS / f"with_{program}.py"), str(file)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, env=environment,
                start_new_session=True,
            )  # fmt: skip

    def answer(self, seconds: float) -> dict[str, Any]:
        """The next line that it says. Raises RuntimeError, with its last words, where it ends or is silent for so long."""
        out = self._process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], seconds)
        line = out.readline() if ready else ""
        if not line:
            if ready:
                with suppress(subprocess.TimeoutExpired):  # its last words may come after it has closed its answers
                    self._process.wait(10)
            self.end()
            words = [line.strip() for line in self._said.read_text(errors="replace").splitlines() if line.strip()]
            silent = "" if not ready else f" {words[-1]}" if words else ""
            raise RuntimeError(f"it ended:{silent}" if ready else f"silent for {seconds:g} s")
        return json.loads(line)

    def rates(self, seconds: float) -> tuple[float, float]:
        """Take batches that long -> images a second, images a CPU-second. Raises RuntimeError as `answer`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        found = self.answer(60 + 4 * seconds)
        return found["images"] / found["seconds"], found["images"] / found["cpu_seconds"]

    def end(self) -> None:
        """Kill it with its workers."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # of what it was told last
                    pipe.close()


def run_peers_bench(
    data: Sequence[Path],
    *,
    peers: Sequence[str],
    environments: Path,
    absent: dict[str, str],
    seconds: float,
    rounds: int,
    size: int,
    decoders: list[Decoder] | None = None,
) -> dict[str, Any]:
    """Measure, print a table, -> JSON facts.

    data          the first gives the photos: a folder of JPEG files, or a prepared data set. The others are prepared data sets (tar,
                  RecordIO, ...) that hold the same bytes; each is a further contender of ours
    environments  folder of the peers' environments
    absent        peers that could not be installed, and why
    Raises DataError where there are no photos or a data set has others, PacelineError off Linux.
    """
    require_linux()
    console, cores = Console(), count_cpus()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-peers-")))
        photos = _photos(data[0], folder)
        facts_of_photos = describe_images(photos)
        task = {"photos": [str(path) for path in photos], "size": size, "batch": BATCH, "threads": cores}
        menu = _menu(data, peers, environments, installed_decoders() if decoders is None else decoders)
        console.print(f"{len(photos)} photos, {len(menu)} contenders, {rounds} rounds of {seconds:g} s each")
        absent, running = dict(absent), {}
        for number, (name, (python, program, options)) in enumerate(menu.items()):
            if not python.exists():
                absent.setdefault(
                    name,
                    f"not installed: paceline bench input --install-baselines --baselines {name} --baselines-dir {environments}",
                )
                continue
            process = Process(name, python, program, {**task, "options": options}, folder / str(number))
            stack.callback(process.end)
            try:
                facts = process.answer(START_SECONDS)
            except RuntimeError as problem:
                absent[name] = str(problem)
                console.print(f"{name}: absent: {problem}", markup=False)
                if program == "paceline":
                    raise DataError(f"{name}: {problem}") from None
                continue
            running[name] = (process, facts)
            console.print(f"{name}: {facts['ready']} ({facts['version']})", markup=False)
        works = {name: partial(process.rates, seconds) for name, (process, _) in running.items()}
        measured = run_all_rounds(works, rounds, console.print, absent)
    report = {
        "photos": facts_of_photos,
        "output_size": size,
        "seconds_per_round": seconds,
        "contenders": {name: facts for name, (_, facts) in running.items()},
        "absent": absent,
        **_ratios(measured),
        "machine": machine_facts(torch.device("cpu")),
    }
    console.print(_table(report))
    for name, why in absent.items():
        console.print(f"absent: {name}: {why}", markup=False)
    return report


def _photos(data: Path, folder: Path) -> list[Path]:
    """JPEG files of the first data set: its own, or copies of its records' bytes; at most MAX_PHOTOS, evenly spread."""
    if not (data / FILE_NAME).is_file():
        return _spread(photos_in(data))
    manifest = Manifest.load(data)
    records = open_split(manifest, manifest.learnt).records
    (folder / "photos").mkdir()
    paths = []
    for number in _spread(list(range(len(records)))):
        encoded = records.read(number)
        if encoded[:2] == b"\xff\xd8":
            paths.append(folder / "photos" / f"{number:08d}.jpg")
            paths[-1].write_bytes(encoded)
    if not paths:
        raise DataError(f"{data}: none of its photos is a JPEG, which all contenders read.")
    return paths


def _spread(things: list[Any]) -> list[Any]:
    kept = min(len(things), MAX_PHOTOS)
    return [things[place] for place in (np.arange(kept) * len(things) // max(1, kept)).tolist()]


def _menu(
    data: Sequence[Path], peers: Sequence[str], environments: Path, decoders: list[Decoder]
) -> dict[str, tuple[Path, str, dict[str, Any]]]:
    """name -> interpreter, program, options."""
    own = Path(sys.executable)
    menu: dict[str, tuple[Path, str, dict[str, Any]]] = {}
    for decoder in decoders:
        menu[f"paceline {decoder}, files"] = (own, "paceline", {"decoder": decoder})
    for folder in data:
        if not (folder / FILE_NAME).is_file():
            if folder is not data[0]:
                raise DataError(
                    f"--data {folder}: no {FILE_NAME} there. Prepare it first; only the first may be a plain folder."
                )
            continue
        manifest = Manifest.load(folder)
        images = manifest.splits[manifest.learnt].images
        if images > MAX_RECORDS:
            raise DataError(f"--data {folder}: {images:,} photos; name a set of {MAX_RECORDS:,} at most.")
        for decoder in decoders:
            name = f"paceline {decoder}, {folder.name}"
            menu[name if name not in menu else f"{name} ({folder.parent})"] = (
                own,
                "paceline",
                {"decoder": decoder, "data": str(folder.absolute())},
            )
    menu["torchvision, best workers"] = (own, "torchvision", {})
    menu["torchvision, tuned"] = (own, "torchvision", {"tuned": True})
    for peer in peers:
        menu[peer] = (python_of(environments, peer).absolute(), peer, {})
    menu[BARE] = (own, "paceline", {"bare": True})
    return menu


def _ratios(measured: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """Rates by round, and of each contender of ours its ratio to every other, by CPU time."""
    found = measure_rates(measured)
    cpu = found["images_per_cpu_second"]
    ours = [name for name in cpu if name.startswith("paceline")]
    against = {name: {other: ratio_interval(cpu[name], cpu[other]) for other in cpu if other not in ours} for name in ours}
    return {**found, "ratio_of_images_per_cpu_second": against}


def _table(report: dict[str, Any]) -> Table:
    rates, cpu = report["images_per_second"], report["images_per_cpu_second"]
    shown = Table(title="JPEG files to batches for ResNet-50 (medians over rounds)")
    columns = ["contender", "img/s", "img/CPU-s"]
    ours = list(report["ratio_of_images_per_cpu_second"])[:2]
    for column in [*columns, *(name.split()[1].rstrip(",") for name in ours)]:
        is_name = column == "contender"  # ratios wrap on a narrow terminal: a cut one says nothing
        shown.add_column(column, justify="left" if is_name else "right", no_wrap=is_name)
    shown.caption = "last columns: images of a CPU-second that ours makes from files, over the row"
    for name in sorted(cpu, key=lambda name: -statistics.median(cpu[name])):
        shown.add_row(
            name,
            f"{statistics.median(rates[name]):.0f}",
            f"{statistics.median(cpu[name]):.0f}",
            *(format_ratio(report["ratio_of_images_per_cpu_second"][mine].get(name)) for mine in ours),
        )
    return shown
