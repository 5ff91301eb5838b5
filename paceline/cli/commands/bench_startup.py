"""`paceline bench startup`: the time from Enter to the first work, beside `import torch` alone."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from paceline._utils.atomic_write import check_user_file
from paceline._utils.errors import PacelineError
from paceline.cli.flags import parse
from paceline.cli.printing import Printer, write_answer
from paceline.config.constraints import Help
from paceline.models.registry import WORKLOADS, get_workload
from paceline.tools.bench.baselines import require_peers


@dataclass(frozen=True)
class BenchStartupFlags:
    """What to measure."""

    workloads: Annotated[tuple[str, ...], Help("whose commands")] = tuple(WORKLOADS)
    rounds: Annotated[int, Help("rounds; each command is started once in every one, after a plain `import torch`")] = 5
    json: Annotated[bool, Help("print one JSON object instead of tables")] = False
    out: Annotated[str, Help("also write the JSON here")] = ""


def run_startup(printer: Printer, arguments: Sequence[str]) -> int:
    """Measure, print two tables, write the JSON.

    Raises PacelineError where there would be nothing to measure.
    """
    flags = parse(printer, arguments, BenchStartupFlags(), "bench startup", "From Enter to the first work, interleaved.")
    check_user_file(flags.out)
    if flags.rounds < 1:
        raise PacelineError(f"--rounds is {flags.rounds}; it must be at least 1.")
    for name in flags.workloads:
        get_workload(name)
    measure = require_peers("startup", "bench startup").measure

    with tempfile.TemporaryDirectory(prefix="paceline-startup-") as folder:
        facts = measure(flags.workloads, flags.rounds, Path(folder), say=(lambda _: None) if flags.json else print)
    write_answer(facts, out=flags.out, printed=flags.json)
    if not flags.json:
        _print(facts)
    return 0


def _print(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from paceline.tools.bench.harness import format_ratio

    console, machine = Console(), facts["machine"]
    times = Table("command", "s (median)", "x torch", "s beyond it", "CPU-s", "x torch")
    imports = Table("command", "modules", "heaviest imports, s of their own")
    for name, result in facts["commands"].items():
        times.add_row(
            name,
            f"{result['median_seconds']:.2f}",
            format_ratio(result["times_import_torch"]),
            f"{result['beyond_import_torch']:+.2f}",
            f"{result['median_cpu_seconds']:.2f}",
            format_ratio(result["times_import_torch_cpu"]),
        )
        heavy = "  ".join(f"{module} {seconds:.2f}" for module, seconds in result["imports"]["heaviest"])
        imports.add_row(name, f"{result['imports']['modules']:,}", heavy)
    console.print(
        f"{facts['rounds']} rounds of fresh interpreters on {machine['device']}, {machine['cores']} cores, load "
        f"{machine['load_before'][0]:.1f} before and {machine['load_after'][0]:.1f} after; torch {machine['versions']['torch']}. "
        "x torch: times as long as `import torch` alone"
    )
    console.print(times)
    console.print(imports)
