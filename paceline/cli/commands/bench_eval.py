"""`paceline bench eval`: loading and scoring of boxes beside pycocotools and faster-coco-eval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline._utils.atomic_write import check_output
from paceline._utils.errors import UserError
from paceline.cli.flags import parse
from paceline.cli.printing import Printer, write_answer


@dataclass(frozen=True)
class Flags:
    """What to measure."""

    images: int = 5000  # images of the synthetic data set
    detections: int = 100  # detections of an image
    classes: int = 80  # classes
    rounds: int = 1  # rounds; every contender is timed once in each, pycocotools for about a minute
    out: str = ""  # also write the JSON here


def run_eval(printer: Printer, arguments: Sequence[str]) -> int:
    """Measure, print a table, write the JSON.

    Raises UserError where there would be nothing to measure.
    """
    flags = parse(printer, arguments, Flags(), "bench eval", "Scoring of boxes beside its peers, interleaved.")
    check_output(flags.out)
    for name in ("images", "detections", "classes", "rounds"):
        if getattr(flags, name) < 1:
            raise UserError(f"--{name} is {getattr(flags, name)}; it must be at least 1.")
    from rich.console import Console

    from paceline.bench.scoring import run
    from paceline.bench.tables import print_operations

    found = run(flags.images, flags.detections, flags.classes, flags.rounds)
    console = Console()
    console.print(
        f"{flags.images:,} images x {flags.detections} detections, {flags.classes} classes, {found['device']}"
    )
    print_operations([found], console)
    write_answer(found, out=flags.out, printed=False)
    return 0
