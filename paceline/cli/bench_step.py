"""`paceline bench step`: the training step beside plain loops around the same network, ResNet's, SSD's or Mask R-CNN's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paceline.cli.choose import choose_system
from paceline.cli.flags import parse
from paceline.config.errors import UserError
from paceline.tasks.workload import Workload
from paceline.workloads import WORKLOADS

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.config.system import Precision, System


Part = Literal["all", "ops", "step", "eval", "predict", "shapes"]


@dataclass(frozen=True)
class Flags:
    """What to measure. 0 means the task's usual value; usual values stand in the order of the tasks."""

    task: str = "classification"  # whose step: a workload
    depth: int = 0  # depth of the ResNet: 18, 34, 50, 101 or 152; ssd: 18 or 34; maskrcnn: to 101. Usual: 50; 34; 50
    batch: int = 0  # images of a step. Usual: 32; 8; 1
    size: int = 0  # side of the input, pixels. Usual: 224; 300
    height: int = 800  # maskrcnn: height of the input, pixels
    width: int = 1216  # maskrcnn: width of the input, pixels
    classes: int = 80  # ssd, maskrcnn: classes without background
    objects: int = 7  # maskrcnn: objects of an image
    positives: tuple[int, ...] = (30, 128)  # maskrcnn: sampled positive regions of an image; a run for each
    part: Part = "all"  # ssd, maskrcnn: operations, whole step, evaluation or prediction; or --data's shapes
    rounds: int = 5  # rounds; every contender is timed once in each
    seconds: float = 4.0  # a contender's share of a round, at least one step
    compile: bool = False  # further contenders, compiled by torch.compile; not for maskrcnn
    precision: str = ""  # fp32, bf16, fp16 or several, as bf16,fp16; empty = the system's (ssd, maskrcnn: fp32 too)
    matrix: int = 2048  # ssd, maskrcnn: side of the matrix product that gives the machine's ceiling
    threads: int = 0  # maskrcnn: threads that compute on a CPU; 0 = as torch has it
    data: Path | None = None  # maskrcnn --part shapes: the data set whose shapes are counted
    system: str = "auto"  # where to compute
    out: str = ""  # also write the JSON here


def run_step(arguments: Sequence[str]) -> int:
    """Measure, print a table, write the JSON.

    Raises UserError where there would be nothing to measure.
    """
    flags = parse(arguments, Flags(), prog="bench step", description="Training step beside plain loops, interleaved.")
    for name, least in (
        ("depth", 0), ("batch", 0), ("size", 0), ("classes", 1), ("rounds", 1), ("matrix", 1), ("threads", 0), ("objects", 1),
    ):  # fmt: skip
        if getattr(flags, name) < least:
            raise UserError(f"--{name} is {getattr(flags, name)}; it must be at least {max(1, least)}.")
    if not set(flags.precision.split(",")) <= {"", "fp32", "bf16", "fp16"}:
        raise UserError(f"--precision {flags.precision}: it must be fp32, bf16 or fp16, or several: bf16,fp16.")
    workload = benched(flags.task, "step")
    if flags.compile and workload.no_compile:
        raise UserError(f"--compile: {flags.task}: {workload.no_compile}; in training neither (docs/architecture.md).")
    return workload.bench["step"](flags)


def benched(task: str, kind: str) -> Workload:
    """The workload of that name, which `paceline bench KIND` can measure. Raises UserError for others."""
    # One in a file may have been made from ours, and these measure our own networks.
    known = [name for name, workload in WORKLOADS.items() if kind in workload.bench]
    if task not in known:
        raise UserError(f"--task {task}: bench {kind} does not know how to measure it. It measures {', '.join(known)}.")
    return WORKLOADS[task]


def _parts(flags: Flags, parts: Sequence[Part]) -> None:
    if flags.part not in parts:
        raise UserError(f"--part {flags.part}: --task {flags.task} has {', '.join(parts)}.")


