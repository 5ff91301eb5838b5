"""The tables of `paceline bench step --task maskrcnn`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.config.errors import RecipeError

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.bench.step_maskrcnn import MaskRCNNBench

Write = Callable[[Mapping[str, Any]], None]


def run_bench(bench: MaskRCNNBench, write: Write) -> int:
    """Measure, print; `write` gets the JSON after each part: a machine that is taken away leaves what it has measured."""
    from rich.console import Console

    from paceline.bench.step_maskrcnn import run_maskrcnn_bench
    from paceline.machine import choose_device

    facts = run_maskrcnn_bench(bench, choose_device(bench.system, 0), write)
    console = Console()
    console.print(
        f"Mask R-CNN, ResNet-{bench.model.depth}, {bench.batch} x {bench.height} x {bench.width} px, {bench.classes} "
        f"classes, on {facts['device']}, {facts['threads']} threads"
    )
    if "operations" in facts:
        _print_operations(facts["operations"], console)
    for precision, steps in facts.get("step", {}).items():
        for positives, step in steps.items():
            _print_step(precision, positives, step, console)
    for precision, found in facts.get("predict", {}).items():
        for name, seconds in found["median_seconds"].items():
            console.print(
                f"predict with masks, {precision}, {name}: {seconds:.3f} s, {found['detections'][name]} found"
            )
        console.print(
            f"ours is faster by {found['times_faster']['torchvision']:.2f}, in CPU time by "
            f"{found['times_faster_cpu']['torchvision']:.2f}"
        )
    return 0


def run_shapes(data: Path | None, batch: int, positives: tuple[int, ...], write: Write) -> int:
    """Count the shapes of an epoch, and what of them is empty.

    Raises RecipeError without a data set.
    """
    from rich.console import Console

    from paceline.bench.shapes_maskrcnn import count_shapes
    from paceline.config.instances import InstanceInput

    if data is None:
        raise RecipeError("name a data set with masks: paceline bench step --task maskrcnn --part shapes --data DIR")
    facts = count_shapes(data, InstanceInput(), batch=batch, each=batch, positives=positives, epochs=1)
    write(facts)
    console = Console()
    console.print(
        f"{facts['images']:,} photos, {facts['objects']:,} objects, {batch} a forward: {facts['distinct_shapes']} shapes of "
        f"{len(facts['buckets'])} buckets; {facts['padding']:.1%} of pixels are padding, {facts['empty_object_slots']:.1%} of "
        "object slots are empty"
    )
    for count, slots in facts["mask_slots"].items():
        console.print(
            f"mask-head slots with {count} positive regions an image: {slots['empty_on_an_accelerator']:.1%} of {slots['slots']} "
            f"empty on an accelerator ({slots['gflop_of_empty_slots_forward']:.0f} GFLOP an image forward), none on a CPU"
        )
    return 0


def _print_operations(rows: list[Mapping[str, Any]], console: Console) -> None:
    from rich.table import Table

    table = Table("operation", "contender", "ms (median)", "ours is faster by", "in CPU time by", "same result")
    for row in rows:
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
    console.print(table)


def _print_step(precision: str, positives: str, step: Mapping[str, Any], console: Console) -> None:
    from rich.table import Table

    table = Table(
        f"step, {precision}", "s (median)", "CPU-s", "CPU-s less update", "positives", "GFLOP", "of the ceiling",
        "ours is faster by", "in CPU time by", "(spread)",
    )  # fmt: skip
    # Neighbours on a busy machine change CPU time less than wall time; a GPU's work takes no CPU time.
    shares = step["share_of_matrix_ceiling" + ("_cpu" if step["waits_for_the_device"] is None else "")]
    for name, seconds in step["median_seconds"].items():
        wall, cpu = step["times_faster"].get(name), step["times_faster_cpu"].get(name)
        table.add_row(
            name,
            f"{seconds:.3f}",
            f"{step['median_cpu_seconds'][name]:.3f}",
            f"{step['median_cpu_seconds_without_update'][name]:.3f}",
            f"{step['positives_an_image'][name]:.0f}" if name in step["positives_an_image"] else "",
            f"{step['gflop'][name]:,.0f}" if name in step["gflop"] else "",
            f"{shares[name]:.1%}",
            f"{wall['median']:.2f} x" if wall else "",
            f"{cpu['median']:.2f} x" if cpu else "",
            f"{cpu['least']:.2f} to {cpu['most']:.2f}" if cpu else "",
        )
    console.print(f"{positives} positive regions an image are asked for")
    console.print(table)
    for name, reason in step["absent"].items():
        console.print(f"{name} is absent: {reason}")
    console.print(f"matrix products reach {max(step['matrix_gflops']):,.0f} GFLOP/s")
    if step["waits_for_the_device"] is not None:
        console.print(f"host waits for the device: {step['waits_for_the_device'] or 'never'}")
    where = step["where_milliseconds"]
    parts = list(dict.fromkeys(part for spent in where.values() for part in spent))
    table = Table("one profiled step, ms", *where)
    for part in parts:
        table.add_row(part, *(f"{spent.get(part, 0.0):,.1f}" for spent in where.values()))
    console.print(table)
