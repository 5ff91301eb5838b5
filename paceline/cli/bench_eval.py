"""`paceline bench eval`: loading and scoring of boxes beside pycocotools and faster-coco-eval."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.cli.flags import parse
from paceline.config.errors import UserError


@dataclass(frozen=True)
class Flags:
    """What to measure."""

    images: int = 5000  # images of the synthetic data set
    detections: int = 100  # detections of an image
    classes: int = 80  # classes
    rounds: int = 1  # rounds; every contender is timed once in each, pycocotools for about a minute
    out: str = ""  # also write the JSON here


def run_eval(arguments: Sequence[str]) -> int:
    """Measure, print a table, write the JSON.

    Raises UserError where there would be nothing to measure.
    """
    flags = parse(arguments, Flags(), prog="bench eval", description="Scoring of boxes beside its peers, interleaved.")
    for name in ("images", "detections", "classes", "rounds"):
        if getattr(flags, name) < 1:
            raise UserError(f"--{name} is {getattr(flags, name)}; it must be at least 1.")
    from rich.console import Console
    from rich.table import Table

    from paceline.bench.scoring import facts, run

    found = facts(run(flags.images, flags.detections, flags.classes, flags.rounds))
    found = {"images": flags.images, "detections": flags.detections, "classes": flags.classes, **found}
    equal = found["equal_to_pycocotools"] or {}
    table = Table("contender", "seconds (median)", "CPU-seconds", "ours is faster by", "equal to pycocotools")
    for name, seconds in found["median_seconds"].items():
        ratio = found["times_faster"].get(name)
        verdict = {True: "yes, bit for bit", False: "NO", None: "not installed"}[equal.get(name)]
        table.add_row(
            name,
            f"{seconds:,.2f}",
            f"{found['median_cpu_seconds'][name]:,.2f}",
            f"{ratio:,.1f} x" if ratio else "",
            verdict,
        )
    Console().print(f"{flags.images:,} images x {flags.detections} detections, {flags.classes} classes, {found['cpu']}")
    Console().print(table)
    if flags.out:
        Path(flags.out).parent.mkdir(parents=True, exist_ok=True)
        Path(flags.out).write_text(json.dumps(found, indent=1) + "\n")
    return 0
