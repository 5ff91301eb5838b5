"""`paceline bench step`: the training step beside plain loops around the same network, ResNet's or SSD's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paceline.cli.choose import choose_system
from paceline.cli.flags import parse
from paceline.config.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.config.system import System


@dataclass(frozen=True)
class Flags:
    """What to measure. 0 means the task's usual value, which is named first for classification, then for ssd."""

    task: Literal["classification", "ssd"] = "classification"  # whose step
    depth: int = 0  # depth of the ResNet: 18, 34, 50, 101 or 152; ssd: 18 or 34. Usual: 50; 34
    batch: int = 0  # images of a step. Usual: 32; 8
    size: int = 0  # side of the input, pixels. Usual: 224; 300
    classes: int = 80  # ssd: classes without background
    part: Literal["all", "ops", "step", "eval"] = "all"  # ssd: single operations, the whole step, or evaluation
    rounds: int = 5  # rounds; every contender is timed once in each
    seconds: float = 4.0  # a contender's share of a round
    compile: bool = False  # torch.compile every contender; ssd: further contenders, compiled
    precision: str = ""  # fp32, bf16 or fp16; empty = the system's; ssd: fp32 and the system's
    matrix: int = 2048  # ssd: side of the matrix product that gives the machine's ceiling
    system: str = "auto"  # where to compute
    out: str = ""  # also write the JSON here


def run_step(arguments: Sequence[str]) -> int:
    """Measure, print a table, write the JSON.

    Raises UserError where there would be nothing to measure.
    """
    flags = parse(arguments, Flags(), prog="bench step", description="Training step beside plain loops, interleaved.")
    for name, least in (("depth", 0), ("batch", 0), ("size", 0), ("classes", 1), ("rounds", 1), ("matrix", 1)):
        if getattr(flags, name) < least:
            raise UserError(f"--{name} is {getattr(flags, name)}; it must be at least {max(1, least)}.")
    if flags.precision not in ("", "fp32", "bf16", "fp16"):
        raise UserError(f"--precision {flags.precision}: it must be fp32, bf16 or fp16.")
    system = choose_system(flags.system)
    if flags.precision:
        system = replace(system, precision=flags.precision)  # type: ignore[arg-type]
    return (_ssd if flags.task == "ssd" else _classification)(flags, system)


def _classification(flags: Flags, system: System) -> int:
    from rich.console import Console
    from rich.table import Table

    from paceline.bench.step import StepBench, run_step_bench
    from paceline.machine import choose_device

    depth, batch, size = flags.depth or 50, flags.batch or 32, flags.size or 224
    bench = StepBench(depth, batch, size, flags.rounds, flags.seconds, flags.compile, system)
    facts = run_step_bench(bench, choose_device(system, 0))
    table = Table("contender", "images/s (median)", "ours is faster by")
    for name, rate in facts["median"].items():
        ratio = facts["ratio_to"].get(name)
        table.add_row(name, f"{rate:,.1f}", f"{ratio:.3f} x" if ratio else "")
    Console().print(f"ResNet-{depth}, {batch} x {size} px, {system.precision}, on {facts['device']}")
    Console().print(table)
    _write(flags, facts)
    return 0


def _ssd(flags: Flags, system: System) -> int:
    from rich.console import Console

    from paceline.bench.step_ssd import SSDBench, run_ssd_bench
    from paceline.machine import choose_device

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
        precisions=(system.precision,) if flags.precision or system.precision == "fp32" else ("fp32", system.precision),
        matrix=flags.matrix,
        part=flags.part,
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