def _precisions(flags: Flags, system: System, *usual: Precision) -> tuple[Precision, ...]:
    """Those asked for; else the usual ones and the system's."""
    asked = flags.precision.split(",") if flags.precision else dict.fromkeys((*usual, system.precision))
    return tuple(asked)  # type: ignore[arg-type]


def maskrcnn(flags: Flags) -> int:
    """Of Mask R-CNN."""
    from paceline.bench.step_maskrcnn import MaskRCNNBench
    from paceline.cli.bench_maskrcnn import run_bench, run_shapes
    from paceline.config.instances import MaskRCNNModel

    _parts(flags, ("all", "ops", "step", "predict", "shapes"))
    if flags.part == "shapes":
        return run_shapes(flags.data, flags.batch or 2, flags.positives, lambda facts: _write(flags, facts))
    system = choose_system(flags.system)
    depth = flags.depth or 50
    if depth not in (18, 34, 50, 101):
        raise UserError(f"--depth {depth}: Mask R-CNN's trunk is a ResNet of depth 18, 34, 50 or 101 here.")
    for name in ("height", "width"):
        if getattr(flags, name) < 64 or getattr(flags, name) % 32:
            raise UserError(
                f"--{name} {getattr(flags, name)}: a multiple of 32, the trunk's coarsest stride, from 64 on."
            )
    model = MaskRCNNModel(depth=depth)  # type: ignore[arg-type]
    most = int(model.roi.samples * model.roi.positive_share)
    if not flags.positives or not all(flags.objects <= count <= most for count in flags.positives):
        raise UserError(
            f"--positives {' '.join(map(str, flags.positives))}: each from --objects {flags.objects}, which are positive "
            f"themselves, to {most}, which an image may have."
        )
    bench = MaskRCNNBench(
        batch=flags.batch or 1,
        height=flags.height,
        width=flags.width,
        classes=flags.classes,
        objects=flags.objects,
        positives=flags.positives,
        rounds=flags.rounds,
        seconds=flags.seconds,
        precisions=_precisions(flags, system, "fp32"),
        matrix=flags.matrix,
        threads=flags.threads,
        part=flags.part,  # type: ignore[arg-type]
        system=system,
        model=model,
    )
    return run_bench(bench, lambda facts: _write(flags, facts))


def classification(flags: Flags) -> int:
    """Of a ResNet."""
    from rich.console import Console
    from rich.table import Table

    from paceline.bench.step import StepBench, run_step_bench
    from paceline.machine import choose_device

    _parts(flags, ("all", "step"))
    system = choose_system(flags.system)
    precisions = _precisions(flags, system)
    depth, batch, size = flags.depth or 50, flags.batch or 32, flags.size or 224
    bench = StepBench(depth, batch, size, flags.rounds, flags.seconds, flags.compile, precisions, system)
    facts = run_step_bench(bench, choose_device(system, 0), lambda known: _write(flags, known))
    for precision, step in facts["step"].items():
        table = Table("contender", "images/s (median)", "ours is faster by")
        for name, rate in step["median"].items():
            ratio = step["ratio_to"].get(name)
            table.add_row(name, f"{rate:,.1f}", f"{ratio:.3f} x" if ratio else "")
        Console().print(f"ResNet-{depth}, {batch} x {size} px, {precision}, on {facts['device']}")
        Console().print(table)
        _print_absent(step, Console())
    return 0


def _print_absent(step: Mapping[str, Any], console: Console) -> None:
    for name, reason in step["absent"].items():
        console.print(f"absent: {name}: {reason}")


