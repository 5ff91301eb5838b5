"""`paceline bench step`: the training step beside torchvision's and timm's model in a plain loop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.cli.choose import choose_system
from paceline.cli.flags import parse


@dataclass(frozen=True)
class Flags:
    """What to measure."""

    depth: int = 50  # depth of the ResNet: 18, 34, 50, 101 or 152
    batch: int = 32  # images of a step
    size: int = 224  # side of the input, pixels
    rounds: int = 5  # rounds; every contender is timed once in each
    seconds: float = 4.0  # a contender's share of a round
    compile: bool = False  # torch.compile every contender
    precision: str = ""  # fp32, bf16 or fp16; empty = the system's
    system: str = "auto"  # where to compute
    out: str = ""  # also write the JSON here


def run_step(arguments: Sequence[str]) -> int:
    """Measure, print a table, write the JSON."""
    flags = parse(arguments, Flags(), prog="bench step", description="Training step beside plain loops, interleaved.")
    from rich.console import Console
    from rich.table import Table

    from paceline.bench.step import StepBench, run_step_bench
    from paceline.machine import choose_device

    system = choose_system(flags.system)
    if flags.precision:
        system = replace(system, precision=flags.precision)  # type: ignore[arg-type]
    bench = StepBench(flags.depth, flags.batch, flags.size, flags.rounds, flags.seconds, flags.compile, system)
    facts = run_step_bench(bench, choose_device(system, 0))
    table = Table("contender", "images/s (median)", "ours is faster by")
    for name, rate in facts["median"].items():
        ratio = facts["ratio_to"].get(name)
        table.add_row(name, f"{rate:,.1f}", f"{ratio:.3f} x" if ratio else "")
    Console().print(f"ResNet-{flags.depth}, {flags.batch} x {flags.size} px, {system.precision}, on {facts['device']}")
    Console().print(table)
    if flags.out:
        Path(flags.out).parent.mkdir(parents=True, exist_ok=True)
        Path(flags.out).write_text(json.dumps(facts, indent=1) + "\n")
    return 0
