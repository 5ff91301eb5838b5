"""`paceline bench input`: photos to training batches, beside torchvision in a torch DataLoader and the bare decoder.

All contenders run in one process, one after the other, round after round, so a machine that slows down slows them all.
Each is started, warmed up, and only then measured over whole batches; importing, starting and stopping are outside the
measured interval. CPU-seconds are user plus system of this process and all its living descendants.
With `--task detection` images come with their boxes, and with `--task instance-segmentation` with boxes and masks, as in training.
`bare decode` decodes whole photos and does nothing else. Ours compare each photo's bytes with its digest, as training does; a second
contender, "unchecked", leaves that out with the first decoder, and the ratio to it is what it costs.
`--scaling 1 2 4` measures the rate by number of workers: each contender is warmed up longer, and its memory and switches are counted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Column, Table

from paceline._utils.errors import DataError, PacelineError, RecipeError
from paceline._utils.names import list_matching, walk_visible
from paceline._utils.platform import count_cpus
from paceline._utils.reporter import Lines
from paceline.config.recipe import Evaluation, Recipe
from paceline.config.resnet import Decoder, ImageInput
from paceline.data.index.manifest import Manifest
from paceline.data.prepare.auto_prepare import prepare_if_needed
from paceline.data.transforms.decode import require_decoder
from paceline.data.transforms.image_io import read_header
from paceline.models.registry import WORKLOADS
from paceline.tools.bench import WHERE, find_peers
from paceline.tools.bench.harness import format_ratio, machine_facts, ratio_interval, run_all_rounds
from paceline.tools.bench.input_cases import (
    bare_decode,
    cpu_seconds,
    memory_mib,
    open_file_records,
    paceline_loader,
    task_batches,
    voluntary_switches,
)
from paceline.tools.bench.tables import compact_table
from paceline.tools.report.prepare_notes import prepare_lines

WARM_UP_BATCHES = 3
STEPS = 1_000_000  # more than are ever taken
WARM_UP_SECONDS, MAX_WORKERS = 2.0, 1024  # of --scaling
_SUFFIXES = {".jpg", ".jpeg", ".jpe"}
# Name of a value that --scaling measures -> its column, and how it is printed.
COLUMNS = {
    "images_per_second": ("images/s", ",.0f"),
    "cpu_ms": ("CPU ms per image", ".2f"),
    "voluntary_switches": ("switches per image", ".2f"),
    "memory_mib": ("memory (MiB)", ",.0f"),
    "first_batch_seconds": ("first batch (s)", ".2f"),
}
Measured = dict[str, float]
Menu = Mapping[str, Callable[[], Any]]  # name -> what makes the contender: a context manager around `take() -> images`


@dataclass(frozen=True)
class InputBenchmark:
    """The same photos for every contender."""

    task: str
    title: str
    settings: Any
    size: int  # of the output, pixels: its side, or the shorter one
    paths: list[Path]
    ours: Menu  # our contenders
    with_workers: Callable[[int], Any]  # the first of ours, with that number of workers
    objects: int = 0  # in all photos, where a task has objects
    boxes: Sequence[np.ndarray] = ()  # of each photo (n, 4) xywh pixels
    classes: Sequence[np.ndarray] = ()  # of each photo (n,)
    annotations: Path | None = None  # COCO's file, from which others read masks


def classification(data: Path, *, size: int, decoders: list[Decoder]) -> InputBenchmark:
    """The photos of a folder, at any depth. Raises DataError where there are none."""
    paths, size = photos_in(data), size or 224
    cores, records = count_cpus(), open_file_records(paths)
    menu = {f"paceline {one}, {cores} workers": partial(paceline_loader, records, size, cores, one) for one in decoders}
    menu[f"unchecked paceline {decoders[0]}, {cores} workers"] = partial(
        paceline_loader, records.unchecked(), size, cores, decoders[0]
    )
    title, first = "decode + RandomResizedCrop + flip", partial(paceline_loader, records, size, decoder=decoders[0])
    return InputBenchmark("classification", title, ImageInput(image_size=size), size, paths, menu, first)


def ssd(data: Path, *, size: int, decoders: list[Decoder]) -> InputBenchmark:
    """A data set with boxes: its training photos that have objects.

    "matrix" is less work than others do, a linear jitter; every ratio that is told should be that of "hsv".
    """
    settings = replace(WORKLOADS["detection"].input, image_size=size or 300)
    forms = {
        f"{one}, {jitter}": {"decoder": one, "color_jitter": jitter} for one in decoders for jitter in ("hsv", "matrix")
    }
    return _with_objects(
        "detection", "decode + SSD crop + flip + resize + color jitter", data, settings, settings.image_size, forms, 64
    )


def maskrcnn(data: Path, *, size: int, decoders: list[Decoder]) -> InputBenchmark:
    """A data set with masks in COCO's layout; the longer side has 5/3 of the shorter one's `size` at most.

    Batches of 8: one takes 25 MB, and torchvision's masks of its objects twice that.
    """
    short = size or 800
    settings = replace(WORKLOADS["instance-segmentation"].input, min_size=(short,), max_size=int(short * 1333 / 800))
    result = _with_objects("instance-segmentation", "decode + resize + flip with boxes and masks", data, settings, short, {
        one: {"decoder": one} for one in decoders
    }, 8)  # fmt: skip
    annotations = list_matching(data / "annotations", "instances_train*.json")
    if not annotations:
        raise DataError(
            f"{data}: annotations/instances_train*.json not found, which the dataset of torchvision requires.\n"
            "Pass a dataset in the COCO layout:  --data DIR"
        )
    return replace(result, annotations=annotations[0])


CONTESTS = {"classification": classification, "detection": ssd, "instance-segmentation": maskrcnn}


def get_task(name: str, manifest: Manifest, settings: Any, batch: int, images: int = 0) -> Any:
    """The training task with this input, on so many images; 0 = without end."""
    recipe = Recipe(
        task=name, model=WORKLOADS[name].model, input=settings, target_data="coco", global_batch_size=batch,
        max_images=images or STEPS * batch, bn_batch_size=1, eval=Evaluation(unit="fraction"),
    )  # fmt: skip
    return WORKLOADS[name].open(recipe, manifest)


def _with_objects(
    name: str, title: str, data: Path, settings: Any, size: int, forms: Mapping[str, Mapping[str, Any]], batch: int
) -> InputBenchmark:
    """forms: of our input, name -> the settings that it changes."""
    reporter = Lines(Console().print, prepare_lines)
    manifest, cores = Manifest.load(prepare_if_needed(data, kind="boxes", reporter=reporter)), count_cpus()
    task = get_task(name, manifest, settings, batch)
    if not task.data.train_images:
        raise DataError(f"{data}: no training image has an object. Pass annotated images:  --data DIR")
    tasks = {form: get_task(name, manifest, replace(settings, **changed), batch) for form, changed in forms.items()}
    menu = {f"paceline {form}, {cores} workers": partial(task_batches, one, cores) for form, one in tasks.items()}
    first = next(iter(tasks))
    menu[f"unchecked paceline {first}, {cores} workers"] = partial(task_batches, tasks[first], cores, False)
    numbers = task.data.train_numbers.tolist()
    rows = [task.data.wanted_rows(number) for number in numbers]
    return InputBenchmark(
        name,
        title,
        settings,
        size,
        [Path(task.data.train.index.name(number)) for number in numbers],
        menu,
        partial(task_batches, tasks[first]),
        int(task.data.wanted.sum()),
        [task.data.train.boxes[some] for some in rows],
        [task.data.train.classes[some] for some in rows],
    )


def run_input_bench(
    find: Callable[..., InputBenchmark],
    data: Path,
    *,
    seconds: float,
    rounds: int,
    size: int = 0,
    decoders: list[Decoder] | None = None,
) -> dict[str, Any]:
    """Measure, print a table, -> JSON facts.

    find      the task's contest: of CONTESTS
    seconds   measured per contender and round
    decoders  ours to run; None: the default and every extra that is installed
    Raises DataError for data that cannot be used, RecipeError when a decoder is missing, PacelineError off Linux.
    """
    require_linux()
    chosen = installed_decoders() if decoders is None else decoders
    for decoder in chosen:
        require_decoder(decoder)
    contest, cores, console = find(data, size=size, decoders=chosen), count_cpus(), Console()
    menu, theirs = dict(contest.ours), find_peers("input_torchvision")
    if theirs is None:
        console.print(f"{WHERE}; measuring only paceline", markup=False)
    else:
        menu |= theirs.contenders(contest, cores)
    menu[f"bare decode, {cores} threads"] = partial(bare_decode, contest.paths, cores)
    console.print(f"{len(contest.paths)} images, {len(menu)} candidates, {rounds} rounds of {seconds:g} s each")
    measured = run_all_rounds(
        {name: partial(steady_rates, make, seconds) for name, make in menu.items()}, rounds, console.print
    )
    report = {
        "photos": describe_images(contest.paths),
        "objects": contest.objects,
        "output_size": contest.size,
        "seconds_per_round": seconds,
        **measure_rates(measured),
        **compare_rates(measured),
        "machine": machine_facts(torch.device("cpu")),
    }
    console.print(_table(report, f"{contest.title} into a batch (medians over rounds)"))
    return report


def photos_in(data: Path) -> list[Path]:
    """The JPEG files in a folder, at any depth, sorted. Raises DataError where there are none."""
    files = (Path(location, name) for location, _, names in walk_visible(data) for name in names)
    paths = sorted(path for path in files if path.suffix.lower() in _SUFFIXES)
    if not paths:
        raise DataError(f"{data}: no JPEG images found in this folder.\nPass a folder with images:  --data DIR")
    return paths


def installed_decoders() -> list[Decoder]:
    """The default decoder and every extra that can be imported here."""
    result: list[Decoder] = ["simplejpeg"]
    with suppress(RecipeError):
        require_decoder("nvimgcodec")
        result.append("nvimgcodec")
    return result


def require_linux() -> None:
    """Raises PacelineError elsewhere."""
    if not Path("/proc/self/stat").exists():
        raise PacelineError("bench input: only supported on Linux, because it reads CPU times from /proc.")


def steady_rates(make: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """-> (images a second, images a CPU-second) in steady state."""
    with make() as take:
        for _ in range(WARM_UP_BATCHES):
            take()
        cpu, began = cpu_seconds(), time.perf_counter()
        images = take()
        while (wall := time.perf_counter() - began) < seconds:
            images += take()
        return images / wall, images / (cpu_seconds() - cpu)


def measure_rates(measured: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """Rates of every contender in each round."""
    return {
        "images_per_second": {name: [wall for wall, _ in rounds] for name, rounds in measured.items()},
        "images_per_cpu_second": {name: [cpu for _, cpu in rounds] for name, rounds in measured.items()},
    }


def compare_rates(measured: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """Ratios of ours to the best and the tuned peer, to bare decoding, and to ours without comparing bytes, by CPU time."""
    cpu = measure_rates(measured)["images_per_cpu_second"]
    others = {"tuned peer": "tuned", "bare decode": "bare", "unchecked": "unchecked"}
    against = {what: name for what, begin in others.items() for name in cpu if name.startswith(begin)}
    torchvision = [name for name in cpu if name.startswith("torchvision")]
    if torchvision:
        against = {"best peer": max(torchvision, key=lambda name: statistics.median(cpu[name]))} | against
    mine = [name for name in cpu if name.startswith("paceline")]
    return {
        "best_peer": against.get("best peer", ""),
        "ratio_of_images_per_cpu_second": {
            name: {what: ratio_interval(cpu[name], cpu[other]) for what, other in against.items()} for name in mine
        },
    }


def describe_images(paths: Sequence[Path]) -> dict[str, Any]:
    """How many photos, and how large they are."""
    photos = [path.read_bytes() for path in paths]
    headers = [read_header(photo, str(path)) for photo, path in zip(photos, paths)]
    return {
        "count": len(paths),
        "mean_bytes": statistics.fmean(len(photo) for photo in photos),
        "mean_megapixels": statistics.fmean(header.height * header.width for header in headers) / 1e6,
    }


def _table(report: Mapping[str, Any], title: str) -> Table:
    ratios = report["ratio_of_images_per_cpu_second"]
    against = list(next(iter(ratios.values())))
    table = compact_table(
        Column("contender", min_width=13, overflow="fold"),
        *(Column(name, min_width=8, justify="right") for name in ("images/s", "images per CPU-second")),
        *(Column(f"x {what.replace('peer', 'baseline')}", width=8, justify="right") for what in against),
        title=title,
    )
    for name, rounds in report["images_per_cpu_second"].items():
        table.add_row(
            name + (" (best baseline)" if name == report["best_peer"] else ""),
            f"{statistics.median(report['images_per_second'][name]):.0f}",
            f"{statistics.median(rounds):.0f}",
            *(format_ratio(ratios[name][what]) if name in ratios else "" for what in against),
        )
    return table


def parse_worker_counts(requested: Sequence[int]) -> list[int]:
    """What --scaling names; 0: 1, 2, 4, ... up to twice the usable cores. Raises RecipeError for a number that cannot be."""
    if any(not 0 <= count <= MAX_WORKERS for count in requested):
        raise RecipeError(
            f"--scaling {' '.join(map(str, requested))}: must be numbers from 1 to {MAX_WORKERS}, or 0 for 1, 2, 4, ..."
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
        console.print(f"{WHERE}; measuring only paceline", markup=False)
    menu: dict[str, Callable[[], Any]] = {}
    for count in workers:
        menu[f"paceline {count}"] = partial(contest.with_workers, count)
        if theirs is not None:
            menu[f"torchvision {count}"] = partial(theirs.loader_of(contest), count, "tensor")
    console.print(f"{len(contest.paths)} images, {len(menu)} candidates, {rounds} rounds of {seconds:g} s each")
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
    console.print(_scaling_table(median, f"{contest.title} into a batch, {count_cpus()} cores (medians over rounds)"))
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


def _scaling_table(median: Mapping[str, Measured], title: str) -> Table:
    """A row for each contender; of the first number of workers, rates are also shown as multiples."""
    table = compact_table(
        Column("loader, workers", width=15),
        *(Column(name, width=8, justify="right") for name, _ in COLUMNS.values()),
        Column("x first row", width=6, justify="right"),
        title=title,
    )
    least: dict[str, float] = {}
    for name, row in median.items():
        first = least.setdefault(name.split()[0], row["images_per_second"])
        cells = [format(row[key], form) for key, (_, form) in COLUMNS.items()]
        table.add_row(name, *cells, f"{row['images_per_second'] / first:.2f}")
    return table