def ssd(flags: Flags) -> int:
    """Of SSD."""
    from rich.console import Console

    from paceline.bench.step_ssd import SSDBench, run_ssd_bench
    from paceline.machine import choose_device

    _parts(flags, ("all", "ops", "step", "eval"))
    system = choose_system(flags.system)
    depth = flags.depth or 34
    if depth not in (18, 34):
        raise UserError(f"--depth {depth}: SSD's trunk is a ResNet of depth 18 or 34 here.")
    if flags.size and flags.size < 64:
        raise UserError(f"--size {flags.size}: SSD needs an input of at least 64 pixels.")
    bench = SSDBench(
        depth=depth,
        batch=flags.batch or 8,
        size=flags.size or 300,
        classes=flags.classes,
        rounds=flags.rounds,
        seconds=flags.seconds,
        compile=flags.compile,
        precisions=_precisions(flags, system, "fp32"),
        matrix=flags.matrix,
        part=flags.part,  # type: ignore[arg-type]
        system=system,
    )
    # Written after each part: a machine that is taken away leaves what it has measured.
    facts = run_ssd_bench(bench, choose_device(system, 0), lambda known: _write(flags, known))
    console = Console()
    console.print(
        f"SSD, ResNet-{depth}, {bench.batch} x {bench.size} px, {bench.classes} classes, on {facts['device']}, "
        f"{facts['threads']} threads"
    )
    _print_operations(facts, console)
    for precision, step in facts.get("step", {}).items():
        _print_step(precision, step, facts["gflop_per_image"], console)
    for precision, found in facts.get("evaluation", {}).items():
        rates = ", ".join(f"{name} {rate:,.1f}" for name, rate in found["images_per_second"].items())
        console.print(f"evaluation with detections, {precision}, images/s: {rates}")
    return 0


def _print_operations(facts: Mapping[str, Any], console: Console) -> None:
    from rich.table import Table

    if "operations" not in facts:
        return
    table = Table("operation", "contender", "ms (median)", "ours is faster by", "in CPU time by", "same result")
    for row in facts["operations"]["rows"]:
        for name, seconds in row["median_seconds"].items():
            peer = name in row["agrees"]
            table.add_row(
                row["operation"],
                name,
                f"{1000 * seconds:,.2f}",
                f"{row['times_faster'][name]:,.2f} x" if peer else "",
                f"{row['times_faster_cpu'][name]:,.2f} x" if peer else "",
                ("yes" if row["agrees"][name] else f"NO: {row['difference'][name]:.1e}") if peer else "",
            )
    console.print(
        f"{facts['operations']['images']} images, {facts['default_boxes']:,} default boxes; loss includes matching"
    )
    console.print(table)


def _print_step(precision: str, step: Mapping[str, Any], gflop: float, console: Console) -> None:
    from rich.table import Table

    table = Table(
        f"step, {precision}", "images/s (median)", "ours is faster by", "in CPU time by", "of the matrix ceiling"
    )
    for name, rate in step["images_per_second"].items():
        ratio, cpu = step["times_faster"].get(name), step["times_faster_cpu"].get(name)
        table.add_row(
            name,
            f"{rate:,.2f}",
            f"{ratio:.3f} x" if ratio else "",
            f"{cpu:.3f} x" if cpu else "",
            f"{step['share_of_matrix_ceiling'][name]:.1%}",
        )
    console.print(table)
    _print_absent(step, console)
    console.print(f"{gflop:.1f} GFLOP an image; matrix products reach {max(step['matrix_gflops']):,.0f} GFLOP/s")
    if step["waits_for_the_device"] is not None:
        console.print(f"host waits for the device: {step['waits_for_the_device'] or 'never'}")
    where = step["where_milliseconds"]
    kinds = list(dict.fromkeys(kind for spent in where.values() for kind in spent))
    table = Table("one profiled step, ms", *where)
    for kind in kinds:
        table.add_row(kind, *(f"{spent.get(kind, 0.0):,.1f}" for spent in where.values()))
    console.print(table)


def _write(flags: Flags, facts: Mapping[str, Any]) -> None:
    if flags.out:
        Path(flags.out).parent.mkdir(parents=True, exist_ok=True)
        Path(flags.out).write_text(json.dumps(facts, indent=1) + "\n")
