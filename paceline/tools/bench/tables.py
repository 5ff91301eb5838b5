"""What `paceline bench step` prints: operations and steps of every workload, as the harness reports them (tools/bench/harness.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from paceline.tools.bench.harness import format_ratio


def compact_table(*columns: Column, title: str) -> Table:
    """A table that is legible on a terminal of 80 columns: where its columns say so, names and headers wrap, never a number."""
    return Table(
        *columns,
        title=title,
        title_style="none",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )


def print_operations(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """A row a contender; ratios with their intervals."""
    table = Table("operation", _name("candidate"), "ms (median)", "paceline speedup", "CPU time speedup", "same result")
    for row in rows:
        for name, seconds in row["median_seconds"].items():
            same = row["agrees"].get(name)
            table.add_row(
                row["operation"],
                name,
                f"{1000 * seconds:,.2f}",
                format_ratio(row["times_faster"].get(name)),
                format_ratio(row["times_faster_cpu"].get(name)),
                "" if same is None else "yes" if same else f"NO: {row['difference'][name]:.1e}",
            )
    console.print(table)


def print_step(words: str, step: Mapping[str, Any], console: Console) -> None:
    """Of one batch in one number format."""
    further = [name for name in ("positives_an_image",) if name in step]
    numbers = (
        ("images/s (median)", 5),
        ("CPU-s", 6),
        ("paceline speedup", 8),
        ("CPU time speedup", 8),
        ("GFLOP", 7),
        ("of the ceiling", 7),
    )
    table = compact_table(
        Column("contender", min_width=13, overflow="fold"),
        *(Column(header, min_width=width) for header, width in numbers),
        *(Column(name.replace("_", " "), min_width=4, overflow="fold") for name in further),
        title=f"step, {words}",
    )
    for name, rate in step["images_per_second"].items():
        table.add_row(
            name,
            f"{rate:,.2f}",
            f"{step['median_cpu_seconds'][name]:.3f}",
            format_ratio(step["times_faster"].get(name)),
            format_ratio(step["times_faster_cpu"].get(name)),
            f"{step['gflop'][name]:,.1f}" if name in step["gflop"] else "",
            f"{step['share_of_ceiling'][name]:.1%}",
            *(f"{step[fact][name]:.0f}" if name in step[fact] else "" for fact in further),
        )
    console.print(table)
    for name, reason in step["absent"].items():
        console.print(f"not measured: {name}: {reason}", markup=False)
    ceiling = step["ceiling"]
    console.print(f"the ceiling, {ceiling['gflops']:,.0f} GFLOP/s, is {ceiling['kernel']}", markup=False)
    if step["waits_for_the_device"] is not None:
        console.print(f"the host waits for the device: {step['waits_for_the_device'] or 'never'}", markup=False)
    where = step["where_milliseconds"]
    table = Table(_name("one profiled step (ms)"), *where)
    for kind in dict.fromkeys(kind for spent in where.values() for kind in spent):
        table.add_row(kind, *(f"{spent.get(kind, 0.0):,.1f}" for spent in where.values()))
    console.print(table)


def _name(header: str) -> Column:
    return Column(header, no_wrap=True)


def print_prediction(precision: str, row: Mapping[str, Any], batch: int, console: Console) -> None:
    """From pixels to what is found."""
    for name, seconds in row["median_seconds"].items():
        faster, cpu = (format_ratio(row[key].get(name)) for key in ("times_faster", "times_faster_cpu"))
        beside = f"; paceline speedup {faster}, CPU time speedup {cpu}" if faster else ""
        apart = f"; {row['difference'][name]:.1%} of the predictions differ" if not row["agrees"].get(name, True) else ""
        console.print(f"predict, {precision}, {name}: {batch / seconds:,.2f} images/s{beside}{apart}", markup=False)
