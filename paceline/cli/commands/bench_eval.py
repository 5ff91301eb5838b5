"""`paceline bench eval`: loading and scoring of boxes beside pycocotools and faster-coco-eval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from paceline._utils.atomic_write import check_user_file
from paceline._utils.errors import PacelineError
from paceline.cli.flags import parse
from paceline.cli.printing import Printer, write_answer
from paceline.config.constraints import Help


@dataclass(frozen=True)
class BenchEvalFlags:
    """What to measure."""

    images: Annotated[int, Help("images of the synthetic data set")] = 5000
    detections: Annotated[int, Help("detections of an image")] = 100
    classes: Annotated[int, Help("classes")] = 80
    rounds: Annotated[int, Help("rounds; every contender is timed once in each, pycocotools for about a minute")] = 1
    out: Annotated[str, Help("also write the JSON here")] = ""


def run_eval(printer: Printer, arguments: Sequence[str]) -> int:
    """Measure, print a table, write the JSON.

    Raises PacelineError where there would be nothing to measure.
    """
    flags = parse(printer, arguments, BenchEvalFlags(), "bench eval", "Scoring of boxes beside its peers, interleaved.")
    check_user_file(flags.out)
    for name in ("images", "detections", "classes", "rounds"):
        if getattr(flags, name) < 1:
            raise PacelineError(f"--{name} is {getattr(flags, name)}; it must be at least 1.")
    from rich.console import Console

    from paceline.tools.bench.scoring import run_scoring
    from paceline.tools.bench.tables import print_operations

    result = run_scoring(flags.images, flags.detections, flags.classes, flags.rounds)
    console = Console()
    console.print(f"{flags.images:,} images x {flags.detections} detections, {flags.classes} classes, {result['device']}")
    print_operations([result], console)
    write_answer(result, out=flags.out, printed=False)
    return 0
