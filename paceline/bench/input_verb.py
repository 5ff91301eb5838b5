"""`paceline bench input --data DIR`: photos to training batches beside torchvision in a DataLoader; loader simulations.

With a recipe's name first it is bench/stages_verb.py.
With `--task ssd` the photos' boxes go along, with `--task maskrcnn` their boxes and masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paceline.bench.step_verb import benched
from paceline.command.flags import parse
from paceline.command.printing import answer, say
from paceline.config.classification import Decoder
from paceline.config.errors import RecipeError, UserError
from paceline.config.own_file import check_output


@dataclass(frozen=True)
class Flags:
    """What to measure."""

    data: tuple[Path, ...] = ()  # folder of JPEG photos; tasks: data with objects; --peers: prepared sets too
    task: str = "classification"  # whose training input: a workload
    decoders: tuple[Decoder, ...] = ()  # ours to run; empty = the default and installed extras
    size: int = 0  # side of the output, pixels; 0 = 224, ssd 300, maskrcnn 800 (the shorter side)
    seconds: float = 3.0  # measured per contender and round
    rounds: int = 5  # rounds; every contender is measured once in each
    out: Path | None = None  # also write the JSON here
    simulate: int = 0  # instead: rate of the loader with this many threads and a sleeping stand-in for the decoder
    latency: float = 0.0  # instead: with each read so many milliseconds later, with fetch threads, and kept in memory
    peers: tuple[str, ...] = ()  # instead, beside torchvision: dali, ffcv, mxnet, webdataset, grain, spdl, or all
    peers_in: Path | None = None  # folder of their environments; empty = a folder of the cache
    install_peers: bool = False  # install those that are not there yet, each in an environment of its own
    memory: bool = False  # instead: memory over two epochs of 1.3 million records, and the wait where one ends


def run_input(arguments: Sequence[str]) -> int:
    """Measure and print.

    Raises RecipeError when there is nothing to measure.
    """
    if arguments and not arguments[0].startswith("-"):
        from paceline.bench.stages_verb import run_stages

        return run_stages(arguments)
    flags = parse(arguments, Flags(), prog="bench input", description="Input path beside its peers, interleaved.")
    check_output(flags.out or "")
    if flags.simulate > 0 or flags.memory:
        from paceline.bench.input_simulation import boundary, memory, simulate

        if flags.simulate > 0:
            simulate(flags.simulate)
        if flags.memory:
            memory()
            boundary()
        return 0
    if flags.seconds <= 0 or flags.rounds < 1:
        raise RecipeError("--seconds must be above 0, --rounds 1 or more.")
    if flags.peers or flags.install_peers:
        return _peers(flags)
    if not flags.data:
        raise RecipeError("name a folder with photos: paceline bench input --data DIR (or --simulate 16, or --memory).")
    if len(flags.data) > 1:
        raise RecipeError(f"--data names {len(flags.data)} folders: only --peers compares several.")
    data = next(iter(flags.data))
    if flags.latency < 0:
        raise RecipeError(f"--latency {flags.latency:g}: milliseconds, 0 (off) or more.")
    if flags.latency > 0:
        if flags.task != Flags.task or flags.decoders:
            raise RecipeError(
                "--latency: measures classification's input with its default decoder. Leave --task and --decoders away."
            )
        from paceline.bench.input_fetch import run_fetch_bench

        run: Callable[..., dict[str, Any]] = run_fetch_bench
        further: dict[str, Any] = {"milliseconds": flags.latency, "size": flags.size or 224}
    else:
        from paceline.bench.input import CONTESTS, run_input_bench

        run = partial(run_input_bench, benched(flags.task, "input", CONTESTS))
        further = {"size": flags.size, "decoders": list(flags.decoders) or None}
    report = run(data, seconds=flags.seconds, rounds=flags.rounds, **further)
    answer(report, out=str(flags.out or ""), printed=False)
    return 0


def _peers(flags: Flags) -> int:
    """Other libraries beside ours."""
    from paceline.bench.peers import needed_peers
    from paceline.config.cache import cache_folder

    installs = needed_peers("peer_installs", "--peers")
    names = installs.named_peers(flags.peers or ("all",))
    if flags.task != Flags.task:
        raise RecipeError("--peers: measures classification's input. Leave --task away.")
    place = flags.peers_in or cache_folder() / "peers"
    absent = installs.install_peers(place, names, say) if flags.install_peers else {}
    if not flags.data:
        if flags.install_peers:
            return 0
        raise RecipeError("--peers: name a folder with photos: paceline bench input --peers all --data DIR")
    for folder in flags.data:
        if not folder.is_dir():
            raise UserError(f"--data {folder}: there is no such folder.")

    report = needed_peers("input_peers", "--peers").run_peers_bench(
        flags.data,
        peers=names,
        environments=place,
        absent=absent,
        seconds=flags.seconds,
        rounds=flags.rounds,
        size=flags.size or 224,
        decoders=list(flags.decoders) or None,
    )
    answer(report, out=str(flags.out or ""), printed=False)
    return 0
