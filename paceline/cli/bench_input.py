"""`paceline bench input --data DIR`: photos to training batches beside torchvision in a DataLoader; loader simulations.

With a recipe's name first it is cli/bench_stages.py.
With `--task ssd` the photos' boxes go along, with `--task maskrcnn` their boxes and masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.cli.bench_step import benched
from paceline.cli.flags import parse
from paceline.config.classification import Decoder
from paceline.config.errors import RecipeError


@dataclass(frozen=True)
class Flags:
    """What to measure."""

    data: Path | None = None  # folder with JPEG photos, at any depth; other tasks: a data set with boxes or masks
    task: str = "classification"  # whose training input: a workload
    decoders: tuple[Decoder, ...] = ()  # ours to run; empty = the default and installed extras
    size: int = 0  # side of the output, pixels; 0 = 224, ssd 300, maskrcnn 800 (the shorter side)
    seconds: float = 3.0  # measured per contender and round
    rounds: int = 5  # rounds; every contender is measured once in each
    out: Path | None = None  # also write the JSON here
    simulate: int = 0  # instead: rate of the loader with this many threads and a sleeping stand-in for the decoder
    latency: float = 0.0  # instead: with each read so many milliseconds later, with and without --system.fetch-threads
    memory: bool = False  # instead: resident memory over 20,000 steps on an index of 1.3 million records


def run_input(arguments: Sequence[str]) -> int:
    """Measure and print.

    Raises RecipeError when there is nothing to measure.
    """
    if arguments and not arguments[0].startswith("-"):
        from paceline.cli.bench_stages import run_stages

        return run_stages(arguments)
    flags = parse(arguments, Flags(), prog="bench input", description="Input path beside its peers, interleaved.")
    if flags.simulate > 0 or flags.memory:
        from paceline.bench.input_simulation import memory, simulate

        if flags.simulate > 0:
            simulate(flags.simulate)
        if flags.memory:
            memory()
        return 0
    if flags.data is None:
        raise RecipeError("name a folder with photos: paceline bench input --data DIR (or --simulate 16, or --memory).")
    if flags.latency < 0:
        raise RecipeError(f"--latency {flags.latency:g}: milliseconds, 0 (off) or more.")
    if flags.latency > 0:
        if flags.task != Flags.task or flags.decoders:
            raise RecipeError(
                "--latency: measures classification's input with its default decoder. Leave --task and --decoders away."
            )
        from paceline.bench.input_fetch import run_fetch_bench

        size = flags.size or 224
        run_fetch_bench(
            flags.data,
            milliseconds=flags.latency,
            seconds=flags.seconds,
            size=size,
            out=flags.out,
            rounds=flags.rounds,
        )
        return 0
    benched(flags.task, "input").bench["input"](
        flags.data,
        seconds=flags.seconds,
        **({"size": flags.size} if flags.size else {}),
        decoders=list(flags.decoders) or None,
        out=flags.out,
        rounds=flags.rounds,
    )
    return 0
